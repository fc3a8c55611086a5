"""Base, SFT and RL policies side by side on held-out entities under their real names.  HOST.

Accuracy and calls by hop, greedy and at temperature 1; accuracy against a stated and enforced cap on
calls (budget-forced, SPEC 4); preference over the SFT policy's answers; cents a query.

python -m searchjax.evaluate --config configs/evaluate_tiny.py --workdir runs/tiny/eval
"""

import datetime
import pathlib

import jax
import numpy as np

from searchjax.dist.run_log import RunLog, find_stage, write_json, write_jsonl
from searchjax.dist.settings import run_main
from searchjax.evals.cost import cents_per_query, load_prices
from searchjax.evals.statistics import bootstrap_mean
from searchjax.model.params import init_params
from searchjax.reward.preference import PreferenceScorer
from searchjax.reward.total import base_reward
from searchjax.rollout.agent import load_chat, load_policy, open_agent
from searchjax.search.atlas import load_atlas
from searchjax.train_sft import load_questions


def main(config, workdir: pathlib.Path) -> None:
  atlas = load_atlas(config.search.corpus or None)
  chat = load_chat(config.tokenizer)
  sft, model = load_policy(find_stage(workdir, "sft"))
  rl, _ = load_policy(find_stage(workdir, "grpo"))
  rm, rm_model = load_policy(find_stage(workdir, "rm"), value_head=True)
  policies = {"base": init_params(jax.random.key(config.seed), model), "sft": sft, "rl": rl}
  scorer = PreferenceScorer(rm, rm_model, chat, **config.scorer)
  prices = load_prices(config.prices or None)
  questions = load_questions(
    atlas, config.data, "heldout", config.data_seed, config.data.questions, world="real"
  )
  modes = {"greedy": 0.0, "sampled": 1.0}
  passes = len(policies) * len(modes) + 2 * len(config.budgets)
  log = RunLog(workdir, config, total_steps=passes, title="evaluate")
  results = {
    "policies": {}, "budget": {}, "prices": dict(prices), "judge": "rule-based answer matcher",
    "search_provider": config.search.url or "local atlas server", "n": len(questions),
    "date": datetime.date.today().isoformat(),
    "perfect_calls": float(np.mean([q.hops for q in questions])),
    "sampling": {"modes": modes, "budget_temperature": config.budget_temperature,
                 "seed": config.seed, "limits": dict(config.limits)},
  }
  done = 0
  with open_agent(config, model, chat) as agent:
    collect = lambda params, temperature, budget=None, some=None: [
      group[0]
      for group in agent.collect(
        some or questions, params, group_size=1, temperature=temperature, seed=config.seed,
        purpose="evaluation", step=0, budget=budget,
      )
    ]
    answers = {}
    for name, params in policies.items():
      results["policies"][name] = {}
      for mode, temperature in modes.items():
        episodes = collect(params, temperature)
        answers[name, mode] = [e.final_answer for e in episodes]
        results["policies"][name][mode] = summary(episodes, prices, config.seed)
        write_jsonl(workdir / f"rollouts/{name}_{mode}.jsonl", records(episodes))
        row = results["policies"][name][mode]
        log.write(done, {"rollout_accuracy": row["accuracy"], "rollout_tool_calls": row["calls"]})
        done += 1
    for (name, mode), given in answers.items():
      results["policies"][name][mode]["preference"] = float(
        np.mean(
          scorer.score(
            [
              (q.text, a, r)
              for q, a, r in zip(questions, given, answers["sft", mode], strict=True)
            ]
          )
        )
      )
    some = questions[: config.budget_questions]
    for name in ("sft", "rl"):
      results["budget"][name] = []
      for budget in config.budgets:
        episodes = collect(policies[name], config.budget_temperature, int(budget), some)
        row = summary(episodes, prices, config.seed)
        results["budget"][name].append(
          {
            "budget": int(budget), "accuracy": row["accuracy"], "low": row["accuracy_low"],
            "high": row["accuracy_high"], "calls": row["calls"],
            "cents_per_query": row["cents_per_query"],
          }
        )
        log.write(done, {"rollout_accuracy": row["accuracy"], "rollout_tool_calls": row["calls"]})
        done += 1
  write_json(workdir / "results.json", results)
  log.close()


def summary(episodes, prices, seed: int) -> dict:
  """Accuracy and calls with 95 % bootstrap intervals, by hop, with tokens and cost."""
  valid = [e for e in episodes if e.valid]
  right = np.array([base_reward(e.question, e.final_answer) for e in valid], float)
  calls = np.array([e.tool_calls for e in valid], float)
  hops = np.array([e.question.hops for e in valid])
  written = np.array([e.generated for e in valid], float)
  read = np.array([len(e.tokens) - e.generated for e in valid], float)
  searches = np.array([e.searches for e in valid], float)
  accuracy, low, high = bootstrap_mean(right, seed=seed)
  mean_calls, calls_low, calls_high = bootstrap_mean(calls, seed=seed)
  return {
    "by_hop": {
      str(h): {
        "accuracy": float(right[hops == h].mean()), "calls": float(calls[hops == h].mean()),
        "n": int((hops == h).sum()),
      }
      for h in sorted(set(hops.tolist()))
    },
    "accuracy": accuracy, "accuracy_low": low, "accuracy_high": high,
    "calls": mean_calls, "calls_low": calls_low, "calls_high": calls_high,
    "prompt_tokens": float(read.mean()), "completion_tokens": float(written.mean()),
    "cents_per_query": float(
      np.mean([cents_per_query(*t, prices) for t in zip(read, written, searches, strict=True)])
    ),
    "n": len(valid), "invalid": len(episodes) - len(valid),
    "truncated": int(sum(e.stop in ("turn_length", "context") for e in valid)),
    "forced": int(sum(e.forced for e in valid)),
  }


def records(episodes) -> list[dict]:
  """One readable record a rollout."""
  return [
    {
      "question_id": e.question.id, "kind": "qa", "question": e.question.text,
      "gold": e.question.answer, "hops": e.question.hops, "world": e.question.world,
      "turns": e.turns, "final_answer": e.final_answer, "stop": e.stop, "valid": e.valid,
      "tool_calls": e.tool_calls, "tool_failures": e.tool_failures, "length": e.final_length,
      "correct": bool(base_reward(e.question, e.final_answer)),
    }
    for e in episodes
  ]


if __name__ == "__main__":
  run_main(main, __doc__.splitlines()[0])
