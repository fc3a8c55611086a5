"""One optimiser step from micro-batches, the same for every stage.  PURE.

  g = Σ_m ∇ S_m / Σ_m n_m      (S_m: a micro-batch's summed loss, n_m: what it is divided by)

Sums are divided once, after all micro-batches, so the split does not change the result.
"""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
  """Attributes:
    params: the model.
    moments: the optimiser's state.
    step: updates done, int32.
  """

  params: dict
  moments: tuple
  step: jax.Array


def init_state(params: dict, optimizer: optax.GradientTransformation) -> TrainState:
  """A state before the first update."""
  return TrainState(params, optimizer.init(params), jnp.int32(0))


def make_gradient(loss: Callable) -> Callable:
  """Jits `(params, batch, total) -> (total + gradient, sums)`.

  Args:
    loss: `(params, batch) -> (summed loss, {name: number})`.

  Returns:
    A function whose `total` is None for the first micro-batch, then its own earlier result
    (donated); `sums` are this micro-batch's "loss" and numbers.
  """

  def gradient(params, batch, total=None):
    (value, sums), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
    if total is not None:
      grads = jax.tree.map(jnp.add, total, grads)
    return grads, {"loss": value} | sums

  return jax.jit(gradient, donate_argnames="total")


def make_update(optimizer: optax.GradientTransformation) -> Callable:
  """Jits `(state, gradient sum, denominator) -> (state, gradient norm)`; the state is donated.

  A denominator of 0 (no token or rollout counted) gives a zero gradient.
  """

  def update(state, grads, denominator):
    denominator = jnp.asarray(denominator).astype(jnp.float32)
    scale = jnp.where(denominator > 0, 1.0 / jnp.maximum(denominator, 1.0), 0.0)
    grads = jax.tree.map(lambda g: (g * scale).astype(g.dtype), grads)
    changes, moments = optimizer.update(grads, state.moments, state.params)
    params = optax.apply_updates(state.params, changes)
    return TrainState(params, moments, state.step + 1), optax.tree.norm(grads)

  return jax.jit(update, donate_argnums=0)
