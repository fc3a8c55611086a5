"""Attention: shared key heads, and the TPU kernel against the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.model import attention


def test_attend_shares_key_heads_between_neighbouring_query_heads():
  rng = np.random.default_rng(1)
  q, k, v = (rng.normal(size=(1, 3, n, 5)).astype(np.float32) for n in (4, 2, 2))
  mask = np.tril(np.ones((1, 3, 3), bool))
  got = attention.attend(*map(jnp.asarray, (q, k, v, mask)))
  for n in range(4):
    s = q[0, :, n] @ k[0, :, n // 2].T / np.sqrt(5)
    s = np.where(mask[0], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    want = p / p.sum(-1, keepdims=True) @ v[0, :, n // 2]
    np.testing.assert_allclose(got[0, :, n], want, atol=1e-5)


def rows(T, seed=0):
  rng = np.random.default_rng(seed)
  q, k, v = (rng.normal(size=(3, T, n, 8)).astype(np.float32) for n in (6, 2, 2))
  segments = np.sort(rng.integers(1, 4, (3, T)), axis=1).astype(np.int32)
  segments[1, T - T // 4 :] = 0  # right padding
  segments[2] = 0  # a row of nothing else
  return *map(jnp.asarray, (q, k, v)), jnp.asarray(segments)


def both(implementation, T, weight):
  def loss(q, k, v, segments):
    out = attention.attend_packed(q, k, v, segments, implementation=implementation)
    return jnp.sum(out * weight), out

  (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*rows(T))
  return out, *gradients


@pytest.mark.parametrize("T", [37, 611])
def test_the_tpu_kernel_equals_the_reference_at_any_length(T):
  """Values and gradients, below one tile of 128 and above one block of 512."""
  weight = jnp.asarray(np.random.default_rng(3).normal(size=(3, T, 6, 8)), jnp.float32)
  names = ("out", "q", "k", "v")
  for name, want, got in zip(
    names, both("reference", T, weight), both("splash_interpret", T, weight), strict=True
  ):
    np.testing.assert_allclose(got, want, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("implementation", ["reference", "splash_interpret"])
def test_G1_packed_segments_do_not_see_each_other(implementation):
  """FAULTS G1: pack [A, B] and run B alone: equal; one long document: different."""
  q, k, v, _ = rows(53)
  run = jax.jit(lambda *a: attention.attend_packed(*a, implementation=implementation))
  segments = jnp.asarray(np.repeat([[1, 2]], [19, 34], axis=1).repeat(3, 0), jnp.int32)
  packed = run(q, k, v, segments)
  alone = run(q[:, 19:], k[:, 19:], v[:, 19:], segments[:, 19:])
  np.testing.assert_allclose(packed[:, 19:], alone, atol=1e-5)
  joined = run(q, k, v, jnp.ones_like(segments))
  assert np.abs(np.asarray(joined - packed))[:, 19:].max() > 0.1


@pytest.mark.parametrize("T, n", [(1, 5), (7, 7)])
def test_a_pools_rows_are_read_as_far_as_they_reach(T, n, monkeypatch):
  """Against one softmax over everything; row lengths at and beside the borders of blocks."""
  rng = np.random.default_rng(0)
  B, K, G, S, H = 7, 2, 3, 131, 5
  draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
  keys, values = draw(B, K, S, H), draw(B, K, S, H)
  slots, start = np.array([4, 0, 6, 1, 3]), np.array([0, 63, 64, 129, 131])
  q, k, v = draw(5, T, K * G, H), draw(5, K, n, H), draw(5, K, n, H)
  mask = np.tril(np.ones((n, n), bool))[-T:][None].repeat(5, 0)
  pool = jax.jit(attention.attend_pool)
  got = pool(q, keys, values, slots, start, k, v, mask)
  rows_first = lambda a: jnp.swapaxes(jnp.asarray(a), 1, 2)
  held = np.broadcast_to((np.arange(S)[None] < start[:, None])[:, None], (5, T, S))
  want = attention.attend(
    jnp.asarray(q), jnp.concatenate([rows_first(keys[slots]), rows_first(k)], axis=1),
    jnp.concatenate([rows_first(values[slots]), rows_first(v)], axis=1),
    jnp.asarray(np.concatenate([held, mask], axis=-1)),
  )
  np.testing.assert_allclose(got, want, atol=2e-6)
  # All rows of a pool, in their order, at once: another order of the sums.
  whole = pool(q, keys[slots], values[slots], None, start, k, v, mask)
  np.testing.assert_allclose(whole, want, atol=2e-6)
  beside = values[slots].copy()
  beside[2:] = 1e4
  again = pool(q, keys[slots], beside, None, start, k, v, mask)
  np.testing.assert_array_equal(again[:2], whole[:2])
  # Longer rows are read in blocks: the same bits without an index.
  monkeypatch.setattr(attention, "WHOLE_ROW", S - 1)
  blocks = jax.jit(lambda *a: attention.attend_pool(*a))
  np.testing.assert_array_equal(
    blocks(q, keys[slots], values[slots], None, start, k, v, mask), got
  )
  # A short row gets the same bits beside a long one, whatever an earlier conversation left behind.
  left = keys.copy()
  left[0, :, 63:] = 1e4
  alone = pool(q, left, values, slots, np.array([0, 63, 1, 2, 0]), k, v, mask)
  np.testing.assert_array_equal(alone[:2], got[:2])
