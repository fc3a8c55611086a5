"""Groups of rollouts: sampling keys, collection, arrays for the reward.  HOST.

Letters  Q questions, G rollouts per question.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from searchjax.data.chat import ChatFormat
from searchjax.data.demonstrations import budget_statement
from searchjax.rollout.engine import EngineGroup
from searchjax.rollout.episode import Episode, Limits

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
  engine: EngineGroup,
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
  engine.run(params, [e for group in groups for e in group], temperature=temperature)
  return groups


def prompt_messages(text: str, budget: int | None) -> list[dict]:
  """The conversation's beginning; a stated budget is a system message."""
  system = [] if budget is None else [{"role": "system", "content": budget_statement(budget)}]
  return [*system, {"role": "user", "content": text}]


def group_array(groups: list[list[Episode]], attribute: str, dtype) -> np.ndarray:
  """One attribute of every episode, [Q, G]."""
  return np.array([[getattr(e, attribute) for e in group] for group in groups], dtype)
