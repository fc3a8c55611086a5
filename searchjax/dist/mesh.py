"""The device mesh, and how parameters and batches are put on it.  HOST.

A mesh has the axes of `dist.sharding`: rows of a batch are divided over fsdp and expert, the
sequence over context. On a laptop the devices are virtual
(XLA_FLAGS=--xla_force_host_platform_device_count=2), one a core. With several processes each puts
what its own devices hold; context comes last, so that a row's stretches lie within one process.
Sampling and training share one mesh: nothing is moved between devices of different processes by
hand (FAULTS Y7).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from searchjax.dist.sharding import MESH_AXES, ROWS


def make_mesh(
  fsdp: int = 0, expert: int = 1, context: int = 1, *, devices: Sequence[jax.Device] | None = None
) -> Mesh:
  """A mesh over all devices.

  Args:
    fsdp: 0 takes what the other two leave.
    devices: None is every device of every process.

  Raises:
    ValueError: the sizes do not multiply to the number of devices.
  """
  devices = list(devices if devices is not None else jax.devices())
  fsdp = fsdp or len(devices) // (expert * context)
  if fsdp * expert * context != len(devices):
    raise ValueError(
      f"mesh: fsdp {fsdp} × expert {expert} × context {context} is not the number of devices, "
      f"{len(devices)}; change config.mesh"
    )
  shape = (fsdp, expert, context)
  if devices[0].platform == "tpu":
    # Mesh axes along the slice's rings.
    grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  else:
    grid = np.array(devices).reshape(shape)
  return Mesh(grid, MESH_AXES)


def place(tree: Any, mesh: Mesh, specs: Any = PartitionSpec()) -> Any:
  """Arrays known whole to every process, divided over the mesh.

  Args:
    specs: a PartitionSpec for all, or a tree of them.
  """
  if isinstance(specs, PartitionSpec):
    specs = jax.tree.map(lambda _: specs, tree)

  def one(array, spec):
    sharding = NamedSharding(mesh, spec)
    if jax.process_count() == 1:
      return jax.device_put(array, sharding)
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
      # It lies over all processes already: every one moves it, in one program.
      return jax.device_put(array, sharding)
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

  return jax.tree.map(one, tree, specs)


def place_rows(batch: Any, mesh: Mesh, *, whole: bool = False) -> Any:
  """A batch with its leading axis divided over the mesh.

  Args:
    whole: every process gives all rows, and keeps those of its devices; else its own rows, the
      first process the first ones.

  Raises:
    ValueError: the rows do not divide by the devices.
  """
  parts = mesh.shape["fsdp"] * mesh.shape["expert"]
  processes = 1 if whole else jax.process_count()
  for name, array in batch.items():
    rows = array.shape[0] * processes
    if rows % parts:
      raise ValueError(
        f"{name} has {rows} rows, not a multiple of the {parts} that the mesh divides them into; "
        f"change the config's rows or its mesh"
      )
  sharding = NamedSharding(mesh, ROWS)

  def one(array):
    array = np.asarray(array)
    shape = (array.shape[0] * processes, *array.shape[1:])
    if whole and jax.process_count() > 1:
      return jax.make_array_from_callback(shape, sharding, lambda index: array[index])
    return jax.make_array_from_process_local_data(sharding, array, shape)

  return {name: one(array) for name, array in batch.items()}


def fetch(array: jax.Array) -> np.ndarray:
  """The whole array on every process; a collective where it lies over several."""
  if array.is_fully_addressable or array.is_fully_replicated:
    return np.asarray(array)
  return np.asarray(multihost_utils.process_allgather(array, tiled=True))
