"""Gated DeltaNet: chunk form for training and prefill, one-step recurrence for decoding.  PURE.

Per value head, with state S [P, R] in float32 and S = 0 at a document's start:

  S ← e^g S;   d = β (v − Sᵀ k);   S ← S + k dᵀ;   o = Sᵀ q          (decay, read, write, output)
  β = sigmoid(W_b x);   g = −exp(A_log) · softplus(W_a x + dt_bias)
  q, k are l2-normalised (q also · P^-½) after a causal depthwise convolution of width 4 and SiLU.

Chunk form over C tokens, G = cumsum(g), D_ij = e^(G_i − G_j) for i ≥ j of one document, else 0:

  (I + A) U = β v,  (I + A) W = β k e^G,  A = strictly lower part of (β k) kᵀ · D
  v' = U − W S;   o = (q e^G) S + (q kᵀ · D) v';   S ← e^(G_C) S + (k e^(G_C − G))ᵀ v'

Documents packed in one row share neither state nor convolution taps: D is zero across documents,
the carried state reaches only tokens of the document it belongs to. Padding passes the state on
unchanged (k = v = β = g = 0 there).

Letters  B rows, T tokens, C chunk length, D model width, M/A value and key heads, P/R key and value
size.
Source   Gated DeltaNet arXiv:2412.06464; transformers modeling_qwen3_5_moe.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from searchjax.model.config import ModelConfig
from searchjax.model.parallel import LOCAL, Parallel

# Weights with one part per head, and the axis of the heads.
PER_HEAD = {"conv_query": 1, "conv_key": 1, "conv_value": 1, "A_log": 0, "dt_bias": 0}
# float32 products must stay float32 on TPU, where the default would round inputs to bfloat16.
HIGHEST = jax.lax.Precision.HIGHEST


def project(weights: dict, x: Float[Array, "B T D"]) -> dict:
  """Raw projections: query, key, value before the convolution, output gate, write and decay."""
  heads = {n: jnp.einsum("BTD,DMR->BTMR", x, weights[n]) for n in ("query", "key", "value", "gate")}
  scalars = {n: jnp.einsum("BTD,DM->BTM", x, weights[n]) for n in ("write", "decay")}
  return heads | scalars


def convolve(
  x: Float[Array, "B T M R"],
  tail: Float[Array, "B W M R"],
  kernel: Float[Array, "J M R"],
  same_document: Bool[Array, "J B T"] | None,
  silu: Callable = jax.nn.silu,
) -> Float[Array, "B T M R"]:
  """Causal depthwise convolution and SiLU; kernel[-1] multiplies the current token.

  Args:
    tail: the last J − 1 inputs before this call, zeros at a document's start.
    same_document: [j, b, t] True where the token j before t belongs to t's document; None: all do.
    silu: how it is computed.
  """
  J, T = kernel.shape[0], x.shape[1]
  padded = jnp.concatenate([tail.astype(x.dtype), x], axis=1)
  total = jnp.zeros(x.shape, x.dtype)
  for j in range(J):
    tap = jax.lax.slice_in_dim(padded, J - 1 - j, J - 1 - j + T, axis=1)
    if same_document is not None and j:
      tap = jnp.where(same_document[j][:, :, None, None], tap, 0)
    total = total + tap * kernel[J - 1 - j][None, None]
  return silu(total)


def gates(
  weights: dict, raw: dict
) -> tuple[Float[Array, "B T M"], Float[Array, "B T M"]]:
  """Write strength β in (0, 1) and log-decay g ≤ 0, both float32.

  transformers rounds β to the activation dtype; here nothing is rounded after the projection, on
  the training and the rollout side alike. In float32 the two are the same.
  """
  beta = jax.nn.sigmoid(raw["write"].astype(jnp.float32))
  rate = jax.nn.softplus(raw["decay"].astype(jnp.float32) + weights["dt_bias"][None, None])
  return beta, -jnp.exp(weights["A_log"].astype(jnp.float32))[None, None] * rate


def normalise(q: Array, k: Array, value_heads: int) -> tuple[Array, Array]:
  """l2-normalises q and k in float32, scales q, repeats key heads to the value heads."""
  q, k = (
    y * jax.lax.rsqrt(jnp.sum(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    for y in (q.astype(jnp.float32), k.astype(jnp.float32))
  )
  repeat = value_heads // q.shape[2]
  if repeat > 1:
    q, k = jnp.repeat(q, repeat, axis=2), jnp.repeat(k, repeat, axis=2)
  return q * q.shape[-1] ** -0.5, k


def _double(lower: Float[Array, "*batch C C"]) -> Float[Array, "*batch C C"]:
  """`unit_lower_inverse` by doubling blocks: exact forward substitution, matmuls only."""
  *batch, C, _ = lower.shape
  inverse = jnp.ones((*batch, C, 1, 1), lower.dtype)
  size = 1
  while size < C:
    n = C // (2 * size)
    blocks = lower.reshape(*batch, n, 2 * size, n, 2 * size)
    diagonal = jnp.moveaxis(jnp.diagonal(blocks, axis1=-4, axis2=-2), -1, -3)
    corner = diagonal[..., size:, :size]
    pairs = inverse.reshape(*batch, n, 2, size, size)
    top, bottom = pairs[..., 0, :, :], pairs[..., 1, :, :]
    below = -jnp.matmul(bottom, jnp.matmul(corner, top, precision=HIGHEST), precision=HIGHEST)
    upper = jnp.concatenate([top, jnp.zeros_like(top)], axis=-1)
    inverse = jnp.concatenate([upper, jnp.concatenate([below, bottom], axis=-1)], axis=-2)
    size *= 2
  return inverse.reshape(*batch, C, C)


def unit_lower_inverse(lower: Float[Array, "*batch C C"]) -> Float[Array, "*batch C C"]:
  """Inverse of I + strictly-lower A; A has zeros on and above the diagonal, C is a power of two.

  Its derivative is written out, −(I + A)⁻¹ dA (I + A)⁻¹, so that the backward pass keeps nothing of
  how it was found.
  """
  inverse = jax.custom_vjp(_double)
  inverse.defvjp(lambda lower: (_double(lower),) * 2, _inverse_backward)
  return inverse(lower)


def _inverse_backward(inverse, grad):
  transposed = jnp.swapaxes(inverse, -1, -2)
  right = jnp.matmul(grad, transposed, precision=HIGHEST)
  return (-jnp.tril(jnp.matmul(transposed, right, precision=HIGHEST), -1),)


def delta_chunks(
  q: Float[Array, "B T M P"],
  k: Float[Array, "B T M P"],
  v: Float[Array, "B T M R"],
  beta: Float[Array, "B T M"],
  g: Float[Array, "B T M"],
  segment_ids: Int[Array, "B T"],
  state: Float[Array, "B M P R"],
  state_segment: Int[Array, "B"],
  *,
  chunk_length: int,
) -> tuple[Float[Array, "B T M R"], Float[Array, "B M P R"]]:
  """The chunk form over any T (padded inside to a multiple of the chunk).

  Args:
    segment_ids: document of each token. Padding must carry k = v = β = g = 0 and, where the state
      is wanted afterwards, the id of the document it follows.
    state, state_segment: the state before the first token and the document it belongs to.

  Returns:
    Outputs, and the state of the last token's document after the last token.
  """
  B, T, M, P = q.shape
  C = chunk_length
  pad = -T % C
  if pad:
    widen = lambda a, mode="constant": jnp.pad(
      a, [(0, 0), (0, pad)] + [(0, 0)] * (a.ndim - 2), mode=mode
    )
    q, k, v, beta, g = (widen(a) for a in (q, k, v, beta, g))
    segment_ids = widen(segment_ids, "edge")
  n = (T + pad) // C
  # [n, B, M, C, ...]: chunks lead for the scan, heads next to rows for the batched products.
  fold = lambda a: jnp.moveaxis(a.reshape(B, n, C, M, *a.shape[3:]), (1, 3), (0, 2))
  q, k, v, beta, g = (fold(a) for a in (q, k, v, beta, g))
  segment = jnp.moveaxis(segment_ids.reshape(B, n, C), 1, 0)
  last = segment[:, :, -1]
  carried = jnp.concatenate([state_segment[None], last[:-1]], axis=0)

  G = jnp.cumsum(g, axis=-1)
  lower = jnp.tril(jnp.ones((C, C), bool))
  same = (segment[..., :, None] == segment[..., None, :])[:, :, None] & lower[None, None, None]
  # Masked before the exponential: differences above the diagonal are positive and may overflow.
  D = jnp.where(same, jnp.exp(jnp.where(same, G[..., :, None] - G[..., None, :], 0.0)), 0.0)
  from_state = (segment == carried[..., None])[:, :, None].astype(jnp.float32) * jnp.exp(G)
  alive = (segment == last[..., None])[:, :, None]
  to_end = jnp.where(alive, jnp.exp(jnp.where(alive, G[..., -1:] - G, 0.0)), 0.0)
  keep = (last == carried)[:, :, None].astype(jnp.float32) * jnp.exp(G[..., -1])

  weighted = k * beta[..., None]
  kk = jnp.einsum("nBMiP,nBMjP->nBMij", weighted, k, precision=HIGHEST)
  strict = jnp.tril(jnp.ones((C, C), bool), -1)
  A = jnp.where(strict[None, None, None], kk * D, 0.0)
  inverse = unit_lower_inverse(A)
  U = jnp.matmul(inverse, v * beta[..., None], precision=HIGHEST)
  W = jnp.matmul(inverse, weighted * from_state[..., None], precision=HIGHEST)
  qk = jnp.einsum("nBMiP,nBMjP->nBMij", q, k, precision=HIGHEST) * D
  q_state = q * from_state[..., None]
  k_end = k * to_end[..., None]

  def step(S, chunk):
    U, W, qk, q_state, k_end, keep = chunk
    written = U - jnp.einsum("BMCP,BMPR->BMCR", W, S, precision=HIGHEST)
    out = jnp.einsum("BMCP,BMPR->BMCR", q_state, S, precision=HIGHEST)
    out = out + jnp.matmul(qk, written, precision=HIGHEST)
    S = keep[..., None, None] * S + jnp.einsum(
      "BMCP,BMCR->BMPR", k_end, written, precision=HIGHEST
    )
    return S, out

  state, out = jax.lax.scan(step, state, (U, W, qk, q_state, k_end, keep))
  out = jnp.moveaxis(out, (0, 2), (1, 3)).reshape(B, n * C, M, -1)
  return out[:, :T], state


def delta_step(
  q: Float[Array, "B M P"],
  k: Float[Array, "B M P"],
  v: Float[Array, "B M R"],
  beta: Float[Array, "B M"],
  g: Float[Array, "B M"],
  state: Float[Array, "B M P R"],
) -> tuple[Float[Array, "B M R"], Float[Array, "B M P R"]]:
  """One token of the recurrence, S' = e^g S + k (β (v − e^g Sᵀk))ᵀ and o = S'ᵀq.

  The old state is read once for both products: o = e^g Sᵀq + (k·q) β (v − e^g Sᵀk).
  """
  decay = jnp.exp(g)[..., None]
  keyed, queried = jnp.moveaxis(
    decay[..., None, :] * jnp.einsum(
      "BMcP,BMPR->BMcR", jnp.stack([k, q], axis=-2), state, precision=jax.lax.Precision.HIGHEST
    ), -2, 0,
  )
  written = beta[..., None] * (v - keyed)
  out = queried + jnp.sum(k * q, axis=-1, keepdims=True) * written
  return out, decay[..., None] * state + k[..., None] * written[..., None, :]


def finish(
  weights: dict, config: ModelConfig, out: Float[Array, "B T M R"], gate: Float[Array, "B T M R"]
) -> Float[Array, "B T D"]:
  """Per-head RMSNorm with a plain weight, then SiLU(gate), then the output projection."""
  y = out.astype(jnp.float32)
  y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + config.norm_eps)
  # Rounded to the activation dtype here and at the end, as in transformers; the weight is float32.
  return _finish_normed(weights, y.astype(gate.dtype), gate)


def _finish_normed(weights, y, gate):
  y = y.astype(jnp.float32)
  y = y * weights["out_norm"][None, None, None].astype(jnp.float32)
  y = y * jax.nn.silu(gate.astype(jnp.float32))
  return jnp.einsum("BTMR,MRD->BTD", y.astype(gate.dtype), weights["out"])


def _mixed(weights, config, raw, tails, same_document, valid, silu=jax.nn.silu):
  q, k, v = _convolved(weights, raw, tails, same_document, silu)
  q, k = normalise(q, k, config.delta_value_heads)
  beta, g = gates(weights, raw)
  v = v.astype(jnp.float32)
  if valid is not None:
    # After the l2 norm: a zero vector inside it would have a gradient of 1e3.
    k, v = (jnp.where(valid[:, :, None, None], a, 0.0) for a in (k, v))
    beta, g = (jnp.where(valid[:, :, None], a, 0.0) for a in (beta, g))
  return q, k, v, beta, g


def _convolved(weights, raw, tails, same_document, silu=jax.nn.silu):
  return tuple(
    convolve(raw[n], tails[n], weights["conv_" + n], same_document, silu)
    for n in ("query", "key", "value")
  )


def _by_kernel(
  weights, config, raw, tails, same_document, valid, segment_ids, state, state_segment
):
  """The rows' normed outputs and last state from the TPU kernel, which does all three norms."""
  # Imported here: the kernel's modules are of no use to the reference path.
  from searchjax.model.kernels.deltanet import delta_rule

  q, k, v = _convolved(weights, raw, tails, same_document)
  beta, g = (jnp.where(valid[:, :, None], a, 0.0) for a in gates(weights, raw))
  return delta_rule(
    q, k, v, beta, g, segment_ids, state, state_segment, chunk_length=config.chunk_length,
    norm_eps=config.norm_eps, block_length=config.delta_block,
    interpret=config.deltanet_implementation == "pallas_interpret",
  )


def deltanet(
  weights: dict,
  config: ModelConfig,
  x: Float[Array, "B t D"],
  segment_ids: Int[Array, "B T"],
  parallel: Parallel = LOCAL,
) -> Float[Array, "B t D"]:
  """The layer over packed rows, every document from a zero state; segment 0 is padding.

  Args:
    x: of the device's stretch of the sequence.
    segment_ids: of the whole rows.
  """
  B, T = segment_ids.shape
  valid = segment_ids > 0
  x = jnp.where(parallel.own_stretch(valid)[:, :, None], x, 0)
  raw = project(weights, x)
  gate = raw.pop("gate")
  raw = {n: parallel.to_heads(a) for n, a in raw.items()}
  own = {n: parallel.own_heads(weights[n], axis) for n, axis in PER_HEAD.items()}
  c = dataclasses.replace(
    config, delta_key_heads=raw["key"].shape[2], delta_value_heads=raw["value"].shape[2]
  )
  tails = empty_tails(c, B, x.dtype)
  earlier = jnp.stack(
    [
      jnp.pad(segment_ids, ((0, 0), (j, 0)), constant_values=-1)[:, :T] == segment_ids
      for j in range(c.conv_kernel)
    ]
  )
  reference = c.deltanet_implementation == "reference"
  mixed = _mixed(own, c, raw, tails, earlier, valid) if reference else None
  state = jnp.zeros((B, c.delta_value_heads, c.delta_key_size, c.delta_value_size), jnp.float32)
  nobody = jnp.full((B,), -1, segment_ids.dtype)
  if not reference:
    y, _ = _by_kernel(own, c, raw, tails, earlier, valid, segment_ids, state, nobody)
    return _finish_normed(weights, parallel.to_sequence(y), gate)
  out = _delta_rows(*mixed, segment_ids, state, nobody, config)
  return finish(weights, config, parallel.to_sequence(out), gate)


def _delta_rows(q, k, v, beta, g, segment_ids, state, state_segment, config):
  """`delta_chunks` over whole rows, `delta_block` tokens at a time where that is set."""
  T, block = q.shape[1], config.delta_block
  if not block or T <= block:
    return delta_chunks(
      q, k, v, beta, g, segment_ids, state, state_segment, chunk_length=config.chunk_length
    )[0]
  pad = -T % block

  def blocks(a, mode="constant"):
    a = jnp.pad(a, [(0, 0), (0, pad)] + [(0, 0)] * (a.ndim - 2), mode=mode)
    return jnp.moveaxis(a.reshape(a.shape[0], -1, block, *a.shape[2:]), 1, 0)

  @jax.checkpoint
  def one(carry, parts):
    out, state = delta_chunks(*parts, *carry, chunk_length=config.chunk_length)
    return (state, parts[-1][:, -1]), out

  parts = (*(blocks(a) for a in (q, k, v, beta, g)), blocks(segment_ids, "edge"))
  _, out = jax.lax.scan(one, (state, state_segment), parts)
  out = jnp.moveaxis(out, 0, 1)
  return out.reshape(out.shape[0], -1, *out.shape[3:])[:, :T]


def empty_tails(config: ModelConfig, rows: int, dtype) -> dict:
  """Convolution inputs before a document's first token: zeros."""
  c, W = config, config.conv_kernel - 1
  key = (rows, W, c.delta_key_heads, c.delta_key_size)
  value = (rows, W, c.delta_value_heads, c.delta_value_size)
  return {n: jnp.zeros(s, dtype) for n, s in (("query", key), ("key", key), ("value", value))}


# Shortest chunk that a feed's are halved to.
FEED_CHUNK = 16


def _feed_chunk(chunk_length, tokens):
  """The chunk or a half of it, and so on, that pads a feed least: 48 tokens are three of 16."""
  halves = [chunk_length]
  while halves[-1] // 2 >= FEED_CHUNK:
    halves.append(halves[-1] // 2)
  return min(halves, key=lambda size: (-tokens % size, -size))


def deltanet_prefill(
  weights: dict,
  config: ModelConfig,
  x: Float[Array, "B T D"],
  length: Int[Array, "B"],
  state: Float[Array, "B M P R"],
  tails: dict,
) -> tuple[Float[Array, "B T D"], Float[Array, "B M P R"], dict]:
  """Continues each row's document by its first `length` tokens of x; 0 leaves it as it was."""
  c = config
  B, T, _ = x.shape
  valid = jnp.arange(T)[None, :] < length[:, None]
  x = jnp.where(valid[:, :, None], x, 0)
  raw = project(weights, x)
  reference = c.deltanet_implementation == "reference"
  mixed = _mixed(weights, c, raw, tails, None, valid) if reference else None
  document = jnp.ones((B, T), jnp.int32)
  if reference:
    out, state = delta_chunks(
      *mixed, document, state, document[:, 0], chunk_length=_feed_chunk(c.chunk_length, T)
    )
  else:
    y, state = _by_kernel(weights, c, raw, tails, None, valid, document, state, document[:, 0])
  take = length[:, None] + jnp.arange(c.conv_kernel - 1)[None, :]
  new_tails = {
    n: jnp.take_along_axis(
      jnp.concatenate([tails[n].astype(x.dtype), raw[n]], axis=1), take[:, :, None, None], axis=1
    )
    for n in ("query", "key", "value")
  }
  if not reference:
    return _finish_normed(weights, y, raw["gate"]), state, new_tails
  return finish(weights, c, out, raw["gate"]), state, new_tails


def deltanet_decode(
  weights: dict,
  config: ModelConfig,
  x: Float[Array, "B 1 D"],
  state: Float[Array, "B M P R"],
  tails: dict,
  active: Bool[Array, "B"],
  begins: Bool[Array, "B"],
) -> tuple[Float[Array, "B 1 D"], Float[Array, "B M P R"], dict]:
  """Continues rows by one token.

  Args:
    active: the others keep their state: nothing decays, nothing is written.
    begins: active rows at their first token: whatever lies in their state is another's and decays
      to nothing.
  """
  raw = project(weights, x)
  apart = lambda rows: rows[:, None, None, None]
  before = {n: jnp.where(apart(begins), 0, tail) for n, tail in tails.items()}
  # A quotient is kept, where a product would be computed again for every entry of the state. (Its
  # derivative is not a number where e^-x is infinite: for decoding only.)
  quotient = lambda x: x / (1.0 + jnp.exp(-x))
  q, k, v, beta, g = _mixed(weights, config, raw, before, None, active[:, None], quotient)
  g = jnp.where(begins[:, None, None], -jnp.inf, g)
  out, state = delta_step(q[:, 0], k[:, 0], v[:, 0], beta[:, 0], g[:, 0], state)
  after = {
    n: jnp.concatenate([before[n][:, 1:], raw[n].astype(tail.dtype)], axis=1)
    for n, tail in tails.items()
  }
  tails = {n: jnp.where(apart(active), after[n], tail) for n, tail in tails.items()}
  return finish(weights, config, out[:, None], raw["gate"]), state, tails
