"""Rescoring a finished conversation: how it is cut into turns. (Bit equality: test_engine.)"""

import types

import pytest

from searchjax.rollout.rescore import Rescored

MASK = [False, False, True, True, False, True]
EPISODE = types.SimpleNamespace(
  key=None, prompt=[3, 4], tokens=[3, 4, 10, 11, 5, 12], mask=MASK, stop="answer"
)


def test_turns_and_what_stands_between_them_are_given_in_order():
  again = Rescored(EPISODE)
  assert again.forced_turn() == [10, 11] and again.turn_budget() == 2
  again.end_turn([10, 11], [-0.25, -0.5], True)
  assert not again.finished and again.waits_for() == []
  assert again.next_tokens() == [5]
  assert again.forced_turn() == [12]
  again.end_turn([12], [-1.5], True)
  assert again.finished
  assert again.logps == [0, 0, -0.25, -0.5, 0, -1.5]


def test_a_conversation_its_tool_response_overfilled_ends_one_round_later_as_it_did():
  again = Rescored(types.SimpleNamespace(**vars(EPISODE) | {"stop": "context"}))
  again.end_turn([10, 11], [0.0, 0.0], True)
  again.next_tokens()
  again.end_turn([12], [0.0], True)
  assert not again.finished
  assert again.next_tokens() == [] and again.finished


def test_an_engine_that_sampled_instead_is_an_error():
  with pytest.raises(RuntimeError, match="did not take the tokens"):
    Rescored(EPISODE).end_turn([10, 13], [0.0, 0.0], True)
