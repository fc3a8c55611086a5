"""One mistake at a time, made on purpose: does the parity check see it?

Most are re-arrangements of weights that make the right code compute the wrong model, so they share
its compilation; the rest change a field of the config or replace one function.
"""

import contextlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from parity import measure

from searchjax.model import deltanet, moe
from searchjax.model.params import unstack_layers

DELTA, ATTENTION = 0, 3  # layers of the qwen3_5_moe case
VALUE_HEADS = ("value", "gate", "write", "decay", "conv_value", "A_log", "dt_bias", "out")


def _along(name, a, order):
  """Re-orders the head axis of one DeltaNet parameter."""
  return a[order] if name in ("A_log", "dt_bias", "out") else a[:, order]


def plain_norms(config, mixer, experts):
  return mixer | {"norm": mixer["norm"] - 1}, experts | {"norm": experts["norm"] - 1}


def zero_centred_gated_norm(config, mixer, experts):
  return mixer | {"out_norm": mixer["out_norm"] + 1}, experts


def write_and_decay_swapped(config, mixer, experts):
  return mixer | {"write": mixer["decay"], "decay": mixer["write"]}, experts


def convolution_flipped(config, mixer, experts):
  return mixer | {n: a[::-1] for n, a in mixer.items() if n.startswith("conv_")}, experts


def key_heads_tiled(config, mixer, experts):
  """Value head h reads key head h % A instead of h // (M / A)."""
  A, M = config.delta_key_heads, config.delta_value_heads
  slot = np.array([(h % A) * (M // A) + h // A for h in range(M)])
  order = np.argsort(slot)
  return mixer | {n: _along(n, mixer[n], order) for n in VALUE_HEADS}, experts


def qkv_grouped_by_key_head(config, mixer, experts):
  """The rows of in_proj_qkv read as Qwen3-Next lays them out."""
  rows = [mixer[n].reshape(config.hidden_size, -1) for n in ("query", "key", "value")]
  flat = np.concatenate(rows, axis=1)
  A, P = config.delta_key_heads, config.delta_key_size
  groups = flat.reshape(config.hidden_size, A, -1)
  q, k, v = groups[..., :P], groups[..., P : 2 * P], groups[..., 2 * P :]
  return mixer | {"query": q, "key": k, "value": v.reshape(mixer["value"].shape)}, experts


def decay_rate_in_bfloat16(config, mixer, experts):
  return mixer | {"A_log": mixer["A_log"].astype(jnp.bfloat16).astype(np.float32)}, experts


def shared_gate_missing(config, mixer, experts):
  return mixer, experts | {
    "shared_gate": 0 * experts["shared_gate"], "shared_down": 2 * experts["shared_down"]
  }


def gate_and_up_swapped(config, mixer, experts):
  gate, up = np.split(experts["gate_up"], 2, axis=-1)
  return mixer, experts | {"gate_up": np.concatenate([up, gate], -1)}


def gate_and_up_interleaved(config, mixer, experts):
  a = experts["gate_up"]
  return mixer, experts | {"gate_up": np.concatenate([a[..., ::2], a[..., 1::2]], -1)}


def query_and_gate_as_halves(config, mixer, experts):
  """[all queries | all gates] instead of [query | gate] per head."""
  D, N, H = mixer["query"].shape[0], config.num_query_heads, config.head_size
  q, gate = np.split(mixer["query"].reshape(D, -1), 2, axis=1)
  return mixer | {"query": np.concatenate([a.reshape(D, N, H) for a in (q, gate)], -1)}, experts


def no_attention_gate(config, mixer, experts):
  q, gate = np.split(mixer["query"], 2, axis=-1)
  query = np.concatenate([q, 0 * gate], -1)
  return mixer | {"query": query, "out": 2 * mixer["out"]}, experts


def _reorder_head(config, mixer, order):
  q, gate = np.split(mixer["query"], 2, axis=-1)
  return mixer | {
    "query": np.concatenate([q[..., order], gate], -1), "key": mixer["key"][..., order],
    "query_norm": mixer["query_norm"][order], "key_norm": mixer["key_norm"][order],
  }  # fmt: skip


def neighbouring_rotary_pairs(config, mixer, experts):
  rotary, size = config.rotary_dims, config.head_size
  order = [*range(0, rotary, 2), *range(1, rotary, 2), *range(rotary, size)]
  return _reorder_head(config, mixer, np.array(order)), experts


def last_dimensions_rotated(config, mixer, experts):
  order = np.roll(np.arange(config.head_size), config.rotary_dims)
  return _reorder_head(config, mixer, order), experts


def _convolve_without_silu(x, tail, kernel, same_document, _):
  J, T = kernel.shape[0], x.shape[1]
  padded = jnp.concatenate([tail, x], axis=1)
  return sum(padded[:, j : j + T] * kernel[j][None, None] for j in range(J))


def _finish(how):
  def finish(weights, config, out, gate):
    silu, w = jax.nn.silu(gate), weights["out_norm"][None, None, None]
    norm = lambda a, axes=-1: a * jax.lax.rsqrt(
      jnp.mean(jnp.square(a), axis=axes, keepdims=True) + config.norm_eps
    )
    y = {
      "gate before norm": lambda: norm(out * silu) * w,
      "sigmoid z": lambda: norm(out) * w * jax.nn.sigmoid(gate),
      "all heads": lambda: norm(out, (-2, -1)) * w * silu,
    }[how]()
    return jnp.einsum("BTMR,MRD->BTD", y, weights["out"])

  return finish


def _chunks(how):
  """The recurrence, token by token, with one step out of place."""

  def chunks(q, k, v, beta, g, segment_ids, state, state_segment, *, chunk_length):
    def step(S, token):
      q, k, v, beta, g = token
      decayed = S * jnp.exp(g)[..., None, None]
      read = jnp.einsum("BMPR,BMP->BMR", S if how == "undecayed" else decayed, k)
      new = decayed + k[..., None] * (beta[..., None] * (v - read))[..., None, :]
      return new, jnp.einsum("BMPR,BMP->BMR", decayed if how == "read first" else new, q)

    time_first = lambda a: jnp.moveaxis(a, 1, 0)
    state, out = jax.lax.scan(step, state, tuple(map(time_first, (q, k, v, beta, g))))
    return jnp.moveaxis(out, 0, 1), state

  return chunks


def _route_without_renormalisation(router, x, experts_per_token, replay=None):
  p, experts = jax.lax.top_k(jax.nn.softmax(moe.router_logits(router, x)), experts_per_token)
  return p, experts


# name: (layer, re-arrangement of its weights), (layer, fields) or (layer, module, function, other)
MISTAKES = {
  "norm multiplies by w, not 1 + w": (DELTA, plain_norms),
  "gated norm multiplies by 1 + w": (DELTA, zero_centred_gated_norm),
  "gate before the norm": (DELTA, deltanet, "finish", _finish("gate before norm")),
  "sigmoid instead of SiLU of z": (DELTA, deltanet, "finish", _finish("sigmoid z")),
  "norm over all heads": (DELTA, deltanet, "finish", _finish("all heads")),
  "query and gate as global halves": (ATTENTION, query_and_gate_as_halves),
  "no attention gate": (ATTENTION, no_attention_gate),
  "whole head rotated": (ATTENTION, dict(rotary_dims=24)),
  "last quarter rotated": (ATTENTION, last_dimensions_rotated),
  "rotary pairs are neighbours": (ATTENTION, neighbouring_rotary_pairs),
  "rope_theta 1e6": (ATTENTION, dict(rope_theta=1e6)),
  "key heads tiled, not repeated": (DELTA, key_heads_tiled),
  "convolution flipped": (DELTA, convolution_flipped),
  "no SiLU after the convolution": (DELTA, deltanet, "convolve", _convolve_without_silu),
  "qkv grouped by key head": (DELTA, qkv_grouped_by_key_head),
  "a and b swapped": (DELTA, write_and_decay_swapped),
  "delta from the undecayed state": (DELTA, deltanet, "delta_chunks", _chunks("undecayed")),
  "output before the write": (DELTA, deltanet, "delta_chunks", _chunks("read first")),
  "gate and up swapped": (DELTA, gate_and_up_swapped),
  "gate and up interleaved": (DELTA, gate_and_up_interleaved),
  "routing weights not renormalised": (
    DELTA, moe, "route", _route_without_renormalisation,
  ),
  "shared expert's gate missing": (DELTA, shared_gate_missing),
  "norm eps 1e-5": (DELTA, dict(norm_eps=1e-5)),
  "A_log in bfloat16": (DELTA, decay_rate_in_bfloat16),
}  # fmt: skip


def error(name: str, model, tree: dict, stored: dict) -> float:
  """Error of the layer's output, from transformers' own input to it, with the mistake made."""
  where, *mistake = MISTAKES[name]
  weights = unstack_layers(tree, model)["layers"][where]
  mixer, experts = weights.mixer, weights.moe
  run, context = measure.layer, contextlib.nullcontext()
  # What compiles anew does so in the forms that compile fastest.
  quick = dict(moe_dispatch="dense", chunk_length=16)
  if isinstance(mistake[0], dict):
    model = measure.config("qwen3_5_moe", **quick, **mistake[0])
  elif callable(mistake[0]):
    mixer, experts = mistake[0](model, mixer, experts)
  else:
    context = mock.patch.object(*mistake)
    model = measure.config("qwen3_5_moe", **quick)
    # A function of its own: jit would find the right one's trace again.
    run = jax.jit(lambda *args: measure.layer.__wrapped__(*args), static_argnums=(0, 1))
  with context:
    got, _ = run(model, weights.kind, mixer, experts, stored["hidden"][where])
  want = stored["last"] if where == ATTENTION else stored["hidden"][where + 1]
  return measure.value_error(got, want)
