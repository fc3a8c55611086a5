"""Rubrics decided by a program.  HOST (language detection loads its models on first use).

  r_base(chat) = 1  if every rubric of the chat holds, else 0          (SPEC 2, SPEC 1.3)

Source   SPEC 1.3; languages by lingua.
"""

import functools
import re
from collections.abc import Callable, Sequence

from searchjax.data.rubrics import KINDS, Rubric

_CITATION = re.compile(r"\[\w+:\d+\]|\[\d+\]|【[^】]*】|</?cite\b")
# Few languages make detection on a short answer sharper; others can be named by their code.
_USUAL_LANGUAGES = ("en", "fr", "es", "de", "it")


def check_rubrics(answer: str, rubrics: Sequence[Rubric]) -> tuple[bool, ...]:
  """Decides every rubric on an answer.

  Args:
    answer: the final answer as a user reads it.
    rubrics: the checks.

  Returns:
    One bool a rubric, in order. An empty answer passes none.
  """
  answer = answer.strip()
  return tuple(bool(answer) and _CHECKS[r.kind](answer, **r.arguments) for r in rubrics)


def all_hold(answer: str, rubrics: Sequence[Rubric]) -> bool:
  """True if every rubric holds; r_base of a rubric chat."""
  return all(check_rubrics(answer, rubrics))


def detect_language(text: str, candidates: Sequence[str] = _USUAL_LANGUAGES) -> str | None:
  """The ISO 639-1 code that lingua finds most likely among candidates; None if it finds none."""
  language = _detector(tuple(sorted(set(candidates)))).detect_language_of(text)
  return None if language is None else language.iso_code_639_1.name.lower()


@functools.cache
def _detector(codes: tuple[str, ...]):
  import lingua  # here: its models are large, and most runs never ask for a language
  wanted = [lingua.IsoCode639_1.from_str(code.upper()) for code in codes]
  return lingua.LanguageDetectorBuilder.from_iso_codes_639_1(*wanted).build()


def _words(answer: str, least: int = 0, most: int = 10**9) -> bool:
  return least <= len(answer.split()) <= most


def _sentences(answer: str, least: int = 0, most: int = 10**9) -> bool:
  return least <= len(re.findall(r"[^.!?]+(?:[.!?]+|\Z)", answer)) <= most


def _language(answer: str, code: str) -> bool:
  return detect_language(answer, (*_USUAL_LANGUAGES, code)) == code


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
  "language": _language,
  "no_citations": lambda answer: not _CITATION.search(answer),
  "in_brackets": lambda answer: answer[0] in "([" and answer.rstrip(".")[-1] in ")]",
  "lower_case": lambda answer: answer == answer.lower(),
  "numbered_list": _numbered_list,
  "one_line": lambda answer: "\n" not in answer,
  "capitals": lambda answer, least: len(re.findall(r"\b[A-Z]", answer)) >= least,
}
assert set(_CHECKS) == set(KINDS)
