"""The worked cases of tests/vectors: every equation against an independent float64 computation.

All cases go through one call, padded to one shape with invalid rollouts full of NaN: so each of
them also shows that an invalid rollout changes nothing.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.objective.advantage import group_advantage
from searchjax.objective.bradley_terry import preference_probability, symmetric_loss
from searchjax.objective.mismatch import kl_estimates, sequence_ratio
from searchjax.objective.policy import grpo_objective
from searchjax.reward.combine import combined_penalty, gated_reward
from searchjax.reward.penalties import length_penalty, tool_anchor_range, tool_penalty

length_penalty, tool_penalty = jax.jit(length_penalty), jax.jit(tool_penalty)
group_advantage = jax.jit(group_advantage, static_argnames="divide_by_std")
VECTORS = pathlib.Path(__file__).parent / "vectors"
REWARDS, GRPO, BRADLEY_TERRY = (json.loads((VECTORS / f"{name}.json").read_text())
                                for name in ("rewards", "grpo_loss", "bradley_terry"))
G = 1 + max(len(case["input"]["r_base"]) for case in REWARDS)


def close(got, expected, case=None):
  np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=1e-6, atol=1e-6,
                             err_msg=f"case {case}")


def group_rows(part, name, dtype, filler):
  rows = np.full((len(REWARDS), G), filler, dtype)
  for row, case in zip(rows, REWARDS):
    row[:len(case[part][name])] = case[part][name]
  return rows


def check_group(got, name):
  for number, case in enumerate(REWARDS):
    size = len(case["expected"][name])
    close(got[number, :size], case["expected"][name], number)
    assert np.all(np.asarray(got[number, size:]) == 0), f"case {number}: invalid, yet not 0"


@pytest.fixture(scope="module")
def groups():
  base = group_rows("input", "r_base", np.float32, np.nan)
  return dict(
      base=base, valid=np.isfinite(base), winner=base == 1,
      calls=group_rows("input", "tool_calls", np.int32, -99),
      failures=group_rows("input", "tool_failures", np.int32, 99),
      preference=group_rows("input", "preference", np.float32, np.nan),
      length=group_rows("input", "length", np.float32, np.nan),
      ref_length=group_rows("input", "ref_length", np.float32, np.nan),
      cap=np.asarray([case["input"]["length_cap"] for case in REWARDS], np.float32))


def test_tool_penalty(groups):
  counts = [groups[k] for k in ("calls", "failures", "winner", "valid")]
  low, high = tool_anchor_range(*counts)
  drawn = [case["expected"]["anchor_range"] or [0, 0] for case in REWARDS]
  assert np.stack([low, high], 1).tolist() == drawn
  # A group without winners must ignore the anchor, so it gets an absurd one.
  anchors = [case["input"]["anchor"] for case in REWARDS]
  anchor = np.asarray([-100 if a is None else a for a in anchors], np.int32)
  got = np.zeros((len(REWARDS), G), np.float32)
  for weights in {tuple(case["input"][k] for k in ("alpha_win", "alpha_lose", "beta_lose"))
                  for case in REWARDS}:
    names = dict(zip(("alpha_win", "alpha_lose", "beta_lose"), weights))
    mine = np.asarray([all(case["input"][k] == v for k, v in names.items()) for case in REWARDS])
    got[mine] = np.asarray(tool_penalty(*counts, anchor, **names))[mine]
  check_group(got, "pen_tool")


def test_length_penalty(groups):
  names = ("length", "ref_length", "winner", "preference", "valid")
  check_group(length_penalty(*[groups[k] for k in names], cap=groups["cap"]), "pen_len")


def test_reward_and_advantage(groups):
  weight = lambda name: np.asarray([case["input"][name] for case in REWARDS], np.float32)[:, None]
  tool, length = (group_rows("expected", k, np.float32, 0) for k in ("pen_tool", "pen_len"))
  penalty = jnp.concatenate([
      combined_penalty(tool[q:q + 1], length[q:q + 1], weight("lambda_tool")[q, 0].item(),
                       weight("lambda_len")[q, 0].item()) for q in range(len(REWARDS))])
  check_group(penalty, "pen_eff")
  reward = np.asarray(gated_reward(groups["base"], groups["preference"], penalty))
  check_group(np.where(groups["valid"], reward, 0), "reward")
  # The invalid rollouts' rewards are NaN here, as they would be in a run.
  check_group(group_advantage(reward, groups["valid"], divide_by_std=False, eps=1e-6),
              "advantage_mean_centred")
  check_group(group_advantage(reward, groups["valid"], divide_by_std=True, eps=1e-6),
              "advantage_std_normalised")


def test_grpo_loss():
  B = 1 + max(len(case["input"]["advantage"]) for case in GRPO)
  T = 1 + max(len(case["input"]["mask"][0]) for case in GRPO)

  def pad(rows, shape):
    padded = np.full(shape, np.nan, np.float32)
    padded[tuple(slice(size) for size in np.shape(rows))] = rows
    return padded

  logp_train, logp_infer, mask = (
      np.stack([pad(case["input"][name], (B, T)) for case in GRPO])
      for name in ("logp_train", "logp_infer", "mask"))
  advantage = np.stack([pad(case["input"]["advantage"], (B,)) for case in GRPO])
  valid = np.isfinite(advantage)
  mask = np.where(valid[:, :, None], mask == 1, True)             # an invalid row marks every token
  objective, gradient = jax.jit(jax.vmap(jax.value_and_grad(grpo_objective)))(
      logp_train, logp_infer, mask, advantage, valid)
  counted = mask & valid[:, :, None]
  ratio = jax.vmap(sequence_ratio)(logp_train, logp_infer, counted)
  kl = jax.vmap(kl_estimates)(logp_train, logp_infer, counted)
  for number, case in enumerate(GRPO):
    expected, size = case["expected"], len(case["input"]["advantage"])
    close(objective[number], expected["J"], number)
    exact = np.zeros((B, T))
    rows = np.asarray(expected["dJ_dlogp_train"])
    exact[:rows.shape[0], :rows.shape[1]] = rows
    close(gradient[number], exact, number)
    close(ratio[number, :size], expected["gspo_ratio"], number)
    assert np.all(np.asarray(ratio[number, size:]) == 1)
    close(kl["k1"][number], expected["kl_k1"], number)
    close(kl["k3"][number], expected["kl_k3"], number)


def test_bradley_terry():
  given, expected = ({k: np.asarray([case[part][k] for case in BRADLEY_TERRY], np.float32)
                      for k in BRADLEY_TERRY[0][part]} for part in ("input", "expected"))
  delta_ab = given["score_a_when_first"] - given["score_b_when_second"]
  delta_ba = given["score_b_when_first"] - given["score_a_when_second"]
  close(symmetric_loss(delta_ab, delta_ba, given["label_a_preferred"]), expected["loss_sym"])
  close(preference_probability(delta_ab, delta_ba), expected["preference"])


def test_shared_vectors_are_these(repository):
  shared = repository.parent / "shared" / "vectors"
  if not shared.is_dir():
    pytest.skip("no ../shared/vectors beside the repository: nothing to compare the copies with")
  for name, cases in (("rewards", REWARDS), ("grpo_loss", GRPO), ("bradley_terry", BRADLEY_TERRY)):
    assert json.loads((shared / f"{name}.json").read_text()) == cases
