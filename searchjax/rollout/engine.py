"""The rollout engine's host side: lanes, feeds, decode loops.  HOST.

A pool of lanes, each holding one conversation's state on the device. Every token of a conversation
is fed or decoded exactly once: a tool response continues the state, nothing is prefilled again.
Shapes are static, so that nothing compiles after the first use of each of the two steps.

Where the policy fits a device, every device has an engine with its own conversations
(`EngineGroup`). Else one engine is divided over a mesh: lanes lie in blocks, one a group of devices
that share the heads (`model.serving`), and every feed takes as many rows of each block. All
processes then make the same calls in the same order, whatever their own conversations need.

`run` drives any objects with the Conversation protocol; `rollout.episode` is the one that searches.
"""

import collections
import concurrent.futures
import dataclasses
import enum
import functools
import time
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from searchjax.dist.sharding import DECODE, MESH_AXES, partition_specs
from searchjax.model.cache import Cache, empty_cache, stacked_cache_specs
from searchjax.model.config import ModelConfig
from searchjax.model.parallel import Division
from searchjax.model.params import ParamSpec
from searchjax.model.serving import Serving
from searchjax.rollout import sample

# Lanes and rows of a feed, in blocks over a mesh.
ROWS = PartitionSpec(DECODE["lanes"])


@runtime_checkable
class Conversation(Protocol):
  """What the engine drives.

  Attributes:
    key: uint32 [2], the rollout's sampling key data.
    prompt: token ids that begin it.
    routing: where an engine that records routing appends the experts of each token that passes the
      model, as int32 arrays [n L X] in order. The last token sampled never passes it.
  """

  key: np.ndarray
  prompt: list[int]
  routing: list[np.ndarray]

  def turn_budget(self) -> int:
    """Most tokens the next turn may sample."""

  def forced_turn(self) -> list[int]:
    """The ids the next turn takes instead of sampling; empty when it samples."""

  def end_turn(self, tokens: list[int], logps: list[float], stopped: bool) -> None:
    """Takes a sampled turn; afterwards `waits_for` and `finished` say how it goes on."""

  def waits_for(self) -> list[concurrent.futures.Future]: ...

  def next_tokens(self) -> list[int]:
    """Token ids after the sampled turn, once everything waited for is there."""

  finished: bool


@dataclasses.dataclass
class EngineCounts:
  """Tokens and time since the engine was made: the numbers behind lane use and prefill ratio."""

  prefill_tokens: int = 0
  decode_tokens: int = 0
  decode_steps: int = 0
  lane_steps: int = 0
  seconds: float = 0.0


class Call(enum.IntEnum):
  """What an engine does next; of several processes' wishes the greatest is granted."""

  END = 0
  AGAIN = 1  # Look again for conversations and responses.
  DECODE = 2
  FEED = 3


def agree(call: Call) -> Call:
  """What all processes do next: the greatest of what each has to do."""
  return call


@dataclasses.dataclass
class _Lane:
  conversation: Conversation
  fed: int  # tokens in the device state
  queue: list[int]  # tokens still to be fed; the last becomes the pending one
  state: str  # "feed" | "decode" | "wait"
  forced: list[int] = dataclasses.field(default_factory=list)
  tokens: list[int] = dataclasses.field(default_factory=list)
  logps: list[float] = dataclasses.field(default_factory=list)


class Engine:
  """Runs conversations on a policy.

  Args:
    lanes: conversations decoded at once.
    length: most tokens of one conversation.
    feed_rows, feed_tokens: rows and tokens of one feed; rows of all blocks together.
    decode_steps: tokens decoded between two looks at the host.
    stop_ids: ids that end a turn.
    top_k, top_p: restrict sampling; training refuses them (the recorded log-prob is the full
      model's).
    record_routing: hand the experts chosen for every token to its conversation.
    device: where the states lie; None is the default one. Parameters must lie there too.
    division: of the parameters over a mesh, in the decode layout; no `device` then.

  Raises:
    ValueError: a division that lanes, feed rows or positions do not fit.
  """

  def __init__(
    self,
    config: ModelConfig,
    *,
    lanes: int,
    length: int,
    feed_rows: int,
    feed_tokens: int,
    decode_steps: int,
    stop_ids: tuple[int, ...],
    top_k: int = 0,
    top_p: float = 1.0,
    record_routing: bool = False,
    device: jax.Device | None = None,
    division: Division | None = None,
  ):
    self.config, self.lanes, self.length = config, lanes, length
    self.decode_steps, self.record_routing = decode_steps, record_routing
    self.device = device or jax.devices()[0]
    self.feed_rows, self.feed_tokens = min(feed_rows, lanes), feed_tokens
    self.stop_ids = tuple(stop_ids)
    self.counts = EngineCounts()
    sampling = dict(stop_ids=self.stop_ids, top_k=top_k, top_p=top_p)
    self.division = division
    self.blocks = 1  # Of lanes, on different devices.
    if division is None:
      self._cache, self._lanes = jax.device_put(
        (empty_cache(config, lanes, length), sample.empty_lanes(lanes)), self.device
      )
      self._feed, self._decode = make_steps(config, record_routing=record_routing, **sampling)
    else:
      self.blocks = division.mesh.shape["fsdp"] * division.mesh.shape["context"]
      self._check_division(division)
      state = divided_state(config, division.mesh, lanes, length)
      self._cache, self._lanes = jax.jit(
        lambda: jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), state),
        out_shardings=jax.tree.map(lambda a: a.sharding, state),
      )()
      self._feed, self._decode = make_divided_steps(
        config, division, lanes=lanes, length=length, record_routing=record_routing, **sampling
      )

  def _check_division(self, division):
    expert = division.mesh.shape["expert"]
    for name, value in (("lanes", self.lanes), ("feed_rows", self.feed_rows)):
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

    Searches run while other lanes decode; between decode loops the engine waits for the searches
    then outstanding, so that the batch a token is computed in does not depend on how fast they
    return.

    Raises:
      ValueError: a prompt that leaves no room for an answer.
    """
    begun = time.perf_counter()
    waiting = collections.deque(conversations)
    active: dict[int, _Lane] = {}
    # Block by block in turn, so that the blocks feed and decode alike.
    block = self.lanes // self.blocks
    free = collections.deque(sorted(range(self.lanes), key=lambda s: (s % block, s // block)))
    temperature = jnp.float32(temperature)
    call = Call.AGAIN
    while call != Call.END:
      while waiting and free:
        c = waiting.popleft()
        if len(c.prompt) + 1 >= self.length:
          raise ValueError(
            f"a prompt of {len(c.prompt)} tokens leaves no room in {self.length}; raise the "
            f"engine's length or shorten the prompt"
          )
        active[free.popleft()] = _Lane(c, 0, list(c.prompt), "feed")
      for slot, lane in sorted(active.items()):
        if lane.state == "wait":
          concurrent.futures.wait(lane.conversation.waits_for())
          delta = lane.conversation.next_tokens()
          if lane.conversation.finished:
            del active[slot]
            free.append(slot)
            continue
          # The last sampled token is not in the state yet: it goes first.
          lane.queue, lane.state = [lane.tokens[-1], *delta], "feed"
          lane.tokens, lane.logps = [], []
      ready = self._ready(active)
      while (call := agree(Call.FEED if any(ready) else self._next(waiting, active))) == Call.FEED:
        self._feed_once(params, ready)
      if call == Call.DECODE:
        for slot in self._decode_once(params, active, temperature):
          del active[slot]
          free.append(slot)
    self.counts.seconds += time.perf_counter() - begun

  def _ready(self, active):
    """Lanes with tokens to feed, in order, by block."""
    ready = [[] for _ in range(self.blocks)]
    for slot, lane in sorted(active.items()):
      if lane.state == "feed":
        ready[slot * self.blocks // self.lanes].append((slot, lane))
    return ready

  def _next(self, waiting, active):
    """What is left to do when nothing is to be fed."""
    if any(lane.state == "decode" for lane in active.values()):
      return Call.DECODE
    return Call.AGAIN if waiting or active else Call.END

  def _feed_once(self, params, ready):
    """One feed: the first rows of every block; those with more to feed line up again."""
    b, C = self.feed_rows, self.feed_tokens
    # Padding rows feed nothing and name a lane of no row of this call, so that nothing collides.
    slots, length, start = np.zeros(b, np.int32), np.zeros(b, np.int32), np.zeros(b, np.int32)
    pending, left = np.zeros(b, np.int32), np.zeros(b, np.int32)
    tokens, key = np.zeros((b, C), np.int32), np.zeros((b, 2), np.uint32)
    generate = np.zeros(b, bool)
    each = b // self.blocks
    rows = []
    for block, line in enumerate(ready):
      rows += [(block * each + i, *entry) for i, entry in enumerate(line[:each])]
      del line[:each]
    for i, slot, lane in rows:
      n = min(C, len(lane.queue) - 1)
      # A block counts its own lanes.
      slots[i], length[i], start[i] = slot % (self.lanes // self.blocks), n, lane.fed
      tokens[i, :n] = lane.queue[:n]
      lane.fed, lane.queue = lane.fed + n, lane.queue[n:]
      pending[i], key[i] = lane.queue[0], lane.conversation.key
      left[i] = lane.conversation.turn_budget()
      generate[i] = len(lane.queue) == 1
      if generate[i]:
        lane.state, lane.forced = "decode", lane.conversation.forced_turn()
      else:
        ready[slot * self.blocks // self.lanes].append((slot, lane))
      self.counts.prefill_tokens += n
    fed = dict(
      slots=slots, tokens=tokens, length=length, start=start, pending=pending, generate=generate,
      left=left, key=key,
    )
    self._cache, self._lanes, experts = self._feed(params, self._cache, self._lanes, fed)
    if self.record_routing:
      experts = np.moveaxis(np.asarray(experts), 0, 2)
      for i, _, lane in rows:
        lane.conversation.routing.append(experts[i, : length[i]])

  def _decode_once(self, params, active, temperature):
    forced = np.full((self.lanes, self.decode_steps), -1, np.int32)
    for slot, lane in active.items():
      ids = lane.forced[len(lane.tokens) : len(lane.tokens) + self.decode_steps]
      forced[slot, : len(ids)] = ids
    self._cache, self._lanes, out = self._decode(
      params, self._cache, self._lanes, temperature, forced
    )
    out, going = jax.device_get((out, self._lanes.generating))
    tokens, logp, count = out["tokens"], out["logp"], out["count"]
    self.counts.decode_steps += int(count.max())
    self.counts.lane_steps += int(count.max()) * self.lanes
    self.counts.decode_tokens += int(count.sum())
    done = []
    for slot, lane in sorted(active.items()):
      if lane.state != "decode":
        continue
      n = int(count[slot])
      lane.fed += n
      lane.tokens += tokens[slot, :n].tolist()
      lane.logps += logp[slot, :n].tolist()
      if self.record_routing:
        lane.conversation.routing.append(out["experts"][slot, :n])
      if not going[slot]:
        stopped = lane.tokens[-1] in self.stop_ids
        lane.conversation.end_turn(lane.tokens, lane.logps, stopped)
        lane.state = "wait"
        if lane.conversation.finished:
          done.append(slot)
    return done


class EngineGroup:
  """One engine a device, each with its own conversations and thread; or one, divided over a mesh.

  A conversation's numbers do not depend on its batch-mates, so neither on the number of engines.

  Args:
    devices: each gets an engine.
    lanes: of all engines together; must divide by the devices.
    division: as for `Engine`; None gives every device an engine.
    **settings: as for `Engine`.
  """

  def __init__(
    self,
    config: ModelConfig,
    *,
    devices: list[jax.Device],
    lanes: int,
    division: Division | None = None,
    **settings,
  ):
    if division is not None:
      self.engines = [Engine(config, lanes=lanes, division=division, **settings)]
      return
    if lanes % len(devices):
      raise ValueError(
        f"engine.lanes must be a multiple of the {len(devices)} devices, got {lanes}"
      )
    self.engines = [
      Engine(config, lanes=lanes // len(devices), device=device, **settings) for device in devices
    ]

  def run(self, params, conversations: Iterable[Conversation], *, temperature: float) -> None:
    """As `Engine.run`; `params` must lie whole on every device, or as the division says."""
    conversations = list(conversations)
    n = len(self.engines)
    if self.engines[0].division is not None:
      return self.engines[0].run(params, conversations, temperature=temperature)

    def run_one(i):
      here = jax.tree.map(lambda a: _on_device(a, self.engines[i]), params)
      self.engines[i].run(here, conversations[i::n], temperature=temperature)

    with concurrent.futures.ThreadPoolExecutor(n) as pool:
      for done in [pool.submit(run_one, i) for i in range(n)]:
        done.result()

  def take_counts(self) -> EngineCounts:
    """Counts since the last call, over all engines; seconds are the longest engine's."""
    counts = [engine.counts for engine in self.engines]
    for engine in self.engines:
      engine.counts = EngineCounts()
    total = EngineCounts(*map(sum, zip(*(dataclasses.astuple(c) for c in counts), strict=True)))
    total.seconds = max(c.seconds for c in counts)
    return total


def _on_device(array, engine):
  """The copy of a replicated array that lies on the engine's device, without moving it."""
  for shard in array.addressable_shards:
    if shard.device == engine.device and shard.data.shape == array.shape:
      return shard.data
  return jax.device_put(array, engine.device)


# ---- the jitted steps ----------------------------------------------------------------------------


def make_steps(
  config: ModelConfig, *, record_routing: bool, **sampling
) -> tuple[Callable, Callable]:
  """Jits feed and decode on one device; cache and lanes are donated.

  feed takes (parameters, cache, lanes, {argument of `sample.feed`: rows}), decode takes
  (parameters, cache, lanes, temperature, forced).

  Args:
    sampling: stop_ids, top_k and top_p of `sample.decode`.
  """
  donated = dict(donate_argnames=("cache", "lanes"))
  feed = functools.partial(_feed, config=config, record=record_routing)
  decode = functools.partial(_decode, config=config, record=record_routing, **sampling)
  return jax.jit(feed, **donated), jax.jit(decode, **donated)


def make_divided_steps(
  config: ModelConfig, division: Division, *, lanes: int, length: int, record_routing: bool,
  **sampling,
) -> tuple[Callable, Callable]:
  """`make_steps` over a mesh: parameters in the decode layout, lanes and rows in blocks."""
  mesh = division.mesh
  sizes = {axis: mesh.shape[axis] for axis in MESH_AXES}
  steps = sample.divided_steps(Serving(**sizes))
  state = cache_specs(config, mesh, lanes, length), ROWS
  donated = dict(donate_argnames=("cache", "lanes"))

  def feed(params, cache, lanes, rows):
    step = functools.partial(_feed, config=config, record=record_routing, steps=steps)
    return jax.shard_map(
      step, mesh=mesh, in_specs=(division.specs, *state, ROWS),
      out_specs=(*state, PartitionSpec(None, *ROWS)), check_vma=False,
    )(params, cache, lanes, rows)

  def decode(params, cache, lanes, temperature, forced):
    step = functools.partial(_decode, config=config, record=record_routing, steps=steps, **sampling)
    return jax.shard_map(
      step, mesh=mesh, in_specs=(division.specs, *state, PartitionSpec(), ROWS),
      out_specs=(*state, ROWS), check_vma=False,
    )(params, cache, lanes, temperature, forced)

  return jax.jit(feed, **donated), jax.jit(decode, **donated)


def cache_specs(config: ModelConfig, mesh: Mesh, lanes: int, length: int) -> Cache:
  """PartitionSpecs of a stacked cache.

  Raises:
    ValueError: lanes or positions do not divide.
  """
  sizes = {axis: mesh.shape[axis] for axis in MESH_AXES}
  return partition_specs(stacked_cache_specs(config, lanes, length), DECODE, sizes)


def divided_state(
  config: ModelConfig, mesh: Mesh, lanes: int, length: int
) -> tuple[Cache, sample.Lanes]:
  """Cache and lanes of an engine divided over a mesh, as shapes with shardings."""
  place = lambda shape, dtype, spec: jax.ShapeDtypeStruct(
    shape, dtype, sharding=NamedSharding(mesh, spec)
  )
  cache = jax.tree.map(
    lambda spec, part: place(spec.shape, spec.dtype, part),
    stacked_cache_specs(config, lanes, length), cache_specs(config, mesh, lanes, length),
    is_leaf=lambda x: isinstance(x, ParamSpec),
  )
  empty = jax.eval_shape(lambda: sample.empty_lanes(lanes))
  return cache, jax.tree.map(lambda a: place(a.shape, a.dtype, ROWS), empty)


def _feed(params, cache, lanes, rows, config, record, steps=sample.WHOLE):
  cache, lanes, experts = sample.feed(params, config, cache, lanes, **rows, steps=steps)
  return cache, lanes, experts if record else None


def _decode(
  params, cache, lanes, temperature, forced, config, stop_ids, top_k, top_p, record,
  steps=sample.WHOLE,
):
  cache, lanes, out = sample.decode(
    params, config, cache, lanes, temperature, forced, stop_ids=stop_ids, top_k=top_k, top_p=top_p,
    steps=steps,
  )
  if not record:
    out.pop("experts")
  return cache, lanes, out
