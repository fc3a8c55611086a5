"""Conversation states of the rollout engine.  PURE.

A pool row holds one conversation: keys and values of the attention layers, DeltaNet state and
convolution tail of the others. Arrays are kept per layer, not stacked, so that each is updated
where it lies; a stretch of a head's positions is one block.

On a mesh the layers are stacked, [G …] and [G I …], and scanned: `stacked_cache_specs`.

Letters  B pool rows, b rows that decode, S positions, K key-value heads, H head size, M/A value and
         key heads, P/R key and value size, J steps of one decode loop, G groups, I DeltaNet layers
         of a group, W convolution tail.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from searchjax.model.config import ModelConfig
from searchjax.model.deltanet import empty_tails
from searchjax.model.params import ParamSpec


@flax.struct.dataclass
class Cache:
  """Attributes:
    keys, values: per attention layer, [B K S H].
    states, tails: per DeltaNet layer, float32 [B M P R] and a dict of [B W heads size].
  """

  keys: Any
  values: Any
  states: Any
  tails: Any


@flax.struct.dataclass
class DecodeBuffer:
  """What a decode loop adds: keys and values [b K J H] of its rows, and the pool's states and
  tails, which it changes where they lie."""

  keys: Any
  values: Any
  states: Any
  tails: Any


def empty_cache(config: ModelConfig, rows: int, length: int) -> Cache:
  """A pool of `rows` conversations of up to `length` tokens."""
  c = config
  dtype = jnp.dtype(c.param_dtype)
  n_delta = c.num_groups * c.deltas_per_group
  held = (rows, c.num_kv_heads, length, c.head_size)
  state = (rows, c.delta_value_heads, c.delta_key_size, c.delta_value_size)
  return Cache(
    keys=tuple(jnp.zeros(held, dtype) for _ in range(c.num_groups)),
    values=tuple(jnp.zeros(held, dtype) for _ in range(c.num_groups)),
    states=tuple(jnp.zeros(state, jnp.float32) for _ in range(n_delta)),
    tails=tuple(empty_tails(c, rows, dtype) for _ in range(n_delta)),
  )


def open_buffer(cache: Cache, rows: int, steps: int) -> DecodeBuffer:
  """An empty buffer for a decode loop of `steps` tokens in some rows."""
  empty = lambda a: jnp.zeros((rows, a.shape[1], steps, a.shape[3]), a.dtype)
  keys, values = jax.tree.map(empty, (cache.keys, cache.values))
  return DecodeBuffer(keys, values, cache.states, cache.tails)


def close_buffer(
  cache: Cache, buffer: DecodeBuffer, slots: Int[Array, "b"], start: Int[Array, "b"],
  count: Int[Array, "b"],
) -> Cache:
  """Writes the first `count` steps of each row behind its `start` positions."""
  S, steps = cache.keys[0].shape[2], buffer.keys[0].shape[2]
  j = jnp.arange(steps)[None, :]
  at = jnp.where(j < count[:, None], start[:, None] + j, S)
  row = jnp.broadcast_to(slots[:, None], at.shape)

  def write(old, new):
    # Advanced indices around slices put [row, step] first: [b J K H] on both sides.
    return old.at[row, :, at, :].set(jnp.swapaxes(new, 1, 2), mode="drop")

  keys, values = jax.tree.map(
    write, (cache.keys, cache.values), (buffer.keys, buffer.values)
  )
  return Cache(keys, values, buffer.states, buffer.tails)


def fork(
  cache: Cache, source: Int[Array, "n"], target: Int[Array, "n"], count: Int[Array, ""],
  *, stacked: bool = False,
) -> Cache:
  """Copies the first `count` source rows to target rows, where the pool lies."""

  def copy(i, stack, axis):
    row = jax.lax.dynamic_slice_in_dim(stack, source[i], 1, axis=axis)
    return jax.lax.dynamic_update_slice_in_dim(stack, row, target[i], axis=axis)

  def one(i, cache):
    keys, values = jax.tree.map(
      lambda a: copy(i, a, 1 if stacked else 0), (cache.keys, cache.values)
    )
    states, tails = jax.tree.map(
      lambda a: copy(i, a, 2 if stacked else 0), (cache.states, cache.tails)
    )
    return Cache(keys, values, states, tails)

  return jax.lax.fori_loop(0, count, one, cache)


# ---- stacked, for a mesh -------------------------------------------------------------------------


def stacked_cache_specs(config: ModelConfig, rows: int, length: int) -> Cache:
  """The pool's arrays as ParamSpec, with the logical axes that the decode layout divides.

  Without DeltaNet layers there are no states and tails: None.
  """
  c, dtype = config, jnp.dtype(config.param_dtype).name
  G, delta = c.num_groups, (c.num_groups, c.deltas_per_group)

  def spec(shape, axes, dtype=dtype):
    return ParamSpec(shape, axes, "zeros", 1, dtype)

  def tail(heads, size):
    return spec(
      (*delta, rows, c.conv_kernel - 1, heads, size),
      ("groups", "layers", "lanes", None, "delta_heads", None),
    )

  key, value = (c.delta_key_heads, c.delta_key_size), (c.delta_value_heads, c.delta_value_size)
  held = spec(
    (G, rows, c.num_kv_heads, length, c.head_size), ("groups", "lanes", None, "positions", None)
  )
  return Cache(
    keys=held,
    values=held,
    states=None if not delta[1] else spec(
      (*delta, rows, c.delta_value_heads, c.delta_key_size, c.delta_value_size),
      ("groups", "layers", "lanes", "delta_heads", None, None), "float32",
    ),
    tails=None if not delta[1] else {
      "query": tail(*key), "key": tail(*key), "value": tail(*value)
    },
  )


def write_window(
  stack: Shaped[Array, "G B K S H"],
  block: Shaped[Array, "g 1 K J H"],
  group: Array | int,
  row: Array | int,
  first: Array | int,
  start: Int[Array, ""],
  count: Int[Array, ""],
) -> Shaped[Array, "G B K S H"]:
  """Writes the first `count` positions of a block behind position `start`, where they are held.

  One slice is read, changed and written back: the stack is updated where it lies.

  Args:
    stack: positions first … first + S − 1 of a cache.
    block: J ≤ S positions of one row, of groups from `group` on.
  """
  held, size = stack.shape[3], block.shape[3]
  low = jnp.clip(start - first, 0, held - size)
  source = first + low + jnp.arange(size, dtype=start.dtype) - start
  moved = jnp.take(block, jnp.clip(source, 0, size - 1), axis=3)
  new = ((source >= 0) & (source < count))[None, None, None, :, None]
  at = (group, row, 0, low, 0)
  old = jax.lax.dynamic_slice(stack, at, block.shape)
  return jax.lax.dynamic_update_slice(stack, jnp.where(new, moved, old), at)
