"""Bradley-Terry in both orders: hand values, exchange symmetry, ties, and deltas far out."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st

from searchjax.objective.bradley_terry import pair_loss, preference_probability, symmetric_loss

pair_loss, symmetric_loss = jax.jit(pair_loss), jax.jit(symmetric_loss)
preference_probability = jax.jit(preference_probability)
v = lambda *values: np.asarray(values, np.float32)


def test_by_hand():
  np.testing.assert_allclose(pair_loss(v(0, 1, 1), v(1, 1, 0)), [0.693147, 0.313262, 1.313262],
                             rtol=1e-5)
  # Both orders agree that a is better by 1; delta_ba is then -1.
  np.testing.assert_allclose(symmetric_loss(v(1), v(-1), v(1)), [0.313262], rtol=1e-5)
  swapped = symmetric_loss(v(1), v(1), v(1))            # delta_ba with the wrong sign
  assert abs(float(swapped[0]) - 0.313262) > 0.4


def test_ties():
  np.testing.assert_allclose(symmetric_loss(v(0, 2, -2), v(0, -2, 2), v(.5, .5, .5)),
                             [0.693147, 1.126928, 1.126928], rtol=1e-5)
  tie = lambda d: jnp.sum(symmetric_loss(d, -d, v(.5, .5, .5)))
  slope = jax.jit(jax.grad(tie))(v(0, 2, -2))
  np.testing.assert_allclose(slope, [0, 0.380797, -0.380797], atol=1e-5)     # pulled back to 0


def test_far_out_deltas_are_finite_with_exact_gradients():
  delta = jnp.asarray(v(-1e4, -300, -8.5, 8.5, 300, 1e4))
  loss = jax.jit(jax.value_and_grad(lambda d, label: jnp.sum(symmetric_loss(d, -d, label))))
  for label in (0.0, 0.5, 1.0):
    value, slope = loss(delta, np.full(6, label, np.float32))
    assert np.isfinite(value)
    exact = 1 / (1 + np.exp(-np.clip(np.asarray(delta, np.float64), -700, 700))) - label
    np.testing.assert_allclose(slope, exact, atol=1e-6)
  np.testing.assert_allclose(symmetric_loss(v(-1e4), v(1e4), v(1)), [1e4])
  wrong = -jnp.log(jax.nn.sigmoid(jnp.float32(-1e4)))     # the plain form
  assert np.isinf(wrong)
  assert preference_probability(v(1e4, -1e4), v(-1e4, 1e4)).tolist() == [1, 0]


def test_position_bias_cancels():
  # A model that always adds 3 to whichever answer is read first.
  np.testing.assert_allclose(preference_probability(v(0.7 + 3), v(-0.7 + 3)),
                             preference_probability(v(0.7), v(-0.7)), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.floats(-30, 30), st.floats(-30, 30), st.floats(0, 1))
def test_exchanging_the_answers(delta_ab, delta_ba, label):
  ab, ba, r = v(delta_ab), v(delta_ba), v(label)
  np.testing.assert_allclose(symmetric_loss(ab, ba, r), symmetric_loss(ba, ab, 1 - r), rtol=1e-5)
  np.testing.assert_allclose(preference_probability(ab, ba), 1 - preference_probability(ba, ab),
                             atol=1e-6)
  # An order-free model: the symmetric loss is the plain one, worked here in float64.
  d, r = np.float64(ab[0]), np.float64(r[0])
  plain = r * np.log1p(np.exp(-d)) + (1 - r) * np.log1p(np.exp(d))
  np.testing.assert_allclose(symmetric_loss(ab, -ab, v(label))[0], plain, rtol=1e-5, atol=1e-6)
