"""The run folder: resolved config, metrics, rollouts, TensorBoard and progress.  HOST.

Every name a run may write stands in `searchjax.dist.metrics.METRICS`.

    WORKDIR/config.json  metrics.jsonl  rollouts/step_000012.jsonl  tensorboard/  checkpoints/

Letters  none.
Source   none.
"""

import dataclasses
import json
import math
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import rich.console
import rich.measure
import rich.progress
import rich.table
import rich.text
import tensorboardX

from searchjax.dist import settings
from searchjax.dist.distributed import Run
from searchjax.dist.metrics import METRICS, alarms
from searchjax.dist.storage import Mirror, as_folder, is_remote, local_part

# What the progress line shows, the first few that a step has.
HEADLINE = (
  "loss",
  "token_accuracy",
  "pair_accuracy",
  "holdout_accuracy",
  "rollout_accuracy",
  "reward",
  "base_reward",
  "preference",
  "tool_calls",
  "penalty",
  "kl_k3",
  "grad_norm",
  "synthesis_kept",
  "questions_per_second",
)
HEADLINE_COUNT = 5
STAGE_LEVELS = 4
# Sections of a config that do not tell one run from another: it may go on elsewhere.
HOW_IT_RUNS = ("distributed", "profile")
PLAIN_LINES = 25  # Lines of progress a run prints where there is no terminal.
WIDE_TERMINAL = 100  # Columns from which the bar is long.
LONG_BAR, SHORT_BAR = 24, 10
SPEED_SECONDS = 300.0  # The time left is estimated from the steps of so long a time.


class RunLog:
  """Writes one run's folder.  A context manager; `close` flushes everything.

  A run that made its folder's config.json and fails inside the context before its first metric
  line takes back what it made, so the mended command may have the folder.
  """

  def __init__(
    self,
    workdir: str | pathlib.Path,
    config: Any,
    *,
    total_steps: int,
    resume_step: int = 0,
    title: str | None = None,
    mirror: Mirror | None = None,
  ):
    """Opens a new run folder, or the same run's again.

    Args:
      workdir: the folder; made if absent.
      config: the resolved config; written to config.json before anything else.
      total_steps: what progress counts to.
      resume_step: the first step still to be run.  Lines of this step and later ones, and a
        half-written last line, are dropped from metrics.jsonl; 0 starts anew.
      title: what progress calls the run; None takes the folder's name.
      mirror: copies the folder to a bucket, when `sync` is called and at the end.

    Raises:
      ValueError: the folder holds another run (the differing keys are named), or files but no
        config.json, or cannot be made.
    """
    self.workdir = pathlib.Path(workdir)
    try:
      self._claim = _claim_workdir(self.workdir, config)
    except OSError as error:
      raise ValueError(
        f"work folder {workdir} cannot be made: {error.strerror}; give another --workdir"
      ) from error
    self._total_steps = total_steps
    self._title = title or self.workdir.name
    self._metrics_path = self.workdir / "metrics.jsonl"
    _truncate_metrics(self._metrics_path, resume_step)
    self._metrics = self._metrics_path.open("a", encoding="utf-8")
    self._tensorboard = tensorboardX.SummaryWriter(
      str(self.workdir / "tensorboard"), purge_step=resume_step or None, flush_secs=30
    )
    self._started = time.monotonic()
    self._first_step = resume_step
    self._last_plain = -math.inf
    self._alarmed: set[str] = set()
    self._console = rich.console.Console(file=sys.stdout)
    if resume_step:
      _say_done(self._title, resume_step, total_steps, self.workdir)
    self._bar = _start_bar(self._console, self._title, total_steps, resume_step)
    self._mirror = mirror
    self.sync()

  def __enter__(self) -> "RunLog":
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    self.close()
    if kind is not None and self._claim is not None:
      self._claim.take_back()

  def write(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Writes one step's numbers.

    Args:
      step: counted from 0.
      metrics: name to scalar (Python, NumPy or JAX).

    Raises:
      ValueError: a name that is not in `METRICS`.
    """
    for name in metrics:
      if name not in METRICS:
        raise ValueError(
          f'unknown metric "{name}"{settings.nearest(name, list(METRICS))}; METRICS lists them'
        )
    numbers = {name: float(value) for name, value in metrics.items()}
    line = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    self._metrics.write(json.dumps({"step": int(step), **line}) + "\n")
    self._metrics.flush()
    for name, value in numbers.items():
      if math.isfinite(value):  # TensorBoard would only complain; metrics.jsonl holds the null.
        self._tensorboard.add_scalar(name, value, int(step))
    self._show(int(step), numbers)

  def rollouts(self, step: int, records: Iterable[Mapping[str, Any]]) -> pathlib.Path:
    """Writes one step's rollouts to rollouts/step_NNNNNN.jsonl, whole or not at all."""
    path = self.workdir / "rollouts" / f"step_{step:06d}.jsonl"
    write_jsonl(path, records)
    return path

  def sync(self) -> None:
    """Brings the copy in a bucket up to date; nothing for a local work folder."""
    if self._mirror is not None:
      self._mirror.send()

  def close(self) -> None:
    """Flushes and closes every file; may be called twice."""
    if self._bar is not None:
      self._bar.stop()
      self._bar = None
    self._metrics.close()
    self._tensorboard.close()
    self.sync()

  def _show(self, step: int, numbers: Mapping[str, float]) -> None:
    for text in alarms(numbers):
      name = text.split(" ", 1)[0]
      if name not in self._alarmed:
        self._alarmed.add(name)
        self._console.print(
          f"{self._title} step {step}: outside its healthy range: {text}", highlight=False
        )
    shown = [name for name in HEADLINE if name in numbers][:HEADLINE_COUNT]
    pairs = [f"{name} {numbers[name]:.4g}" for name in shown]
    if self._bar is not None:
      self._bar.update(self._bar.task_ids[0], completed=step + 1, numbers=pairs)
      return
    every = max(1, self._total_steps // PLAIN_LINES)
    if step >= self._last_plain + every or step + 1 >= self._total_steps:
      self._last_plain = step
      seconds = time.monotonic() - self._started
      done = max(1, step + 1 - self._first_step)
      left = seconds / done * max(0, self._total_steps - step - 1)
      clock = f"{seconds:.0f} s, about {left:.0f} s left"
      text = "  ".join(pairs)
      print(f"{self._title} {step + 1}/{self._total_steps}  {text}  ({clock})", flush=True)


class SilentLog:
  """What a process that is not the first has for a RunLog: it writes nothing."""

  def __enter__(self) -> "SilentLog":
    return self

  def __exit__(self, *_: object) -> None:
    pass

  def write(self, step: int, metrics: Mapping[str, Any]) -> None:
    """As RunLog's."""

  def rollouts(self, step: int, records: Iterable[Mapping[str, Any]]) -> None:
    """As RunLog's."""

  def sync(self) -> None:
    """As RunLog's."""


def open_log(
  workdir: str | os.PathLike, config: Any, run: Run, **settings: Any
) -> RunLog | SilentLog:
  """The log of this process: a run folder is written once, by the first.

  Args:
    workdir: in a bucket too; the files then lie below distributed.local_folder, and are copied.
    settings: of RunLog.
  """
  if not run.first:
    return SilentLog()
  if not is_remote(workdir):
    return RunLog(workdir, config, **settings)
  mirror = Mirror(local_part(workdir, config["distributed"]["local_folder"]), as_folder(workdir))
  mirror.fetch("config.json", "metrics.jsonl")
  return RunLog(mirror.local, config, mirror=mirror, **settings)


def is_finished(
  workdir: str | os.PathLike, config: Any, *, done: int | None, total_steps: int, title: str
) -> bool:
  """Whether a run has nothing left to do; one line says so then.  Nothing is written.

  Args:
    workdir: the run's folder.
    config: the resolved config.
    done: the step its results are of; None without any.
    total_steps: the step they have to be of.
    title: what the line calls the run.

  Raises:
    ValueError: the folder is another run's; the differing keys are named.
  """
  if not _is_same_run(as_folder(workdir), config) or done != total_steps:
    return False
  _say_done(title, done, total_steps, workdir)
  return True


def find_stage(workdir: str | os.PathLike, name: str) -> os.PathLike:
  """Finds another stage's folder: beside the run's own, or beside one of its parents.

  `W/rm` and `W/ablation/anchored/seed_0` both find `W/sft`, so no config holds a path.

  Args:
    workdir: the run's own folder.
    name: the stage, e.g. "sft".

  Raises:
    ValueError: there is none up to four levels up.
  """
  here = as_folder(workdir)
  for parent in list(here.parents)[:STAGE_LEVELS]:
    if (parent / name / "config.json").is_file():
      return parent / name
  raise ValueError(
    f'no finished stage "{name}" beside {workdir}; run it first with --workdir {here.parent / name}'
  )


def read_metrics(path: str | pathlib.Path) -> list[dict[str, float]]:
  """Reads metrics.jsonl: what was not finite is NaN, a half-written last line is left out."""
  path = pathlib.Path(path)
  rows = []
  lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
  for number, line in enumerate(lines, start=1):
    try:
      row = json.loads(line)
    except json.JSONDecodeError as error:
      if number == len(lines):  # A run that is being written, or was killed.
        break
      raise ValueError(f"{path}, line {number} is not JSON: {error.msg}") from error
    rows.append({name: math.nan if value is None else value for name, value in row.items()})
  return rows


def write_jsonl(path: pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
  """Writes records, one JSON line each, under a temporary name that is renamed when complete."""
  _write_atomically(
    path, "".join(json.dumps(r, default=_plain, ensure_ascii=False) + "\n" for r in records)
  )


def write_json(path: pathlib.Path, record: Mapping[str, Any]) -> None:
  """Writes one JSON file, indented, under a temporary name that is renamed when complete."""
  _write_atomically(path, json.dumps(record, default=_plain, ensure_ascii=False, indent=2) + "\n")


@dataclasses.dataclass(frozen=True)
class Claim:
  """What was there before a run wrote its config.json.

  Args:
    workdir: the run's folder.
    missing: the folder and those above it that were not there, the innermost first.
    present: what lay in the folder and in its tensorboard/.
  """

  workdir: pathlib.Path
  missing: tuple[pathlib.Path, ...]
  present: frozenset[pathlib.Path]

  @classmethod
  def before(cls, workdir: pathlib.Path) -> "Claim":
    missing = tuple(path for path in (workdir, *workdir.parents) if not path.exists())
    return cls(workdir, missing, frozenset(_inside(workdir) + _inside(workdir / "tensorboard")))

  def take_back(self) -> None:
    """Removes what RunLog made, unless there is a metric line or anything else of the run."""
    config, metrics, tensorboard = (
      self.workdir / name for name in ("config.json", "metrics.jsonl", "tensorboard")
    )
    made = set(_inside(self.workdir)) - self.present
    if made - {config, metrics, tensorboard} or (metrics in made and metrics.stat().st_size):
      return
    if tensorboard in made:
      shutil.rmtree(tensorboard)
    for path in set(_inside(tensorboard)) - self.present:
      path.unlink()
    for path in (metrics, config):
      path.unlink(missing_ok=True)
    for folder in self.missing:
      if _inside(folder):
        return
      folder.rmdir()


def _inside(folder: pathlib.Path) -> list[pathlib.Path]:
  return list(folder.iterdir()) if folder.is_dir() else []


def _claim_workdir(workdir: pathlib.Path, config: Any) -> Claim | None:
  """Writes config.json; returns the claim, None where the same run's file is there already."""
  if _is_same_run(workdir, config):
    return None
  for name in ("metrics.jsonl", "rollouts", "checkpoints"):
    if (workdir / name).exists():
      raise ValueError(
        f"{workdir} holds {name} but no config.json; give another --workdir or delete it"
      )
  claim = Claim.before(workdir)
  write_json(workdir / "config.json", as_record(config))
  return claim


def _is_same_run(workdir: os.PathLike, config: Any) -> bool:
  """False where there is no config.json; raises where it is another run's."""
  path = workdir / "config.json"
  if not path.is_file():
    return False
  try:
    record = json.loads(path.read_text(encoding="utf-8"))
  except UnicodeDecodeError as error:
    raise ValueError(f"{path} is not UTF-8; give another --workdir") from error
  except json.JSONDecodeError as error:
    raise ValueError(f"{path} is not JSON ({error.msg}); give another --workdir") from error
  if not isinstance(record, dict):
    raise ValueError(
      f"{path} holds a {type(record).__name__}, expected an object; give another --workdir"
    )
  there, here = (
    {k: v for k, v in settings.flatten(c).items() if k.partition(".")[0] not in HOW_IT_RUNS}
    for c in (record, as_record(config))
  )
  differing = [key for key in sorted(there.keys() | here.keys()) if there.get(key) != here.get(key)]
  if differing:
    shown = ", ".join(f"{k} (there {there.get(k)!r}, here {here.get(k)!r})" for k in differing[:3])
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    raise ValueError(
      f"{workdir} is the work folder of another run: its config differs in {shown}{more}; "
      "give another --workdir or delete it"
    )
  return True


def as_record(config: Any) -> dict[str, Any]:
  """A resolved config as JSON gives it back: tuples are lists."""
  resolved = config.to_dict() if hasattr(config, "to_dict") else dict(config)
  return json.loads(json.dumps(resolved, default=_plain))


def _truncate_metrics(path: pathlib.Path, resume_step: int) -> None:
  kept = []
  for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
    try:
      step = json.loads(line)["step"]
    except json.JSONDecodeError:  # The line that a killed run was writing.
      continue
    if step < resume_step:
      kept.append(line + "\n")
  _write_atomically(path, "".join(kept))


def _write_atomically(path: pathlib.Path, text: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
  temporary.write_text(text, encoding="utf-8")
  os.replace(temporary, path)


def _plain(value: Any) -> Any:
  """What json cannot write by itself: arrays, NumPy scalars, paths, records with a dict form."""
  if hasattr(value, "tolist"):
    return value.tolist()
  if isinstance(value, pathlib.Path):
    return str(value)
  if hasattr(value, "to_dict"):
    return value.to_dict()
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return dataclasses.asdict(value)
  raise TypeError(f"cannot write a {type(value).__name__} as JSON")


def _say_done(title: str, done: int, total: int, workdir: str | os.PathLike) -> None:
  print(f"{title}: {done} of {total} steps done already ({workdir})", flush=True)


class _FittingPairs:
  """As many of the pairs "name value" as the line has room for; none is cut."""

  def __init__(self, pairs: list[str]):
    self._pairs = pairs

  def __rich_measure__(self, console, options) -> rich.measure.Measurement:
    return rich.measure.Measurement(0, len("  ".join(self._pairs)))

  def __rich_console__(self, console, options) -> Iterator[rich.text.Text]:
    count = len(self._pairs)
    while len("  ".join(self._pairs[:count])) > options.max_width:
      count -= 1
    yield rich.text.Text("  ".join(self._pairs[:count]), no_wrap=True)


class _NumbersColumn(rich.progress.ProgressColumn):
  """The latest numbers.  The one column that may be narrowed: it is no `no_wrap` column."""

  def render(self, task: rich.progress.Task) -> _FittingPairs:
    return _FittingPairs(task.fields["numbers"])


def _start_bar(
  console: rich.console.Console, title: str, total: int, completed: int
) -> rich.progress.Progress | None:
  if not console.is_terminal:
    return None
  whole = lambda: rich.table.Column(no_wrap=True)
  length = LONG_BAR if console.width >= WIDE_TERMINAL else SHORT_BAR
  bar = rich.progress.Progress(
    rich.progress.TextColumn("{task.description}", table_column=whole()),
    rich.progress.BarColumn(bar_width=length, table_column=whole()),
    rich.progress.MofNCompleteColumn(table_column=whole()),
    rich.progress.TimeRemainingColumn(table_column=whole()),
    _NumbersColumn(),
    console=console,
    speed_estimate_period=SPEED_SECONDS,
  )
  bar.add_task(title, total=total, completed=completed, numbers=[])
  bar.start()
  return bar
