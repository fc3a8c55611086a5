"""Ratios and KL estimates between training forward and engine."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st

from searchjax.objective.mismatch import kl_estimates, largest_ratio, sequence_ratio
from searchjax.objective.sft import next_token_logp

kl_estimates, sequence_ratio = jax.jit(kl_estimates), jax.jit(sequence_ratio)
next_token_logp = jax.jit(next_token_logp, static_argnames="temperature")
row = lambda *values: np.asarray([values], np.float32)
marks = lambda *values: np.asarray([values], bool)


def test_L5_padding_is_in_neither_sum_nor_length():
  train, infer = row(0.1, -0.1, 0.3), row(0.0, 0.0, 0.0)
  np.testing.assert_allclose(sequence_ratio(train, infer, marks(1, 1, 0)), [1.0], rtol=1e-6)
  assert sequence_ratio(train, infer, marks(0, 0, 0)).tolist() == [1.0]
  np.testing.assert_allclose(sequence_ratio(train, infer, marks(1, 0, 1)), np.exp([0.2]), rtol=1e-6)


def test_L6_estimators_at_half_the_probability():
  # pi = mu / 2: log rho = -ln 2; k1 keeps the sign of the sample, k3 is never negative.
  kl = kl_estimates(row(np.log(0.5)), row(0.0), marks(1))
  np.testing.assert_allclose([kl["k1"], kl["k3"]], [0.693147, 0.193147], atol=1e-6)
  kl = kl_estimates(row(0.0), row(np.log(0.5)), marks(1))         # the other way round
  np.testing.assert_allclose([kl["k1"], kl["k3"]], [-0.693147, 0.306853], atol=1e-6)


def test_X4_both_directions():
  kl = kl_estimates(row(-15.0), row(-5.0), marks(1))
  np.testing.assert_allclose([kl["k1"], kl["k3"]], [10, 9.000045], rtol=1e-6)
  kl = kl_estimates(row(-5.0), row(-15.0), marks(1))
  np.testing.assert_allclose([kl["k1"], kl["k3"]], [-10, 22015.4658], rtol=1e-6)


def test_X1_temperature_on_both_sides_or_neither():
  logits = np.random.default_rng(0).normal(size=(3, 5, 11)).astype(np.float32)
  tokens = np.random.default_rng(1).integers(0, 11, (3, 5)).astype(np.int32)
  mask = np.ones((3, 5), bool)
  mask[:, 0] = False
  sampler = next_token_logp(logits, tokens, temperature=0.7)
  np.testing.assert_allclose(
      sequence_ratio(next_token_logp(logits, tokens, temperature=0.7), sampler, mask), 1, rtol=1e-6)
  forgotten = sequence_ratio(next_token_logp(logits, tokens), sampler, mask)
  assert np.abs(np.asarray(forgotten) - 1).max() > 0.05


def test_X6_huge_ratios_stay_finite_with_finite_gradients():
  train, infer = row(200.0, -300.0, -1.0), row(-100.0, 0.0, -1.0)
  for measure in (lambda x: jnp.sum(sequence_ratio(x, infer, marks(1, 1, 0))),
                  lambda x: kl_estimates(x, infer, marks(1, 1, 1))["k3"],
                  lambda x: largest_ratio(x, infer, marks(1, 1, 1))):
    value, gradient = jax.jit(jax.value_and_grad(measure))(jnp.asarray(train))
    assert np.isfinite(value) and np.all(np.isfinite(gradient))
  long = np.full((1, 1000), 0.1, np.float32)            # summed instead of averaged: exp(100)
  np.testing.assert_allclose(
      sequence_ratio(long, np.zeros_like(long), np.ones_like(long, bool)), np.exp([0.1]), rtol=1e-5)


def test_small_mismatch_is_not_rounding_noise():
  x = np.float32(1e-4)
  kl = kl_estimates(row(x), row(0.0), marks(1))
  np.testing.assert_allclose(kl["k3"], x * x / 2 + x ** 3 / 6, rtol=1e-5)
  assert abs(float(jnp.exp(x) - 1 - x) - x * x / 2) > 1e-9       # the plain form in float32
  wide = np.asarray([[-0.3, -0.099999, 0.0999, 0.1, 0.1001, 7.0]])
  exact = np.mean(np.expm1(wide) - wide)
  kl = kl_estimates(wide.astype(np.float32), np.zeros_like(wide, np.float32), wide > -9)
  np.testing.assert_allclose(kl["k3"], exact, rtol=1e-6)


def test_nan_outside_the_mask_has_no_effect_and_no_gradient():
  train, infer, mask = row(-1.0, np.nan, -2.0), row(-1.5, -1.0, np.nan), marks(1, 0, 0)
  for measure in (lambda x: jnp.sum(sequence_ratio(x, infer, mask)),
                  lambda x: kl_estimates(x, infer, mask)["k3"],
                  lambda x: kl_estimates(x, infer, mask)["k1"]):
    value, gradient = jax.jit(jax.value_and_grad(measure))(jnp.asarray(train))
    assert np.isfinite(value) and np.all(np.isfinite(gradient)) and not gradient[0, 1:].any()
  empty = kl_estimates(train, infer, marks(0, 0, 0))
  assert empty["k1"] == 0 and empty["k3"] == 0
  assert largest_ratio(train, infer, marks(0, 0, 0)) == 1


def test_means_are_over_tokens_not_over_rows():
  train = np.asarray([[0.3, 0, 0], [0, 0, 0]], np.float32)
  mask = np.asarray([[1, 0, 0], [1, 1, 1]], bool)
  kl = kl_estimates(train, np.zeros_like(train), mask)
  np.testing.assert_allclose(kl["k1"], -0.3 / 4, rtol=1e-6)      # a mean of row means: -0.15


def test_L7_k3_estimates_the_exact_divergence():
  # Weighted by mu itself, both estimators must equal KL(mu || pi) of two three-way softmaxes, and
  # k1's gradient must be the exact one (that of the mean under fixed samples).
  mu = np.asarray([0.5, 0.3, 0.2])
  logits = jnp.asarray([[0.1, -0.4, 0.3]])
  draws = np.repeat(np.arange(3), (mu * 10).astype(int))
  infer = np.log(mu)[draws][None].astype(np.float32)
  mask = np.ones_like(infer, bool)
  estimate = lambda l, k: kl_estimates(jax.nn.log_softmax(l)[:, draws], infer, mask)[k]
  exact = lambda l: jnp.sum(jnp.asarray(mu, jnp.float32) * (
      jnp.asarray(np.log(mu), jnp.float32) - jax.nn.log_softmax(l)[0]))
  for k in ("k1", "k3"):
    np.testing.assert_allclose(estimate(logits, k), exact(logits), atol=1e-6)
    slope = jax.jit(jax.grad(estimate), static_argnums=1)(logits, k)
    np.testing.assert_allclose(slope, jax.jit(jax.grad(exact))(logits), atol=1e-6)


token = st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.booleans())


@settings(max_examples=20, deadline=None)
@given(st.lists(token, min_size=5, max_size=5))
def test_against_a_loop(tokens):
  train, infer = row(*[t for t, _, _ in tokens]), row(*[i for _, i, _ in tokens])
  mask = marks(*[m for _, _, m in tokens])
  kept = [float(t) - float(i) for t, i, m in zip(train[0], infer[0], mask[0]) if m]
  n = max(len(kept), 1)
  ratio = sequence_ratio(train, infer, mask)
  np.testing.assert_allclose(ratio[0], np.exp(sum(kept) / n), rtol=1e-5)
  kl = kl_estimates(train, infer, mask)
  np.testing.assert_allclose(kl["k1"], -sum(kept) / n, atol=1e-5)
  exact = sum(np.exp(x) - 1 - x for x in kept) / n
  np.testing.assert_allclose(kl["k3"], exact, rtol=1e-4, atol=1e-6)
  assert kl["k3"] >= 0
