"""The collectives of the training forward, or none of them.  PURE.

Inside `jax.shard_map` over the mesh axes of `dist.sharding` a device holds its rows of the batch
(over fsdp and expert), its stretch of the sequence (over context) and its part of every weight.
Weights are gathered where a layer uses them, one mesh axis at a time; their gradients are scattered
by the transpose. Experts stay divided: an expert group's tokens are gathered, or sent where their
experts are, and each device's part of the sum is brought back. Over context, heads are exchanged
for the sequence (Ulysses, arXiv:2309.14509).

Every device differentiates its own tokens' loss; a weight's gradient is the sum over all devices.
`Parallel.reduce` adds what the transposes have not added yet.

Letters  B rows, T tokens, N heads.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from searchjax.dist.sharding import LAYOUTS, MESH_AXES, ROWS, partition_specs

# Logical axes that stay divided while a layer computes.
DIVIDED = ("experts", "vocab")


@dataclasses.dataclass(frozen=True)
class Parallel:
  """How the work is divided; `LOCAL` is not divided at all.

  Attributes:
    layout: a name in `dist.sharding.LAYOUTS`.
    fsdp, expert, context: sizes of the mesh axes.
  """

  layout: str = "replicated"
  fsdp: int = 1
  expert: int = 1
  context: int = 1

  def _over(self, axis: str | None) -> tuple[str, ...]:
    return tuple(m for m in LAYOUTS[self.layout].get(axis, ()) if getattr(self, m) > 1)

  def divided(self, axis: str) -> bool:
    """Whether arrays with this logical axis hold only a part of it while a layer computes."""
    return axis in DIVIDED and bool(self._over(axis))

  def gather(self, weights: Any, axes: Any) -> Any:
    """Whole weights from a device's parts, except along `DIVIDED` axes.

    Args:
      weights: a tree of arrays.
      axes: for each, its logical axes, as in `model.params`.
    """

    def one(weight, names):
      for dim, name in enumerate(names):
        if name not in DIVIDED:
          # The innermost axis first: a dimension is cut by its first mesh axis, then the next.
          for m in reversed(self._over(name)):
            weight = jax.lax.all_gather(weight, m, axis=dim, tiled=True)
      return weight

    return jax.tree.map(one, weights, axes)

  def reduce(self, grads: Any, axes: Any) -> Any:
    """Gradients summed over the mesh axes that their weights are not divided over."""

    def one(grad, names):
      done = {m for name in names for m in self._over(name)}
      left = tuple(m for m in MESH_AXES if getattr(self, m) > 1 and m not in done)
      return jax.lax.psum(grad, left) if left else grad

    return jax.tree.map(one, grads, axes)

  def total(self, x: Any) -> Any:
    """The sum over all devices."""
    over = tuple(m for m in MESH_AXES if getattr(self, m) > 1)
    return jax.lax.psum(x, over) if over else x

  def over_context(self, x: Array) -> Array:
    """The sum over the stretches of the sequence."""
    return jax.lax.psum(x, "context") if self.context > 1 else x

  # ---- the expert group's tokens -----------------------------------------------------------------

  def share(self, x: Array) -> Array:
    """The tokens (axis 0) of the whole expert group, in its order."""
    return jax.lax.all_gather(x, "expert", axis=0, tiled=True) if self.expert > 1 else x

  def unshare(self, y: Array) -> Array:
    """A device's own tokens of an array that the expert group's devices each hold a summand of."""
    if self.expert == 1:
      return y
    return jax.lax.psum_scatter(y, "expert", scatter_dimension=0, tiled=True)

  def exchange(self, x: Array) -> Array:
    """Axis 0 holds an equal part for each device of the expert group; from each its part for us."""
    if self.expert == 1:
      return x
    return jax.lax.all_to_all(x, "expert", split_axis=0, concat_axis=0, tiled=True)

  def first(self, axis: str, size: int) -> Array | int:
    """Index of a device's first element along a DIVIDED axis of which it holds `size`."""
    return jax.lax.axis_index("expert") * size if self.divided(axis) else 0

  # ---- the sequence ------------------------------------------------------------------------------

  def sequence(self, x: Array) -> Array:
    """The whole sequence (axis 1) of an array."""
    return jax.lax.all_gather(x, "context", axis=1, tiled=True) if self.context > 1 else x

  def to_heads(self, x: Array) -> Array:
    """[B T/c N …] to [B T N/c …]: the whole sequence of a device's own heads.

    Where there are fewer heads than devices, several devices hold the same head.

    Raises:
      ValueError: neither of heads and context size divides the other.
    """
    c, heads = self.context, x.shape[2]
    if c == 1:
      return x
    if heads % c == 0:
      return jax.lax.all_to_all(x, "context", split_axis=2, concat_axis=1, tiled=True)
    if c % heads:
      raise ValueError(f"{heads} heads cannot be divided over the mesh's context axis of {c}")
    own = jax.lax.axis_index("context") // (c // heads)
    return jax.lax.dynamic_slice_in_dim(self.sequence(x), own, 1, axis=2)

  def to_sequence(self, x: Array) -> Array:
    """[B T N/c …] back to [B T/c N …]."""
    if self.context == 1:
      return x
    return jax.lax.all_to_all(x, "context", split_axis=1, concat_axis=2, tiled=True)

  def own_heads(self, weight: Array, axis: int) -> Array:
    """The part of a per-head weight that belongs to the heads of `to_heads`."""
    if self.context == 1:
      return weight
    if weight.shape[axis] % self.context:
      raise ValueError(
        f"{weight.shape[axis]} heads cannot be divided over the mesh's context axis of "
        f"{self.context}"
      )
    size = weight.shape[axis] // self.context
    at = jax.lax.axis_index("context") * size
    return jax.lax.dynamic_slice_in_dim(weight, at, size, axis=axis)

  def own_stretch(self, x: Array) -> Array:
    """A device's stretch of an array that holds the whole sequence (axis 1)."""
    if self.context == 1:
      return x
    size = x.shape[1] // self.context
    at = jax.lax.axis_index("context") * size
    return jax.lax.dynamic_slice_in_dim(x, at, size, axis=1)

  def next_tokens(self, tokens: Int[Array, "B T"]) -> Int[Array, "B t"]:
    """The next token of its row at each position of a device's stretch; 0 after the last."""
    return self.own_stretch(jnp.pad(tokens[:, 1:], ((0, 0), (0, 1))))


LOCAL = Parallel()


@dataclasses.dataclass(frozen=True)
class Division:
  """A model's parameters divided over a mesh.

  Attributes:
    mesh: with the axes of `dist.sharding`.
    parallel: the collectives that belong to it.
    axes, specs: per parameter, its logical axes and its PartitionSpec.
  """

  mesh: jax.sharding.Mesh
  parallel: Parallel
  axes: Any
  specs: Any


def make_whole(division: Division) -> Callable:
  """Jits `params -> params` from their division to whole copies on every device."""
  if division.parallel.layout == "replicated":
    return lambda params: params
  whole = jax.sharding.NamedSharding(division.mesh, jax.sharding.PartitionSpec())
  return jax.jit(lambda params: params, out_shardings=whole)


def make_row_function(function: Callable, division: Division) -> Callable:
  """Jits `(params, batch) -> array [rows]` that computes each device's rows."""
  return jax.jit(
    jax.shard_map(
      function, mesh=division.mesh, in_specs=(division.specs, ROWS), out_specs=ROWS,
      check_vma=False,
    )
  )


def divide(mesh: jax.sharding.Mesh, layout: str, specs: Any) -> Division:
  """Divides parameters.

  Args:
    layout: a name in `dist.sharding.LAYOUTS`.
    specs: the tree of `model.params.ParamSpec`.

  Raises:
    ValueError: an unknown layout, or a parameter that does not divide.
  """
  if layout not in LAYOUTS:
    raise ValueError(f'layout must be one of {", ".join(LAYOUTS)}, got "{layout}"')
  sizes = {axis: mesh.shape[axis] for axis in MESH_AXES}
  is_spec = lambda x: hasattr(x, "axes")
  axes = jax.tree.map(lambda s: s.axes, specs, is_leaf=is_spec)
  return Division(
    mesh, Parallel(layout, **sizes), axes, partition_specs(specs, LAYOUTS[layout], sizes)
  )
