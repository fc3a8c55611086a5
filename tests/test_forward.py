"""The decoder: packing, padding, prefill and decode against the plain forward, replay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.model import cache as caches
from searchjax.model import forward
from searchjax.model.config import model_config
from searchjax.model.params import ParamSpec, param_specs, unstack_layers

SMALL = dict(
  hidden_size=24, num_query_heads=4, head_size=8, rotary_dims=4, num_experts=5, expert_size=7,
  shared_expert_size=11, vocab_size=53, real_vocab_size=47, delta_key_heads=1, delta_value_heads=2,
  delta_key_size=5, delta_value_size=6, chunk_length=8,
)


# The second: as on a pod, with room for every assignment.
VARIANTS = [
  dict(num_layers=2, full_attention_interval=2),
  dict(scan_layers=True, moe_dispatch="capacity", capacity_factor=5.0),
]


@pytest.fixture(scope="module", params=VARIANTS, ids=["laptop", "pod"])
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
  """The forward with experts to replay: by default none, so that every token is routed live."""
  config, params = policy
  compiled = jax.jit(lambda params, r, *rows: forward.forward(params, config, *rows, replay=r))
  live = np.full((config.num_layers, 2, 23, 2), -1, np.int32)
  return lambda *rows, replay=live: compiled(params, replay, *rows)


def cramped(config):
  """Capacity for hardly anything: what prefill and decode must not care about."""
  return dataclasses.replace(config, capacity_factor=0.1)


@pytest.fixture(scope="module")
def prefill(policy):
  config, params = policy
  config = cramped(config)
  compiled = jax.jit(lambda params, *args: forward.prefill(unstack_layers(params, config), config, *args))
  return lambda *args: compiled(params, *args)


@pytest.fixture(scope="module")
def step(policy):
  config, params = policy
  config = cramped(config)
  compiled = jax.jit(
    lambda params, *args: forward.decode(unstack_layers(params, config), config, *args)
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


def test_prefill_and_decode_equal_the_forward_and_record_its_experts(policy, run, prefill, step):
  """FAULTS X8 for the whole decoder, and R6: the recorded experts are those the forward chooses."""
  config, _ = policy
  positions = np.broadcast_to(np.arange(23, dtype=np.int32), (2, 23))
  want, routing = run(TOKENS, np.ones((2, 23), np.int32), positions)
  cache = caches.empty_cache(config, 4, 32)
  recorded = np.full((config.num_layers, 2, 23, 2), -9, np.int32)
  slots = jnp.array([2, 0])
  for start, length in (((0, 0), (12, 7)), ((12, 7), (3, 8))):
    fed = np.zeros((2, 12), np.int32)
    for i in range(2):
      fed[i, : length[i]] = TOKENS[i, start[i] : start[i] + length[i]]
    cache, experts = prefill(cache, slots, fed, jnp.array(length), jnp.array(start))
    assert experts.dtype == jnp.int32
    for i in range(2):
      recorded[:, i, start[i] : start[i] + length[i]] = experts[:, i, : length[i]]
  # The first conversation goes on in a copy; a lane decodes nothing.
  active = jnp.array([True, False, True])
  cache = caches.fork(cache, jnp.array([2, 0]), jnp.array([3, 0]), jnp.int32(1))
  slots = jnp.array([0, 1, 3])
  idle = jax.tree.map(lambda a: a[1], (cache.states, cache.tails))
  for begin in (15, 19):
    buffer = caches.open_buffer(cache, 3, 4)
    for j in range(4):
      token = jnp.array([TOKENS[1, begin + j], 1, TOKENS[0, begin + j]])
      position = jnp.array([begin + j, 0, begin + j])  # an idle lane stands at 0
      hidden, buffer, experts = step(cache, buffer, slots, token, position, jnp.int32(j), active)
      np.testing.assert_allclose(hidden[2], want[0, begin + j], atol=1e-4)
      np.testing.assert_allclose(hidden[0], want[1, begin + j], atol=1e-4)
      recorded[:, 0, begin + j], recorded[:, 1, begin + j] = experts[:, 2], experts[:, 0]
    cache = caches.close_buffer(
      cache, buffer, slots, jnp.array([begin, 0, begin]), jnp.array([4, 0, 4])
    )
  jax.tree.map(
    np.testing.assert_array_equal, idle, jax.tree.map(lambda a: a[1], (cache.states, cache.tails))
  )
  np.testing.assert_array_equal(recorded, routing.experts)
  assert routing.overflow.tolist() == [0] * config.num_layers
  assert routing.balance.shape == (config.num_layers,)


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


def test_G4_the_same_prompt_twice_gives_the_same_state(policy, prefill):
  """FAULTS G4: nothing of a row's earlier conversation, or of a shared prefix, is read again."""
  config, _ = policy
  slots, zero = jnp.array([2, 0]), jnp.array([0, 0])
  feed = lambda cache, at, n, start: prefill(
    cache, slots, jnp.asarray(TOKENS[:, at : at + 12]), jnp.array([n, n]), start
  )[0]
  once = feed(caches.empty_cache(config, 3, 32), 0, 12, zero)
  later = feed(once, 11, 9, jnp.array([12, 12]))
  again = feed(later, 0, 12, zero)
  recurrent = lambda cache: (cache.states, cache.tails)
  jax.tree.map(np.testing.assert_array_equal, recurrent(once), recurrent(again))
  assert any(
    np.any(a != b) for a, b in zip(once.states, later.states, strict=True)
  ), "the continuation did change it"
  np.testing.assert_array_equal(once.keys[0][:, :, :12], again.keys[0][:, :, :12])


def test_R7_padding_changes_no_real_token(run):
  padded = np.concatenate([TOKENS[:, :9], np.full((2, 14), 5, np.int32)], 1)
  segments = (np.arange(23) < 9).astype(np.int32)[None].repeat(2, 0)
  positions = np.arange(23, dtype=np.int32)[None].repeat(2, 0)
  one = np.asarray(run(padded, segments, positions)[0])[:, :9]
  padded[:, 9:] = 31
  other = np.asarray(run(padded, segments, positions)[0])[:, :9]
  np.testing.assert_array_equal(one, other)


def test_R4_replayed_experts_are_used_and_their_own_choice_changes_nothing(run):
  rows = (
    TOKENS, np.ones((2, 23), np.int32),
    np.broadcast_to(np.arange(23, dtype=np.int32), (2, 23)),
  )  # fmt: skip
  want, routing = run(*rows)
  again, _ = run(*rows, replay=routing.experts)
  np.testing.assert_array_equal(again, want)
  other = (np.asarray(routing.experts) + 1) % 5
  other[:, 1, 20:] = -1  # the second row's end is routed live
  hidden, used = run(*rows, replay=other)
  np.testing.assert_array_equal(used.experts[:, :, :20], other[:, :, :20])
  assert np.all(np.asarray(used.experts) >= 0)
  assert np.abs(np.asarray(hidden) - np.asarray(want)).max() > 1e-2
