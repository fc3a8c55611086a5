"""Routing, replay of recorded experts, dispatches and the balance loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.model import moe

T, D, E, X = 7, 5, 11, 3


def routed(seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(D, E)).astype(np.float32), rng.normal(size=(T, D)).astype(np.float32)


def test_R4_replayed_experts_are_weighted_by_live_logits():
  """FAULTS R4: an expert outside the live top-X keeps its weight, and the router its gradient."""
  router, x = routed()
  logits = x.astype(np.float64) @ router
  replay = np.argsort(logits, axis=-1)[:, :X].astype(np.int32)  # the three least likely
  replay[2] = -1
  w, experts = moe.route(jnp.asarray(router), jnp.asarray(x), X, jnp.asarray(replay))
  live_w, live = moe.route(jnp.asarray(router), jnp.asarray(x), X)
  np.testing.assert_array_equal(experts[2], live[2])
  np.testing.assert_array_equal(w[2], live_w[2])
  for t in set(range(T)) - {2}:
    np.testing.assert_array_equal(experts[t], replay[t])
    e = np.exp(logits[t, replay[t]])
    np.testing.assert_allclose(w[t], e / e.sum(), rtol=1e-5)
    # The mistake: weights gathered from live top-X probabilities, zero elsewhere.
    assert not set(replay[t]) & set(np.asarray(live[t])) and np.asarray(w[t]).min() > 0
  value = lambda r: moe.route(r, jnp.asarray(x), X, jnp.asarray(replay))[0][0, 0]
  gradient = np.asarray(jax.grad(value)(jnp.asarray(router)))
  assert np.all(np.abs(gradient[:, replay[0]]).max(0) > 1e-3)
  assert np.all(gradient[:, np.setdiff1d(np.arange(E), replay[0])] == 0)


def test_R4_replay_of_the_live_choice_changes_nothing():
  router, x = (jnp.asarray(a) for a in routed(1))
  w, experts = moe.route(router, x, X)
  again, same = moe.route(router, x, X, experts)
  np.testing.assert_array_equal(experts, same)
  np.testing.assert_array_equal(w, again)


@pytest.mark.parametrize("expert", [0, 255, 256, 300, 511])
def test_R1_expert_ids_are_wide_enough(expert):
  """FAULTS R1: in uint8, expert 300 becomes 44."""
  router = jnp.zeros((2, 512)).at[:, expert].set(1.0)
  _, experts = moe.route(router, jnp.ones((1, 2)), 10)
  assert experts.dtype == jnp.int32 and experts[0, 0] == expert
  _, replayed = moe.route(router, jnp.ones((1, 2)), 10, experts)
  np.testing.assert_array_equal(replayed, experts)
