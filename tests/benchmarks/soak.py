"""Thousands of rollouts through the real engine against a web that fails: none lost, none stuck.

    JAX_PLATFORMS=cpu python tests/benchmarks/soak.py [--rollouts 2000] [--faults any=0.2]

The policy is tiny, with random parameters. Most turns are scripted (searches one by one and side by
side, malformed calls, too long queries, more calls than the budget holds), so that conversations are
real ones; every tenth rollout samples. Each must end, and pass the offline check; memory is printed
after every step's worth.
"""

import argparse
import collections
import dataclasses
import faulthandler
import os
import pathlib
import sys
import time

import jax
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from searchjax.data.chat import ToolCall  # noqa: E402
from searchjax.data.questions import forward_questions  # noqa: E402
from searchjax.model.config import model_config  # noqa: E402
from searchjax.model.params import init_params  # noqa: E402
from searchjax.rollout import audit  # noqa: E402
from searchjax.rollout.agent import load_chat  # noqa: E402
from searchjax.rollout.engine import EngineGroup  # noqa: E402
from searchjax.rollout.episode import Episode, Limits  # noqa: E402
from searchjax.rollout.group import prompt_messages, rollout_keys  # noqa: E402
from searchjax.search.atlas import load_atlas  # noqa: E402
from searchjax.search.connect import open_search  # noqa: E402
from searchjax.search.options import SEARCH  # noqa: E402

GROUP = 8
ENGINE = dict(lanes=64, pool=192, feed_rows=32, feed_tokens=64, decode_steps=8)
SAMPLED = 10  # One rollout of so many follows no script.
STUCK_S = 600  # A step that takes longer is taken for stuck: its threads are printed.


class Scripted(Episode):
  """An episode whose turns are given to the engine, where its script has one."""

  script: list[list[int]] = []

  def forced_turn(self):
    done = sum(turn["role"] == "assistant" for turn in self.turns)
    return self.script[done] if done < len(self.script) else []


@dataclasses.dataclass
class Soaked:
  """What came of all rollouts.

  Attributes:
    ends: rollouts by how they ended, or why they are invalid.
    calls: calls by what came of them.
    rss: MB after each step.
    searches: what the client counted.
    violations: of the offline check, as text.
  """

  ends: collections.Counter
  calls: collections.Counter
  rss: list[float]
  searches: list
  violations: list[str]


def script(chat, question, rng):
  """Turns of one rollout, as the agent would write them."""
  queries = [query for query, _ in question.steps]
  call = lambda *some: chat.encode_assistant(
    "", [ToolCall("search_web", {"query": query}) for query in some]
  )
  answer = chat.encode_assistant(question.statement)
  bad = [chat._control_id["<tool_call>"], *chat.encode_text("{}"), chat.stop_ids[0]]
  return {
    "one by one": [*(call(q) for q in queries), answer],
    "side by side": [call(*queries), answer],
    "at once": [answer],
    "malformed": [bad, call(queries[0]), answer],
    "too long": [call("Foo " * 64), call(queries[-1]), answer],
    "greedy": [call(queries[0])] * 7,
    "all at once": [call(*queries * 2), call(*queries), answer],
  }[rng.choice(["one by one"] * 4 + ["side by side"] * 2
               + ["at once", "malformed", "too long", "greedy", "all at once"])]


def record(e):
  """The part of a record that the offline check reads (train_grpo.rollout_records)."""
  names = ("turns", "tokens", "final_answer", "stop", "valid", "tool_calls", "tool_failures",
           "searches", "malformed_calls", "forced", "invalid_reason")
  return {name: getattr(e, name) for name in names} | {
    "step": 0, "policy_version": 0, "question_id": e.question.id, "rollout": e.index,
    "question": e.question.text, "mask": [int(m) for m in e.mask], "logp": e.logps,
    "length": e.final_length, "prompt_length": len(e.prompt),
    "limits": dataclasses.asdict(e.limits), "advantage": 0.0,
    "reward": {"total": 0.0 if e.valid else None},
  }


def soak(rollouts, per_step, faults, *, seed=0, say=print, model=None, engine=None) -> Soaked:
  """Runs so many rollouts in steps of `per_step`.

  Args:
    faults: of the local server, as in config.search.faults.
    model: overrides of the tiny preset.
    engine: overrides of ENGINE.
  """
  search = SEARCH | dict(
    faults=faults, max_results=1, titles=False, tools_in_prompt=False, timeout_s=1.5, deadline_s=5.0,
    retries=1, connections=32,
  )
  limits = Limits(calls=5, turn_tokens=112, tokens=320)
  chat = load_chat("")
  model = model_config("tiny", real_vocab_size=chat.vocab_size, **(model or {}))
  params = init_params(jax.random.key(seed), model)
  rng = np.random.default_rng(seed)
  atlas = load_atlas(for_questions=True)
  questions = [
    q for hops in (1, 2, 3) for q in forward_questions(
      atlas, "rl", hops=hops, count=rollouts // GROUP // 3 + 1, seed=seed, world="real"
    )
  ]
  rng.shuffle(questions)
  keys = rollout_keys(seed, "rollout", 0, [q.id for q in questions], GROUP)
  found = Soaked(collections.Counter(), collections.Counter(), [], [], [])
  engine = EngineGroup(
    model, devices=jax.devices()[:1], length=limits.tokens, stop_ids=chat.stop_ids,
    **ENGINE | (engine or {}),
  )
  with open_search(search) as tool:
    for step in range(0, rollouts, per_step):
      episodes = []
      for n in range(step, min(step + per_step, rollouts)):
        q, g = n // GROUP % len(questions), n % GROUP
        e = Scripted(
          questions[q], prompt_messages(questions[q].text, None), index=g, key=keys[q, g],
          chat=chat, tool=tool, limits=limits, tools=None,
        )
        e.script = script(chat, questions[q], rng) if n % SAMPLED else []
        episodes.append(e)
      begun = time.monotonic()
      faulthandler.dump_traceback_later(STUCK_S, exit=True)
      engine.run(params, episodes, temperature=1.0)
      faulthandler.cancel_dump_traceback_later()
      seconds = time.monotonic() - begun
      for e in episodes:
        assert e.finished, f"{e.question.id}/{e.index} did not end"
        found.ends[e.invalid_reason or e.stop] += 1
        heard = [turn["status"] for turn in e.turns if turn["role"] == "tool"]
        found.calls.update(heard)
        found.calls["in the last turn"] += e.tool_calls - len(heard)
        assert e.tool_calls == len(heard) or e.stop == "budget"
        found.violations += [
          f"{e.question.id}/{e.index}: {v}" for v in audit.check_record(record(e), chat, None)
        ]
      found.rss.append(resident_mb())
      counts = tool.take_counts()
      assert counts.searches == sum(e.searches for e in episodes)
      assert sum(counts.failures.values()) == sum(e.tool_failures for e in episodes)
      found.searches.append(counts)
      say(f"{step + len(episodes):5d} rollouts  {seconds:5.1f} s  {found.rss[-1]:7.1f} MB")
  return found


def resident_mb() -> float:
  pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
  return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--rollouts", type=int, default=2000)
  parser.add_argument("--per-step", type=int, default=200)
  parser.add_argument("--faults", default="any=0.2,seconds=0.02")
  parser.add_argument("--seed", type=int, default=0)
  arguments = parser.parse_args()
  begun = time.monotonic()
  found = soak(arguments.rollouts, arguments.per_step, arguments.faults, seed=arguments.seed)
  print(f"rollouts, {found.ends.total()}: " + counted(found.ends))
  print("calls: " + counted(found.calls))
  numbers = ("searches", "answered", "requests", "retries")
  print("searches: " + ", ".join(
    f"{name} {sum(getattr(c, name) for c in found.searches)}" for name in numbers
  ))
  failures = sum((collections.Counter(c.failures) for c in found.searches), collections.Counter())
  print("failed searches: " + counted(failures))
  print(f"violations of the offline check: {len(found.violations)}", *found.violations[:5], sep="\n")
  third, last = found.rss[len(found.rss) // 3], found.rss[-1]
  print(f"memory {third:.0f} MB after a third, {last:.0f} MB at the end; "
        f"{time.monotonic() - begun:.0f} s")
  wrong = found.ends.total() != arguments.rollouts or found.violations or last > 1.05 * third
  raise SystemExit(bool(wrong))


def counted(counter):
  return ", ".join(f"{name} {n:g}" for name, n in counter.most_common())


if __name__ == "__main__":
  main()
