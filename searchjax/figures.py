"""Figures 2-6, Table 2 and the ablation, drawn from a run folder's files alone.  HOST.

  python -m searchjax.figures --workdir W     writes W/figures/*.png, *.svg, table2.md, table2.csv

Figure 2 base reward and preference; 3 tool calls, length and both penalties; 4 gradient norm and
train-inference KL; 5 accuracy against tool budget; 6 cost against accuracy (SPEC 5).  Numbers that
the article published are drawn in grey and labelled as such (SPEC 4): they are another model on
another benchmark.  A part whose files are missing is said, never drawn empty.

Letters  those of SPEC.
Source   SPEC 4 and 5.
"""

import csv
import dataclasses
import io
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from searchjax.dist import run_log, settings

INK, GRID, PUBLISHED = "#22262b", "#d5d9de", "#7b838c"
POLICY_COLOURS = {"base": "#8250a8", "sft": "#d9730d", "rl": "#2a6fbb"}
POLICY_NAMES = {"base": "Base", "sft": "SFT", "rl": "SFT + RL"}
POLICY_LINES = {"base": ":", "sft": "--", "rl": "-"}  # For print without colour.
ARM_LINES = {"anchored": "-", "unconditional": "--", "off": ":"}
ARM_COLOURS = {"anchored": "#2a6fbb", "unconditional": "#c23b50", "off": "#2e8b57"}
LINE, SECOND_LINE = "#2a6fbb", "#d9730d"

STYLE = {
  "font.size": 9,
  "font.family": "DejaVu Sans",
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.edgecolor": INK,
  "axes.labelcolor": INK,
  "axes.titlesize": 9,
  "axes.titlelocation": "left",
  "axes.titlecolor": INK,
  "axes.grid": True,
  "axes.axisbelow": True,
  "grid.color": GRID,
  "grid.linewidth": 0.6,
  "text.color": INK,
  "xtick.color": INK,
  "ytick.color": INK,
  "legend.frameon": False,
  "legend.fontsize": 8,
  "legend.handlelength": 3.0,
  "lines.linewidth": 1.7,
  "savefig.dpi": 200,
  "svg.fonttype": "none",
  "svg.hashsalt": "searchjax",
  "figure.constrained_layout.use": True,
  "figure.constrained_layout.w_pad": 0.09,
  "figure.constrained_layout.h_pad": 0.06,
}

# SPEC 4: FRAMES, accuracy at a budget of b calls, and cents a query at b = 4.
PUBLISHED_FRAMES = {
  "Large": {"marker": "o", "budget": {1: 0.573, 4: 0.739}, "cost": (2.0, 0.739)},
  "GPT-5.4": {"marker": "s", "budget": {1: 0.516, 4: 0.678}, "cost": (8.5, 0.678)},
  "Sonnet 4.6": {"marker": "^", "budget": {1: 0.526, 4: 0.624}, "cost": (15.3, 0.624)},
}
PUBLISHED_KL = 1e-3
PUBLISHED_KNEE = 7
PUBLISHED_SIDE_BY_SIDE = (0.602, 0.742)
SMALLEST_KL = 1e-12  # What a log axis shows for an estimate that is 0, or negative by rounding.
KINDS = ("png", "svg")
SHARE_LIMITS = (-0.03, 1.03)  # Of an axis of shares; markers at 0 and 1 are drawn whole.
FINAL_SHARE = 0.1  # The part of an ablation's steps that its final numbers are means over.


class MissingPartError(ValueError):
  """The run folder lacks what a figure needs; the message says which file and what writes it."""


NUMBER, TEXT = (int, float), (str,)
DECODING = {"greedy": "greedy", "sampled": "T = 1"}  # by an evaluation's mode


def check_fields(
  value: Any, where: str, required: Mapping[str, tuple[type, ...]], optional: Sequence[str] = ()
) -> None:
  """Checks an object that was read from a file.

  Args:
    value: what JSON gave.
    where: the file, the line and the place in it, for the message.
    required: the types each field may have.
    optional: fields that are numbers or null where they stand.

  Raises:
    ValueError: one line that names the place and the field.
  """
  if not isinstance(value, dict):
    raise ValueError(f"{where}: expected an object, got {type(value).__name__}")
  wanted = dict(required) | {
    key: (*NUMBER, type(None)) for key in optional if key in value and key not in required
  }
  for key, kinds in wanted.items():
    if key not in value:
      raise ValueError(f'{where}: no "{key}"; the run that writes this file wrote it otherwise')
    if not isinstance(value[key], kinds):
      names = " or ".join(_JSON_NAMES[kind] for kind in kinds if kind is not int)
      found = _JSON_NAMES[type(value[key])]
      raise ValueError(f'{where}: expected "{key}" as {names}, got {found}')


_JSON_NAMES = {
  dict: "an object", list: "a list", str: "text", bool: "a truth value", int: "a number",
  float: "a number", type(None): "null",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Part:
  """One figure: its file name, its caption, and what draws it from the run folder."""

  name: str
  title: str
  caption: str
  draw: Callable[[pathlib.Path], Figure]


def figure2(workdir: pathlib.Path) -> Figure:
  """Base reward and preference over steps."""
  rows = read_steps(workdir / "grpo", "searchjax.train_grpo")
  figure, axes = _grid(1, 2, height=2.8)
  _curve(axes[0], rows, "base_reward", LINE, "Base reward", "share of rollouts")
  _curve(axes[1], rows, "preference", LINE, "Preference score s", "mean P̄")
  _reference(axes[1].axhline, 0.5, "0.5: as good as the reference")
  _legend_outside(figure)
  return figure


def figure3(workdir: pathlib.Path) -> Figure:
  """Tool calls, generation length and both penalties over steps."""
  rows = read_steps(workdir / "grpo", "searchjax.train_grpo")
  figure, axes = _grid(2, 2, height=5.2)
  _curve(axes[0], rows, "tool_calls", LINE, "Tool calls a rollout", "calls")
  perfect = _perfect_calls(workdir)
  if perfect is not None:
    _reference(axes[0].axhline, perfect, "calls of a perfect agent, held-out questions")
  _curve(axes[1], rows, "generated_length", LINE, "Generation length", "tokens written")
  _curve(axes[2], rows, "tool_penalty", SECOND_LINE, "Tool-call penalty", "mean pen_tool")
  _curve(axes[3], rows, "length_penalty", SECOND_LINE, "Length penalty", "mean pen_len")
  if perfect is not None:
    _legend_outside(figure)
  return figure


def figure4(workdir: pathlib.Path) -> Figure:
  """Gradient norm and train-inference KL over steps."""
  rows = read_steps(workdir / "grpo", "searchjax.train_grpo")
  figure, axes = _grid(1, 2, height=2.8)
  _curve(axes[0], rows, "grad_norm", LINE, "Gradient norm", "l2, before clipping")
  steps, k3 = _series(rows, "kl_k3")
  _, k1 = _series(rows, "kl_k1")
  axes[1].plot(steps, np.maximum(k3, SMALLEST_KL), color=LINE, label="k3")
  if len(k1) == len(steps):
    floor = np.maximum(np.abs(k1), SMALLEST_KL)
    axes[1].plot(steps, floor, color=SECOND_LINE, linewidth=0.9, alpha=0.8, label="|k1|")
  _reference(axes[1].axhline, PUBLISHED_KL, "published, large model: about 1e-3")
  axes[1].set_yscale("log")
  axes[1].set_ylim(SMALLEST_KL / 5, PUBLISHED_KL * 5)
  axes[1].set(title="Train-inference KL", xlabel="step", ylabel="nat a token")
  axes[1].xaxis.set_major_locator(_whole_numbers())
  _legend_outside(figure)
  return figure


def figure5(workdir: pathlib.Path) -> Figure:
  """Accuracy against the number of tool calls that the system prompt allows."""
  budgets = read_results(workdir).get("budget") or {}
  if not budgets:
    raise MissingPartError(
      f"{workdir}/eval/results.json has no budget sweep; run searchjax.evaluate"
    )
  figure, (axis,) = _grid(1, 1, width=5.2, height=3.4)
  for policy in _known(budgets):
    points = sorted(budgets[policy], key=lambda point: point["budget"])
    x = [point["budget"] for point in points]
    colour = POLICY_COLOURS[policy]
    axis.fill_between(
      x,
      [point["low"] for point in points],
      [point["high"] for point in points],
      color=colour,
      alpha=0.15,
      linewidth=0,
    )
    axis.plot(
      x,
      [point["accuracy"] for point in points],
      color=colour,
      linestyle=POLICY_LINES[policy],
      marker="o",
      markersize=3.5,
      label=POLICY_NAMES[policy],
    )
  for name, published in PUBLISHED_FRAMES.items():
    axis.plot(
      list(published["budget"]),
      list(published["budget"].values()),
      color=PUBLISHED,
      linestyle="none",
      marker=published["marker"],
      markersize=5,
      markerfacecolor="none",
      label=f"{name} (published, FRAMES)",
    )
  _reference(axis.axvline, PUBLISHED_KNEE, f"published: flattens near {PUBLISHED_KNEE}")
  axis.set(title="Accuracy against tool budget", xlabel="allowed tool calls b", ylabel="accuracy")
  axis.set_ylim(*SHARE_LIMITS)
  axis.xaxis.set_major_locator(_whole_numbers())
  _legend_outside(figure)
  return figure


def figure6(workdir: pathlib.Path) -> Figure:
  """Cents a query against accuracy; the published points stand in a panel of their own."""
  found = read_results(workdir)
  budgets, policies = found.get("budget") or {}, found.get("policies") or {}
  if not policies:
    raise MissingPartError(f"{workdir}/eval/results.json has no policies; run searchjax.evaluate")
  figure, axes = _grid(1, 2, height=3.1)
  for policy in _known(policies):
    colour = POLICY_COLOURS[policy]
    sweep = sorted(budgets.get(policy) or [], key=lambda point: point["budget"])
    if sweep:
      axes[0].plot(
        [point["cents_per_query"] for point in sweep],
        [point["accuracy"] for point in sweep],
        color=colour,
        linestyle=POLICY_LINES[policy],
        linewidth=0.9,
        marker=".",
        markersize=4,
        alpha=0.6,
        label=f"{POLICY_NAMES[policy]}, budgets 0-{sweep[-1]['budget']}",
      )
    for mode, marker in (("greedy", "o"), ("sampled", "D")):
      row = policies[policy].get(mode)
      if row is None:
        continue
      error = _error_bar(row, "accuracy")
      axes[0].errorbar(
        [row["cents_per_query"]],
        [row["accuracy"]],
        yerr=error,
        color=colour,
        marker=marker,
        markersize=5,
        linestyle="none",
        capsize=2,
        linewidth=1,
        label=f"{POLICY_NAMES[policy]}, {'greedy' if mode == 'greedy' else 'T = 1'}",
      )
  axes[0].set(title="This run", xlabel="cents a query (list prices)", ylabel="accuracy")
  axes[0].set_ylim(*SHARE_LIMITS)
  right = axes[0].get_xlim()[1]
  axes[0].set_xlim(-0.03 * right, right)  # Markers at 0 cents are drawn whole.
  axes[0].xaxis.set_major_locator(MaxNLocator(4))
  for name, published in PUBLISHED_FRAMES.items():
    cents, accuracy = published["cost"]
    axes[1].plot(
      [cents],
      [accuracy],
      color=PUBLISHED,
      marker=published["marker"],
      markerfacecolor="none",
      linestyle="none",
    )
    axes[1].annotate(name, (cents, accuracy), (6, -3), textcoords="offset points", color=PUBLISHED)
  axes[1].set(
    title="Published: FRAMES, b = 4", xlabel="cents a query", xlim=(0, 24), ylim=SHARE_LIMITS
  )
  _legend_outside(figure)
  return figure


def figure_ablation(workdir: pathlib.Path) -> Figure:
  """Each arm's seeds as thin lines and their mean as a thick one."""
  arms = collect_ablation(workdir)["arms"]
  panels = (
    ("base_reward", "Base reward", "share of rollouts"),
    ("tool_calls", "Tool calls a rollout", "calls"),
    ("tool_penalty", "Tool-call penalty", "mean pen_tool"),
  )
  figure, axes = _grid(1, 3, width=7.4, height=2.8)
  for arm, record in arms.items():
    look = {"color": ARM_COLOURS.get(arm, PUBLISHED), "linestyle": ARM_LINES.get(arm, "-.")}
    for axis, (metric, title, label) in zip(axes, panels, strict=True):
      for rows in record["curves"]:
        steps, values = _series(rows, metric)
        axis.plot(steps, _smooth(values), **look, linewidth=0.7, alpha=0.4)
      steps, mean = _mean_curve(record["curves"], metric)
      count = len(record["seeds"])
      of = f"mean of {count} seeds" if count > 1 else "one seed"
      axis.plot(steps, _smooth(mean), **look, label=f"{arm}, {of}")
      axis.set(title=title, xlabel="step", ylabel=label)
      axis.xaxis.set_major_locator(_whole_numbers())
  _legend_outside(figure)
  return figure


PARTS: tuple[Part, ...] = (
  Part(
    "figure2",
    "Figure 2: base reward and preference",
    "Training batches; thin: every step, thick: running mean.",
    figure2,
  ),
  Part(
    "figure3",
    "Figure 3: tool calls, length and penalties",
    "Training batches; both anchored penalties should fall.",
    figure3,
  ),
  Part(
    "figure4",
    "Figure 4: gradient norm and train-inference KL",
    "Dotted grey: the scale the article reports for its large model. An estimate below 1e-12 is "
    "drawn there.",
    figure4,
  ),
  Part(
    "figure5",
    "Figure 5: accuracy against tool budget",
    "Held-out questions; band: bootstrap interval. Grey: published for another model on FRAMES, "
    "so only the shape compares.",
    figure5,
  ),
  Part(
    "figure6",
    "Figure 6: cost against accuracy",
    "Token counts times list prices. The published points are another model on another benchmark.",
    figure6,
  ),
  Part(
    "ablation",
    "Ablation: anchored against unconditional tool penalty",
    "Running means; thin: seeds, thick: their mean. The two penalties have different scales.",
    figure_ablation,
  ),
)


def table2(workdir: pathlib.Path) -> list[dict[str, str]]:
  """Offline evaluation of base, SFT and RL as rows of text, one a policy and decoding.

  Raises:
    MissingPartError: there is no eval/results.json, or no policy in it.
    ValueError: it is malformed.
  """
  policies = read_results(workdir)["policies"]
  hops = hops_of(policies)
  rows = [
    {"policy": POLICY_NAMES[policy], **result_row(policies[policy][mode], name, hops)}
    for policy in _known(policies)
    for mode, name in DECODING.items()
    if policies[policy].get(mode) is not None
  ]
  if not rows:
    raise MissingPartError(f"{workdir}/eval/results.json has no policies; run searchjax.evaluate")
  return rows


def hops_of(policies: dict[str, Any]) -> list[str]:
  """The numbers of hops that some policy was evaluated on, in order."""
  return sorted(
    {hop for modes in policies.values() for row in modes.values() for hop in row["by_hop"]}, key=int
  )


def result_row(row: dict[str, Any], decoding: str, hops: Sequence[str]) -> dict[str, str]:
  """One policy's results in one decoding, as text by column."""
  by_hop = {
    f"{hop} hop" + ("s" if hop != "1" else ""): _number(row["by_hop"].get(hop, {}).get("accuracy"))
    for hop in hops
  }
  return {
    "decoding": decoding,
    "accuracy": _interval(row, "accuracy", 3),
    **by_hop,
    "calls": _interval(row, "calls", 2),
    "preference": _number(row.get("preference"))
    + (f" ({row['cut_pairs']} cut)" if row.get("cut_pairs") else ""),
    "cents a query": _cents(row.get("cents_per_query")),
    "n": str(row.get("n", "")) + (f" + {row['invalid']} invalid" if row.get("invalid") else ""),
  }


def table2_notes(workdir: pathlib.Path) -> list[str]:
  """What has to be known to read or to repeat Table 2."""
  found = read_results(workdir)
  before, after = PUBLISHED_SIDE_BY_SIDE
  notes = []
  if found.get("perfect_calls") is not None:
    notes.append(f"A perfect agent needs {found['perfect_calls']:.2f} calls on these questions.")
  settings_of = [
    f"{key.replace('_', ' ')}: {_plain_words(found[key])}"
    for key in ("search_provider", "date", "judge", "sampling", "prices")
    if found.get(key) is not None
  ]
  notes.append("; ".join(settings_of) + ".")
  notes.append(
    f"Published for the large model: side-by-side preference {before} (SFT) to {after} (RL)."
  )
  return notes


def collect_ablation(workdir: pathlib.Path) -> dict[str, Any]:
  """Gathers ablation/<arm>/seed_<n>/ into one record, or reads ablation/results.json without them.

  Returns:
    {"arms": {arm: {"seeds", "curves" (a list of rows a seed), "final" (accuracy and calls a seed:
    means over the last tenth of the training steps)}}}.

  Raises:
    MissingPartError: neither is there.
  """
  folder = workdir / "ablation"
  arms: dict[str, Any] = {}
  for run in sorted(folder.glob("*/seed_*")):
    rows = read_metrics(run / "metrics.jsonl")
    if not rows:
      continue
    if not run.name.removeprefix("seed_").isdecimal():
      raise ValueError(f"{run}: expected a folder seed_N with a whole number N")
    arm = arms.setdefault(run.parent.name, {"seeds": [], "curves": [], "final": []})
    last = rows[-max(1, round(len(rows) * FINAL_SHARE)) :]
    keys = ("step", "base_reward", "tool_calls", "tool_penalty")
    arm["seeds"].append(int(run.name.removeprefix("seed_")))
    arm["curves"].append([{key: row.get(key, math.nan) for key in keys} for row in rows])
    arm["final"].append(
      {
        "accuracy": float(np.mean([row.get("base_reward", math.nan) for row in last])),
        "calls": float(np.mean([row.get("tool_calls", math.nan) for row in last])),
      }
    )
  if arms:
    return {"arms": arms}
  if (folder / "results.json").is_file():
    return _check_ablation(read_json(folder / "results.json"), f"{folder}/results.json")
  raise MissingPartError(f"{folder} has no runs; run bash launch/ablate.sh --workdir {workdir}")


def ablation_table(workdir: pathlib.Path) -> list[dict[str, str]]:
  """The ablation's final numbers: mean over seeds and each seed's own."""
  rows = []
  for arm, record in collect_ablation(workdir)["arms"].items():
    row = {"tool penalty": arm, "seeds": ", ".join(str(seed) for seed in record["seeds"])}
    for key, name in (("accuracy", "base reward"), ("calls", "tool calls")):
      values = [final[key] for final in record["final"]]
      each = ", ".join(f"{value:.2f}" for value in values)
      row[f"{name}, last steps"] = f"{np.mean(values):.3f} ({each})"
    rows.append(row)
  return rows


def markdown_table(rows: Sequence[dict[str, str]]) -> str:
  """Rows of text as a Markdown table."""
  header = list(rows[0])
  lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
  lines += ["| " + " | ".join(row.get(key, "") for key in header) + " |" for row in rows]
  return "\n".join(lines) + "\n"


def read_metrics(path: pathlib.Path) -> list[dict[str, float]]:
  """Reads metrics.jsonl as `run_log.read_metrics` does, and checks it.

  Raises:
    ValueError: a line is not an object of numbers with a "step"; it is named by its number.
  """
  lines = _read_text(path).splitlines() if path.is_file() else []
  for number, line in enumerate(lines, start=1):
    where = f"{path}, line {number}"
    try:
      row = json.loads(line)
    except json.JSONDecodeError as error:
      if number == len(lines):  # Half a line of a run that is being written, or was killed.
        break
      raise ValueError(f"{where} is not JSON: {error.msg}") from error
    except RecursionError as error:
      raise ValueError(f"{where} is nested too deeply") from error
    check_fields(row, where, {"step": NUMBER}, list(row) if isinstance(row, dict) else ())
  return run_log.read_metrics(path)


def read_records(path: pathlib.Path) -> list[Any]:
  """Reads a JSONL file's values; what each of them is, the caller checks.

  Raises:
    ValueError: a line is not JSON; it is named by its number.
  """
  records = []
  for number, line in enumerate(_read_text(path).split("\n"), start=1):
    if not line.strip():
      continue
    try:
      records.append(json.loads(line))
    except json.JSONDecodeError as error:
      raise ValueError(f"{path}, line {number} is not JSON: {error.msg}") from error
    except RecursionError as error:
      raise ValueError(f"{path}, line {number} is nested too deeply") from error
  return records


def read_steps(run: pathlib.Path, writer: str) -> list[dict[str, float]]:
  """A stage's metrics.jsonl.

  Raises:
    MissingPartError: there is none, or it is empty.
  """
  rows = read_metrics(run / "metrics.jsonl")
  if not rows:
    raise MissingPartError(f"{run}/metrics.jsonl is missing or empty; run {writer} --workdir {run}")
  return rows


def read_results(workdir: pathlib.Path) -> dict[str, Any]:
  """eval/results.json.

  Raises:
    MissingPartError: there is none.
    ValueError: it is malformed; the field is named.
  """
  path = workdir / "eval/results.json"
  if not path.is_file():
    raise MissingPartError(f"{path} is missing; run searchjax.evaluate --workdir {workdir}/eval")
  found = read_json(path)
  check_fields(found, str(path), {"policies": (dict,)}, ["perfect_calls"])
  point = dict.fromkeys(("budget", "accuracy", "low", "high", "cents_per_query"), NUMBER)
  means = [f"{key}{end}" for key in ("accuracy", "calls") for end in ("", "_low", "_high")]
  for policy, modes in found["policies"].items():
    check_fields(found["policies"], f"{path}, policies", {policy: (dict,)})
    for mode, row in modes.items():
      where = f"{path}, policies.{policy}.{mode}"
      required = {"by_hop": (dict,), "accuracy": NUMBER, "cents_per_query": NUMBER}
      check_fields(row, where, required, [*means, "preference", "n"])
      for hop, cell in row["by_hop"].items():
        if not hop.isdecimal():
          raise ValueError(f'{where}.by_hop: expected numbers of hops, got "{hop}"')
        check_fields(cell, f"{where}.by_hop.{hop}", {}, ["accuracy"])
  if found.get("budget") is not None:
    check_fields(found, str(path), {"budget": (dict,)})
    for policy, points in found["budget"].items():
      check_fields(found["budget"], f"{path}, budget", {policy: (list,)})
      for number, one in enumerate(points):
        check_fields(one, f"{path}, budget.{policy}[{number}]", point)
  return found


def _check_ablation(found: dict[str, Any], where: str) -> dict[str, Any]:
  check_fields(found, where, {"arms": (dict,)})
  if not found["arms"]:
    raise ValueError(f'{where}: "arms" is empty; delete the file')
  for arm, record in found["arms"].items():
    place = f"{where}, arms.{arm}"
    check_fields(record, place, dict.fromkeys(("seeds", "curves", "final"), (list,)))
    if not len(record["seeds"]) == len(record["curves"]) == len(record["final"]) > 0:
      raise ValueError(f"{place}: expected a curve and a final record for each of its seeds")
    for number, final in enumerate(record["final"]):
      check_fields(final, f"{place}.final[{number}]", {"accuracy": NUMBER, "calls": NUMBER})
    for number, rows in enumerate(record["curves"]):
      if not isinstance(rows, list):
        raise ValueError(f"{place}.curves[{number}]: expected a list of steps")
      for row in rows:
        metrics = list(row) if isinstance(row, dict) else ()
        check_fields(row, f"{place}.curves[{number}]", {"step": NUMBER}, metrics)
  return found


def svg(figure: Figure, *, transparent: bool = False) -> str:
  """A figure as SVG text, the same bytes for the same figure."""
  buffer = io.StringIO()
  with matplotlib.rc_context(STYLE):
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=transparent)
  return buffer.getvalue()


def draw(part: Part, workdir: pathlib.Path) -> Figure:
  """Draws one part in the project's style."""
  with matplotlib.rc_context(STYLE):
    return part.draw(workdir)


def main(workdir: pathlib.Path) -> None:
  """Draws everything there is data for and says what is missing.

  Raises:
    ValueError: the folder is absent, or holds nothing that could be drawn.
  """
  if not workdir.is_dir():
    raise ValueError(f"no run folder {workdir}; give the --workdir of a quickstart run")
  folder = workdir / "figures"
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"{folder} is a file; move it away, the figures go into a folder there")
  # Everything is read and drawn before anything is written.
  drawn: dict[str, Figure] = {}
  missing: dict[str, list[str]] = {}  # What is missing, with the names of the parts that lack it.
  table = None
  for part in PARTS:
    try:
      drawn[part.name] = draw(part, workdir)
    except MissingPartError as error:
      missing.setdefault(str(error), []).append(part.name)
  try:
    table = table2(workdir), table2_notes(workdir)
  except MissingPartError as error:
    missing.setdefault(str(error), []).append("table2")
  if not drawn and table is None:
    raise ValueError(
      f"nothing to draw in {workdir}: expected grpo/metrics.jsonl, eval/results.json or ablation/ "
      f"there; run bash launch/quickstart.sh --workdir {workdir}"
    )
  try:
    _write(workdir, folder, drawn, table)
  except OSError as error:
    raise ValueError(f"cannot write {error.filename}: {error.strerror}") from error
  names = [*drawn] + ([] if table is None else ["table2"])
  print(f"figures: {folder} ({', '.join(names)})")
  for reason, lacking in missing.items():
    print(f"not drawn: {', '.join(lacking)}: {reason}")


def _write(workdir: pathlib.Path, folder: pathlib.Path, drawn: dict[str, Figure], table) -> None:
  folder.mkdir(exist_ok=True)
  # What can no longer be drawn does not stay from an earlier time.
  stale = [f"{part.name}.{kind}" for part in PARTS if part.name not in drawn for kind in KINDS]
  stale += ["table2.md", "table2.csv"] if table is None else []
  stale += [] if "ablation" in drawn else ["ablation.md"]
  for name in stale:
    (folder / name).unlink(missing_ok=True)
  for name, figure in drawn.items():
    with matplotlib.rc_context(STYLE):
      figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    (folder / f"{name}.svg").write_text(svg(figure), encoding="utf-8")
  if table is not None:
    rows, notes = table
    text = markdown_table(rows) + "\n" + "\n".join(notes) + "\n"
    (folder / "table2.md").write_text(text, encoding="utf-8")
    _write_csv(folder / "table2.csv", rows)
  if "ablation" in drawn:
    run_log.write_json(workdir / "ablation/results.json", collect_ablation(workdir))
    (folder / "ablation.md").write_text(markdown_table(ablation_table(workdir)), encoding="utf-8")


def _grid(rows: int, columns: int, width: float = 6.6, height: float | None = None):
  """A figure without pyplot's global state, and its axes in reading order."""
  figure = Figure(figsize=(width, height or 2.4 * rows))
  return figure, list(np.atleast_1d(figure.subplots(rows, columns)).flat)


def _curve(
  axis: Axes, rows: Sequence[dict[str, float]], metric: str, colour: str, title: str, label: str
) -> None:
  steps, values = _series(rows, metric)
  axis.plot(steps, values, color=colour, linewidth=0.7, alpha=0.4)
  axis.plot(steps, _smooth(values), color=colour)
  axis.set(title=title, xlabel="step", ylabel=label)
  axis.xaxis.set_major_locator(_whole_numbers())


def _series(rows: Sequence[dict[str, float]], metric: str) -> tuple[np.ndarray, np.ndarray]:
  """Steps and values of the rows that have the metric; NaN stays a gap in the line."""
  pairs = [(row["step"], row[metric]) for row in rows if metric in row]
  if not pairs:
    raise MissingPartError(f'no step has the metric "{metric}"')
  steps, values = zip(*pairs, strict=True)
  return np.asarray(steps, float), np.asarray([math.nan if v is None else v for v in values], float)


def _smooth(values: np.ndarray) -> np.ndarray:
  """Centred running mean over about a tenth of the curve; the window shrinks at both ends."""
  half = len(values) // 20
  windows = [
    values[
      max(0, i - min(half, i, len(values) - 1 - i)) : i + min(half, len(values) - 1 - i, i) + 1
    ]
    for i in range(len(values))
  ]
  return np.asarray(
    [w[np.isfinite(w)].mean() if np.isfinite(w).any() else math.nan for w in windows]
  )


def _mean_curve(curves: Sequence[Sequence[dict]], metric: str) -> tuple[np.ndarray, np.ndarray]:
  """Mean over the seeds at the steps that all of them have."""
  series = [dict(zip(*_series(rows, metric), strict=True)) for rows in curves]
  steps = sorted(set.intersection(*(set(one) for one in series)))
  return np.asarray(steps), np.asarray([np.mean([one[s] for one in series]) for s in steps])


def _reference(line: Callable[..., Any], value: float, label: str) -> None:
  """A grey dotted line across an axis, named in the legend, where no curve can run over it."""
  line(value, color=PUBLISHED, linewidth=1, linestyle=":", label=label, zorder=1)


def _whole_numbers() -> MaxNLocator:
  return MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True)


def _legend_outside(figure: Figure) -> None:
  handles: dict[str, Any] = {}
  for axis in figure.axes:
    for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
      handles.setdefault(label, handle)
  columns = 3 if figure.get_figwidth() > 6 else 2
  figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def _perfect_calls(workdir: pathlib.Path) -> float | None:
  try:
    return read_results(workdir).get("perfect_calls")
  except MissingPartError:
    return None


def _known(policies: dict[str, Any]) -> list[str]:
  return [policy for policy in POLICY_NAMES if policy in policies]


def _error_bar(row: dict[str, Any], key: str) -> list[list[float]] | None:
  low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
  if low is None or high is None:
    return None
  return [[max(0.0, row[key] - low)], [max(0.0, high - row[key])]]


def _number(value: float | None, digits: int = 3) -> str:
  return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _interval(row: dict[str, Any], key: str, digits: int) -> str:
  low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
  middle = _number(row.get(key), digits)
  if low is None or high is None:
    return middle
  return f"{middle} [{_number(low, digits)}, {_number(high, digits)}]"


def _cents(value: float | None) -> str:
  return "-" if value is None else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def _plain_words(value: Any) -> str:
  if isinstance(value, dict):
    return ", ".join(
      f"{key.replace('_', ' ')} {_plain_words(inner)}" for key, inner in value.items()
    )
  return str(value)


def read_json(path: pathlib.Path) -> Any:
  """What a JSON file holds.

  Raises:
    ValueError: it cannot be read, or is not JSON.
  """
  try:
    return json.loads(_read_text(path))
  except json.JSONDecodeError as error:
    raise ValueError(f"{path}, line {error.lineno} is not JSON: {error.msg}") from error
  except RecursionError as error:
    raise ValueError(f"{path} is nested too deeply") from error


def _read_text(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding="utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(f"{path} is not UTF-8 at byte {error.start + 1}") from error
  except OSError as error:
    raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _write_csv(path: pathlib.Path, rows: Sequence[dict[str, str]]) -> None:
  with path.open("w", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
  settings.run_main(main, "Draws a run folder's figures and tables.", needs_config=False)
