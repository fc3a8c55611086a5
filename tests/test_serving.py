"""The decoder divided for rollouts, in parts; the whole of it is compared in test_parallel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from searchjax.dist.mesh import make_mesh
from searchjax.model import heads, serving
from searchjax.model.config import model_config

MODEL = model_config("tiny", hidden_size=7, vocab_size=20, real_vocab_size=19, tie_embeddings=False)


@functools.partial(jax.jit, static_argnames=("rows", "implementation"))
def sorted_experts(weights, x, w, own, rows, implementation):
  return serving.sorted_experts(weights, x, w, own, rows=rows, implementation=implementation)


@pytest.mark.parametrize("rows, implementation", [(4, "ragged"), (4, "capacity"), (64, "ragged")])
def test_no_token_is_left_out_however_many_choose_an_expert(rows, implementation):
  rng = np.random.default_rng(0)
  held, T, X, D, F = 3, 13, 2, 7, 5
  weights = {
    "gate_up": rng.normal(size=(held, D, 2 * F)).astype(np.float32),
    "down": rng.normal(size=(held, F, D)).astype(np.float32),
  }
  x, w = rng.normal(size=(T, D)).astype(np.float32), rng.random((T, X)).astype(np.float32)
  # 11 tokens choose the second expert, more than a round's rows; 3 is another device's.
  own = np.stack([rng.permutation(held + 1)[:X] for _ in range(T)]).astype(np.int32)
  own[:11, 0], own[:11, 1] = 1, rng.choice([0, 2, 3], 11)
  want = np.zeros((T, D))
  for t in range(T):
    for e, weight in zip(own[t], w[t], strict=True):
      if e < held:
        gate, up = np.split(x[t].astype(np.float64) @ weights["gate_up"][e], 2)
        want[t] += weight * (gate / (1 + np.exp(-gate)) * up) @ weights["down"][e]
  got = sorted_experts(weights, x, w, own, rows=rows, implementation=implementation)
  np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
  # One round only would leave most of them out.
  assert rows == 64 or np.abs(want).min(axis=1).max() > 0


def test_a_device_without_tokens_gives_zeros():
  weights = {"gate_up": np.ones((2, 7, 6), np.float32), "down": np.ones((2, 3, 7), np.float32)}
  own = np.full((5, 2), 2, np.int32)
  got = sorted_experts(
    weights, np.ones((5, 7), np.float32), np.ones((5, 2), np.float32), own, rows=4, implementation="ragged"
  )
  np.testing.assert_array_equal(got, np.zeros((5, 7), np.float32))


@pytest.mark.parametrize("lanes", [8, 3])
def test_a_choice_sees_the_whole_vocabulary_of_its_own_lane(lanes):
  """Lanes that divide over the devices are dealt out, others are chosen for everywhere."""
  rng = np.random.default_rng(0)
  params = {"head": rng.normal(size=(7, 20)).astype(np.float32)}
  hidden = jnp.asarray(rng.normal(size=(lanes, 7)), jnp.float32)
  shift = jnp.arange(lanes, dtype=jnp.float32)
  pick = lambda out, shift: (jnp.argmax(out, axis=-1), jax.nn.logsumexp(out, axis=-1) + shift)
  one = lambda *args: serving.choose(args[0], MODEL, serving.Serving(expert=4), args[1], pick, args[2])
  got = jax.jit(jax.shard_map(
    one, mesh=make_mesh(1, 4, 1), in_specs=({"head": P(None, "expert")}, P(), P()), out_specs=P(),
    check_vma=False,
  ))(params, hidden, shift)
  want = pick(heads.logits(params, MODEL, hidden), shift)
  np.testing.assert_array_equal(got[0], want[0])
  np.testing.assert_allclose(got[1], want[1], rtol=1e-6)
  assert not (np.asarray(want[0]) == 19).any()


def test_experts_and_positions_are_counted_in_the_tables_order():
  parts = serving.Serving(fsdp=2, expert=2)
  mesh = make_mesh(2, 2, 1)
  first = jax.jit(jax.shard_map(
    lambda: (jnp.full((1,), parts.first("experts", 3)), jnp.full((1,), parts.first("positions", 5))),
    mesh=mesh, in_specs=(), out_specs=(P(("expert", "fsdp")), P(("expert", "fsdp"))), check_vma=False,
  ))()
  np.testing.assert_array_equal(first[0], [0, 3, 6, 9])
  np.testing.assert_array_equal(first[1], [0, 0, 5, 5])
