"""What every jitted function of a run needs on a TPU slice that need not be there.  HOST.

  python -m searchjax.compile --config configs/grpo_397b.py --topology v5p:4x8x8 --stage hlo

Every program is compiled for the slice. For each: memory a device against the chip's, executed
FLOPs against the model's, HBM bytes, bytes sent along each mesh axis, and from them the shortest
possible time. Then what the run holds at once and what a step costs at least. Exit code 0: all
fits; 1: a program does not fit, a budget is exceeded or the compiler died; 2: bad input.

Letters  none.
Source   `searchjax.dist.hlo` (counting), `searchjax.dist.roofline` (floors).
"""

import json
import math
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from searchjax.dist import roofline
from searchjax.dist.checks import check_config
from searchjax.dist.compiling import (
  Job,
  Outcome,
  compile_program,
  list_programs,
  peak_memory_of_children,
)
from searchjax.dist.settings import (
  EXIT_BAD_INPUT,
  OneLineParser,
  collect_overrides,
  is_ours,
  load_config,
  nearest,
)
from searchjax.dist.topology import Topology, missing_compiler, parse_topology

BUILDER = "searchjax.programs:programs"
EXIT_UNFIT = 1
ENDED_WELL = ("compiled", "optimised")
LIST_LIMIT = 600.0

SOURCES = (
  "[XLA] is XLA's own buffer assignment. [HLO] is counted here in XLA's optimised program, loop "
  "bodies times their trip counts; Pallas kernels by their stated costs. [derived] is arithmetic "
  "from those and published chip rates: a lower bound on time, never a measured one. XLA's own "
  "time estimate counts every loop once and is not shown."
)

# What a budget may limit, and where it stands in a program's record.
BUDGETED = {
  "memory_bytes": "arguments, temporaries and outputs a device",
  "argument_bytes": "arguments a device",
  "temporary_bytes": "temporaries a device",
  "held_bytes": "memory_bytes and what stays beside the program",
  "flops": "executed FLOPs a device",
  "flops_over_model": "executed FLOPs over the model's",
  "useful_flops_over_model": "the same without padding rows",
  "hbm_bytes": "HBM bytes a device",
  "hbm_over_least": "HBM bytes over those no implementation can do without",
  "sent_bytes": "bytes a device sends",
  "floor_seconds": "the time floor",
}


def main(argv: Sequence[str] | None = None, builder: str = BUILDER) -> int:
  """Runs the command line; returns the exit code.

  Args:
    argv: arguments; None reads `sys.argv`.
    builder: `module:function` that gives the run's programs for a config and a mesh.
  """
  options, overrides = _read_arguments(argv)
  try:
    check_config(load_config(options.config, overrides))
    topology = parse_topology(options.topology)
    missing = missing_compiler()
    if missing:
      raise ValueError(missing)
    budgets = _read_budgets(options.check, options.config, topology.name) if options.check else []
    with tempfile.TemporaryDirectory(prefix="searchjax-compile-") as folder:
      report = _compile_all(options, overrides, topology, builder, pathlib.Path(folder))
    verdicts = _check_budgets(budgets, report, options.only)
  except ValueError as error:
    if not is_ours(error, options.config):
      raise
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    return EXIT_BAD_INPUT
  except RuntimeError as error:  # The process that lists the programs died.
    print(f"error: {error}", file=sys.stderr)
    return EXIT_UNFIT
  if options.json:
    pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
  _print_summary(report)
  for line in verdicts:
    print(line)
  bad = any(not program["fits"] for program in report["programs"])
  return EXIT_UNFIT if bad or any(line.startswith("OVER") for line in verdicts) else 0


def _read_arguments(argv: Sequence[str] | None):
  parser = OneLineParser(
    prog="python -m searchjax.compile", description=__doc__.splitlines()[0], allow_abbrev=False
  )
  parser.add_argument("--config", required=True, metavar="FILE.py[:VARIANT]")
  parser.add_argument("--topology", required=True, metavar="v5p:4x8x8", help="shape in chips")
  parser.add_argument(
    "--stage", choices=("hlo", "full"), default="hlo",
    help="hlo: stop when memory, FLOPs and collectives are decided; full: down to machine code",
  )
  parser.add_argument("--only", metavar="NAME", help="one program")
  parser.add_argument("--json", metavar="FILE", help="also write everything here")
  parser.add_argument("--check", metavar="BUDGETS.json", help="fail where a budget is exceeded")
  parser.add_argument(
    "--time-limit", type=float, default=1800.0, metavar="SECONDS", help="for each program"
  )
  parser.epilog = "--config.KEY=VALUE replaces one value of the config"
  options, rest = parser.parse_known_args(sys.argv[1:] if argv is None else list(argv))
  try:
    overrides = tuple(collect_overrides(rest, allowed=True))
  except ValueError as error:
    parser.error(str(error))
  if options.time_limit <= 0:
    parser.error(f"--time-limit {options.time_limit:g} must be above 0 seconds")
  if options.json and not pathlib.Path(options.json).absolute().parent.is_dir():
    parser.error(f"--json {options.json}: there is no folder for it")
  return options, overrides


# ---- compiling -----------------------------------------------------------------------------------


def _compile_all(
  options, overrides, topology: Topology, builder: str, folder: pathlib.Path
) -> dict:
  job = Job(
    str(pathlib.Path(options.config.partition(":")[0]).absolute())
    + (":" + options.config.partition(":")[2] if ":" in options.config else ""),
    overrides, topology.name, builder, "", str(folder / "list"),
  )
  listed = list_programs(job, LIST_LIMIT)
  names = [facts["name"] for facts in listed["programs"]]
  if len(set(names)) < len(names):
    raise ValueError(f"program names must differ, got {', '.join(names)}")
  if options.only and options.only not in names:
    raise ValueError(f'the run has no program "{options.only}"{nearest(options.only, names)}')
  report = {
    "config": options.config, "overrides": list(overrides), "topology": topology.name,
    "chips": topology.chips, "devices": topology.devices, "mesh": listed["mesh"],
    "stage": options.stage, "hbm_bytes": topology.chip.hbm, "steps": listed["steps"],
    "axis_rates": listed["rates"], "sources": SOURCES, "programs": [],
  }
  _print_heading(report, topology)
  for facts in listed["programs"]:
    if options.only and facts["name"] != options.only:
      continue
    own = Job(**(vars(job) | {"program": facts["name"], "folder": str(folder / facts["name"])}))
    outcome = compile_program(
      own, options.stage, options.time_limit, listed["mesh"], facts["kernel_costs"]
    )
    if outcome.status == "refused":
      raise ValueError(f"{facts['name']}: {outcome.message}")
    record = program_record(facts, outcome, topology, listed["rates"])
    report["programs"].append(record)
    _print_program(record, topology)
  report |= run_record(report["programs"], topology, listed["steps"], bool(options.only))
  report["compiler_memory_bytes"] = peak_memory_of_children()
  return report


def program_record(
  facts: Mapping[str, Any], outcome: Outcome, topology: Topology, rates: Mapping[str, float]
) -> dict:
  """Everything known about one program, as it goes into the table and the JSON file.

  Args:
    facts: the fields of `Program` but function and arguments.
    outcome: how its compilation ended.
    rates: B/s a device by mesh axis.
  """
  chip, memory, costs = topology.chip, outcome.memory, outcome.costs
  record = {
    "name": facts["name"], "status": outcome.status, "message": outcome.message,
    "seconds_to_compile": outcome.seconds, "calls_per_step": facts["calls_per_step"],
    "most_calls": facts["most_calls"],
    "model_flops": facts["model_flops"], "padded_flops": facts["padded_flops"],
    "resident": dict(facts["resident"]), "advice": facts["advice"],
    "fits": outcome.status in ENDED_WELL,
  }
  if memory is not None:
    held = roofline.held_bytes(memory.total, facts["resident"])
    record |= {
      "argument_bytes": memory.arguments, "temporary_bytes": memory.temporaries,
      "output_bytes": memory.outputs, "donated_bytes": memory.donated,
      "memory_bytes": memory.total, "host_bytes": memory.host, "held_bytes": held,
      "largest_buffers": [vars(buffer) for buffer in memory.largest],
    }
    if held > chip.hbm:
      record["fits"] = False
  if costs is not None:
    flops, sent = costs.total_flops, costs.sent_by_axis()
    floor = roofline.time_floor(chip, flops, costs.hbm, sent, rates)
    model = facts["model_flops"]
    over = lambda value, least=model: value / least if least else None
    ceiling = roofline.mfu_ceiling(chip, model, floor)
    record |= {
      "flops": flops, "flops_by_source": dict(costs.flops), "hbm_bytes": costs.hbm,
      "least_hbm_bytes": facts["least_hbm"], "hbm_over_least": over(costs.hbm, facts["least_hbm"]),
      "flops_over_model": over(flops),
      "useful_flops_over_model": over(flops - facts["padded_flops"]),
      "sent_bytes": sum(sent.values()), "sent_by_axis": sent,
      "collectives": [
        {"kind": kind, "axes": axes, "count": costs.counts[kind, axes], "sent_bytes": value}
        for (kind, axes), value in costs.sent.items()
      ],
      "kernels": dict(costs.kernels), "kernels_without_cost": dict(costs.uncosted),
      "loops_without_trip_count": dict(costs.open_loops), "instructions": outcome.instructions,
      "compute_seconds": floor.compute, "hbm_seconds": floor.hbm, "ici_seconds": floor.ici,
      "floor_seconds": floor.seconds, "floor_set_by": floor.bound,
      "model_seconds": model / chip.flops,
      "mfu_ceiling": None if math.isnan(ceiling) else ceiling,
    }
  return record


def run_record(
  programs: Sequence[Mapping[str, Any]], topology: Topology, steps: int, partial: bool
) -> dict:
  """What the run holds at once, and what a step and the run cost at least.

  Args:
    programs: records of `program_record`.
    steps: of the run; 0 where the config has none.
    partial: whether some programs were left out.

  Returns:
    largest_moment and forecast; no forecast where a program is missing or does not fit.
  """
  held = [p for p in programs if "held_bytes" in p]
  timed = [p for p in programs if "floor_seconds" in p]
  largest = max(held, key=lambda p: p["held_bytes"], default=None)
  run: dict[str, Any] = {"largest_moment": None, "forecast": None}
  if largest is not None:
    run["largest_moment"] = {
      "program": largest["name"], "program_bytes": largest["memory_bytes"],
      "resident": largest["resident"], "held_bytes": largest["held_bytes"],
    }
  if not partial and len(timed) == len(programs) and all(p["fits"] for p in programs):
    seconds = [p["floor_seconds"] for p in timed]
    calls = [p["calls_per_step"] for p in timed]
    step = roofline.chip_hours(seconds, calls, topology.chips)
    run["forecast"] = {
      "step_seconds": sum(s * c for s, c in zip(seconds, calls, strict=True)),
      "step_chip_hours": step, "steps": steps, "run_chip_hours": step * steps,
      "longest_rollouts_seconds": sum(p["floor_seconds"] * p["most_calls"] for p in timed),
    }
  return run


# ---- budgets -------------------------------------------------------------------------------------


def _read_budgets(path: str, config: str, topology: str) -> list[dict]:
  """Entries of a budget file for this config and topology.

  Raises:
    ValueError: no such file, no JSON, an entry without a needed key, an unknown limit, or none for
      this config and topology.
  """
  try:
    entries = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  except (OSError, json.JSONDecodeError) as error:
    raise ValueError(f"--check {path}: {error}") from error
  if not isinstance(entries, list):
    raise ValueError(f"--check {path}: expected a list of budgets, got {type(entries).__name__}")
  for entry in entries:
    for key, kind in (("config", str), ("topology", str), ("program", str), ("limits", dict)):
      if not isinstance(entry, dict) or not isinstance(entry.get(key), kind):
        raise ValueError(f"--check {path}: every budget needs {key} ({kind.__name__}): {entry}")
    for name, limit in entry["limits"].items():
      if name not in BUDGETED:
        raise ValueError(f'--check {path}: unknown limit "{name}"{nearest(name, list(BUDGETED))}')
      if not isinstance(limit, int | float):
        raise ValueError(f"--check {path}: limit {name} of {entry['program']} must be a number")
  plain = lambda name: pathlib.PurePath(name).as_posix()
  chosen = [
    e for e in entries if plain(e["config"]) == plain(config) and e["topology"] == topology
  ]
  if not chosen:
    raise ValueError(f"--check {path}: no budget for --config {config} --topology {topology}")
  return chosen


def _check_budgets(budgets: Sequence[dict], report: Mapping, only: str | None) -> list[str]:
  """One line a limit, `OVER` in front of those exceeded.

  Raises:
    ValueError: a budget for a program the run does not have.
  """
  programs = {program["name"]: program for program in report["programs"]}
  lines = []
  for budget in budgets:
    name = budget["program"]
    if name not in programs:
      if only:
        continue
      raise ValueError(f'the run has no program "{name}"{nearest(name, list(programs))}')
    for key, limit in budget["limits"].items():
      value = programs[name].get(key)
      if value is None:
        lines.append(f"OVER  {name} {key}: not known ({programs[name]['status']}), limit {limit:g}")
      else:
        word = "OVER" if value > limit else "ok"
        lines.append(f"{word:4}  {name} {key}: {value:.4g} of {limit:.4g}")
  return lines


# ---- what is printed -----------------------------------------------------------------------------


def _print_heading(report: Mapping, topology: Topology) -> None:
  mesh = " × ".join(f"{axis} {size}" for axis, size in report["mesh"].items())
  unit = "chip" if topology.chip.devices == 1 else f"device ({topology.chip.devices} a chip)"
  print(
    f"{report['config']} on {topology.name}: {topology.chips} chips, mesh {mesh}, stage "
    f"{report['stage']}; all figures a {unit}, GB = 1e9 bytes, {topology.chip.hbm / 1e9:.2f} GB "
    f"of HBM each",
    flush=True,
  )


def _print_program(record: Mapping, topology: Topology) -> None:
  rows = program_rows(record, topology)
  status = f"{record['name']}: {record['status']} in {record['seconds_to_compile']:.0f} s"
  console = Console(soft_wrap=True, highlight=False)
  if not console.is_terminal:
    print(status)
    for label, value, source in rows:
      print(f"  {label:13} {value}" + (f"  [{source}]" if source else ""), flush=True)
    return
  table = Table(title=status, title_justify="left", show_header=False, title_style="bold")
  table.add_column(style="cyan", no_wrap=True)
  table.add_column(overflow="fold")
  table.add_column(style="dim", no_wrap=True)
  for row in rows:
    table.add_row(*row)
  Console(highlight=False).print(table)


def program_rows(record: Mapping, topology: Topology) -> list[tuple[str, str, str]]:
  """(label, value, source) lines of one program."""
  rows, chip = [], topology.chip
  if record["message"]:
    rows.append(("ended", record["message"], ""))
  if "memory_bytes" in record:
    share = record["memory_bytes"] / chip.hbm
    rows.append((
      "memory",
      f"{_gb(record['argument_bytes'])} arguments + {_gb(record['temporary_bytes'])} temporaries + "
      f"{_gb(record['output_bytes'])} outputs = {_gb(record['memory_bytes'])} GB, {share:.0%} of "
      f"the chip's", "XLA",
    ))
    if record["host_bytes"]:
      rows.append(("host memory", f"{_gb(record['host_bytes'])} GB", "XLA"))
    if record["resident"]:
      beside = " + ".join(f"{_gb(value)} {name}" for name, value in record["resident"].items())
      rows.append(("beside it", f"{beside}; together {_gb(record['held_bytes'])} GB", "derived"))
  if not record["fits"] and "memory_bytes" in record:
    rows += _why_unfit(record, chip.hbm)
  if "flops" in record:
    rows += _work_rows(record)
  return rows


def _why_unfit(record: Mapping, hbm: float) -> list[tuple[str, str, str]]:
  rows = []
  if record["held_bytes"] > hbm:
    rows.append((
      "DOES NOT FIT", f"{_gb(record['held_bytes'] - hbm)} GB too much; the largest buffers:", "XLA"
    ))
    for buffer in record["largest_buffers"]:
      rows.append((
        "", f"{_gb(buffer['size'])} GB {buffer['shape']} {buffer['kind']}: {buffer['made_by']}", ""
      ))
    rows.append(("change", _advice(record), ""))
  return rows


def _advice(record: Mapping) -> str:
  """What to change, by what takes most of the memory."""
  if record["advice"]:
    return record["advice"]
  parts = {
    "arguments": record["argument_bytes"], "temporaries": record["temporary_bytes"],
    "outputs": record["output_bytes"], "beside": sum(record["resident"].values()),
  }
  return {
    "arguments": "the arguments: more chips, optimiser moments of fewer bits, or donate more",
    "temporaries": "the temporaries: fewer tokens a device, more recomputation, or smaller chunks "
    "where the buffers above are made",
    "outputs": "the outputs: donate the arguments they replace",
    "beside": "what stays beside the program: move it to host memory meanwhile, or more chips",
  }[max(parts, key=parts.get)]


def _work_rows(record: Mapping) -> list[tuple[str, str, str]]:
  flops = f"{record['flops']:.4g}"
  if record["flops_over_model"] is not None:
    flops += (
      f" = {record['flops_over_model']:.3f} × the model's {record['model_flops']:.4g}; without "
      f"{record['padded_flops']:.3g} on padding rows {record['useful_flops_over_model']:.3f} ×"
    )
  hbm = f"{record['hbm_bytes']:.4g}"
  if record["hbm_over_least"] is not None:
    hbm += (
      f" = {record['hbm_over_least']:.3f} × the {record['least_hbm_bytes']:.4g} of weights and "
      f"caches that it must move"
    )
  rows = [("FLOPs", flops, "HLO"), ("HBM bytes", hbm, "HLO")]
  by_axis = ", ".join(f"{axes} {_gb(value)}" for axes, value in record["sent_by_axis"].items())
  rows.append((
    "sent", f"{_gb(record['sent_bytes'])} GB" + (f": {by_axis}" if by_axis else ""), "HLO"
  ))
  ceiling = record["mfu_ceiling"]
  rows.append((
    "time floor",
    f"{_seconds(record['floor_seconds'])}, set by {record['floor_set_by']}: compute "
    f"{_seconds(record['compute_seconds'])}, HBM {_seconds(record['hbm_seconds'])}, ICI "
    f"{_seconds(record['ici_seconds'])}"
    + (
      f"; the model's FLOPs alone {_seconds(record['model_seconds'])}, so MFU at most {ceiling:.1%}"
      if ceiling is not None else ""
    ), "derived",
  ))
  if record["kernels_without_cost"]:
    missing = ", ".join(f"{name} × {n:g}" for name, n in record["kernels_without_cost"].items())
    rows.append(("not counted", f"FLOPs of kernels without a stated cost: {missing}", ""))
  if record["loops_without_trip_count"]:
    loops = ", ".join(record["loops_without_trip_count"])
    rows.append(("counted once", f"loops whose trip count data decide: {loops}", ""))
  return rows


def summary_table(report: Mapping[str, Any]) -> list[str]:
  """The report as lines of a Markdown table, one program a line."""
  lines = [
    "| program | arguments + temporaries + outputs, GB | with the rest, GB | FLOPs "
    "| × model, useful | HBM, GB | sent, GB | time floor | set by | MFU at most |",
    "| --- " * 10 + "|",
  ]
  for p in report["programs"]:
    cells = [p["name"]] + ["–"] * 9
    if "memory_bytes" in p:
      parts = (p["argument_bytes"], p["temporary_bytes"], p["output_bytes"])
      cells[1] = " + ".join(_gb(part) for part in parts) + f" = {_gb(p['memory_bytes'])}"
      cells[2] = _gb(p["held_bytes"])
    if "flops" in p:
      cells[3] = f"{p['flops']:.4g}"
      if p["flops_over_model"] is not None:
        cells[4] = f"{p['flops_over_model']:.3f}, {p['useful_flops_over_model']:.3f}"
      cells[5:9] = [
        _gb(p["hbm_bytes"]), _gb(p["sent_bytes"]), _seconds(p["floor_seconds"]), p["floor_set_by"]
      ]
    if p.get("mfu_ceiling") is not None:
      cells[9] = f"{p['mfu_ceiling']:.1%}"
    if not p["fits"]:
      cells[0] += f" ({'does not fit' if p['status'] in ENDED_WELL else p['status']})"
    lines.append("| " + " | ".join(cells) + " |")
  return lines


def _print_summary(report: Mapping) -> None:
  print("\n".join(summary_table(report)))
  moment, forecast = report["largest_moment"], report["forecast"]
  if moment:
    beside = "".join(f" + {_gb(value)} {name}" for name, value in moment["resident"].items())
    print(
      f"the run holds at most {_gb(moment['held_bytes'])} of {_gb(report['hbm_bytes'])} GB, during "
      f"{moment['program']}: {_gb(moment['program_bytes'])} its own{beside}  [XLA + derived]"
    )
  if forecast:
    print(
      f"a step takes at least {_seconds(forecast['step_seconds'])} on the chips: "
      f"{forecast['step_chip_hours']:.4g} chip-hours; {forecast['steps']} steps "
      f"{forecast['run_chip_hours']:.4g} chip-hours; rollouts, searches and the host come on top  "
      f"[derived]"
    )
    if forecast["longest_rollouts_seconds"]:
      print(
        f"a step's rollouts take at least {_seconds(forecast['longest_rollouts_seconds'])} "
        f"if every conversation is sampled to its limit, in proportion less if not  [derived]"
      )
  unfit = [program["name"] for program in report["programs"] if not program["fits"]]
  print(f"does not fit or did not compile: {', '.join(unfit)}" if unfit else "everything fits")
  print(SOURCES)


def _gb(value: float) -> str:
  """Decimal gigabytes; three digits below one."""
  return f"{value / 1e9:.2f}" if value >= 1e9 else f"{value / 1e9:.3g}"


def _seconds(value: float) -> str:
  if value >= 1:
    return f"{value:.2f} s"
  return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


if __name__ == "__main__":
  sys.exit(main())
