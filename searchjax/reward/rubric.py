"""Rubrics decided by a program.  HOST (language detection loads its models on first use).

  r_base(chat) = 1  if every rubric of the chat holds, else 0          (SPEC 2, SPEC 1.3)

Source   SPEC 1.3.
"""

import re
from collections.abc import Callable, Sequence

from searchjax.data.rubrics import JUDGED, KINDS, Rubric
from searchjax.reward.instructions import INSTRUCTIONS, bullets, check_instruction, count_sentences
from searchjax.reward.languages import is_language

_CITATION = re.compile(r"\[\w+:\d+\]|\[\d+\]|【[^】]*】|</?cite\b")


def check_rubrics(answer: str, rubrics: Sequence[Rubric]) -> tuple[bool, ...]:
  """Decides every rubric on an answer.

  Args:
    answer: the final answer as a user reads it.
    rubrics: the checks.

  Returns:
    One bool a rubric, in order. An empty answer passes none.

  Raises:
    ValueError: a rubric that only a judge can decide.
  """
  answer = answer.strip()
  if judged(rubrics):
    raise ValueError(
      f"the rubric {judged(rubrics)[0]!r} is no program's to decide; set reward.judge")
  return tuple(bool(answer) and _CHECKS[r.kind](answer, **r.arguments) for r in rubrics)


def all_hold(answer: str, rubrics: Sequence[Rubric]) -> bool:
  """True if every rubric holds; r_base of a rubric chat."""
  return all(check_rubrics(answer, rubrics))


def programmatic(rubrics: Sequence[Rubric]) -> list[Rubric]:
  """The rubrics that a program decides."""
  return [rubric for rubric in rubrics if rubric.kind != JUDGED]


def judged(rubrics: Sequence[Rubric]) -> list[str]:
  """The criteria that only a reader can decide."""
  return [rubric.arguments["text"] for rubric in rubrics if rubric.kind == JUDGED]


def _words(answer: str, least: int = 0, most: int = 10**9) -> bool:
  return least <= len(answer.split()) <= most


def _sentences(answer: str, least: int = 0, most: int = 10**9) -> bool:
  return least <= count_sentences(answer) <= most


def _contains(answer: str, text: str) -> bool:
  return _occurrences(answer, text) > 0


def _occurrences(answer: str, text: str) -> int:
  """Occurrences that do not lie inside a longer word ("no" is not in "north")."""
  left = r"(?<!\w)" if text[:1].isalnum() else ""
  right = r"(?!\w)" if text[-1:].isalnum() else ""
  return len(re.findall(left + re.escape(text) + right, answer))


def _numbered_list(answer: str, items: int) -> bool:
  lines = [line for line in answer.splitlines() if line.strip()]
  return len(lines) == items and all(
    re.match(rf"\s*{i}[.)]\s+\S", line) for i, line in enumerate(lines, 1)
  )


_CHECKS: dict[str, Callable[..., bool]] = {
  "equals": lambda answer, text: answer.rstrip(".") == text.rstrip("."),
  "contains": _contains,
  "excludes": lambda answer, text: not _contains(answer, text),
  "starts_with": lambda answer, text: answer.startswith(text),
  "ends_with": lambda answer, text: answer.endswith(text),
  "occurs": lambda answer, text, times: _occurrences(answer, text) == times,
  "words": _words,
  "sentences": _sentences,
  "language": lambda answer, code: is_language(answer, code),
  "no_citations": lambda answer: not _CITATION.search(answer),
  "in_brackets": lambda answer: answer[0] in "([" and answer.rstrip(".")[-1] in ")]",
  "lower_case": lambda answer: answer == answer.lower(),
  "numbered_list": _numbered_list,
  "one_line": lambda answer: "\n" not in answer,
  "capitals": lambda answer, least: len(re.findall(r"\b[A-Z]", answer)) >= least,
  "paragraphs": lambda answer, least=0, most=10**9: least <= len(
    [part for part in re.split(r"\n\s*\n", answer) if part.strip()]) <= most,
  "bullets": lambda answer, least=0, most=10**9: least <= len(bullets(answer)) <= most,
  "headings": lambda answer, least=1: len(re.findall(r"^#{1,6} \S", answer, re.M)) >= least,
  "json": INSTRUCTIONS["detectable_format:json_format"],
  "all_capitals": lambda answer: answer.isupper(),
  "citations": lambda answer, least=1: len(_CITATION.findall(answer)) >= least,
  "instruction": lambda answer, name, arguments: check_instruction(answer, name, arguments),
}
assert set(_CHECKS) == set(KINDS)
