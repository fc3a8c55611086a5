"""Gated DeltaNet: chunk form against the recurrence, packing, padding, gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.model import deltanet
from searchjax.model.config import model_config
from searchjax.model.params import param_specs

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


@pytest.mark.parametrize("T", [1, 2 * C + 3])
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


@jax.jit
def chunk_gradients(arrays, weight):
  return jax.grad(lambda a: jnp.sum(chunks(a)[0] * weight))(arrays)


def test_gradients_equal_finite_differences_of_the_oracle():
  arrays = inputs(2 * C)
  weight = np.random.default_rng(4).normal(size=(B, 2 * C, M, R))
  grads = chunk_gradients(arrays, weight.astype(np.float32))
  rng = np.random.default_rng(5)
  for i, grad in enumerate(grads):
    direction = rng.normal(size=arrays[i].shape)
    h = 1e-5
    moved = lambda s, i=i, d=direction: [
      np.asarray(a, np.float64) + (s * d if j == i else 0) for j, a in enumerate(arrays)
    ]
    value = lambda s, moved=moved: np.sum(weight * oracle(*moved(s))[0])
    slope = (value(h) - value(-h)) / (2 * h)
    np.testing.assert_allclose(np.sum(np.asarray(grad) * direction), slope, rtol=2e-3, atol=2e-3)


def test_gradients_are_finite_with_strong_decay_and_repeated_keys():
  q, k, v, beta, g = inputs(2 * C)
  k[:] = k[:, :1]
  g[:] = -60.0
  grads = chunk_gradients((q, k, v, beta, g), np.ones((B, 2 * C, M, R), np.float32))
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


LENGTHS = (1, C - 1, C, C + 1, 2 * C + 3)
STEPS = 4


@pytest.fixture(scope="module")
def layer():
  """Config and weights of a layer: 2 key heads, 6 value heads, distinct sizes, no defaults."""
  config = model_config(
    "tiny", hidden_size=23, delta_key_heads=2, delta_value_heads=6, delta_key_size=5,
    delta_value_size=7, chunk_length=C,
  )  # fmt: skip
  rng = np.random.default_rng(6)
  specs = param_specs(config)["delta"]
  draw = lambda spec: rng.normal(size=spec.shape[2:]) * spec.fan_in**-0.5
  weights = {n: draw(spec) for n, spec in specs.items()}
  weights["A_log"] = np.log(rng.uniform(0.02, 2.0, 6))
  return config, {n: jnp.asarray(a, jnp.float32) for n, a in weights.items()}


@pytest.fixture(scope="module")
def whole(layer):
  config, weights = layer
  return jax.jit(lambda x, segments: deltanet.deltanet(weights, config, x, segments))


@pytest.fixture(scope="module")
def prefill(layer):
  config, weights = layer
  return jax.jit(lambda *a: deltanet.deltanet_prefill(weights, config, *a))


def empty(config, rows):
  sizes = config.delta_value_heads, config.delta_key_size, config.delta_value_size
  return jnp.zeros((rows, *sizes)), deltanet.empty_tails(config, rows, jnp.float32)


def going(rows):
  """Rows that all advance, none at its first token."""
  return jnp.ones(rows, bool), jnp.zeros(rows, bool)


def draw_x(rows, T, seed=1):
  return np.random.default_rng(seed).normal(size=(rows, T, 23)).astype(np.float32)


def test_X8_prefill_then_decode_equals_the_whole_row_at_every_length(layer, whole, prefill):
  """FAULTS X8, at lengths 1, C − 1, C, C + 1, 2C + 3 in one batch."""
  config, weights = layer
  T = LENGTHS[-1] + STEPS
  x = draw_x(5, T)
  want = whole(x, np.ones((5, T), np.int32))
  fed = np.where(np.arange(T)[None, :, None] < np.array(LENGTHS)[:, None, None], x, 1e3)
  out, state, tails = prefill(fed, np.array(LENGTHS), *empty(config, 5))
  decode = jax.jit(lambda *a: deltanet.deltanet_decode(weights, config, *a))
  for row, n in enumerate(LENGTHS):
    np.testing.assert_allclose(out[row, :n], want[row, :n], atol=1e-5)
  for step in range(STEPS):
    token = np.stack([x[row, n + step] for row, n in enumerate(LENGTHS)])[:, None]
    y, state, tails = decode(token, state, tails, *going(5))
    assert state.dtype == jnp.float32
    for row, n in enumerate(LENGTHS):
      np.testing.assert_allclose(y[row, 0], want[row, n + step], atol=1e-5)


@pytest.mark.parametrize(
  "tokens, longest, chunk",
  [(48, 32, 16), (40, 32, 16), (31, 32, 32), (64, 32, 32), (7, 32, 16), (48, 64, 16), (9, 8, 8)],
)
def test_a_feed_takes_the_chunk_that_leaves_least_padding(layer, whole, tokens, longest, chunk):
  """64 rows of 48 tokens in chunks of 32 would compute a third more; an odd feed keeps its chunk,
  where their common divisor would make it one token at a time."""
  config, weights = layer
  config = dataclasses.replace(config, chunk_length=longest)
  feed = lambda x, n, *before: deltanet.deltanet_prefill(weights, config, x, n, *before)
  x, n = draw_x(2, tokens), np.array([tokens, tokens // 2])
  out, state, tails = jax.jit(feed)(x, n, *empty(config, 2))
  traced = str(jax.make_jaxpr(feed)(x, n, *empty(config, 2)))
  assert f"f32[{-(-tokens // chunk)},2,6,{chunk},{chunk}]" in traced
  want = whole(x, np.ones((2, tokens), np.int32))
  for row, fed in enumerate(n):
    np.testing.assert_allclose(out[row, :fed], want[row, :fed], atol=1e-5)


def test_a_row_that_rests_keeps_its_state_and_one_that_begins_forgets_it(layer):
  config, weights = layer
  decode = jax.jit(lambda *a: deltanet.deltanet_decode(weights, config, *a))
  x = draw_x(3, 1)
  _, state, tails = decode(draw_x(3, 1, seed=8), *empty(config, 3), *going(3))
  active, begins = np.array([True, False, True]), np.array([True, False, False])
  y, after, shifted = decode(x, state, tails, active, begins)
  plain = decode(x, state, tails, *going(3))
  fresh = decode(x, *empty(config, 3), *going(3))
  jax.tree.map(
    lambda new, old, resting, first: (
      np.testing.assert_array_equal(new[0], first[0]),
      np.testing.assert_array_equal(new[1], resting[1]),
      np.testing.assert_array_equal(new[2], old[2]),
    ),
    (after, shifted), plain[1:], (state, tails), fresh[1:],
  )
  np.testing.assert_array_equal(y[0], fresh[0][0])
  np.testing.assert_array_equal(y[2], plain[0][2])


def test_right_padding_leaves_state_and_convolution_tail_exact(layer, prefill):
  """A prompt with 60 % padding, whatever lies there, or in two pieces, ends in the same state."""
  config, _ = layer
  T, n = 23, 9
  x = draw_x(1, T)
  padded = x.copy()
  padded[:, n:] = 7.0
  _, state, tails = prefill(padded, np.array([n]), *empty(config, 1))
  padded[:, n:] = -1e4
  _, again, same_tails = prefill(padded, np.array([n]), *empty(config, 1))
  np.testing.assert_array_equal(state, again)
  jax.tree.map(np.testing.assert_array_equal, tails, same_tails)
  first = np.pad(x[:, :4], ((0, 0), (0, T - 4), (0, 0)))
  _, piece, piece_tails = prefill(first, np.array([4]), *empty(config, 1))
  rest = np.pad(x[:, 4:n], ((0, 0), (0, T - 5), (0, 0)))
  _, joined, joined_tails = prefill(rest, np.array([5]), piece, piece_tails)
  np.testing.assert_allclose(joined, state, atol=1e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), joined_tails, tails)
  # Fed as if it were real, padding changes the state.
  zeros = np.pad(x[:, :n], ((0, 0), (0, T - n), (0, 0)))
  _, wrong, _ = prefill(zeros, np.array([T]), *empty(config, 1))
  assert np.abs(np.asarray(wrong - state)).max() > 1e-2


def test_left_padding_changes_nothing(layer, whole):
  x = draw_x(1, 23)
  want = whole(x, np.ones((1, 23), np.int32))
  moved = np.concatenate([np.full((1, 5, 23), 9.0, np.float32), x[:, :18]], axis=1)
  segments = (np.arange(23) >= 5).astype(np.int32)[None]
  np.testing.assert_allclose(whole(moved, segments)[:, 5:], want[:, :18], atol=1e-5)
  assert np.abs(np.asarray(whole(moved, np.ones_like(segments))[:, 5:] - want[:, :18])).max() > 1e-2
  arrays = inputs(5)
  padded = [np.concatenate([np.zeros_like(a), a], axis=1) for a in arrays]
  np.testing.assert_allclose(chunks(padded)[1], chunks(arrays)[1], atol=1e-6)


def test_G1_packed_documents_equal_solo_ones_in_recurrence_and_convolution(layer, whole):
  """FAULTS G1: values, and the gradient with respect to the layer's input."""
  config, weights = layer
  lengths = [5, 1, 2, 12, 3]  # documents shorter than the kernel, and across chunks
  T = sum(lengths)
  x = draw_x(1, T)
  packed = np.repeat(np.arange(1, 6), lengths)[None].astype(np.int32)
  weight = np.random.default_rng(3).normal(size=(1, T, 23)).astype(np.float32)
  loss = lambda x, s, w: jnp.sum(w * deltanet.deltanet(weights, config, x, s))
  gradient = jax.jit(jax.grad(loss))
  out, slope = whole(x, packed), gradient(x, packed, weight)
  assert np.isfinite(slope).all()
  start = 0
  for n in lengths:
    stop = start + n
    alone = np.pad(x[:, start:stop], ((0, 0), (0, T - n), (0, 0)))
    own = np.pad(weight[:, start:stop], ((0, 0), (0, T - n), (0, 0)))
    segments = (np.arange(T) < n).astype(np.int32)[None]
    np.testing.assert_allclose(out[:, start:stop], whole(alone, segments)[:, :n], atol=1e-5)
    own_slope = gradient(alone, segments, own)[:, :n]
    np.testing.assert_allclose(slope[:, start:stop], own_slope, atol=2e-5)
    start = stop
  leaked = whole(x, np.ones_like(packed))
  assert np.abs(np.asarray(leaked - out))[:, 5:].max() > 1e-2


def test_gradients_at_padding_are_finite_and_zero(layer):
  """A zero vector inside the l2 norm would have a gradient of a thousand."""
  config, weights = layer
  segments = jnp.asarray([[0] * 4 + [1] * 9 + [0] * 10], jnp.int32)
  loss = lambda w, x: jnp.sum(deltanet.deltanet(w, config, x, segments) ** 2)
  by_weight, by_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(weights, jnp.asarray(draw_x(1, 23)))
  assert all(np.isfinite(a).all() and np.abs(a).max() < 100 for a in by_weight.values())
  np.testing.assert_array_equal(by_x[0, segments[0] == 0], 0.0)
  assert np.abs(by_x[0, segments[0] == 1]).max() > 1e-3


def test_X8_512_steps_stay_close_because_the_state_is_float32(layer):
  """FAULTS X8: bfloat16 layers drift by 1 % and no further; a bfloat16 state adds its own drift."""
  config, weights = layer
  weights = weights | {"A_log": jnp.full((6,), np.log(0.002), jnp.float32)}  # a memory of 500 steps
  x = jnp.asarray(draw_x(2, 512))

  @jax.jit
  def run(weights, x, round_state):
    def step(carry, token):
      y, state, tails = deltanet.deltanet_decode(
        weights, config, token[:, None], *carry, *going(2)
      )
      assert state.dtype == jnp.float32 and y.dtype == x.dtype
      state = jnp.where(round_state, jax.lax.reduce_precision(state, 8, 7), state)
      return (state, tails), y[:, 0].astype(jnp.float32)

    state, tails = empty(config, 2)
    start = state, jax.tree.map(lambda a: a.astype(x.dtype), tails)
    return jnp.swapaxes(jax.lax.scan(step, start, jnp.swapaxes(x, 0, 1))[1], 0, 1)

  rms = lambda a: float(jnp.sqrt(jnp.mean(a**2)))
  error = lambda got, want, part: rms(got[:, part] - want[:, part]) / rms(want[:, part])
  early, late = slice(0, 128), slice(384, 512)

  whole = jax.jit(lambda w, x: deltanet.deltanet(w, config, x, jnp.ones((2, 512), jnp.int32)))
  exact = whole(weights, x)
  assert error(run(weights, x, False), exact, late) < 1e-5
  assert error(run(weights, x, True), exact, late) > 2e-3

  keep = ("A_log", "dt_bias", "out_norm")
  low = {n: a if n in keep else a.astype(jnp.bfloat16) for n, a in weights.items()}
  low_x = x.astype(jnp.bfloat16)
  up = {n: a.astype(jnp.float32) for n, a in low.items()}
  exact, out = whole(up, low_x.astype(jnp.float32)), run(low, low_x, False)
  assert error(out, exact, late) < 0.03
  assert error(out, exact, late) < 1.5 * error(out, exact, early), "grows with the number of steps"


def test_G5_gates_are_float32_whatever_the_activations_are():
  """FAULTS G5: β and g from bfloat16 projections; rounding them drifts over 4096 tokens."""
  rng = np.random.default_rng(7)
  raw = {n: jnp.asarray(rng.normal(size=(B, 4096, M)), jnp.bfloat16) for n in ("write", "decay")}
  weights = {"A_log": jnp.log(jnp.array([0.01, 0.1, 1.0])), "dt_bias": jnp.array([-1.0, 0.0, 1.0])}
  beta, g = deltanet.gates(weights, raw)
  assert beta.dtype == g.dtype == jnp.float32
  wide = {n: np.asarray(a.astype(jnp.float32), np.float64) for n, a in raw.items()}
  want_beta = 1 / (1 + np.exp(-wide["write"]))
  rate = np.log1p(np.exp(wide["decay"] + np.array([-1.0, 0.0, 1.0])))
  want_g = -np.array([0.01, 0.1, 1.0]) * rate
  np.testing.assert_allclose(beta, want_beta, rtol=1e-6)
  np.testing.assert_allclose(g, want_g, rtol=1e-5)
  q, k, v, _, _ = inputs(4096)
  low = lambda a: a.astype(jnp.bfloat16).astype(jnp.float32)
  out, _ = chunks((q, k, v, beta, g))
  drift = lambda *gates: np.abs(np.asarray(chunks((q, k, v, *gates))[0] - out)).max() / np.std(out)
  assert drift(want_beta.astype(np.float32), want_g.astype(np.float32)) < 1e-4
  assert drift(low(beta), g) > 3e-3 and drift(beta, low(g)) > 3e-3
