"""Rubric data as it is published: every row read, or refused with its file, line and field."""

import json

import pytest

from searchjax.data.rows import Account
from searchjax.data.rubric_files import read_ifeval, read_language_confusion
from searchjax.reward.rubric import check_rubrics


def shared(repository, name):
  path = repository.parent / "shared/data/rubrics_if" / name
  if not path.is_file():
    pytest.skip("no ../shared/data/rubrics_if beside the repository")
  return path


def test_every_shared_prompt_is_read_and_each_instruction_decides(repository):
  chats = list(read_ifeval(shared(repository, "ifeval.first80.jsonl"), account := Account()))
  assert account.rows == account.kept == len(chats) == 80
  assert account.noted["punctuation:no_comma"] == 8 and len(account.noted) == 23
  assert {type(check_rubrics("A short answer, with a comma.", [rubric])[0])
          for chat in chats for rubric in chat.rubrics
          if "language" not in rubric.arguments["name"]} == {bool}


def test_every_shared_completion_is_read(repository):
  path = shared(repository, "language_confusion.first60.jsonl")
  rows = list(read_language_confusion(path, account := Account()))
  assert len(rows) == account.kept == 60 and {row.language for row in rows} >= {"ar", "zh", "tr"}


def test_malformed_rows_are_refused_by_line_and_field(tmp_path):
  good = {"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"],
          "kwargs": [{"num_words": None}]}
  rows = [good, good | {"prompt": " "}, good | {"kwargs": []}, good | {"kwargs": ["x"]},
          good | {"instruction_id_list": ["style:rhyme"]}]
  path = tmp_path / "a.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)) + "\n{")
  (chat,) = read_ifeval(path, account := Account())
  assert chat.rubrics[0].arguments == {"name": "punctuation:no_comma", "arguments": {}}
  assert [(p.line, p.field) for p in account.problems] == [
    (2, "prompt"), (3, "kwargs"), (4, "kwargs"), (5, "instruction_id_list"), (6, "")]
  assert "unknown instruction 'style:rhyme'" in account.problems[3].reason
