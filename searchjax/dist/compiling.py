"""Compiles one program for a TPU slice in a process of its own and reads what came out.  HOST.

The compiler may run for minutes, or die by a signal; so every program gets a process that can be
ended, with its own dump folder. At stage "hlo" the process is ended as soon as XLA has written the
optimised program and its buffer assignment: everything that decides memory, collectives and FLOPs.

Letters  none.
Source   measured behaviour of jax 0.10.2 with libtpu 0.0.52; see `searchjax.dist.hlo`.
"""

import dataclasses
import glob
import importlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from searchjax.dist import hlo
from searchjax.dist.settings import EXIT_BAD_INPUT, is_ours, load_config
from searchjax.dist.sharding import MESH_AXES
from searchjax.dist.topology import ENVIRONMENT, axis_rates, parse_topology, topology_mesh

POLL = 0.2  # Seconds between looks at the dump folder.
QUIET = 1.0  # The dumps are complete when their sizes have stood still for so many seconds.
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


@dataclasses.dataclass(frozen=True)
class Program:
  """One jitted function of a run, and what its author knows that no compiler can.

  Attributes:
    name: one word, unique in the run.
    function: a `jax.jit` callable; donated arguments are declared there.
    arguments: positional; trees of `jax.ShapeDtypeStruct` with shardings on the given mesh.
    model_flops: what the model needs, a device and call: 6 · active parameters · tokens for a
      training step, 2 · for a forward pass; 0 where there is no such figure (a reshard).
    least_hbm: bytes a device that a call must move in HBM however it is computed (weights,
      caches); 0 where nothing is known.
    padded_flops: of the executed FLOPs, those spent on capacity or padding rows, a device and call.
    calls_per_step: how often the run calls it in one step; 0 for a program outside the steps.
    most_calls: how often a step calls it at most, where data decide; calls_per_step is then 0.
    resident: bytes a device that stay in memory meanwhile and are no argument of this program, by
      name (decode copy, preference model, caches).
    kernel_costs: (FLOPs, HBM bytes) of one call of a Pallas kernel, by name, where its cost
      estimate in the HLO is missing or wrong.
    advice: what to change in the config when it does not fit; one sentence.
  """

  name: str
  function: Callable
  arguments: tuple
  model_flops: float = 0.0
  least_hbm: float = 0.0
  padded_flops: float = 0.0
  calls_per_step: float = 1.0
  most_calls: float = 0.0
  resident: Mapping[str, float] = dataclasses.field(default_factory=dict)
  kernel_costs: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
  advice: str = ""


@dataclasses.dataclass(frozen=True)
class Job:
  """What a compiling process is told, as JSON.

  Attributes:
    config: the config file, with `:variant`.
    overrides: `--config.KEY=VALUE` words.
    topology: name of the slice.
    builder: `module:function`, called as function(config, mesh); returns a list of `Program`.
    program: name of the one to compile; "" only lists them.
    folder: where dumps and answers go.
  """

  config: str
  overrides: tuple[str, ...]
  topology: str
  builder: str
  program: str
  folder: str


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a compilation ended.

  Attributes:
    status: "compiled" (with code), "optimised" (stage hlo), "out of memory", "crashed", "timeout",
      "refused" (bad input found while tracing) or "failed".
    message: the compiler's first line, the signal, or the limit; "" where all went well.
    seconds: wall time of the process.
    costs: None where the optimised program was not written.
    memory: None where the buffer assignment was not written.
    instructions: of the optimised program.
  """

  status: str
  message: str
  seconds: float
  costs: hlo.Costs | None = None
  memory: hlo.Memory | None = None
  instructions: int = 0


# ---- the process that compiles -------------------------------------------------------------------


def work(job: Job) -> None:
  """Lists the programs, or compiles one; leaves its answers in the job's folder."""
  folder = pathlib.Path(job.folder)
  config = load_config(job.config, job.overrides)
  topology = parse_topology(job.topology)
  mesh = topology_mesh(topology, mesh_axes(config))
  module, _, function = job.builder.partition(":")
  programs = getattr(importlib.import_module(module), function)(config, mesh)
  _write(folder / "programs.json", {
    "mesh": dict(mesh.shape),
    "rates": axis_rates(topology, mesh.devices),
    "programs": [_facts(program) for program in programs],
    "steps": int(config.get("steps", 0)),
  })
  if not job.program:
    return
  program = next(program for program in programs if program.name == job.program)
  begun = time.monotonic()
  lowered = program.function.trace(*program.arguments).lower(lowering_platforms=("tpu",))
  _write(folder / "lowered.json", {"seconds": time.monotonic() - begun})
  try:
    lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    _write(folder / "error.json", {"message": str(error)})
    raise SystemExit(1) from error
  _write(folder / "compiled.json", {})


def mesh_axes(config: Any) -> dict[str, int]:
  """The mesh sizes of a config's group `mesh`; its other keys are not about sizes.

  Raises:
    ValueError: no such group.
  """
  if "mesh" not in config:
    raise ValueError("the config has no group mesh (fsdp, expert, context): no run on devices")
  return {axis: int(config.mesh[axis]) for axis in MESH_AXES if axis in config.mesh}


def _facts(program: Program) -> dict:
  facts = {
    field.name: getattr(program, field.name)
    for field in dataclasses.fields(program)
    if field.name not in ("function", "arguments")
  }
  return facts | {"resident": dict(program.resident), "kernel_costs": dict(program.kernel_costs)}


def _write(path: pathlib.Path, value: dict) -> None:
  """Writes so that the waiting process never reads half of it."""
  draft = path.with_suffix(".draft")
  draft.write_text(json.dumps(value), encoding="utf-8")
  draft.rename(path)


# ---- the process that waits ----------------------------------------------------------------------


def list_programs(job: Job, limit: float) -> dict:
  """Names and facts of a run's programs, and its mesh, as `work` wrote them.

  Raises:
    ValueError: what the config, the mesh or the builder found wrong.
    RuntimeError: the process died otherwise.
  """
  process = _start(dataclasses.replace(job, program=""))
  try:
    code = process.wait(limit)
  except subprocess.TimeoutExpired:
    code = None
  finally:
    end(process)
  answer = pathlib.Path(job.folder) / "programs.json"
  if code == 0 and answer.is_file():
    listed = json.loads(answer.read_text(encoding="utf-8"))
    for facts in listed["programs"]:  # JSON knows no tuples.
      facts["kernel_costs"] = {name: tuple(cost) for name, cost in facts["kernel_costs"].items()}
    return listed
  said = _last_words(job)
  if code == EXIT_BAD_INPUT:
    raise ValueError(said.removeprefix("error: "))
  how = f"took over {limit:.0f} s" if code is None else _how_it_ended(code)
  raise RuntimeError(f"listing the programs {how}: {said}")


def compile_program(
  job: Job,
  stage: str,
  limit: float,
  mesh: Mapping[str, int],
  kernel_costs: Mapping[str, tuple[float, float]],
) -> Outcome:
  """Compiles one program and reads its dumps.

  Args:
    stage: "hlo" ends the process when the optimised program is written; "full" waits for code.
    limit: seconds after which the process is ended.
    mesh: size of every axis, major to minor.
    kernel_costs: see `Program`.
  """
  begun = time.monotonic()
  process = _start(job)
  folder = pathlib.Path(job.folder)
  status, message, sizes, still = "", "", (), begun
  try:
    while not status:
      code = process.poll()
      now = time.monotonic()
      if code is not None:
        status, message = _verdict(job, code)
      elif now - begun > limit:
        status, message = "timeout", f"ended after the limit of {limit:.0f} s"
      elif stage == "hlo":
        seen = tuple(path.stat().st_size for path in _dumps(folder))
        sizes, still = (sizes, still) if seen == sizes else (seen, now)
        if len(seen) == len(DUMPS) and now - still > QUIET:
          status = "optimised"
      if not status:
        time.sleep(POLL)
  finally:
    end(process)
  return _read(folder, mesh, kernel_costs, Outcome(status, message, time.monotonic() - begun))


# In the order in which XLA writes them; the last one only where the program fits.
DUMPS = (
  "after_optimizations-memory-usage-report.txt",
  "after_optimizations.txt",
  "after_optimizations-buffer-assignment.txt",
  "after_optimizations_after_buffer_assignment.txt",
)


def _dumps(folder: pathlib.Path) -> list[pathlib.Path]:
  found = []
  for name in DUMPS:  # `.after`: dumps of the CPU compiler are called `.cpu_after…`.
    paths = glob.glob(f"{glob.escape(str(folder))}/dump/*.{name}")
    found += [pathlib.Path(max(paths, key=os.path.getmtime))] if paths else []
  return found


def _read(folder, mesh, kernel_costs, outcome: Outcome) -> Outcome:
  texts = {path.name.split(".")[-2]: path.read_text(encoding="utf-8") for path in _dumps(folder)}
  text = texts.get("after_optimizations")
  assignment = texts.get("after_optimizations-buffer-assignment")
  if text is None or assignment is None or not text.rstrip().endswith("}"):
    return outcome
  try:
    return dataclasses.replace(
      outcome,
      costs=hlo.program_costs(text, mesh, kernel_costs),
      memory=hlo.program_memory(assignment, text),
      instructions=len(re.findall(r"^\s+(?:ROOT )?%\S+ = ", text, re.MULTILINE)),
    )
  except ValueError as error:  # Not bad input: a form of XLA's text that the reader does not know.
    raise RuntimeError(f"cannot read what XLA wrote: {error}") from error


def _start(job: Job) -> subprocess.Popen:
  folder = pathlib.Path(job.folder)
  folder.mkdir(parents=True, exist_ok=True)
  _write(folder / "job.json", dataclasses.asdict(job))
  flags = f"--xla_dump_to={folder / 'dump'} --xla_dump_hlo_as_text"
  environment = os.environ | ENVIRONMENT | {"XLA_FLAGS": flags}
  with open(folder / "log.txt", "wb") as log:
    return subprocess.Popen(
      [sys.executable, "-m", "searchjax.dist.compiling", str(folder / "job.json")],
      stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
    )


def end(process: subprocess.Popen) -> None:
  """Ends a compiling process and whatever it started; harmless when it has ended."""
  if process.poll() is None:
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()


def _verdict(job: Job, code: int) -> tuple[str, str]:
  folder = pathlib.Path(job.folder)
  if (folder / "compiled.json").is_file() and code == 0:
    return "compiled", ""
  if (folder / "error.json").is_file():
    message = json.loads((folder / "error.json").read_text(encoding="utf-8"))["message"]
    first = message.splitlines()[0]
    return ("out of memory" if OUT_OF_MEMORY in first else "failed"), first
  if code < 0:
    return "crashed", f"the compiler {_how_it_ended(code)}"
  said = _last_words(job)
  if code == EXIT_BAD_INPUT:
    return "refused", said.removeprefix("error: ")
  return "failed", said


def _how_it_ended(code: int) -> str:
  return f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _last_words(job: Job) -> str:
  """The last line of a process's output that says something."""
  log = pathlib.Path(job.folder) / "log.txt"
  lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
  return next((line for line in reversed(lines) if line), "it said nothing")


def peak_memory_of_children() -> float:
  """Bytes of the largest compiling process so far."""
  return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024.0


def _end_with_parent(parent: int) -> None:
  """Ends this process when the one that waits for it is gone: a compilation takes minutes."""
  while os.getppid() == parent:
    time.sleep(1.0)
  os._exit(1)


def main() -> None:
  """Does the job of a JSON file; bad input is one line and exit code 2."""
  job = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
  threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
  try:
    work(Job(**(job | {"overrides": tuple(job["overrides"])})))
  except ValueError as error:
    if not is_ours(error, job["config"]):
      raise
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    raise SystemExit(EXIT_BAD_INPUT) from error


if __name__ == "__main__":
  main()
