"""TPU slices by name: their chips, their torus, and a mesh over their devices.  HOST.

A topology is named `GENERATION:SHAPE`, the shape counted in chips: `v5p:4x8x8` is 256 chips (clouds
sell it as v5p-512, by TensorCores). No TPU is needed: libtpu describes the slice and compiles for
it.

Sources  Google Cloud TPU documentation, pages v5e, v5p, v6e, tpu7x (FLOP/s, HBM B/s, bidirectional
         ICI B/s per chip, divided by its 4 or 6 ports into one-way B/s of a link); memory is what
         XLA's own out-of-memory message calls available (libtpu 0.0.52); which axes close into a
         ring: jax-ml/scaling-book, "How to Think About TPUs".
"""

import dataclasses
import importlib.util
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh

from searchjax.dist.sharding import MESH_AXES

GIB = 2**30

# What a process needs so that libtpu describes and compiles for chips that are not there: JAX's own
# arrays stay on the CPU, no cloud metadata server is asked, and several processes may load libtpu.
ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "TPU_SKIP_MDS_QUERY": "1",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Chip:
  """One TPU generation; rates and memory are those of one JAX device.

  Attributes:
    name: as in topology names.
    cloud_names: words that begin a cloud's names of it, `v5p` of `v5p-512`.
    cores_in_name: what the number in the cloud's name counts per chip.
    devices: JAX devices a chip.
    dims: dimensions of its torus.
    hbm: bytes of HBM a device, as XLA states it.
    flops: bf16 FLOP/s of a device.
    hbm_rate: HBM B/s of a device.
    link_rate: B/s one way over one ICI link, a device's share.
  """

  name: str
  cloud_names: tuple[str, ...]
  cores_in_name: int
  devices: int
  dims: int
  hbm: float
  flops: float
  hbm_rate: float
  link_rate: float


CHIPS = {
  chip.name: chip
  for chip in (
    # 197 TFLOP/s, 819 GB/s, ICI 400 GB/s over 4 ports both ways; "15.75G" available.
    Chip("v5e", ("v5e", "v5litepod"), 1, 1, 2, 15.75 * GIB, 1.97e14, 8.19e11, 5.0e10),
    # 459 TFLOP/s, 2765 GB/s, ICI 1200 GB/s over 6 ports both ways; "95.73G" available.
    Chip("v5p", ("v5p",), 2, 1, 3, 95.73 * GIB, 4.59e14, 2.765e12, 1.0e11),
    # 918 TFLOP/s, 1638 GB/s, ICI 800 GB/s over 4 ports both ways; "31.24G" available.
    Chip("v6e", ("v6e",), 1, 1, 2, 31.24 * GIB, 9.18e14, 1.638e12, 1.0e11),
    # A chip: 2307 TFLOP/s, 7380 GB/s, ICI 1200 GB/s over 6 ports both ways; two devices share it;
    # "94.74G" available to each.
    Chip("tpu7x", ("tpu7x", "v7x", "v7", "tpu7", "ironwood"), 2, 2, 3, 94.74 * GIB, 1.1535e15,
         3.69e12, 5.0e10),
  )
}
# The two devices of a tpu7x chip are joined by a link six times as fast as one torus axis (Google
# Cloud, "TPU7x performance optimizations"): 6 × 200 GB/s both ways, 6e11 B/s one way.
DIE_RATE = 6.0e11

# Shapes clouds sell, by chips: for the hint in an error message.
SHAPES = {
  2: {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
  3: {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8",
      512: "8x8x8", 1024: "8x8x16", 2048: "8x16x16"},
}  # fmt: skip
POD_SIDE = 16  # v5e and v6e: the largest side of a slice, and the only one that closes into a ring.
CUBE_SIDE = 4  # v5p and tpu7x: slices made of whole 4x4x4 cubes close into rings on every axis.


@dataclasses.dataclass(frozen=True)
class Topology:
  """A slice: its name, chip generation and shape in chips."""

  name: str
  chip: Chip
  shape: tuple[int, ...]

  @property
  def chips(self) -> int:
    return math.prod(self.shape)

  @property
  def devices(self) -> int:
    return self.chips * self.chip.devices

  def wraps(self, dimension: int) -> bool:
    """Whether the torus closes into a ring on this dimension."""
    if dimension >= len(self.shape):
      return False
    if self.chip.dims == 2:
      return self.shape[dimension] == POD_SIDE
    return all(side % CUBE_SIDE == 0 for side in self.shape)


def parse_topology(name: str) -> Topology:
  """Reads `v5p:4x8x8`.

  Raises:
    ValueError: another form, an unknown generation, or a shape of the wrong dimensions; names that
      clouds use are recognised and answered with the name to give.
  """
  match = re.fullmatch(r"([A-Za-z0-9]+):(\d+(?:x\d+)*)", name)
  if match and match[1] in CHIPS:
    chip = CHIPS[match[1]]
    shape = tuple(int(side) for side in match[2].split("x"))
    example = f"{chip.name}:{SHAPES[chip.dims][256]}"
    if len(shape) != chip.dims or min(shape) < 1:
      raise ValueError(
        f'topology "{name}": a {chip.name} slice has {chip.dims} sides of at least 1 chip, got '
        f"{match[2]}; for instance {example}"
      )
    if chip.dims == 2 and max(shape) > POD_SIDE:
      raise ValueError(
        f'topology "{name}": a {chip.name} pod is {POD_SIDE}x{POD_SIDE} chips, got {match[2]}; '
        f"give {example} or less"
      )
    return Topology(name, chip, shape)
  raise ValueError(f'unknown topology "{name}"; {_hint(name)}')


def _hint(name: str) -> str:
  plain = name.lower().removeprefix("tpu-")
  word, _, rest = re.sub(r"[:\-_]", " ", plain, count=1).partition(" ")
  for chip in CHIPS.values():
    if word not in chip.cloud_names:
      continue
    if rest.isdigit():
      chips = int(rest) // chip.cores_in_name
      shape = SHAPES[chip.dims].get(chips)
      counted = "chips" if chip.cores_in_name == 1 else "TensorCores, two a chip"
      shape = f"{chip.name}:{shape}" if shape else f"{chip.name}:SHAPE with {chips} chips in all"
      return f"clouds count {counted}; here the shape is given in chips: {shape}"
    shape = rest if re.fullmatch(r"\d+(x\d+)*", rest) else SHAPES[chip.dims][256]
    return f"the name here is {chip.name}:{shape}"
  known = ", ".join(f"{chip.name}:{SHAPES[chip.dims][256]}" for chip in CHIPS.values())
  return f"expected GENERATION:SHAPE in chips, one of {known} or another shape of those"


def missing_compiler() -> str | None:
  """Why no TPU program can be compiled here, or None."""
  if importlib.util.find_spec("libtpu") is None:
    return "libtpu is not installed; it is the extra tpu: pip install -e .[tpu]"
  return None


def topology_mesh(topology: Topology, axes: Mapping[str, int]) -> Mesh:
  """The slice's devices as a mesh, mesh axes laid along torus axes.

  Needs libtpu and `ENVIRONMENT` (set before JAX makes its first array).

  Args:
    axes: size of each of `MESH_AXES`; one may be 0, which takes what the others leave.

  Raises:
    ValueError: sizes that do not multiply to the devices, or a slice that libtpu refuses.
  """
  sizes = resolve_axes(topology, axes)
  missing = missing_compiler()
  if missing:
    raise ValueError(missing)
  try:
    described = topologies.get_topology_desc(topology_name=topology.name, platform="tpu")
  except RuntimeError as error:
    reason = str(error).splitlines()[0]
    raise ValueError(f'libtpu refuses the topology "{topology.name}": {reason}') from error
  devices = mesh_utils.create_device_mesh(
    tuple(sizes.values()), list(described.devices), allow_split_physical_axes=True
  )
  return Mesh(devices, tuple(sizes))


def resolve_axes(topology: Topology, axes: Mapping[str, int]) -> dict[str, int]:
  """Sizes of all mesh axes, a 0 replaced.

  Raises:
    ValueError: an unknown axis, two zeros, or sizes that do not multiply to the devices.
  """
  unknown = sorted(set(axes) - set(MESH_AXES))
  if unknown:
    raise ValueError(f"unknown mesh axis {unknown[0]}; the axes are {', '.join(MESH_AXES)}")
  sizes = {axis: int(axes.get(axis, 1)) for axis in MESH_AXES}
  given = " × ".join(f"{axis} {size}" for axis, size in sizes.items())
  free = [axis for axis, size in sizes.items() if size == 0]
  fixed = math.prod(size for size in sizes.values() if size)
  if len(free) > 1 or min(sizes.values()) < 0:
    raise ValueError(f"mesh {given}: sizes are at least 1, and at most one is 0 (what is left)")
  if free and topology.devices % fixed == 0:
    sizes[free[0]] = topology.devices // fixed
  elif free or fixed != topology.devices:
    raise ValueError(
      f"mesh {given}: {fixed} does not make the {topology.devices} devices of {topology.name}; "
      f"change the config's mesh"
    )
  return sizes


def axis_rates(topology: Topology, devices: np.ndarray) -> dict[str, float]:
  """B/s a device can send along each mesh axis, by the torus links that lie on it.

  A torus dimension that the axis runs along whole, and that closes into a ring, is used both ways;
  one that does not close is bounded by its cut, one way. An axis inside a tpu7x chip uses the link
  between its two devices.

  Args:
    devices: the mesh's array of devices (with `coords`), one dimension a mesh axis.

  Returns:
    Rate of every mesh axis of size above 1.
  """
  rates = {}
  for position, axis in enumerate(MESH_AXES):
    if devices.shape[position] == 1:
      continue
    line = np.moveaxis(devices, position, 0).reshape(devices.shape[position], -1)[:, 0]
    rate = 0.0
    for dimension in range(3):
      values = {_coordinate(device, dimension) for device in line}
      if len(values) > 1:
        whole = dimension < len(topology.shape) and len(values) == topology.shape[dimension]
        rate += topology.chip.link_rate * (2 if whole and topology.wraps(dimension) else 1)
    rates[axis] = rate or DIE_RATE
  return rates


def _coordinate(device: Any, dimension: int) -> int:
  return device.coords[dimension] if dimension < len(device.coords) else 0
