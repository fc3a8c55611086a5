"""From logical axes to mesh axes: hand-made specs, and what is refused."""

import types

import jax
import pytest
from jax.sharding import PartitionSpec

from searchjax.dist.sharding import LAYOUTS, ZERO3, partition_spec, partition_specs
from searchjax.model.config import model_config
from searchjax.model.params import param_specs

POD = {"fsdp": 32, "expert": 8, "context": 1}


def spec(shape, axes):
  return types.SimpleNamespace(shape=shape, axes=axes)


def test_axes_are_divided_as_the_table_says_and_others_stay_whole():
  mesh = {"fsdp": 4, "expert": 2, "context": 3}
  got = partition_spec("w", (24, 7), ("embed", "heads"), ZERO3, mesh)
  assert got == PartitionSpec(("fsdp", "expert", "context"), None)
  got = partition_spec("w", (6, 12, 5), ("experts", "expert_embed", None), ZERO3, mesh)
  assert got == PartitionSpec("expert", ("fsdp", "context"), None)


def test_mesh_axes_of_size_one_divide_nothing():
  got = partition_spec("w", (7,), ("embed",), ZERO3, {"fsdp": 1, "expert": 1, "context": 1})
  assert got == PartitionSpec(None)
  assert partition_spec("w", (14,), ("embed",), ZERO3, {"fsdp": 1, "expert": 7, "context": 1}) == (
    PartitionSpec("expert")
  )


def test_a_mesh_axis_used_twice_is_refused_by_name():
  layout = {"a": ("fsdp",), "b": ("expert", "fsdp")}
  with pytest.raises(ValueError, match="moe.down: its axes a and b are both divided over the mesh "
                                       "axis fsdp"):
    partition_specs({"moe": {"down": spec((8, 8), ("a", "b"))}}, layout,
                    {"fsdp": 2, "expert": 2, "context": 1})


def test_an_indivisible_size_is_refused_by_name():
  with pytest.raises(ValueError, match=r"attention.out: its axis out_heads of 3 does not divide "
                                       r"over expert 2 = 2 devices"):
    partition_specs({"attention": {"out": spec((3, 4), ("out_heads", None))}}, ZERO3,
                    {"fsdp": 1, "expert": 2, "context": 1})


@pytest.mark.parametrize("preset, mesh", [
  ("qwen3.5-397b-a17b", POD),
  ("qwen3.5-397b-a17b", {"fsdp": 32, "expert": 8, "context": 4}),
  ("qwen3.5-122b-a10b", {"fsdp": 16, "expert": 8, "context": 1}),
  ("qwen3.5-35b-a3b", {"fsdp": 8, "expert": 8, "context": 1}),
  ("qwen3-30b-a3b", {"fsdp": 8, "expert": 4, "context": 1}),
])
def test_the_published_models_divide_and_little_stays_whole(preset, mesh):
  specs = param_specs(model_config(preset), value_head=True)
  parts = partition_specs(specs, LAYOUTS["zero3"], mesh)
  whole = divided = 0
  is_spec = lambda x: hasattr(x, "axes")
  for one, part in zip(jax.tree.leaves(specs, is_leaf=is_spec), jax.tree.leaves(parts), strict=True):
    size = 1
    for n in one.shape:
      size *= n
    if any(part):
      divided += size
    else:
      whole += size
  assert whole / (whole + divided) < 1e-4
