"""Supervised loss: the negative log-likelihood of the tokens the agent wrote.  PURE.

  L = - sum_{t : m_t} log pi(o_t | o_<t)  /  |{t : m_t}|    (SPEC 1.1)

mask[t] marks the *target* token t, predicted from position t - 1. Sum and count are returned
apart, so that micro-batches and processes add up to the whole batch exactly (FAULTS L3); divide
once, at the end.

Letters  B rows, T tokens, V vocabulary.
Source   maximum likelihood; the shift as in FAULTS M2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from searchjax.objective.masked import AnyArray, masked_count, masked_sum


def next_token_logp(
    logits: Float[AnyArray, "B T V"],
    tokens: Int[AnyArray, "B T"],
    *,
    temperature: float | int = 1.0,
) -> Float[Array, "B T"]:
  """Log-probability of every token given those before it, aligned with the tokens themselves.

  Args:
    logits: logits[:, t] predict token t + 1; any float dtype, computed in float32.
    tokens: token ids.
    temperature: divides the logits, as the sampler did (FAULTS X1).

  Returns:
    float32 [B, T]: entry t is log pi(tokens[t] | tokens[:t]); entry 0, which nothing predicts, is
    0.

  Raises:
    ValueError: temperature not above 0.
  """
  if temperature <= 0:
    raise ValueError(f"temperature: expected a number above 0; got {temperature}")
  logits = jnp.asarray(logits).astype(jnp.float32)[:, :-1] / temperature
  target = jnp.asarray(tokens)[:, 1:, None]
  chosen = jnp.take_along_axis(logits, target, axis=-1)[..., 0] - jax.nn.logsumexp(logits, axis=-1)
  return jnp.pad(chosen, ((0, 0), (1, 0)))


def masked_nll(
    logp: Float[AnyArray, "B T"], mask: Bool[AnyArray, "B T"]
) -> tuple[Float[Array, ""], Int[Array, ""]]:
  """Negative log-likelihood of the marked tokens, and how many there are.

  Args:
    logp: log-probability of token t at index t; natural logarithm. Unmarked entries may be
      anything.
    mask: True on tokens to learn.

  Returns:
    (sum, float32 scalar; count, int32 scalar). Nothing marked gives (0, 0), with gradient 0
    (FAULTS M8).
  """
  return -masked_sum(logp, mask), masked_count(mask)
