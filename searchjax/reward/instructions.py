"""Instructions that a program can verify, by IFEval's names and arguments.  HOST.

`check_instruction(answer, "length_constraints:number_words", {"relation": "at least",
"num_words": 300})`. An unknown name is refused, never taken for kept or broken. Section: SPEC 1.3
(programmatic rubrics).

Source   Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models": the 25
         kinds and their arguments. No maintained package has them; the checks are our own, and
         strict: the answer is read as it stands.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from searchjax.reward.languages import is_language


def check_instruction(answer: str, name: str, arguments: Mapping[str, Any]) -> bool:
  """Whether an answer keeps an instruction.

  Args:
    answer: as a user reads it.
    name: one of INSTRUCTIONS.
    arguments: IFEval's; those that are None are left out, as its Hugging Face copy fills them.

  Raises:
    ValueError: an unknown instruction, or arguments that it does not take.
  """
  if name not in INSTRUCTIONS:
    raise ValueError(f"unknown instruction {name!r}; known are {', '.join(INSTRUCTIONS)}")
  given = {key: value for key, value in arguments.items() if value is not None}
  try:
    return bool(INSTRUCTIONS[name](answer, **given))
  except TypeError as error:
    raise ValueError(f"{name}: it does not take {given} ({error})") from error


def count_words(text: str) -> int:
  """Runs of letters and digits, an inner apostrophe or hyphen included."""
  return len(re.findall(r"\w+(?:['’-]\w+)*", text))


def count_sentences(text: str) -> int:
  """Sentences, by their closing marks; "3.5", "e.g." and "Dr. No" close none."""
  text = re.sub(r"\b(?:[a-z]\.){2,}|\b(?:dr|mr|mrs|ms|prof|st|vs|etc|no|jr|sr)\.", "x", text,
                flags=re.I)
  return len([part for part in re.split(r"[.!?]+(?=\s|$|[\"')\]])|[。！？]+|\n{2,}", text)
              if re.search(r"\w", part)])


def bullets(text: str) -> list[str]:
  """Lines that begin with "*" or "-", not of a rule or of bold text."""
  return re.findall(r"^[ \t]*(?:\*(?!\*)|-(?!-))[ \t]*(\S.*)$", text, re.M)


def _compare(count: int, relation: str, wanted: int) -> bool:
  if relation not in ("at least", "less than"):
    raise TypeError(f"relation {relation!r}")
  return count >= wanted if relation == "at least" else count < wanted


def _occurrences(text: str, keyword: str) -> int:
  return len(re.findall(rf"(?<!\w){re.escape(keyword)}(?!\w)", text, re.I))


def _paragraphs(answer: str, num_paragraphs: int) -> bool:
  parts = re.split(r"^[ \t]*\*\*\*[ \t]*$", answer.strip(), flags=re.M)
  return len(parts) == num_paragraphs and all(part.strip() for part in parts)


def _nth_paragraph(answer: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
  parts = [part for part in re.split(r"\n\s*\n", answer) if part.strip()]
  if len(parts) != num_paragraphs or not 1 <= nth_paragraph <= len(parts):
    return False
  word = re.search(r"\w+(?:['’-]\w+)*", parts[nth_paragraph - 1])
  return word is not None and word.group().lower() == first_word.lower()


def _json(answer: str) -> bool:
  inside = re.sub(r"^\s*```(?:json)?\s*\n?(.*?)\n?\s*```\s*$", r"\1", answer, flags=re.I | re.S)
  try:
    json.loads(inside)
  except ValueError:
    return False
  return True


def _highlights(answer: str, num_highlights: int) -> bool:
  found = re.findall(r"\*\*[^*\n]*[^*\s][^*\n]*\*\*|(?<!\*)\*[^*\n]*[^*\s][^*\n]*\*(?!\*)", answer)
  return len(found) >= num_highlights


def _sections(answer: str, section_spliter: str, num_sections: int) -> bool:
  head = rf"^\W*{re.escape(section_spliter.strip())}\s+(?:\d+|[IVXLC]+)\b"
  return len(re.findall(head, answer, re.M)) >= num_sections


def _two_responses(answer: str) -> bool:
  parts = [part.strip() for part in answer.split("******")]
  if parts and not parts[0]:
    parts = parts[1:]
  if parts and not parts[-1]:
    parts = parts[:-1]
  return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def _postscript(answer: str, postscript_marker: str) -> bool:
  letters = [re.escape(c) for c in postscript_marker if c.isalpha()]
  return bool(re.search(r"^\W*" + r"\.?\s?".join(letters) + r"\b", answer, re.M | re.I))


def _ends_with(answer: str, end_phrase: str) -> bool:
  return answer.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def _capital_words(answer: str, capital_relation: str, capital_frequency: int) -> bool:
  shouted = [word for word in re.findall(r"\w+(?:['’-]\w+)*", answer) if word.isupper()]
  return _compare(len(shouted), capital_relation, capital_frequency)


INSTRUCTIONS: dict[str, Callable[..., bool]] = {
  "keywords:existence": lambda a, keywords: all(_occurrences(a, word) for word in keywords),
  "keywords:frequency": lambda a, keyword, frequency, relation: _compare(
    _occurrences(a, keyword), relation, frequency),
  "keywords:forbidden_words": lambda a, forbidden_words: not any(
    _occurrences(a, word) for word in forbidden_words),
  "keywords:letter_frequency": lambda a, letter, let_frequency, let_relation: _compare(
    a.lower().count(letter.lower()), let_relation, let_frequency),
  "language:response_language": lambda a, language: is_language(a, language),
  "length_constraints:number_sentences": lambda a, num_sentences, relation: _compare(
    count_sentences(a), relation, num_sentences),
  "length_constraints:number_paragraphs": _paragraphs,
  "length_constraints:number_words": lambda a, num_words, relation: _compare(
    count_words(a), relation, num_words),
  "length_constraints:nth_paragraph_first_word": _nth_paragraph,
  "detectable_content:number_placeholders": lambda a, num_placeholders: len(
    re.findall(r"\[[^\[\]\n]+\]", a)) >= num_placeholders,
  "detectable_content:postscript": _postscript,
  "detectable_format:number_bullet_lists": lambda a, num_bullets: len(bullets(a)) == num_bullets,
  "detectable_format:constrained_response": lambda a: any(
    f"My answer is {choice}." in a for choice in ("yes", "no", "maybe")),
  "detectable_format:number_highlighted_sections": _highlights,
  "detectable_format:multiple_sections": _sections,
  "detectable_format:json_format": _json,
  "detectable_format:title": lambda a: bool(re.search(r"<<[^<>\n]*[^<>\s][^<>\n]*>>", a)),
  "combination:two_responses": _two_responses,
  "combination:repeat_prompt": lambda a, prompt_to_repeat: a.strip().lower().startswith(
    prompt_to_repeat.strip().lower()),
  "startend:end_checker": _ends_with,
  "change_case:capital_word_frequency": _capital_words,
  "change_case:english_capital": lambda a: a.isupper() and is_language(a, "en"),
  "change_case:english_lowercase": lambda a: a.islower() and is_language(a, "en"),
  "punctuation:no_comma": lambda a: not re.search(r"[,，、،]", a),
  "startend:quotation": lambda a: len(a.strip()) > 1 and a.strip()[0] == a.strip()[-1] == '"',
}
