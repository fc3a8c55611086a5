"""The gated delta rule's chunk form as a Pallas TPU kernel, forward and backward.  PURE.

Forward, per value head and chunk of C tokens, with the document masks of `model.deltanet`
(Γ from the carried state, D inside the chunk, τ to the chunk's end, κ over the whole chunk):

  E = β (v − Γ k S);   X = (I + A)⁻¹ E;   o = Γ q S + (q kᵀ · D) X;   S ← κ S + (τ k)ᵀ X

which is the chunk form there with X for v', and y = o / sqrt(mean o² + ε), the layer's norm without
its weight. Backward, from dO (dy through the norm) and the later dS:

  dX = (q kᵀ · D)ᵀ dO + τ k dS;   dE = (I + A)⁻ᵀ dX;   dA = −strictly lower(dE Xᵀ);   dP = dO Xᵀ
  dq = Γ dO Sᵀ + (dP · D) k
  dk = −β Γ dE Sᵀ + (F + Fᵀ) k + (dP · D)ᵀ q + τ X dSᵀ,   F = dA · β D
  dv = β dE;   dS ← κ dS + qᵀ (Γ dO) − kᵀ (β Γ dE)
  dβ = rows of dE · (v − Γ k S) + dA · (A / β);   dG = what multiplies each exponential

A grid step holds one key head, its value heads and a block of chunks; the state goes from block to
block in VMEM. The forward keeps the state that enters each block; the backward walks the blocks in
reverse, computes a block's states, inverses and X again, then walks its chunks in reverse. Both
norms are inside, so that HBM holds all long arrays in the activation dtype, q and k once a key
head. All products are float32 at the highest precision.

Letters  B rows, T tokens, C chunk length, M/A value and key heads, P/R key and value size.
Source   Gated DeltaNet arXiv:2412.06464; the backward is derived here.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

CHUNKS_PER_BLOCK = 4
NORM_EPS = 1e-6

# Contractions of two matrices: rows by columns, rows by rows, columns by columns.
NN, NT, TN = ((1,), (0,)), ((1,), (1,)), ((0,), (0,))
# Rows of the per-chunk document facts.
SEGMENT, FROM_STATE, TO_END, KEEP = range(4)


def delta_rule(
  q: Float[Array, "B T A P"],
  k: Float[Array, "B T A P"],
  v: Float[Array, "B T M R"],
  beta: Float[Array, "B T M"],
  g: Float[Array, "B T M"],
  segment_ids: Int[Array, "B T"],
  state: Float[Array, "B M P R"],
  state_segment: Int[Array, "B"],
  *,
  chunk_length: int,
  norm_eps: float,
  block_length: int = 0,
  interpret: bool = False,
) -> tuple[Float[Array, "B T M R"], Float[Array, "B M P R"]]:
  """`model.deltanet.delta_chunks` of l2-normalised q (scaled by P^-½) and k, outputs RMS-normed.

  Args:
    q, k: not normalised, one a key head; value head m reads key head m // (M / A).
    beta, g: 0 at padding, which then leaves the state as it is whatever q, k and v are there.
    segment_ids: document of each token, below 2^24. Padding carries the id of the document it
      follows where the state is wanted afterwards.
    state, state_segment: the state before the first token and the document it belongs to.
    chunk_length: a power of two.
    norm_eps: ε of the norm of the outputs.
    block_length: tokens between the states that the forward keeps for the backward, a multiple of
      chunk_length; 0 is four chunks.
    interpret: runs the kernel's operations one by one on any device.

  Returns:
    Outputs over their root mean square along R, in v's dtype, and the state of the last token's
    document after the last token, in float32.
  """
  B, T, A, P = q.shape
  M, C = v.shape[2], chunk_length
  K = min(block_length // C or CHUNKS_PER_BLOCK, -(-T // C))
  pad = -T % (K * C)
  if pad:
    widen = lambda a, mode="constant": jnp.pad(
      a, [(0, 0), (0, pad)] + [(0, 0)] * (a.ndim - 2), mode=mode
    )
    q, k, v, beta, g = (widen(a) for a in (q, k, v, beta, g))
    segment_ids = widen(segment_ids, "edge")
  n = (T + pad) // C
  facts = _document_facts(segment_ids.reshape(B, n, C), state_segment)
  # [B, A, n, 2 M/A, C]: β of a key head's value heads, then their g.
  fold = lambda a: jnp.moveaxis(a.astype(jnp.float32).reshape(B, n, C, A, M // A), (3, 4), (1, 3))
  gates = jnp.concatenate([fold(beta), fold(g)], axis=3)
  heads_first = lambda a: jnp.swapaxes(a, 1, 2)
  out, state = _rule(K, norm_eps, interpret)(
    facts, gates, heads_first(q), heads_first(k), heads_first(v), state.astype(jnp.float32)
  )
  return heads_first(out)[:, :T], state


def _document_facts(segment, state_segment):
  """float32 [B, n, 4, C]: ids, and as 0 or 1 what the state reaches and what reaches its end."""
  last = segment[:, :, -1:]
  carried = jnp.concatenate([state_segment[:, None, None], last[:, :-1]], axis=1)
  keep = jnp.broadcast_to(last == carried, segment.shape)
  rows = (segment, segment == carried, segment == last, keep)
  return jnp.stack([row.astype(jnp.float32) for row in rows], axis=2)


def _rule(K, norm_eps, interpret):
  """The differentiable kernel for blocks of K chunks."""

  @jax.custom_vjp
  def rule(facts, gates, q, k, v, state):
    return _forward(K, norm_eps, interpret, False, facts, gates, q, k, v, state)

  def forward(facts, gates, q, k, v, state):
    out, last, entry = _forward(K, norm_eps, interpret, True, facts, gates, q, k, v, state)
    return (out, last), (facts, gates, q, k, v, entry)

  def backward(kept, grads):
    return (None, *_backward(K, norm_eps, interpret, *kept, *grads))

  rule.defvjp(forward, backward)
  return rule


# ---- calls ---------------------------------------------------------------------------------------


class _Blocks:
  """Block shapes of every operand, for a grid over rows, key heads and blocks of chunks."""

  def __init__(self, K, gates, v, P, *, reverse):
    self.B, self.A, n, heads, self.C = gates.shape
    self.r, self.R, self.K, self.P = heads // 2, v.shape[3], K, P
    self.blocks = n // K
    self.grid = (self.B, self.A, self.blocks)
    at = (lambda j: self.blocks - 1 - j) if reverse else (lambda j: j)
    spec = pl.BlockSpec
    T = K * self.C
    self.facts = spec((1, K, 4, self.C), lambda b, a, j: (b, at(j), 0, 0))
    self.gates = spec((1, 1, K, heads, self.C), lambda b, a, j: (b, a, at(j), 0, 0))
    self.key = spec((1, 1, T, P), lambda b, a, j: (b, a, at(j), 0))
    self.value = spec((1, self.r, T, self.R), lambda b, a, j: (b, a, at(j), 0))
    self.state = spec((1, self.r, P, self.R), lambda b, a, j: (b, a, 0, 0))
    self.entry = spec((1, self.r, 1, P, self.R), lambda b, a, j: (b, a, at(j), 0, 0))

  def cost(self, per_value_head, per_key_head, exponentials, arrays):
    """The estimate XLA and `dist.hlo` read: FLOPs of the products and bytes of every array."""
    chunks = self.B * self.A * self.blocks * self.K
    # Every key head reads the document facts, which come first.
    read_and_written = (*arrays, *arrays[:1] * (self.A - 1))
    return pl.CostEstimate(
      flops=int(chunks * (self.r * per_value_head + per_key_head)),
      transcendentals=int(chunks * self.r * exponentials),
      bytes_accessed=int(sum(a.size * a.dtype.itemsize for a in read_and_written)),
    )


# Rows and key heads are independent; blocks follow one another.
ORDER = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))


def _inverse_flops(C):
  """Two whole products a level, none on the first."""
  return 4 * C**3 * (C.bit_length() - 2) if C > 1 else 0


def _forward(K, norm_eps, interpret, keep_entry, facts, gates, q, k, v, state):
  B, M, T, R = v.shape
  P = q.shape[3]
  s = _Blocks(K, gates, v, P, reverse=False)
  C = s.C
  shapes = [
    jax.ShapeDtypeStruct(v.shape, v.dtype), jax.ShapeDtypeStruct(state.shape, jnp.float32)
  ]
  out_specs = [s.value, s.state]
  if keep_entry:
    shapes.append(jax.ShapeDtypeStruct((B, M, s.blocks, P, R), jnp.float32))
    out_specs.append(s.entry)
  arguments = (facts, gates, q, k, v, state)
  return pl.pallas_call(
    functools.partial(_forward_kernel, s.r, norm_eps, keep_entry),
    grid=s.grid,
    in_specs=[s.facts, s.gates, s.key, s.key, s.value, s.state],
    out_specs=out_specs,
    out_shape=shapes,
    scratch_shapes=[pltpu.VMEM((s.r, P, R), jnp.float32)],
    compiler_params=ORDER,
    cost_estimate=s.cost(
      _inverse_flops(C) + 6 * C * P * R + 4 * C * C * R, 4 * C * C * P, C * C + 2 * C,
      (*arguments, *shapes),
    ),
    interpret=interpret,
    name="delta_forward",
  )(*arguments)


def _backward(K, norm_eps, interpret, facts, gates, q, k, v, entry, of_out, of_last):
  B, M, T, R = v.shape
  P = q.shape[3]
  s = _Blocks(K, gates, v, P, reverse=True)
  C, r = s.C, s.r
  shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (gates, q, k, v, of_last)]
  arguments = (facts, gates, q, k, v, entry, of_out, of_last)
  return pl.pallas_call(
    functools.partial(_backward_kernel, r, norm_eps),
    grid=s.grid,
    in_specs=[s.facts, s.gates, s.key, s.key, s.value, s.entry, s.value, s.state],
    out_specs=[s.gates, s.key, s.key, s.value, s.state],
    out_shape=shapes,
    scratch_shapes=[
      pltpu.VMEM((r, P, R), jnp.float32),
      pltpu.VMEM((K, r, P, R), jnp.float32),
      pltpu.VMEM((K, r, C, C), jnp.float32),
      pltpu.VMEM((K, r, C, R), jnp.float32),
      pltpu.VMEM((K, r, C, R), jnp.float32),
    ],
    compiler_params=ORDER,
    cost_estimate=s.cost(
      _inverse_flops(C) + 20 * C * P * R + 12 * C * C * R, 14 * C * C * P, 2 * (C * C + 2 * C),
      (*arguments, *shapes),
    ),
    interpret=interpret,
    name="delta_backward",
  )(*arguments)


# ---- inside the kernels --------------------------------------------------------------------------


def _dot(a, b, contract):
  return jax.lax.dot_general(
    a, b, (contract, ((), ())), precision=jax.lax.Precision.HIGHEST,
    preferred_element_type=jnp.float32,
  )


class _Square:
  """Masks of a chunk's pairs of tokens, and turns between rows [1 C] and columns [C 1]."""

  def __init__(self, C):
    i = jax.lax.broadcasted_iota(jnp.int32, (C, C), 0)
    j = jax.lax.broadcasted_iota(jnp.int32, (C, C), 1)
    self.C, self.i, self.j = C, i, j
    self.diagonal, self.lower, self.strict = i == j, i >= j, i > j

  def column(self, row):
    return jnp.sum(jnp.where(self.diagonal, row, 0.0), axis=1, keepdims=True)

  def row(self, column):
    return jnp.sum(jnp.where(self.diagonal, column, 0.0), axis=0, keepdims=True)

  def running_sum(self, row):
    """Column of the sums up to each token."""
    return jnp.sum(jnp.where(self.lower, row, 0.0), axis=1, keepdims=True)

  def remaining_sum(self, column):
    """Row of the sums from each token on."""
    return jnp.sum(jnp.where(self.lower, column, 0.0), axis=0, keepdims=True)

  def inverse(self, A):
    """Of I + strictly-lower A: diagonal blocks twice as large each time, whole products."""
    T = jnp.where(self.diagonal, 1.0, 0.0)
    for level in range(self.C.bit_length() - 1):
      # Lower left quarters of the next blocks: i and j first differ at this bit.
      first_differ = jax.lax.shift_right_logical(self.i ^ self.j, level) == 1
      corner = jnp.where(first_differ & self.strict, A, 0.0)
      T = T - (_dot(_dot(T, corner, NN), T, NN) if level else corner)
    return T


def _keys(square, facts, q, k):
  """What a chunk's value heads share: normalised q and k, their products, the document masks."""
  P = q.shape[1]
  q, k = q.astype(jnp.float32), k.astype(jnp.float32)
  q_scale = jax.lax.rsqrt(jnp.sum(q * q, axis=1, keepdims=True) + NORM_EPS)
  k_scale = jax.lax.rsqrt(jnp.sum(k * k, axis=1, keepdims=True) + NORM_EPS)
  q, k = q * q_scale * P**-0.5, k * k_scale
  segment = facts[SEGMENT : SEGMENT + 1]
  return dict(
    q=q, k=k, q_scale=q_scale, k_scale=k_scale,
    kk=_dot(k, k, NT),
    same=(square.column(segment) == segment) & square.lower,
    from_state=square.column(facts[FROM_STATE : FROM_STATE + 1]),
    to_end=square.column(facts[TO_END : TO_END + 1]),
    keep=facts[KEEP : KEEP + 1, :1],
  )


def _decays(square, keys, beta, g):
  """A value head's decays over the chunk, from its rows of β and g."""
  G = square.running_sum(g)
  end = G[square.C - 1 :]
  # Masked before the exponential: differences above the diagonal are positive and may overflow.
  inside = jnp.where(keys["same"], G - square.row(G), 0.0)
  D = jnp.where(keys["same"], jnp.exp(inside), 0.0)
  beta = square.column(beta)
  return dict(
    D=D, beta=beta,
    A=jnp.where(square.strict, beta * keys["kk"] * D, 0.0),
    from_state=keys["from_state"] * jnp.exp(G),
    to_end=keys["to_end"] * jnp.exp(end - G),
    keep=keys["keep"] * jnp.exp(end),
  )


def _error(keys, decays, v, S):
  """E / β: what the state carried into the chunk gets wrong about each value."""
  return v.astype(jnp.float32) - decays["from_state"] * _dot(keys["k"], S, NN)


def _normed_output(q, pairs, decays, S, X, norm_eps):
  """y and the factor that made it of o."""
  o = decays["from_state"] * _dot(q, S, NN) + _dot(pairs, X, NN)
  scale = jax.lax.rsqrt(jnp.mean(o * o, axis=1, keepdims=True) + norm_eps)
  return o * scale, scale


def _next_state(keys, decays, X, S):
  return decays["keep"] * S + _dot(keys["k"] * decays["to_end"], X, TN)


def _forward_kernel(r, norm_eps, keep_entry, facts, gates, q, k, v, state, out, last, *rest):
  S = rest[-1]
  K, C = gates.shape[2], gates.shape[4]

  @pl.when(pl.program_id(2) == 0)
  def _():
    S[...] = state[0]

  if keep_entry:
    rest[0][0, :, 0] = S[...]
  square = _Square(C)

  @pl.loop(0, K)
  def _(c):
    at = pl.ds(pl.multiple_of(c * C, C), C)
    keys = _keys(square, facts[0, c], q[0, 0, at, :], k[0, 0, at, :])
    qk = _dot(keys["q"], keys["k"], NT)
    rows = gates[0, 0, c]
    for h in range(r):
      decays = _decays(square, keys, rows[h : h + 1], rows[r + h : r + h + 1])
      before = S[h]
      error = _error(keys, decays, v[0, h, at, :], before)
      X = _dot(square.inverse(decays["A"]), decays["beta"] * error, NN)
      y, _ = _normed_output(keys["q"], qk * decays["D"], decays, before, X, norm_eps)
      out[0, h, at, :] = y.astype(out.dtype)
      S[h] = _next_state(keys, decays, X, before)

  @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
  def _():
    last[0] = S[...]


def _backward_kernel(
  r, norm_eps, facts, gates, q, k, v, entry, of_out, of_last,
  of_gates, of_q, of_k, of_v, of_state, dS, states, inverses, errors, written,
):  # fmt: skip
  K, C = gates.shape[2], gates.shape[4]
  square = _Square(C)
  stretch = lambda c: pl.ds(pl.multiple_of(c * C, C), C)

  @pl.when(pl.program_id(2) == 0)
  def _():
    dS[...] = of_last[0]

  states[0] = entry[0, :, 0]

  @pl.loop(0, K)
  def _(c):
    at = stretch(c)
    keys = _keys(square, facts[0, c], q[0, 0, at, :], k[0, 0, at, :])
    rows = gates[0, 0, c]
    for h in range(r):
      decays = _decays(square, keys, rows[h : h + 1], rows[r + h : r + h + 1])
      S = states[c, h]
      inverse = square.inverse(decays["A"])
      error = _error(keys, decays, v[0, h, at, :], S)
      X = _dot(inverse, decays["beta"] * error, NN)
      inverses[c, h], errors[c, h], written[c, h] = inverse, error, X

      @pl.when(c + 1 < K)
      def _(h=h, S=S, X=X, decays=decays):
        states[c + 1, h] = _next_state(keys, decays, X, S)


  @pl.loop(0, K)
  def _(step):
    c = K - 1 - step
    at = stretch(c)
    keys = _keys(square, facts[0, c], q[0, 0, at, :], k[0, 0, at, :])
    qk = _dot(keys["q"], keys["k"], NT)
    rows = gates[0, 0, c]
    by_q = by_k = by_qk = by_kk = 0.0
    for h in range(r):
      decays = _decays(square, keys, rows[h : h + 1], rows[r + h : r + h + 1])
      S, X, P_matrix = states[c, h], written[c, h], qk * decays["D"]
      y, scale = _normed_output(keys["q"], P_matrix, decays, S, X, norm_eps)
      dO = _through_norm(of_out[0, h, at, :].astype(jnp.float32), y, scale, v.shape[3])
      grads = _head_backward(
        square, keys, decays, P_matrix, dO, S, inverses[c, h], errors[c, h], X, dS[h]
      )
      of_v[0, h, at, :] = grads["v"].astype(of_v.dtype)
      of_gates[0, 0, c, h : h + 1, :] = square.row(grads["beta"])
      of_gates[0, 0, c, r + h : r + h + 1, :] = square.remaining_sum(grads["G"])
      dS[h] = grads["S"]
      by_q, by_k = by_q + grads["q"], by_k + grads["k"]
      by_qk, by_kk = by_qk + grads["qk"], by_kk + grads["kk"]
    by_q = by_q + _dot(by_qk, keys["k"], NN)
    by_k = by_k + _dot(by_kk, keys["k"], NN) + _dot(by_kk, keys["k"], TN)
    by_k = by_k + _dot(by_qk, keys["q"], TN)
    P = by_q.shape[1]
    by_q = _through_norm(by_q * P**-0.5, keys["q"] * P**0.5, keys["q_scale"], 1)
    by_k = _through_norm(by_k, keys["k"], keys["k_scale"], 1)
    of_q[0, 0, at, :], of_k[0, 0, at, :] = by_q.astype(of_q.dtype), by_k.astype(of_k.dtype)

  @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
  def _():
    of_state[0] = dS[...]


def _through_norm(grad, normed, scale, size):
  """The gradient of x from that of x · scale, scale = (Σ x² / size + ε)^-½ a row."""
  return scale * (grad - normed * (jnp.sum(normed * grad, axis=1, keepdims=True) / size))


def _head_backward(square, keys, decays, P_matrix, dO, S, inverse, error, X, dS):
  """One value head's gradients over a chunk; those of q, k, q kᵀ, k kᵀ are its summands."""
  q, k, D, A = keys["q"], keys["k"], decays["D"], decays["A"]
  beta, from_state, to_end = decays["beta"], decays["from_state"], decays["to_end"]
  to_X = _dot(k, dS, NN)
  dE = _dot(inverse, _dot(P_matrix, dO, TN) + to_end * to_X, TN)
  dA = jnp.where(square.strict, -_dot(dE, X, NT), 0.0)
  dP = _dot(dO, X, NT)
  dZ = from_state * dO
  dY = -(beta * from_state) * dE
  q_state, k_state = _dot(dZ, S, NT), _dot(dY, S, NT)
  k_end = to_end * _dot(X, dS, NT)
  scaled = dA * keys["kk"] * D
  pairs = dP * P_matrix + dA * A
  along = lambda a: jnp.sum(a, axis=1, keepdims=True)
  end_rows = along(k * k_end)
  at_end = jnp.sum(end_rows, axis=0, keepdims=True) + decays["keep"] * jnp.sum(
    along(S * dS), axis=0, keepdims=True
  )
  dG = along(pairs) - square.column(jnp.sum(pairs, axis=0, keepdims=True))
  dG = dG + along(q * q_state) + along(k * k_state) - end_rows
  is_last = square.i[:, :1] == square.C - 1
  return dict(
    v=beta * dE,
    beta=along(dE * error) + along(scaled),
    G=dG + jnp.where(is_last, at_end, 0.0),
    q=q_state, k=k_state + k_end,
    qk=dP * D, kk=dA * beta * D,
    S=decays["keep"] * dS + _dot(q, dZ, TN) + _dot(k, dY, TN),
  )
