"""From one layout to another on the same mesh, part by part.  PURE.

A dimension leaves the mesh axes it is divided over from the innermost outwards. Where another
dimension is to be divided over that axis, the devices exchange blocks (all-to-all) and no device
ever holds more than it did; where none is, they gather. Stacked layers go one at a time, so that
what is gathered or on its way is a layer's part, never a whole array.

Letters  none.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from searchjax.dist.sharding import HALVES, MESH_AXES, Layout, partition_specs

# Leading axes of stacked layers, which no layout divides.
STACKED = ("groups", "layers")


def make_reshard(mesh: Mesh, specs: Any, old: Layout, new: Layout) -> Callable:
  """Jits `tree -> tree`, from one layout to the other; the argument is kept.

  Args:
    specs: a tree of specs with `shape` and `axes`, one an array.

  Raises:
    ValueError: an array that one of the layouts cannot divide.
  """
  sizes = {axis: mesh.shape[axis] for axis in MESH_AXES}
  before, after = (partition_specs(specs, layout, sizes) for layout in (old, new))

  def move(tree):
    return jax.tree.map(lambda a, spec: _move(a, spec.axes, old, new, sizes), tree, specs)

  return jax.jit(
    jax.shard_map(move, mesh=mesh, in_specs=(before,), out_specs=after, check_vma=False)
  )


def _move(x, axes, old, new, sizes):
  """One stacked array: its layers in turn."""
  if _over(old, axes, sizes) == _over(new, axes, sizes):
    return x
  lead = sum(axis in STACKED for axis in axes)
  layers = x.reshape(-1, *x.shape[lead:])
  one = lambda layer: _exchange(layer, axes[lead:], old, new, sizes)
  moved = jax.lax.map(one, layers) if lead else one(layers[0])
  return moved.reshape(*x.shape[:lead], *moved.shape[1 if lead else 0 :])


def _over(layout: Layout, axes, sizes: Mapping[str, int]) -> list[list[str]]:
  return [[m for m in layout.get(axis, ()) if sizes[m] > 1] for axis in axes]


def _exchange(
  x: Array, axes: tuple[str | None, ...], old: Layout, new: Layout, sizes: Mapping[str, int]
) -> Array:
  """A device's part of one array, from layout to layout; inside `jax.shard_map`."""
  left, wanted = _over(old, axes, sizes), _over(new, axes, sizes)
  for dim, held in enumerate(left):
    # What both begin with stays.
    same = 0
    while held[same:] and wanted[dim][same:] and held[same] == wanted[dim][same]:
      same += 1
    left[dim], wanted[dim] = held[same:], wanted[dim][same:]
  for dim, held in enumerate(left):
    for m in reversed(held):
      target = next((d for d, w in enumerate(wanted) if d != dim and w and w[0] == m), None)
      if target is None:
        x = jax.lax.all_gather(x, m, axis=dim, tiled=True)
      else:
        x = _split_halves(x, target, axes[target], sizes[m])
        x = jax.lax.all_to_all(x, m, split_axis=target, concat_axis=dim, tiled=True)
        wanted[target] = wanted[target][1:]
  for dim, over in enumerate(wanted):
    for m in over:
      x = _split_halves(x, dim, axes[dim], sizes[m])
      size = x.shape[dim] // sizes[m]
      x = jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(m) * size, size, axis=dim)
  return x


def _split_halves(x: Array, dim: int, axis: str | None, parts: int) -> Array:
  """[half, part, …] to [part, half, …] along an axis of two halves."""
  if axis not in HALVES:
    return x
  lead, tail = x.shape[:dim], x.shape[dim + 1 :]
  x = x.reshape(*lead, 2, parts, -1, *tail)
  return jnp.swapaxes(x, dim, dim + 1).reshape(*lead, -1, *tail)
