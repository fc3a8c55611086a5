"""Meshes over the four virtual devices, and what is put on them."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from searchjax.dist.mesh import fetch, make_mesh, place, place_rows


def test_fsdp_takes_what_the_other_axes_leave():
  assert dict(make_mesh().shape) == {"fsdp": 4, "expert": 1, "context": 1}
  assert dict(make_mesh(expert=2).shape) == {"fsdp": 2, "expert": 2, "context": 1}
  assert dict(make_mesh(0, 1, 2).shape) == {"fsdp": 2, "expert": 1, "context": 2}


def test_sizes_that_do_not_multiply_to_the_devices_are_refused():
  with pytest.raises(ValueError, match="mesh: fsdp 3 × expert 1 × context 1 is not the number of "
                                       "devices, 4; change config.mesh"):
    make_mesh(3)


def test_parameters_are_divided_as_their_spec_says_and_rows_over_fsdp_and_expert():
  mesh = make_mesh(2, 1, 2)
  weights = place({"w": np.arange(24.0).reshape(6, 4)}, mesh, {"w": PartitionSpec("fsdp")})["w"]
  assert {shard.data.shape for shard in weights.addressable_shards} == {(3, 4)}
  np.testing.assert_array_equal(weights, np.arange(24.0).reshape(6, 4))
  rows = place_rows({"x": np.arange(8)}, mesh)["x"]
  assert {shard.data.shape for shard in rows.addressable_shards} == {(4,)}
  by_device = {shard.device: np.asarray(shard.data).tolist() for shard in rows.addressable_shards}
  # Devices along context hold the same rows.
  (a, b), (c, d) = mesh.devices[:, 0, :]
  assert by_device[a] == by_device[b] == [0, 1, 2, 3]
  assert by_device[c] == by_device[d] == [4, 5, 6, 7]


def test_rows_that_do_not_divide_are_refused_by_name():
  with pytest.raises(ValueError, match="tokens has 6 rows, not a multiple of the 4"):
    place_rows({"tokens": np.zeros((6, 3), np.int32)}, make_mesh())
  assert jax.device_count() == 4


def test_a_batch_given_whole_is_the_same_and_is_fetched_whole():
  mesh = make_mesh(2, 2)
  batch = {"x": np.arange(24).reshape(8, 3)}
  own, whole = place_rows(batch, mesh)["x"], place_rows(batch, mesh, whole=True)["x"]
  assert own.sharding == whole.sharding
  np.testing.assert_array_equal(fetch(whole), batch["x"])
