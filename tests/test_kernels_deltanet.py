"""The DeltaNet kernel, interpreted: values and gradients against the recurrence; and compiled.

`tests/benchmarks/deltanet.py` compiles it for every TPU generation at the sizes of Qwen3.5.
"""

import importlib.util
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.dist.topology import missing_compiler
from searchjax.model import deltanet
from searchjax.model.config import model_config
from searchjax.model.kernels.deltanet import delta_rule
from searchjax.model.params import param_specs

B, T, A, M, P, R, C = 2, 37, 3, 6, 5, 7, 4
EPS = 1e-6
OWNER = np.array([1, -1], np.int32)  # The second row's state belongs to no document in it.
NAMES = ("out", "state", "of q", "of k", "of v", "of beta", "of g", "of state")


def draw(seed=0):
  """q, k, v, β, g, state: six float32 arrays."""
  rng = np.random.default_rng(seed)
  normal = lambda *shape: rng.normal(size=(B, *shape)).astype(np.float32)
  beta = rng.uniform(0.1, 0.95, (B, T, M)).astype(np.float32)
  g = -rng.uniform(0.01, 2.0, (B, T, M)).astype(np.float32)
  return [normal(T, A, P), normal(T, A, P), normal(T, M, R), beta, g, normal(M, P, R)]


def draw_weights():
  """What outputs and the last state are multiplied with before they are summed."""
  rng = np.random.default_rng(1)
  return [rng.normal(size=s).astype(np.float32) for s in ((B, T, M, R), (B, M, P, R))]


def packed(*lengths):
  return np.array([np.repeat(np.arange(1, len(row) + 1), row) for row in lengths], np.int32)


# Documents of one token, longer than a block, and ending with a chunk and with a block.
PACKED = packed([5, 1, 20, 11], [8, 8, 16, 5])
WHOLE = np.ones((B, T), np.int32)


def by_kernel(q, k, v, beta, g, state, segments, owner):
  return delta_rule(
    q, k, v, beta, g, segments, state, owner, chunk_length=C, norm_eps=EPS, block_length=2 * C,
    interpret=True,
  )


def normed(o):
  return o * jax.lax.rsqrt(jnp.mean(o * o, axis=-1, keepdims=True) + EPS)


def by_chunks(q, k, v, beta, g, state, segments, owner):
  q, k = deltanet.normalise(q, k, M)
  o, state = deltanet.delta_chunks(q, k, v, beta, g, segments, state, owner, chunk_length=C)
  return normed(o), state


def by_steps(q, k, v, beta, g, state, segments, owner):
  """One token at a time; a token of another document than the last finds an empty state."""
  q, k = deltanet.normalise(q, k, M)

  def step(carry, token):
    state, owner = carry
    *arrays, segment = token
    state = jnp.where((segment == owner)[:, None, None, None], state, 0.0)
    o, state = deltanet.delta_step(*arrays, state)
    return (state, segment), o

  by_token = [jnp.swapaxes(a, 0, 1) for a in (q, k, v, beta, g, segments)]
  (state, _), o = jax.lax.scan(step, (state, owner), by_token)
  return normed(jnp.swapaxes(o, 0, 1)), state


def with_gradients(rule):
  """Jits to outputs, last state and the gradients of their weighted sum."""

  @jax.jit
  def run(arrays, segments, owner, weights):
    results, pull = jax.vjp(lambda *a: rule(*a, segments, owner), *arrays)
    return *results, *pull(tuple(weights))

  return lambda arrays, segments, weights=None, owner=OWNER: [
    np.asarray(a) for a in run(arrays, segments, owner, weights or draw_weights())
  ]


@pytest.fixture(scope="module")
def kernel():
  return with_gradients(by_kernel)


@pytest.fixture(scope="module")
def steps():
  return with_gradients(by_steps)


def difference(got, want):
  return np.linalg.norm(got - want) / np.linalg.norm(want)


def assert_close(got, want, limit=1e-5):
  for name, a, b in zip(NAMES[: len(got)], got, want, strict=True):
    assert difference(a, b) <= limit, f"{name}: {difference(a, b):.1e}"


@pytest.mark.parametrize("segments", [PACKED, WHOLE], ids=["packed", "whole"])
def test_G1_values_and_gradients_equal_the_recurrence(kernel, steps, segments):
  """FAULTS G1: documents that share a row, the first continuing a given state."""
  assert_close(kernel(draw(), segments), steps(draw(), segments))


def test_values_and_gradients_equal_the_chunk_form(kernel):
  assert_close(kernel(draw(2), PACKED), with_gradients(by_chunks)(draw(2), PACKED))


def test_G1_a_state_that_leaks_between_documents_is_far_away(kernel, steps):
  """FAULTS G1: what would come out if the documents were one and the state anybody's."""
  arrays = draw()
  arrays[4] /= 30  # Decay so slow that the last state remembers the row's start.
  got, leaked = kernel(arrays, PACKED), steps(arrays, WHOLE, owner=np.ones(B, np.int32))
  for name, a, b in zip(NAMES, got, leaked, strict=True):
    assert difference(a, b) > 0.05, name
  np.testing.assert_array_equal(got[-1][1], 0.0)  # Nobody's state has no gradient.
  assert np.abs(got[-1][0]).max() > 0.1


def test_padding_leaves_the_state_and_gets_no_gradient(kernel, steps):
  """β = g = 0: whatever else is there, state and gradients are those of a row without it."""
  n = 21
  segments = packed([9, T - 9], [T])
  weights = draw_weights()
  weights[0][:, n:] = 0.0  # Outputs at padding mean nothing.
  empty, full = draw(), draw()
  for arrays, fill in ((empty, 0.0), (full, 50.0)):
    for i, a in enumerate(arrays[:5]):
      a[:, n:] = fill if i < 3 else 0.0
  got, want = kernel(full, segments, weights), steps(empty, segments, weights)
  for name, a in zip(NAMES[2:5], got[2:5], strict=True):
    np.testing.assert_array_equal(a[:, n:], 0.0, err_msg=name)
  cut = lambda results: [a if a.shape[1] != T else a[:, :n] for a in results]
  assert_close(cut(got), cut(want))
  full[3][:, n:], full[4][:, n:] = 0.5, -0.5  # Taken for tokens.
  assert difference(kernel(full, segments, weights)[1], want[1]) > 0.1


def test_repeated_keys_and_strong_decay(kernel, steps):
  """The hardest inverse, and exponentials that overflow where they are not masked first.

  With one key over and over, outputs hardly depend on q, and gradients of q and g are small
  differences of large terms: in float64, moving every input by half a float32 ulp moves them by 5e-5
  and 2e-5, as far as the recurrence in float32 is off (5e-5, 2e-5), and the kernel (4e-5, 2e-5).
  """
  arrays = draw()
  arrays[1][:] = arrays[1][:, :1]
  arrays[3][:], arrays[4][:] = 0.95, -1e-3
  want = steps(arrays, PACKED)
  rng = np.random.default_rng(3)
  next_to = [np.nextafter(a, a + rng.choice([-1, 1], a.shape), dtype=np.float32) for a in arrays]
  for name, a, b, c in zip(NAMES, kernel(arrays, PACKED), want, steps(next_to, PACKED), strict=True):
    assert difference(a, b) <= max(1e-5, difference(c, b)), name
  arrays[4][:] = -60.0
  got, want = kernel(arrays, PACKED), steps(arrays, PACKED)
  assert all(np.isfinite(a).all() for a in got)
  assert_close(got[:2], want[:2])


# ---- the layer -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layers():
  """The layer's config by implementation, and weights."""
  config = lambda implementation: model_config(
    "tiny", hidden_size=23, delta_key_heads=3, delta_value_heads=3, delta_key_size=5,
    delta_value_size=7, chunk_length=8, deltanet_implementation=implementation,
  )  # fmt: skip
  configs = {name: config(name) for name in ("reference", "pallas", "pallas_interpret")}
  rng = np.random.default_rng(6)
  specs = param_specs(configs["reference"])["delta"]
  draw = lambda spec: jnp.asarray(rng.normal(size=spec.shape[2:]) * spec.fan_in**-0.5, jnp.float32)
  return configs, {n: draw(spec) for n, spec in specs.items()}


def test_the_layer_gives_the_same_values_and_gradients(layers):
  """Packed documents shorter than the convolution, padding between and after, T below a chunk."""
  configs, weights = layers
  rng = np.random.default_rng(7)
  segments = jnp.asarray([[1, 1, 1, 2, 0, 3, 0]], jnp.int32)
  x, weight = jnp.asarray(rng.normal(size=(2, 1, 7, 23)), jnp.float32)
  weight = jnp.where(segments[:, :, None] > 0, weight, 0.0)
  found = {}
  for name in ("reference", "pallas_interpret"):
    loss = lambda w, x, name=name: jnp.sum(
      weight * deltanet.deltanet(w, configs[name], x, segments)
    )
    value, (by_weight, by_x) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(weights, x)
    found[name] = {"value": value, "x": by_x} | by_weight
  for name, want in found["reference"].items():
    if name == "norm":  # Of the layer's input, not in here.
      continue
    assert difference(found["pallas_interpret"][name], want) <= 2e-5, name
  np.testing.assert_array_equal(found["pallas_interpret"]["x"][segments == 0], 0.0)


def test_prefill_continues_rows_as_the_chunk_form_does(layers):
  """Rows continued by all, some and none of the tokens they are fed."""
  configs, weights = layers
  rng = np.random.default_rng(8)
  x = rng.normal(size=(3, 11, 23)).astype(np.float32)
  state = rng.normal(size=(3, 3, 5, 7)).astype(np.float32)
  length = np.array([11, 4, 0], np.int32)
  tails = jax.tree.map(
    lambda a: jnp.asarray(rng.normal(size=a.shape), jnp.float32),
    deltanet.empty_tails(configs["reference"], 3, jnp.float32),
  )
  run = lambda name: jax.jit(
    lambda *a: deltanet.deltanet_prefill(weights, configs[name], *a)
  )(x, length, state, tails)
  (got, got_state, got_tails), (want, want_state, want_tails) = (
    run("pallas_interpret"), run("reference")
  )
  for row, n in enumerate(length):
    np.testing.assert_allclose(got[row, :n], want[row, :n], atol=1e-5)
  np.testing.assert_allclose(got_state, want_state, atol=1e-5)
  np.testing.assert_array_equal(got_state[2], state[2])
  jax.tree.map(np.testing.assert_array_equal, got_tails, want_tails)


def test_long_arrays_stay_in_the_activation_dtype():
  spec = lambda a, low: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16 if low else jnp.float32)
  arrays = [spec(a, i < 3) for i, a in enumerate(draw())]
  call = lambda *a: by_kernel(*a, jnp.asarray(PACKED), jnp.asarray(OWNER))
  out, state = jax.eval_shape(call, *arrays)
  assert (out.dtype, state.dtype) == (jnp.bfloat16, jnp.float32)
  grads = jax.eval_shape(lambda a, o: jax.vjp(call, *a)[1](o), arrays, (out, state))
  assert [g.dtype for g in grads] == [a.dtype for a in arrays]


# ---- compiled for a TPU --------------------------------------------------------------------------


@pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))
def test_it_compiles_to_machine_code_and_its_costs_are_counted(monkeypatch):
  """Forward and backward on v5e, in bfloat16; the other generations are the benchmark's."""
  path = pathlib.Path(__file__).parent / "benchmarks/deltanet.py"
  spec = importlib.util.spec_from_file_location("benchmark", path)
  benchmark = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(benchmark)
  monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
  rows, heads, C, K, P = 512, 2, 64, 4, 128
  outcome = benchmark.measure(
    "v5e:2x2", "pallas", "gradient", "full", f"length={rows}", "model.delta_key_heads=1",
    f"model.delta_value_heads={heads}", "model.hidden_size=256",
  )
  assert (outcome.status, outcome.message) == ("compiled", "")
  costs = outcome.costs
  assert dict(costs.kernels) == {"delta_forward": 1, "delta_backward": 1} and not costs.uncosted
  # Products of [C P] or [C C] with [P P], [C P] or [C C], by hand.
  product, inverse = 2 * C * P * P, 5 * 2 * 2 * C**3
  forward = heads * (inverse + 3 * product + 2 * product / 2) + 2 * product / 2
  backward = heads * (inverse + 10 * product + 6 * product / 2) + 7 * product / 2
  assert costs.flops["delta_forward"] == rows / C * forward
  assert costs.flops["delta_backward"] == rows / C * backward
