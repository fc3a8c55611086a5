"""Conversation states of the rollout engine.  PURE.

A pool row holds one conversation: keys and values of the attention layers, DeltaNet state and
convolution tail of the others. Arrays are kept per layer, not stacked, so that each is updated
where it lies. Keys lie [K H S] and values [K S H], the layouts in which a one-token query reads
them contiguously.

Letters  B pool rows, S positions, K key-value heads, H head size, M value heads, P/R key and value
         size,
         J steps of one decode loop.
"""

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Int

from searchjax.model.config import ModelConfig
from searchjax.model.deltanet import empty_tails


@flax.struct.dataclass
class Cache:
  """Attributes:
    keys, values: per attention layer, [B K H S] and [B K S H].
    states, tails: per DeltaNet layer, float32 [B M P R] and a dict of [B W heads size].
  """

  keys: tuple
  values: tuple
  states: tuple
  tails: tuple


@flax.struct.dataclass
class DecodeBuffer:
  """What a decode loop adds: keys [B K H J], values [B K J H], running states and tails."""

  keys: tuple
  values: tuple
  states: tuple
  tails: tuple


def empty_cache(config: ModelConfig, rows: int, length: int) -> Cache:
  """A pool of `rows` conversations of up to `length` tokens."""
  c = config
  dtype = jnp.dtype(c.param_dtype)
  n_delta = c.num_groups * c.deltas_per_group
  key = (rows, c.num_kv_heads, c.head_size, length)
  value = (rows, c.num_kv_heads, length, c.head_size)
  state = (rows, c.delta_value_heads, c.delta_key_size, c.delta_value_size)
  return Cache(
    keys=tuple(jnp.zeros(key, dtype) for _ in range(c.num_groups)),
    values=tuple(jnp.zeros(value, dtype) for _ in range(c.num_groups)),
    states=tuple(jnp.zeros(state, jnp.float32) for _ in range(n_delta)),
    tails=tuple(empty_tails(c, rows, dtype) for _ in range(n_delta)),
  )


def open_buffer(cache: Cache, steps: int) -> DecodeBuffer:
  """An empty buffer for a decode loop of `steps` tokens that starts from `cache`."""
  return DecodeBuffer(
    keys=tuple(jnp.zeros((*k.shape[:3], steps), k.dtype) for k in cache.keys),
    values=tuple(jnp.zeros((*v.shape[:2], steps, v.shape[3]), v.dtype) for v in cache.values),
    states=cache.states,
    tails=cache.tails,
  )


def close_buffer(
  cache: Cache, buffer: DecodeBuffer, start: Int[Array, "B"], count: Int[Array, "B"]
) -> Cache:
  """Writes the first `count` steps of each row behind its `start` positions."""
  B, S = cache.keys[0].shape[0], cache.keys[0].shape[-1]
  steps = buffer.keys[0].shape[-1]
  j = jnp.arange(steps)[None, :]
  at = jnp.where(j < count[:, None], start[:, None] + j, S)
  row = jnp.broadcast_to(jnp.arange(B)[:, None], at.shape)
  # Advanced indices around slices put [row, step] first: [B J K H] on both sides.
  keys = tuple(
    old.at[row, :, :, at].set(jnp.transpose(new, (0, 3, 1, 2)), mode="drop")
    for old, new in zip(cache.keys, buffer.keys, strict=True)
  )
  values = tuple(
    old.at[row, :, at, :].set(jnp.transpose(new, (0, 2, 1, 3)), mode="drop")
    for old, new in zip(cache.values, buffer.values, strict=True)
  )
  return Cache(keys, values, buffer.states, buffer.tails)
