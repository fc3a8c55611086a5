"""From logical axes to mesh axes: one table a layout, refused where it does not fit.  PURE.

A parameter names one logical axis per dimension (`model.params`); a layout says over which mesh
axes each of them is divided. Training is ZeRO-3: every weight matrix is divided over the whole
mesh, on the dimension its product sums over where there is one, so that gathering it and scattering
its gradient move whole rows. Expert weights stay divided over `expert`.

Decoding is weight-stationary: heads, inner widths and the vocabulary over `expert`, experts over
the whole mesh, so that no weight moves; lanes over fsdp and context, positions of the key-value
cache over `expert`.

Mesh axes  fsdp: batch rows and weights; expert: batch rows, weights and experts; context: the
           sequence and weights. While decoding, context is more of fsdp.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

MESH_AXES = ("fsdp", "expert", "context")
# How the rows of a batch are divided.
ROWS = PartitionSpec(("fsdp", "expert"))
Layout = Mapping[str, tuple[str, ...]]

# Every parameter whole on every device: data parallelism, for models that fit one.
REPLICATED: Layout = {}
# Training on a pod.
ZERO3: Layout = {
  "embed": ("fsdp", "expert", "context"),
  "vocab": ("expert",),
  "vocab_embed": ("fsdp", "context"),
  "out_heads": ("expert",),
  "out_size": ("fsdp", "context"),
  "shared_width": ("fsdp", "expert", "context"),
  "experts": ("expert",),
  "expert_embed": ("fsdp", "context"),
  "expert_width": ("fsdp", "context"),
}
# Rollouts on a pod. Key-value heads stay whole: there are fewer of them than devices.
DECODE: Layout = {
  "heads": ("expert",),
  "out_heads": ("expert",),
  "delta_heads": ("expert",),
  "vocab": ("expert",),
  "shared_width": ("expert",),
  "shared_halves": ("expert",),
  # In this order the training layout becomes this one by exchanges alone: see `dist.reshard`.
  "experts": ("expert", "context", "fsdp"),
  "lanes": ("fsdp", "context"),
  "positions": ("expert",),
}
LAYOUTS = {"replicated": REPLICATED, "zero3": ZERO3, "decode": DECODE}
# Axes that hold two halves side by side, [gate | up]: every device holds its part of both.
HALVES = ("shared_halves",)


def partition_spec(
  name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], layout: Layout,
  mesh: Mapping[str, int],
) -> PartitionSpec:
  """How one array is divided.

  Args:
    name: the parameter's, for messages.
    axes: its logical axes; those the layout does not name, and None, stay whole.
    mesh: size of each mesh axis; axes of size 1 divide nothing.

  Raises:
    ValueError: two dimensions over one mesh axis, or a dimension that does not divide.
  """
  entries, used = [], {}
  for size, axis in zip(shape, axes, strict=True):
    over = tuple(m for m in layout.get(axis, ()) if mesh[m] > 1)
    for m in over:
      if m in used:
        raise ValueError(
          f"{name}: its axes {used[m]} and {axis} are both divided over the mesh axis {m}; a "
          f"layout may use each mesh axis once"
        )
      used[m] = axis
    parts = math.prod(mesh[m] for m in over)
    if (size // 2 if axis in HALVES else size) % parts:
      sizes = " × ".join(f"{m} {mesh[m]}" for m in over)
      raise ValueError(
        f"{name}: its axis {axis} of {size} does not divide over {sizes} = {parts} devices; choose "
        f"another mesh"
      )
    entries.append(over if len(over) > 1 else (over[0] if over else None))
  return PartitionSpec(*entries)


def partition_specs(specs: Any, layout: Layout, mesh: Mapping[str, int]) -> Any:
  """`partition_spec` for a tree of parameter specs (with `shape` and `axes`)."""

  def one(path, spec):
    name = ".".join(str(getattr(e, "key", getattr(e, "name", e))) for e in path)
    return partition_spec(name, spec.shape, spec.axes, layout, mesh)

  return jax.tree_util.tree_map_with_path(one, specs, is_leaf=lambda x: hasattr(x, "axes"))
