"""Bradley-Terry preference, symmetrised over the order in which answers are read.  PURE.

  l(d, r)  = -[ r log sigma(d) + (1 - r) log(1 - sigma(d)) ]
  L_sym    = 1/2 l(d(x, a, b), r) + 1/2 l(d(x, b, a), 1 - r)    (SPEC 2.1)
  dbar     = 1/2 [ d(x, a, b) - d(x, b, a) ],        P(a preferred) = sigma(dbar)

d(x, a, b) is the score of a minus the score of b when a is read first. An order-free model has
d(x, b, a) = -d(x, a, b), and then L_sym = l.

Letters  B pairs.
Source   Bradley and Terry (1952); symmetrised over the reading order as in the article.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Real

from searchjax.objective.masked import AnyArray


def pair_loss(delta: Real[AnyArray, "B"], label: Real[AnyArray, "B"]) -> Float[Array, "B"]:
  """l(d, r) for one reading order, through log-sigmoids: finite for |d| up to 1e4 and beyond.

  Args:
    delta: score of the first answer minus score of the second.
    label: 1.0 where the first is preferred, 0.0 where the second is, 0.5 for a tie; values between
      are soft labels.

  Returns:
    float32 [B], never negative.
  """
  delta = jnp.asarray(delta).astype(jnp.float32)
  label = jnp.asarray(label).astype(jnp.float32)
  return -(label * jax.nn.log_sigmoid(delta) + (1 - label) * jax.nn.log_sigmoid(-delta))


def symmetric_loss(
    delta_ab: Real[AnyArray, "B"],
    delta_ba: Real[AnyArray, "B"],
    label: Real[AnyArray, "B"],
) -> Float[Array, "B"]:
  """L_sym: the pair's loss, averaged over the two orders in which the answers can be read.

  Args:
    delta_ab: d(x, a, b), a read first: score of a minus score of b.
    delta_ba: d(x, b, a), b read first: score of b minus score of a.
    label: 1.0 where a is preferred, 0.0 where b is, 0.5 for a tie.

  Returns:
    float32 [B]; a tie costs log 2 at d = 0 and grows on both sides.
  """
  label = jnp.asarray(label).astype(jnp.float32)
  return 0.5 * pair_loss(delta_ab, label) + 0.5 * pair_loss(delta_ba, 1 - label)


def preference_probability(
    delta_ab: Real[AnyArray, "B"], delta_ba: Real[AnyArray, "B"]
) -> Float[Array, "B"]:
  """Probability that a is preferred to b; whatever favours a position cancels.

  Args:
    delta_ab: d(x, a, b), a read first.
    delta_ba: d(x, b, a), b read first.

  Returns:
    float32 [B] in [0, 1]; exchanging the two arguments gives one minus it.
  """
  delta_ab = jnp.asarray(delta_ab).astype(jnp.float32)
  delta_ba = jnp.asarray(delta_ba).astype(jnp.float32)
  return jax.nn.sigmoid(0.5 * delta_ab - 0.5 * delta_ba)
