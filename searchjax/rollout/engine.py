"""The rollout engine: a pool of conversation states, fed and decoded where they lie.  HOST.

Every token of a conversation is fed or decoded exactly once: a tool response continues the state,
nothing is prefilled again, and a prompt that several rollouts share is fed once and its state
copied. The pool holds more conversations than there are decode lanes, so that lanes stay busy while
searches are out. Shapes are static: nothing compiles after the first use of each of the three
steps.

Where the policy fits a device, every device has an engine with its own conversations
(`EngineGroup`). Else one engine is divided over a mesh: its pool lies in blocks, one a group of
devices that share the heads (`model.serving`), and every feed takes as many rows of each block.
With several processes, each of them knows every conversation, its tokens and what it does next, and
so makes the same calls in the same order; only the searches are shared out, and what came of them
is told to the others.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import queue
import time
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from searchjax.dist.distributed import exchange_json
from searchjax.dist.mesh import place
from searchjax.dist.sharding import DECODE, MESH_AXES, partition_specs
from searchjax.model.cache import Cache, empty_cache, stacked_cache_specs
from searchjax.model.config import ModelConfig
from searchjax.model.parallel import Division
from searchjax.model.params import ParamSpec
from searchjax.model.serving import Serving
from searchjax.rollout import sample
from searchjax.rollout.sample import Lanes
from searchjax.rollout.schedule import Conversation, Sampling, Schedule, Talk, dealt

# Slots, lanes and rows of a feed, in blocks over a mesh.
ROWS = PartitionSpec(DECODE["lanes"])
# States copied by one call.
FORKS = 16
# How long a process with nothing to do waits for its searches before it asks what others have.
LISTEN_S = 0.02


@dataclasses.dataclass
class EngineCounts:
  """Tokens and time since the engine was made: the numbers behind lane use and prefill ratio.

  Attributes:
    prefill_tokens, decode_tokens: that passed the model.
    forked_tokens: of shared prompts, copied instead of fed again.
    decode_steps: with anything to decode; lane_steps has them times the lanes.
    feeds: calls; each has room for feed_rows × feed_tokens.
    seconds, waiting_seconds: in `run`, and of these with nothing to do but wait for searches.
  """

  prefill_tokens: int = 0
  decode_tokens: int = 0
  forked_tokens: int = 0
  decode_steps: int = 0
  lane_steps: int = 0
  feeds: int = 0
  seconds: float = 0.0
  waiting_seconds: float = 0.0

  @property
  def lane_use(self) -> float:
    """Share of the lanes' time in which they decode; 0 before anything has run."""
    busy = 1.0 - self.waiting_seconds / self.seconds if self.seconds else 1.0
    return busy * self.decode_tokens / max(self.lane_steps, 1)


class Engine:
  """Runs conversations on a policy.

  Args:
    lanes: conversations decoded at once.
    pool: conversations whose state is held, at least `lanes`; None is as many.
    length: most tokens of one conversation.
    feed_rows, feed_tokens: rows and tokens of one feed; rows of all blocks together.
    decode_steps: tokens decoded between two looks at the host.
    stop_ids: ids that end a turn.
    top_k, top_p: restrict sampling in `run`; training refuses them, since the recorded log-prob is
      the whole distribution's.
    restricted: whether served conversations may set theirs.
    record_routing: hand the experts chosen for every token to its conversation.
    device: where the states lie; None is the default one. Parameters must lie there too.
    division: of the parameters over a mesh, in the decode layout; no `device` then.

  Raises:
    ValueError: a pool smaller than the lanes, or a division that does not fit.
  """

  def __init__(
    self,
    config: ModelConfig,
    *,
    lanes: int,
    pool: int | None = None,
    length: int,
    feed_rows: int,
    feed_tokens: int,
    decode_steps: int,
    stop_ids: tuple[int, ...],
    top_k: int = 0,
    top_p: float = 1.0,
    restricted: bool = False,
    record_routing: bool = False,
    device: jax.Device | None = None,
    division: Division | None = None,
  ):
    pool = lanes if pool is None else pool
    if pool < lanes:
      raise ValueError(
        f"engine.pool, the conversations held, must be at least engine.lanes = {lanes}, got {pool}"
      )
    self.config, self.lanes, self.pool, self.length = config, lanes, pool, length
    self.decode_steps, self.record_routing = decode_steps, record_routing
    self.device = device or jax.devices()[0]
    self.feed_rows, self.feed_tokens = min(feed_rows, lanes), feed_tokens
    self.stop_ids, self.top_k, self.top_p = tuple(stop_ids), top_k, top_p
    self.restricted = restricted or top_k > 0 or top_p < 1.0
    self.counts = EngineCounts()
    settings = dict(
      stop_ids=self.stop_ids, restricted=self.restricted, record_routing=record_routing
    )
    self.division = division
    self.blocks = 1  # Of the pool, on different devices.
    if division is None:
      self._cache = jax.device_put(empty_cache(config, pool, length), self.device)
      self._steps = make_steps(config, **settings)
    else:
      self.blocks = division.mesh.shape["fsdp"] * division.mesh.shape["context"]
      self._check_division(division)
      state = divided_state(config, division.mesh, pool, length)
      self._cache = jax.jit(
        lambda: jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), state),
        out_shardings=jax.tree.map(lambda a: a.sharding, state),
      )()
      self._steps = make_divided_steps(config, division, pool=pool, length=length, **settings)

  def _check_division(self, division):
    expert = division.mesh.shape["expert"]
    for name, value in (
      ("lanes", self.lanes), ("pool", self.pool), ("feed_rows", self.feed_rows)
    ):
      if value % self.blocks:
        raise ValueError(
          f"engine.{name} must be a multiple of fsdp × context = {self.blocks} on this mesh, got "
          f"{value}"
        )
    held = self.length // expert
    if self.length % expert or held < max(self.feed_tokens, self.decode_steps):
      raise ValueError(
        f"a conversation's {self.length} tokens, over expert {expert} devices, must divide and "
        f"leave each at least engine.feed_tokens and engine.decode_steps, got {self.feed_tokens} "
        f"and {self.decode_steps}; change limits.tokens or these"
      )

  def run(self, params, conversations: Iterable[Conversation], *, temperature: float) -> None:
    """Runs every conversation to its end, in place.

    With an engine divided over several processes, all of them call it with all conversations.

    Raises:
      ValueError: a prompt that leaves no room for an answer.
    """
    begun = time.perf_counter()
    blocks = self._schedules()
    for block, groups in zip(blocks, dealt(conversations, self.blocks), strict=True):
      for group in groups:
        block.add(group, Sampling(temperature, self.top_k, self.top_p))
    self._run(params, blocks)
    self.counts.seconds += time.perf_counter() - begun

  def serve(self, params, arrivals: queue.SimpleQueue) -> None:
    """Runs conversations (`schedule.Served`) as they arrive, until None does and all have ended.

    One that cannot begin is told so by its `refuse(reason)`.
    """
    self._run(params, self._schedules(), arrivals)

  def _schedules(self):
    return [Schedule(self.pool // self.blocks, self.length) for _ in range(self.blocks)]

  def _run(self, params, blocks, arrivals=None):
    served = arrivals is not None
    params = self._steps.prepare(params)
    while True:
      if arrivals is not None:
        arrivals = self._admit(blocks, arrivals)
      self._hear(blocks)
      self._fork(blocks)
      if self._feed_is_due(blocks):
        self._feed(params, blocks)
      elif any(b.to_decode() for b in blocks):
        self._decode(params, blocks, served=served)
      elif arrivals is None and not any(b.busy for b in blocks):
        return

  def _admit(self, blocks, arrivals):
    """Takes what has arrived, waiting for it if there is nothing else to do; None when closed."""
    while True:
      try:
        conversation = arrivals.get(block=not any(b.busy for b in blocks))
      except queue.Empty:
        return arrivals
      if conversation is None:
        return None
      block = min(blocks, key=lambda b: b.held)
      try:
        block.add([conversation], None)
      except ValueError as error:
        conversation.refuse(str(error))

  def _feed_is_due(self, blocks):
    """A full feed, or any where a block's lanes would stay empty."""
    rows, lanes = self.feed_rows // self.blocks, self.lanes // self.blocks
    return any(
      b.to_feed() and (b.to_feed() >= rows or b.to_decode() < lanes) for b in blocks
    )

  def _hear(self, blocks):
    """Goes on with conversations whose responses have come; waits if there is nothing else."""
    asking = [talk for b in blocks for talk in b.asking]
    if not asking:
      return
    idle = not any(b.to_feed() or b.to_decode() for b in blocks)
    waits = {id(talk): talk.conversation.waits_for() for talk in asking}
    shared = self.division is not None and jax.process_count() > 1
    if idle and all(waits.values()):
      pending = [f for futures in waits.values() for f in futures if not f.done()]
      first = concurrent.futures.FIRST_COMPLETED
      if pending:
        begun = time.perf_counter()
        concurrent.futures.wait(pending, LISTEN_S if shared else None, return_when=first)
        self.counts.waiting_seconds += time.perf_counter() - begun
    come = {id(t) for t in asking if all(f.done() for f in waits[id(t)])}
    if shared:
      come = self._tell(asking, come)
    for block in blocks:
      block.respond([talk for talk in block.asking if id(talk) in come])

  def _tell(self, asking, come):
    """Exchanges the responses that have come; which conversations go on, on every process."""
    told = {
      str(i): talk.conversation.responses()
      for i, talk in enumerate(asking) if talk.conversation.own and id(talk) in come
    }
    heard = {int(i): r for part in exchange_json(told) for i, r in part.items()}
    for i, responses in heard.items():
      if not asking[i].conversation.own:
        asking[i].conversation.hear(responses)
    return {id(asking[i]) for i in heard}

  def _fork(self, blocks):
    copies = [collections.deque(b.begin()) for b in blocks]
    while any(copies):
      source, target = (np.zeros((self.blocks, FORKS), np.int32) for _ in range(2))
      count = np.zeros(self.blocks, np.int32)
      for i, left in enumerate(copies):
        while left and count[i] < FORKS:
          source[i, count[i]], target[i, count[i]], tokens = left.popleft()
          count[i] += 1
          self.counts.forked_tokens += tokens
      rows = self._place(dict(source=source.ravel(), target=target.ravel(), count=count))
      self._cache = self._steps.fork(self._cache, rows)

  def _feed(self, params, blocks):
    b, C = self.feed_rows, self.feed_tokens
    slots, length, start = (np.zeros(b, np.int32) for _ in range(3))
    tokens = np.zeros((b, C), np.int32)
    each = b // self.blocks
    fed = []
    for block, schedule in enumerate(blocks):
      for i, (row, piece, at) in enumerate(schedule.feeds(each, C), block * each):
        slots[i], length[i], start[i] = row.slot, len(piece), at
        tokens[i, : len(piece)] = piece
        fed.append((i, row))
    rows = self._place(dict(slots=slots, tokens=tokens, length=length, start=start))
    self._cache, experts = self._steps.feed(params, self._cache, rows)
    self.counts.prefill_tokens += int(length.sum())
    self.counts.feeds += 1
    if self.record_routing:
      experts = np.moveaxis(np.asarray(experts), 0, 2)
      for i, row in fed:
        row.routing.append(experts[i, : length[i]])

  def _decode(self, params, blocks, *, served):
    B, each = self.lanes, self.lanes // self.blocks
    arrays = dict(
      slot=np.zeros(B, np.int32), token=np.zeros(B, np.int32), position=np.zeros(B, np.int32),
      left=np.zeros(B, np.int32), key=np.zeros((B, 2), np.uint32),
      forced=np.full((B, self.decode_steps), -1, np.int32), temperature=np.ones(B, np.float32),
      top_k=np.zeros(B, np.int32), top_p=np.ones(B, np.float32),
    )
    talks = [schedule.lanes(each) for schedule in blocks]
    lanes = []  # Of each block's conversations.
    for block, (schedule, some) in enumerate(zip(blocks, talks, strict=True)):
      begin = block * each
      # As many lanes as slots: each lane has its own, and the states are not read by index.
      whole = self.lanes == self.pool
      slots = range(each) if whole else [t.slot for t in some] + schedule.idle_slots(some)
      arrays["slot"][begin : begin + each] = slots[:each]
      lanes.append([begin + (t.slot if whole else i) for i, t in enumerate(some)])
      for i, talk in zip(lanes[block], some, strict=True):
        self._fill(arrays, i, talk)
    self._cache, out = self._steps.decode(params, self._cache, Lanes(**self._place(arrays)))
    out = jax.device_get(out)
    count = out["count"]
    self.counts.decode_steps += int(count.max())
    self.counts.lane_steps += int(count.max()) * B
    self.counts.decode_tokens += int(count.sum())
    for own, schedule, some in zip(lanes, blocks, talks, strict=True):
      pieces = []
      for i, talk in zip(own, some, strict=True):
        n = int(count[i])
        pieces.append((out["tokens"][i, :n].tolist(), out["logp"][i, :n].tolist(),
                       bool(out["going"][i])))
        if self.record_routing:
          talk.routing.append(out["experts"][i, :n])
      schedule.decoded(some, pieces, self.stop_ids, served=served)

  def _fill(self, arrays, i, talk: Talk):
    s = talk.sampling
    if (s.top_k or s.top_p < 1.0) and not self.restricted:
      raise ValueError("this engine samples from the whole distribution: no top_k, no top_p")
    ids = talk.forced[len(talk.tokens) : len(talk.tokens) + self.decode_steps]
    arrays["forced"][i, : len(ids)] = ids
    arrays["position"][i], arrays["left"][i] = talk.fed, talk.left
    arrays["token"][i] = talk.tokens[-1] if talk.tokens else talk.queue[0]
    arrays["key"][i] = talk.conversation.key
    arrays["temperature"][i], arrays["top_k"][i], arrays["top_p"][i] = (
      s.temperature, s.top_k, s.top_p
    )

  def _place(self, rows):
    return rows if self.division is None else place(rows, self.division.mesh, ROWS)


class EngineGroup:
  """One engine a device, each with its own conversations and thread; or one, divided over a mesh.

  A conversation's numbers do not depend on its batch-mates, so neither on the number of engines.

  Args:
    devices: each gets an engine.
    lanes, pool: of all engines together; must divide by the devices.
    division: as for `Engine`; None gives every device an engine.
    **settings: as for `Engine`.
  """

  def __init__(
    self,
    config: ModelConfig,
    *,
    devices: list[jax.Device],
    lanes: int,
    pool: int | None = None,
    division: Division | None = None,
    **settings,
  ):
    if division is not None:
      self.engines = [Engine(config, lanes=lanes, pool=pool, division=division, **settings)]
      return
    n, pool = len(devices), lanes if pool is None else pool
    for name, value in (("lanes", lanes), ("pool", pool)):
      if value % n:
        raise ValueError(f"engine.{name} must be a multiple of the {n} devices, got {value}")
    self.engines = [
      Engine(config, lanes=lanes // n, pool=pool // n, device=device, **settings)
      for device in devices
    ]

  @property
  def divided(self) -> bool:
    """Whether its one engine is divided over a mesh."""
    return self.engines[0].division is not None

  def run(self, params, conversations: Iterable[Conversation], *, temperature: float) -> None:
    """As `Engine.run`; `params` must lie whole on every device, or as the division says."""
    parts = [
      [c for group in groups for c in group]
      for groups in dealt(conversations, len(self.engines))
    ]
    self._each(
      params, lambda engine, here, i: engine.run(here, parts[i], temperature=temperature)
    )

  def serve(self, params, arrivals: queue.SimpleQueue) -> None:
    """As `Engine.serve`: each engine takes what arrives when it has room."""

    def one(engine, here, i):
      try:
        engine.serve(here, arrivals)
      finally:
        arrivals.put(None)  # For the next engine, also where this one failed.

    self._each(params, one)

  def _each(self, params, run: Callable):
    if self.divided:
      return run(self.engines[0], params, 0)

    # By one thread: two that ask an array for its shards at once may find it half taken apart.
    copies = [jax.tree.map(lambda a, e=e: _on_device(a, e), params) for e in self.engines]
    with concurrent.futures.ThreadPoolExecutor(len(self.engines)) as pool:
      started = [
        pool.submit(run, engine, copy, i)
        for i, (engine, copy) in enumerate(zip(self.engines, copies, strict=True))
      ]
      for one in started:
        one.result()

  def take_counts(self) -> EngineCounts:
    """Counts since the last call, over all engines; seconds are their mean."""
    counts = [engine.counts for engine in self.engines]
    for engine in self.engines:
      engine.counts = EngineCounts()
    total = EngineCounts(*map(sum, zip(*(dataclasses.astuple(c) for c in counts), strict=True)))
    # The engines ran side by side.
    for name in ("seconds", "waiting_seconds"):
      setattr(total, name, getattr(total, name) / len(counts))
    return total


def _on_device(array, engine):
  """The copy of a replicated array that lies on the engine's device, without moving it."""
  for shard in array.addressable_shards:
    if shard.device == engine.device and shard.data.shape == array.shape:
      return shard.data
  return jax.device_put(array, engine.device)


# ---- the jitted steps ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EngineSteps:
  """An engine's jitted functions; the pool is donated.

  Attributes:
    prepare: parameters to what the others take: on one device each layer's by themselves, which
      costs a copy of them.
    feed: (parameters, pool, {slots, tokens, length, start}) to pool and experts, see
      `model.forward.prefill`.
    fork: (pool, {source, target, count}) to the pool, see `model.cache.fork`.
    decode: (parameters, pool, lanes) to pool and tokens, see `sample.decode`.
  """

  prepare: Callable
  feed: Callable
  fork: Callable
  decode: Callable


def make_steps(
  config: ModelConfig, *, stop_ids: tuple[int, ...], restricted: bool, record_routing: bool
) -> EngineSteps:
  """Jits them on one device."""
  functions = _functions(config, sample.WHOLE, stop_ids, restricted, record_routing)
  prepare = jax.jit(lambda params: sample.WHOLE.prepare(params, config))
  return EngineSteps(prepare, *(jax.jit(f, donate_argnames="cache") for f in functions))


def make_divided_steps(
  config: ModelConfig, division: Division, *, pool: int, length: int, stop_ids: tuple[int, ...],
  restricted: bool, record_routing: bool,
) -> EngineSteps:
  """`make_steps` over a mesh: parameters in the decode layout, slots and rows in blocks.

  What the host reads comes whole to every process.
  """
  mesh = division.mesh
  steps = sample.divided_steps(Serving(**{axis: mesh.shape[axis] for axis in MESH_AXES}))
  cache = cache_specs(config, mesh, pool, length)
  feed, fork, decode = _functions(config, steps, stop_ids, restricted, record_routing)
  over = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
  feed = over(
    feed, in_specs=(division.specs, cache, ROWS), out_specs=(cache, PartitionSpec(None, *ROWS))
  )
  fork = over(fork, in_specs=(cache, ROWS), out_specs=cache)
  decode = over(decode, in_specs=(division.specs, cache, ROWS), out_specs=(cache, ROWS))
  lie = jax.tree.map(lambda spec: NamedSharding(mesh, spec), cache)
  whole = NamedSharding(mesh, PartitionSpec())
  return EngineSteps(
    lambda params: steps.prepare(params, config),
    jax.jit(feed, donate_argnums=1, out_shardings=(lie, whole)),
    jax.jit(fork, donate_argnums=0, out_shardings=lie),
    jax.jit(decode, donate_argnums=1, out_shardings=(lie, whole)),
  )


def _functions(config, steps, stop_ids, restricted, record):
  def feed(params, cache, rows):
    cache, experts = steps.prefill(params, config, cache, **rows)
    return cache, experts if record else None

  def fork(cache, rows):
    return steps.fork(cache, rows["source"], rows["target"], rows["count"][0])

  def decode(params, cache, lanes):
    cache, out = sample.decode(
      params, config, cache, lanes, stop_ids=stop_ids, restricted=restricted, steps=steps
    )
    if not record:
      out.pop("experts")
    return cache, out

  return feed, fork, decode


def cache_specs(config: ModelConfig, mesh: Mesh, pool: int, length: int) -> Cache:
  """PartitionSpecs of a stacked cache.

  Raises:
    ValueError: slots or positions do not divide.
  """
  sizes = {axis: mesh.shape[axis] for axis in MESH_AXES}
  return partition_specs(stacked_cache_specs(config, pool, length), DECODE, sizes)


def divided_state(config: ModelConfig, mesh: Mesh, pool: int, length: int) -> Cache:
  """The pool of an engine divided over a mesh, as shapes with shardings."""
  return jax.tree.map(
    lambda spec, part: jax.ShapeDtypeStruct(
      spec.shape, spec.dtype, sharding=NamedSharding(mesh, part)
    ),
    stacked_cache_specs(config, pool, length), cache_specs(config, mesh, pool, length),
    is_leaf=lambda x: isinstance(x, ParamSpec),
  )


def divided_lanes(mesh: Mesh, lanes: int, steps: int) -> Lanes:
  """Lanes of a decode call of `steps` tokens over a mesh, as shapes with shardings."""
  row = lambda *shape, dtype=jnp.int32: jax.ShapeDtypeStruct(
    (lanes, *shape), dtype, sharding=NamedSharding(mesh, ROWS)
  )
  return Lanes(
    slot=row(), token=row(), position=row(), left=row(), key=row(2, dtype=jnp.uint32),
    forced=row(steps), temperature=row(dtype=jnp.float32), top_k=row(),
    top_p=row(dtype=jnp.float32),
  )
