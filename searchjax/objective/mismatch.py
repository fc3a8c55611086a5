"""How far the training forward is from the engine that sampled: ratios and KL estimates.  PURE.

  rho_t  =  pi_train(o_t) / mu_infer(o_t)              token ratio              (SPEC 1.2)
  r_i    =  exp( 1/|o_i| sum_t log rho_{i,t} )         sequence ratio, GSPO
  k1     =  mean_t( -log rho_t )
  k3     =  mean_t( rho_t - 1 - log rho_t )

The tokens were drawn from mu, so both means estimate KL(mu || pi): k1 without bias and of either
sign, k3 never negative. Log-ratios are clipped to +-20 before exp; inside that range values are
exact.

Letters  B rows, T tokens.
Source   GSPO, arXiv:2507.18071; k1, k3: J. Schulman, "Approximating KL divergence" (2020).
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from searchjax.objective.masked import AnyArray, clip_log_ratio
from searchjax.objective.masked import masked_fill, masked_max, masked_mean


def log_ratio(
    logp_train: Float[AnyArray, "B T"],
    logp_infer: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
) -> Float[Array, "B T"]:
  """log pi_train - log mu_infer on the tokens the policy generated, 0 elsewhere, unclipped.

  Args:
    logp_train: log-probabilities under the training forward, natural logarithm, at the sampling
      temperature (FAULTS X1: a temperature used on one side only is a false ratio).
    logp_infer: those the engine recorded when it sampled.
    mask: True on generated tokens. What stands elsewhere, NaN included, has no effect and no
      gradient.

  Returns:
    float32 [B, T].
  """
  return masked_fill(logp_train, mask) - masked_fill(logp_infer, mask)


def sequence_ratio(
    logp_train: Float[AnyArray, "B T"],
    logp_infer: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
) -> Float[Array, "B"]:
  """Length-normalised ratio of a whole response: the geometric mean of its token ratios.

  Args:
    logp_train, logp_infer, mask: as in `log_ratio`. The length is the number of True entries,
      never T.

  Returns:
    float32 [B]; a row without generated tokens gives 1.
  """
  mask = jnp.asarray(mask)
  return jnp.exp(clip_log_ratio(masked_mean(log_ratio(logp_train, logp_infer, mask), mask, 1)))


def _k3(log_rho: Float[Array, "B T"]) -> Float[Array, "B T"]:
  # For small x, exp(x) - 1 - x in float32 is all rounding; its series is not, and the mismatch of
  # a healthy run lives there.
  small = jnp.abs(log_rho) < 0.1
  x = jnp.where(small, log_rho, 0.0)
  series = 0.5 * x * x * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6))))
  y = jnp.where(small, 0.0, log_rho)
  return jnp.where(small, series, jnp.expm1(clip_log_ratio(y)) - y)


def kl_estimates(
    logp_train: Float[AnyArray, "B T"],
    logp_infer: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
) -> dict[str, Float[Array, ""]]:
  """Train-inference KL, averaged over all generated tokens of the batch.

  Args:
    logp_train, logp_infer, mask: as in `log_ratio`; leave invalid rows out of `mask`.

  Returns:
    {"k1", "k3"}: float32 scalars in nats; both 0 for a batch without generated tokens.
  """
  mask = jnp.asarray(mask)
  log_rho = log_ratio(logp_train, logp_infer, mask)
  return {"k1": masked_mean(-log_rho, mask), "k3": masked_mean(_k3(log_rho), mask)}


def largest_ratio(
    logp_train: Float[AnyArray, "B T"],
    logp_infer: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
) -> Float[Array, ""]:
  """Largest max(rho, 1/rho) of a generated token; 1 when there is none.

  Args:
    logp_train, logp_infer, mask: as in `log_ratio`.

  Returns:
    float32 scalar, at least 1.
  """
  mask = jnp.asarray(mask)
  distance = jnp.abs(log_ratio(logp_train, logp_infer, mask))
  return jnp.exp(clip_log_ratio(jnp.maximum(masked_max(distance, mask), 0.0)))
