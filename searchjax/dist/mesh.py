"""The device mesh, and how batches and parameters lie on it.  HOST.

Rows of a batch are split over the mesh's one axis here, parameters are whole on every device: data
parallelism, which is all a small model needs. On a laptop the devices are virtual
(XLA_FLAGS=--xla_force_host_platform_device_count=2), one a core.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def data_mesh() -> Mesh:
  """All devices in a row."""
  return Mesh(np.array(jax.devices()), ("data",))


def replicate(tree: Any, mesh: Mesh) -> Any:
  """The tree whole on every device of the mesh."""
  return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def shard_rows(batch: Any, mesh: Mesh) -> Any:
  """A batch with its leading axis split over the mesh.

  Raises:
    ValueError: the rows do not divide by the devices.
  """
  devices = mesh.devices.size
  for name, array in batch.items():
    if array.shape[0] % devices:
      raise ValueError(
        f"{name} has {array.shape[0]} rows, not a multiple of {devices} devices; change the "
        f"config's rows or the number of devices"
      )
  return jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
