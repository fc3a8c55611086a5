"""Names of TPU slices, their meshes, and which links a mesh axis lies on."""

import itertools
import types

import numpy as np
import pytest

from searchjax.dist import topology
from searchjax.dist.topology import axis_rates, parse_topology, resolve_axes


@pytest.mark.parametrize(
  ("name", "chips", "devices"),
  [("v5p:4x8x8", 256, 256), ("v6e:16x16", 256, 256), ("tpu7x:4x8x8", 256, 512), ("v5e:8x8", 64, 64),
   ("v5p:2x2x1", 4, 4)],
)  # fmt: skip
def test_shapes_count_chips(name, chips, devices):
  slice_ = parse_topology(name)
  assert (slice_.chips, slice_.devices) == (chips, devices)
  assert slice_.chip.name == name.split(":")[0]


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("v5p-512", "count TensorCores, two a chip; here the shape is given in chips: v5p:4x8x8"),
    ("v5litepod-256", "clouds count chips; here the shape is given in chips: v5e:16x16"),
    ("v6e-64", "v6e:8x8"),
    ("v5p-24", "v5p:SHAPE with 12 chips in all"),
    ("ironwood:4x4x4", "the name here is tpu7x:4x4x4"),
    ("v7x:4x8x8", "the name here is tpu7x:4x8x8"),
    ("tpu-v5p:4x8x8", "the name here is v5p:4x8x8"),
    ("v5p:16x16", "a v5p slice has 3 sides of at least 1 chip, got 16x16; for instance v5p:4x8x8"),
    ("v5e:4x4x4", "a v5e slice has 2 sides"),
    ("v5p:0x8x8", "at least 1 chip"),
    ("v6e:16x32", "a v6e pod is 16x16 chips, got 16x32"),
    ("h100:8", "expected GENERATION:SHAPE in chips, one of v5e:16x16, v5p:4x8x8"),
    ("", "expected GENERATION:SHAPE"),
  ],
)
def test_other_names_are_refused_with_the_name_to_give(name, message):
  with pytest.raises(ValueError) as error:
    parse_topology(name)
  assert message in str(error.value) and "\n" not in str(error.value)


def test_rings_close_on_whole_cubes_and_whole_pod_sides():
  rings = lambda name: [parse_topology(name).wraps(d) for d in range(3)]
  assert rings("v5p:4x8x8") == [True, True, True]
  assert rings("v5p:2x2x4") == [False, False, False]  # No whole cube: no optical links.
  assert rings("v5e:8x16") == [False, True, False]


def test_one_axis_takes_what_is_left():
  slice_ = parse_topology("v5p:4x8x8")
  assert resolve_axes(slice_, {"fsdp": 0, "expert": 8}) == {"fsdp": 32, "expert": 8, "context": 1}
  assert resolve_axes(slice_, {"fsdp": 64, "expert": 1, "context": 4})["context"] == 4


@pytest.mark.parametrize(
  ("axes", "message"),
  [
    ({"fsdp": 3, "expert": 8}, "24 does not make the 256 devices of v5p:4x8x8"),
    ({"fsdp": 0, "expert": 7}, "7 does not make the 256 devices"),
    ({"fsdp": 0, "expert": 0}, "at most one is 0"),
    ({"fsdp": -2, "expert": 8}, "sizes are at least 1"),
    ({"fsdp": 256, "tensor": 1}, "unknown mesh axis tensor; the axes are fsdp, expert, context"),
  ],
)
def test_meshes_that_do_not_fit_are_refused(axes, message):
  with pytest.raises(ValueError, match=message):
    resolve_axes(parse_topology("v5p:4x8x8"), axes)


def devices(shape, cores=1):
  """Devices in row-major order of their coordinates."""
  places = itertools.product(*(range(side) for side in shape), range(cores))
  made = [types.SimpleNamespace(coords=place[:-1], core_on_chip=place[-1]) for place in places]
  array = np.empty(len(made), object)
  array[:] = made
  return array


def test_an_axis_is_as_fast_as_the_links_it_lies_on():
  v5p = parse_topology("v5p:4x8x8")
  mesh = devices((4, 8, 8)).reshape(32, 8, 1)
  # fsdp runs along two rings, expert along one; a ring is used both ways.
  assert axis_rates(v5p, mesh) == {"fsdp": 4 * 1e11, "expert": 2 * 1e11}
  half = devices((4, 8, 8)).reshape(64, 4, 1)  # expert: half a ring, bounded by its cut.
  assert axis_rates(v5p, half)["expert"] == 1e11


def test_the_two_devices_of_a_chip_share_its_links():
  slice_ = parse_topology("tpu7x:4x4x4")
  mesh = devices((4, 4, 4), cores=2).reshape(16, 4, 2)
  rates = axis_rates(slice_, mesh)
  assert rates == {"fsdp": 4 * 5e10, "expert": 2 * 5e10, "context": topology.DIE_RATE}


def test_a_missing_compiler_is_named(monkeypatch):
  monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
  assert "pip install -e .[tpu]" in topology.missing_compiler()
  with pytest.raises(ValueError, match="libtpu is not installed"):
    topology.topology_mesh(parse_topology("v5e:2x2"), {"fsdp": 4})
