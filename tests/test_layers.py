"""Norms and rotary positions."""

import jax.numpy as jnp
import numpy as np

from searchjax.model.layers import rms_norm, rotate


def test_G3_zero_centred_norm_of_weight_zero_has_scale_one():
  x = jnp.array([[3.0, -4.0]])
  unit = np.array([[3.0, -4.0]]) / np.sqrt(12.5)
  scale = lambda w, z: rms_norm(x, jnp.array(w), eps=0.0, zero_centred=z)
  np.testing.assert_allclose(scale([0.0, 0.0], True), unit, rtol=1e-6)
  np.testing.assert_allclose(scale([1.0, 1.0], False), unit, rtol=1e-6)
  np.testing.assert_allclose(scale([1.0, 1.0], True), 2 * unit, rtol=1e-6)


def test_norms_are_reckoned_in_float32():
  """1 + 2⁻⁹ is 1 in bfloat16: a weight of 2⁻⁹ shows only where the product is float32."""
  x = jnp.full((1, 3), 1.0, jnp.bfloat16)
  w = jnp.full((3,), 3 * 2.0**-9)
  y = rms_norm(x, w, eps=0.0, zero_centred=True)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_array_equal(y.astype(jnp.float32), 1 + 2.0**-7)  # 1 + 3·2⁻⁹, rounded once


def test_rotation_is_relative_and_leaves_the_rest():
  x = np.random.default_rng(0).normal(size=(1, 2, 1, 10)).astype(np.float32)
  turn = lambda p: np.asarray(rotate(jnp.asarray(x), jnp.array([p]), rotary_dims=4, theta=1e4))
  a, b = turn([3, 7]), turn([13, 17])
  np.testing.assert_allclose(np.sum(a[0, 0] * a[0, 1]), np.sum(b[0, 0] * b[0, 1]), rtol=1e-5)
  np.testing.assert_array_equal(a[..., 4:], x[..., 4:])
  # Pairs are (i, i + 2), not neighbours: at position p the first pair turns by p.
  want = x[0, 0, 0, 0] * np.cos(3) - x[0, 0, 0, 2] * np.sin(3)
  np.testing.assert_allclose(a[0, 0, 0, 0], want, rtol=1e-5)
  # The second by p · theta^(-1/2).
  want = x[0, 0, 0, 1] * np.cos(0.03) - x[0, 0, 0, 3] * np.sin(0.03)
  np.testing.assert_allclose(a[0, 0, 0, 1], want, rtol=1e-5)
