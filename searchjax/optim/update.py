"""One optimiser step from micro-batches, the same for every stage.  PURE.

  g = Σ_m ∇ S_m / Σ_m n_m      (S_m: a micro-batch's summed loss, n_m: what it is divided by)

Sums are divided once, after all micro-batches, so the split does not change the result; nor does
the mesh: every device differentiates the sum over its own tokens, and the gradients are added.

bfloat16 parameters are updated in float32 and rounded stochastically: a step far below their
spacing then moves them by its mean instead of being lost.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from searchjax.dist.sharding import ROWS
from searchjax.model.parallel import Division


@flax.struct.dataclass
class TrainState:
  """Attributes:
    params: the model.
    moments: the optimiser's state.
    step: updates done, int32.
  """

  params: Any
  moments: Any
  step: Any


def init_state(
  params: dict, optimizer: optax.GradientTransformation, *, moment_dtype: str = "float32"
) -> TrainState:
  """A state before the first update.

  Args:
    moment_dtype: what the optimiser's moments are kept in; it computes in float32 all the same.
  """
  moments = optimizer.init(_cast(params, "float32"))
  return TrainState(params, _cast(moments, moment_dtype), jnp.int32(0))


def state_specs(state: TrainState, division: Division) -> TrainState:
  """PartitionSpecs of a state: moments lie where their parameters do, other numbers everywhere."""
  whole = jax.sharding.PartitionSpec()
  names = lambda path: tuple(entry.key for entry in path if hasattr(entry, "key"))
  by_name = {
    names(path): spec for path, spec in jax.tree_util.tree_leaves_with_path(division.specs)
  }

  def of_moment(path, _):
    # The optimiser's trees repeat the parameters' names below names of their own.
    keys = names(path)
    return next((by_name[keys[i:]] for i in range(len(keys)) if keys[i:] in by_name), whole)

  moments = jax.tree_util.tree_map_with_path(of_moment, state.moments)
  return TrainState(division.specs, moments, whole)


def make_gradient(loss: Callable, division: Division) -> Callable:
  """Jits `(params, batch, total) -> (total + gradient, sums)`.

  Args:
    loss: `(params, batch) -> (summed loss, {name: number})` over the rows a device holds. Numbers
      are added over the devices; of those whose name ends in "_max" the largest is taken.

  Returns:
    A function whose `total` is None for the first micro-batch, then its own earlier result
    (donated); `sums` are this micro-batch's "loss" and numbers.
  """
  parallel = division.parallel

  def local(params, batch, total):
    def share(params):
      # Devices along context hold the same rows: each counts its part.
      value, sums = loss(params, batch)
      return value / parallel.context, sums

    (value, sums), grads = jax.value_and_grad(share, has_aux=True)(params)
    grads = parallel.reduce(grads, division.axes)
    if total is not None:
      grads = jax.tree.map(jnp.add, total, grads)
    sums = {name: _over_rows(name, number) for name, number in sums.items()}
    return grads, sums | {"loss": parallel.total(value)}

  def gradient(params, batch, total=None):
    specs = division.specs
    return jax.shard_map(
      local, mesh=division.mesh, in_specs=(specs, ROWS, None if total is None else specs),
      out_specs=(specs, jax.sharding.PartitionSpec()), check_vma=False,
    )(params, batch, total)

  return jax.jit(gradient, donate_argnames="total")


def make_update(optimizer: optax.GradientTransformation) -> Callable:
  """Jits `(state, gradient sum, denominator) -> (state, gradient norm)`; the state is donated.

  A denominator of 0 (no token or rollout counted) gives a zero gradient.
  """

  def update(state, grads, denominator):
    denominator = jnp.asarray(denominator).astype(jnp.float32)
    scale = jnp.where(denominator > 0, 1.0 / jnp.maximum(denominator, 1.0), 0.0)
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) * scale, grads)
    old = _cast(state.params, "float32")
    kept = jax.tree.map(lambda m: m.dtype, state.moments)
    changes, moments = optimizer.update(grads, _cast(state.moments, "float32"), old)
    moments = jax.tree.map(lambda m, dtype: m.astype(dtype), moments, kept)
    key = jax.random.fold_in(jax.random.key(0), state.step)
    leaves, treedef = jax.tree.flatten(state.params)
    moved = [
      _round(jax.random.fold_in(key, i), before + change, leaf.dtype)
      for i, (leaf, before, change) in enumerate(
        zip(leaves, jax.tree.leaves(old), jax.tree.leaves(changes), strict=True)
      )
    ]
    state = TrainState(treedef.unflatten(moved), moments, state.step + 1)
    return state, optax.tree.norm(grads)

  return jax.jit(update, donate_argnums=0)


def round_stochastically(key: Array, x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
  """float32 to one of its two bfloat16 neighbours, so that the mean of many draws is x.

  A bfloat16 is the upper half of a float32: random bits added to the lower half carry over with
  the right probability. Values that are not finite round as usual.
  """
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
  up = jax.lax.bitcast_convert_type((bits + noise) & jnp.uint32(0xFFFF0000), jnp.float32)
  return jnp.where(jnp.isfinite(x), up, x).astype(jnp.bfloat16)


def _round(key, x, dtype):
  return round_stochastically(key, x) if dtype == jnp.bfloat16 else x.astype(dtype)


def _cast(tree, dtype):
  floating = lambda a: jnp.issubdtype(a.dtype, jnp.floating)
  return jax.tree.map(lambda a: a.astype(dtype) if floating(a) else a, tree)


def _over_rows(name: str, number: Array) -> Array:
  reduce = jax.lax.pmax if name.endswith("_max") else jax.lax.psum
  return reduce(number, ("fsdp", "expert"))
