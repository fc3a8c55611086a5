"""The gate, and the sum it replaces."""

import jax
import jax.numpy as jnp
import numpy as np

from searchjax.objective.advantage import group_advantage
from searchjax.reward.combine import combined_penalty, gated_reward, linear_reward

group_advantage = jax.jit(group_advantage, static_argnames="divide_by_std")
row = lambda *values: np.asarray([values], np.float32)
BASE, S, PENALTY = row(1, 1, 0, 0), row(0.25, 1, 1, 0), row(0, 0.1, 0.2, 0)


def test_by_hand():
  np.testing.assert_allclose(gated_reward(BASE, S, PENALTY), [[0.25, 0.9, -0.2, 0]], rtol=1e-6)
  np.testing.assert_allclose(linear_reward(BASE, S, PENALTY), [[1.25, 1.9, 0.8, 0]], rtol=1e-6)
  weighted = linear_reward(BASE, S, PENALTY, (0.5, 2.0))
  np.testing.assert_allclose(weighted, [[1, 2.4, 1.8, 0]], rtol=1e-6)
  np.testing.assert_allclose(combined_penalty(row(1, 0.5), row(0.2, 0), 0.3, 0.2), [[0.34, 0.15]],
                             rtol=1e-6)
  assert not combined_penalty(row(1, 0.5), row(0.2, 0), 0, 0).any()


def test_the_gate_pays_nothing_for_a_pleasant_wrong_answer():
  wrong_but_liked, right_but_plain = 2, 0
  assert gated_reward(BASE, S, 0 * S)[0, wrong_but_liked] == 0
  summed = linear_reward(BASE, S, 0 * S, (0.5, 1.0))[0]
  assert summed[wrong_but_liked] > summed[right_but_plain]       # what the ablation shows


def test_J5_an_empty_liked_answer_never_beats_a_right_one():
  base, s = row(0, 1), row(1, 0.01)
  reward = gated_reward(base, s, 0 * s)[0]
  assert reward[0] <= reward[1]


def test_gradients():
  total = lambda base, s, penalty: jnp.sum(gated_reward(base, s, penalty))
  d_base, d_s, d_penalty = jax.grad(total, argnums=(0, 1, 2))(*map(jnp.asarray, (BASE, S, PENALTY)))
  np.testing.assert_array_equal(d_base, S)
  np.testing.assert_array_equal(d_s, BASE)
  assert (d_penalty == -1).all()


def test_A6_a_missing_score_is_an_invalid_rollout_not_a_zero():
  reward = gated_reward(BASE, row(0.25, np.nan, 1, 0), 0 * S)
  got = group_advantage(reward, np.ones((1, 4), bool), divide_by_std=False, eps=0.0)
  np.testing.assert_allclose(got, [[1 / 6, 0, -1 / 12, -1 / 12]], atol=1e-6)
