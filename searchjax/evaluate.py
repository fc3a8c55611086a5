"""Base, SFT and RL policies side by side on held-out entities under their real names.  HOST.

Accuracy and calls by hop, greedy and at temperature 1; accuracy against a stated and enforced cap
on calls (budget-forced, SPEC 4); preference over the SFT policy's answers; cents a query.

python -m searchjax.evaluate --config configs/evaluate_tiny.py --workdir runs/tiny/eval

With config.inference.url the policy is an inference server's; there is no other to compare it with.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

import searchjax
from searchjax.data.question_file import file_questions
from searchjax.dist import checkpoint
from searchjax.dist.checks import check_config
from searchjax.dist.mesh import place
from searchjax.dist.run_log import (
  RunLog, as_record, find_stage, is_finished, write_json, write_jsonl,
)
from searchjax.dist.settings import run_main
from searchjax.dist.storage import is_remote
from searchjax.evals.budget import budget_summary
from searchjax.evals.cost import cents_per_query, load_prices
from searchjax.evals.statistics import bootstrap_mean
from searchjax.model.params import init_params
from searchjax.reward.judge import open_judge
from searchjax.reward.preference import PreferenceScorer
from searchjax.reward.total import base_reward, base_rewards, require_valid
from searchjax.rollout.agent import (
  load_chat, load_policy, make_engine_params, open_agent, prompt_has_room,
)
from searchjax.search.atlas import load_atlas
from searchjax.search.connect import describe
from searchjax.search.options import check_search
from searchjax.train_sft import load_questions


MODES = {"greedy": 0.0, "sampled": 1.0}
POLICIES = ("base", "sft", "rl")
SWEPT = ("sft", "rl")
SERVED = ("served",)  # The policy of an inference server.


def main(config, workdir: os.PathLike) -> None:
  check_config(config)
  check_search(config.search)
  if is_remote(workdir):
    raise ValueError(
      f"an evaluation reads and writes local folders, got --workdir {workdir}; copy the run first: "
      f"gcloud storage cp -r gs://BUCKET/FOLDER runs/"
    )
  prices = load_prices(config.prices or None)
  served = bool(config.get("inference", {}).get("url"))
  swept = SERVED if served else SWEPT
  passes = len(SERVED if served else POLICIES) * len(MODES) + len(swept) * len(config.budgets)
  inputs = evaluation_inputs(config, workdir, prices)
  differing = differing_inputs(workdir / "results.json", inputs)
  # Which weights a server has is known only by asking it, if at all: it is always asked anew.
  done = passes if differing == [] and not served else None
  if is_finished(workdir, config, done=done, total_steps=passes, title="evaluate"):
    print(f"of the same config and policies; to evaluate anew, delete {workdir / 'results.json'}")
    return
  atlas = load_atlas(config.search.corpus or None, for_questions=True)
  chat = load_chat(config.tokenizer, **config.get("chat", {}))
  policies, model, scorer = {"served": None}, None, None
  if not served:
    policies, model, scorer = load_stages(config, workdir, chat)
  room = lambda text: prompt_has_room(config, chat, text, max(config.budgets)) and (
    scorer is None or scorer.has_room(text, config.limits.answer_tokens)
  )
  questions, line = file_questions(config.data, "heldout", config.data_seed, room)
  if line:
    print(line, flush=True)
  questions = questions or load_questions(
    atlas, config.data, "heldout", config.data_seed, config.data.questions, world="real"
  )
  results = {
    "policies": {}, "budget": {}, "prices": dataclasses.asdict(prices),
    "judge": config.get("reward", {}).get("judge", {}).get("model") or "rule-based answer matcher",
    "search_provider": describe(config.search), "n": len(questions),
    "date": datetime.date.today().isoformat(),
    "perfect_calls": float(np.mean([q.hops for q in questions])),
    "sampling": {"modes": MODES, "budget_temperature": config.budget_temperature,
                 "seed": config.seed, "limits": dict(config.limits)},
    "inputs": inputs,
  }
  done = 0
  with open_agent(config, model, chat) as agent, RunLog(
    workdir, config, total_steps=passes, title="evaluate"
  ) as log, open_judge(config.get("reward", {}).get("judge")) as judge:
    if differing:
      print(f"evaluating anew: another {', '.join(differing)} than in {workdir / 'results.json'}")
    discard_results(workdir)

    def collect(what, params, temperature, budget=None, some=None):
      groups = agent.collect(
        some or questions, params, group_size=1, temperature=temperature, seed=config.seed,
        purpose="evaluation", step=0, budget=budget,
      )
      episodes = [group[0] for group in groups]
      for e, base in zip(
        episodes, base_rewards([(e.question, e.final_answer) for e in episodes], judge), strict=True
      ):
        bases[id(e)] = float(base)
      require_valid(
        [e.invalid_reason or ("no verdict" if np.isnan(bases[id(e)]) else "") for e in episodes],
        config.invalid_share, what,
      )
      return episodes

    rollouts, bases = {}, {}
    for name, params in policies.items():
      results["policies"][name] = {}
      for mode, temperature in MODES.items():
        episodes = collect(f"{name}, {mode}", params, temperature)
        rollouts[name, mode] = episodes
        results["policies"][name][mode] = summary(episodes, prices, config.seed, bases)
        row = results["policies"][name][mode]
        log.write(
          done,
          {
            "rollout_accuracy": row["accuracy"], "rollout_tool_calls": row["calls"],
            "invalid_share": row["invalid"] / len(episodes),
          },
        )
        done += 1
    for (name, mode), episodes in rollouts.items():
      # Side by side with the SFT policy's answers, by the preference model.
      preference = [None] * len(episodes)
      if scorer is not None:
        preference = side_by_side(scorer, episodes, rollouts["sft", mode])
      known = [s for s in preference if s is not None]
      results["policies"][name][mode] |= {
        "preference": float(np.mean(known)) if known else None,
        "cut_pairs": 0 if scorer is None else scorer.cut,
      }
      write_jsonl(workdir / f"rollouts/{name}_{mode}.jsonl", records(episodes, preference, bases))
    some = questions[: config.budget_questions]
    for name in swept:
      sweep = []
      for budget in config.budgets:
        episodes = collect(
          f"{name}, budget {budget}", policies[name], config.budget_temperature, int(budget), some
        )
        rows = [outcome(e, prices, bases) | {"budget": int(budget)} for e in episodes]
        sweep += rows
        log.write(
          done,
          {
            "rollout_accuracy": np.nanmean([r["correct"] for r in rows]),
            "rollout_tool_calls": np.mean([e.tool_calls for e in episodes if e.valid]),
            "invalid_share": np.mean([not e.valid for e in episodes]),
          },
        )
        done += 1
      results["budget"][name] = budget_summary(sweep, seed=config.seed)
    if served:
      results["inference"] = agent.engine.describe()
      if len(agent.engine.versions) > 1:
        raise ValueError(
          f"the inference server changed its weights during the evaluation "
          f"({', '.join(sorted(agent.engine.versions))}): these are not one policy's results"
        )
  results["searches"] = dataclasses.asdict(agent.tool.take_counts())
  write_json(workdir / "results.json", results)


def load_stages(config, workdir: pathlib.Path, chat) -> tuple[dict, Any, PreferenceScorer]:
  """Policies by name, as the engine reads them, their model, and the preference model's scorer."""
  load = lambda stage, **settings: load_policy(
    find_stage(workdir, stage), config.mesh, compute=config.compute, **settings
  )
  sft, model, division = load("sft")
  rl, _, _ = load("grpo")
  rm = load("rm", value_head=True)
  base = place(init_params(jax.random.key(config.seed), model), division.mesh, division.specs)
  whole = make_engine_params(config, model, division)
  policies = {"base": whole(base), "sft": whole(sft), "rl": whole(rl)}
  return policies, model, PreferenceScorer(*rm, chat, **config.scorer)


def evaluation_inputs(config, workdir: pathlib.Path, prices) -> dict:
  """What results depend on: the resolved config, the policies, the files a config names.

  Policies and files stand as SHA-256 of their content, so a copied run folder is the same.

  Raises:
    ValueError: a stage is missing.
  """
  policies = {}
  for stage in () if config.get("inference", {}).get("url") else ("sft", "rm", "grpo"):
    folder = find_stage(workdir, stage) / "policy"
    step = checkpoint.latest_step(folder)
    policies[stage] = None if step is None else {"step": step, "sha256": digest(folder / str(step))}
  files = {
    "corpus": config.search.corpus, "tokenizer": config.tokenizer,
    "questions": config.data.get("questions_file", ""),
  }
  return {
    "config": as_record(config), "prices": dataclasses.asdict(prices), **policies,
    **{name: digest(pathlib.Path(path)) for name, path in files.items() if path},
    "version": searchjax.__version__,
  }


def differing_inputs(path: pathlib.Path, inputs: dict) -> list[str] | None:
  """Names of the inputs that results.json was not made from; None where there is no such file."""
  if not path.is_file():
    return None
  try:
    there = json.loads(path.read_text(encoding="utf-8"))["inputs"]
  except (ValueError, KeyError, TypeError):  # Not JSON, not UTF-8, no object: nobody's results.
    there = {}
  there = there if isinstance(there, dict) else {}
  here = json.loads(json.dumps(inputs))
  return [name for name in here | there if here.get(name) != there.get(name)]


def discard_results(workdir: pathlib.Path) -> None:
  """Removes what an earlier evaluation wrote, so that no part of it stays beside the new one."""
  for path in [workdir / "results.json", *workdir.glob("rollouts/*.jsonl")]:
    path.unlink(missing_ok=True)


def digest(path: pathlib.Path) -> str | None:
  """SHA-256 of a file, or of a folder's files and their names; None where there is neither."""
  if path.is_dir():
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{file.relative_to(path).as_posix()} {digest(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
  if not path.is_file():
    return None
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def base_of(e, bases) -> float:
  """r_base as it was judged, NaN without a verdict; by the matcher where nothing was."""
  return bases[id(e)] if bases is not None else float(base_reward(e.question, e.final_answer))


def outcome(e, prices, bases=None) -> dict:
  """What one rollout came to: correct (NaN if invalid), calls, tokens read and written, cents."""
  # Every turn is a request: what stands before it is read, and billed, again.
  turns = np.flatnonzero(np.diff(np.asarray(e.mask, int), prepend=0) > 0)
  read, written = float(turns.sum()), float(e.generated)
  return {
    "hops": e.question.hops, "calls": e.tool_calls, "read": read, "written": written,
    "correct": base_of(e, bases) if e.valid else float("nan"),
    "cents": cents_per_query(read, written, e.searches, prices),
  }


def summary(episodes, prices, seed: int, bases=None) -> dict:
  """Accuracy and calls with 95 % bootstrap intervals, by hop, with tokens and cost."""
  rows = [outcome(e, prices, bases) for e in episodes if e.valid]
  rows = [row for row in rows if not np.isnan(row["correct"])]
  mean = lambda name, of: float(np.mean([r[name] for r in of]))
  accuracy, low, high = bootstrap_mean([r["correct"] for r in rows], seed=seed)
  calls, calls_low, calls_high = bootstrap_mean([r["calls"] for r in rows], seed=seed)
  by_hop = {}
  for hops in sorted({r["hops"] for r in rows}):
    of = [r for r in rows if r["hops"] == hops]
    by_hop[str(hops)] = {
      "accuracy": mean("correct", of), "calls": mean("calls", of), "n": len(of)
    }
  return {
    "by_hop": by_hop, "accuracy": accuracy, "accuracy_low": low, "accuracy_high": high,
    "calls": calls, "calls_low": calls_low, "calls_high": calls_high,
    "prompt_tokens": mean("read", rows), "completion_tokens": mean("written", rows),
    "cents_per_query": mean("cents", rows), "n": len(rows), "invalid": len(episodes) - len(rows),
    "truncated": int(sum(e.stop in ("turn_length", "context") for e in episodes if e.valid)),
    "forced": int(sum(e.forced for e in episodes if e.valid)),
  }


def side_by_side(scorer, episodes, others) -> list[float | None]:
  """P̄ of each answer against another policy's; None where either rollout is invalid."""
  pairs = {
    i: (e.question.text, e.final_answer, other.final_answer)
    for i, (e, other) in enumerate(zip(episodes, others, strict=True)) if e.valid and other.valid
  }
  scores = dict(zip(pairs, scorer.score(list(pairs.values())), strict=True))
  return [float(scores[i]) if i in scores else None for i in range(len(episodes))]


def records(episodes, preference, bases=None) -> list[dict]:
  """One readable record a rollout; there is no penalty in an evaluation."""
  return [
    {
      "question_id": e.question.id, "kind": "qa", "question": e.question.text,
      "gold": e.question.answer, "hops": e.question.hops, "world": e.question.world,
      "turns": e.turns, "final_answer": e.final_answer, "stop": e.stop, "valid": e.valid,
      "invalid_reason": e.invalid_reason, "forced": e.forced, "tool_calls": e.tool_calls,
      "tool_failures": e.tool_failures, "length": e.final_length,
      "policy_version": e.policy_version,
      "reward": {"base": None if np.isnan(b) else b, "preference": s},
    }
    for e, s, b in zip(
      episodes, preference, [base_of(e, bases) for e in episodes], strict=True)
  ]


if __name__ == "__main__":
  run_main(main, __doc__.splitlines()[0])
