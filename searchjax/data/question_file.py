"""Questions from a JSONL file, such as searchjax.synthesize writes.  HOST.

Spec     1.3.
"""

import json
import os
import pathlib
import random
from collections.abc import Callable
from typing import Any

from searchjax.data.questions import Question

SPLITS = ("sft", "rl", "heldout")
# What a line must have, and what stands where it is left out.
REQUIRED = {"id": str, "text": str, "answer": str}
OPTIONAL = {
  "aliases": (), "hops": 1, "relations": (), "path": (), "split": "", "world": None, "steps": (),
  "statement": "",
}


def read_questions(path: str | os.PathLike, split: str = "") -> list[Question]:
  """The questions of a file, in its order.

  Args:
    path: a line is a JSON object with "id", "text", "answer", and as many of Question's other
      fields as are known; fields of other names are ignored.
    split: only questions of this split, and those of a file that are of none ("" or "shared").

  Raises:
    ValueError: no such file, a malformed line, which is named by its number, or no question left.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f"data.questions_file {path}: no such file; make one with "
                     "python -m searchjax.synthesize")
  questions, seen = [], {}
  with path.open("rb") as lines:
    for number, line in enumerate(lines, 1):
      if line.strip():
        question = _read_line(line, f"{path}, line {number}")
        if question.id in seen:
          raise ValueError(f'{path}, line {number}: id "{question.id}" stands in line '
                           f"{seen[question.id]} already")
        seen[question.id] = number
        questions.append(question)
  kept = [q for q in questions if not split or q.split not in SPLITS or q.split == split]
  if not kept:
    of = f"no question of split {split}" if questions else "no question"
    raise ValueError(f"data.questions_file {path}: {of} among {len(questions)}")
  return kept


def file_questions(
  section: Any, split: str, seed: int, fits: Callable[[str], bool]
) -> tuple[list[Question], str]:
  """At most `data.questions` questions of a config's `data.questions_file`, shuffled.

  Args:
    section: the config's `data`.
    split: see `read_questions`.
    seed: of the shuffle.
    fits: whether a run has room for a question; the others are left out.

  Returns:
    The questions, and a line that says how many there are and why not all; [] and "" where the
    config names no file.

  Raises:
    ValueError: see `read_questions`; or there is room for none.
  """
  path = section.get("questions_file", "")
  if not path:
    return [], ""
  questions = read_questions(path, split)
  random.Random(seed).shuffle(questions)
  fitting = [q for q in questions if fits(q.text)]
  if not fitting:
    raise ValueError(f"data.questions_file {path}: none of {len(questions)} questions leaves room "
                     "for an answer; raise limits.tokens and scorer.length")
  used = fitting[:section.questions]
  line = f"data.questions_file: {len(used)} of {len(questions)} questions of {path}"
  if len(fitting) < len(questions):
    line += f", {len(questions) - len(fitting)} left out as too long"
  if len(used) < len(fitting):
    line += f", {len(fitting) - len(used)} beyond data.questions = {section.questions}"
  return used, line


def _read_line(line: bytes, where: str) -> Question:
  try:
    row = json.loads(line.decode("utf-8"))
  except UnicodeDecodeError as error:
    raise ValueError(f"{where}: not UTF-8 ({error.reason} at byte {error.start + 1})") from error
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{where}: not JSON ({error})") from error
  if not isinstance(row, dict):
    raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
  for field, kind in REQUIRED.items():
    if not isinstance(row.get(field), kind) or not row[field].strip():
      raise ValueError(f'{where}: expected "{field}" as text, got {row.get(field)!r}')
  row = OPTIONAL | row
  for field in ("aliases", "relations", "path"):
    if not isinstance(row[field], list | tuple) or not all(isinstance(v, str) for v in row[field]):
      raise ValueError(f'{where}: expected "{field}" as a list of strings, got {row[field]!r}')
  steps = row["steps"]
  if not isinstance(steps, list | tuple) or not all(
    isinstance(s, list) and len(s) == 2 and all(isinstance(v, str) for v in s) for s in steps
  ):
    raise ValueError(f'{where}: expected "steps" as pairs of strings, got {steps!r}')
  for field, kind in (("hops", int), ("world", int | None), ("split", str), ("statement", str)):
    if not isinstance(row[field], kind) or isinstance(row[field], bool):
      raise ValueError(f'{where}: unexpected "{field}": {row[field]!r}')
  return Question(
    id=row["id"], text=row["text"], answer=row["answer"], aliases=tuple(row["aliases"]),
    hops=row["hops"], relations=tuple(row["relations"]), path=tuple(row["path"]),
    split=row["split"], world=row["world"], steps=tuple(tuple(s) for s in steps),
    statement=row["statement"],
  )
