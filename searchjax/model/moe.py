"""Mixture of experts with a shared expert; dropless.  PURE.

  p = softmax(W_r x, float32);  top-X of p, renormalised to sum 1  (softmax of the top-X logits)
  y = Σ_e w_e · down_e(silu(gate_e x) · up_e x)  +  sigmoid(w_s · x) · shared(x)

Ties in the top-X go to the lowest expert id, on every side.

Letters  B rows, T tokens, D model width, E experts, X experts per token, F expert width.
Source   transformers modeling_qwen3_5_moe; arXiv:2101.03961 for the balance loss.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from searchjax.model.config import ModelConfig


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
  logits = jnp.einsum(
    "TD,DE->TE", x.astype(jnp.float32), router.astype(jnp.float32),
    precision=jax.lax.Precision.HIGHEST,
  )
  top, experts = jax.lax.top_k(logits, experts_per_token)
  if replay is not None:
    experts = jnp.where(replay[:, :1] < 0, experts, replay)
    top = jnp.take_along_axis(logits, experts, axis=-1)
  return jax.nn.softmax(top, axis=-1), experts.astype(jnp.int32)


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


def moe(
  weights: dict,
  config: ModelConfig,
  x: Float[Array, "B T D"],
  replay: Int[Array, "B T X"] | None = None,
) -> tuple[Float[Array, "B T D"], Int[Array, "B T X"]]:
  """The expert layer.

  Args:
    replay: as in `route`.

  Returns:
    Outputs, and the chosen expert ids (int32), best first.
  """
  B, T, D = x.shape
  flat = x.reshape(B * T, D)
  if replay is not None:
    replay = replay.reshape(B * T, -1)
  w, experts = route(weights["router"], flat, config.experts_per_token, replay)
  mixture = dense_experts if config.moe_dispatch == "dense" else ragged_experts
  y = mixture(weights, flat, w, experts)
  if config.shared_expert_size:
    gate, up = jnp.split(flat @ weights["shared_gate_up"], 2, axis=-1)
    shared = (jax.nn.silu(gate) * up) @ weights["shared_down"]
    y = y + jax.nn.sigmoid(flat @ weights["shared_gate"])[:, None] * shared
  return y.reshape(B, T, D), experts.reshape(B, T, -1)
