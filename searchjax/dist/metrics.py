"""The metric table: what each number of a run is, its unit, when it is healthy.  HOST.

`python -m searchjax.dist.metrics > docs/metrics.md` makes the page.

Letters  those of SPEC.
Source   SPEC 1.2, 2 and 5; alarms after FAULTS W6.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Metric:
  """One row of the metric table.

  Attributes:
    name: the key in metrics.jsonl.
    formula: what it is, in one line.
    unit: of the number; `1` is dimensionless, `share` lies in [0, 1].
    healthy: what a good run shows, in words.
    stages: the stages that write it.
    low, high: outside them the value is an alarm.
  """

  name: str
  formula: str
  unit: str
  healthy: str
  stages: str
  low: float = -math.inf
  high: float = math.inf


def _table(*rows: Metric) -> dict[str, Metric]:
  return {row.name: row for row in rows}


METRICS: dict[str, Metric] = _table(
  # Supervised fine-tuning and the preference model.
  Metric(
    "loss",
    "SFT: mean of -log π over the tokens the agent wrote; RM: mean L_sym over pairs",
    "nat",
    "falls; RM below log 2 = 0.693",
    "sft rm",
    0.0,
    20.0,
  ),
  Metric(
    "token_accuracy",
    "agent-written tokens whose argmax is the token / all of them",
    "share",
    "rises, above 0.9 at the end",
    "sft",
    0.0,
    1.0,
  ),
  Metric("tokens", "tokens with loss in this step's batch", "token", "steady", "sft", 1.0),
  Metric("learning_rate", "step size after warm-up and decay", "1", "as scheduled", "sft", 0.0),
  Metric(
    "rollout_accuracy",
    "right rollouts / valid ones, on questions outside the training set",
    "share",
    "rises",
    "sft",
    0.0,
    1.0,
  ),
  Metric(
    "rollout_tool_calls",
    "mean c_i over those valid rollouts",
    "call",
    "near the demonstrations' mean",
    "sft",
    0.0,
  ),
  Metric(
    "dropped_rows",
    "conversations longer than a packed row, left out so far",
    "row",
    "0, or a small part of the data",
    "sft",
    0.0,
  ),
  Metric(
    "expert_overflow",
    "(token, expert) pairs left out for want of buffer rows, over layers and micro-batches",
    "pair",
    "0 off a mesh; on one, below 1 % of tokens · experts a token · layers",
    "sft grpo",
    0.0,
  ),
  Metric(
    "router_disagree",
    "(token, layer) whose recorded experts are not the set chosen live / those with a record; "
    "with mismatch=routing_replay",
    "share",
    "0 in float32; about 0.1 between two programs in bfloat16",
    "grpo",
    0.0,
    1.0,
  ),
  Metric(
    "pair_accuracy",
    "training pairs with P̄ on the labelled side / pairs that are no tie",
    "share",
    "rises, above 0.8",
    "rm",
    0.0,
    1.0,
  ),
  Metric(
    "holdout_accuracy",
    "the same on pairs of held-out prompts",
    "share",
    "close to pair_accuracy",
    "rm",
    0.0,
    1.0,
  ),
  Metric(
    "holdout_swapped_accuracy",
    "holdout_accuracy with both answers swapped, from Δ in that one order",
    "share",
    "within 0.05 of holdout_accuracy",
    "rm",
    0.0,
    1.0,
  ),
  Metric(
    "holdout_calibration_error",
    "Σ_bins n_bin/n |mean P̄ − share preferred|, ten equal bins",
    "share",
    "below 0.1",
    "rm",
    0.0,
    1.0,
  ),
  Metric(
    "grad_norm",
    "global l2 norm of the gradient before clipping",
    "1",
    "no spikes above 100",
    "sft rm grpo",
    0.0,
    100.0,
  ),
  # Reward and behaviour.
  Metric("reward", "mean over valid rollouts of R = r_base · s − pen_eff", "1", "rises", "grpo"),
  Metric(
    "base_reward",
    "mean r_base: right answer, or all rubrics hold",
    "share",
    "rises",
    "grpo",
    0.0,
    1.0,
  ),
  Metric(
    "preference",
    "mean s = P̄(candidate preferred to the reference rollout)",
    "share",
    "rises from about 0.5",
    "grpo",
    0.0,
    1.0,
  ),
  Metric(
    "tool_calls",
    "mean c_i: calls a rollout, malformed and refused ones counted",
    "call",
    "falls to what the questions need, not to 0",
    "grpo",
    0.0,
  ),
  Metric(
    "tool_failures",
    "mean e_i: calls the search service could not serve",
    "call",
    "near 0",
    "grpo",
    0.0,
  ),
  Metric(
    "generated_length",
    "mean tokens the policy wrote in a rollout, all turns",
    "token",
    "steady or falling, not to 0",
    "grpo",
    1.0,
  ),
  Metric(
    "tool_penalty", "mean pen_tool, the anchored tool-call penalty", "1", "falls", "grpo", 0.0
  ),
  Metric("length_penalty", "mean pen_len, the anchored length penalty", "1", "falls", "grpo", 0.0),
  Metric("penalty", "mean pen_eff = λ_tool pen_tool + λ_len pen_len", "1", "falls", "grpo", 0.0),
  # The update and the train–inference mismatch.
  Metric(
    "objective",
    "J, the mean over rollouts and their tokens of ratio · advantage",
    "1",
    "near 0: advantages are centred",
    "grpo",
  ),
  Metric(
    "kl_k1",
    "mean of −log ρ, ρ = π_train/μ_infer, over tokens of rows of advantage ≠ 0; 0 if none",
    "nat",
    "|k1| below 1e-3",
    "grpo",
    -0.1,
    0.1,
  ),
  Metric(
    "kl_k3",
    "mean of ρ − 1 − log ρ over the tokens of kl_k1; 0 if none",
    "nat",
    "below 1e-6 in float32, about 1e-3 in bfloat16",
    "grpo",
    -1e-6,
    0.1,
  ),
  Metric(
    "ratio_max", "largest max(ρ, 1/ρ) of the tokens of kl_k1; 1 if none", "1", "near 1", "grpo",
    0.0, 10.0,
  ),
  # Where a group's signal comes from.
  Metric(
    "groups_all_wrong",
    "groups whose valid rollouts all have r_base = 0 / groups",
    "share",
    "falls",
    "grpo",
    0.0,
    1.0,
  ),
  Metric(
    "groups_all_right",
    "groups whose valid rollouts all have r_base = 1 / groups",
    "share",
    "rises",
    "grpo",
    0.0,
    1.0,
  ),
  Metric(
    "groups_mixed",
    "groups with right and wrong rollouts / groups",
    "share",
    "well above 0",
    "grpo",
    0.0,
    1.0,
  ),
  Metric(
    "groups_inverted",
    "groups where a wrong rollout has more reward than a right one / groups",
    "share",
    "near 0: otherwise the penalties outweigh the answer",
    "grpo",
    0.0,
    1.0,
  ),
  Metric(
    "zero_std_groups",
    "groups whose rewards are all equal, so advantage 0 / groups",
    "share",
    "low: these teach nothing",
    "grpo",
    0.0,
    1.0,
  ),
  Metric(
    "singleton_groups",
    "groups with fewer than two valid rollouts, so advantage 0 / groups",
    "share",
    "0",
    "grpo",
    0.0,
    0.5,
  ),
  # What went wrong in a rollout.
  Metric(
    "invalid_share",
    "rollouts that count nowhere: search, judge or engine failed / rollouts",
    "share",
    "0",
    "sft grpo",
    0.0,
    0.5,
  ),
  Metric(
    "truncated_share",
    "rollouts stopped by the limit of a turn or the context / rollouts, invalid too",
    "share",
    "near 0",
    "grpo",
    0.0,
    0.5,
  ),
  Metric(
    "forced_share",
    "rollouts told that their calls or tokens are used up, and to answer / rollouts",
    "share",
    "near 0",
    "grpo",
    0.0,
    0.5,
  ),
  Metric(
    "over_budget_share",
    "calls over the budget, refused / calls, over all rollouts",
    "share",
    "near 0",
    "grpo",
    0.0,
    0.5,
  ),
  Metric(
    "failed_search_share",
    "searches the service could not serve / searches, over all rollouts, invalid ones too",
    "share",
    "near 0",
    "grpo",
    0.0,
    0.2,
  ),
  Metric(
    "malformed_call_share",
    "calls within the budget that do not parse or fit the schema / calls, over all rollouts",
    "share",
    "near 0",
    "grpo",
    0.0,
    0.5,
  ),
  Metric(
    "answer_without_search",
    "valid question rollouts right without a call / valid question rollouts",
    "share",
    "near 0 where facts must be looked up",
    "grpo",
    0.0,
    0.9,
  ),
  Metric(
    "skipped_rows",
    "rollouts without a gradient, left out of the update: advantage 0, or invalid",
    "row",
    "below the batch: all of them means nothing is learned",
    "grpo",
    0.0,
  ),
  Metric(
    "cut_pairs",
    "rollouts whose answer and reference do not fit the preference model's row together, so only "
    "their beginnings are read",
    "row",
    "0; above it, raise scorer.length",
    "grpo",
    0.0,
    0.0,
  ),
  # Synthesis of questions: a line a batch, its step the number of questions so far less one.
  Metric(
    "synthesis_kept", "questions kept / chains walked", "share", "steady", "synthesize", 0.0, 1.0
  ),
  Metric(
    "questions_per_second", "questions kept / second since the start", "1/s", "steady",
    "synthesize", 0.0,
  ),
  # What the searches of policy and reference came to.
  Metric("search_calls", "searches of this step, sent or recorded", "call", "steady", "grpo", 0.0),
  Metric(
    "search_recorded",
    "of them, answered by search.cache",
    "call",
    "all when replaying; most when resuming",
    "grpo",
    0.0,
  ),
  Metric(
    "search_retries",
    "further attempts, after a refusal or an outage",
    "call",
    "near 0",
    "grpo",
    0.0,
  ),
  Metric(
    "search_dropped",
    "results not shown: blocked sites, or n words of the question in a row",
    "result",
    "near 0",
    "grpo",
    0.0,
  ),
  Metric(
    "search_dollars",
    "answered requests at the provider's published price, or at what its replies say",
    "dollar",
    "as budgeted; 0 with a local server",
    "grpo",
    0.0,
  ),
  # Time.
  Metric("prefill_tokens", "tokens fed to the engine in this step", "token", "steady", "grpo", 0.0),
  Metric(
    "forked_tokens", "prompt tokens copied from another rollout of the group, not fed", "token",
    "steady", "grpo", 0.0,
  ),
  Metric("decode_tokens", "tokens sampled in this step", "token", "steady", "grpo", 0.0),
  Metric(
    "lane_use",
    "decode lanes generating, of all their time but that of feeds",
    "share",
    "above 0.5",
    "grpo",
    0.0,
    1.0,
  ),
  Metric(
    "rollout_seconds", "wall time of the rollouts, search included", "s", "steady", "grpo", 0.0
  ),
  Metric(
    "score_seconds",
    "wall time of judge and preference model",
    "s",
    "below rollout_seconds",
    "grpo",
    0.0,
  ),
  Metric("update_seconds", "wall time of the update", "s", "steady", "grpo", 0.0),
)


def alarms(metrics: Mapping[str, float]) -> list[str]:
  """Names every value outside its range in `METRICS`, NaN and infinities included."""
  found = []
  for name, value in metrics.items():
    metric = METRICS[name]
    if not (math.isfinite(value) and metric.low <= value <= metric.high):
      found.append(
        f"{name} {value:.4g} ({metric.low:g} to {metric.high:g}; healthy: {metric.healthy})"
      )
  return found


def metrics_page() -> str:
  """docs/metrics.md, made from `METRICS`."""
  lines = [
    "# Metrics",
    "",
    "Every name that may stand in a `metrics.jsonl`, in the paper's letters. A value outside",
    "the alarm bounds is reported once, when it first happens. Made by",
    "`python -m searchjax.dist.metrics`.",
    "",
    "| name | what it is | unit | healthy | alarm outside | stages |",
    "| --- | --- | --- | --- | --- | --- |",
  ]
  for metric in METRICS.values():
    bounded = math.isfinite(metric.low) or math.isfinite(metric.high)
    bounds = f"{metric.low:g} … {metric.high:g}" if bounded else "not finite"
    formula = metric.formula.replace("|", "\\|")
    healthy = metric.healthy.replace("|", "\\|")
    lines.append(
      f"| `{metric.name}` | {formula} | {metric.unit} | {healthy} | {bounds} | {metric.stages} |"
    )
  return "\n".join(lines) + "\n"


if __name__ == "__main__":
  sys.stdout.write(metrics_page())
