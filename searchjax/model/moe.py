"""Mixture of experts with a shared expert.  PURE.

  p = softmax(W_r x, float32);  top-X of p, renormalised to sum 1  (softmax of the top-X logits)
  y = Σ_e w_e · down_e(silu(gate_e x) · up_e x)  +  sigmoid(w_s · x) · shared(x)
  balance = E · Σ_e (assignments to e / tokens) · mean p_e         over real tokens

Ties in the top-X go to the lowest expert id, on every side.

Letters  B rows, T tokens, D model width, E experts, X experts per token, F expert width, U buffer
rows of one expert.
Source   transformers modeling_qwen3_5_moe; balance arXiv:2101.03961 eq. 4-6, with X choices a token
as in transformers, so that an even load gives X.
"""

import math

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from searchjax.model.config import ModelConfig


@flax.struct.dataclass
class Routing:
  """What an expert layer, or a stack of them (leading axis L), did besides its output.

  Attributes:
    experts: int32 [B T X], the expert ids used, best first where they were chosen live.
    overflow: int32, (token, expert) pairs of real tokens left out for want of capacity.
    balance: float32, the balance term of the real tokens; 0 when there are none.
  """

  experts: Array
  overflow: Array
  balance: Array


def router_logits(
  router: Float[Array, "D E"], x: Float[Array, "T D"]
) -> Float[Array, "T E"]:
  """float32 whatever x is: in bfloat16, experts tie at the X-th place for several tokens in 100."""
  return jnp.einsum(
    "TD,DE->TE", x.astype(jnp.float32), router.astype(jnp.float32),
    precision=jax.lax.Precision.HIGHEST,
  )


def route(
  router: Float[Array, "D E"],
  x: Float[Array, "T D"],
  experts_per_token: int,
  replay: Int[Array, "T X"] | None = None,
) -> tuple[Float[Array, "T X"], Int[Array, "T X"]]:
  """Renormalised weights and expert ids (int32), from float32 logits.

  Args:
    replay: experts recorded at inference, used instead of the live top-X; tokens whose first id is
      negative are routed live. The weights are the softmax of the live logits at the replayed ids,
      so the router is trained, and an expert outside the live top-X keeps a weight.
  """
  logits = router_logits(router, x)
  top, experts = jax.lax.top_k(logits, experts_per_token)
  if replay is not None:
    experts = jnp.where(replay[:, :1] < 0, experts, replay)
    top = jnp.take_along_axis(logits, experts, axis=-1)
  return jax.nn.softmax(top, axis=-1), experts.astype(jnp.int32)


def balance(
  logits: Float[Array, "T E"], experts: Int[Array, "T X"], valid: Bool[Array, "T"]
) -> Float[Array, ""]:
  """The balance term; gradients flow through the probabilities only. Padding counts nowhere."""
  E = logits.shape[-1]
  real = valid.astype(jnp.float32)
  tokens = jnp.maximum(jnp.sum(real), 1.0)
  chosen = jnp.sum(jax.nn.one_hot(experts, E, dtype=jnp.float32), axis=1)
  load = jnp.einsum("TE,T->E", chosen, real) / tokens
  probability = jnp.einsum("TE,T->E", jax.nn.softmax(logits, axis=-1), real) / tokens
  return E * jnp.sum(load * probability)


def balance_loss(config: ModelConfig, routing: Routing) -> Float[Array, ""]:
  """`router_aux_loss_coef` times the mean balance term of the layers, to be added to a loss."""
  return config.router_aux_loss_coef * jnp.mean(routing.balance)


def dense_experts(weights: dict, x: Array, w: Array, experts: Array) -> Array:
  """Every expert on every token, weighted by the routing (zero for experts not chosen)."""
  E, D, two_F = weights["gate_up"].shape
  combine = jnp.sum(jax.nn.one_hot(experts, E, dtype=w.dtype) * w[..., None], axis=1)
  hidden = jnp.einsum("TD,EDF->TEF", x, weights["gate_up"])
  gate, up = jnp.split(hidden, 2, axis=-1)
  hidden = jax.nn.silu(gate) * up * combine[:, :, None].astype(x.dtype)
  return jnp.einsum("TEF,EFD->TD", hidden, weights["down"])


def ragged_experts(weights: dict, x: Array, w: Array, experts: Array) -> Array:
  """Tokens sorted by expert, one grouped matmul a projection."""
  T, X = experts.shape
  E = weights["gate_up"].shape[0]
  order = jnp.argsort(experts.reshape(-1), stable=True)
  counts = jnp.bincount(experts.reshape(-1), length=E).astype(jnp.int32)
  rows = x[order // X]
  hidden = jax.lax.ragged_dot(rows, weights["gate_up"], counts)
  gate, up = jnp.split(hidden, 2, axis=-1)
  out = jax.lax.ragged_dot(jax.nn.silu(gate) * up, weights["down"], counts)
  out = out * w.reshape(-1)[order][:, None].astype(out.dtype)
  return jnp.zeros((T * X, x.shape[1]), out.dtype).at[order].set(out).reshape(T, X, -1).sum(axis=1)


def capacity_experts(
  weights: dict, x: Array, w: Array, experts: Array, valid: Array, rows: int
) -> tuple[Array, Array]:
  """Every expert computes a buffer of `rows` tokens: shapes, and so shards, do not depend on x.

  First choices are seated before second ones, earlier tokens before later ones; padding takes no
  seat. What finds none adds nothing to its token.

  Returns:
    Outputs, and the number of (token, expert) pairs left out.
  """
  T, X = experts.shape
  E, D, _ = weights["gate_up"].shape
  wanted = jnp.where(valid[:, None], experts, E).T.reshape(-1)
  order = jnp.argsort(wanted, stable=True)
  counts = jnp.bincount(wanted, length=E + 1)
  ahead = jnp.cumsum(counts) - counts
  rank = jnp.arange(X * T) - ahead[wanted[order]]
  rank = jnp.zeros_like(rank).at[order].set(rank)
  seated = (rank < rows) & (wanted < E)
  seat = jnp.where(seated, wanted * rows + rank, E * rows)
  buffer = jnp.zeros((E * rows, D), x.dtype).at[seat].set(jnp.tile(x, (X, 1)), mode="drop")
  hidden = jnp.einsum("EUD,EDF->EUF", buffer.reshape(E, rows, D), weights["gate_up"])
  gate, up = jnp.split(hidden, 2, axis=-1)
  out = jnp.einsum("EUF,EFD->EUD", jax.nn.silu(gate) * up, weights["down"])
  out = out.reshape(E * rows, D).at[seat].get(mode="fill", fill_value=0)
  out = (out * w.T.reshape(-1, 1).astype(out.dtype)).reshape(X, T, D).sum(axis=0)
  return out, jnp.sum((wanted < E) & ~seated, dtype=jnp.int32)


def capacity(config: ModelConfig, tokens: int) -> int:
  """Rows of one expert's buffer for a batch of so many tokens."""
  even = tokens * config.experts_per_token / config.num_experts
  return min(tokens, math.ceil(config.capacity_factor * even))


def moe(
  weights: dict,
  config: ModelConfig,
  x: Float[Array, "B T D"],
  valid: Bool[Array, "B T"],
  replay: Int[Array, "B T X"] | None = None,
) -> tuple[Float[Array, "B T D"], Routing]:
  """The expert layer.

  Args:
    valid: False at padding, which takes no capacity and no part in the balance.
    replay: as in `route`.

  Returns:
    Outputs, and the routing.
  """
  B, T, D = x.shape
  flat, valid = x.reshape(B * T, D), valid.reshape(B * T)
  if replay is not None:
    replay = replay.reshape(B * T, -1)
  w, experts = route(weights["router"], flat, config.experts_per_token, replay)
  overflow = jnp.zeros((), jnp.int32)
  if config.moe_dispatch == "capacity":
    rows = capacity(config, B * T)
    y, overflow = capacity_experts(weights, flat, w, experts, valid, rows)
  elif config.moe_dispatch == "dense":
    y = dense_experts(weights, flat, w, experts)
  else:
    y = ragged_experts(weights, flat, w, experts)
  if config.shared_expert_size:
    gate, up = jnp.split(flat @ weights["shared_gate_up"], 2, axis=-1)
    shared = (jax.nn.silu(gate) * up) @ weights["shared_down"]
    y = y + jax.nn.sigmoid(flat @ weights["shared_gate"])[:, None] * shared
  # The router's product a second time, in the text only: the compiler merges it with `route`'s.
  logits = router_logits(weights["router"], flat)
  routing = Routing(experts.reshape(B, T, -1), overflow, balance(logits, experts, valid))
  return y.reshape(B, T, D), routing
