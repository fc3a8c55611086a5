"""The command that says what data files hold: counts, problems, exit codes."""

import json

import pytest

from searchjax.data.inspect import kind_of, main

QA = {"question": "Which river runs through Oldbridge?", "answer": "the Wend", "hops": 2}
PAIR = {"prompt": "What is a weir?", "chosen": "A low dam.", "rejected": "A bird."}
TURNS = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}


def lines(path, *rows):
  path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
  return str(path)


def test_files_are_grouped_by_kind_and_counted(tmp_path, capsys):
  files = [lines(tmp_path / "a.jsonl", QA, QA), lines(tmp_path / "b.jsonl", PAIR),
           lines(tmp_path / "c.jsonl", TURNS), lines(tmp_path / "d.jsonl", QA)]
  assert [kind_of(file) for file in files] == ["qa", "preference", "trajectory", "qa"]
  assert main(files) == 0
  said = capsys.readouterr().out.splitlines()
  assert said[0] == "preference, 1 files: 1 rows, 1 kept, 0 malformed, 1 pairs, 0 ties"
  assert said[2:] == [
    "qa, 2 files: 3 rows, 3 kept, 0 malformed", "  3 questions of qa", "  3 of 2 hops",
    "trajectory, 1 files: 1 rows, 1 kept, 0 malformed", "  1 conversations as messages",
    "  1 assistant turns, 0 calls"]


def test_malformed_rows_are_listed_and_give_exit_code_1(tmp_path, capsys):
  file = lines(tmp_path / "a.jsonl", QA, "{", QA | {"answer": ""}, QA | {"question": 3})
  assert main([file, "--problems", "2"]) == 1
  said = capsys.readouterr().out
  assert "4 rows, 1 kept, 3 malformed" in said and f"  {file}:3: answer: empty\n" in said
  assert "question" not in said.splitlines()[-2] and said.endswith("  and 1 more malformed rows\n")


@pytest.mark.parametrize("arguments, message", [
  (["nowhere.jsonl"], "nowhere.jsonl: no such file"),
  (["other.jsonl"], "neither questions, preferences nor trajectories; name its --kind (fields: x)"),
  (["empty.jsonl"], "empty.jsonl: it holds no rows"), (["a.txt"], "ends in .jsonl"),
  (["broken.jsonl"], "none of its rows can be read: broken.jsonl:1: not JSON ('utf-8' codec"),
  (["other.jsonl", "--kind", "text"], "invalid choice: 'text'")])
def test_what_cannot_be_read_gives_one_line_and_exit_code_2(
    tmp_path, monkeypatch, capsys, arguments, message):
  monkeypatch.chdir(tmp_path)
  lines(tmp_path / "other.jsonl", {"x": 1})
  lines(tmp_path / "empty.jsonl")
  (tmp_path / "broken.jsonl").write_bytes('{"question": 1}'.encode("utf-16"))
  with pytest.raises(SystemExit) as left:
    main(arguments)
  assert left.value.code == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1


def test_every_public_file_in_one_command(shared, capsys):
  data = shared / "data"
  files = sorted(str(path) for folder in ("qa", "preference", "trajectories")
                 for path in (data / folder).rglob("*.*") if path.suffix != ".md")
  assert len(files) > 25 and main(files) == 1  # one row of gym_xlam_fc breaks its tool's schema
  said = capsys.readouterr().out
  assert said.count(" 0 malformed") == 2 and " 1 malformed" in said
  assert ".jsonl:4: response.output.0: list_titles: release_date_start must be integer" in said
