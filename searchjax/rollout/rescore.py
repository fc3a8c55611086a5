"""Finished conversations scored again by the engine that sampled them.  HOST.

Every turn's tokens are forced instead of sampled, in the same order, lanes and pieces as before, so
the same compiled steps compute log μ once more: bit for bit under the same parameters. This is the
`bitwise` mismatch strategy of SPEC 1.2 (a forward inside a gradient is another program, and rounds
otherwise).
"""

import concurrent.futures
from collections.abc import Sequence
from typing import Any

import numpy as np

from searchjax.rollout.engine import EngineGroup
from searchjax.rollout.group import run_shared


class Rescored:
  """A Conversation (see `rollout.schedule`) that repeats a finished one.

  Args:
    episode: an Episode, or anything with its key, prompt, tokens, mask and stop.

  Attributes:
    logps: log-probabilities of the episode's sampled tokens, 0 elsewhere, once it has run.
  """

  def __init__(self, episode: Any):
    self.key, self.prompt = episode.key, episode.prompt
    self.routing: list[np.ndarray] = []
    self.finished, self.own = False, True
    self.logps = [0.0] * len(self.prompt)
    self._tokens = episode.tokens
    self._turns = _runs(episode.mask, len(self.prompt))
    # A conversation that a tool response would have overfilled ends one round after its last turn.
    self._ends_late = episode.stop == "context"
    self._at = 0

  def turn_budget(self) -> int:
    return len(self.forced_turn())

  def forced_turn(self) -> list[int]:
    begin, end = self._turns[self._at]
    return self._tokens[begin:end]

  def end_turn(self, tokens: list[int], logps: list[float], stopped: bool) -> None:
    if tokens != self.forced_turn():
      raise RuntimeError("the engine did not take the tokens it was given to score")
    self.logps += logps
    self._at += 1
    if self._at == len(self._turns) and not (self._ends_late and stopped):
      self.finished = True

  def waits_for(self) -> list[concurrent.futures.Future]:
    return []

  def responses(self) -> list:
    return []

  def hear(self, responses: list) -> None:
    """Nothing: every process has the episode."""

  def next_tokens(self) -> list[int]:
    if self._at == len(self._turns):
      self.finished = True
      return []
    delta = self._tokens[self._turns[self._at - 1][1] : self._turns[self._at][0]]
    self.logps += [0.0] * len(delta)
    return delta

  def outcome(self) -> dict[str, Any]:
    return {"logps": np.asarray(self.logps, np.float64)}

  def take_outcome(self, outcome: dict[str, Any]) -> None:
    self.logps, self.finished = outcome["logps"].tolist(), True


def rescore(
  engine: EngineGroup, params, episodes: Sequence[Any], *, temperature: float
) -> list[np.ndarray]:
  """Log-probabilities of each episode's sampled tokens, by the engine's own steps.

  Args:
    episodes: all those of one `run_shared`, in its order.
    temperature: as at sampling.

  Returns:
    float32 [tokens] per episode, 0 off its mask.
  """
  conversations = [Rescored(e) for e in episodes]
  run_shared(engine, params, conversations, temperature=temperature)
  return [np.asarray(c.logps, np.float32) for c in conversations]


def _runs(mask: list[bool], begin: int) -> list[tuple[int, int]]:
  """The [begin, end) of each stretch of sampled tokens."""
  edges = np.flatnonzero(np.diff(np.array([False, *mask[begin:], False], np.int8))) + begin
  return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
