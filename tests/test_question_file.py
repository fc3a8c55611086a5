"""Questions read from JSONL: every field, the splits, and every malformed line by its number."""

import json

import pytest
from ml_collections import ConfigDict

from searchjax.data.question_file import file_questions, read_questions

ANY = lambda text: True
ROW = {"id": "a", "text": "Which town?", "answer": "Foo"}


def write(path, *rows):
  path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
  return path


def test_a_line_needs_three_fields_alone(tmp_path):
  (question,) = read_questions(write(tmp_path / "q.jsonl", ROW | {"level": "hard"}, ""))
  assert (question.id, question.text, question.answer) == ("a", "Which town?", "Foo")
  assert (question.aliases, question.hops, question.world, question.steps) == ((), 1, None, ())


def test_splits_keep_apart(tmp_path):
  rows = [ROW | {"id": s or "none", "split": s} for s in ("sft", "rl", "heldout", "shared", "")]
  path = write(tmp_path / "q.jsonl", *rows)
  assert [q.id for q in read_questions(path, "rl")] == ["rl", "shared", "none"]
  assert len(read_questions(path)) == 5
  with pytest.raises(ValueError, match="no question of split rl among 1"):
    read_questions(write(tmp_path / "s.jsonl", rows[0]), "rl")


@pytest.mark.parametrize("line, told", [
  ("{", "not JSON"), ("[]", "expected a JSON object"), ({"id": "a"}, 'expected "text" as text'),
  (ROW | {"answer": " "}, 'expected "answer" as text'), (ROW | {"hops": "2"}, '"hops"'),
  (ROW | {"hops": True}, '"hops"'), (ROW | {"world": "x"}, '"world"'),
  (ROW | {"steps": [["q"]]}, '"steps" as pairs'), (ROW | {"aliases": "Foo"}, '"aliases" as a list'),
  (ROW, 'id "a" stands in line 1 already'),
])
def test_a_malformed_line_is_named(tmp_path, line, told):
  with pytest.raises(ValueError, match="line 2: ") as error:
    read_questions(write(tmp_path / "q.jsonl", ROW, line))
  assert told in str(error.value) and "\n" not in str(error.value)


def test_a_config_without_a_file_reads_none(tmp_path):
  assert file_questions({}, "rl", 0, ANY) == file_questions({"questions_file": ""}, "rl", 0, ANY) == ([], "")
  with pytest.raises(ValueError, match="no such file"):
    file_questions({"questions_file": str(tmp_path / "q")}, "rl", 0, ANY)


def test_equal_seeds_shuffle_alike(tmp_path):
  path = write(tmp_path / "q.jsonl", *(ROW | {"id": str(i)} for i in range(23)))
  section = ConfigDict({"questions_file": str(path), "questions": 17})
  first, line = file_questions(section, "rl", 5, ANY)
  assert len(first) == 17 and first == file_questions(section, "rl", 5, ANY)[0]
  assert first != file_questions(section, "rl", 6, ANY)[0]
  assert line == f"data.questions_file: 17 of 23 questions of {path}, 6 beyond data.questions = 17"


def test_what_a_run_has_no_room_for_is_counted(tmp_path):
  path = write(tmp_path / "q.jsonl", *(ROW | {"id": str(i), "text": "a" * (1 + i)} for i in range(11)))
  section = ConfigDict({"questions_file": str(path), "questions": 5})
  kept, line = file_questions(section, "rl", 0, lambda text: len(text) < 4)
  assert sorted(q.text for q in kept) == ["a", "aa", "aaa"]
  assert line == f"data.questions_file: 3 of 11 questions of {path}, 8 left out as too long"
  with pytest.raises(ValueError, match="none of 11 questions leaves room for an answer; raise limits.tokens"):
    file_questions(section, "rl", 0, lambda text: False)
