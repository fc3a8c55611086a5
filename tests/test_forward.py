"""The decoder: packing, prefill and decode against the plain forward, padding ids, log-probs, MoE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.model import cache as caches
from searchjax.model import forward, heads
from searchjax.model.config import PRESETS, model_config
from searchjax.model.layers import rms_norm, rotate
from searchjax.model.params import ParamSpec, param_count, param_specs, unstack_layers

SMALL = dict(
  hidden_size=24, num_query_heads=4, head_size=8, rotary_dims=4, num_experts=5, expert_size=7,
  shared_expert_size=11, vocab_size=53, real_vocab_size=47, delta_key_heads=1, delta_value_heads=2,
  delta_key_size=5, delta_value_size=6, chunk_length=8,
)


@pytest.fixture(scope="module", params=[dict(), dict(scan_layers=True, moe_dispatch="ragged")])
def policy(request):
  config = model_config("tiny", **SMALL, **request.param)
  rng = np.random.default_rng(0)

  def draw(spec):
    noise = rng.normal(size=spec.shape)
    scale, centre = {"normal": (spec.fan_in**-0.5, 0)}.get(spec.init, (0.1, spec.init == "ones"))
    return jnp.asarray(noise * scale + centre, jnp.float32)

  is_spec = lambda x: isinstance(x, ParamSpec)
  return config, jax.tree.map(draw, param_specs(config), is_leaf=is_spec)


@pytest.fixture(scope="module")
def run(policy):
  config, params = policy
  compiled = jax.jit(lambda params, *args: forward.forward(params, config, *args))
  return lambda *args: compiled(params, *args)


@pytest.fixture(scope="module")
def prefill(policy):
  config, params = policy
  compiled = jax.jit(lambda params, *args: forward.prefill(params, config, *args))
  return lambda *args: compiled(params, *args)


@pytest.fixture(scope="module")
def step(policy):
  config, params = policy
  compiled = jax.jit(
    lambda params, *args: forward.decode(params, unstack_layers(params, config), config, *args)
  )
  return lambda *args: compiled(params, *args)


def solo(run, tokens):
  T = tokens.shape[1]
  positions = np.broadcast_to(np.arange(T, dtype=np.int32), tokens.shape)
  return np.asarray(run(tokens, np.ones_like(tokens), positions)[0])


TOKENS = np.random.default_rng(0).integers(0, 47, (2, 23)).astype(np.int32)


def test_G1_packed_documents_equal_solo_documents(run):
  lengths = [2, 9, 1, 8, 3]
  segments = np.repeat(np.arange(1, 6), lengths)[None].repeat(2, 0).astype(np.int32)
  positions = np.concatenate([np.arange(n) for n in lengths])[None].repeat(2, 0).astype(np.int32)
  packed = np.asarray(run(TOKENS, segments, positions)[0])
  start = 0
  for n in lengths:
    alone = np.pad(TOKENS[:, start : start + n], ((0, 0), (0, 23 - n)))
    own = np.asarray(run(
      alone, (np.arange(23) < n).astype(np.int32)[None].repeat(2, 0),
      np.arange(23, dtype=np.int32)[None].repeat(2, 0),
    )[0])
    np.testing.assert_allclose(packed[:, start : start + n], own[:, :n], atol=1e-4)
    start += n
  assert np.abs(packed[:, 2:] - solo(run, TOKENS)[:, 2:]).max() > 1e-2


def test_prefill_and_decode_equal_the_forward(policy, run, prefill, step):
  config, _ = policy
  want = solo(run, TOKENS)
  cache = caches.empty_cache(config, 3, 32)
  slots = jnp.array([2, 0])
  first = np.zeros((2, 12), np.int32)
  first[0], first[1, :7] = TOKENS[0, :12], TOKENS[1, :7]
  cache, _ = prefill(cache, slots, first, jnp.array([12, 7]), jnp.array([0, 0]))
  second = np.zeros((2, 12), np.int32)
  second[0, :3], second[1, :8] = TOKENS[0, 12:15], TOKENS[1, 7:15]
  cache, _ = prefill(cache, slots, second, jnp.array([3, 8]), jnp.array([12, 7]))
  active = jnp.array([True, False, True])
  for begin in (15, 19):
    buffer = caches.open_buffer(cache, 4)
    for j in range(4):
      token = jnp.array([TOKENS[1, begin + j], 1, TOKENS[0, begin + j]])
      position = jnp.full((3,), begin + j)
      hidden, buffer, _ = step(cache, buffer, token, position, jnp.int32(j), active)
      np.testing.assert_allclose(hidden[2], want[0, begin + j], atol=1e-4)
      np.testing.assert_allclose(hidden[0], want[1, begin + j], atol=1e-4)
    cache = caches.close_buffer(cache, buffer, jnp.full((3,), begin), jnp.array([4, 0, 4]))


def test_prefill_leaves_other_rows_alone(policy, prefill):
  config, _ = policy
  cache = caches.empty_cache(config, 3, 32)
  filled = jax.tree.map(lambda a: a + 1, cache)
  after, _ = prefill(
    filled, jnp.array([1, 0]), jnp.ones((2, 12), jnp.int32), jnp.array([4, 0]), jnp.array([0, 0])
  )
  for old, new in zip(jax.tree.leaves(filled), jax.tree.leaves(after), strict=True):
    np.testing.assert_array_equal(old[0], new[0])
    np.testing.assert_array_equal(old[2], new[2])
    assert np.abs(old[1] - new[1]).max() > 0


def test_R7_padding_changes_no_real_token(run):
  padded = np.concatenate([TOKENS[:, :9], np.full((2, 14), 5, np.int32)], 1)
  segments = (np.arange(23) < 9).astype(np.int32)[None].repeat(2, 0)
  positions = np.arange(23, dtype=np.int32)[None].repeat(2, 0)
  one = np.asarray(run(padded, segments, positions)[0])[:, :9]
  padded[:, 9:] = 31
  other = np.asarray(run(padded, segments, positions)[0])[:, :9]
  np.testing.assert_array_equal(one, other)


def test_R4_experts_recorded_while_decoding_are_replayed_in_the_forward(policy, run, prefill, step):
  """Experts of prefill and decode are those of the forward; replayed, they give its output again."""
  config, params = policy
  T = 13
  tokens = np.zeros((3, T), np.int32)
  tokens[:2] = TOKENS[:, :T]
  ones, positions = np.ones((3, T), np.int32), np.broadcast_to(np.arange(T, dtype=np.int32), (3, T))
  compiled = jax.jit(lambda p, r, *rows: forward.forward(p, config, *rows, replay=r))
  replayed = lambda r: compiled(params, r, tokens, ones, positions)
  want, routing = replayed(jnp.full((4, 3, T, 2), -1))
  chosen = routing.experts
  cache, fed = prefill(
    caches.empty_cache(config, 3, 32), jnp.array([0, 1]), tokens[:2, :12], jnp.array([12, 12]),
    jnp.array([0, 0]),
  )
  _, _, decoded = step(
    cache, caches.open_buffer(cache, 4), jnp.asarray(tokens[:, 12]), jnp.full((3,), 12), jnp.int32(0),
    jnp.array([True, True, False]),
  )
  recorded = jnp.concatenate([fed, decoded[:, :2, None]], axis=2)
  assert recorded.dtype == jnp.int32 and recorded.shape == (4, 2, T, 2)
  np.testing.assert_array_equal(recorded, chosen[:, :2])
  np.testing.assert_array_equal(replayed(chosen)[0], want)
  other = (chosen + 1) % 5
  hidden, used = replayed(other)
  np.testing.assert_array_equal(used.experts, other)
  assert np.abs(np.asarray(hidden) - np.asarray(want)).max() > 1e-2
