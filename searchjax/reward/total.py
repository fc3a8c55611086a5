"""From groups of rollouts to rewards: verdicts, preference, penalties, sum.  HOST.

  R = r_base · s − λ_tool pen_tool − λ_len pen_len                                        (SPEC 2)

The equations are in `reward.penalties` and `reward.combine`; this module gathers their inputs.

Letters  Q questions, G rollouts per question.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from searchjax.dist.distributed import from_first
from searchjax.reward import combine, penalties
from searchjax.reward.answer import Verdict, judge_answer
from searchjax.reward.judge import Judge
from searchjax.reward.preference import PreferenceScorer
from searchjax.reward.rubric import all_hold, judged, programmatic


def base_reward(question: Any, answer: str) -> bool:
  """r_base: the answer matches the ground truth, or all rubrics hold."""
  if not answer:
    return False
  rubrics = getattr(question, "rubrics", None)
  if rubrics is not None:
    return all_hold(answer, rubrics)
  verdict = judge_answer(answer, [question.answer, *question.aliases], question.text)
  return verdict == Verdict.CORRECT


def base_rewards(answers: Sequence[tuple[Any, str]], judge: Judge | None = None) -> np.ndarray:
  """r_base of many (question, answer) pairs: by the matcher, or by a judge in its place.

  A rubric that no program decides is the judge's in either case; it is asked only where the other
  rubrics hold. One that fails decides, whatever could not be judged beside it.

  Returns:
    float32 [n]: 1, 0, or NaN where no verdict could be had (FAULTS J1).

  Raises:
    ValueError: a rubric needs a judge and there is none.
  """
  if judge is None:
    return np.array([base_reward(question, answer) for question, answer in answers], np.float32)
  # One process asks: two would be told different verdicts.
  return np.array(from_first(lambda: _judge(answers, judge).tolist()), np.float32)


def _judge(answers: Sequence[tuple[Any, str]], judge: Judge) -> np.ndarray:
  rewards = np.zeros(len(answers), np.float32)
  matched, asked = [], []
  for i, (question, answer) in enumerate(answers):
    if not answer.strip():
      continue
    if getattr(question, "rubrics", None) is None:
      matched.append((i, (question.text, [question.answer, *question.aliases], answer)))
    elif all_hold(answer, programmatic(question.rubrics)):
      rewards[i] = 1.0
      asked += [(i, (question.text, text, answer)) for text in judged(question.rubrics)]
  verdicts = judge.judge_answers([item for _, item in matched])
  for (i, _), verdict in zip(matched, verdicts, strict=True):
    rewards[i] = np.nan if verdict is None else verdict == Verdict.CORRECT
  for (i, _), met in zip(asked, judge.judge_rubrics([item for _, item in asked]), strict=True):
    if met is None and rewards[i] != 0:
      rewards[i] = np.nan
    elif met is False:
      rewards[i] = 0.0
  return rewards


def pair_references(references: Sequence[Sequence[Any]], group_size: int) -> list[list[Any]]:
  """Valid references of each question, paired cyclically with its G rollouts; None: it has none."""
  paired = []
  for group in references:
    usable = [e for e in group if e.valid]
    paired.append([usable[g % len(usable)] if usable else None for g in range(group_size)])
  return paired


def total_reward(
  groups: Sequence[Sequence[Any]],
  references: Sequence[Sequence[Any]],
  scorer: PreferenceScorer,
  anchor_keys: jax.Array,
  config: Mapping,
  judge: Judge | None = None,
) -> dict[str, np.ndarray]:
  """Rewards of a step's rollouts, by part.

  Args:
    groups: [Q][G] finished episodes.
    references: [Q][≥ 1] the reference policy's episodes for the same questions.
    anchor_keys: one key a question, from (seed, step, question).
    config: the `reward` section: aggregation, tool_penalty, length_penalty, alpha_win, alpha_lose,
      beta_lose, lambda_tool, lambda_len, per_call, per_token.
    judge: an LLM in the matcher's place.

  Returns:
    [Q, G] arrays "reward", "base", "preference", "tool_penalty", "length_penalty", "penalty"
    (float32), "valid" (bool), "invalid_reason" (text, empty where valid), and the counts the
    penalties read. What could not be had is NaN, never 0: the reward and the preference of a
    rollout that is invalid by itself, or has no valid reference, no verdict (a NaN) or no score.

  Raises:
    ValueError: an unknown aggregation or penalty mode.
  """
  array = lambda f, dtype: np.array([[f(e) for e in group] for group in groups], dtype)
  usable = [e for group in groups for e in group if judge is None or e.valid]
  rewards = iter(base_rewards([(e.question, e.final_answer) for e in usable], judge))
  base = array(lambda e: next(rewards) if judge is None or e.valid else np.nan, np.float32)
  calls = array(lambda e: e.tool_calls, np.int32)
  failures = array(lambda e: e.tool_failures, np.int32)
  length = array(lambda e: e.final_length, np.float32)
  paired = pair_references(references, len(groups[0]))
  # −1 says "no valid reference" to length_penalty.
  ref_length = np.array(
    [[r.final_length if r else -1.0 for r in row] for row in paired], np.float32
  )
  reason = array(lambda e: "" if e.valid else e.invalid_reason, object)
  missing = lambda what, where: np.where(where & (reason == ""), what, reason)
  reason = missing("no valid reference", ref_length < 0)
  reason = missing("no verdict", np.isnan(base))
  preference = np.full(base.shape, np.nan, np.float32)
  wanted = np.argwhere(reason == "").tolist()
  scores = scorer.score(
    [
      (groups[q][g].question.text, groups[q][g].final_answer, paired[q][g].final_answer)
      for q, g in wanted
    ]
  )
  for (q, g), s in zip(wanted, scores, strict=True):
    preference[q, g] = s
  reason = missing("no preference score", np.isnan(preference))
  valid = reason == ""

  winner = base > 0.5
  tool = _tool_penalty(calls, failures, winner, valid, anchor_keys, config)
  long = _length_penalty(length, ref_length, winner, preference, valid, config)
  penalty = combine.combined_penalty(tool, long, config["lambda_tool"], config["lambda_len"])
  if config["aggregation"] == "gated":
    reward = combine.gated_reward(base, preference, penalty)
  elif config["aggregation"] == "linear":
    reward = combine.linear_reward(base, preference, penalty)
  else:
    raise ValueError(
      f'reward.aggregation must be "gated" or "linear", got "{config["aggregation"]}"'
    )
  parts = {
    "reward": reward, "base": base, "preference": preference, "tool_penalty": tool,
    "length_penalty": long, "penalty": penalty, "valid": valid, "invalid_reason": reason,
    "tool_calls": calls, "tool_failures": failures, "length": length, "ref_length": ref_length,
  }
  return {name: np.asarray(value) for name, value in parts.items()}


def require_valid(reasons: Sequence[str], limit: float, what: str) -> None:
  """Stops a run whose rollouts mostly failed: what is left would be a biased sample.

  Args:
    reasons: one a rollout, why it is invalid; empty for a valid one.
    limit: share of invalid rollouts that is still borne.
    what: which rollouts, for the message.

  Raises:
    ValueError: there are more, with the most frequent reasons.
  """
  counts = collections.Counter(reason for reason in reasons if reason)
  if counts.total() > limit * len(reasons):
    said = ", ".join(f"{n} × {reason}" for reason, n in counts.most_common(3))
    raise ValueError(
      f"{what}: {counts.total()} of {len(reasons)} rollouts are invalid ({said}), above the limit "
      f"of {limit:.0%}; mend the service and give the same command again"
    )


def _tool_penalty(calls, failures, winner, valid, keys, config):
  mode = config["tool_penalty"]
  if mode == "anchored":
    low, high = penalties.tool_anchor_range(calls, failures, winner, valid)
    anchor = penalties.sample_anchor(keys, low, high)
    return penalties.tool_penalty(
      calls, failures, winner, valid, anchor, alpha_win=config["alpha_win"],
      alpha_lose=config["alpha_lose"], beta_lose=config["beta_lose"],
    )
  if mode == "unconditional":
    return penalties.unconditional_tool_penalty(
      calls, failures, valid, per_call=config["per_call"]
    )
  return _off("tool_penalty", mode, valid)


def _length_penalty(length, ref_length, winner, preference, valid, config):
  mode = config["length_penalty"]
  if mode == "anchored":
    longest = jnp.max(jnp.where(ref_length >= 0, ref_length, -1.0), axis=1)
    cap = jnp.where(longest >= 0, longest, jnp.inf).astype(jnp.float32)
    return penalties.length_penalty(length, ref_length, winner, preference, valid, cap=cap)
  if mode == "unconditional":
    return penalties.unconditional_length_penalty(length, valid, per_token=config["per_token"])
  return _off("length_penalty", mode, valid)


def _off(name, mode, valid):
  if mode != "off":
    raise ValueError(
      f'reward.{name} must be "anchored", "unconditional" or "off", got "{mode}"'
    )
  return penalties.no_penalty(valid)
