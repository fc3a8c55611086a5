"""One search conversation: prompt, sampled turns, tool calls, answer.  HOST.

The rules of SPEC 3: every query is a call; a call over the budget, with a bad schema or an unknown
tool is answered by a short tool response and charged. Where calls or tokens are used up, the
response says so, and one turn is left to answer in. A search the service could not serve counts in
e_i. Ids are only appended.
"""

import collections
import concurrent.futures
import dataclasses
from typing import Any

import numpy as np

from searchjax.data.chat import ChatFormat, ToolCall
from searchjax.search.tool import BUDGET_USED_UP, ToolOutcome, model_failure


# The response to calls whose results would leave no room for an answer.
NO_ROOM = "the token budget is used up, answer now"
# What came of an episode, beyond its tokens, mask and log-probs.
OUTCOME = (
  "turns", "tool_calls", "tool_failures", "malformed_calls", "searches", "forced", "finished",
  "stop", "failure", "final_answer", "final_length",
  "policy_version",
)


@dataclasses.dataclass(frozen=True)
class Limits:
  """Attributes:
    calls: queries a rollout may make.
    turn_tokens: tokens one turn may sample.
    tokens: tokens of the whole conversation.
    answer_tokens: tokens that a tool response must leave for the turn after it.
    invalid_share: share of failed searches above which the rollout is invalid.
  """

  calls: int
  turn_tokens: int
  tokens: int
  answer_tokens: int = 32
  invalid_share: float = 0.5

  def leave_room(self, tokens: int) -> bool:
    """Whether a conversation of so many tokens has room for a turn to answer in."""
    return tokens + min(self.answer_tokens, self.turn_tokens) <= self.tokens


class Episode:
  """A Conversation (see `rollout.schedule`) about one question.

  Attributes, once finished:
    tokens, mask, logps: the whole conversation; mask is True on sampled tokens.
    turns: the readable conversation, for reports; a turn that cannot be read has all that was
      written in it under "raw".
    stop: "answer", "turn_length" (a turn outgrew its limit), "context" (the conversation did),
      "budget" (called again in the last turn) or "infra" (the engine could not go on).
    failure: why, where stop is "infra".
    policy_version: of the weights of each turn, as an inference server says it; else empty.
    final_answer: what the user reads; empty unless stop is "answer".
    final_length: tokens of the final turn.
    tool_calls, tool_failures, malformed_calls: c_i, e_i, and calls with errors.
    searches: queries the service was asked, served or not.
    forced: a budget was used up and the answer asked for.
    valid: False where failures of the search service or the engine decided the rollout.
    routing: experts of every token but the last, where the engine records them.
    own: whether this process asks the service; see `rollout.schedule.Shared`.
  """

  def __init__(
    self,
    question: Any,
    messages: list[dict],
    *,
    index: int,
    key: np.ndarray,
    chat: ChatFormat,
    tool,
    limits: Limits,
    tools: list[dict] | None,
  ):
    self.question, self.index, self.key = question, index, key
    self.chat, self.tool, self.limits = chat, tool, limits
    self.prompt = chat.encode_prompt(messages, tools=tools)
    self.tokens = list(self.prompt)
    self.mask = [False] * len(self.prompt)
    self.logps = [0.0] * len(self.prompt)
    self.turns = [{"role": m["role"], "text": m["content"]} for m in messages]
    self.tool_calls = self.tool_failures = self.malformed_calls = self.searches = 0
    self.forced = self.finished = False
    self.own = True
    self.stop, self.failure, self.final_answer, self.final_length = "", "", "", 0
    self.policy_version = ""
    self.routing: list[np.ndarray] = []
    self._futures: list[concurrent.futures.Future] = []

  def turn_budget(self) -> int:
    return min(self.limits.turn_tokens, self.limits.tokens - len(self.tokens))

  def forced_turn(self) -> list[int]:
    return []

  def end_turn(self, tokens: list[int], logps: list[float], stopped: bool) -> None:
    self.tokens += tokens
    self.mask += [True] * len(tokens)
    self.logps += logps
    self.final_length = len(tokens)
    parsed = self.chat.parse_turn(tokens)
    calls = [{"name": c.name, "arguments": c.arguments} for c in parsed.calls]
    self.turns.append({"role": "assistant", "text": parsed.content, "calls": calls})
    if parsed.errors:
      self.turns[-1]["raw"] = self.chat.decode(tokens)
    if not stopped:
      self._finish("turn_length" if len(tokens) >= self.limits.turn_tokens else "context")
    elif not parsed.attempts:
      self.final_answer = parsed.content
      self._finish("answer")
    elif self.forced:
      self.tool_calls += len(parsed.attempts)
      self._finish("budget")
    else:
      self._futures = [self._start(attempt) for attempt in parsed.attempts]

  def waits_for(self) -> list[concurrent.futures.Future]:
    return self._futures

  def responses(self) -> list[dict[str, Any]]:
    """What the service said, for another process's copy of this episode."""
    return [dataclasses.asdict(f.result()) | {"results": ()} for f in self._futures]

  def hear(self, responses: list[dict[str, Any]]) -> None:
    """Takes the responses that another process was given."""
    for future, response in zip(self._futures, responses, strict=True):
      if not future.done():
        future.set_result(ToolOutcome(**response))

  def next_tokens(self) -> list[int]:
    outcomes: list[ToolOutcome] = [f.result() for f in self._futures]
    self._futures = []
    self.searches += sum(o.status != "model_failure" for o in outcomes)
    self.tool_failures += sum(o.status == "infra_failure" for o in outcomes)
    # Checked on the ids that will be fed.
    delta = self.chat.encode_tool_delta([o.text for o in outcomes])
    refused = not self.limits.leave_room(len(self.tokens) + len(delta))
    if refused:
      outcomes = [o if o.status == "infra_failure" else model_failure(NO_ROOM) for o in outcomes]
      delta = self.chat.encode_tool_delta([o.text for o in outcomes])
    for outcome in outcomes:
      self.turns.append({"role": "tool", "text": outcome.text, "status": outcome.status})
      if outcome.status == "infra_failure":
        self.turns[-1]["reason"] = outcome.reason
    if not self.limits.leave_room(len(self.tokens) + len(delta)):
      self.forced = False  # Not even a refused call leaves a turn.
      self._finish("context")
      return []
    self.forced |= refused
    self.tokens += delta
    self.mask += [False] * len(delta)
    self.logps += [0.0] * len(delta)
    return delta

  def fail(self, reason: str) -> None:
    """Ends it because the engine could not go on: no fault of the policy, nothing to score."""
    self.failure = reason
    self._finish("infra")

  def outcome(self) -> dict[str, Any]:
    """What came of it, for another process's copy of this episode."""
    return {name: getattr(self, name) for name in OUTCOME} | {
      "tokens": np.array(self.tokens, np.int32), "mask": np.array(self.mask, bool),
      "logps": np.array(self.logps, np.float64), "routing": self.routing,
    }

  def take_outcome(self, outcome: dict[str, Any]) -> None:
    """Ends as the same episode did on another process."""
    for name in OUTCOME:
      setattr(self, name, outcome[name])
    for name in ("tokens", "mask", "logps"):
      setattr(self, name, outcome[name].tolist())
    self.routing = list(outcome["routing"])

  @property
  def valid(self) -> bool:
    searches_failed = self.tool_failures > self.limits.invalid_share * max(self.searches, 1)
    return self.stop != "infra" and not searches_failed

  @property
  def invalid_reason(self) -> str:
    """Why it counts nowhere, in a few words; empty for a valid one."""
    if self.valid:
      return ""
    if self.stop == "infra":
      return f"engine: {self.failure}"
    reasons = collections.Counter(turn["reason"] for turn in self.turns if "reason" in turn)
    return f"search: {reasons.most_common(1)[0][0]}"

  @property
  def generated(self) -> int:
    return sum(self.mask)

  def _start(self, attempt: ToolCall | str) -> concurrent.futures.Future:
    self.tool_calls += 1
    if self.tool_calls > self.limits.calls:
      self.forced = True
      return _done(model_failure(BUDGET_USED_UP))
    if isinstance(attempt, str):
      self.malformed_calls += 1
      return _done(ToolOutcome(attempt, "model_failure", False, "malformed call"))
    if not self.own:
      return concurrent.futures.Future()  # For `hear`.
    return self.tool.submit(attempt, getattr(self.question, "world", None), self.question.text)

  def _finish(self, stop: str) -> None:
    self.stop, self.finished = stop, True


def _done(outcome: ToolOutcome) -> concurrent.futures.Future:
  future: concurrent.futures.Future = concurrent.futures.Future()
  future.set_result(outcome)
  return future
