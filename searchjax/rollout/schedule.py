"""Which conversations an engine feeds, forks and decodes next.  HOST, without a device.

A pool has more slots than there are decode lanes: while a conversation waits for its searches
another one decodes. Conversations that begin with the same prompt share one: it is fed once, its
state is copied to a slot for each of them, and the last one goes on where it was fed. A turn once
begun decodes to its end, piece after piece of the same length, so that what a conversation computes
does not depend on its mates.

A prompt begins only when slots are left for what has begun before it; so those that wait for a
place always get one.
"""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How tokens are drawn from the model's distribution.

  Attributes:
    temperature: 0 is greedy.
    top_k, top_p: 0 and 1.0 are off.
  """

  temperature: float
  top_k: int = 0
  top_p: float = 1.0


@runtime_checkable
class Conversation(Protocol):
  """What an engine drives.

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


class Shared(Conversation, Protocol):
  """A conversation of an engine that is divided over several processes.

  Attributes:
    own: whether this process asks for its responses.
  """

  own: bool

  def responses(self) -> list:
    """What `waits_for` came to, as JSON can hold it."""

  def hear(self, responses: list) -> None:
    """Takes the `responses` of the process whose own it is."""


class Served(Conversation, Protocol):
  """A conversation with its own sampling, whose tokens are read as they come."""

  sampling: Sampling

  def heard(self, tokens: list[int], logps: list[float]) -> bool:
    """Takes the turn so far, after every decode loop; False ends it."""

  def refuse(self, reason: str) -> None:
    """The conversation cannot begin."""


@dataclasses.dataclass(eq=False)
class Row:
  """What lies in one slot.

  Attributes:
    slot: of the pool; -1 before it has one.
    fed: tokens in its state.
    queue: tokens known and not in its state. The last is never fed: decoding begins with it.
  """

  queue: list[int]
  slot: int = -1
  fed: int = 0


@dataclasses.dataclass(eq=False)
class Prompt(Row):
  """A prompt.

  Attributes:
    members: the conversations that begin with it and have no slot yet.
    routing: the experts of its tokens, if recorded.
  """

  members: list["Talk"] = dataclasses.field(default_factory=list)
  routing: list[np.ndarray] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Talk(Row):
  """A conversation with its turn.

  Attributes:
    left: tokens the turn may still take.
    forced: ids it takes instead of sampling.
    tokens, logps: what it has taken.
    sampling: of its tokens.
  """

  conversation: Conversation | None = None
  sampling: Sampling | None = None
  left: int = 0
  forced: list[int] = dataclasses.field(default_factory=list)
  tokens: list[int] = dataclasses.field(default_factory=list)
  logps: list[float] = dataclasses.field(default_factory=list)

  @property
  def routing(self) -> list[np.ndarray]:
    return self.conversation.routing


def shared_prompts(conversations: Iterable[Conversation]) -> list[list[Conversation]]:
  """Conversations by prompt, in the order in which each first comes."""
  groups: dict[tuple[int, ...], list[Conversation]] = {}
  for c in conversations:
    groups.setdefault(tuple(c.prompt), []).append(c)
  return list(groups.values())


def dealt(conversations: Iterable[Conversation], parts: int) -> list[list[list[Conversation]]]:
  """Groups of one prompt dealt to the parts of a pool, whole unless too few to go round.

  Returns:
    per part its groups, each time to the part with the fewest conversations.
  """
  groups = shared_prompts(conversations)
  most = max(1, -(-sum(map(len, groups)) // parts))
  out: list[list[list[Conversation]]] = [[] for _ in range(parts)]
  held = [0] * parts
  for group in groups:
    for begin in range(0, len(group), most):
      piece = group[begin : begin + most]
      i = held.index(min(held))
      out[i].append(piece)
      held[i] += len(piece)
  return out


class Schedule:
  """The conversations of one pool, or of one block of a divided one.

  Args:
    slots: of the pool.
    length: most tokens of one conversation.
  """

  def __init__(self, slots: int, length: int):
    self.length = length
    self._slots = slots
    self._free = collections.deque(range(slots))
    self._waiting: collections.deque[Prompt] = collections.deque()
    self._begun: list[Prompt] = []  # with members that have no slot
    self._feeding: collections.deque[Row] = collections.deque()
    self._decoding: collections.deque[Talk] = collections.deque()
    self.asking: list[Talk] = []  # that wait for responses

  def add(self, group: list[Conversation], sampling: Sampling | None) -> None:
    """Conversations that begin with the same prompt.

    Args:
      sampling: None is each one's own, see `Served`.

    Raises:
      ValueError: the prompt leaves no room for an answer.
    """
    prompt = list(group[0].prompt)
    if len(prompt) + 1 >= self.length:
      raise ValueError(
        f"a prompt of {len(prompt)} tokens leaves no room in {self.length}; raise the engine's "
        f"length or shorten the prompt"
      )
    talks = [
      Talk(queue=prompt[-1:], conversation=c, sampling=sampling or c.sampling) for c in group
    ]
    # In a single slot nothing can be kept for the others.
    for members in [talks] if self._slots > 1 else [[t] for t in talks]:
      self._waiting.append(Prompt(queue=prompt, members=members))

  @property
  def busy(self) -> bool:
    """Whether a conversation is left."""
    return bool(
      self._waiting or self._begun or self._feeding or self._decoding or self.asking
    )

  @property
  def held(self) -> int:
    """Slots taken, and prompts that wait for one."""
    return self._slots - len(self._free) + len(self._waiting)

  def begin(self) -> list[tuple[int, int, int]]:
    """Gives free slots to conversations and prompts.

    Returns:
      (source slot, target slot, tokens) of states to copy, before anything else is fed or decoded.
    """
    copies = []
    while True:
      for prompt in self._begun:
        if len(prompt.queue) == 1:
          copies += self._place(prompt)
      self._begun = [p for p in self._begun if p.members]
      promised = sum(len(p.members) - 1 for p in self._begun)
      if not self._waiting or not self._free or (self._begun and len(self._free) <= promised):
        return copies
      prompt = self._waiting.popleft()
      prompt.slot = self._free.popleft()
      self._begun.append(prompt)
      if len(prompt.queue) > 1:
        self._feeding.append(prompt)

  def _place(self, prompt):
    copies = []
    while prompt.members and (self._free or len(prompt.members) == 1):
      talk = prompt.members.pop(0)
      last = not prompt.members
      talk.slot = prompt.slot if last else self._free.popleft()
      talk.fed = prompt.fed
      talk.routing.extend(prompt.routing)
      if not last:
        copies.append((prompt.slot, talk.slot, prompt.fed))
      self._line_up(talk)
    return copies

  def _line_up(self, talk):
    if len(talk.queue) > 1:
      self._feeding.append(talk)
      return
    talk.tokens, talk.logps = [], []
    talk.left = talk.conversation.turn_budget()
    talk.forced = talk.conversation.forced_turn()
    self._decoding.append(talk)

  def to_feed(self) -> int:
    """Rows with tokens to feed."""
    return len(self._feeding)

  def to_decode(self) -> int:
    """Conversations with a turn to decode."""
    return len(self._decoding)

  def feeds(self, rows: int, tokens: int) -> Iterator[tuple[Row, list[int], int]]:
    """The next feed: at most `rows` of (row, its tokens, position of the first).

    What has more than `tokens` to feed lines up again for the next one.
    """
    for _ in range(min(rows, len(self._feeding))):
      row = self._feeding.popleft()
      n = min(tokens, len(row.queue) - 1)
      piece, start = row.queue[:n], row.fed
      row.queue, row.fed = row.queue[n:], row.fed + n
      if len(row.queue) > 1:
        self._feeding.append(row)
      elif isinstance(row, Talk):
        self._line_up(row)
      yield row, piece, start

  def lanes(self, lanes: int) -> list[Talk]:
    """Those that decode next: begun turns first."""
    return [self._decoding[i] for i in range(min(lanes, len(self._decoding)))]

  def idle_slots(self, talks: list[Talk]) -> list[int]:
    """Slots of the pool that none of these holds."""
    held = {t.slot for t in talks}
    return [s for s in range(self._slots) if s not in held]

  def decoded(
    self, talks: list[Talk], pieces: Iterable[tuple[list[int], list[float], bool]],
    stop_ids: tuple[int, ...], *, served: bool,
  ) -> None:
    """Takes what `lanes` have decoded.

    Args:
      pieces: for each its new tokens, their log-probs, and whether the turn goes on.
      served: the conversations are `Served`.
    """
    for talk, (tokens, logps, goes_on) in zip(talks, pieces, strict=True):
      talk.fed += len(tokens)
      talk.left -= len(tokens)
      talk.tokens += tokens
      talk.logps += logps
      if served and not talk.conversation.heard(talk.tokens, talk.logps):
        goes_on = False
      if goes_on:
        continue
      self._decoding.remove(talk)
      talk.conversation.end_turn(talk.tokens, talk.logps, talk.tokens[-1] in stop_ids)
      if talk.conversation.finished:
        self._free.append(talk.slot)
      else:
        self.asking.append(talk)

  def respond(self, talks: list[Talk]) -> None:
    """Goes on with conversations of `asking` whose responses are there."""
    for talk in talks:
      self.asking.remove(talk)
      delta = talk.conversation.next_tokens()
      if talk.conversation.finished:
        self._free.append(talk.slot)
        continue
      # The last sampled token is not in the state yet: it goes first.
      talk.queue = [talk.tokens[-1], *delta]
      self._line_up(talk)
