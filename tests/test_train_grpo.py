"""What a training step says of its rollouts: each outcome counted, failures of the world voting nowhere."""

import types

import good_rollouts
import jax
import numpy as np
import pytest

from searchjax.dist.metrics import METRICS, alarms
from searchjax.objective.advantage import group_advantage
from searchjax.reward.total import total_reward
from searchjax.rollout.agent import load_chat
from searchjax.train_grpo import draw_references, step_metrics

FAILED = ("search fails", "engine fails")


def scored(groups):
  keys = jax.random.split(jax.random.key(0), len(groups))
  references = [group[:1] for group in groups]
  return total_reward(
    groups, references, good_rollouts.Scorer(), keys, good_rollouts.CONFIG["reward"]
  )


@pytest.fixture(scope="module")
def groups():
  return good_rollouts.groups(load_chat(""))


@pytest.fixture(scope="module")
def metrics(groups):
  return step_metrics(groups, scored(groups))


def test_every_outcome_of_a_rollout_is_counted(metrics):
  """Of 9 rollouts a group, 14 calls and 10 searches."""
  assert metrics["invalid_share"] == pytest.approx(2 / 9)
  assert metrics["forced_share"] == pytest.approx(3 / 9)
  assert metrics["over_budget_share"] == pytest.approx(3 / 14)
  assert metrics["malformed_call_share"] == pytest.approx(1 / 14)
  assert metrics["failed_search_share"] == pytest.approx(1 / 10)
  assert set(metrics) <= set(METRICS)


def test_B4_cut_answers_are_counted_and_raise_an_alarm(metrics):
  assert metrics["truncated_share"] == pytest.approx(1 / 9)
  assert not alarms({"truncated_share": metrics["truncated_share"]})
  assert "truncated_share" in alarms({"truncated_share": 0.6})[0]


def test_J7_right_answers_without_a_search_are_counted(metrics):
  """One of the seven that count; a chat needs no search."""
  assert metrics["answer_without_search"] == pytest.approx(1 / 7)


def test_A1_A11_failures_of_the_world_move_no_mean_and_no_advantage(groups, metrics):
  kept = [
    [e for e, name in zip(group, good_rollouts.SCRIPTS, strict=True) if name not in FAILED]
    for group in groups
  ]
  alone = step_metrics(kept, scored(kept))
  counted = ("invalid_share", "forced_share", "over_budget_share", "malformed_call_share",
             "truncated_share", "failed_search_share")
  for name in alone.keys() - set(counted):
    assert metrics[name] == pytest.approx(alone[name], abs=1e-6), name
  parts, fewer = scored(groups), scored(kept)
  advantage = lambda p: np.asarray(
    group_advantage(p["reward"], p["valid"], divide_by_std=True, eps=0.05)
  )
  np.testing.assert_allclose(advantage(parts)[:, : len(kept[0])], advantage(fewer), atol=1e-6)
  assert np.all(advantage(parts)[:, len(kept[0]) :] == 0)


def test_a_reference_that_failed_is_drawn_again_with_another_key_and_the_others_stay():
  class Agent:
    def __init__(self, *draws):
      self.draws, self.asked = list(draws), []

    def collect(self, questions, params, *, group_size, purpose, step, seed):
      self.asked.append((questions, group_size, purpose, step))
      return [[types.SimpleNamespace(name=n, valid=n.isupper()) for n in group]
              for group in self.draws.pop(0)]

  names = lambda groups: ["".join(e.name for e in group) for group in groups]
  agent = Agent(["AB", "Cd", "eF"], ["XY", "zW"], ["VU"])
  assert names(draw_references(agent, ["p", "q", "r"], None, 2, seed=5)) == ["AB", "CY", "VF"]
  assert agent.asked == [(["p", "q", "r"], 2, "reference", 0), (["q", "r"], 2, "reference", 1),
                         (["r"], 2, "reference", 2)]
  agent = Agent(["ab"], ["cd"], ["ef"], ["GH"])
  assert names(draw_references(agent, ["p"], None, 2, seed=5)) == ["ef"]  # Enough is enough.
