"""One self-contained page about a run: curves, tables, and trajectories read turn by turn.  HOST.

  python -m searchjax.report --workdir W     writes W/report.html and prints Table 2

The page loads nothing and runs nothing: no script, no font, no image from elsewhere, and a content
policy that forbids them.  All text from questions, pages and the policy is escaped.  Parts of the
run that are missing are listed.

Letters  those of SPEC.
Source   SPEC 5.
"""

import datetime
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import numpy as np
import rich.box
import rich.console
import rich.table

import searchjax
from searchjax import figures
from searchjax.dist import settings
from searchjax.dist.metrics import METRICS, alarms

STAGES = (
  ("sft", "Supervised fine-tuning", "searchjax.train_sft"),
  ("rm", "Preference model", "searchjax.train_rm"),
  ("grpo", "GRPO", "searchjax.train_grpo"),
)
STEPS_SHOWN = 4
ROLLOUTS_PER_STEP = 5
QUESTIONS_COMPARED = 4
WHOLE_TABLE = 128  # Columns of a terminal that the table of policies needs.
LONGEST_TEXT = 6000  # Characters of one turn shown; the rest is counted.
CHART_WIDTH, CHART_HEIGHT = 240, 64
PARTS = (
  ("base", "r_base"),
  ("preference", "s"),
  ("tool_penalty", "pen_tool"),
  ("length_penalty", "pen_len"),
  ("penalty", "pen_eff"),
  ("total", "R"),
)
RECORD_FIELDS = {
  "question_id": figures.TEXT,
  "valid": (bool,),
  "kind": figures.TEXT,
  "question": figures.TEXT,
  "gold": (str, type(None)),
  "reward": (dict,),
  "turns": (list,),
  "tool_calls": figures.NUMBER,
  "tool_failures": figures.NUMBER,
}
# The figures' print colours become variables, so that the page can be light or dark.
COLOUR_VARIABLES = {
  figures.INK: "--ink",
  figures.GRID: "--grid",
  figures.PUBLISHED: "--faint",
  "#2a6fbb": "--blue",
  "#d9730d": "--orange",
  "#8250a8": "--purple",
  "#c23b50": "--red",
  "#2e8b57": "--green",
}


def build_page(workdir: pathlib.Path) -> str:
  """The report as HTML text.

  Args:
    workdir: the run folder that holds sft/, rm/, grpo/, eval/ and ablation/.

  Raises:
    ValueError: the folder is absent or holds none of these.
  """
  if not workdir.is_dir():
    raise ValueError(f"no run folder {workdir}; give the --workdir of a quickstart run")
  names = ("sft", "rm", "grpo", "eval", "ablation")
  if not any((workdir / name).is_dir() for name in names):
    raise ValueError(
      f"{workdir} holds no run; expected one of " + ", ".join(f"{n}/" for n in names)
    )
  missing: list[str] = []
  drawn = _drawn_figures(workdir, missing)
  stages = [stage for stage in (_stage(workdir, *names, missing) for names in STAGES) if stage]
  table, notes = _table(workdir, missing)
  ablation = figures.ablation_table(workdir) if "ablation" in drawn else []
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader("searchjax", "assets"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters["clean"] = clean
  environment.filters["number"] = _number
  return environment.get_template("report.html").render(
    version=searchjax.__version__,
    name=workdir.resolve().name,
    made=datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
    table=table,
    notes=notes,
    figures=[part for part in drawn.values() if part["name"] != "ablation"],
    ablation_figure=drawn.get("ablation"),
    ablation=ablation,
    stages=stages,
    steps=_training_steps(workdir, missing),
    questions=_compared_questions(workdir, missing),
    parts=PARTS,
    missing=missing,
  )


def clean(text: Any, limit: int = LONGEST_TEXT) -> str:
  """Text that any HTML page can hold: no control characters, no lone surrogates, a bounded length.

  Escaping is the template's; this only keeps the file valid and says what it leaves out.
  """
  text = str(text)
  rest = len(text) - limit
  text = re.sub(
    r"[^\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text
  )
  return text if rest <= 0 else f"{text[:limit]} … ({rest} more characters)"


def main(workdir: pathlib.Path) -> None:
  """Writes the page, prints Table 2 and where the page lies."""
  path = workdir / "report.html"
  if path.exists() and not path.is_file():
    raise ValueError(f"{path} is a folder; move it away, the report goes into a file there")
  page = build_page(workdir)
  temporary = path.with_name(".report.html.tmp")
  try:
    try:
      temporary.write_text(page, encoding="utf-8")
      temporary.replace(path)
    finally:
      temporary.unlink(missing_ok=True)
  except OSError as error:
    raise ValueError(f"cannot write {path}: {error.strerror}") from error
  _print_table(workdir)
  print(f"report: {path.resolve()}")


def _drawn_figures(workdir: pathlib.Path, missing: list[str]) -> dict[str, dict[str, str]]:
  drawn = {}
  for part in figures.PARTS:
    try:
      text = figures.svg(figures.draw(part, workdir), transparent=True)
    except figures.MissingPartError as error:
      missing.append(f"{part.title}: {error}")
      continue
    drawn[part.name] = {
      "name": part.name,
      "title": part.title,
      "caption": part.caption,
      "svg": jinja2.utils.markupsafe.Markup(_inline_svg(text, part)),
    }
  return drawn


def _inline_svg(text: str, part: figures.Part) -> str:
  """Matplotlib's SVG as an element of the page: own identifiers, the page's colours and font."""
  text = text[text.index("<svg") :]
  text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
  referenced = set(re.findall(r'(?:url\(|href=")#([^)"]+)[)"]', text))

  def rename(match: re.Match) -> str:
    return f' id="{part.name}-{match[1]}"' if match[1] in referenced else ""

  text = re.sub(r' id="([^"]+)"', rename, text)
  text = re.sub(r"url\(#([^)]+)\)", rf"url(#{part.name}-\1)", text)
  text = re.sub(r'href="#([^"]+)"', rf'href="#{part.name}-\1"', text)
  for colour, variable in COLOUR_VARIABLES.items():
    text = text.replace(colour, f"var({variable})")
  text = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font)", text)
  size = re.search(r'<svg [^>]*?width="([\d.]+)pt"', text)
  style = f' style="max-width: {float(size[1]) * 1.3:.0f}px"' if size else ""
  head = re.sub(r' (?:width|height)="[\d.]+pt"', "", text[: text.index(">")])
  return f'{head}{style} role="img" aria-label="{part.title}"{text[text.index(">") :]}'


def _stage(
  workdir: pathlib.Path, name: str, title: str, writer: str, missing: list[str]
) -> dict[str, Any] | None:
  run = workdir / name
  rows = figures.read_metrics(run / "metrics.jsonl")
  if not rows:
    missing.append(f"{title}: {run}/metrics.jsonl is missing or empty; {writer} writes it")
    return None
  present = [metric for metric in METRICS if any(metric in row for row in rows)]
  charts = [_chart(metric, rows) for metric in present]
  first_alarms: dict[str, str] = {}
  for row in rows:
    for text in alarms({key: value for key, value in row.items() if key in METRICS}):
      first_alarms.setdefault(text.split(" ", 1)[0], f"step {row['step']:.0f}: {text}")
  config = run / "config.json"
  return {
    "name": name,
    "title": title,
    "steps": len(rows),
    "charts": charts,
    "alarms": list(first_alarms.values()),
    "config": config.read_text("utf-8", "replace") if config.is_file() else "no config.json",
  }


def _chart(name: str, rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
  """A small line chart as the points of an SVG polyline; a value that is not finite is a gap."""
  pairs = [(row["step"], row[name]) for row in rows if name in row]
  finite = [value for _, value in pairs if math.isfinite(value)]
  low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
  steps = [step for step, _ in pairs]
  width = max(steps) - min(steps) or 1
  lines: list[list[str]] = [[]]
  for step, value in pairs:
    if not math.isfinite(value):
      lines.append([])
      continue
    x = (step - min(steps)) / width * CHART_WIDTH
    y = (1 - (value - low) / (high - low)) * CHART_HEIGHT if high > low else CHART_HEIGHT / 2
    lines[-1].append(f"{x:.1f},{y:.1f}")
  return {
    "metric": METRICS[name],
    "lines": [" ".join(points) for points in lines if len(points) > 1],
    "dots": [points[0].split(",") for points in lines if len(points) == 1],
    "last": pairs[-1][1],
    "first": pairs[0][1],
    "low": low,
    "high": high,
    "broken": len(pairs) - len(finite),
  }


def _table(workdir: pathlib.Path, missing: list[str]) -> tuple[list[dict[str, str]], list[str]]:
  try:
    return figures.table2(workdir), figures.table2_notes(workdir)
  except figures.MissingPartError as error:
    missing.append(f"Table 2: {error}")
    return [], []


def _training_steps(workdir: pathlib.Path, missing: list[str]) -> list[dict[str, Any]]:
  files = sorted((workdir / "grpo/rollouts").glob("step_*.jsonl"))
  if not files:
    missing.append(f"Training trajectories: {workdir}/grpo/rollouts has no step_*.jsonl")
    return []
  chosen = np.unique(np.linspace(0, len(files) - 1, STEPS_SHOWN).round().astype(int))
  steps = []
  for file in (files[index] for index in chosen):
    records = _read_records(file)
    shown = _telling_rollouts(records)
    step = int(file.stem.removeprefix("step_"))
    steps.append({"step": step, "rollouts": shown, "count": len(records)})
  return steps


def _telling_rollouts(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """A few rollouts that differ in what can be learned from them, not the best ones."""
  valid = [record for record in records if record["valid"]]
  questions = [record for record in valid if record["kind"] == "qa"]
  right = [record for record in questions if record["reward"]["base"]]
  wrong = [record for record in questions if not record["reward"]["base"]]
  wishes = (
    ("right answer, most reward", max(right, key=_total, default=None)),
    ("wrong answer, most calls", max(wrong, key=lambda r: r["tool_calls"], default=None)),
    ("rubric chat", next((r for r in valid if r["kind"] == "rubric"), None)),
    ("a call that cannot be read", next(filter(_has_unreadable_turn, valid), None)),
    ("invalid, counts nowhere", next((r for r in records if not r["valid"]), None)),
    ("right answer, least reward", min(right, key=_total, default=None)),
  )
  shown: list[dict[str, Any]] = []
  for why, record in wishes:
    if record is not None and all(record is not other["record"] for other in shown):
      shown.append({"why": why, "record": record})
  return shown[:ROLLOUTS_PER_STEP]


def _has_unreadable_turn(record: Mapping[str, Any]) -> bool:
  return any("raw" in turn for turn in record["turns"])


def _compared_questions(workdir: pathlib.Path, missing: list[str]) -> list[dict[str, Any]]:
  """Held-out questions with every policy's rollout, those where the policies differ first."""
  by_policy: dict[str, dict[str, dict[str, Any]]] = {}
  for policy in figures.POLICY_NAMES:
    file = workdir / f"eval/rollouts/{policy}_greedy.jsonl"
    if file.is_file():
      by_policy[policy] = {record["question_id"]: record for record in _read_records(file)}
  if not by_policy:
    missing.append(f"Evaluation examples: {workdir}/eval/rollouts has no rollouts")
    return []
  common = list(dict.fromkeys(key for records in by_policy.values() for key in records))

  def interest(key: str) -> tuple[int, int]:
    outcomes = [records[key]["reward"]["base"] for records in by_policy.values() if key in records]
    return -len(outcomes), -len(set(outcomes))

  questions = []
  for key in sorted(common, key=interest)[:QUESTIONS_COMPARED]:
    columns = [
      {"policy": figures.POLICY_NAMES[policy], "record": records[key]}
      for policy, records in by_policy.items()
      if key in records
    ]
    questions.append({"question": columns[0]["record"]["question"], "columns": columns})
  return questions


def _read_records(path: pathlib.Path) -> list[dict[str, Any]]:
  """A rollout file's records, with every field that the page shows."""
  records = figures.read_records(path)
  nullable = (*figures.TEXT, type(None))
  for number, record in enumerate(records, start=1):
    where = f"{path}, record {number}"
    figures.check_fields(record, where, RECORD_FIELDS, ["advantage", "length"])
    rewards = [key for key, _ in PARTS]
    figures.check_fields(record["reward"], f"{where}, reward", {"base": figures.NUMBER}, rewards)
    for place, turn in enumerate(record["turns"]):
      spot = f"{where}, turns[{place}]"
      fields = {"role": figures.TEXT, "text": nullable}
      if isinstance(turn, dict):
        optional = {"calls": (list,), "raw": figures.TEXT, "status": nullable}
        fields |= {key: kinds for key, kinds in optional.items() if key in turn}
      figures.check_fields(turn, spot, fields)
      for call in turn.get("calls", []):
        wanted = {"name": figures.TEXT, "arguments": (dict,)}
        figures.check_fields(call, f"{spot}, calls", wanted)
  return records


def _total(record: Mapping[str, Any]) -> float:
  total = record["reward"].get("total")
  return -math.inf if total is None else total


def _number(value: Any, digits: int = 3) -> str:
  if value is None or isinstance(value, str):
    return value or "-"
  if not math.isfinite(value):
    return str(value)
  return f"{value:.{digits}g}"


def _print_table(workdir: pathlib.Path) -> None:
  try:
    rows = figures.table2(workdir)
  except figures.MissingPartError as error:
    print(f"no table: {error}")
    return
  console = rich.console.Console()
  # A log file has no width of its own; a table cut at 80 columns would lose numbers.
  width = console.width if console.is_terminal else 160
  narrow = width < WHOLE_TABLE
  table = rich.table.Table(
    title="Held-out questions", title_justify="left",
    box=rich.box.SIMPLE if narrow else rich.box.HEAVY_HEAD, collapse_padding=narrow,
    pad_edge=not narrow,
  )
  for position, column in enumerate(rows[0]):
    table.add_column(column, justify="left" if position < 2 else "right", no_wrap=not narrow)
  for row in rows:
    # On a narrow terminal titles are broken and the intervals left to figures/table2.md.
    table.add_row(*(value.split(" [")[0] if narrow else value for value in row.values()))
  rich.console.Console(width=width).print(table)
  if narrow:
    print("with intervals: figures/table2.md")
  for note in figures.table2_notes(workdir):
    print(note)


if __name__ == "__main__":
  settings.run_main(main, "Writes a run folder's report.html.", needs_config=False)
