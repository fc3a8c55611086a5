"""Penalties on tool calls and on length, anchored on what the group's winners needed.  PURE.

Winners W = {i : r_base = 1}. c_i tool calls, e_i executions that failed through no fault of the
policy, c~_i = c_i - e_i.

Tool calls (SPEC 2.2), one anchor b a group:

  b        ~  Unif{ min_W c~, ..., ceil(mean_W c~) }
  D_i      =  max(0, c~_i - b)
  p_i      =  1 - exp(-D_i)
  pen_tool =  alpha_win  p_i                    i in W
           =  alpha_lose p_i + beta_lose        i not in W
  no winner: no anchor, p_i = 0, pen_tool = beta_lose for all

Length (SPEC 2.3), L_i the candidate's tokens, L_i^ref its reference's, s_i the preference for the
candidate:

  W^       =  { i in W : s_i >= 1/2 }
  b_win    =  mean_{j in W^} L_j^ref,      b_lose = mean_{j not in W^} L_j^ref
  pen_len  =  1                                         L_i > cap
           =  1 - exp(-max(0, L_i / b_win  - 1))   i in W^:  a good answer must not be long
           =  1 - exp(-max(0, b_lose / L_i - 1))   else:     a poor one must not be cut short
  no valid reference: pen_len = 0, and no cap

A rollout that is not valid enters no minimum, mean or set and is charged 0, also when what it
holds is NaN. Each has an `unconditional` counterpart, linear and blind to the group, and
`no_penalty`, for ablations.

Letters  Q questions, G rollouts per question.
Source   the article, section on rewards; rulings in SPEC 2.2 and 2.3.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Real, UInt32

from searchjax.objective.masked import AnyArray, Scalar
from searchjax.objective.masked import masked_count, masked_fill, masked_mean, one_minus_exp


def charged_calls(
    tool_calls: Real[AnyArray, "Q G"],
    tool_failures: Real[AnyArray, "Q G"],
    valid: Bool[AnyArray, "Q G"],
) -> Int[Array, "Q G"]:
  """c~ = c - e: the calls a rollout answers for.

  Args:
    tool_calls: c, every query counted, malformed and refused ones too.
    tool_failures: e, executions that failed through no fault of the policy; 0 <= e <= c.
    valid: False where the rollout does not count.

  Returns:
    int32 [Q, G]; 0 where not valid.
  """
  valid = jnp.asarray(valid)
  count = lambda x: jnp.where(valid, jnp.asarray(x), 0).astype(jnp.int32)
  return count(tool_calls) - count(tool_failures)


def tool_anchor_range(
    tool_calls: Real[AnyArray, "Q G"],
    tool_failures: Real[AnyArray, "Q G"],
    winner: Bool[AnyArray, "Q G"],
    valid: Bool[AnyArray, "Q G"],
) -> tuple[Int[Array, "Q"], Int[Array, "Q"]]:
  """The closed integer interval [ min_W c~, ceil(mean_W c~) ] from which a group's anchor is drawn.

  Args:
    tool_calls, tool_failures, valid: as in `charged_calls`.
    winner: True where the answer is right (r_base = 1).

  Returns:
    (low, high), int32 [Q] each, low <= high. The ceiling is taken in integers: a float mean of 3,
    3, 3 may come out above 3 and round to 4. A group without a valid winner gives (0, 0).
  """
  calls = charged_calls(tool_calls, tool_failures, valid)
  won = jnp.asarray(winner).astype(bool) & jnp.asarray(valid)
  count = masked_count(won, 1)
  total = jnp.sum(jnp.where(won, calls, 0), axis=1)
  high = -(-total // jnp.maximum(count, 1))
  low = jnp.min(jnp.where(won, calls, jnp.iinfo(jnp.int32).max), axis=1)
  return jnp.where(count > 0, low, 0), jnp.where(count > 0, high, 0)


def sample_anchor(
    key: Key[Array, "*keys"] | UInt32[AnyArray, "*keys"],
    low: Int[AnyArray, "*Q"],
    high: Int[AnyArray, "*Q"],
) -> Int[Array, "*Q"]:
  """b ~ Unif{low, ..., high}, both ends included, one draw a group.

  Args:
    key: one JAX key for all groups, or an array of keys, one a group. The caller folds (seed,
      step, question id) into it, so that a resumed run draws the same.
    low, high: int32, from `tool_anchor_range`.

  Returns:
    int32, shaped like `low`.
  """
  low, high = jnp.asarray(low).astype(jnp.int32), jnp.asarray(high).astype(jnp.int32)
  typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
  batched = key.ndim > (0 if typed else 1)
  draw = lambda k, a, b: jax.random.randint(k, a.shape, a, b + 1, jnp.int32)
  return (jax.vmap(draw) if batched else draw)(key, low, high)


def tool_penalty(
    tool_calls: Real[AnyArray, "Q G"],
    tool_failures: Real[AnyArray, "Q G"],
    winner: Bool[AnyArray, "Q G"],
    valid: Bool[AnyArray, "Q G"],
    anchor: Int[AnyArray, "Q"],
    *,
    alpha_win: Scalar,
    alpha_lose: Scalar,
    beta_lose: Scalar,
) -> Float[Array, "Q G"]:
  """pen_tool: charges the calls a rollout made beyond the group's anchor.

  Args:
    tool_calls, tool_failures, winner, valid: as in `tool_anchor_range`.
    anchor: b, from `sample_anchor`; a row without winners ignores it.
    alpha_win, alpha_lose: weight of the excess for winners and losers, >= 0.
    beta_lose: what a loser pays in any case, >= 0.

  Returns:
    float32 [Q, G]: winners in [0, alpha_win], losers in [beta_lose, alpha_lose + beta_lose], not
    valid 0. A winner at or below the anchor pays nothing, however much its siblings differ (FAULTS
    A9).
  """
  valid = jnp.asarray(valid)
  won = jnp.asarray(winner).astype(bool) & valid
  calls = charged_calls(tool_calls, tool_failures, valid)
  excess = (calls - jnp.asarray(anchor).astype(jnp.int32)[:, None]).astype(jnp.float32)
  p = jnp.where(jnp.any(won, 1, keepdims=True), one_minus_exp(excess), 0.0)
  weights = (alpha_win, alpha_lose, beta_lose)
  alpha_win, alpha_lose, beta_lose = (jnp.asarray(x, jnp.float32) for x in weights)
  return jnp.where(valid, jnp.where(won, alpha_win * p, alpha_lose * p + beta_lose), 0.0)


def length_penalty(
    length: Real[AnyArray, "Q G"],
    ref_length: Real[AnyArray, "Q G"],
    winner: Bool[AnyArray, "Q G"],
    preference: Real[AnyArray, "Q G"],
    valid: Bool[AnyArray, "Q G"],
    *,
    cap: Real[AnyArray, "Q"],
) -> Float[Array, "Q G"]:
  """pen_len: good answers longer than their references, and poor ones shorter than theirs, pay.

  Args:
    length: L, tokens of the candidate, >= 0.
    ref_length: L^ref, tokens of its reference. Counts as at least 1; a negative number or NaN says
      that there is no valid reference here, and leaves the means.
    winner: True where the answer is right (r_base = 1).
    preference: s in [0, 1], the preference for the candidate over its reference.
    valid: False where the rollout does not count.
    cap: float32 [Q], in tokens: a candidate above it pays 1. The largest valid reference of the
      group by default, or an absolute limit; inf is off.

  Returns:
    float32 [Q, G] in [0, 1]. A loser of length 0 pays 1. Where a set has no reference to average,
    its members pay only for the cap; a group without any valid reference pays nothing, cap
    included. Not valid: 0.
  """
  valid = jnp.asarray(valid)
  # Where a number is missing, or would divide by 0, a 1 stands in: gradients stay finite too.
  own = masked_fill(length, valid, 1.0)
  reference = jnp.asarray(ref_length).astype(jnp.float32)
  has_reference = valid & (reference >= 0)
  reference = jnp.maximum(masked_fill(reference, has_reference, 1.0), 1.0)
  good = jnp.asarray(winner).astype(bool) & valid & (masked_fill(preference, valid) >= 0.5)

  def mean_over(members: Bool[Array, "Q G"]) -> tuple[Float[Array, "Q 1"], Bool[Array, "Q 1"]]:
    known = jnp.any(members & has_reference, 1)
    mean = masked_mean(reference, members & has_reference, 1)
    return jnp.where(known, mean, 1.0)[:, None], known[:, None]

  b_win, any_win = mean_over(good)
  b_lose, any_lose = mean_over(~good)
  too_long = jnp.where(any_win, one_minus_exp(own / b_win - 1), 0.0)
  empty = own <= 0
  too_short = jnp.where(any_lose, one_minus_exp(b_lose / jnp.where(empty, 1.0, own) - 1), 0.0)
  penalty = jnp.where(good, too_long, jnp.where(empty, 1.0, too_short))
  penalty = jnp.where(own > jnp.asarray(cap).astype(jnp.float32)[:, None], 1.0, penalty)
  return jnp.where(valid & (any_win | any_lose), penalty, 0.0)


def unconditional_tool_penalty(
    tool_calls: Real[AnyArray, "Q G"],
    tool_failures: Real[AnyArray, "Q G"],
    valid: Bool[AnyArray, "Q G"],
    *,
    per_call: Scalar = 1.0,
) -> Float[Array, "Q G"]:
  """Ablation: per_call * c~, right or wrong, needed or not. It teaches not to search.

  Args:
    tool_calls, tool_failures, valid: as in `charged_calls`.
    per_call: price of one call, in reward units.

  Returns:
    float32 [Q, G], unbounded; 0 where not valid.
  """
  calls = charged_calls(tool_calls, tool_failures, valid).astype(jnp.float32)
  return calls * jnp.asarray(per_call, jnp.float32)


def unconditional_length_penalty(
    length: Real[AnyArray, "Q G"],
    valid: Bool[AnyArray, "Q G"],
    *,
    per_token: Scalar,
) -> Float[Array, "Q G"]:
  """Ablation: per_token * L, whatever the references and the verdict.

  Args:
    length: L, tokens of the candidate.
    valid: False where the rollout does not count.
    per_token: price of one token, in reward units.

  Returns:
    float32 [Q, G], unbounded; 0 where not valid.
  """
  return masked_fill(length, valid) * jnp.asarray(per_token, jnp.float32)


def no_penalty(valid: Bool[AnyArray, "Q G"]) -> Float[Array, "Q G"]:
  """Ablation `off`: zeros, float32 [Q, G]."""
  return jnp.zeros(jnp.asarray(valid).shape, jnp.float32)
