"""The decoder: embedding, layers, final norm.  PURE.

  x ← embed[tokens];   each layer:  x ← x + mixer(norm x);  x ← x + moe(norm x);   norm x

Three ways through the same layers: `forward` over packed rows for training, `prefill` to continue
conversations by given tokens, `decode` to continue them by one.

Letters  B rows, T tokens, S cached positions, D model width, X experts per token, L layers.
Source   transformers modeling_qwen3_5_moe.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from searchjax.model import attention, deltanet, heads
from searchjax.model.cache import Cache, DecodeBuffer
from searchjax.model.config import ModelConfig
from searchjax.model.layers import rms_norm
from searchjax.model.moe import Routing, moe
from searchjax.model.parallel import LOCAL, Parallel
from searchjax.model.params import param_specs, unstack_layers


def _norm(config, x, weight):
  return rms_norm(x, weight, eps=config.norm_eps, zero_centred=config.zero_centred_norm)


def _moe(config, weights, x, valid, replay=None, parallel=LOCAL):
  y, routing = moe(
    weights, config, _norm(config, x, weights["norm"]), valid, replay, parallel
  )
  return x + y, routing


def _dropless(config):
  """How rollouts dispatch: no expert capacity, so that conversations do not depend on others."""
  instead = {"capacity": "ragged", "dense": "tiles"}.get(config.moe_dispatch, config.moe_dispatch)
  return dataclasses.replace(config, moe_dispatch=instead)


def forward(
  params: dict,
  config: ModelConfig,
  tokens: Int[Array, "B T"],
  segment_ids: Int[Array, "B T"],
  positions: Int[Array, "B T"],
  *,
  replay: Int[Array, "L B T X"] | None = None,
  parallel: Parallel = LOCAL,
) -> tuple[Float[Array, "B t D"], Routing]:
  """Hidden states over packed rows.

  Args:
    params: whole, or inside `jax.shard_map` a device's parts.
    tokens, segment_ids, positions, replay: the device's rows, whole along the sequence.
    segment_ids: 1, 2, … per document in a row, 0 for padding.
    positions: index of each token in its document.
    replay: expert ids recorded by `prefill` and `decode`, used instead of the live choice; tokens
      whose first id is negative are routed live. See `moe.route`.

  Returns:
    Final-normed hidden states of the device's stretch of the sequence, and the routing of every
    layer: `experts` [L B t X], `overflow` and `balance` [L].
  """
  own = parallel.own_stretch
  valid, own_positions = own(segment_ids) > 0, own(positions)
  axes = _layer_axes(config)

  def mix(kind, mixer, x):
    mixer = parallel.gather(mixer, axes[kind])
    h = _norm(config, x, mixer["norm"])
    if kind == "attention":
      return x + attention.attention(mixer, config, h, own_positions, segment_ids, parallel)
    return x + deltanet.deltanet(mixer, config, h, segment_ids, parallel)

  def compute_experts(stack, index, x, replay):
    # Taken from the stack in here, so that the backward pass keeps no copy of a layer's weights.
    experts = parallel.gather(jax.tree.map(lambda a: a[index], stack), axes["moe"])
    return _moe(config, experts, x, valid, replay, parallel)

  if config.remat == "parts":
    mix = jax.checkpoint(mix, static_argnums=0)
    compute_experts = jax.checkpoint(compute_experts)

  def layer(kind, mixer, stack, index, x, replay):
    return compute_experts(stack, index, mix(kind, mixer, x), replay)

  if config.remat == "layer":
    layer = jax.checkpoint(layer, static_argnums=0)

  stack = lambda routings: jax.tree.map(lambda *leaves: jnp.stack(leaves), *routings)
  if replay is not None:
    replay = jnp.moveaxis(own(jnp.moveaxis(replay, 0, 2)), 2, 0)
  x = heads.embed(params, config, own(tokens), parallel=parallel)
  if config.scan_layers:
    last = config.full_attention_interval - 1

    def group(x, scanned):
      stacked, replay = scanned
      own_replay = lambda i: None if replay is None else replay[i]
      routings = []
      if last:
        # The like layers of a group are scanned too: one body a kind to compile.
        def delta(x, scanned):
          i, mixer = scanned
          return layer("delta", mixer, stacked["moe"], i, x, own_replay(i))

        x, routing = jax.lax.scan(delta, x, (jnp.arange(last), stacked["delta"]))
        routings.append(routing)
      x, routing = layer(
        "attention", stacked["attention"], stacked["moe"], last, x, own_replay(last)
      )
      routings.append(jax.tree.map(lambda a: a[None], routing))
      return x, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *routings)

    stacked = {k: params[k] for k in ("attention", "moe", "delta") if k in params}
    if replay is not None:
      replay = replay.reshape(config.num_groups, -1, *replay.shape[1:])
    x, routing = jax.lax.scan(group, x, (stacked, replay))
    routing = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), routing)
  else:
    routings = []
    for i, weights in enumerate(unstack_layers(params, config)["layers"]):
      own_replay = None if replay is None else replay[i]
      stacked = jax.tree.map(lambda a: a[None], weights.moe)
      x, routing = layer(weights.kind, weights.mixer, stacked, 0, x, own_replay)
      routings.append(routing)
    routing = stack(routings)
  return _norm(config, x, params["final_norm"]), routing


def _layer_axes(config):
  """Logical axes of one layer's parameters, by kind."""
  specs = param_specs(config)
  cut = lambda spec: tuple(a for a in spec.axes if a not in ("groups", "layers"))
  kinds = [k for k in ("attention", "delta", "moe") if k in specs]
  return {k: {name: cut(spec) for name, spec in specs[k].items()} for k in kinds}


def prefill(
  params: dict,
  config: ModelConfig,
  cache: Cache,
  slots: Int[Array, "b"],
  tokens: Int[Array, "b C"],
  length: Int[Array, "b"],
  start: Int[Array, "b"],
) -> tuple[Cache, Int[Array, "L b C X"]]:
  """Feeds up to C given tokens to some conversations of the pool.

  Args:
    params: unstacked, see `unstack_layers`.
    cache: the pool's states; only rows `slots` change.
    slots: rows of the pool; repeat a row only with length 0 in the repeats.
    length: tokens fed to each row, 0 … C.
    start: position of each row's first token; 0 begins a conversation from an empty state.

  Returns:
    The pool, and the expert ids (int32) every layer chose for the given tokens; those beyond
    `length` mean nothing.
  """
  config = _dropless(config)
  b, C = tokens.shape
  S = cache.keys[0].shape[2]
  positions = start[:, None] + jnp.arange(C, dtype=start.dtype)[None, :]
  fed = jnp.arange(C)[None, :] < length[:, None]
  # Rows that feed nothing are written back out of range, i.e. not at all.
  rows = jnp.where(length > 0, slots, cache.keys[0].shape[0])
  write_at = jnp.where(fed, positions, S)
  fresh = (start == 0)[:, None, None, None]
  c = jnp.arange(C)
  within = jnp.broadcast_to((c[:, None] >= c[None, :])[None], (b, C, C))

  keys, values = list(cache.keys), list(cache.values)
  states, tails = list(cache.states), list(cache.tails)
  x = params["embed"][tokens]
  chosen = []
  a = d = 0
  for weights in params["layers"]:
    mixer = weights.mixer
    h = _norm(config, x, mixer["norm"])
    if weights.kind == "attention":
      q, k, v, gate = attention.project(mixer, config, h, positions)
      mixed = attention.attend_pool(
        q, keys[a], values[a], slots, start, jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2), within
      )
      x = x + attention.merge(mixer, mixed, gate)
      at_row = jnp.broadcast_to(rows[:, None], write_at.shape)
      keys[a] = keys[a].at[at_row, :, write_at, :].set(k, mode="drop")
      values[a] = values[a].at[at_row, :, write_at, :].set(v, mode="drop")
      a += 1
    else:
      state = jnp.where(fresh, 0.0, states[d][slots])
      tail = {n: jnp.where(fresh, 0, t[slots]) for n, t in tails[d].items()}
      y, state, tail = deltanet.deltanet_prefill(mixer, config, h, length, state, tail)
      x = x + y
      states[d] = states[d].at[rows].set(state, mode="drop")
      tails[d] = {n: tails[d][n].at[rows].set(tail[n], mode="drop") for n in tail}
      d += 1
    x, routing = _moe(config, weights.moe, x, fed)
    chosen.append(routing.experts)
  return Cache(tuple(keys), tuple(values), tuple(states), tuple(tails)), jnp.stack(chosen)


def decode(
  params: dict,
  config: ModelConfig,
  cache: Cache,
  buffer: DecodeBuffer,
  slots: Int[Array, "b"] | None,
  token: Int[Array, "b"],
  position: Int[Array, "b"],
  step: Int[Array, ""],
  active: Array,
) -> tuple[Float[Array, "b D"], DecodeBuffer, Int[Array, "L b X"]]:
  """Feeds one token to some conversations, reading the pool's keys and values where they lie.

  Args:
    params: as for `prefill`.
    cache: keys and values up to the loop's start, read only.
    buffer: what the loop has added since: keys and values of its steps; and the pool's DeltaNet
      states and tails.
    slots: their rows of the pool, each once; None: all of the pool, in its order.
    position: position of `token`; the loop began at position - step in every active row.
    step: steps done in this loop; the row of `buffer` that is written.
    active: rows that advance; the others keep their DeltaNet state.

  Returns:
    Final-normed hidden states of the token, the buffer with this step added, and the expert ids
    (int32) every layer chose.
  """
  config = _dropless(config)
  b, steps = token.shape[0], buffer.keys[0].shape[2]
  start = position - step
  new = jnp.broadcast_to((jnp.arange(steps) <= step)[None, None], (b, 1, steps))
  keys, values = list(buffer.keys), list(buffer.values)
  states, tails = list(buffer.states), list(buffer.tails)
  x = params["embed"][token][:, None, :]
  chosen = []
  a = d = 0
  # Rows that do not advance keep what they have: they may be another conversation's.
  begins = active & (position == 0)
  for weights in params["layers"]:
    mixer = weights.mixer
    h = _norm(config, x, mixer["norm"])
    if weights.kind == "attention":
      q, k, v, gate = attention.project(mixer, config, h, position[:, None])
      keys[a], values[a] = (
        jax.lax.dynamic_update_slice_in_dim(old, jnp.swapaxes(new, 1, 2), step, axis=2)
        for old, new in ((keys[a], k), (values[a], v))
      )
      mixed = attention.attend_pool(
        q, cache.keys[a], cache.values[a], slots, start, keys[a], values[a], new
      )
      x = x + attention.merge(mixer, mixed, gate)
      a += 1
    else:
      pool = states[d], tails[d]
      before = pool if slots is None else jax.tree.map(lambda a: a[slots], pool)
      y, *after = deltanet.deltanet_decode(mixer, config, h, *before, active, begins)
      x = x + y
      states[d], tails[d] = after if slots is None else jax.tree.map(
        lambda a, new: a.at[slots].set(new, unique_indices=True), pool, tuple(after)
      )
      d += 1
    x, routing = _moe(config, weights.moe, x, active[:, None])
    chosen.append(routing.experts[:, 0])
  x = _norm(config, x, params["final_norm"])
  buffer = DecodeBuffer(tuple(keys), tuple(values), tuple(states), tuple(tails))
  return x[:, 0], buffer, jnp.stack(chosen)
