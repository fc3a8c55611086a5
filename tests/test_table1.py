"""Table 1: two sets of one size, through the publishers' layouts, held-out names left out; the table."""

import json
import pathlib

import pytest

from searchjax import table1
from searchjax.data.inspect import inspect
from searchjax.data.question_file import read_questions
from searchjax.dist.run_log import write_json, write_jsonl
from searchjax.search.atlas import fold
from small_web import names, small_atlas


@pytest.fixture(autouse=True)
def small(monkeypatch):
  monkeypatch.setattr(table1, "load_atlas", lambda **_: small_atlas())


@pytest.fixture
def synthetic(tmp_path):
  """23 questions, one of them in another format, and one that names a held-out entity."""
  held = sorted(names(small_atlas(), "heldout") - names(small_atlas(), "rl"), key=len)[-1]
  row = lambda i, text, form="": {
    "id": f"s{i}", "text": text, "answer": f"Answer {i}", "hops": 2 + i % 3, "format": form}
  rows = [row(i, f"Name the {chr(97 + i) * 5} of the thing {chr(97 + i) * 7}.") for i in range(21)]
  rows += [row(21, f"{rows[0]['text']} Show a list with that in it now.", "list"),
           row(22, f"What is the money of {held}?")]
  write_jsonl(tmp_path / "synthetic.jsonl", rows)
  return str(tmp_path / "synthetic.jsonl")


def make(workdir, synthetic, *more):
  config = pathlib.Path(__file__).resolve().parents[1] / "configs/grpo_tiny.py"
  return table1.main(["questions", "--workdir", str(workdir), "--config", str(config), *more,
                      "--synthetic", synthetic])


def test_the_baseline_is_read_from_five_public_layouts(tmp_path):
  paths = table1.write_public(small_atlas(), tmp_path, count=40, seed=0)
  account, lines = inspect("qa", paths)
  assert account.summary() == "40 rows, 40 kept, 0 malformed"
  assert lines[:5] == [
    f"8 questions of {name}" for name in ("bamboogle", "deepdive", "sealqa", "webshaper", "webwalkerqa")]


def test_both_sets_are_of_one_size_and_name_nothing_held_out(tmp_path, synthetic, capsys):
  assert make(tmp_path / "t", synthetic, "--size", "30") == 0
  said = capsys.readouterr().out.splitlines()
  record = json.loads((tmp_path / "t/arms.json").read_text())["arms"]
  held = names(small_atlas(), "heldout")
  for arm in table1.ARMS:
    questions = read_questions(tmp_path / f"t/{arm}.jsonl", "rl")
    assert len(questions) == record[arm]["n"] == 21  # of 30: there are no more synthetic ones
    assert {q.split for q in questions} == {"rl"} and {q.world for q in questions} == {None}
    assert not {fold(q.answer) for q in questions} & held
    assert 0 < record[arm]["with a format"] < 21
  assert said[2].startswith("synthetic: 21 questions (questions 21), hops 2 7, 3 7, 4 7, ")
  assert "1 dropped: asked in another format" in said[3]
  assert "1 dropped: names a held-out entity" in said[3]


def test_what_the_run_has_no_room_for_is_counted_and_both_sets_stay_of_one_size(
    tmp_path, synthetic, capsys):
  rows = [json.loads(line) for line in pathlib.Path(synthetic).read_text().splitlines()[:21]]
  for row in rows[:5]:
    row["text"] += " It is said to be far away, in the mountains."
  write_jsonl(pathlib.Path(synthetic), rows)
  make(tmp_path / "t", synthetic, "--size", "30", "--plain", "1", "--config.scorer.length=88")
  record = json.loads((tmp_path / "t/arms.json").read_text())["arms"]
  assert record["baseline"]["n"] == record["synthetic"]["n"] == 16
  assert "5 dropped: too long for the run" in capsys.readouterr().out


def test_the_same_command_reads_nothing_anew_and_another_is_refused(
    tmp_path, synthetic, capsys, monkeypatch):
  make(tmp_path / "t", synthetic, "--size", "7")
  first = capsys.readouterr().out
  monkeypatch.setattr(table1, "load_atlas", None)
  make(tmp_path / "t", synthetic, "--size", "7")
  assert capsys.readouterr().out == first
  with pytest.raises(SystemExit) as left:
    make(tmp_path / "t", synthetic, "--size", "8")
  assert left.value.code == 2 and "compares other questions (size)" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, told", [
  (["--size", "0"], "--size must be at least 1"),
  (["--baseline", "none.jsonl"], "none.jsonl: no such file"),
  (["--baseline", "empty.jsonl"], "baseline: no question to train on in empty.jsonl: 1 rows, 0 kept"),
  (["--plain", "2"], "got 2.0"),
  (["--config.scorer.long=3"], 'unknown config key "scorer.long"'),
  (["--sizes", "3"], 'unknown argument "--sizes"'),
])
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path, synthetic, capsys, monkeypatch, arguments, told):
  monkeypatch.chdir(tmp_path)
  write_jsonl(tmp_path / "empty.jsonl", [{"question": "Who?", "answer": "He"}])
  with pytest.raises(SystemExit) as left:
    make(tmp_path / "t", synthetic, *arguments)
  error = capsys.readouterr().err
  assert left.value.code == 2 and told in error and error.count("\n") == 1
  assert not (tmp_path / "t/arms.json").exists()


@pytest.fixture
def evaluated(tmp_path):
  """Both arms' evaluations of three questions: the synthetic arm is right once more, a call dearer."""
  def row(accuracy, calls):
    return {"accuracy": accuracy, "accuracy_low": 0.1, "accuracy_high": 0.9, "calls": calls,
            "by_hop": {"2": {"accuracy": accuracy}}, "cents_per_query": 0.5, "n": 3}

  write_json(tmp_path / "arms.json", {"arms": {arm: {"n": 5} for arm in table1.ARMS}})
  for arm, right, calls in (("baseline", (1, 0, 0), 2), ("synthetic", (1, 1, 0), 3)):
    folder = tmp_path / arm / "eval"
    modes = lambda *of: {mode: row(*of) for mode in ("greedy", "sampled")}
    write_json(folder / "results.json", {
      "policies": {"sft": modes(0.25, 4.0), "rl": modes(sum(right) / 3, float(calls))}, "perfect_calls": 2.0,
      "inputs": {"sft": "a", "grpo": arm}})
    for mode in ("greedy", "sampled"):
      write_jsonl(folder / f"rollouts/rl_{mode}.jsonl", [
        {"question_id": str(i), "valid": True, "tool_calls": calls, "reward": {"base": float(r)}}
        for i, r in enumerate(right)])
  return tmp_path


def test_the_table(evaluated, capsys):
  assert table1.main(["table", "--workdir", str(evaluated)]) == 0
  said = capsys.readouterr().out
  lines = [line.split() for line in said.splitlines()]
  assert lines[0][:4] == ["RL", "questions", "decoding", "accuracy"]
  assert [line[:3] for line in lines[1:7:2]] == [
    ["none", "(SFT)", "greedy"], ["5", "baseline", "greedy"], ["5", "synthetic", "greedy"]]
  assert "0.667 [0.100, 0.900]" in said and "accuracy +0.333 [" in said and "calls +1.00 [" in said
  record = json.loads((evaluated / "results.json").read_text())
  assert record["difference"]["greedy"]["calls"] == [1.0, 1.0, 1.0]
  assert (evaluated / "table1.md").read_text().startswith("| RL questions | decoding | accuracy |")
  tex = (evaluated / "table1.tex").read_text()
  assert tex.count("&") == 7 * (tex.splitlines()[2].count("&")) and "5 synthetic & greedy &" in tex


def test_evaluations_that_differ_are_not_compared(evaluated, capsys):
  path = evaluated / "synthetic/eval/results.json"
  path.write_text(path.read_text().replace('"sft": "a"', '"sft": "b"'))
  with pytest.raises(SystemExit) as left:
    table1.main(["table", "--workdir", str(evaluated)])
  assert left.value.code == 2 and "evaluated with another sft" in capsys.readouterr().err
  path.unlink()
  with pytest.raises(SystemExit) as left:
    table1.main(["table", "--workdir", str(evaluated)])
  assert left.value.code == 2 and "eval/results.json is missing" in capsys.readouterr().err
