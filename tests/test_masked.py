"""Masked sums and means: excluded entries have no value and no gradient."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from searchjax.objective.masked import clip_log_ratio, masked_count, masked_fill, masked_max
from searchjax.objective.masked import masked_mean, masked_min, masked_sum, one_minus_exp

masked_mean = jax.jit(masked_mean, static_argnames="axis")
X = np.asarray([[1.0, 2.0, np.nan], [np.inf, 5.0, 7.0]], np.float32)
KEEP = np.isfinite(X)


def test_by_hand():
  assert masked_sum(X, KEEP, 1).tolist() == [3, 12]
  assert masked_mean(X, KEEP, 1).tolist() == [1.5, 6]
  assert masked_count(KEEP, 1).tolist() == [2, 2]
  assert masked_max(X, KEEP, 1).tolist() == [2, 7]
  assert masked_min(X, KEEP, 1).tolist() == [1, 5]
  assert masked_mean(X, KEEP).item() == 15 / 4          # not (1.5 + 6) / 2 of a different count
  # The common mistake: multiplying by the mask.
  assert jnp.isnan(jnp.sum(jnp.asarray(X) * KEEP.astype(np.float32)))


def test_M8_nothing_kept_is_zero_with_zero_gradient():
  nothing = np.zeros_like(KEEP)
  value, gradient = jax.value_and_grad(masked_mean)(jnp.asarray(X), nothing)
  assert value == 0 and not gradient.any()
  assert masked_max(X, nothing) == -np.inf and masked_min(X, nothing) == np.inf


def test_gradient_of_a_mean_is_the_mask_over_the_count():
  gradient = jax.grad(lambda x: jnp.sum(masked_mean(x, KEEP, 1)))(jnp.asarray(X))
  np.testing.assert_allclose(gradient, KEEP / 2)


@settings(max_examples=15, deadline=None)
@given(hnp.arrays(np.float32, 7, elements=st.floats(-100, 100, width=32)),
       hnp.arrays(bool, 7), st.permutations(range(7)))
def test_mean_against_a_loop_and_any_order(x, mask, order):
  kept = [float(v) for v, m in zip(x, mask) if m]
  expected = sum(kept) / len(kept) if kept else 0.0
  np.testing.assert_allclose(masked_mean(x, mask), expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(masked_mean(x[order], mask[order]), expected, rtol=1e-5, atol=1e-5)


def test_X6_clip_is_exact_up_to_twenty():
  x = jnp.asarray([-1e4, -20.0, -0.25, 0.0, 19.999, 20.0, 100.0])
  assert clip_log_ratio(x).tolist() == [-20.0, -20.0, -0.25, 0.0, np.float32(19.999), 20.0, 20.0]
  slope = jax.vmap(jax.grad(clip_log_ratio))(x)
  assert slope.tolist() == [0, 1, 1, 1, 1, 1, 0]        # jnp.clip would give 1/2 at the bounds


def test_saturating_penalty_keeps_tiny_excess():
  assert one_minus_exp(jnp.float32(-3.0)) == 0
  np.testing.assert_allclose(one_minus_exp(jnp.float32(1e-6)), 1e-6, rtol=1e-5)
  assert abs(float(1 - jnp.exp(jnp.float32(-1e-6))) - 1e-6) > 1e-8     # the plain form: 5 % off
  assert one_minus_exp(jnp.float32(1e9)) == 1


def test_fill_casts_to_float32():
  assert masked_fill(np.asarray([1, 2]), np.asarray([True, False]), 9.0).tolist() == [1.0, 9.0]
  assert masked_fill(np.asarray([1.0]), np.asarray([True])).dtype == jnp.float32
