"""Public sets as one file of questions: ids, formats, what is left out, and that it is read again."""

import json

import pytest

from searchjax.data.public_qa import read_questions
from searchjax.data.rows import Account
from searchjax.data.unify import main

QUESTIONS = [f"Which river runs through the town number {i} of the north?" for i in range(41)]


def lines(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def test_sets_become_one_file(tmp_path, capsys):
  a = lines(tmp_path / "a.jsonl", [{"id": i, "question": q, "answer": f"the Wend {i}", "conversations": []}
                                   for i, q in enumerate(QUESTIONS)] + [{"question": 1, "answer": "x"}])
  b = lines(tmp_path / "b.jsonl", [{"question": QUESTIONS[3].upper(), "answer": ["the Wend 3"]}])
  held = lines(tmp_path / "held.jsonl", [{"problem": QUESTIONS[5], "gold answer": "x"}])
  out = tmp_path / "out.jsonl"
  assert main([a, b, "--out", str(out), "--evaluation", held, "--similarity", "1"]) == 0
  rows = [json.loads(line) for line in out.read_text().splitlines()]
  said = capsys.readouterr()
  assert said.out == (f"{out}: 40 questions; 43 rows, 40 kept, 1 malformed, 1 dropped: exact duplicate, "
                      "1 dropped: overlaps an evaluation set\n")
  assert said.err == f"  {a}:42: question: expected text, got int\n"
  assert len({row["id"] for row in rows}) == 40 and rows[0]["id"] == "deepdive/0"
  assert all(q in row["text"] for q, row in zip([q for i, q in enumerate(QUESTIONS) if i != 5], rows,
                                                strict=True))
  assert 10 < sum(row["format"] == "plain" for row in rows) < 30
  again = read_questions([out], Account())
  assert [(e.answer, e.source) for e in again] == [(row["answer"], "deepdive") for row in rows]


def test_one_id_is_given_once(tmp_path):
  rows = [{"id": 1, "question": q, "answer": "x", "conversations": []} for q in QUESTIONS[:3]]
  out = tmp_path / "out.jsonl"
  main([lines(tmp_path / "a.jsonl", rows), "--out", str(out), "--similarity", "0", "--plain", "1"])
  assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [
    "deepdive/1", "deepdive/1#2", "deepdive/1#3"]


@pytest.mark.parametrize("arguments, message", [
  (["none.jsonl"], "none.jsonl: no such file"), (["a.jsonl", "--plain", "2"], "got 2.0"),
  (["a.jsonl", "--evaluation", "a.jsonl", "none.jsonl"], "none.jsonl: no such file"),
  (["a.jsonl", "--similarity", "3"], "got 3, 3.0")])
def test_bad_input_gives_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys, arguments, message):
  monkeypatch.chdir(tmp_path)
  lines(tmp_path / "a.jsonl", [{"question": q, "answer": "x"} for q in QUESTIONS[:2]])
  with pytest.raises(SystemExit) as left:
    main([*arguments, "--out", "out.jsonl"])
  error = capsys.readouterr().err
  assert left.value.code == 2 and message in error and error.count("\n") == 1
  assert not (tmp_path / "out.jsonl").exists()
