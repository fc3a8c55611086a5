"""The GRPO objective: hand values, a loop oracle with its gradient, and faults users reported."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.objective.policy import grpo_objective, grpo_objective_sum, token_weights, with_value

B, T = 5, 7


@pytest.fixture(scope="module")
def batch():
  rng = np.random.default_rng(0)
  infer = -rng.gamma(2.0, 0.5, (B, T)).astype(np.float32)
  train = infer + rng.normal(0, 0.4, (B, T)).astype(np.float32)
  mask = rng.random((B, T)) < 0.6
  mask[:, 2] = True
  return train, infer, mask, rng.normal(size=B).astype(np.float32), np.ones(B, bool)


value_and_grad = jax.jit(jax.value_and_grad(grpo_objective),
                         static_argnames=("strategy", "truncate_at"))


def objective(train, infer, mask, advantage, valid, **options):
  value, gradient = value_and_grad(jnp.asarray(train), infer, mask, advantage, valid, **options)
  return float(value), np.asarray(gradient)


def oracle(train, infer, mask, advantage, valid, strategy="token_is", truncate_at=None):
  """J and dJ/dlogp in float64, token by token, from the equation."""
  total, gradient, G = 0.0, np.zeros(mask.shape), max(int(valid.sum()), 1)
  for i in range(len(mask)):
    tokens = [t for t in range(mask.shape[1]) if mask[i, t]]
    if not valid[i] or not tokens:
      continue
    log_rho = {t: float(train[i, t]) - float(infer[i, t]) for t in tokens}
    shared = np.exp(sum(log_rho.values()) / len(tokens))
    for t in tokens:
      r = {"none": 1.0, "token_is": np.exp(log_rho[t]), "sequence_is": shared}[strategy]
      r = r if truncate_at is None else min(r, truncate_at)
      total += r * float(advantage[i]) / len(tokens) / G
      gradient[i, t] += r * float(advantage[i]) / len(tokens) / G
  return total, gradient


@pytest.mark.parametrize("options", [
    {}, {"strategy": "none"}, {"strategy": "sequence_is"}, {"truncate_at": 1.1}], ids=str)
def test_against_a_loop(batch, options):
  train, infer, mask, advantage, valid = batch
  valid = np.asarray([True, True, False, True, True])
  value, gradient = objective(train, infer, mask, advantage, valid, **options)
  expected, slope = oracle(train, infer, mask, advantage, valid, **options)
  np.testing.assert_allclose(value, expected, atol=1e-6)
  np.testing.assert_allclose(gradient, slope, atol=1e-6)


def test_L1_mean_per_row_then_over_rows():
  # Lengths 1 and 3, "losses" 1 and 0: .5, not the token mean .25.
  zeros = np.zeros((2, 3), np.float32)
  mask = np.asarray([[1, 0, 0], [1, 1, 1]], bool)
  value, _ = objective(zeros, zeros, mask, np.asarray([1, 0], np.float32), np.ones(2, bool))
  assert value == 0.5


def test_L2_an_invalid_row_leaves_the_denominator():
  zeros, mask = np.zeros((2, 4), np.float32), np.ones((2, 4), bool)
  one = np.ones(2, np.float32)
  value, _ = objective(zeros, zeros, mask, one, np.asarray([True, False]))
  assert value == 1.0                                     # still counted, it would be 0.5


def test_A1_invalid_rows_enter_nothing_even_as_nan(batch):
  train, infer, mask, advantage, _ = batch
  valid = np.asarray([True, False, True, True, False])
  clean_value, clean_gradient = objective(
      *(x[valid] for x in (train, infer, mask, advantage)), np.ones(3, bool))
  spoil = lambda x: np.where(valid.reshape(-1, *[1] * (x.ndim - 1)), x, np.float32(np.nan))
  value, gradient = objective(spoil(train), spoil(infer), mask, spoil(advantage), valid)
  np.testing.assert_allclose(value, clean_value, rtol=1e-6)
  np.testing.assert_allclose(gradient[valid], clean_gradient, rtol=1e-6)
  assert not gradient[~valid].any()


def test_M3_appended_token_is_masked_out():
  # The harness appended a stop token with log-probability 0.0: counted, it is a false ratio.
  train, infer = np.asarray([[-1.0, -3.0]], np.float32), np.asarray([[-1.0, 0.0]], np.float32)
  one, valid = np.ones(1, np.float32), np.ones(1, bool)
  right, gradient = objective(train, infer, np.asarray([[True, False]]), one, valid)
  wrong, _ = objective(train, infer, np.asarray([[True, True]]), one, valid)
  assert right == 1.0 and gradient[0, 1] == 0 and wrong < 0.6


def test_M8_masked_rows_and_empty_batches():
  zeros, one = np.zeros((3, 4), np.float32), np.ones(3, np.float32)
  mask = np.ones((3, 4), bool)
  mask[1] = False
  # A valid row without tokens contributes 0 and counts: 2/3. Without the row: 1.
  value, gradient = objective(zeros, zeros, mask, one, np.ones(3, bool))
  np.testing.assert_allclose(value, 2 / 3, rtol=1e-6)
  assert np.all(np.isfinite(gradient)) and not gradient[1].any()
  assert objective(zeros, zeros, mask, one, np.asarray([True, False, True]))[0] == 1.0
  nothing, gradient = objective(zeros, zeros, np.zeros((3, 4), bool), one, np.ones(3, bool))
  assert nothing == 0 and not gradient.any()
  nothing, gradient = objective(zeros, zeros, mask, one, np.zeros(3, bool))
  assert nothing == 0 and not gradient.any()


@pytest.mark.parametrize("strategy", ["none", "token_is", "sequence_is"])
def test_L3_micro_batches_add_up_to_the_batch(strategy):
  rng = np.random.default_rng(3)
  train, infer = -rng.random((8, 5)).astype(np.float32), -rng.random((8, 5)).astype(np.float32)
  mask = rng.random((8, 5)) < 0.5
  advantage, valid = rng.normal(size=8).astype(np.float32), np.arange(8) % 5 < 4
  objective_sum = jax.jit(functools.partial(grpo_objective_sum, strategy=strategy))

  def split(x, size):
    parts = [objective_sum(*(a[i:i + size] for a in (x, infer, mask, advantage, valid)))
             for i in range(0, 8, size)]
    return sum(s for s, _ in parts) / sum(n for _, n in parts).astype(jnp.float32)

  whole, slope = objective(train, infer, mask, advantage, valid, strategy=strategy)
  for size in (4, 1):
    in_parts = jax.jit(jax.value_and_grad(functools.partial(split, size=size)))
    value, gradient = in_parts(jnp.asarray(train))
    np.testing.assert_allclose(value, whole, atol=1e-6)
    np.testing.assert_allclose(gradient, slope, atol=1e-6)
  means = [objective(*(a[i:i + 4] for a in (train, infer, mask, advantage, valid)),
                     strategy=strategy)[0] for i in (0, 4)]
  assert valid[:4].sum() != valid[4:].sum() and abs(np.mean(means) - whole) > 1e-3


def test_X6_log_ratio_is_clipped_before_exp():
  train = np.asarray([[100.0, -1.0, 500.0]], np.float32)
  infer = np.asarray([[0.0, -1.0, 0.0]], np.float32)
  one, valid = np.ones(1, np.float32), np.ones(1, bool)
  for strategy in ("token_is", "sequence_is", "none"):
    value, gradient = objective(train, infer, np.asarray([[True, True, False]]), one, valid,
                                strategy=strategy)
    assert np.isfinite(value) and np.all(np.isfinite(gradient)) and gradient[0, 2] == 0
  # Up to 20 nothing is changed, far outside the shared vectors' 0.25.
  for x in (-20.0, -3.0, 2.5, 20.0):
    value, gradient = objective(np.asarray([[x]], np.float32), np.zeros((1, 1), np.float32),
                                np.ones((1, 1), bool), one, valid)
    np.testing.assert_allclose([value, gradient[0, 0]], np.exp(x), rtol=1e-5)


def test_truncation_bounds_the_weight_and_keeps_the_gradient():
  train, infer = np.asarray([[1.0, 0.0]], np.float32), np.zeros((1, 2), np.float32)
  mask = np.ones((1, 2), bool)
  weight = jax.jit(lambda x: token_weights(x, infer, mask, "token_is", 2.0))
  np.testing.assert_allclose(weight(train), [[2.0, 1.0]], rtol=1e-6)
  slope = jax.grad(lambda x: weight(x)[0, 0])(jnp.asarray(train))
  np.testing.assert_allclose(slope, [[2.0, 0.0]], rtol=1e-6)      # min() alone would give 0


def test_none_ignores_the_engine(batch):
  train, infer, mask, advantage, valid = batch
  value, gradient = objective(train, infer - 3, mask, advantage, valid, strategy="none")
  np.testing.assert_allclose(value, np.mean(np.where(mask.any(1), advantage, 0)), rtol=1e-5)
  assert np.abs(gradient).max() > 0


def test_permutation_of_rows_changes_nothing(batch):
  order = np.asarray([3, 0, 4, 1, 2])
  value, gradient = objective(*batch)
  other, moved = objective(*(x[order] for x in batch))
  np.testing.assert_allclose(other, value, rtol=1e-5)
  np.testing.assert_allclose(moved, gradient[order], rtol=1e-6)


def test_errors_name_the_choice(batch):
  with pytest.raises(ValueError, match="expected one of none, .*, bitwise; got 'ppo'"):
    grpo_objective(*batch, strategy="ppo")
  with pytest.raises(ValueError, match="truncate_at: expected a positive ratio or None; got 0"):
    token_weights(*batch[:3], "token_is", 0.0)


def test_bitwise_takes_the_engines_value_and_the_training_forwards_gradient():
  train, engine = jnp.array([[-1.1, -0.4]]), jnp.array([[-1.2, -0.5]])
  mask, advantage, valid = jnp.ones((1, 2), bool), jnp.array([2.0]), jnp.array([True])
  weigh = lambda x: grpo_objective(
    with_value(x, engine), engine, mask, advantage, valid, strategy="bitwise"
  )
  value, slope = jax.value_and_grad(weigh)(train)
  assert float(value) == 2.0  # every ratio is exactly 1
  np.testing.assert_allclose(slope, [[1.0, 1.0]])
  uncorrected = jax.grad(lambda x: grpo_objective(x, engine, mask, advantage, valid))(train)
  np.testing.assert_allclose(uncorrected, [[np.exp(0.1)] * 2], rtol=1e-6)
