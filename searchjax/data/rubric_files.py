"""Readers of rubric data: IFEval's prompts, and completions labelled with a language.  HOST.

Section: SPEC 1.3. An instruction that no program of ours checks is refused by name and counted.

Source   IFEval's input_data.jsonl (key, prompt, instruction_id_list, kwargs), also as its Hugging
         Face copy fills kwargs with null; the language confusion benchmark's completions.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from searchjax.data.rows import Account, FieldError, Row, find, find_text, read_each
from searchjax.data.rubrics import Rubric, RubricChat

# IFEval's kinds; reward/instructions.py checks them.
INSTRUCTIONS = (
  "keywords:existence", "keywords:frequency", "keywords:forbidden_words",
  "keywords:letter_frequency", "language:response_language", "length_constraints:number_sentences",
  "length_constraints:number_paragraphs", "length_constraints:number_words",
  "length_constraints:nth_paragraph_first_word", "detectable_content:number_placeholders",
  "detectable_content:postscript", "detectable_format:number_bullet_lists",
  "detectable_format:constrained_response", "detectable_format:number_highlighted_sections",
  "detectable_format:multiple_sections", "detectable_format:json_format",
  "detectable_format:title", "combination:two_responses", "combination:repeat_prompt",
  "startend:end_checker", "change_case:capital_word_frequency", "change_case:english_capital",
  "change_case:english_lowercase", "punctuation:no_comma", "startend:quotation",
)


class LabelledCompletion(NamedTuple):
  """A completion, and the ISO 639-1 code of the language that was asked for."""

  id: str
  completion: str
  language: str


def read_ifeval(path: str | os.PathLike, account: Account) -> Iterator[RubricChat]:
  """Chats whose rubrics are a prompt's instructions.

  Args:
    path: see `rows.read_rows`.
    account: takes what is malformed, unknown instructions included, and counts every instruction.

  Raises:
    ValueError: see `rows.read_rows`.
  """
  def read(row: Row) -> RubricChat:
    names = find(row.fields, "instruction_id_list")
    kwargs = find(row.fields, "kwargs")
    if not isinstance(names, list) or not isinstance(kwargs, list) or len(names) != len(kwargs):
      raise FieldError("kwargs", "expected one object an instruction")
    rubrics = [_instruction(name, given) for name, given in zip(names, kwargs, strict=True)]
    if not rubrics:
      raise FieldError("instruction_id_list", "empty")
    account.noted.update(names)
    return RubricChat(
      str(find(row.fields, "key")), find_text(row.fields, "prompt"), tuple(rubrics)
    )

  return read_each(path, account, read)


def _instruction(name: Any, given: Any) -> Rubric:
  if name not in INSTRUCTIONS:
    raise FieldError("instruction_id_list", f"unknown instruction {name!r}")
  if not isinstance(given, dict):
    raise FieldError("kwargs", f"expected an object for {name}, got {type(given).__name__}")
  arguments = {key: value for key, value in given.items() if value is not None}
  return Rubric("instruction", {"name": name, "arguments": arguments})


def read_language_confusion(
  path: str | os.PathLike, account: Account
) -> Iterator[LabelledCompletion]:
  """Completions with the language each should be in.

  Raises:
    ValueError: see `rows.read_rows`.
  """
  def read(row: Row) -> LabelledCompletion:
    return LabelledCompletion(
      str(find(row.fields, "id")), find_text(row.fields, "completion"),
      find_text(row.fields, "language"),
    )

  return read_each(path, account, read)
