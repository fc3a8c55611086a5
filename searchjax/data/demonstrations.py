"""Demonstrations: scripted, deliberately imperfect experts against the live search tool.  HOST.

An expert knows the hops of its question. It searches for them one by one, and at the stated rates
it also repeats a search, asks something that finds nothing, meets a search that fails, verifies
what it already knows, stops a hop early, gives up, errs, pads its answer or gives the bare name.
Some conversations state a budget, which the expert obeys or is refused. What it knows of the world
is only what it has been shown: every tool response is the tool's own.

Spec     1.1 (tool-use trajectories: single-, two- and multi-turn), 3 (limits, refusals).
"""

import collections
import dataclasses
import random
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from searchjax.data.chat import ToolCall
from searchjax.data.pairs import FILLER, UNKNOWN
from searchjax.data.questions import QUERY_WORDS, Question, question_elsewhere
from searchjax.data.rubrics import style_chats
from searchjax.search.atlas import Atlas
from searchjax.search.tool import BUDGET_USED_UP, SearchTool, ToolOutcome, infra_failure
from searchjax.search.tool import model_failure
from searchjax.search.worlds import World

# The usual rates, which the configs take over.
RATES = {
  "verify": 0.6,        # a needless search after the answer is known
  "verify_again": 0.6,  # and another after that one
  "repeat": 0.15,       # a hop's search is made twice
  "skip": 0.2,          # of questions of 2 hops or more: stops one hop early, so answers wrongly
  "abstain": 0.1,       # says that it does not know, though it could
  "wrong": 0.05,        # names another thing it met on the way
  "verbose": 0.5,       # pads the answer
  "bare": 0.1,          # the name alone
  "failed": 0.03,       # of searches: the service fails, the expert searches again
  "empty": 0.03,        # of hops: a search that finds nothing comes first
  "budget": 0.2,        # a system message states a budget
  "overrun": 0.15,      # of stated budgets that bind: one call too many, which is refused
  "two_turn": 0.1,      # a second question follows in the same conversation
  "multi_turn": 0.03,   # two more follow
}
MAX_CALLS = 5
MAX_STATED_BUDGET = 10
MAX_HOPS_OF_CONVERSATION = 3
FAILURES = ("timed out", "HTTP 503", "HTTP 429", "no connection")
EMPTY_QUERIES = ("where is it", "what is that", "which one")


@dataclasses.dataclass(frozen=True)
class Demonstration:
  """One conversation.

  Attributes:
    messages: {"role", "content", "calls"}, the last one the agent's answer.
    kind: "tool_use" or "preference".
    hops: searches a perfect agent would make, over all questions asked.
    question_id: of the first question, or of the chat.
    world: the world searched; None for the real one and for chats.
  """

  messages: tuple[dict[str, Any], ...]
  kind: str
  hops: int
  question_id: str
  world: int | None


def budget_statement(budget: int) -> str:
  """The system message that states a cap on searches."""
  return f"You may search at most {budget} times."


def make_demonstrations(
    questions: Sequence[Question], tool: SearchTool, *, atlas: Atlas, seed: int,
    rates: Mapping[str, float], max_calls: int = MAX_CALLS) -> list[Demonstration]:
  """One tool-use demonstration a question, in order; equal inputs give equal conversations.

  Args:
    questions: what the users ask; follow-ups are drawn from the same list, in the first
      question's world.
    tool: the live search tool; calls of many conversations run at once.
    atlas: the facts behind the questions.
    seed: decides every imperfection.
    rates: how often an expert does what RATES lists; every one of them, in [0, 1].
    max_calls: most calls of a conversation.

  Raises:
    ValueError: see `check_rates`.
  """
  check_rates(rates)
  short = [question for question in questions if question.hops == 1]
  experts = []
  for i, question in enumerate(questions):
    draw = random.Random(f"{seed}/{i}/{question.id}")
    asked = [question, *_follow_ups(atlas, question, short, draw, rates)]
    experts.append(_Conversation(asked, draw, rates, max_calls))
  _run(experts, tool)
  return [expert.demonstration() for expert in experts]


def style_demonstrations(seed: int, count: int, names: Sequence[str]) -> list[Demonstration]:
  """Preference-oriented chats that need no search."""
  return [
    Demonstration((_message("user", text), _message("assistant", answer)), "preference", 0,
                  f"style/{seed}/{i}", None)
    for i, (text, answer) in enumerate(style_chats(seed, count, names))]


def check_rates(rates: Mapping[str, float]) -> None:
  """Refuses rates that are not those of RATES.

  Raises:
    ValueError: an unknown or a missing rate, or one outside [0, 1].
  """
  for name, rate in rates.items():
    if name not in RATES:
      raise ValueError(f"demonstrations: unknown rate {name!r}; expected one of {sorted(RATES)}")
    if not 0 <= rate <= 1:
      raise ValueError(f"demonstrations: expected rate {name} in [0, 1], got {rate}")
  if missing := [name for name in RATES if name not in rates]:
    raise ValueError(f"demonstrations: rate {missing[0]!r} is missing; RATES has its usual value")


def _follow_ups(atlas, question, short, draw, rates) -> list[Question]:
  wanted = (2 if (point := draw.random()) < rates["multi_turn"] else
            1 if point < rates["multi_turn"] + rates["two_turn"] else 0)
  wanted = min(wanted, MAX_HOPS_OF_CONVERSATION - question.hops)
  if wanted <= 0 or not short:
    return []
  world = World(atlas, question.world)
  chosen = [other for other in draw.sample(short, min(4 * wanted, len(short)))
            if other.path[:-1] != question.path[:-1]]
  return [question_elsewhere(atlas, other, world, draw) for other in chosen[:wanted]]


def _run(conversations: Sequence["_Conversation"], tool: SearchTool):
  """Advances all conversations together: every round submits one call of each that has one."""
  waiting = [conversation for conversation in conversations if conversation.pending]
  while waiting:
    futures = [tool.submit(conversation.pending, conversation.world) if conversation.live else None
               for conversation in waiting]
    for conversation, future in zip(waiting, futures, strict=True):
      conversation.receive(future.result() if future else None)
    waiting = [conversation for conversation in waiting if conversation.pending]


class _Conversation:
  """One expert at work: `pending` is the call it waits for, None once it has answered."""

  def __init__(self, questions, draw, rates, max_calls):
    self.questions, self.draw, self.rates = questions, draw, rates
    self.world = questions[0].world
    self.messages: list[dict] = []
    self.limit = max_calls
    self.calls = 0
    self.budget = None
    if len(questions) == 1 and draw.random() < rates["budget"]:
      # Binding ones half the time; among the others the two digits of ten are as common as the
      # rest.
      loose = (*range(max_calls + 1, MAX_STATED_BUDGET), *(MAX_STATED_BUDGET,) * 3)
      self.budget = draw.choice((draw.randint(0, max_calls), draw.choice(loose)))
      self.limit = min(max_calls, self.budget)
      self.messages.append(_message("system", budget_statement(self.budget)))
    self._scripted: ToolOutcome | None = None
    self._steps = self._converse()
    self.pending: ToolCall | None = None
    self._advance(None)

  @property
  def live(self) -> bool:
    """False where the response is scripted: an outage or a refusal."""
    return self._scripted is None

  def receive(self, outcome: ToolOutcome | None):
    self._advance(outcome or self._scripted)

  def demonstration(self) -> Demonstration:
    return Demonstration(tuple(self.messages), "tool_use", sum(q.hops for q in self.questions),
                         self.questions[0].id, self.world)

  def _advance(self, outcome: ToolOutcome | None):
    if outcome is not None:
      self.messages.append(_message("tool", outcome.text))
    self._scripted = None
    try:
      query = self._steps.send(outcome)
    except StopIteration:
      self.pending = None
      return
    self.pending = ToolCall("search_web", {"query": query})
    self.messages.append(_message("assistant", "", [self.pending]))

  def _converse(self) -> Generator[str, ToolOutcome, None]:
    for i, question in enumerate(self.questions):
      self.messages.append(_message("user", question.text))
      reserved = sum(q.hops for q in self.questions[i + 1:])
      answer = yield from self._answer(question, self.limit - self.calls - reserved)
      self.messages.append(_message("assistant", answer))

  def _answer(self, question: Question, limit: int) -> Generator[str, ToolOutcome, str]:
    draw, rates = self.draw, self.rates
    skips = question.hops > 1 and draw.random() < rates["skip"]
    needed = list(question.steps[:-1] if skips else question.steps)
    seen: list[str] = []
    for query, needless in _plan(question, needed, draw, rates, limit):
      if limit <= 0:
        break
      if not needless and draw.random() < rates["failed"] and limit > 1:
        limit -= 1
        yield self._scripted_call(query, infra_failure(draw.choice(FAILURES)))
      limit -= 1
      self.calls += 1
      outcome = yield query
      if outcome.results and not needless:
        seen.append(outcome.results[0].snippet)
    known = len(seen) == len(needed)
    if not known and self.budget is not None and draw.random() < rates["overrun"]:
      yield self._scripted_call(needed[len(seen)][0], model_failure(BUDGET_USED_UP))
    if not known or draw.random() < rates["abstain"]:
      return UNKNOWN
    return _worded(question, seen, skips, draw, rates)

  def _scripted_call(self, query: str, outcome: ToolOutcome) -> str:
    self._scripted = outcome
    self.calls += 1
    return query


def _plan(question, needed, draw, rates, limit) -> list[tuple[str, bool]]:
  """Queries in order, each with whether it is needless; needless ones yield to a tight limit."""
  plan = []
  for query, _ in needed:
    if draw.random() < rates["empty"]:
      plan.append((draw.choice(EMPTY_QUERIES), True))
    plan.append((query, False))
    if draw.random() < rates["repeat"]:
      plan.append((query, True))
  if draw.random() < rates["verify"]:
    query, found = needed[-1]
    word = query.split()[-1]
    plan.append((draw.choice((query, f"{found} {word}")), True))
    if draw.random() < rates["verify_again"]:
      plan.append((draw.choice((query, f"{found} {word}")), True))
  for i in reversed(range(len(plan))):
    if len(plan) > limit and plan[i][1]:
      del plan[i]
  return plan


def _worded(question: Question, seen: list[str], skips: bool, draw, rates) -> str:
  """The expert's answer from what it has seen: a statement, padded, bare, or a wrong one."""
  answer = question.steps[len(seen) - 1][1] if skips else question.answer
  statement = seen[-1] if skips else question.statement
  if draw.random() < rates["wrong"]:
    # A thing met earlier on the way takes the answer's place.
    other = draw.choice(_subjects(question))
    head, found, tail = statement.rpartition(answer)
    statement, answer = (f"{head}{other}{tail}" if found else other), other
  point = draw.random()
  if point < rates["verbose"]:
    return draw.choice(FILLER).format(answer=statement, bare=answer)
  return answer if point < rates["verbose"] + rates["bare"] else statement


def _subjects(question: Question) -> list[str]:
  """The names a perfect agent asks about."""
  return [query.removesuffix(" " + QUERY_WORDS[relation])
          for (query, _), relation in zip(question.steps, question.relations)]


def _message(role: str, content: str, calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
  return {"role": role, "content": content, "calls": list(calls)}


def summary(demonstrations: Sequence[Demonstration]) -> dict[str, int]:
  """Counts for a log: conversations by kind and turns, calls, and responses by what they were."""
  counts = collections.Counter()
  for demonstration in demonstrations:
    users = sum(m["role"] == "user" for m in demonstration.messages)
    counts[f"{demonstration.kind}, {users} question{'s' * (users > 1)}"] += 1
    for message in demonstration.messages:
      counts["calls"] += len(message["calls"])
      if message["role"] == "tool":
        counts["failed" if message["content"].startswith("Search failed")
               else "refused" if message["content"].startswith("Error")
               else "empty" if message["content"] == "No results." else "found"] += 1
  return dict(counts)
