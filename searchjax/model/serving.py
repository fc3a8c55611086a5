"""The decoder divided over a mesh for rollouts: prefill and decode, weight-stationary.  PURE.

Inside `jax.shard_map` a device holds its part of every weight in the decode layout of
`dist.sharding` and never moves one. It computes its own heads, inner widths and vocabulary for its
lanes, and the sums over `expert` make them whole. Experts: the tokens of all lanes go to every
device, each adds its own experts' part, and the sums go back. The key-value cache is divided by
position: every device attends to its own stretch with all heads' queries, and the softmaxes are
merged,

  m = max_e m_e;   out = Σ_e e^(m_e − m) num_e / Σ_e e^(m_e − m) den_e.

Layers are scanned by group; the cache is updated where it lies. Nothing is dropped: a conversation
does not depend on its batch-mates.

Letters  B pool rows, b rows of a device that are fed or decode, C tokens of one feed, S positions a
         device holds, J steps of one decode loop, N/K/H query heads, key-value heads, head size, D
         model width, X experts per token, L layers, G groups, I layers of a group.
Source   weight-stationary layouts: Pope et al., arXiv:2211.05102; merging of partial softmaxes:
         FlashAttention, arXiv:2205.14135.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from searchjax.dist.sharding import DECODE
from searchjax.model import attention, deltanet, heads
from searchjax.model.cache import Cache, DecodeBuffer, write_window
from searchjax.model.config import ModelConfig
from searchjax.model.layers import rms_norm
from searchjax.model.moe import dense_experts, grouped_product, route


@dataclasses.dataclass(frozen=True)
class Serving:
  """The collectives of a mesh in the decode layout.

  Attributes:
    fsdp, expert, context: sizes of the mesh axes.
  """

  fsdp: int = 1
  expert: int = 1
  context: int = 1

  def _over(self, axis: str) -> tuple[str, ...]:
    return tuple(m for m in DECODE[axis] if getattr(self, m) > 1)

  def sum(self, x: Array) -> Array:
    """Partial sums of the devices that hold the same lanes, added up."""
    return jax.lax.psum(x, "expert") if self.expert > 1 else x

  def anyone(self, x: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether it is true on any device."""
    over = self._over("lanes")
    return jax.lax.pmax(x.astype(jnp.int32), over) > 0 if over else x

  def gather(self, x: Array, axis: int) -> Array:
    """An array whole that is divided over `expert` along an axis."""
    return jax.lax.all_gather(x, "expert", axis=axis, tiled=True) if self.expert > 1 else x

  def own(self, x: Array) -> Array:
    """A device's part of the rows (axis 0) that all devices over `expert` hold."""
    size = x.shape[0] // self.expert
    at = jax.lax.axis_index("expert") * size if self.expert > 1 else 0
    return jax.lax.dynamic_slice_in_dim(x, at, size, axis=0)

  def to_owners(self, x: Float[Array, "E m n"]) -> Float[Array, "E m n"]:
    """What each device has for each, to what all devices have for one."""
    if self.expert == 1:
      return x
    return jax.lax.all_to_all(x, "expert", split_axis=0, concat_axis=0, tiled=True)

  def share(self, x: Array) -> Array:
    """The tokens (axis 0) of all lanes."""
    for m in reversed(self._over("lanes")):
      x = jax.lax.all_gather(x, m, axis=0, tiled=True)
    return x

  def unshare(self, y: Array) -> Array:
    """A device's own lanes' tokens of an array of summands; those over `expert` are to add."""
    for m in self._over("lanes"):
      y = jax.lax.psum_scatter(y, m, scatter_dimension=0, tiled=True)
    return y

  def first(self, axis: str, size: int) -> Array | int:
    """Index of a device's first element along a divided axis of which it holds `size`."""
    at = 0
    for m in self._over(axis):
      at = at * getattr(self, m) + jax.lax.axis_index(m)
    return at * size


def _own(config, serving):
  """The sizes of a device's part."""
  c = config
  return dataclasses.replace(
    c, delta_key_heads=c.delta_key_heads // serving.expert,
    delta_value_heads=c.delta_value_heads // serving.expert,
  )


# Tokens of all lanes up to which a device's own experts, if no more than a token chooses, are
# computed for all of them: reading the weights then takes as long.
DENSE_TOKENS = 512
ROWS = 128  # Rows of a sorted buffer are multiples of this.


def sorted_rows(config: ModelConfig, tokens: int, held: int) -> int:
  """Rows of the buffer that tokens are sorted into, or 0: every expert held on every token.

  Args:
    tokens: of all lanes.
    held: experts of a device.
  """
  X = config.experts_per_token
  if config.moe_dispatch in ("dense", "tiles") or (held <= X and tokens <= DENSE_TOKENS):
    return 0
  # Twice an even load at a time: nearly always once.
  return -(-2 * tokens * X * held // config.num_experts // ROWS) * ROWS


def sorted_experts(
  weights: dict,
  x: Float[Array, "T D"],
  w: Float[Array, "T X"],
  own: Int[Array, "T X"],
  *,
  rows: int,
  implementation: str,
) -> Float[Array, "T D"]:
  """A device's own experts on the tokens that chose one, `rows` at a time, however many come.

  Args:
    own: the expert's place among the device's; their number stands for an expert of another device.
    implementation: of the product, see `moe.grouped_product`; "capacity" computes each expert on
      all rows of a round.
  """
  T, X = own.shape
  held = weights["gate_up"].shape[0]
  flat, flat_w = own.reshape(-1), w.reshape(-1)
  order = jnp.argsort(flat, stable=True)
  ends = jnp.cumsum(jnp.bincount(flat, length=held + 1)[:held]).astype(jnp.int32)

  def some(carry):
    begin, y = carry
    at = begin + jnp.arange(rows, dtype=jnp.int32)
    taken = at < ends[-1]
    pair = order[jnp.minimum(at, T * X - 1)]
    token = jnp.where(taken, pair // X, T)
    weight = jnp.where(taken, flat_w[pair], 0)
    some_x = x.at[token].get(mode="fill", fill_value=0)
    if implementation == "capacity":
      ids = jnp.where(taken, flat[pair], held)
      out = dense_experts(weights, some_x, weight[:, None], ids[:, None])
    else:
      counts = jnp.diff(jnp.clip(ends - begin, 0, rows), prepend=0)
      hidden = grouped_product(some_x, weights["gate_up"], counts, implementation)
      gate, up = jnp.split(hidden, 2, axis=-1)
      hidden = jax.nn.silu(gate) * up * weight[:, None].astype(x.dtype)
      out = grouped_product(hidden, weights["down"], counts, implementation)
    return begin + rows, y.at[token].add(out.astype(jnp.float32), mode="drop")

  begin = jnp.int32(0), jnp.zeros(x.shape, jnp.float32)
  _, y = jax.lax.while_loop(lambda carry: carry[0] < ends[-1], some, begin)
  return y.astype(x.dtype)


def _take(stack, at, row=None):
  """stack[at], or the one row stack[at][row : row + 1]."""
  if row is None:
    # One index after another: XLA for TPU then reads a DeltaNet state once, not at every use.
    for i in at:
      stack = jax.lax.dynamic_index_in_dim(stack, i, 0, keepdims=False)
    return stack
  n = len(at)
  size = (1,) * (n + 1) + stack.shape[n + 1 :]
  begin = (*at, row, *[0] * (stack.ndim - n - 1))
  return jax.lax.dynamic_slice(stack, begin, size).reshape(size[n:])


def _put(stack, new, at, row=None, where=True):
  """stack with stack[at] = new, or stack[at][row : row + 1] = new; unchanged unless `where`."""
  n = len(at)
  new = new.reshape((1,) * n + new.shape)
  begin = (*at, 0 if row is None else row, *[0] * (stack.ndim - n - 1))
  if where is not True:
    new = jnp.where(where, new, jax.lax.dynamic_slice(stack, begin, new.shape))
  return jax.lax.dynamic_update_slice(stack, new, begin)


def _take_rows(stack, at, rows):
  """stack[at][rows], row by row: a gather of whole rows would copy them."""
  return jnp.concatenate([_take(stack, at, row) for row in rows])


def _put_rows(stack, new, at, rows, where):
  """stack with stack[at][rows] = new where `where` is true, row by row."""
  for i, row in enumerate(rows):
    stack = _put(stack, new[i : i + 1], at, row, where[i])
  return stack


def _norm(config, x, weight):
  return rms_norm(x, weight, eps=config.norm_eps, zero_centred=config.zero_centred_norm)


def _embed(params, tokens, serving):
  table = params["embed"]
  at = tokens - serving.first("vocab", table.shape[0])
  mine = (at >= 0) & (at < table.shape[0])
  return serving.sum(jnp.where(mine[..., None], table[jnp.where(mine, at, 0)], 0))


def _experts(weights, config, serving, x, valid):
  """The expert layer: every device's own experts on the tokens of all lanes."""
  B, T, D = x.shape
  held, X = weights["gate_up"].shape[0], config.experts_per_token
  flat = _norm(config, x, weights["norm"]).reshape(B * T, D)
  w, experts = route(weights["router"], flat, X)
  wanted = jnp.where(valid.reshape(B * T, 1), experts, config.num_experts)
  # Ids travel with the weights, as float32, which has all whole numbers up to 2^24.
  tokens = serving.share(flat)
  w, own = jnp.split(serving.share(jnp.concatenate([w, wanted.astype(w.dtype)], axis=-1)), 2, -1)
  own = own.astype(jnp.int32) - serving.first("experts", held)
  own = jnp.where((own >= 0) & (own < held), own, held)
  rows = sorted_rows(config, tokens.shape[0], held)
  if rows:
    y = sorted_experts(
      weights, tokens, w, own, rows=rows, implementation=config.moe_dispatch
    )
  else:
    y = dense_experts(weights, tokens, w, own)
  y = serving.unshare(y)
  if config.shared_expert_size:
    gate, up = jnp.split(flat @ weights["shared_gate_up"], 2, axis=-1)
    shared = (jax.nn.silu(gate) * up) @ weights["shared_down"]
    y = y + jax.nn.sigmoid(flat @ weights["shared_gate"])[:, None] * shared
  return x + serving.sum(y).reshape(B, T, D), experts.reshape(B, T, X)


def choose(
  params: dict,
  config: ModelConfig,
  serving: Serving,
  hidden: Float[Array, "B D"],
  pick: Callable,
  *rows: Array,
) -> Any:
  """What `pick` makes of each lane's logits over the whole vocabulary.

  Args:
    pick: (logits [b V], rows of `rows`) to a tree of arrays [b]. Where the lanes divide over
      `expert`, every device gets some of them whole; else it picks for all.
  """
  held = (params["embed"].T if config.tie_embeddings else params["head"]).shape[1]
  out = heads.logits(params, config, hidden, first=serving.first("vocab", held))
  B, E = hidden.shape[0], serving.expert
  if B % E:
    return pick(serving.gather(out, axis=1), *rows)
  out = serving.to_owners(out.reshape(E, B // E, held))
  out = jnp.moveaxis(out, 0, 1).reshape(B // E, E * held)
  return jax.tree.map(lambda a: serving.gather(a, axis=0), pick(out, *map(serving.own, rows)))


def _merged(serving, scores, mix, dtype):
  """Softmax attention over positions that are divided: see the module's equation.

  Args:
    scores: float32 [B K q T S], masked.
    mix: weights in `dtype` to float32 sums over the values, [B T K q H].
  """
  most = jnp.max(scores, axis=-1)
  weights = jnp.exp(scores - most[..., None])
  mass = jnp.sum(weights, axis=-1)
  out = mix(weights.astype(dtype))
  # For every device its own n of the N heads: [E, B T, n H], and twice [E, B T, n].
  B, T, K, q, H = out.shape
  E = serving.expert
  n = K * q // E
  by_owner = lambda a: jnp.moveaxis(a.reshape(B * T, E, -1), 1, 0)
  heads_last = lambda a: by_owner(jnp.transpose(a, (0, 3, 1, 2)))
  parts = serving.to_owners(
    jnp.concatenate([by_owner(out), heads_last(most), heads_last(mass)], axis=-1)
  )
  out, most, mass = jnp.split(parts, [n * H, n * H + n], axis=-1)
  share = jnp.exp(most - jnp.max(most, axis=0, keepdims=True))
  out = jnp.sum(out.reshape(E, B * T, n, H) * share[..., None], axis=0)
  out = out / jnp.sum(mass * share, axis=0)[..., None]
  return out.reshape(B, T, n, H).astype(dtype)


def _group_queries(q, kv_heads):
  """[B T N H], scaled, to [B T K q H]."""
  B, T, N, H = q.shape
  return (q * H**-0.5).reshape(B, T, kv_heads, N // kv_heads, H)


FLOAT32 = dict(preferred_element_type=jnp.float32)


def prefill(
  params: dict,
  config: ModelConfig,
  serving: Serving,
  cache: Cache,
  slots: Int[Array, "b"],
  tokens: Int[Array, "b C"],
  length: Int[Array, "b"],
  start: Int[Array, "b"],
) -> tuple[Cache, Int[Array, "L b C X"]]:
  """`model.forward.prefill` on a mesh.

  Args:
    cache: stacked; the device's lanes.
    slots: counted among the device's lanes.
  """
  config = _own(config, serving)
  b, C = tokens.shape
  S = cache.keys.shape[3]
  first = serving.first("positions", S)
  positions = start[:, None] + jnp.arange(C, dtype=start.dtype)[None, :]
  fed = jnp.arange(C)[None, :] < length[:, None]
  # The new tokens are in the cache when it is read: a query sees what is not after it.
  held = first + jnp.arange(S)
  mask = (held[None, None, :] <= positions[:, :, None])[:, None, None]
  fresh = (start == 0)[:, None, None, None]
  # A row that feeds nothing may name a slot that another one writes.
  read = lambda stack, at: _take_rows(stack, at, slots)
  write = lambda stack, new, at: _put_rows(stack, new, at, slots, length > 0)

  def attend(mixer, g, x, cache):
    h = _norm(config, x, mixer["norm"])
    q, k, v, gate = attention.project(mixer, config, h, positions)
    keys, values = cache.keys, cache.values
    for i in range(b):
      block = lambda a, i=i: jnp.swapaxes(a[i], 0, 1)[None, None]
      at = (g, slots[i], first, start[i], length[i])
      keys, values = write_window(keys, block(k), *at), write_window(values, block(v), *at)
    q = _group_queries(serving.gather(q, axis=2), k.shape[2])
    scores = jnp.einsum("BTKqH,BKSH->BKqTS", q, read(keys, (g,)), **FLOAT32)
    mix = lambda w: jnp.einsum("BKqTS,BKSH->BTKqH", w, read(values, (g,)), **FLOAT32)
    mixed = _merged(serving, jnp.where(mask, scores, attention.MASKED), mix, v.dtype)
    y = serving.sum(attention.merge(mixer, mixed, gate))
    return x + y, cache.replace(keys=keys, values=values)

  def delta(mixer, at, x, cache):
    h = _norm(config, x, mixer["norm"])
    stacks = cache.states, cache.tails
    before = jax.tree.map(lambda a: jnp.where(fresh, 0, read(a, at)), stacks)
    y, *after = deltanet.deltanet_prefill(mixer, config, h, length, *before)
    states, tails = jax.tree.map(lambda old, new: write(old, new, at), stacks, tuple(after))
    return x + serving.sum(y), cache.replace(states=states, tails=tails)

  chosen = jnp.zeros(
    (config.num_groups, config.full_attention_interval, b, C, config.experts_per_token), jnp.int32
  )
  _, cache, chosen = _layers(
    params, config, serving, attend, delta, fed, _embed(params, tokens, serving), cache, chosen
  )
  return cache, chosen.reshape(-1, *chosen.shape[2:])


def decode(
  params: dict,
  config: ModelConfig,
  serving: Serving,
  cache: Cache,
  buffer: DecodeBuffer,
  slots: Int[Array, "b"],
  token: Int[Array, "b"],
  position: Int[Array, "b"],
  step: Int[Array, ""],
  active: Bool[Array, "b"],
) -> tuple[Float[Array, "b D"], DecodeBuffer, Int[Array, "L b X"]]:
  """`model.forward.decode` on a mesh.

  Args:
    cache, buffer: stacked; the device's pool. All devices hold all of the buffer's positions, and
      each reads its share of them.
    slots: counted in the device's pool.
  """
  config = _own(config, serving)
  b, S, J = token.shape[0], cache.keys.shape[3], buffer.keys.shape[3]
  first = serving.first("positions", S)
  start = position - step
  old = first + jnp.arange(S)[None, :] < start[:, None]
  j = jnp.arange(J)
  new = (j <= step) & (j % serving.expert == serving.first("positions", 1))
  mask = jnp.concatenate([old, jnp.broadcast_to(new[None], (b, J))], axis=1)[:, None, None, None]
  # Rows that do not advance keep what they have: they may be another conversation's.
  begins = active & (position == 0)

  def attend(mixer, g, x, buffer):
    h = _norm(config, x, mixer["norm"])
    q, k, v, gate = attention.project(mixer, config, h, position[:, None])
    keys, values = (
      jax.lax.dynamic_update_slice(old, jnp.swapaxes(new, 1, 2)[None], (g, 0, 0, step, 0))
      for old, new in ((buffer.keys, k), (buffer.values, v))
    )
    q = _group_queries(serving.gather(q, axis=2), k.shape[2])
    # Each row's own product reads its keys where they lie; stacked, they would be copied.
    score = functools.partial(jnp.einsum, "BTKqH,BKSH->BKqTS", **FLOAT32)
    held = [score(q[i : i + 1], _take(cache.keys, (g,), slots[i])) for i in range(b)]
    scores = jnp.concatenate(
      [jnp.concatenate(held), score(q, _take(keys, (g,)))], axis=-1
    )
    add = functools.partial(jnp.einsum, "BKqTS,BKSH->BTKqH", **FLOAT32)

    def mix(w):
      held = [
        add(w[i : i + 1, ..., :S], _take(cache.values, (g,), slots[i])) for i in range(b)
      ]
      return jnp.concatenate(held) + add(w[..., S:], _take(values, (g,)))

    mixed = _merged(serving, jnp.where(mask, scores, attention.MASKED), mix, v.dtype)
    y = serving.sum(attention.merge(mixer, mixed, gate))
    return x + y, buffer.replace(keys=keys, values=values)

  def delta(mixer, at, x, buffer):
    h = _norm(config, x, mixer["norm"])
    stacks = buffer.states, buffer.tails
    before = jax.tree.map(lambda a: _take_rows(a, at, slots), stacks)
    y, *after = deltanet.deltanet_decode(mixer, config, h, *before, active, begins)
    # Every row has a slot of its own: those that do not advance write back what they had.
    states, tails = jax.tree.map(
      lambda stack, new: _put_rows(stack, new, at, slots, [True] * b), stacks, tuple(after)
    )
    return x + serving.sum(y), buffer.replace(states=states, tails=tails)

  chosen = jnp.zeros(
    (config.num_groups, config.full_attention_interval, b, 1, config.experts_per_token), jnp.int32
  )
  x = _embed(params, token, serving)[:, None]
  x, buffer, chosen = _layers(
    params, config, serving, attend, delta, active[:, None], x, buffer, chosen
  )
  x = _norm(config, x, params["final_norm"])
  return x[:, 0], buffer, chosen.reshape(-1, b, config.experts_per_token)


def _layers(params, config, serving, attend, delta, valid, x, state, chosen):
  """All layers in order.

  The loops index whole stacks: a stack sliced by an outer loop and again by an inner one would be
  copied in between.
  """
  last = config.full_attention_interval - 1
  take = lambda kind, at: jax.tree.map(lambda a: _take(a, at), params[kind])

  def experts(at, x, chosen):
    x, ids = _experts(take("moe", at), config, serving, x, valid)
    return x, _put(chosen, ids, at)

  def group(g, carry):
    def inner(i, carry):
      x, state, chosen = carry
      x, state = delta(take("delta", (g, i)), (g, i), x, state)
      x, chosen = experts((g, i), x, chosen)
      return x, state, chosen

    x, state, chosen = jax.lax.fori_loop(0, last, inner, carry) if last else carry
    x, state = attend(take("attention", (g,)), g, x, state)
    x, chosen = experts((g, last), x, chosen)
    return x, state, chosen

  return jax.lax.fori_loop(0, config.num_groups, group, (x, state, chosen))


def open_buffer(cache: Cache, rows: int, steps: int) -> DecodeBuffer:
  """`model.cache.open_buffer`, stacked."""
  G, _, K, _, H = cache.keys.shape
  keys, values = (jnp.zeros((G, rows, K, steps, H), cache.keys.dtype) for _ in range(2))
  return DecodeBuffer(keys, values, cache.states, cache.tails)


def close_buffer(
  serving: Serving, cache: Cache, buffer: DecodeBuffer, slots: Int[Array, "b"],
  start: Int[Array, "b"], count: Int[Array, "b"],
) -> Cache:
  """`model.cache.close_buffer`, stacked: one window a row, all layers at once."""
  first = serving.first("positions", cache.keys.shape[3])

  def row(i, stacks):
    return tuple(
      write_window(
        stack, jax.lax.dynamic_slice_in_dim(new, i, 1, axis=1), 0, slots[i], first, start[i],
        count[i],
      )
      for stack, new in zip(stacks, (buffer.keys, buffer.values), strict=True)
    )

  keys, values = jax.lax.fori_loop(0, start.shape[0], row, (cache.keys, cache.values))
  return Cache(keys, values, buffer.states, buffer.tails)
