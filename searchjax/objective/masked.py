"""Sums and means that a masked-out number, NaN and infinity included, cannot touch.  PURE.

  masked_sum(x, m)  = sum_{j : m_j} x_j
  masked_mean(x, m) = masked_sum(x, m) / |{j : m_j}|,      0 where no j is left    (SPEC 1.2, 2, 3)

Multiplying by a mask is not masking: 0 * NaN is NaN, in the value and in the gradient. Everything
here selects first and computes afterwards ("double where"), so that a gradient through an excluded
entry is exactly 0.

Letters  any shapes; `axis` as in NumPy.
Source   FAULTS M8, L2; JAX FAQ on gradients through `where`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Real

Axis = int | tuple[int, ...] | None
AnyArray = Array | np.ndarray
Scalar = float | int | Real[AnyArray, ""]            # a plain number, or a traced one


def masked_fill(
    x: Real[AnyArray, "*shape"], mask: Bool[AnyArray, "*shape"], value: float = 0.0
) -> Float[Array, "*shape"]:
  """Replaces every excluded entry by `value`, in float32.

  Args:
    x: any numbers; excluded ones may be NaN or infinite.
    mask: True where the entry counts.
    value: what an excluded entry becomes; it has no gradient.

  Returns:
    float32, same shape.
  """
  x = jnp.asarray(x).astype(jnp.float32)
  return jnp.where(jnp.asarray(mask), x, jnp.float32(value))


def masked_count(mask: Bool[AnyArray, "..."], axis: Axis = None) -> Int[Array, "..."]:
  """Counts the entries that are kept, as int32."""
  return jnp.sum(jnp.asarray(mask).astype(jnp.int32), axis=axis)


def masked_sum(
    x: Real[AnyArray, "*shape"], mask: Bool[AnyArray, "*shape"], axis: Axis = None
) -> Float[Array, "..."]:
  """Sums the kept entries; a sum over none is 0."""
  return jnp.sum(masked_fill(x, mask), axis=axis)


def masked_mean(
    x: Real[AnyArray, "*shape"], mask: Bool[AnyArray, "*shape"], axis: Axis = None
) -> Float[Array, "..."]:
  """Averages the kept entries; a mean over none is 0, with gradient 0 (FAULTS M8)."""
  count = jnp.maximum(masked_count(mask, axis), 1).astype(jnp.float32)
  return masked_sum(x, mask, axis) / count


def masked_max(
    x: Real[AnyArray, "*shape"], mask: Bool[AnyArray, "*shape"], axis: Axis = None
) -> Float[Array, "..."]:
  """Largest kept entry; -inf where there is none."""
  return jnp.max(masked_fill(x, mask, -jnp.inf), axis=axis)


def masked_min(
    x: Real[AnyArray, "*shape"], mask: Bool[AnyArray, "*shape"], axis: Axis = None
) -> Float[Array, "..."]:
  """Smallest kept entry; +inf where there is none."""
  return jnp.min(masked_fill(x, mask, jnp.inf), axis=axis)


def clip_log_ratio(
    log_ratio: Float[Array, "*shape"], bound: float = 20.0
) -> Float[Array, "*shape"]:
  """Limits a log-ratio before it is exponentiated: exp(100) * 0 is NaN (FAULTS X6).

  Args:
    log_ratio: natural logarithm of a ratio of probabilities.
    bound: largest magnitude let through. Up to and at the bound value and gradient are exact;
      beyond it the value is the bound and the gradient 0. exp(20) = 4.9e8 leaves room for sums in
      float32.

  Returns:
    the clipped log-ratio, same dtype.
  """
  high, low = jnp.asarray(bound, log_ratio.dtype), jnp.asarray(-bound, log_ratio.dtype)
  return jnp.where(log_ratio > high, high, jnp.where(log_ratio < low, low, log_ratio))


def one_minus_exp(excess: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
  """Saturating penalty 1 - exp(-max(0, x)): 0 up to x = 0, then rising to 1; exact for tiny x."""
  return -jnp.expm1(-jax.nn.relu(excess))
