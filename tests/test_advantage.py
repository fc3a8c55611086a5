"""Group advantages: hand values, a loop oracle, invariances, and faults users reported."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from searchjax.objective.advantage import group_advantage, group_composition

group_advantage = jax.jit(group_advantage, static_argnames="divide_by_std")
group_composition = jax.jit(group_composition)



def advantage(*rows, valid=None, divide_by_std=True, eps=0.0):
  reward = np.asarray(rows, np.float32)
  valid = np.ones(reward.shape, bool) if valid is None else np.asarray(valid, bool)
  return np.asarray(group_advantage(reward, valid, divide_by_std=divide_by_std, eps=eps))


def oracle(reward, valid, divide_by_std, eps):
  """Float64, one rollout at a time, straight from the equation."""
  out = np.zeros(reward.shape)
  for q, row in enumerate(reward):
    kept = [float(r) for r, v in zip(row, valid[q]) if v]
    if len(kept) < 2 or max(kept) == min(kept):
      continue
    mean = sum(kept) / len(kept)
    std = (sum((r - mean) ** 2 for r in kept) / len(kept)) ** 0.5
    for g, r in enumerate(row):
      if valid[q, g]:
        out[q, g] = (float(r) - mean) / (std + eps if divide_by_std else 1.0)
  return out


def test_A1_invalid_rows_do_not_vote():
  valid = [[True, True, False, True]]
  np.testing.assert_allclose(advantage([1, 1, 0, 0], valid=valid, divide_by_std=False),
                             [[1 / 3, 1 / 3, 0, -2 / 3]], atol=1e-6)
  # The reported group: rewards 1 1 0 0, second row invalid; population std (SPEC) of 1 0 0.
  valid = [[True, False, True, True]]
  np.testing.assert_allclose(advantage([1, 1, 0, 0], valid=valid, divide_by_std=False),
                             [[2 / 3, 0, -1 / 3, -1 / 3]], atol=1e-6)
  got = advantage([1, 1, 0, 0], valid=valid)
  np.testing.assert_allclose(got, [[2 ** 0.5, 0, -0.5 ** 0.5, -0.5 ** 0.5]], atol=1e-6)
  assert abs(got[0, 0] - 1.0) > 0.3                     # what all four rows' mean 1/2 would give


def test_A2_group_of_one_has_no_baseline():
  assert advantage([0.7]).tolist() == [[0.0]]           # the common mistake returns 0.7
  assert advantage([0.7, 0.2, 0.9], valid=[[False, True, False]]).tolist() == [[0, 0, 0]]


def test_A3_equal_others_zero_variance():
  assert not advantage([0.95] * 7, eps=1e-6).any()      # a float32 mean of these is not 0.95
  assert not advantage([0.1] * 13, divide_by_std=False).any()
  odd_one_out = advantage([0.0] + [0.95] * 7, eps=1e-6)
  assert np.abs(odd_one_out).max() <= 7 ** 0.5 + 1e-5   # no advantage of 1e6 from rounding noise
  np.testing.assert_allclose(odd_one_out[0, 0], -7 ** 0.5, rtol=1e-5)


def test_A5_zero_variance_group_is_exactly_zero_and_flagged():
  reward = np.asarray([[0.3, 0.3, 0.3], [0.3, 0.3, 0.4]], np.float32)
  valid = np.ones((2, 3), bool)
  assert not np.asarray(group_advantage(reward, valid, divide_by_std=True, eps=0.0))[0].any()
  flags = group_composition(np.zeros((2, 3), np.float32), reward, valid)
  assert flags["equal"].tolist() == [True, False]


def test_A6_nan_rewards_leave_the_group():
  nan = np.nan
  assert advantage([1, nan, nan, nan]).tolist() == [[0, 0, 0, 0]]
  np.testing.assert_allclose(advantage([1, nan, 0, nan]), [[1, 0, -1, 0]], atol=1e-6)
  assert advantage([nan, 1, 0], valid=[[False, True, True]]).tolist()[0][0] == 0


def test_A8_population_std():
  np.testing.assert_allclose(advantage([1, 0, 0, 0]),
                             [[3 ** 0.5, -3 ** -0.5, -3 ** -0.5, -3 ** -0.5]], rtol=1e-5)
  assert abs(advantage([1, 0, 0, 0])[0, 0] - 1.5) > 0.2       # the sample std's value


def test_A11_timeouts_leave_the_mean():
  # Two timeouts recorded as 0 would lower the mean to 1/4 and flatter the wrong answer.
  got = advantage([1, 0, 0, 0], valid=[[True, True, False, False]], divide_by_std=False)
  assert got.tolist() == [[0.5, -0.5, 0, 0]]


def test_eps_is_added_to_the_std():
  np.testing.assert_allclose(advantage([1, 0], eps=0.05), [[0.5 / 0.55, -0.5 / 0.55]], rtol=1e-6)


@settings(max_examples=20, deadline=None)
@given(hnp.arrays(np.float32, (3, 5), elements=st.sampled_from([-1.0, -0.25, 0.0, 0.5, 1.0])),
       hnp.arrays(bool, (3, 5)), st.booleans(), st.permutations(range(5)))
def test_against_a_loop_any_order_any_shift(reward, valid, divide_by_std, order):
  call = lambda r, v: np.asarray(group_advantage(r, v, divide_by_std=divide_by_std, eps=0.05))
  got = call(reward, valid)
  np.testing.assert_allclose(got, oracle(reward, valid, divide_by_std, 0.05), atol=2e-6)
  np.testing.assert_allclose(call(reward[:, order], valid[:, order]), got[:, order], atol=2e-6)
  np.testing.assert_allclose(call(reward + np.float32(4), valid), got, atol=2e-6)
  broken = np.where(valid, reward, np.float32(np.nan))
  np.testing.assert_array_equal(call(broken, valid), got)


def test_gradient_is_finite_beside_equal_groups_and_nan():
  reward = jnp.asarray([[1.0, 1.0, 1.0], [jnp.nan, 1.0, 0.0], [jnp.nan, jnp.nan, 1.0]])
  valid = np.isfinite(np.asarray(reward))
  total = lambda r: jnp.sum(group_advantage(r, valid, divide_by_std=True, eps=0.05)[:, 1])
  gradient = np.asarray(jax.jit(jax.grad(total))(reward))
  assert np.all(np.isfinite(gradient))
  assert not gradient[0].any() and not gradient[2].any() and gradient[1, 0] == 0
  # By hand, row 1: A = d / (2 (d/2 + eps)) with d = r1 - r0, dA/d(r1) = eps / (2 (d/2 + eps)^2).
  np.testing.assert_allclose(gradient[1, 1], 0.05 / 2 / 0.55 ** 2, rtol=1e-4)


def test_composition():
  base = np.asarray([[0, 0, 0], [1, 1, 1], [1, 0, 0], [1, 0, 1], [1, 0, 0], [0, 0, 1]], np.float32)
  reward = np.asarray([[0, -1, 0], [1, 2, 3], [.5, .1, .2], [.5, .4, .3], [.5, np.nan, .2],
                       [9, 9, 1]], np.float32)
  valid = np.ones((6, 3), bool)
  valid[5, :2] = False
  flags = {k: v.tolist() for k, v in group_composition(base, reward, valid).items()}
  assert flags["all_wrong"] == [True, False, False, False, False, False]
  assert flags["all_right"] == [False, True, False, False, False, True]
  assert flags["mixed"] == [False, False, True, True, True, False]
  assert flags["inverted"] == [False, False, False, True, False, False]
  assert flags["singleton"] == [False, False, False, False, False, True]
  nobody = group_composition(base, reward, np.zeros((6, 3), bool))
  assert not any(nobody[k].any() for k in ("all_wrong", "all_right", "mixed", "inverted", "equal"))
