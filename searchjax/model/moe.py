"""Mixture of experts with a shared expert.  PURE.

  p = softmax(W_r x, float32);  top-X of p, renormalised to sum 1  (softmax of the top-X logits)
  y = Σ_e w_e · down_e(silu(gate_e x) · up_e x)  +  sigmoid(w_s · x) · shared(x)
  balance = E · Σ_e (assignments to e / tokens) · mean p_e         over real tokens

Ties in the top-X go to the lowest expert id, on every side.

On a mesh a device holds E of the experts and computes them for its expert group's tokens: all of
them ("gather"), or those that chose one of its experts ("all_to_all"), which is less to send as
soon as a group has more devices than a token has experts.

Letters  B rows, T tokens, D model width, E experts, X experts per token, F expert width, U buffer
rows of one expert, J devices of an expert group, R tokens one device sends another.
Source   transformers modeling_qwen3_5_moe; balance arXiv:2101.03961 eq. 4-6, with X choices a token
as in transformers, so that an even load gives X.
"""

import functools
import math

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from searchjax.model.config import ModelConfig
from searchjax.model.parallel import LOCAL, Parallel


@flax.struct.dataclass
class Routing:
  """What an expert layer, or a stack of them (leading axis L), did besides its output.

  Attributes:
    experts: int32 [B T X], the expert ids used, best first where they were chosen live.
    overflow: int32, (token, expert) pairs of real tokens left out for want of capacity.
    balance: float32, the balance term of the real tokens; 0 when there are none.
    replayed: int32, real tokens whose experts were recorded ones.
    disagree: int32, those of them for which the live choice would have been another set.

  On a mesh all but the first are a device's share, to be added up.
  """

  experts: Array
  overflow: Array
  balance: Array
  replayed: Array
  disagree: Array


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


def disagreement(
  logits: Float[Array, "T E"], replay: Int[Array, "T X"] | None, valid: Bool[Array, "T"]
) -> tuple[Int[Array, ""], Int[Array, ""]]:
  """Real tokens with recorded experts, and those of them that live would choose another set."""
  if replay is None:
    return jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
  _, live = jax.lax.top_k(logits, replay.shape[1])
  same = jnp.all(jnp.any(replay[:, :, None] == live[:, None, :], axis=-1), axis=-1)
  recorded = valid & (replay[:, 0] >= 0)
  return jnp.sum(recorded, dtype=jnp.int32), jnp.sum(recorded & ~same, dtype=jnp.int32)


def balance(
  logits: Float[Array, "T E"],
  experts: Int[Array, "T X"],
  valid: Bool[Array, "T"],
  parallel: Parallel = LOCAL,
) -> Float[Array, ""]:
  """The balance term; gradients flow through the probabilities only. Padding counts nowhere.

  On a mesh: the device's summand, its own probabilities against everybody's load.
  """
  E = logits.shape[-1]
  counts = jnp.bincount(jnp.where(valid[:, None], experts, E).reshape(-1), length=E + 1)[:E]
  tokens, counts = parallel.total((jnp.sum(valid), counts))
  tokens = jnp.maximum(tokens.astype(jnp.float32), 1.0)
  mass = jnp.einsum("TE,T->E", jax.nn.softmax(logits, axis=-1), valid.astype(jnp.float32))
  return E * jnp.sum(counts.astype(jnp.float32) / tokens * mass / tokens)


def balance_loss(config: ModelConfig, routing: Routing) -> Float[Array, ""]:
  """`router_aux_loss_coef` times the mean balance term of the layers, to be added to a loss."""
  return config.router_aux_loss_coef * jnp.mean(routing.balance)


def summed_balance_loss(
  config: ModelConfig, routing: Routing, count: Int[Array, ""], parallel: Parallel = LOCAL
) -> Float[Array, ""] | float:
  """`balance_loss` for a summed loss that is divided by `count` later (see `optim.update`).

  Args:
    count: what the device's rows count; rows are the same along context.
  """
  if not config.router_aux_loss_coef:
    return 0.0
  return balance_loss(config, routing) * parallel.total(count).astype(jnp.float32)


def dense_experts(weights: dict, x: Array, w: Array, experts: Array) -> Array:
  """Every expert on every token, weighted by the routing (zero for experts not chosen)."""
  E, D, two_F = weights["gate_up"].shape
  combine = jnp.sum(jax.nn.one_hot(experts, E, dtype=w.dtype) * w[..., None], axis=1)
  hidden = jnp.einsum("TD,EDF->TEF", x, weights["gate_up"])
  gate, up = jnp.split(hidden, 2, axis=-1)
  hidden = jax.nn.silu(gate) * up * combine[:, :, None].astype(x.dtype)
  return jnp.einsum("TEF,EFD->TD", hidden, weights["down"])


# Rows of a tile of one expert.
TILE = 32
# Bytes of all tiles' copies of weights above which seats, with no copies, are faster on a CPU.
COPIES = 24 * 2**20


def tiled_experts(weights: dict, x: Array, w: Array, experts: Array) -> Array:
  """Each expert on small blocks of its own tokens; leaves nothing out.

  Many tokens are sorted into tiles of one expert each, with a copy of its weights for every tile.
  Fewer, or of large experts, take seats, twice as many an expert as an even load has, in as many
  rounds as the fullest expert needs. Of very few each expert computes all. A token's outputs are
  added in its own order: batch-mates do not matter.

  Args:
    experts: int32 [T X]; ids from E on are no expert here.
  """
  T, X = experts.shape
  E = weights["gate_up"].shape[0]
  wanted = experts.reshape(-1)
  chosen = wanted[:, None] == jnp.arange(E)[None]
  # Each pair's place among its expert's, and how many pairs each expert has.
  upto = jnp.cumsum(chosen, axis=0, dtype=jnp.int32)
  place, counts = jnp.sum(jnp.where(chosen, upto - 1, 0), axis=1), upto[-1]
  seats = 8 * -(-2 * T * X // (8 * E))
  if seats > TILE and _tiles(wanted, E) * _bytes(weights) / E <= COPIES:
    out = _in_tiles(weights, x, wanted, place, counts)
  elif seats < T:
    out = _in_seats(weights, x, wanted, place, counts, seats)
  else:
    out = _by_all(weights, x, wanted)
  return jnp.sum(out.reshape(T, X, -1) * w[..., None].astype(x.dtype), axis=1)


def _tiles(wanted, E):
  """Tiles that are enough however the pairs fall on the experts."""
  return -(-wanted.size // TILE) + E


def _bytes(weights):
  return weights["gate_up"].nbytes + weights["down"].nbytes


def _in_tiles(weights, x, wanted, place, counts):
  """The pairs' outputs, [T X, D]."""
  (T, D), (E, _, _) = x.shape, weights["gate_up"].shape
  pairs = wanted.size
  n = _tiles(wanted, E)
  tiles = -(-counts // TILE)
  ends = jnp.cumsum(tiles)
  first = (ends - tiles)[jnp.minimum(wanted, E - 1)]
  seat = jnp.where(wanted < E, first * TILE + place, n * TILE)
  guest = jnp.arange(pairs, dtype=jnp.int32) // (pairs // T)
  source = jnp.full(n * TILE, T, jnp.int32).at[seat].set(guest, mode="drop")
  owner = jnp.sum(jnp.arange(n)[:, None] >= ends[None], axis=1)
  own = {name: weights[name][jnp.minimum(owner, E - 1)] for name in ("gate_up", "down")}
  return _take(_blocks(own, _take(x, source).reshape(n, TILE, D)), seat)


def _in_seats(weights, x, wanted, place, counts, seats):
  """The pairs' outputs, [T X, D]."""
  (T, D), (E, _, _) = x.shape, weights["gate_up"].shape
  pairs = wanted.size
  token = jnp.arange(pairs, dtype=jnp.int32) // (pairs // T)

  def some(begin, y):
    seated = (wanted < E) & (place >= begin) & (place < begin + seats)
    seat = jnp.where(seated, wanted * seats + place - begin, E * seats)
    guest = jnp.zeros(E * seats, jnp.int32).at[seat].set(token, mode="drop")
    return y + _take(_blocks(weights, x[guest].reshape(E, seats, D)), seat)

  y = some(0, jnp.zeros((pairs, D), x.dtype))
  for begin in range(seats, T, seats):
    more = functools.partial(some, begin)
    y = jax.lax.cond(jnp.max(counts) > begin, more, lambda y: y, y)
  return y


def _by_all(weights, x, wanted):
  """The pairs' outputs, [T X, D], without `dense_experts`' product over all experts at once, for
  which XLA turns the weights at every call on a CPU."""
  (T, D), E = x.shape, weights["gate_up"].shape[0]
  token = jnp.arange(wanted.size, dtype=jnp.int32) // (wanted.size // T)
  seat = jnp.where(wanted < E, wanted * T + token, E * T)
  return _take(_blocks(weights, jnp.broadcast_to(x[None], (E, T, D))), seat)


def _blocks(weights, x):
  """A block of rows through each expert, [n U D] to [n U, D]."""
  hidden = jnp.einsum("nUD,nDF->nUF", x, weights["gate_up"])
  gate, up = jnp.split(hidden, 2, axis=-1)
  out = jnp.einsum("nUF,nFD->nUD", jax.nn.silu(gate) * up, weights["down"])
  return out.reshape(-1, out.shape[-1])


def ragged_experts(
  weights: dict, x: Array, w: Array, experts: Array, rows: int, implementation: str = "ragged"
) -> tuple[Array, Array]:
  """Tokens sorted by expert, one grouped matmul a projection.

  Args:
    experts: int32 [T X]; ids from E on are no expert here.
    rows: of the sorted buffer; T · X leaves nothing out.
    implementation: of the product, see `grouped_product`.

  Returns:
    Outputs, and the number of (token, expert) pairs left out.
  """
  T, X = experts.shape
  E = weights["gate_up"].shape[0]
  wanted = jnp.minimum(experts.reshape(-1), E)
  order = jnp.argsort(wanted, stable=True)[:rows]
  ends = jnp.cumsum(jnp.bincount(wanted, length=E + 1)[:E]).astype(jnp.int32)
  held = jnp.minimum(ends, rows)
  counts = jnp.diff(held, prepend=0)
  taken = jnp.arange(rows) < held[-1]
  source = jnp.where(taken, order // X, T)
  weight = jnp.where(taken, w.reshape(-1)[order], 0)
  hidden = grouped_product(_take(x, source), weights["gate_up"], counts, implementation)
  hidden = _weighted(hidden, weight)
  out = grouped_product(hidden, weights["down"], counts, implementation)
  return _give_back(out, source, T), ends[-1] - held[-1]


# Of other numbers of rows XLA's kernel for v5p makes a product over all groups.
ROW_TILE = 16
# Tiles (rows, sums, columns) of the grouped kernel; smaller products take smaller ones.
GMM_TILES = (512, 1024, 1024)


def grouped_product(
  x: Float[Array, "U D"], weights: Float[Array, "E D F"], counts: Int[Array, "E"],
  implementation: str,
) -> Float[Array, "U F"]:
  """Rows times their group's matrix: the first counts[0] rows times the first one, and so on.

  Args:
    implementation: "ragged", XLA's own, a kernel on v5p and a product over all groups elsewhere;
      "gmm", a kernel on any TPU; "gmm_interpret", the same kernel, interpreted, for any device.

  Returns:
    The products; rows beyond the last group mean nothing.
  """
  if implementation == "ragged":
    return jax.lax.ragged_dot(x, weights, counts)
  # Imported here: the kernel's modules are of no use to the other ways.
  from jax.experimental.pallas.ops.tpu.megablox import ops

  (U, D), F = x.shape, weights.shape[-1]
  rows, sums, columns = GMM_TILES
  rows = min(rows, -(-U // 128) * 128)
  x = jnp.pad(x, ((0, -U % rows), (0, 0)))
  tiles = rows, min(sums, D), min(columns, F)
  return ops.gmm(
    x, weights, counts, x.dtype, tiles, None, None, False, implementation == "gmm_interpret"
  )[:U]


def capacity_experts(
  weights: dict, x: Array, w: Array, experts: Array, rows: int
) -> tuple[Array, Array]:
  """Every expert computes a buffer of `rows` tokens: shapes, and so shards, do not depend on x.

  First choices are seated before second ones, earlier tokens before later ones. What finds no seat
  adds nothing to its token.

  Args:
    experts: int32 [T X]; ids from E on are no expert here and take no seat.

  Returns:
    Outputs, and the number of (token, expert) pairs left out.
  """
  T, X = experts.shape
  E, D, _ = weights["gate_up"].shape
  wanted = jnp.minimum(experts, E).T.reshape(-1)
  order = jnp.argsort(wanted, stable=True)
  counts = jnp.bincount(wanted, length=E + 1)
  ahead = jnp.cumsum(counts) - counts
  rank = jnp.argsort(order) - ahead[wanted]
  seated = (rank < rows) & (wanted < E)
  # Which (token, choice) sits in each seat, if any.
  first = ahead[:E, None] + jnp.arange(rows)[None, :]
  taken = jnp.arange(rows)[None, :] < jnp.minimum(counts[:E, None], rows)
  guest = order[jnp.where(taken, first, 0)].reshape(-1)
  taken = taken.reshape(-1)
  source = jnp.where(taken, guest % T, T)
  weight = jnp.where(taken, w.T.reshape(-1)[guest], 0)
  buffer = _take(x, source).reshape(E, rows, D)
  hidden = _weighted(
    jnp.einsum("EUD,EDF->EUF", buffer, weights["gate_up"]), weight.reshape(E, rows)
  )
  out = jnp.einsum("EUF,EFD->EUD", hidden, weights["down"]).reshape(E * rows, D)
  return _give_back(out, source, T), jnp.sum((wanted < E) & ~seated, dtype=jnp.int32)


def _weighted(hidden, weight):
  """silu(gate) · up, times the routing weight: going back needs no second `down` product."""
  gate, up = jnp.split(hidden, 2, axis=-1)
  return jax.nn.silu(gate) * up * weight[..., None].astype(hidden.dtype)


def _take(x, source, fill=0):
  """Rows of x by token; `fill` where `source` is one past the last."""
  return x.at[source].get(mode="fill", fill_value=fill)


def _give_back(rows, source, tokens):
  """Buffer rows added to their tokens, in float32 and the buffer's order."""
  total = jnp.zeros((tokens, rows.shape[1]), jnp.float32)
  return total.at[source].add(rows.astype(jnp.float32), mode="drop").astype(rows.dtype)


def capacity(config: ModelConfig, tokens: int) -> int:
  """Rows of one expert's buffer for a batch of so many tokens."""
  even = tokens * config.experts_per_token / config.num_experts
  return min(tokens, math.ceil(config.capacity_factor * even))


def sorted_rows(config: ModelConfig, tokens: int, devices: int) -> int:
  """Rows of the sorted buffer of one of the devices that have so many tokens together."""
  even = tokens * config.experts_per_token / devices
  return math.ceil(config.capacity_factor * even / ROW_TILE) * ROW_TILE


def moe(
  weights: dict,
  config: ModelConfig,
  x: Float[Array, "B T D"],
  valid: Bool[Array, "B T"],
  replay: Int[Array, "B T X"] | None = None,
  parallel: Parallel = LOCAL,
) -> tuple[Float[Array, "B T D"], Routing]:
  """The expert layer.

  Args:
    weights: of whole tensors but for the experts, of which a device holds its own.
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
  compute = lambda *tokens: _experts(weights, config, *tokens, parallel)
  chunk = config.moe_chunk
  if chunk and chunk < B * T:
    if B * T % chunk:
      raise ValueError(
        f"moe_chunk must divide a device's tokens, {B * T}, got {chunk}; change compute.moe_chunk"
      )
    chunks = jax.tree.map(
      lambda a: a.reshape(-1, chunk, *a.shape[1:]), (flat, w, experts, valid)
    )
    # Computed again in the backward pass, so that only one chunk's buffers exist.
    one = jax.checkpoint(lambda tokens: compute(*tokens))
    y, overflow = jax.lax.map(one, chunks)
    y, overflow = y.reshape(B * T, D), overflow.sum()
  else:
    y, overflow = compute(flat, w, experts, valid)
  if config.shared_expert_size:
    gate, up = jnp.split(flat @ weights["shared_gate_up"], 2, axis=-1)
    shared = (jax.nn.silu(gate) * up) @ weights["shared_down"]
    y = y + jax.nn.sigmoid(flat @ weights["shared_gate"])[:, None] * shared
  # The router's product a second time, in the text only: the compiler merges it with `route`'s.
  logits = router_logits(weights["router"], flat)
  term = balance(logits, experts, valid, parallel)
  compared = disagreement(logits, replay, valid)
  return y.reshape(B, T, D), Routing(experts.reshape(B, T, -1), overflow, term, *compared)


def _experts(weights, config, x, w, experts, valid, parallel):
  """Sum over the experts of all devices, each device's own for tokens of its expert group."""
  held = weights["gate_up"].shape[0]
  seats = jnp.where(valid[:, None], experts, config.num_experts)
  if not parallel.divided("experts"):
    return _own_experts(weights, config, x, w, seats, x.shape[0], 1)
  group = x.shape[0] * parallel.expert
  if config.moe_exchange == "all_to_all":
    room = exchange_room(config, x.shape[0], parallel.expert)
    source, lost = choose_tokens(seats // held, parallel.expert, room)
    x, w, seats = (
      parallel.exchange(_take(a, source, fill))
      for a, fill in ((x, 0), (w, 0), (seats, config.num_experts))
    )
  else:
    x, w, seats = (parallel.share(a) for a in (x, w, seats))
  own = seats - parallel.first("experts", held)
  own = jnp.where((own >= 0) & (own < held), own, held)
  y, overflow = _own_experts(weights, config, x, w, own, group, parallel.expert)
  if config.moe_exchange == "all_to_all":
    return _give_back(parallel.exchange(y), source, valid.shape[0]), overflow + lost
  return parallel.unshare(y), overflow


def _own_experts(weights, config, x, w, own, tokens, parts):
  """A device's experts, of `parts` such; `tokens` of the group, of which x may be a selection."""
  whole = {"dense": dense_experts, "tiles": tiled_experts}
  if config.moe_dispatch in whole:
    return whole[config.moe_dispatch](weights, x, w, own), jnp.zeros((), jnp.int32)
  if config.moe_dispatch == "capacity":
    rows = min(capacity(config, tokens), x.shape[0])
    return capacity_experts(weights, x, w, own, rows)
  rows = own.size if parts == 1 else min(own.size, sorted_rows(config, tokens, parts))
  return ragged_experts(weights, x, w, own, rows, config.moe_dispatch)


def exchange_room(config: ModelConfig, tokens: int, devices: int) -> int:
  """Tokens one device may send another: `exchange_factor` times those of a random routing.

  A token is sent where one of its X experts is: 1 − C(E − E/J, X) / C(E, X) of the tokens.
  """
  E, X = config.num_experts, config.experts_per_token
  share = 1.0 - math.comb(E - E // devices, X) / math.comb(E, X)
  return min(tokens, math.ceil(config.exchange_factor * share * tokens))


def choose_tokens(
  homes: Int[Array, "T X"], devices: int, room: int
) -> tuple[Int[Array, "JR"], Int[Array, ""]]:
  """Which tokens go to which device of the expert group.

  Args:
    homes: the device that holds each chosen expert; `devices` and more are nobody.
    room: most tokens to one device; earlier tokens go first.

  Returns:
    For each device its tokens, ascending, filled up with T; and the (token, expert) pairs for which
    there was no room.
  """
  T = homes.shape[0]
  here = homes[None] == jnp.arange(devices)[:, None, None]
  wanted = jnp.any(here, axis=-1)
  token = jnp.sort(jnp.where(wanted, jnp.arange(T)[None, :], T), axis=-1)[:, :room]
  late = jnp.cumsum(wanted, axis=-1) > room
  return token.reshape(-1), jnp.sum(here & late[..., None], dtype=jnp.int32)
