"""Gated DeltaNet: chunk form against the recurrence, packing, padding, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.model import deltanet
from searchjax.model.config import model_config
from searchjax.model.params import init_params, unstack_layers

B, M, P, R, C = 2, 3, 5, 7, 8


def inputs(T, seed=0):
  rng = np.random.default_rng(seed)
  draw = lambda *shape: rng.normal(size=(B, T, M, *shape)).astype(np.float32)
  q, k, v = draw(P), draw(P), draw(R)
  k /= np.linalg.norm(k, axis=-1, keepdims=True)
  beta = rng.uniform(0.1, 0.95, (B, T, M)).astype(np.float32)
  g = -rng.uniform(0.01, 2.0, (B, T, M)).astype(np.float32)
  return q, k, v, beta, g


def oracle(q, k, v, beta, g, state=None):
  """The recurrence of the paper in float64 loops; a document at a time."""
  q, k, v, beta, g = (np.asarray(a, np.float64) for a in (q, k, v, beta, g))
  T = q.shape[1]
  out = np.zeros((B, T, M, R))
  S = np.zeros((B, M, P, R)) if state is None else np.asarray(state, np.float64)
  for b in range(B):
    for m in range(M):
      s = S[b, m].copy()
      for t in range(T):
        s = np.exp(g[b, t, m]) * s
        d = beta[b, t, m] * (v[b, t, m] - s.T @ k[b, t, m])
        s = s + np.outer(k[b, t, m], d)
        out[b, t, m] = s.T @ q[b, t, m]
      S[b, m] = s
  return out, S


def chunks(arrays, segments=None, state=None, carried=1):
  T = arrays[0].shape[1]
  segments = np.ones((B, T), np.int32) if segments is None else segments
  state = jnp.zeros((B, M, P, R)) if state is None else state
  return run_chunks(
    *map(jnp.asarray, arrays), jnp.asarray(segments), state, jnp.full((B,), carried, jnp.int32)
  )


run_chunks = jax.jit(lambda *a: deltanet.delta_chunks(*a, chunk_length=C))


@pytest.mark.parametrize("T", [1, C - 1, C, C + 1, 2 * C + 3])
def test_chunk_form_equals_the_recurrence(T):
  state = np.random.default_rng(9).normal(size=(B, M, P, R)).astype(np.float32)
  out, S = chunks(inputs(T), state=jnp.asarray(state))
  want, want_S = oracle(*inputs(T), state=state)
  np.testing.assert_allclose(out, want, atol=2e-5)
  np.testing.assert_allclose(S, want_S, atol=2e-5)


def test_step_equals_the_recurrence_and_undecayed_reading_does_not():
  arrays = inputs(4)
  S = jnp.zeros((B, M, P, R))
  outs = []
  for t in range(4):
    o, S = deltanet.delta_step(*(jnp.asarray(a[:, t]) for a in arrays), S)
    outs.append(o)
  want, want_S = oracle(*arrays)
  np.testing.assert_allclose(np.stack(outs, 1), want, atol=1e-5)
  np.testing.assert_allclose(S, want_S, atol=1e-5)
  q, k, v, beta, g = (a[:, :2] for a in arrays)
  # The common mistake: reading the state before it decays.
  s1 = beta[:, 0, :, None, None] * k[:, 0, :, :, None] * v[:, 0, :, None, :]
  wrong_read = np.sum(s1 * k[:, 1, :, :, None], -2)
  wrong = np.exp(g[:, 1])[..., None, None] * s1 + k[:, 1, :, :, None] * (
    beta[:, 1, :, None] * (v[:, 1] - wrong_read)
  )[..., None, :]
  assert np.abs(np.sum(wrong * q[:, 1, :, :, None], -2) - want[:, 1]).max() > 1e-2


def test_G1_packed_documents_equal_solo_documents_in_the_chunk_form():
  lengths = [3, 1, 11, 8, 2]
  arrays = inputs(sum(lengths))
  segments = np.repeat(np.arange(1, 6), lengths)[None].repeat(B, 0).astype(np.int32)
  out, _ = chunks(arrays, segments, carried=-1)
  start = 0
  for n in lengths:
    want, _ = oracle(*(a[:, start : start + n] for a in arrays))
    np.testing.assert_allclose(out[:, start : start + n], want, atol=2e-5)
    start += n
  leaked, _ = oracle(*arrays)
  assert np.abs(leaked - np.asarray(out)).max() > 0.1


def test_padding_passes_the_state_on():
  arrays = inputs(5)
  padded = [np.concatenate([a, np.zeros_like(a[:, :4])], 1) for a in arrays]
  _, S = chunks(arrays)
  _, S_padded = chunks(padded)
  np.testing.assert_allclose(S, S_padded, atol=1e-6)


def test_gradients_equal_finite_differences_of_the_oracle():
  arrays = inputs(C + 2)
  weight = np.random.default_rng(4).normal(size=(B, C + 2, M, R))
  grads = jax.grad(
    lambda a: jnp.sum(chunks(a)[0] * weight.astype(np.float32)), allow_int=True
  )(tuple(map(jnp.asarray, arrays)))
  rng = np.random.default_rng(5)
  for i, grad in enumerate(grads):
    direction = rng.normal(size=arrays[i].shape)
    h = 1e-5
    moved = lambda s, i=i, d=direction: [
      np.asarray(a, np.float64) + (s * d if j == i else 0) for j, a in enumerate(arrays)
    ]
    slope = (np.sum(weight * oracle(*moved(h))[0]) - np.sum(weight * oracle(*moved(-h))[0])) / (2 * h)
    np.testing.assert_allclose(np.sum(np.asarray(grad) * direction), slope, rtol=2e-3, atol=2e-3)


def test_gradients_are_finite_with_strong_decay_and_repeated_keys():
  q, k, v, beta, g = inputs(2 * C)
  k[:] = k[:, :1]
  g[:] = -60.0
  grads = jax.grad(lambda a: chunks(a)[0].sum())(tuple(map(jnp.asarray, (q, k, v, beta, g))))
  assert all(np.isfinite(x).all() for x in grads)


def test_unit_lower_inverse():
  A = np.tril(np.random.default_rng(1).normal(size=(3, 16, 16)), -1).astype(np.float32)
  want = np.linalg.inv(np.eye(16) + A.astype(np.float64))
  np.testing.assert_allclose(jax.jit(deltanet.unit_lower_inverse)(A), want, rtol=1e-4, atol=1e-4)


def test_convolution_looks_back_and_its_last_tap_is_the_present():
  x = np.random.default_rng(2).normal(size=(1, 6, 1, 2)).astype(np.float32)
  w = np.random.default_rng(3).normal(size=(4, 1, 2)).astype(np.float32)
  got = deltanet.convolve(jnp.asarray(x), jnp.zeros((1, 3, 1, 2)), jnp.asarray(w), None)
  want = np.zeros_like(x)
  for t in range(6):
    for j in range(4):
      if t - j >= 0:
        want[:, t] += x[:, t - j] * w[3 - j]
  want = want / (1 + np.exp(-want))
  np.testing.assert_allclose(got, want, atol=1e-6)
  flipped = deltanet.convolve(jnp.asarray(x), jnp.zeros((1, 3, 1, 2)), jnp.asarray(w[::-1]), None)
  assert np.abs(flipped - want).max() > 0.1


def test_layer_prefill_then_decode_equals_the_whole_row():
  config = model_config("tiny", chunk_length=8)
  weights = unstack_layers(init_params(jax.random.key(0), config), config)[0]["mixer"]
  x = jax.random.normal(jax.random.key(1), (2, 13, config.hidden_size))
  layer = jax.jit(lambda x, s: deltanet.deltanet(weights, config, x, s))
  whole = layer(x, jnp.ones((2, 13), jnp.int32))
  state = jnp.zeros((2, 3, 32, 32))
  tails = deltanet.empty_tails(config, 2, jnp.float32)
  length = jnp.array([9, 5])
  prefill = jax.jit(lambda *a: deltanet.deltanet_prefill(weights, config, *a))
  decode = jax.jit(lambda *a: deltanet.deltanet_decode(weights, config, *a))
  out, state, tails = prefill(x[:, :11], length, state, tails)
  np.testing.assert_allclose(out[0, :9], whole[0, :9], atol=1e-5)
  for row, start in ((0, 9), (1, 5)):
    for t in range(start, 13):
      one = lambda a, row=row: jax.tree.map(lambda y: y[row : row + 1], a)
      y, s, c = decode(x[row : row + 1, t : t + 1], one(state), one(tails))
      state = state.at[row].set(s[0])
      tails = {n: tails[n].at[row].set(c[n][0]) for n in tails}
      np.testing.assert_allclose(y[0, 0], whole[row, t], atol=1e-5)
