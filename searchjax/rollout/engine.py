"""The rollout engine's host side: lanes, feeds, decode loops.  HOST.

A pool of lanes, each holding one conversation's state on the device. Every token of a conversation
is fed or decoded exactly once: a tool response continues the state, nothing is prefilled again.
Shapes are static, so that nothing compiles after the first use of each of the two steps.

`run` drives any objects with the Conversation protocol; `rollout.episode` is the one that searches.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import time
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from searchjax.model.cache import empty_cache
from searchjax.model.config import ModelConfig
from searchjax.rollout import sample


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
    feed_rows, feed_tokens: rows and tokens of one feed.
    decode_steps: tokens decoded between two looks at the host.
    stop_ids: ids that end a turn.
    top_k, top_p: restrict sampling; training refuses them (the recorded log-prob is the full
      model's).
    record_routing: hand the experts chosen for every token to its conversation.
    device: where the states lie; None is the default one. Parameters must lie there too.
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
  ):
    self.config, self.lanes, self.length = config, lanes, length
    self.decode_steps, self.record_routing = decode_steps, record_routing
    self.device = device or jax.devices()[0]
    self.feed_rows, self.feed_tokens = min(feed_rows, lanes), feed_tokens
    self.stop_ids = tuple(stop_ids)
    self.counts = EngineCounts()
    self._cache, self._lanes = jax.device_put(
      (empty_cache(config, lanes, length), sample.empty_lanes(lanes)), self.device
    )
    self._feed = jax.jit(
      functools.partial(_feed, config=config, record=record_routing),
      donate_argnames=("cache", "lanes"),
    )
    self._decode = jax.jit(
      functools.partial(
        _decode, config=config, stop_ids=self.stop_ids, top_k=top_k, top_p=top_p,
        record=record_routing,
      ),
      donate_argnames=("cache", "lanes"),
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
    free = collections.deque(range(self.lanes))
    temperature = jnp.float32(temperature)
    while waiting or active:
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
      self._feed_ready(params, active)
      if any(lane.state == "decode" for lane in active.values()):
        for slot in self._decode_once(params, active, temperature):
          del active[slot]
          free.append(slot)
    self.counts.seconds += time.perf_counter() - begun

  def _feed_ready(self, params, active):
    ready = [(s, l) for s, l in sorted(active.items()) if l.state == "feed"]
    b, C = self.feed_rows, self.feed_tokens
    while ready:
      rows, ready = ready[:b], ready[b:]
      # Padding rows feed nothing and name a lane of no row of this call, so that nothing collides.
      slots, length, start = np.zeros(b, np.int32), np.zeros(b, np.int32), np.zeros(b, np.int32)
      pending, left = np.zeros(b, np.int32), np.zeros(b, np.int32)
      tokens, key = np.zeros((b, C), np.int32), np.zeros((b, 2), np.uint32)
      generate = np.zeros(b, bool)
      for i, (slot, lane) in enumerate(rows):
        n = min(C, len(lane.queue) - 1)
        slots[i], length[i], start[i] = slot, n, lane.fed
        tokens[i, :n] = lane.queue[:n]
        lane.fed, lane.queue = lane.fed + n, lane.queue[n:]
        pending[i], key[i] = lane.queue[0], lane.conversation.key
        left[i] = lane.conversation.turn_budget()
        generate[i] = len(lane.queue) == 1
        if generate[i]:
          lane.state, lane.forced = "decode", lane.conversation.forced_turn()
        else:
          ready.append((slot, lane))
        self.counts.prefill_tokens += n
      self._cache, self._lanes, experts = self._feed(
        params, cache=self._cache, lanes=self._lanes, slots=slots, tokens=tokens, length=length,
        start=start, pending=pending, generate=generate, left=left, key=key,
      )
      if self.record_routing:
        experts = np.moveaxis(np.asarray(experts), 0, 2)
        for i, (_, lane) in enumerate(rows):
          lane.conversation.routing.append(experts[i, : length[i]])

  def _decode_once(self, params, active, temperature):
    forced = np.full((self.lanes, self.decode_steps), -1, np.int32)
    for slot, lane in active.items():
      ids = lane.forced[len(lane.tokens) : len(lane.tokens) + self.decode_steps]
      forced[slot, : len(ids)] = ids
    self._cache, self._lanes, out = self._decode(
      params, cache=self._cache, lanes=self._lanes, temperature=temperature, forced=forced
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
  """One engine a device, each with its own conversations and thread.

  A conversation's numbers do not depend on its batch-mates, so neither on the number of engines.

  Args:
    devices: each gets an engine.
    lanes: of all engines together; must divide by the devices.
    **settings: as for `Engine`.
  """

  def __init__(self, config: ModelConfig, *, devices: list[jax.Device], lanes: int, **settings):
    if lanes % len(devices):
      raise ValueError(
        f"engine.lanes must be a multiple of the {len(devices)} devices, got {lanes}"
      )
    self.engines = [
      Engine(config, lanes=lanes // len(devices), device=device, **settings) for device in devices
    ]

  def run(self, params, conversations: Iterable[Conversation], *, temperature: float) -> None:
    """As `Engine.run`; `params` must lie whole on every device."""
    conversations = list(conversations)
    n = len(self.engines)

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


def _feed(
  params, cache, lanes, slots, tokens, length, start, pending, generate, left, key, config, record
):
  cache, lanes, experts = sample.feed(
    params, config, cache, lanes, slots, tokens, length, start, pending, generate, left, key
  )
  return cache, lanes, experts if record else None


def _decode(params, cache, lanes, temperature, forced, config, stop_ids, top_k, top_p, record):
  cache, lanes, out = sample.decode(
    params, config, cache, lanes, temperature, forced, stop_ids=stop_ids, top_k=top_k, top_p=top_p
  )
  if not record:
    out.pop("experts")
  return cache, lanes, out
