"""Gated grouped-query attention, for training and over a cache.  PURE.

  q, gate = split(W_q x);  q = rope(norm(q));  k = rope(norm(W_k x));  v = W_v x
  out = W_o (softmax(q kᵀ / sqrt(H), float32) v · sigmoid(gate))

Letters  B rows, b rows of a pool that are read, T tokens, S cached positions, n new ones, D model
         width, N/K query and key-value heads, H head size, G query heads a key head.
Source   transformers modeling_qwen3_5_moe (attn_output_gate), modeling_qwen3_moe (no gate);
jax.experimental.pallas.ops.tpu.splash_attention.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from searchjax.model.config import ModelConfig
from searchjax.model.layers import rms_norm, rotate
from searchjax.model.parallel import LOCAL, Parallel

# Finite, so that a row with nothing to attend to gives a uniform average instead of NaN.
MASKED = -1e30


def project(
  weights: dict, config: ModelConfig, x: Float[Array, "B T D"], positions: Int[Array, "B T"]
) -> tuple[Array, Array, Array, Array | None]:
  """Queries, keys, values (rotated, normed) and the raw gate, or None without one."""
  c = config
  q = jnp.einsum("BTD,DNH->BTNH", x, weights["query"])
  gate = None
  if c.attention_gate:
    q, gate = jnp.split(q, 2, axis=-1)
  k = jnp.einsum("BTD,DKH->BTKH", x, weights["key"])
  v = jnp.einsum("BTD,DKH->BTKH", x, weights["value"])
  norm = dict(eps=c.norm_eps, zero_centred=c.zero_centred_norm)
  q = rms_norm(q, weights["query_norm"], **norm)
  k = rms_norm(k, weights["key_norm"], **norm)
  rope = dict(rotary_dims=c.rotary_dims, theta=c.rope_theta)
  return rotate(q, positions, **rope), rotate(k, positions, **rope), v, gate


def merge(
  weights: dict, mixed: Float[Array, "B T N H"], gate: Float[Array, "B T N H"] | None
) -> Float[Array, "B T D"]:
  """Gates the attention output and projects it back to the model width."""
  if gate is not None:
    mixed = mixed * jax.nn.sigmoid(gate)
  return jnp.einsum("BTNH,NHD->BTD", mixed, weights["out"])


def attend(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  mask: Bool[Array, "B T S"],
) -> Float[Array, "B T N H"]:
  """Softmax attention where `mask` is True; scores and softmax in float32."""
  B, T, N, H = q.shape
  K = k.shape[2]
  q = q.reshape(B, T, K, N // K, H)
  scores = jnp.einsum("BTKGH,BSKH->BKGTS", q, k, preferred_element_type=jnp.float32)
  scores = jnp.where(mask[:, None, None], scores * H**-0.5, MASKED)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  return jnp.einsum("BKGTS,BSKH->BTKGH", weights, v).reshape(B, T, N, H)


# Positions of a pool's row that are read at a time.
POOL_BLOCK = 64
# Longest rows that a whole pool reads as one block, where they lie: CPUs copy every other block,
# which takes as long as reading several times as much.
WHOLE_ROW = 512


def attend_pool(
  q: Float[Array, "b T N H"],
  keys: Float[Array, "B K S H"],
  values: Float[Array, "B K S H"],
  slots: Int[Array, "b"] | None,
  start: Int[Array, "b"],
  k: Float[Array, "b K n H"],
  v: Float[Array, "b K n H"],
  mask: Bool[Array, "b T n"],
) -> Float[Array, "b T N H"]:
  """Softmax attention over a row of the pool up to `start`, and new keys where `mask` is True.

  Rows are read block by block as far as the longest one reaches, with a running maximum m:
  num ← num e^(m − m') + Σ e^(score − m') v, the mass alike. What lies behind a row's own `start`
  adds exact zeros, so what else is in the batch does not matter.

  Args:
    keys, values: a pool of rows, of which `slots` are read; None: all, in their order.
    start: positions held of each row.
  """
  b, T, N, H = q.shape
  K, S = keys.shape[1:3]
  size = S if slots is None and S <= WHOLE_ROW else min(POOL_BLOCK, S)
  q = jnp.moveaxis((q * H**-0.5).reshape(b, T, K, N // K, H), 1, 3)
  score = functools.partial(jnp.einsum, "bKGTH,bKSH->bKGTS", preferred_element_type=jnp.float32)
  mix = functools.partial(jnp.einsum, "bKGTS,bKSH->bKGTH", preferred_element_type=jnp.float32)

  def weighted(scores, allowed, v, most):
    weights = jnp.where(allowed, jnp.exp(scores - most[..., None]), 0.0)
    return mix(weights.astype(v.dtype), v), jnp.sum(weights, axis=-1)

  # The new positions first: each query sees one at least.
  allowed = mask[:, None, None]
  scores = jnp.where(allowed, score(q, k), MASKED)
  most = jnp.max(scores, axis=-1)
  num, mass = weighted(scores, allowed, v, most)

  def read(pool, begin):
    if slots is None:
      return jax.lax.dynamic_slice_in_dim(pool, begin, size, axis=2)
    one = lambda slot: jax.lax.dynamic_slice(pool, (slot, 0, begin, 0), (1, K, size, H))[0]
    return jax.vmap(one)(slots)

  def block(i, carry):
    most, num, mass = carry
    begin = jnp.minimum(i * size, S - size)
    at = (begin + jnp.arange(size))[None, :]
    allowed = ((at >= i * size) & (at < start[:, None]))[:, None, None, None]
    scores = jnp.where(allowed, score(q, read(keys, begin)), MASKED)
    higher = jnp.maximum(most, jnp.max(scores, axis=-1))
    more, heavier = weighted(scores, allowed, read(values, begin), higher)
    fade = jnp.exp(most - higher)
    return higher, num * fade[..., None] + more, mass * fade + heavier

  blocks = -(-jnp.max(start) // size)
  _, num, mass = jax.lax.fori_loop(0, blocks, block, (most, num, mass))
  mixed = num / mass[..., None]
  return jnp.moveaxis(mixed, 3, 1).reshape(b, T, N, H).astype(v.dtype)


# The kernel's tiles are multiples of 128; rows longer than the larger one are tiled by it.
SPLASH_LANES = 128
SPLASH_BLOCK = 512
# Keys of one tile of the backward pass, if they divide the row: for each tile there is a summand of
# the queries' gradient in memory, so few of them.
SPLASH_BACKWARD = (2048, 1024)


def attend_packed(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B T K H"],
  v: Float[Array, "B T K H"],
  segment_ids: Int[Array, "B T"],
  *,
  implementation: str = "reference",
) -> Float[Array, "B T N H"]:
  """Causal softmax attention inside each packed segment.

  Args:
    segment_ids: tokens attend only to earlier tokens with the same id; 0 is padding, at least 0.
    implementation: "reference"; "splash", the TPU kernel, which keeps no [T T] scores;
      "splash_interpret", the same kernel on any device. Any T: rows are padded to the kernel's
      blocks by tokens of a segment of their own, which no real token sees.
  """
  if implementation == "reference":
    T = q.shape[1]
    causal = jnp.arange(T)[:, None] >= jnp.arange(T)[None, :]
    mask = (segment_ids[:, :, None] == segment_ids[:, None, :]) & causal[None]
    return attend(q, k, v, mask)
  return _splash(q, k, v, segment_ids, interpret=implementation == "splash_interpret")


def _splash(q, k, v, segment_ids, *, interpret):
  # Imported here: the kernel's modules are of no use to the reference path.
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

  T, N = q.shape[1:3]
  block = SPLASH_BLOCK if T > SPLASH_BLOCK else -(-T // SPLASH_LANES) * SPLASH_LANES
  pad = -T % block
  keys = next((b for b in SPLASH_BACKWARD if (T + pad) % b == 0), block)
  widen = lambda a: jnp.pad(a, ((0, 0), (0, pad), (0, 0), (0, 0)))
  # The kernel multiplies no scale in.
  q, k, v = widen(q * q.shape[-1] ** -0.5), widen(k), widen(v)
  segment_ids = jnp.pad(segment_ids, ((0, 0), (0, pad)), constant_values=-1)
  attend_row = kernel.make_splash_mha_single_device(
    masks.MultiHeadMask([masks.CausalMask((T + pad, T + pad)) for _ in range(N)]),
    # One kernel for all three gradients: five products of [T T] where two kernels need seven.
    block_sizes=kernel.BlockSizes(
      block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=keys,
      block_kv_dkv_compute=block, use_fused_bwd_kernel=True,
    ),
    interpret=interpret,
  )
  heads_first = lambda a: jnp.swapaxes(a, 1, 2)
  mixed = jax.vmap(attend_row)(
    heads_first(q), heads_first(k), heads_first(v), kernel.SegmentIds(segment_ids, segment_ids)
  )
  return heads_first(mixed)[:, :T]


def attention(
  weights: dict,
  config: ModelConfig,
  x: Float[Array, "B t D"],
  positions: Int[Array, "B t"],
  segment_ids: Int[Array, "B T"],
  parallel: Parallel = LOCAL,
) -> Float[Array, "B t D"]:
  """The layer over packed rows; see `attend_packed`.

  Args:
    x, positions: of the device's stretch of the sequence.
    segment_ids: of the whole rows.
  """
  q, k, v, gate = project(weights, config, x, positions)
  q, k, v = parallel.to_heads(q), parallel.to_heads(k), parallel.to_heads(v)
  mixed = attend_packed(
    q, k, v, segment_ids, implementation=config.attention_implementation
  )
  return merge(weights, parallel.to_sequence(mixed), gate)
