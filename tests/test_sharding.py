"""From logical axes to mesh axes: hand-made specs, and what is refused."""

import types

import jax
import pytest
from jax.sharding import PartitionSpec

from searchjax.dist.sharding import DECODE, LAYOUTS, ZERO3, partition_spec, partition_specs
from searchjax.model.cache import stacked_cache_specs
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


def bytes_a_device(specs, parts, mesh):
  is_spec = lambda x: hasattr(x, "axes")
  total = 0
  for one, part in zip(jax.tree.leaves(specs, is_leaf=is_spec), jax.tree.leaves(parts), strict=True):
    size = 4 if one.dtype == "float32" else 2
    for n, over in zip(one.shape, part, strict=True):
      names = over if isinstance(over, tuple) else (over,) if over else ()
      for name in names:
        n //= mesh[name]
      size *= n
    total += size
  return total


@pytest.mark.parametrize("preset, mesh", [
  ("qwen3.5-397b-a17b", POD),
  ("qwen3.5-397b-a17b", {"fsdp": 16, "expert": 16, "context": 1}),
  ("qwen3.5-397b-a17b", {"fsdp": 8, "expert": 8, "context": 4}),
  ("qwen3.5-122b-a10b", {"fsdp": 16, "expert": 8, "context": 1}),
  ("qwen3.5-35b-a3b", {"fsdp": 8, "expert": 8, "context": 1}),
  ("qwen3-30b-a3b", {"fsdp": 8, "expert": 4, "context": 1}),
])
def test_the_published_models_divide_for_decoding(preset, mesh):
  model, devices = model_config(preset), 1
  for size in mesh.values():
    devices *= size
  specs = param_specs(model)
  parts = partition_specs(specs, DECODE, mesh)
  assert parts["moe"]["gate_up"][2] == tuple(
    m for m in ("expert", "context", "fsdp") if mesh[m] > 1
  )
  all_experts = 3 * 2 * model.num_layers * model.num_experts * model.hidden_size * model.expert_size
  held = bytes_a_device(specs, parts, mesh)
  assert all_experts / devices < held < 2.2 * all_experts / devices
  cache = stacked_cache_specs(model, 16 * mesh["fsdp"] * mesh["context"], 1024)
  whole = {name: 1 for name in mesh}
  share = bytes_a_device(cache, partition_specs(cache, DECODE, mesh), mesh)
  assert share * devices == bytes_a_device(cache, partition_specs(cache, DECODE, whole), whole)


@pytest.mark.parametrize("shape, axes, message", [
  ((8, 3, 5), ("embed", "heads", None), "w: its axis heads of 3 does not divide over expert 2"),
  ((8, 6), ("embed", "shared_halves"), "w: its axis shared_halves of 6 does not divide"),
  ((6, 8), ("experts", None), "w: its axis experts of 6 does not divide over expert 2 × fsdp 4"),
  ((2, 10, 7), ("groups", "lanes", None), "w: its axis lanes of 10 does not divide over fsdp 4"),
])
def test_what_the_decode_layout_cannot_divide_is_refused_by_name(shape, axes, message):
  with pytest.raises(ValueError, match=message):
    partition_spec("w", shape, axes, DECODE, {"fsdp": 4, "expert": 2, "context": 1})
