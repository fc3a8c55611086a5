"""From base reward, preference and penalties to one number a rollout.  PURE.

  pen_eff = lambda_tool pen_tool + lambda_len pen_len                                  (SPEC 2.4)
  R       = r_base * s - pen_eff                  gated                                (SPEC 2)
  R       = w_base r_base + w_s s - pen_eff       linear, the ablation

Gated, preference earns nothing without a right answer; summed, it can pay for a wrong one.

Letters  Q questions, G rollouts per question.
Source   the article, section on rewards.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from searchjax.objective.masked import AnyArray, Scalar


def _float32(*values: Scalar | Real[AnyArray, "Q G"]) -> list[Array]:
  return [jnp.asarray(value).astype(jnp.float32) for value in values]


def combined_penalty(
    tool: Real[AnyArray, "Q G"],
    length: Real[AnyArray, "Q G"],
    lambda_tool: Scalar,
    lambda_len: Scalar,
) -> Float[Array, "Q G"]:
  """pen_eff: the two penalties, weighted.

  Args:
    tool, length: pen_tool and pen_len.
    lambda_tool, lambda_len: weights, >= 0; 0 switches a penalty off.

  Returns:
    float32 [Q, G].
  """
  tool, length, lambda_tool, lambda_len = _float32(tool, length, lambda_tool, lambda_len)
  return lambda_tool * tool + lambda_len * length


def gated_reward(
    base: Real[AnyArray, "Q G"],
    preference: Real[AnyArray, "Q G"],
    penalty: Real[AnyArray, "Q G"],
) -> Float[Array, "Q G"]:
  """R = r_base * s - pen_eff.

  Args:
    base: r_base in {0, 1}.
    preference: s in [0, 1].
    penalty: pen_eff, from `combined_penalty`.

  Returns:
    float32 [Q, G]. A part that could not be had is NaN and makes R NaN, which `group_advantage`
    takes for an
    invalid rollout: a missing score is never a zero reward.
  """
  base, preference, penalty = _float32(base, preference, penalty)
  return base * preference - penalty


def linear_reward(
    base: Real[AnyArray, "Q G"],
    preference: Real[AnyArray, "Q G"],
    penalty: Real[AnyArray, "Q G"],
    weights: tuple[Scalar, Scalar] = (1.0, 1.0),
) -> Float[Array, "Q G"]:
  """R = w_base r_base + w_s s - pen_eff: the ungated sum, for the ablation.

  Args:
    base, preference, penalty: as in `gated_reward`.
    weights: (w_base, w_s).

  Returns:
    float32 [Q, G].
  """
  base, preference, penalty = _float32(base, preference, penalty)
  return weights[0] * base + weights[1] * preference - penalty
