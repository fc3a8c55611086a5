"""The checks of one record: told from tokens, in both markups, whatever a record holds."""

import copy
import json

import good_rollouts
import numpy as np
import pytest

from searchjax.rollout import audit
from searchjax.rollout.agent import load_chat

ODD = (None, True, -1, 2.5, 10**12, "x", [], [None], ["x"], {}, {"role": 3})


@pytest.fixture(scope="module")
def chat():
  return load_chat("")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
  return good_rollouts.read(good_rollouts.write_run(tmp_path_factory.mktemp("run")))


def kinds(record, chat):
  return {violation.kind for violation in audit.check_record(record, chat, None)}


def test_good_records_have_nothing_wrong(records, chat):
  assert [kinds(record, chat) for record in records] == [set()] * len(records)


@pytest.mark.parametrize("name", [*audit.FIELDS, "routing"])
def test_nothing_that_json_can_hold_breaks_the_check(records, chat, name):
  for record in records[: len(good_rollouts.SCRIPTS)]:
    for value in ODD:
      if value != record[name]:
        changed = json.loads(json.dumps(record | {name: value}))
        free = name in ("step", "question_id", "rollout", "policy_version", "advantage", "reward",
                        "invalid_reason")
        assert kinds(changed, chat) or free or value is None, (name, value)


def test_turns_and_parts_of_any_kind_are_violations_too(records, chat):
  for place in range(len(records[0]["turns"])):
    for value in ODD:
      changed = copy.deepcopy(records[0])
      changed["turns"][place] = value
      assert kinds(changed, chat)
      for name in ("role", "text"):
        changed["turns"][place] = records[0]["turns"][place] | {name: value}
        assert kinds(changed, chat)


def test_T1_another_spelling_of_a_sampled_turn_is_no_violation_of_the_prefix(records, chat):
  """Sampled ids stand as they are, also where the format would have cut the text otherwise."""
  changed = copy.deepcopy(records[0])
  begin = changed["mask"].index(1)
  text = "ABC city"
  letters = [token for letter in text for token in chat.encode_text(letter)]
  tokens = changed["tokens"]
  at = next(i for i in range(begin, len(tokens))
            if tokens[i : i + len(chat.encode_text(text))] == chat.encode_text(text))
  cut = len(chat.encode_text(text))
  for name, new in (("tokens", letters), ("mask", [1] * len(letters)), ("logp", [-0.5] * len(letters))):
    changed[name][at : at + cut] = new
  changed["routing"] = None
  assert len(letters) != cut and kinds(changed, chat) == set()


def test_R1_the_summary_of_recorded_experts():
  pieces = [np.array([[[3, 255], [0, 256]]], np.int32),
            np.array([[[511, 3], [7, 7]], [[1, 2], [2, 1]]], np.int32)]
  assert audit.routing_summary(pieces, 512) == {
    "rows": 3, "bits": 32, "experts": 512, "least": 0, "most": 511, "repeated": 1
  }
  assert audit.routing_summary([], 512) is None
