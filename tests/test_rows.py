"""Rows of every form of file; what cannot be read is named by file, line and field, and counted."""

import gzip
import json
import sys
import types

import pytest

from searchjax.data.rows import (
  Account, FieldError, Problem, find, find_text, read_each, read_rows)

ROWS = [{"question": "q1", "n": 1}, {"question": "q\u2028two\n", "n": 2}, {"question": "q3", "n": 3}]


def read(path):
  account = Account()
  return list(read_rows(path, account)), account


def written(folder, name, text):
  path = folder / name
  path.write_bytes(text.encode() if isinstance(text, str) else text)
  return path


@pytest.mark.parametrize("name, text", [
  ("a.jsonl", "\n".join(json.dumps(row) for row in ROWS) + "\n"),
  ("b.json", json.dumps(ROWS, indent=1)),
  ("c.json", json.dumps({"version": "1.0", "split": 2, "Data": ROWS})),
  ("d.json", "\n".join(json.dumps(row) for row in ROWS)),
  ("c2.json", json.dumps({"info": {"v": [1]}, "rows": ROWS, "more": {"data": []}}, indent=1)),
  ("d2.json", "\n".join(json.dumps(row) for row in ROWS) + "\n\n"),
  ("e.jsonl.gz", gzip.compress("\n".join(json.dumps(row) for row in ROWS).encode(), mtime=0)),
  ("f.jsonl", b"\xef\xbb\xbf" + "\n".join(json.dumps(row) for row in ROWS).encode()),
])
def test_the_same_rows_in_every_form(tmp_path, name, text):
  rows, account = read(written(tmp_path, name, text))
  assert [row.fields for row in rows] == ROWS
  assert account.rows == account.kept == 3 and not account.problems


def test_tables_with_a_header_an_index_column_and_none(tmp_path):
  rows, _ = read(written(tmp_path, "a.csv", 'question,answer\n"one\ntwo",x\u2028y\nthree,z\n'))
  assert [(r.line, r.fields) for r in rows] == [
    (2, {"question": "one\ntwo", "answer": "x\u2028y"}), (4, {"question": "three", "answer": "z"})]
  rows, _ = read(written(tmp_path, "b.tsv", "\tPrompt\tAnswer\n0\tp\ta\n"))
  assert [r.fields for r in rows] == [{"index": "0", "Prompt": "p", "Answer": "a"}]
  rows, _ = read(written(tmp_path, "c.csv", "who?,,,,x,,\nwhen?,,,,y,,\n"))
  assert [(r.line, r.fields["0"], r.fields["4"]) for r in rows] == [(1, "who?", "x"), (2, "when?", "y")]


def test_malformed_rows_are_named_and_counted_and_end_nothing(tmp_path):
  path = written(tmp_path, "a.jsonl", b'{"a": 1}\n{"a": \n\n[2]\n{"a": "\xff"}\n{"a": 5}\n')
  rows, account = read(path)
  assert [row.line for row in rows] == [1, 6] and account.rows == 5 and account.kept == 2
  assert [(p.file, p.line, p.field) for p in account.problems] == [(str(path), n, "") for n in (2, 4, 5)]
  assert "not JSON" in account.problems[0].reason and "got list" in account.problems[1].reason
  rows, account = read(written(tmp_path, "b.csv", "a,b\n1,2\n1,2,3\n4,5\n"))
  assert len(rows) == 2 and str(account.problems[0]).endswith("b.csv:3: 3 cells, expected 2")
  rows, account = read(written(tmp_path, "c.json", '[\n {"a": 1},\n {"a": 2},\n {"a": '))
  assert len(rows) == 2 and account.problems[0].line == 4
  assert account.summary() == "3 rows, 2 kept, 1 malformed"


@pytest.mark.parametrize("text, kept, reason", [
  ('[{"a": 1}] [{"a": 2}]', 1, "1: after the array, and not read: '[{"),
  ('{"data": [{"a": 1}]} {"data": []}', 1, "1: after the array"),
  ('{"data": [{"a": 1}]', 1, "1: after the array, and not read: ''"),
  ('[{"a": 1}\n{"a": 2}]', 2, "2: expected rows with one comma between two"),
  ('[{"a": 1},,{"a": 2}]', 1, "1: not JSON"), ('[,{"a": 1}]', 1, "1: expected rows with one comma"),
])
def test_an_array_that_is_not_whole_json_loses_nothing_unseen(tmp_path, text, kept, reason):
  rows, account = read(written(tmp_path, "a.json", text))
  assert len(rows) == kept == account.kept and f"a.json:{reason}" in str(account.problems[0])


def test_a_list_within_the_first_of_json_lines_is_not_taken_for_the_file(tmp_path):
  inner = [{"question": "no"}]
  lines = [json.dumps({"question": "q1", "examples": inner}), json.dumps({"question": "q2"})]
  rows, account = read(written(tmp_path, "a.json", "\n".join(lines)))
  assert [r.fields["question"] for r in rows] == ["q1", "q2"] and account.rows == 2


@pytest.mark.parametrize("name, text", [
  ("a.jsonl", '{"a": 1}\n{"a": "\\ud800"}\n{"b": {"\\uDFFF": 2}}\n{"a": "\\ud83d\\ude00"}'),
  ("a.json", '[{"a": 1},\n{"a": "\\ud800"},\n{"b": {"\\uDFFF": 2}},{"a": "\\ud83d\\ude00"}]')])
def test_half_a_surrogate_pair_is_malformed(tmp_path, name, text):
  rows, account = read(written(tmp_path, name, text))
  assert [r.fields["a"] for r in rows] == [1, "😀"]
  assert [(p.line, p.reason) for p in account.problems] == [
    (n, "text with half a surrogate pair") for n in (2, 3)]


def test_a_problem_of_a_field_is_counted_by_the_reader_of_rows(tmp_path):
  def read_one(row):
    return find_text(row.fields, "a.b")
  account = Account()
  path = written(tmp_path, "a.jsonl", '{"a": {"b": " x "}}\n{"a": {}}\n{"a": {"b": 3}}\n{"a": {"b": " "}}')
  assert list(read_each(path, account, read_one)) == ["x"]
  assert [(p.line, p.field, p.reason) for p in account.problems] == [
    (2, "a.b", "missing"), (3, "a.b", "expected text, got int"), (4, "a.b", "empty")]
  account.dropped["short"] += 1
  assert account.kept == 0 and account.rows == 4


def test_paths_reach_into_lists_and_take_the_first_name_there_is():
  fields = {"prompt": [{"content": "x"}], "B": 2}
  assert find(fields, "prompt.0.content") == "x" and find(fields, "b|B") == 2
  for path in ("prompt.1.content", "prompt.x", "b|c"):
    with pytest.raises(FieldError, match="missing"):
      find(fields, path)


@pytest.mark.parametrize("name, content, message", [
  ("a.jsonl", None, "no such file"), ("a.txt", b"x", r"ends in \.jsonl"),
  ("a.csv", b"a,b\n\xff,2\n", r"a\.csv:2: not UTF-8"), ("a.json", b'"text"', "JSON array of rows"),
  ("a.jsonl.gz", b"x", "cannot be read"),
  ("a.jsonl.gz", gzip.compress(b"x" * 999, mtime=0)[:12] + b"\xff" * 60, "cannot be read")])
def test_files_that_cannot_be_read_at_all(tmp_path, name, content, message):
  path = tmp_path / name
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(ValueError, match=message):
    read(path)


def test_a_folder_is_no_file(tmp_path):
  (tmp_path / "a.jsonl").mkdir()
  with pytest.raises(ValueError, match="a.jsonl: a folder; name the files in it"):
    read(tmp_path / "a.jsonl")


def test_parquet(tmp_path):
  pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
  import pyarrow.parquet as parquet
  parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
  whole = (tmp_path / "a.parquet").read_bytes()
  for path in (tmp_path / "a.parquet", written(tmp_path, "a.parquet.gz", gzip.compress(whole))):
    rows, account = read(path)
    assert [r.fields for r in rows] == ROWS and [r.line for r in rows] == [1, 2, 3]
  flipped = whole[:4] + bytes(255 - b for b in whole[4:60]) + whole[60:]
  for broken in (b"", b"PAR1", whole[: len(whole) // 2], flipped):
    with pytest.raises(ValueError, match="b.parquet: cannot be read as Parquet"):
      read(written(tmp_path, "b.parquet", broken))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
  monkeypatch.setitem(sys.modules, "datasets", None)
  with pytest.raises(ValueError, match="needs the package pyarrow; pip install pyarrow"):
    read(written(tmp_path, "a.parquet", b"PAR1"))
  with pytest.raises(ValueError, match="hf:a/b: needs the package datasets"):
    read("hf:a/b")


def test_a_data_set_by_name(monkeypatch):
  asked = []

  def load_dataset(name, config, split):
    asked.append((name, config, split))
    if name == "a/none":
      raise ConnectionError("no network")
    return ROWS

  monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
  rows, _ = read("hf:a/b/en:test")
  assert [r.fields for r in rows] == ROWS and rows[2][:2] == ("hf:a/b/en:test", 3)
  read("hf:a/b")
  assert asked == [("a/b", "en", "test"), ("a/b", None, "train")]
  with pytest.raises(ValueError, match=r"cannot be had from Hugging Face \(no network\)"):
    read("hf:a/none")
  with pytest.raises(ValueError, match="expected hf:OWNER/NAME"):
    read("hf:b")


def test_a_problem_reads_as_file_line_field_reason():
  assert str(Problem("a.csv", 7, "answer", "empty")) == "a.csv:7: answer: empty"
