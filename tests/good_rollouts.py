"""Two groups of finished rollouts that end in every way a rollout can, and a run folder of them."""

import concurrent.futures
import json
import types

import jax
import numpy as np

from searchjax.data.chat import ToolCall
from searchjax.dist import run_log
from searchjax.objective.advantage import group_advantage
from searchjax.reward.preference import PreferenceScorer
from searchjax.reward.total import total_reward
from searchjax.rollout.agent import load_chat
from searchjax.rollout.episode import Episode, Limits
from searchjax.search.tool import Result, ToolOutcome, infra_failure
from searchjax.train_grpo import rollout_records

LIMITS = Limits(calls=2, turn_tokens=50, tokens=200, answer_tokens=10)
EXPERTS = 7
CONFIG = {
  "tokenizer": "", "search": {"tools_in_prompt": False}, "group_size": 9,
  "advantage": {"divide_by_std": True, "eps": 0.05},
  "reward": dict(
    aggregation="gated", tool_penalty="anchored", length_penalty="anchored", alpha_win=0.5,
    alpha_lose=1.0, beta_lose=0.3, lambda_tool=0.2, lambda_len=0.1, per_call=0.1, per_token=0.01,
  ),
}
FOUND = ToolOutcome("It is Foo.", "ok", True, "", (Result("ABC", "u", "It is Foo."),))
LONG = ToolOutcome("Foo " * 100, "ok", True)
# Rollouts by name: the calls of each turn, or its text; what the service finds, in order.
SCRIPTS = {
  "answers": ([["ABC city"], ["Foo country"], "It is Foo."], []),
  "at once": (["It is Foo."], []),
  "malformed": (["<malformed>", "Foo."], []),
  "refused": ([["a", "b", "c"], "Foo."], []),
  "calls again": ([["a", "b", "c"], ["d"]], []),
  "no room": ([["ABC city"], "It is Foo."], [LONG]),
  "too long a turn": ([["ABC city"], "<cut>"], []),
  "search fails": ([["ABC city"], "Foo."], [infra_failure("timed out")]),
  "engine fails": ([["ABC city"]], []),
}


class Web:
  """Answers from a list, then always the same; remembers what it was asked."""

  def __init__(self, *outcomes):
    self.outcomes, self.asked = list(outcomes), []

  def submit(self, call, world, question):
    self.asked.append((call.arguments["query"], world))
    future = concurrent.futures.Future()
    future.set_result(self.outcomes.pop(0) if self.outcomes else FOUND)
    return future


class Scorer(PreferenceScorer):
  """Prefers every answer with 0.8."""

  def __init__(self):
    pass

  def score(self, pairs):
    return np.full(len(pairs), 0.8, np.float32)


def episode(chat, web, question, *, index=0, limits=LIMITS):
  return Episode(
    question, [{"role": "user", "content": question.text}], index=index, key=np.zeros(2, np.uint32),
    chat=chat, tool=web, limits=limits, tools=None,
  )


def call_turn(chat, *queries):
  return chat.encode_assistant("", [ToolCall("search_web", {"query": q}) for q in queries])


def play(chat, question, index, script, found):
  """A rollout of one of SCRIPTS, to its end."""
  e = episode(chat, Web(*found), question, index=index)
  rng = np.random.default_rng(index)
  for turn in script:
    if turn == "<cut>":
      ids, stopped = (chat.encode_text("Foo and ") * 50)[: LIMITS.turn_tokens], False
    elif turn == "<malformed>":
      ids = [chat._control_id["<tool_call>"], *chat.encode_text("{}"), chat.stop_ids[0]]
      stopped = True
    else:
      ids, stopped = (chat.encode_assistant(turn) if isinstance(turn, str)
                      else call_turn(chat, *turn)), True
    e.end_turn(ids, (-rng.random(len(ids))).tolist(), stopped)
    if not e.finished:
      e.next_tokens()
  if not e.finished:
    e.fail("HTTP 503")
  if e.valid:
    layers = np.array([[[0, 4], [2, 1]]], np.int32)
    e.routing = [np.arange(len(e.tokens) - 1, dtype=np.int32)[:, None, None] % 3 + layers]
  return e


def groups(chat):
  """[2][9] episodes."""
  questions = [
    types.SimpleNamespace(id=f"q{n}", text=f"Name the city of airport {name}.", answer="Foo",
                          aliases=(), world=3, hops=1)
    for n, name in enumerate(("ABC", "ABD"))
  ]
  return [
    [play(chat, question, i, *script) for i, script in enumerate(SCRIPTS.values())]
    for question in questions
  ]


def write_run(workdir, step=12):
  """A run folder whose one file holds the groups' records; returns the file."""
  rollouts = groups(load_chat(""))
  references = [group[:1] for group in rollouts]
  keys = jax.random.split(jax.random.key(0), len(rollouts))
  parts = total_reward(rollouts, references, Scorer(), keys, CONFIG["reward"])
  advantage = np.asarray(group_advantage(parts["reward"], parts["valid"], **CONFIG["advantage"]))
  path = workdir / f"rollouts/step_{step:06d}.jsonl"
  run_log.write_jsonl(path, rollout_records(step, rollouts, parts, advantage, EXPERTS))
  run_log.write_json(workdir / "config.json", CONFIG)
  return path


def read(path):
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
