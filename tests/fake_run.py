"""Builds a run folder of made-up numbers in the real files' formats, for figures and report."""

import math
import pathlib
import random

from searchjax.dist.run_log import RunLog, write_json, write_jsonl

HOSTILE = "<script>alert('snippet')</script> & <|im_end|> </details>"
MALFORMED = "Let me look.<tool_call>\n<function=search_web>\n<parameter=query>\nAndorra<|im_end|>"
POLICIES = ("base", "sft", "rl")


def build(workdir: pathlib.Path, *, steps: int = 60, seed: int = 0) -> pathlib.Path:
  """Writes every part of a finished run under `workdir`."""
  rng = random.Random(seed)
  _sft(workdir / "sft", rng)
  _preference_model(workdir / "rm", rng)
  grpo(workdir / "grpo", steps, rng, penalty="anchored")
  write_json(workdir / "eval/results.json", results(rng))
  for policy in POLICIES:
    records = [_rollout(rng, 0, f"q{n}", 0, skill=POLICIES.index(policy) / 2) for n in range(4)]
    write_jsonl(workdir / f"eval/rollouts/{policy}_greedy.jsonl", records)
  for arm in ("anchored", "unconditional"):
    for number in range(3):
      grpo(workdir / f"ablation/{arm}/seed_{number}", steps // 2, rng, penalty=arm)
  return workdir


def grpo(workdir: pathlib.Path, steps: int, rng: random.Random, *, penalty: str) -> None:
  """Writes one GRPO run: metrics of every step, rollouts of every tenth and the last."""
  strength = 1.6 if penalty == "unconditional" else 1.0
  config = {"seed": 0, "steps": steps, "reward": {"tool_penalty": penalty}}
  with RunLog(workdir, config, total_steps=steps) as log:
    for step in range(steps):
      x = step / max(1, steps - 1)
      log.write(step, _grpo_metrics(x, strength, rng))
      if step % 10 == 0 or step == steps - 1:
        rows = [
          _rollout(rng, step, f"q{question}", rollout, skill=x)
          for question in range(4)
          for rollout in range(4)
        ]
        log.rollouts(step, rows)


def results(rng: random.Random) -> dict:
  """eval/results.json."""
  policies, budget = {}, {}
  for level, policy in enumerate(POLICIES):
    policies[policy] = {}
    for mode, shift in (("greedy", 0.0), ("sampled", -0.15)):
      accuracy = min(0.97, max(0.02, (0.05, 0.78, 0.93)[level] + shift))
      calls = (0.2, 3.4, 2.1)[level]
      by_hop = {
        str(hop): {"accuracy": max(0.0, accuracy - 0.03 * hop), "calls": calls + hop - 2, "n": 64}
        for hop in (1, 2, 3)
      }
      policies[policy][mode] = {
        "by_hop": by_hop,
        "accuracy": accuracy,
        "accuracy_low": max(0.0, accuracy - 0.05),
        "accuracy_high": min(1.0, accuracy + 0.05),
        "calls": calls,
        "calls_low": calls - 0.2,
        "calls_high": calls + 0.2,
        "preference": (None, 0.5, 0.71)[level],
        "cents_per_query": (0.0004, 0.0031, 0.0019)[level],
        "prompt_tokens": 812.0,
        "completion_tokens": 93.0,
        "n": 192,
      }
    if level:
      budget[policy] = [
        {
          "budget": b,
          "accuracy": (a := min((0.74, 0.93)[level - 1], 0.03 + 0.4 * b) - rng.random() * 0.02),
          "low": a - 0.06,
          "high": a + 0.05,
          "calls": min(b, 3.4 - level),
          "cents_per_query": 0.0006 * (1 + min(b, 3)),
        }
        for b in range(11)
      ]
  return {
    "policies": policies,
    "budget": budget,
    "perfect_calls": 2.0,
    "prices": {"prompt": 0.2, "completion": 0.8},
    "search_provider": "atlas",
    "date": "2026-05-01",
    "judge": "rule-based answer matcher",
    "sampling": {"temperature": 1.0},
  }


def _sft(workdir: pathlib.Path, rng: random.Random) -> None:
  with RunLog(workdir, {"seed": 0, "steps": 40}, total_steps=40) as log:
    for step in range(40):
      metrics = {
        "loss": 4.5 * math.exp(-step / 9) + 0.2 + rng.random() * 0.05,
        "token_accuracy": 0.95 - 0.9 * math.exp(-step / 9),
        "grad_norm": 1 + rng.random(),
        "tokens": 4096,
        "learning_rate": 1e-3 * min(1.0, step / 5),
      }
      if step % 10 == 9:
        metrics |= {"rollout_accuracy": step / 50, "rollout_tool_calls": 3.0}
      log.write(step, metrics)


def _preference_model(workdir: pathlib.Path, rng: random.Random) -> None:
  with RunLog(workdir, {"seed": 0, "steps": 30}, total_steps=30) as log:
    for step in range(30):
      metrics = {
        "loss": 0.3 + 0.4 * math.exp(-step / 6),
        "pair_accuracy": 0.9 - 0.4 * math.exp(-step / 6) + rng.random() * 0.02,
        "grad_norm": 1.0,
      }
      if step == 29:
        metrics |= {
          "holdout_accuracy": 0.89,
          "holdout_swapped_accuracy": 0.88,
          "holdout_calibration_error": 0.05,
        }
      log.write(step, metrics)


def _grpo_metrics(x: float, strength: float, rng: random.Random) -> dict[str, float]:
  noise = rng.random() - 0.5
  return {
    "reward": 0.1 + 0.5 * x + 0.05 * noise,
    "base_reward": 0.55 + 0.38 * x ** (0.6 * strength) + 0.06 * noise,
    "preference": 0.5 + 0.2 * x + 0.03 * noise,
    "tool_calls": 3.5 - 1.5 * strength * x + 0.2 * noise,
    "tool_failures": 0.0,
    "generated_length": 30 - 9 * x + noise,
    "tool_penalty": 0.5 * math.exp(-2 * x) + 0.03 * noise,
    "length_penalty": 0.3 * math.exp(-1.5 * x) + 0.02 * noise,
    "penalty": 0.2 * math.exp(-2 * x) + 0.02 * noise,
    "grad_norm": 1.5 - 0.6 * x + 0.3 * noise,
    "kl_k1": 2e-7 * noise,
    "kl_k3": 2e-8 * (1 + x) * (1.2 + noise),
    "ratio_max": 1.0001,
    "objective": 1e-3 * noise,
    "groups_all_wrong": 0.3 * (1 - x),
    "groups_all_right": 0.6 * x,
    "groups_mixed": 0.7 - 0.3 * x,
    "groups_inverted": 0.02 * (1 - x),
    "zero_std_groups": 0.1,
    "singleton_groups": 0.0,
    "invalid_share": 0.0,
    "truncated_share": 0.01,
    "malformed_call_share": 0.01,
    "answer_without_search": 0.02,
    "skipped_rows": 0.0,
    "prefill_tokens": 60000.0,
    "decode_tokens": 12000.0,
    "lane_use": 0.7,
    "rollout_seconds": 2.1,
    "score_seconds": 0.4,
    "update_seconds": 1.2,
  }


def _rollout(
  rng: random.Random, step: int, question_id: str, rollout: int, *, skill: float
) -> dict:
  """One record of rollouts/*.jsonl; a skilled policy is right more often and searches less."""
  right = rng.random() < 0.3 + 0.6 * skill
  invalid = question_id == "q3" and rollout == 3
  rubric = question_id == "q2" and rollout < 4
  searches = 0 if rubric else 2 + (rng.random() > skill) + (rng.random() > skill)
  question = (
    "Reply with one word: which animal barks?"
    if rubric
    else ("What is the currency of the country whose capital is Andorra la Vella?")
  )
  turns = [{"role": "user", "text": question}]
  for number in range(searches):
    query = "capital Andorra la Vella" if number == 0 else "currency of Andorra"
    call = {"name": "search_web", "arguments": {"query": query}}
    turns.append({"role": "assistant", "text": "", "calls": [call]})
    failed = invalid and number == 0
    found = (
      "Search failed: the service did not answer."
      if failed
      else (
        "Andorra: The capital of Andorra is Andorra la Vella.\n"
        f"Andorra: Its currency is the Euro.\n{HOSTILE}"
      )
    )
    status = "infra_failure" if failed else "ok"
    turns.append({"role": "tool", "text": found, "status": status})
  if question_id == "q1" and rollout == 1:
    unread = {"role": "assistant", "text": "", "calls": [], "raw": MALFORMED}
    told = {"role": "tool", "text": "Error: the call is not closed.", "status": "model_failure"}
    turns += [unread, told]
  answer = (
    ("Dog" if right else "A cat, I think")
    if rubric
    else (
      "The currency of Andorra is the Euro." if right else "The currency of Andorra is the Peseta."
    )
  )
  turns.append({"role": "assistant", "text": answer, "calls": []})
  base, preference = float(right), 0.4 + 0.4 * rng.random()
  tool_penalty, length_penalty = 0.2 * max(0, searches - 2), 0.1 * rng.random()
  penalty = 0.5 * tool_penalty + 0.2 * length_penalty
  total = base * preference - penalty
  return {
    "step": step,
    "question_id": question_id,
    "rollout": rollout,
    "kind": "rubric" if rubric else "qa",
    "question": question,
    "gold": "Dog" if rubric else "Euro",
    "hops": 0 if rubric else 2,
    "world": None,
    "turns": turns,
    "tokens": [1, 2, 3],
    "mask": [False, True, True],
    "logp": [0.0, -0.1, -0.2],
    "final_answer": answer,
    "stop": "end",
    "valid": not invalid,
    "invalid_reason": "search: timed out" if invalid else "",
    "policy_version": step,
    "tool_calls": searches,
    "tool_failures": int(invalid),
    "length": 12,
    "reward": {
      "base": base,
      "preference": None if invalid else preference,
      "tool_penalty": tool_penalty,
      "length_penalty": length_penalty,
      "penalty": penalty,
      "total": None if invalid else total,
    },
    "advantage": 0.0 if invalid else total - 0.4,
  }
