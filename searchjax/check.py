"""Verifies recorded rollouts, with neither engine nor service: tokens, budgets, rewards.  HOST.

  python -m searchjax.check RUN
  python -m searchjax.check RUN/rollouts/step_000012.jsonl …

Each record is checked by itself (`rollout.audit`), each group as a group; rewards and advantages
are put together again from their recorded parts. Printed are the first violation of each kind, with
its place, and how many there are. Exit code 0: none; 1: some; 2: a file is missing or broken.

Letters  Q questions, G rollouts per question.
Source   SPEC 1.2, 2 and 3; FAULTS C6, Y3.
"""

import collections
import dataclasses
import json
import math
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.progress

from searchjax.data.chat import ChatFormat
from searchjax.dist import settings
from searchjax.objective.advantage import group_advantage
from searchjax.reward import combine
from searchjax.rollout.agent import load_chat
from searchjax.rollout.audit import Violation, check_record
from searchjax.search.tool import SEARCH_WEB

KINDS = {
  "fields": "a field is missing or of another type",
  "length": "tokens, mask and log-probs are not of one length",
  "token": "a token id outside the vocabulary",
  "mask": "the mask does not mark the assistant's turns",
  "logp": "a log-prob above 0 or not finite, or a given token with one",
  "prompt": "the prompt is not what the format writes for the question",
  "border": "what stands between two turns is not what the format writes for the tool responses",
  "control": "a tool response holds control tokens",
  "prefix": "the history, rendered again, is not the context that the next turn had",
  "turn_end": "a turn does not end at its stop id, or ends without one or a limit",
  "turn_budget": "a turn longer than its limit",
  "token_budget": "a conversation longer than its limit, or a response that leaves no room",
  "text": "a turn's readable text or calls are not those of its tokens",
  "responses": "not one tool response a call",
  "call_budget": "a call over the budget that was served, or one within it that was refused",
  "malformed": "a malformed call that was not told its error",
  "forced": "the flag does not say whether a budget ended, or more than one turn followed its end",
  "stop": "the recorded stop is not how the last turn ended",
  "answer": "the recorded answer is not the last turn's",
  "counts": "calls, failures, malformed calls, searches or length are not what the tokens say",
  "routing": "recorded experts do not cover the tokens, or are none of the model's",
  "invalid": "an invalid rollout with a reward or an advantage, or without a reason",
  "version": "not one policy version a group, or another than the step",
  "group": "the rollouts of a group are not 0, 1, … of the configured number",
  "reward": "a penalty or a reward is not the sum of its recorded parts",
  "advantage": "an advantage is not that of the group's rewards",
  "samples": "all rollouts of a group are equal, which their probability all but rules out",
}
WARNINGS = ("samples",)
CHANCE = 1e-6  # Of equal rollouts, below which they look like one seed.
TOLERANCE = 1e-5  # Of rewards and advantages, computed again from float32.


@dataclasses.dataclass(frozen=True)
class RunContext:
  """What a run folder says about its rollouts.

  Attributes:
    tools: schemas printed in the prompts, or None.
    config: the run's; empty where there is none, and rewards cannot be checked.
  """

  chat: ChatFormat
  tools: Sequence[Mapping] | None
  config: Mapping[str, Any]


class Report:
  """Violations by kind: how many, and the first of each."""

  def __init__(self):
    self.counts: collections.Counter[str] = collections.Counter()
    self.first: dict[str, str] = {}
    self.files = self.rollouts = self.groups = 0
    self.broken: list[str] = []

  def add(self, path: pathlib.Path, line: int, record: Any, violation: Violation) -> None:
    self.counts[violation.kind] += 1
    if violation.kind in self.first:
      return
    place = f"{path}, line {line}"
    if isinstance(record, dict):
      place += f", question {record.get('question_id')}, rollout {record.get('rollout')}"
    if violation.position is not None:
      place += f", token {violation.position}"
    self.first[violation.kind] = f"{place}: {violation.text}"

  @property
  def exit_code(self) -> int:
    if self.broken:
      return settings.EXIT_BAD_INPUT
    return int(any(kind not in WARNINGS for kind in self.counts))

  def lines(self) -> Iterator[str]:
    """What is printed; one line where all is well."""
    for kind in KINDS:
      if kind in self.counts:
        word = "warning" if kind in WARNINGS else "violation"
        yield f"{word} {kind} × {self.counts[kind]}: {KINDS[kind]}"
        yield f"  {self.first[kind]}"
    yield from (f"broken: {place}" for place in self.broken[:1])
    found = sum(n for kind, n in self.counts.items() if kind not in WARNINGS)
    said = f"{found} violations" if found else "no violation"
    if self.broken:
      said += f", {len(self.broken)} broken lines"
    yield f"check: {self.files} files, {self.rollouts} rollouts in {self.groups} groups: {said}"


def check_files(paths: Iterable[pathlib.Path], tokenizer: str | None = None) -> Report:
  """Checks rollout files.

  Args:
    tokenizer: as for `load_chat`; None is that of each file's run.

  Raises:
    ValueError: a file cannot be read, or its run folder does not say which tokenizer it has.
  """
  report = Report()
  contexts: dict[pathlib.Path, RunContext] = {}
  for path in paths:
    folder = path.parent.parent
    if folder not in contexts:
      contexts[folder] = read_context(folder, tokenizer)
    _check_file(path, contexts[folder], report)
  return report


def find_files(paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
  """The rollout files of run folders, and files as they are.

  Raises:
    ValueError: neither is there.
  """
  files = []
  for path in paths:
    if path.is_file():
      files.append(path)
      continue
    inside = [sorted(path.glob(f"{part}rollouts/step_*.jsonl")) for part in ("", "grpo/")]
    if not any(inside):
      raise ValueError(
        f"{path}: expected a rollout file, or a run folder with rollouts/step_*.jsonl"
      )
    files += inside[0] or inside[1]
  return files


def read_context(folder: pathlib.Path, tokenizer: str | None) -> RunContext:
  """What a run folder's config.json says, with another tokenizer where one is given.

  Raises:
    ValueError: no config.json and no tokenizer, or not the config of a GRPO run.
  """
  path = folder / "config.json"
  if not path.is_file():
    if tokenizer is None:
      raise ValueError(f"no {path}; name the run's tokenizer with --tokenizer")
    return RunContext(load_chat(tokenizer), None, {})
  try:
    config = json.loads(path.read_text(encoding="utf-8"))
    printed = config["search"]["tools_in_prompt"]
    tokenizer = config["tokenizer"] if tokenizer is None else tokenizer
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f"{path} is not the config of a GRPO run ({error!r})") from error
  chat = load_chat(tokenizer, **config.get("chat", {}))
  return RunContext(chat, [SEARCH_WEB] if printed else None, config)


def check_groups(
  groups: Sequence[Sequence[Mapping]], config: Mapping, step: int | None
) -> Iterator[tuple[int, int, Violation]]:
  """What is wrong with whole groups of one step.

  Args:
    config: of the run; empty leaves out what depends on it.
    step: of the file; None where its name does not say.

  Yields:
    (question, rollout, violation).
  """
  for q, group in enumerate(groups):
    numbers = [record["rollout"] for record in group]
    size = config.get("group_size", len(group))
    if numbers != list(range(size)):
      yield q, 0, Violation("group", f"expected rollouts 0 to {size - 1}, got {numbers}")
    for g, record in enumerate(group):
      expected = record["step"] if step is None else step
      for name in ("step", "policy_version"):
        if record[name] != expected:
          yield q, g, Violation("version", f"expected {name} {expected}, got {record[name]}")
    sampled = {tuple(t for t, m in zip(r["tokens"], r["mask"], strict=True) if m) for r in group}
    logp = sum(group[0]["logp"])
    if len(sampled) == 1 < len(group) and logp * (len(group) - 1) < math.log(CHANCE):
      yield q, 0, Violation("samples", f"{len(group)} equal rollouts of log-probability {logp:.1f}")
  if "reward" in config and "advantage" in config and groups:
    yield from _check_rewards(groups, config)


def _check_rewards(groups, config):
  """Penalty, reward and advantage, put together again by the functions that made them."""
  size = max(map(len, groups))
  array = lambda get, fill, dtype: np.array(
    [[get(r) for r in group] + [fill] * (size - len(group)) for group in groups], dtype
  )
  part = lambda name: array(lambda r: _number(r["reward"].get(name)), math.nan, np.float32)
  valid = array(lambda r: r["valid"], False, bool)
  c = config["reward"]
  penalty = combine.combined_penalty(
    part("tool_penalty"), part("length_penalty"), c["lambda_tool"], c["lambda_len"]
  )
  combined = {"gated": combine.gated_reward, "linear": combine.linear_reward}[c["aggregation"]]
  total = combined(part("base"), part("preference"), part("penalty"))
  advantage = group_advantage(part("total"), valid, **config["advantage"])
  recorded = array(lambda r: r["advantage"], 0.0, np.float32)
  for kind, name, expected, got, where in (
    ("reward", "penalty", penalty, part("penalty"), valid),
    ("reward", "total", total, part("total"), valid),
    ("advantage", "advantage", advantage, recorded, np.ones_like(valid)),
  ):
    expected = np.asarray(expected)
    differs = where & ~np.isclose(expected, got, rtol=TOLERANCE, atol=TOLERANCE)
    for q, g in np.argwhere(differs).tolist():
      yield q, g, Violation(kind, f"expected {name} {expected[q, g]:.6g}, got {got[q, g]:.6g}")


def _number(value):
  return value if isinstance(value, int | float) else math.nan


def _check_file(path: pathlib.Path, context: RunContext, report: Report) -> None:
  report.files += 1
  groups: list[list[tuple[int, dict]]] = []
  with path.open(encoding="utf-8", errors="replace") as file:
    for line, text in enumerate(file, 1):
      try:
        record = json.loads(text)
      except ValueError as error:
        report.broken.append(f"{path}, line {line}: {error}")
        continue
      report.rollouts += 1
      kinds = set()
      for violation in check_record(record, context.chat, context.tools):
        report.add(path, line, record, violation)
        kinds.add(violation.kind)
      if kinds & {"fields", "length"}:
        continue
      if not groups or not _same_group(groups[-1][-1][1], record):
        groups.append([])
      groups[-1].append((line, record))
  report.groups += len(groups)
  records = [[record for _, record in group] for group in groups]
  named = re.fullmatch(r"step_(\d+)", path.stem)
  for q, g, violation in check_groups(records, context.config, int(named[1]) if named else None):
    report.add(path, groups[q][g][0], records[q][g], violation)


def _same_group(before, record):
  return before["question_id"] == record["question_id"] and before["rollout"] < record["rollout"]


def main(argv: Sequence[str] | None = None) -> int:
  """Checks what the command line names; see the module."""
  parser = settings.OneLineParser(description=__doc__.splitlines()[0], allow_abbrev=False)
  parser.add_argument("paths", nargs="+", type=pathlib.Path, metavar="PATH",
                      help="a run folder, or rollout files of one")
  parser.add_argument("--tokenizer", metavar="FILE",
                      help='instead of the run\'s: a tokenizer.json or its folder, "" the packaged')
  arguments = parser.parse_args(argv)
  console = rich.console.Console(stderr=True)
  try:
    files = find_files(arguments.paths)
    shown = rich.progress.track(
      files, "checking", console=console, transient=True, disable=not console.is_terminal
    )
    report = check_files(shown, arguments.tokenizer)
  except ValueError as error:
    if not settings.is_ours(error, None):
      raise
    settings.fail(str(error))
  except OSError as error:
    settings.fail(f"cannot read {error.filename}: {error.strerror}")
  for text in report.lines():
    print(text)
  return report.exit_code


if __name__ == "__main__":
  sys.exit(main())
