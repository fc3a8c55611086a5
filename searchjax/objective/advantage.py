"""Group-relative advantages, and what kind of group a reward came from.  PURE.

  A[q, g] = (R[q, g] - mean_g R[q, :]) / (std_g R[q, :] + eps)          (SPEC 1.2)

mean and std run over the valid rollouts of the group alone; std is the population one (divide by
n, not n - 1).

Letters  Q questions, G rollouts per question.
Source   GRPO, arXiv:2402.03300 sec. 4.1; without the division, arXiv:2503.20783.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Real

from searchjax.objective.masked import AnyArray, Scalar, masked_count, masked_fill
from searchjax.objective.masked import masked_max, masked_mean, masked_min


def group_advantage(
    reward: Real[AnyArray, "Q G"],
    valid: Bool[AnyArray, "Q G"],
    *,
    divide_by_std: bool,
    eps: Scalar,
) -> Float[Array, "Q G"]:
  """Centres every rollout's reward on the mean of its own group.

  Args:
    reward: one scalar per rollout; dimensionless, any range. One that is not finite was not
      scored, and its rollout is treated as invalid (FAULTS A6).
    valid: False where the rollout must not count (search outage, unscored). It then enters no
      statistic and receives advantage 0.
    divide_by_std: True divides by the population std; False only centres.
    eps: added to the standard deviation, in reward units.

  Returns:
    float32 advantages. A group with fewer than two valid rollouts has no baseline, and one whose
    valid rewards are all equal no signal: their rows are exactly 0, not rounding noise divided
    by eps.
  """
  reward = jnp.asarray(reward).astype(jnp.float32)
  usable = jnp.asarray(valid) & jnp.isfinite(reward)
  # Compared exactly: the std of equal rewards is rounding noise in float32, not 0.
  varied = masked_max(reward, usable, 1) > masked_min(reward, usable, 1)
  usable = usable & varied[:, None]
  centred = masked_fill(reward, usable)
  for _ in range(2):                   # the second pass removes the first mean's rounding error
    centred = masked_fill(centred - masked_mean(centred, usable, 1)[:, None], usable)
  if not divide_by_std:
    return centred
  variance = masked_mean(centred * centred, usable, 1)
  std = jnp.sqrt(jnp.where(variance > 0, variance, 1.0))           # sqrt has no gradient at 0
  return centred / (std + jnp.asarray(eps, jnp.float32))[:, None]


def group_composition(
    base: Real[AnyArray, "Q G"],
    reward: Real[AnyArray, "Q G"],
    valid: Bool[AnyArray, "Q G"],
) -> dict[str, Bool[Array, "Q"]]:
  """Says of every group which kind it is; the means over Q are metrics of every step.

  Args:
    base: r_base in {0, 1}: 1 where the answer is right.
    reward: the whole reward R, as the advantage sees it.
    valid: False where the rollout does not count.

  Returns:
    flags per group, bool [Q]:
      all_wrong, all_right, mixed: by the valid rollouts' base reward; a group without any is none
        of the three.
      inverted: mixed, and some wrong answer is rewarded above some right one.
      singleton: fewer than two valid rollouts, so no baseline (FAULTS A2).
      equal: two or more valid rollouts, all with the same reward, so no gradient (FAULTS A5).
  """
  reward = jnp.asarray(reward).astype(jnp.float32)
  usable = jnp.asarray(valid) & jnp.isfinite(reward)
  right = usable & (masked_fill(base, usable) > 0.5)
  wrong = usable & ~right
  count = masked_count(usable, 1)
  any_right, any_wrong = jnp.any(right, 1), jnp.any(wrong, 1)
  mixed = any_right & any_wrong
  return {
      "all_wrong": any_wrong & ~any_right,
      "all_right": any_right & ~any_wrong,
      "mixed": mixed,
      "inverted": mixed & (masked_max(reward, wrong, 1) > masked_min(reward, right, 1)),
      "singleton": count < 2,
      "equal": (count >= 2) & (masked_max(reward, usable, 1) == masked_min(reward, usable, 1)),
  }
