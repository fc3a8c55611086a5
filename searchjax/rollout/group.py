"""Groups of rollouts: sampling keys, collection, arrays for the reward.  HOST.

Where there are several processes, each runs its share of the conversations on its own devices and
tells the others what came of them, so that groups, rewards and batches are whole, and the same, on
every process.

Letters  Q questions, G rollouts per question.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import flax.serialization
import jax
import numpy as np
from jaxtyping import Array

from searchjax.data.chat import ChatFormat
from searchjax.data.demonstrations import budget_statement
from searchjax.dist.distributed import exchange, exchange_json
from searchjax.rollout.engine import EngineCounts, EngineGroup
from searchjax.rollout.episode import Episode, Limits
from searchjax.rollout.remote import RemoteEngine
from searchjax.rollout.schedule import dealt
from searchjax.search.tool import SearchTool

# Independent streams of one seed.
PURPOSES = {"rollout": 0, "reference": 1, "evaluation": 2, "gate": 3}


def rollout_keys(
  seed: int, purpose: str, step: int, question_ids: Sequence[str], group_size: int
) -> np.ndarray:
  """Sampling keys from (seed, purpose, step, question, rollout), so that no two rollouts share one.

  Returns:
    uint32 [Q, G, 2].
  """
  base = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), PURPOSES[purpose]), step)
  hashes = np.array([question_hash(q) for q in question_ids], np.uint32)
  return np.asarray(_keys(base, hashes, np.arange(group_size, dtype=np.uint32)))


def question_hash(question_id: str) -> int:
  """A stable 32-bit number of a question's id, to fold into a key."""
  return zlib.crc32(question_id.encode())


@jax.jit
def _keys(base: Array, hashes: Array, indices: Array) -> Array:
  fold = lambda h, g: jax.random.key_data(jax.random.fold_in(jax.random.fold_in(base, h), g))
  return jax.vmap(lambda h: jax.vmap(lambda g: fold(h, g))(indices))(hashes)


def collect_groups(
  questions: Sequence[Any],
  params,
  *,
  engine: EngineGroup | RemoteEngine,
  chat: ChatFormat,
  tool,
  limits: Limits,
  group_size: int,
  temperature: float,
  seed: int,
  purpose: str,
  step: int,
  tools: list[dict] | None = None,
  stated_budget: bool = False,
) -> list[list[Episode]]:
  """G rollouts for each question.

  Args:
    questions: with `id`, `text` and `world`.
    stated_budget: the system prompt states the cap on tool calls (budget-forced evaluation).

  Returns:
    [Q][G] finished episodes.
  """
  keys = rollout_keys(seed, purpose, step, [q.id for q in questions], group_size)
  groups = [
    [
      Episode(
        question,
        prompt_messages(question.text, limits.calls if stated_budget else None),
        index=g, key=keys[q, g], chat=chat, tool=tool, limits=limits, tools=tools,
      )
      for g in range(group_size)
    ]
    for q, question in enumerate(questions)
  ]
  run_shared(engine, params, [e for group in groups for e in group], temperature=temperature)
  return groups


@runtime_checkable
class Told(Protocol):
  """A Conversation (see `rollout.schedule`) whose end can be told to another process."""

  def outcome(self) -> dict[str, Any]:
    """What came of it: numbers, strings, arrays, and lists and dicts of these."""

  def take_outcome(self, outcome: dict[str, Any]) -> None:
    """Ends as the same conversation did on another process."""


def run_shared(
  engine: EngineGroup | RemoteEngine, params, conversations: Sequence[Told], *,
  temperature: float,
) -> None:
  """`EngineGroup.run`, shared by the processes; a collective where there are several.

  A conversation runs on the device it would run on if all devices were one process's. Of an engine
  that is divided over the processes, all run every conversation and each asks for the responses of
  its own.
  """
  count, here = jax.process_count(), jax.process_index()
  if engine.divided:
    for i, conversation in enumerate(conversations):
      conversation.own = i % count == here
  if count == 1 or engine.divided:
    engine.run(params, conversations, temperature=temperature)
    return
  n = len(engine.engines)
  number = {id(c): i for i, c in enumerate(conversations)}
  parts = dealt(conversations, n * count)[here * n : (here + 1) * n]
  own = {number[id(c)] for groups in parts for group in groups for c in group}
  engine.run(params, [conversations[i] for i in sorted(own)], temperature=temperature)
  told = flax.serialization.msgpack_serialize({str(i): conversations[i].outcome() for i in own})
  for part in exchange(told):
    for i, outcome in flax.serialization.msgpack_restore(part).items():
      if int(i) not in own:
        conversations[int(i)].take_outcome(outcome)


def process_part(name: str, value: int) -> int:
  """This process's part of a run's lanes or pool.

  Raises:
    ValueError: they do not divide by the processes.
  """
  if value % jax.process_count():
    raise ValueError(
      f"engine.{name} must be a multiple of the {jax.process_count()} processes, got {value}"
    )
  return value // jax.process_count()


def take_counts(engine: EngineGroup | RemoteEngine) -> EngineCounts:
  """`EngineGroup.take_counts` over all processes; a collective where there are several."""
  counts = engine.take_counts()
  if jax.process_count() == 1 or engine.divided:
    return counts
  of = exchange_json(dataclasses.asdict(counts))
  total = {name: sum(c[name] for c in of) for name in of[0]}
  seconds = {name: total[name] / len(of) for name in ("seconds", "waiting_seconds")}
  return EngineCounts(**total | seconds)


def search_metrics(tool: SearchTool) -> dict[str, float]:
  """What the searches since the last call came to, over all processes; a collective."""
  counts = tool.take_counts()
  own = {
    "search_calls": counts.searches, "search_recorded": counts.recorded,
    "search_retries": counts.retries, "search_dropped": counts.blocked + counts.leaked,
    "search_dollars": counts.dollars,
  }
  of = exchange_json(own) if jax.process_count() > 1 else [own]
  return {name: float(sum(c[name] for c in of)) for name in own}


def prompt_messages(text: str, budget: int | None) -> list[dict]:
  """The conversation's beginning; a stated budget is a system message."""
  system = [] if budget is None else [{"role": "system", "content": budget_statement(budget)}]
  return [*system, {"role": "user", "content": text}]


def group_array(groups: list[list[Episode]], attribute: str, dtype) -> np.ndarray:
  """One attribute of every episode, [Q, G]."""
  return np.array([[getattr(e, attribute) for e in group] for group in groups], dtype)
