"""Rubrics that a language model writes for conversations, each checked before it is used.  HOST.

A reply holds a reference answer and rubrics from three sources in fixed precedence: explicit
requirements, internal constraints (safety conventions among them), then content that the reference
shows to be necessary. A rubric must be atomic, objective and necessary: what its form shows of that
is checked here, and a rubric of a program's kind must hold for the reference, or it is not
necessary. Refusals are counted by reason.

Spec     1.3 (rubric-based general chat).
"""

import collections
import pathlib
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from searchjax.data.rubrics import JUDGED, Rubric, RubricChat
from searchjax.data.synthesis.endpoint import EndpointFailure, first_object

PROMPT = pathlib.Path(__file__).parent / "assets" / "write_rubrics.md"
PRECEDENCE = ("requirement", "constraint", "content")
MOST_RUBRICS = 16
# The program's kinds that a writer is offered, with what their arguments may be.
KINDS: dict[str, dict[str, type]] = {
  "language": {"code": str}, "contains": {"text": str}, "excludes": {"text": str},
  "starts_with": {"text": str}, "ends_with": {"text": str}, "words": {"least": int, "most": int},
  "sentences": {"least": int, "most": int}, "paragraphs": {"least": int, "most": int},
  "bullets": {"least": int, "most": int}, "headings": {"least": int}, "json": {},
  "all_capitals": {}, "lower_case": {}, "one_line": {}, "no_citations": {},
  "citations": {"least": int},
}
_OPINION = re.compile(
  r"\b(?:good|nice|clear(?:ly)?|well[- ](?:written|structured)|engaging|natural|helpful|interesting"
  r"|appropriate|high[- ]quality|concise|creative|polite|friendly|professional)\b", re.I)
_TWO_CHECKS = re.compile(
  r"\b(?:and|as well as)\s+(?:also\s+)?(?:is|are|has|have|does|must|should|contains?|includes?"
  r"|mentions?|says?|uses?|gives?|names?|avoids?)\b", re.I)


def rubric_prompt(conversation: Sequence[Mapping[str, str]]) -> str:
  """What the writer is asked about a conversation of {"role", "content"} messages."""
  told = "\n".join(f"[{turn['role']}] {turn['content']}" for turn in conversation)
  told = re.sub(r"</?conversation>", " ", told)
  kinds = "\n".join(
    f"* {kind}: {', '.join(given) or 'no arguments'}" for kind, given in KINDS.items())
  return string.Template(PROMPT.read_text(encoding="utf-8")).safe_substitute(
    conversation=told, kinds=kinds)


def read_rubrics(
  reply: str, failures: collections.Counter, holds: Callable[[str, Rubric], bool]
) -> tuple[str, tuple[Rubric, ...]] | None:
  """The reference and the rubrics of a reply, by precedence; None where it cannot be used.

  Args:
    reply: with one JSON object, in a fence or not.
    failures: counts what was refused, by reason.
    holds: whether a program's rubric holds for an answer (reward/rubric.py).
  """
  body = first_object(reply, "reference", "rubrics") or {"reference": None, "rubrics": None}
  reference, rows = body["reference"], body["rubrics"]
  if not (isinstance(reference, str) and reference.strip() and isinstance(rows, list)):
    failures["reply: not the JSON object that was asked for"] += 1
    return None
  kept: list[Rubric] = []
  for rubric in _by_precedence(rows, failures):
    if rubric.kind != JUDGED and not holds(reference, rubric):
      failures["rubric: not necessary, the reference answer fails it"] += 1
    elif _contradicts(rubric, kept):
      failures["rubric: contradicts one of higher precedence"] += 1
    elif rubric not in kept:
      kept.append(rubric)
  if not kept or len(kept) > MOST_RUBRICS:
    failures["reply: no rubric is left" if not kept else "reply: too many rubrics"] += 1
    return None
  return reference, tuple(kept)


def _by_precedence(rows: Sequence[Any], failures: collections.Counter) -> list[Rubric]:
  """The readable rubrics; requirements first, then constraints, then content."""
  read = []
  for row in rows:
    try:
      read.append(_read_rubric(row))
    except ValueError as error:
      failures[str(error)] += 1
  return [rubric for _, rubric in sorted(read, key=lambda pair: pair[0])]


def _read_rubric(row: Any) -> tuple[int, Rubric]:
  """A rubric and its place in the precedence."""
  if not isinstance(row, dict) or row.get("source") not in PRECEDENCE:
    raise ValueError("rubric: no known source")
  kind, given = row.get("kind"), row.get("arguments", {})
  allowed = {"text": str} if kind == JUDGED else KINDS.get(kind) if isinstance(kind, str) else None
  if allowed is None:
    raise ValueError("rubric: unknown kind")
  if not isinstance(given, dict) or not set(given) <= set(allowed) or bool(allowed) != bool(given):
    raise ValueError("rubric: arguments of another form")
  if not all(type(value) is allowed[name] and value != "" for name, value in given.items()):
    raise ValueError("rubric: arguments of another type")
  if kind == JUDGED and _OPINION.search(given["text"]):
    raise ValueError("rubric: not objective")
  if kind == JUDGED and (_TWO_CHECKS.search(given["text"]) or given["text"].count(".") > 1):
    raise ValueError("rubric: not atomic")
  return PRECEDENCE.index(row["source"]), Rubric(kind, given)


def _contradicts(rubric: Rubric, others: Sequence[Rubric]) -> bool:
  """True where a text is both wanted and forbidden, or two languages are."""
  opposite = {"contains": "excludes", "excludes": "contains"}.get(rubric.kind)
  return any(
    other.kind == opposite and other.arguments == rubric.arguments
    or other.kind == rubric.kind == "language" and other.arguments != rubric.arguments
    for other in others)


def write_rubrics(
  conversations: Sequence[tuple[str, Sequence[Mapping[str, str]]]],
  ask_all: Callable[[list[str]], Sequence[str | EndpointFailure]],
  failures: collections.Counter,
  holds: Callable[[str, Rubric], bool],
) -> list[RubricChat]:
  """Rubric chats of (id, conversation) pairs, in order; what failed is counted and left out.

  Args:
    ask_all: replies to prompts, in order, as `Endpoint.ask_all` gives them.
    failures, holds: see `read_rubrics`.
  """
  replies = ask_all([rubric_prompt(turns) for _, turns in conversations])
  chats = []
  for (name, turns), reply in zip(conversations, replies, strict=True):
    if isinstance(reply, EndpointFailure):
      failures[f"endpoint: {reply.reason}"] += 1
      continue
    read = read_rubrics(reply, failures, holds)
    if read is not None:
      reference, rubrics = read
      text = "\n\n".join(turn["content"] for turn in turns if turn["role"] == "user")
      chats.append(RubricChat(name, text, rubrics, reference))
  return chats
