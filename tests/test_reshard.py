"""From the training layout to the decode layout: every device holds what the table says."""

import types

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from searchjax.dist.mesh import make_mesh, place
from searchjax.dist.reshard import make_reshard
from searchjax.dist.sharding import DECODE, LAYOUTS, REPLICATED, ZERO3, partition_specs


def spec(shape, *axes):
  return types.SimpleNamespace(shape=shape, axes=axes)


# The kinds of arrays a model has: exchanged, gathered, cut, kept, of two halves.
SPECS = {
  "experts": spec((3, 2, 8, 12, 5), "groups", "layers", "experts", "expert_embed", None),
  "heads": spec((3, 8, 4, 7), "groups", "embed", "heads", None),
  "out": spec((3, 4, 8, 5), "groups", "out_heads", "out_size", None),
  "halves": spec((3, 8, 24), "groups", "embed", "shared_halves"),
  "width": spec((3, 12, 5), "groups", "shared_width", None),
  "whole": spec((3, 8, 5), "groups", "embed", None),
  "cut": spec((3, 5, 4), "groups", None, "delta_heads"),
  "norm": spec((3, 7), "groups", None),
  "head": spec((8, 12), "vocab_embed", "vocab"),
}


def draw():
  rng = np.random.default_rng(0)
  return {name: rng.normal(size=s.shape).astype(np.float32) for name, s in SPECS.items()}


def halves_by_device(x, parts):
  """[gate | up] columns in the order of the devices, each with its part of both."""
  columns = np.arange(x.shape[-1]).reshape(2, parts, -1).swapaxes(0, 1).ravel()
  return x[..., columns]


@pytest.mark.parametrize("sizes, old", [
  ((2, 2, 1), ZERO3), ((4, 1, 1), ZERO3), ((1, 4, 1), ZERO3), ((1, 2, 2), ZERO3),
  ((2, 1, 2), ZERO3), ((2, 2, 1), REPLICATED),
])
def test_every_device_holds_what_the_table_says(sizes, old):
  mesh = make_mesh(*sizes)
  tree, axes = draw(), dict(mesh.shape)
  got = make_reshard(mesh, SPECS, old, DECODE)(
    place(tree, mesh, partition_specs(SPECS, old, axes))
  )
  specs = partition_specs(SPECS, DECODE, axes)
  for name, array in got.items():
    want = halves_by_device(tree[name], axes["expert"]) if name == "halves" else tree[name]
    assert array.sharding.is_equivalent_to(NamedSharding(mesh, specs[name]), array.ndim), name
    np.testing.assert_array_equal(np.asarray(array), want, err_msg=name)
  # The first device over expert has the first part of gate and of up, not the whole of gate.
  part = got["halves"].addressable_shards[0].data
  each = 12 // axes["expert"]
  np.testing.assert_array_equal(part[..., each:], tree["halves"][..., 12 : 12 + each])


def test_the_argument_is_kept_and_layers_move_one_at_a_time():
  mesh = make_mesh(2, 2, 1)
  tree = place(draw(), mesh, partition_specs(SPECS, ZERO3, dict(mesh.shape)))
  reshard = make_reshard(mesh, SPECS, ZERO3, DECODE)
  reshard(tree)
  assert not tree["experts"].is_deleted()
  text = str(jax.make_jaxpr(reshard)(tree))
  assert "f32[3,2,8,12,5] = all_gather" not in text and "= all_to_all" in text
  moved = [line for line in text.splitlines() if "all_gather[" in line or "all_to_all[" in line]
  # An expert layer's block: half of the experts and of the rows.
  assert any("f32[4,6,5]" in line or "f32[2,12,5]" in line for line in moved)
  assert not any(f"f32[{lead}" in line for line in moved for lead in ("3,2,", "6,4,"))


def test_what_a_layout_cannot_divide_is_refused_by_name():
  mesh = make_mesh(1, 4, 1)
  specs = {"delta": {"decay": spec((2, 8, 6), "groups", "embed", "delta_heads")}}
  with pytest.raises(ValueError, match="delta.decay: its axis delta_heads of 6 does not divide"):
    make_reshard(mesh, specs, LAYOUTS["zero3"], LAYOUTS["decode"])
