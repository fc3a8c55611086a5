"""The on-policy objective with importance correction of the train-inference mismatch.  PURE.

  J = 1/G sum_i 1/|o_i| sum_t r_{i,t} A_i                                         (SPEC 1.2)
  r_{i,t} = pi_train(o_{i,t}) / mu_infer(o_{i,t})

G counts the valid rows, |o_i| the tokens the policy generated in row i. J is maximised; nothing is
clipped away, there is no KL term and no entropy bonus. The weight r by strategy:

  none          r = pi / stop_grad(pi)    value 1, gradient of log pi: mismatch uncorrected
  token_is      r = pi / mu               per token (default); optionally min(r, truncate_at)
  sequence_is   r_i = exp( 1/|o_i| sum_t log(pi/mu) )    one weight for all the row's tokens
  routing_replay  token_is; the caller's forward replays the experts chosen at inference
  bitwise         token_is; pi's value comes from the engine (`with_value`), so r = 1 exactly

Letters  B rows, T tokens.
Source   the article; truncation: TIS, "Your efficient RL framework secretly brings you off-policy
         training" (2025); sequence ratio: GSPO, arXiv:2507.18071.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Real

from searchjax.objective.masked import AnyArray, clip_log_ratio
from searchjax.objective.masked import masked_count, masked_fill, masked_mean
from searchjax.objective.mismatch import log_ratio, sequence_ratio

STRATEGIES = ("none", "token_is", "sequence_is", "routing_replay", "bitwise")


def with_value(
    logp_train: Float[AnyArray, "B T"], value: Float[AnyArray, "B T"]
) -> Float[Array, "B T"]:
  """The given values, exactly, with the gradient of `logp_train`.

  Args:
    logp_train: log pi under the training forward.
    value: log pi by the inference engine's own computation.
  """
  return value + (logp_train - jax.lax.stop_gradient(logp_train))


def token_weights(
    logp_train: Float[AnyArray, "B T"],
    logp_infer: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    strategy: str = "token_is",
    truncate_at: float | int | None = None,
) -> Float[Array, "B T"]:
  """The ratio r_{i,t} that multiplies the advantage at every generated token.

  Args:
    logp_train: log pi of the sampled tokens under the training forward; the weight is
      differentiable in it.
    logp_infer: log mu recorded at sampling time.
    mask: True on generated tokens.
    strategy: one of STRATEGIES; the last two weigh as "token_is" does.
    truncate_at: None, or an upper limit c on the ratio: the weight is min(r, c), and its gradient
      min(r, c) * grad log pi. A truncated token keeps pulling, with a bounded weight; it is not
      dropped.

  Returns:
    float32 [B, T]; 0, with gradient 0, where mask is False.

  Raises:
    ValueError: unknown strategy, or a limit that is not positive.
  """
  if strategy not in STRATEGIES:
    known = ", ".join(STRATEGIES)
    raise ValueError(f"mismatch strategy: expected one of {known}; got {strategy!r}")
  if truncate_at is not None and truncate_at <= 0:
    raise ValueError(f"truncate_at: expected a positive ratio or None; got {truncate_at}")
  mask = jnp.asarray(mask)
  if strategy == "sequence_is":
    ratio = jnp.broadcast_to(sequence_ratio(logp_train, logp_infer, mask)[:, None], mask.shape)
  elif strategy == "none":
    logp = masked_fill(logp_train, mask)
    ratio = jnp.exp(logp - jax.lax.stop_gradient(logp))
  else:
    ratio = jnp.exp(clip_log_ratio(log_ratio(logp_train, logp_infer, mask)))
  if truncate_at is not None:
    ratio = ratio * jax.lax.stop_gradient(jnp.minimum(ratio, truncate_at) / ratio)
  return masked_fill(ratio, mask)


def grpo_objective_sum(
    logp_train: Float[AnyArray, "B T"],
    logp_infer: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    advantage: Real[AnyArray, "B"],
    valid: Bool[AnyArray, "B"],
    *,
    strategy: str = "token_is",
    truncate_at: float | int | None = None,
) -> tuple[Float[Array, ""], Int[Array, ""]]:
  """Numerator and denominator of J for one micro-batch, so that micro-batches add up to the whole
  batch.

  A mean of micro-batch means weighs rows by the size of their micro-batch (FAULTS L3). Sum the
  numerators and the counts, divide once.

  Args:
    as in `grpo_objective`.

  Returns:
    (sum over valid rows of the row's mean over its tokens, float32 scalar; number of valid rows,
    int32 scalar).
  """
  valid = jnp.asarray(valid)
  mask = jnp.asarray(mask) & valid[:, None]
  weight = token_weights(logp_train, logp_infer, mask, strategy, truncate_at)
  per_row = masked_mean(weight, mask, 1) * masked_fill(advantage, valid)
  return jnp.sum(per_row), masked_count(valid)


def grpo_objective(
    logp_train: Float[AnyArray, "B T"],
    logp_infer: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    advantage: Real[AnyArray, "B"],
    valid: Bool[AnyArray, "B"],
    *,
    strategy: str = "token_is",
    truncate_at: float | int | None = None,
) -> Float[Array, ""]:
  """J: the mean over valid rows of advantage times the mean ratio over the row's own tokens.

  Args:
    logp_train: log pi of the sampled tokens; J is differentiable in it.
    logp_infer: log mu recorded at sampling time.
    mask: True only on tokens the policy generated: answers, thinking, tool calls; never prompts,
      tool responses, padding, or tokens the harness appended (FAULTS M3).
    advantage: A_i; a constant of the optimisation.
    valid: False where the rollout must not count. It leaves sum and denominator, whatever its row
      holds.
    strategy, truncate_at: as in `token_weights`.

  Returns:
    float32 scalar. A valid row without generated tokens contributes 0 and counts; no valid row
    gives 0.
  """
  total, count = grpo_objective_sum(
      logp_train, logp_infer, mask, advantage, valid, strategy=strategy, truncate_at=truncate_at)
  return total / jnp.maximum(count, 1).astype(jnp.float32)
