"""From episodes to rewards: the gate, the pairing of references, invalid rollouts, ablations."""

import types

import jax
import numpy as np
import pytest

from searchjax.objective.advantage import group_advantage
from searchjax.reward import total
from searchjax.reward.preference import PreferenceScorer
from searchjax.reward.total import base_reward, pair_references, total_reward

CONFIG = dict(
  aggregation="gated", tool_penalty="anchored", length_penalty="anchored", alpha_win=0.5,
  alpha_lose=1.0, beta_lose=0.3, lambda_tool=0.2, lambda_len=0.1, per_call=0.1, per_token=0.01,
)
QUESTION = types.SimpleNamespace(id="q", text="Name the city of airport ABC.", answer="Foo", aliases=())
KEYS = jax.random.split(jax.random.key(0), 1)


def episode(answer="Foo", calls=1, failures=0, length=10, valid=True):
  return types.SimpleNamespace(
    question=QUESTION, final_answer=answer, tool_calls=calls, tool_failures=failures,
    final_length=length, valid=valid, invalid_reason="" if valid else "search: timed out",
  )


class Scorer(PreferenceScorer):
  """Prefers every answer with 0.8, except those it has no score for; remembers what it is asked."""

  def __init__(self, unscored=()):
    self.asked, self.unscored = [], unscored

  def score(self, pairs):
    self.asked += pairs
    return np.array([np.nan if p[1] in self.unscored else 0.8 for p in pairs], np.float32)


def score(group, references=None, scorer=None, **changes):
  references = references or [episode(length=10)]
  return total_reward([group], [references], scorer or Scorer(), KEYS, CONFIG | changes)


def test_preference_earns_nothing_without_correctness():
  parts = score([episode(), episode("Bar")], length_penalty="off", tool_penalty="off")
  np.testing.assert_allclose(parts["reward"], [[0.8, 0.0]], atol=1e-6)
  linear = score([episode(), episode("Bar")], length_penalty="off", tool_penalty="off",
                 aggregation="linear")
  np.testing.assert_allclose(linear["reward"], [[1.8, 0.8]], atol=1e-6)


def test_worked_group():
  # Winners made 1 and 3 calls: the anchor is 1, 2 (min 1, ceil of mean 2). The loser made 5.
  parts = score([episode(calls=1), episode(calls=3, length=15), episode("Bar", calls=5, length=5)])
  anchors = []
  for b in (1, 2):
    p = [1 - np.exp(-max(0, c - b)) for c in (1, 3, 5)]
    anchors.append([0.5 * p[0], 0.5 * p[1], 1.0 * p[2] + 0.3])
  assert any(np.allclose(parts["tool_penalty"][0], want, atol=1e-6) for want in anchors)
  # Reference 10 tokens: the second is above the cap, the loser at half the length pays 1 - exp(-1).
  np.testing.assert_allclose(parts["length_penalty"], [[0.0, 1.0, 1 - np.exp(-1.0)]], atol=1e-6)
  want = np.array([0.8, 0.8, 0.0]) - 0.2 * parts["tool_penalty"][0] - 0.1 * parts["length_penalty"][0]
  np.testing.assert_allclose(parts["reward"][0], want, atol=1e-6)


def test_A11_an_invalid_rollout_is_no_zero_reward_and_moves_nobody():
  group = [episode(calls=1), episode(calls=3)]
  with_it = score([*group, episode("", calls=9, failures=9, valid=False)])
  without = score(group)
  np.testing.assert_allclose(with_it["reward"][:, :2], without["reward"], atol=1e-6)
  assert with_it["valid"].tolist() == [[True, True, False]]
  assert np.isnan(with_it["reward"][0, 2]) and np.isnan(with_it["preference"][0, 2])
  assert with_it["invalid_reason"].tolist() == [["", "", "search: timed out"]]


def test_J1_J6_a_member_without_a_score_or_verdict_leaves_the_rest_as_it_was(monkeypatch):
  """Neither waits for it nor is moved by it; its own reward is missing, not 0."""
  group, late = [episode(calls=1), episode("Bar", calls=3)], episode("Late", calls=9, length=99)
  without = score(group)
  unscored = score([*group, late], scorer=Scorer(unscored=["Late"]))
  verdict = total.base_reward
  monkeypatch.setattr(
    total, "base_reward", lambda q, answer: np.nan if answer == "Late" else verdict(q, answer)
  )
  unjudged = score([*group, late], scorer=(asked := Scorer()))
  assert len(asked.asked) == 2  # Nothing is scored that cannot count.
  for parts, reason in ((unscored, "no preference score"), (unjudged, "no verdict")):
    for name in ("reward", "tool_penalty", "length_penalty"):
      np.testing.assert_array_equal(parts[name][:, :2], without[name])
    assert np.isnan(parts["reward"][0, 2]) and parts["valid"].tolist() == [[True, True, False]]
    assert parts["invalid_reason"][0, 2] == reason
    advantage = [
      np.asarray(group_advantage(p["reward"], p["valid"], divide_by_std=True, eps=0.05))
      for p in (parts, without)
    ]
    np.testing.assert_allclose(advantage[0][:, :2], advantage[1], atol=1e-6)
    assert advantage[0][0, 2] == 0


def test_a_run_stops_above_the_limit_and_says_why():
  reasons = ["search: timed out"] * 3 + ["engine: HTTP 503"] * 2 + [""] * 5
  total.require_valid(reasons, 0.5, "step 3")
  with pytest.raises(ValueError) as stopped:
    total.require_valid(reasons, 0.4, "step 3")
  assert str(stopped.value).startswith(
    "step 3: 5 of 10 rollouts are invalid (3 × search: timed out, 2 × engine: HTTP 503), above the "
    "limit of 40%"
  )


def test_references_are_paired_cyclically_and_invalid_ones_left_out():
  a, b, bad = episode(length=3), episode(length=4), episode(valid=False)
  assert pair_references([[a, bad, b]], 5) == [[a, b, a, b, a]]
  assert pair_references([[bad]], 2) == [[None, None]]
  parts = score([episode(), episode("Bar")], references=[bad])
  assert not parts["valid"].any() and np.all(np.isnan(parts["reward"]))
  assert set(parts["invalid_reason"].ravel()) == {"no valid reference"}


def test_failed_searches_are_not_charged():
  calm, failed = score([episode(calls=1)]), score([episode(calls=3, failures=2)])
  np.testing.assert_allclose(calm["tool_penalty"], failed["tool_penalty"])


def test_unconditional_penalties_charge_everybody():
  parts = score([episode(calls=2, length=7), episode("Bar", calls=4, length=9)],
                tool_penalty="unconditional", length_penalty="unconditional")
  np.testing.assert_allclose(parts["tool_penalty"], [[0.2, 0.4]], atol=1e-6)
  np.testing.assert_allclose(parts["length_penalty"], [[0.07, 0.09]], atol=1e-6)


@pytest.mark.parametrize("change, message", [
  (dict(aggregation="sum"), 'reward.aggregation must be "gated" or "linear", got "sum"'),
  (dict(tool_penalty="on"), 'reward.tool_penalty must be "anchored", "unconditional" or "off"'),
  (dict(length_penalty="on"), 'reward.length_penalty must be "anchored", "unconditional" or "off"'),
])
def test_unknown_modes_are_named(change, message):
  with pytest.raises(ValueError, match=message):
    score([episode()], **change)


def test_J5_an_empty_answer_is_wrong_whatever_its_form():
  assert not base_reward(QUESTION, "")
  assert base_reward(QUESTION, "ABC serves the city of Foo.")
  chat = types.SimpleNamespace(rubrics=(), text="", id="c")
  assert not base_reward(chat, "") and base_reward(chat, "anything")


def test_every_statement_of_the_atlas_is_accepted_and_another_name_is_not():
  from searchjax.data.pairs import FILLER
  from searchjax.data.questions import forward_questions
  from searchjax.search.atlas import load_atlas
  atlas = load_atlas()
  questions = [q for hops in (1, 2, 3)
               for q in forward_questions(atlas, "heldout", hops=hops, count=40, seed=5)]
  for q, other in zip(questions, questions[7:] + questions[:7], strict=True):
    forms = [q.statement, q.answer, *(f.format(answer=q.statement, bare=q.answer) for f in FILLER)]
    assert all(base_reward(q, form) for form in forms), q
    if other.answer not in q.answer and q.answer not in other.answer:
      assert not base_reward(q, q.statement.replace(q.answer, other.answer)), (q, other.answer)
