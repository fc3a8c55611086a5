"""Recorded rollouts, verified: good ones pass, and each way of being wrong is named with its place."""

import copy
import json

import good_rollouts
import pytest

from searchjax import check
from searchjax.dist import run_log

NAMES = list(good_rollouts.SCRIPTS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("run")
  good_rollouts.write_run(workdir)
  return workdir


@pytest.fixture(scope="module")
def records(run):
  return good_rollouts.read(next(run.glob("rollouts/*.jsonl")))


def checked(tmp_path, records):
  run_log.write_json(tmp_path / "config.json", good_rollouts.CONFIG)
  path = tmp_path / "rollouts/step_000012.jsonl"
  run_log.write_jsonl(path, records)
  return check.check_files([path])


def sampled(record):
  """Where the first turn begins and ends."""
  begin = record["mask"].index(1)
  return begin, begin + record["mask"][begin:].index(0)


def _set(record, name, at, value):
  record[name][at] = value


def _plain(record):
  """A token that means nothing."""
  return record["tokens"][record["prompt_length"] - 1]


# By kind: the rollout that is changed, and one change of one field.
CHANGES = {
  "fields": ("answers", lambda r: r.pop("forced")),
  "length": ("answers", lambda r: r["mask"].pop()),
  "token": ("answers", lambda r: _set(r, "tokens", -2, 10**6)),
  "mask": ("answers", lambda r: _set(r, "mask", 0, 1)),
  "logp": ("answers", lambda r: _set(r, "logp", sampled(r)[0], 0.25)),
  "prompt": ("answers", lambda r: _set(r, "tokens", 2, r["tokens"][3])),
  "border": ("answers", lambda r: _set(r, "tokens", sampled(r)[1], r["tokens"][2])),
  "control": ("answers", lambda r: _set(r, "tokens", sampled(r)[1] + 1, r["tokens"][0])),
  "prefix": ("answers", lambda r: _set(r, "tokens", sampled(r)[1] + 1, r["tokens"][2])),
  "turn_end": ("answers", lambda r: _set(r, "tokens", sampled(r)[1] - 1, r["tokens"][2])),
  "turn_budget": ("answers", lambda r: _set(r, "limits", "turn_tokens", 3)),
  "token_budget": ("answers", lambda r: _set(r, "limits", "tokens", len(r["tokens"]) - 1)),
  "text": ("answers", lambda r: _set(r["turns"], -1, "text", "It is Bar.")),
  "responses": ("answers", lambda r: r["turns"].pop(2)),
  "call_budget": ("answers", lambda r: _set(r, "limits", "calls", 1)),
  "malformed": ("malformed", lambda r: _set(r["turns"], 2, "text", "It is Foo.")),
  "forced": ("answers", lambda r: r.update(forced=True)),
  "stop": ("answers", lambda r: r.update(stop="turn_length")),
  "answer": ("answers", lambda r: r.update(final_answer="It is Bar.")),
  "counts": ("answers", lambda r: r.update(tool_calls=1)),
  "routing": ("answers", lambda r: _set(r, "routing", "rows", len(r["tokens"]))),
  "invalid": ("search fails", lambda r: r.update(advantage=-0.5)),
  "version": ("answers", lambda r: r.update(policy_version=11)),
  "group": ("answers", lambda r: r.update(rollout=9)),
  "reward": ("answers", lambda r: _set(r, "reward", "total", r["reward"]["total"] + 0.5)),
  "advantage": ("answers", lambda r: r.update(advantage=r["advantage"] + 0.5)),
}


def test_good_rollouts_are_clean_and_say_so_in_one_line(run, capsys):
  """One of each way a rollout can end, written as training writes them."""
  assert check.main([str(run)]) == 0
  said = capsys.readouterr().out
  assert said == "check: 1 files, 18 rollouts in 2 groups: no violation\n"
  file = next(run.glob("rollouts/*.jsonl"))
  assert check.main([str(file), "--tokenizer", ""]) == 0


def test_every_kind_has_its_change():
  assert {*CHANGES, "samples"} == set(check.KINDS)


@pytest.mark.parametrize("kind", CHANGES)
def test_T2_T5_T6_B3_Y3_one_changed_field_is_named_with_its_place(records, tmp_path, kind):
  name, change = CHANGES[kind]
  line = len(NAMES) + NAMES.index(name)
  changed = copy.deepcopy(records)
  change(changed[line])
  report = checked(tmp_path, changed)
  assert report.exit_code == 1 and kind in report.counts
  # What a change breaks is at its own rollout; a group's fault is at its first.
  assert f"line {line + 1}, " in report.first[kind] or kind in ("group", "advantage"), report.first


def test_the_place_is_the_token(records, tmp_path):
  record = copy.deepcopy(records)
  end = sampled(record[0])[1]
  record[0]["tokens"][end] = record[0]["tokens"][2]
  place, _, said = checked(tmp_path, record).first["border"].rpartition(": expected ")
  assert place.endswith(f"step_000012.jsonl, line 1, question q0, rollout 0, token {end}")
  assert said.startswith("'\\n<|im_start|>user")


def test_a_response_within_the_budget_and_a_served_one_above_it_are_both_wrong(records, tmp_path):
  """FAULTS B3, P5: the border is exact."""
  refused = copy.deepcopy(records[NAMES.index("refused")])
  said = lambda: checked(tmp_path, [refused]).first["call_budget"]
  refused["limits"]["calls"] = 3
  assert "call 3 of 3 allowed was refused" in said()
  refused["limits"]["calls"] = 1
  assert "call 2 of 1 allowed: expected the refusal, got 'It is Foo.'" in said()


@pytest.mark.parametrize("change", [
  dict(valid=True), dict(invalid_reason=""), dict(reward={"base": 0.0, "total": 0.0}),
])
def test_an_infrastructure_failure_is_never_a_zero_reward(records, tmp_path, change):
  changed = copy.deepcopy(records)
  changed[NAMES.index("search fails")] |= change
  assert "invalid" in checked(tmp_path, changed).counts


@pytest.mark.parametrize("change", [
  dict(most=good_rollouts.EXPERTS), dict(least=-1), dict(repeated=1), dict(rows=1),
  dict(bits=8),
])
def test_R1_experts_outside_the_model_are_named(records, tmp_path, change):
  changed = copy.deepcopy(records)
  changed[0]["routing"] |= change
  assert set(checked(tmp_path, changed).counts) == {"routing"}


def test_C6_equal_rollouts_are_a_warning_where_chance_does_not_explain_them(records, tmp_path):
  group = [copy.deepcopy(records[0]) | {"rollout": g} for g in range(9)]
  report = checked(tmp_path, group)
  assert report.counts["samples"] == 1
  for record in group:  # A policy that is sure says the same every time.
    record["logp"] = [0.1 * p / sum(record["mask"]) for p in record["logp"]]
  assert "samples" not in checked(tmp_path, group).counts


def test_a_missing_file_and_a_broken_line_are_bad_input(run, records, tmp_path, capsys):
  with pytest.raises(SystemExit) as missing:
    check.main([str(tmp_path / "nowhere")])
  assert missing.value.code == 2 and "expected a rollout file" in capsys.readouterr().err
  file = tmp_path / "rollouts/step_000012.jsonl"
  checked(tmp_path, records)
  file.write_text(file.read_text() + '{"step": 12, "tok\n[1]\n')
  assert check.main([str(tmp_path)]) == 2
  said = capsys.readouterr().out
  assert "broken: " in said and "line 19: " in said and "1 broken lines" in said
  assert "violation fields × 1" in said  # The list is JSON, but no record.
  (tmp_path / "config.json").write_text(json.dumps({"seed": 0}))
  with pytest.raises(SystemExit) as other:
    check.main([str(tmp_path)])
  assert other.value.code == 2 and "is not the config of a GRPO run" in capsys.readouterr().err
  (tmp_path / "config.json").unlink()
  with pytest.raises(SystemExit):
    check.main([str(tmp_path)])
  assert "--tokenizer" in capsys.readouterr().err
