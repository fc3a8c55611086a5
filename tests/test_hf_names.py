"""Names and layouts against an independent account (hf_folders), by hand, and box by box."""

import dataclasses
import itertools
import math

import hf_folders
import numpy as np
import pytest

from searchjax.model import hf_names
from searchjax.model.config import model_config
from searchjax.model.hf_names import Link, name_map
from searchjax.model.params import ParamSpec, param_specs

CONFIGS = {"qwen3_5": hf_folders.QWEN35, "qwen3": hf_folders.QWEN3}


def _whole(shape):
  return tuple(slice(0, size) for size in shape)


def _flat(params):
  out = {}
  for name, value in params.items():
    inner = value if isinstance(value, dict) else None
    out |= {name: value} if inner is None else {f"{name}.{k}": v for k, v in inner.items()}
  return out


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "separate"])
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("prefix", hf_names.PREFIXES)
def test_every_parameter_is_found_in_its_tensors(kind, fused, prefix):
  config = CONFIGS[kind]
  params = hf_folders.random_params(config)
  params["value_head"] = np.arange(config.hidden_size, dtype=np.float32)
  tensors = hf_folders.hf_tensors(params, config, prefix=prefix, fused=fused)
  names = name_map(config, prefix=prefix, fused=fused, value_head=True)
  assert {n: (s.shape, s.dtype) for n, s in names.tensors.items()} == {
    n: (t.shape, t.dtype.name) for n, t in tensors.items()
  }
  for name, value in _flat(params).items():
    seen = np.zeros(value.shape, np.int32)
    for link, inside, place in names.links(name, _whole(value.shape)):
      assert np.array_equal(link.view(tensors[link.tensor])[inside], value[place]), name
      seen[place] += 1
    assert (seen == 1).all(), name


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "separate"])
def test_any_box_of_a_parameter_is_read_from_boxes_of_tensors(fused):
  config = hf_folders.QWEN35
  params = hf_folders.random_params(config)
  tensors = hf_folders.hf_tensors(params, config, prefix="model.", fused=fused)
  names = name_map(config, prefix="model.", fused=fused)
  rng = np.random.default_rng(1)
  for name, value in _flat(params).items():
    for _ in range(5):
      corners = [np.sort(rng.choice(size + 1, 2, replace=False)) for size in value.shape]
      box = tuple(slice(int(low), int(high)) for low, high in corners)
      block = np.full([s.stop - s.start for s in box], np.nan, value.dtype)
      for link, inside, place in names.links(name, box):
        block[place] = link.view(tensors[link.tensor])[inside]
      assert np.array_equal(block, value[box]), (name, box)


def test_a_query_head_with_gate_by_hand():
  """Rows 0-1 are head 0's query, rows 2-3 its gate, 4-5 head 1's query; not global halves."""
  q_proj = np.arange(8.0)[:, None] * [1, 10, 100]  # 2 heads of size 2, gated; D = 3.
  link = Link("q", 0, ((2, 4), (3,)), (2, 0, 1))
  ours = link.view(q_proj)
  assert ours.shape == (3, 2, 4)
  assert ours[0, 0].tolist() == [0, 1, 2, 3] and ours[2, 1].tolist() == [400, 500, 600, 700]
  query, _ = np.split(ours, 2, axis=-1)
  assert query[0].tolist() == [[0, 1], [4, 5]]
  assert query[0].tolist() != [[0, 1], [2, 3]]  # What splitting the rows in halves would give.


def test_flat_qkv_and_the_convolution_by_hand():
  config = dataclasses.replace(
    hf_folders.QWEN35, delta_key_heads=2, delta_value_heads=2, delta_key_size=1, delta_value_size=3
  )
  names = name_map(config, prefix="model.", fused=True)
  assert names.tensors["model.layers.0.linear_attn.in_proj_qkv.weight"].shape == (2 + 2 + 6, 29)
  conv = np.arange(40.0).reshape(10, 1, 4)
  (link, _, _), = names.links("delta.conv_value", (slice(0, 1), slice(1, 2), *_whole((4, 2, 3))))
  assert link.tensor == "model.layers.1.linear_attn.conv1d.weight" and link.first == 4
  # The last tap of the first value channel is the last number of row 4.
  assert link.view(conv)[3, 0].tolist() == [19, 23, 27]


def test_gate_comes_before_up():
  names = name_map(hf_folders.QWEN3, prefix="model.", fused=False)
  box = (slice(1, 2), slice(0, 1), slice(3, 4), slice(0, 29), slice(12, 15))
  links = names.links("moe.gate_up", box)
  found = [(link.tensor, inside[-1], place[-1]) for link, inside, place in links]
  assert found == [
    ("model.layers.1.mlp.experts.3.gate_proj.weight", slice(12, 13), slice(0, 1)),
    ("model.layers.1.mlp.experts.3.up_proj.weight", slice(0, 2), slice(1, 3)),
  ]


def test_block_scales_of_any_box_equal_a_repeated_scale():
  rng = np.random.default_rng(0)
  link = Link("w", 6, ((3, 4), (7,)), (2, 0, 1))  # Rows 6 to 17 of a tensor of 23.
  scale = rng.random((5, 3)).astype(np.float32)
  whole = np.repeat(np.repeat(scale, 5, axis=0)[:23], 3, axis=1)[:, :7]
  expected = link.view(whole)
  ranges = [list(itertools.combinations(range(size + 1), 2)) for size in expected.shape]
  for corners in itertools.product(*(r[::3] for r in ranges)):
    box = tuple(slice(low, high) for low, high in corners)
    assert np.array_equal(link.block_scale(scale, (5, 3), box), expected[box])


def test_block_scales_of_fused_experts_are_per_expert():
  link = Link("w", 0, ((3,), (5,), (4,)), (0, 2, 1))
  scale = np.arange(3 * 3 * 2, dtype=np.float32).reshape(3, 3, 2)
  whole = np.repeat(np.repeat(scale, 2, axis=1)[:, :5], 3, axis=2)[:, :, :4]
  box = (slice(1, 3), slice(0, 4), slice(1, 5))
  assert np.array_equal(link.block_scale(scale, (2, 3), box), link.view(whole)[box])


@pytest.mark.parametrize(
  ("preset", "tensors", "parameters"),
  [
    ("qwen3.5-35b-a3b", 693, 34_660_610_688),
    ("qwen3.5-122b-a10b", None, 122_111_526_912),
    ("qwen3.5-397b-a17b", None, 396_346_350_336),
    ("qwen3-30b-a3b", None, 30_532_122_624),
  ],
)
def test_published_models_have_their_published_counts(preset, tensors, parameters):
  names = name_map(model_config(preset), prefix="model.language_model.", fused=True)
  assert sum(math.prod(spec.shape) for spec in names.tensors.values()) == parameters
  assert tensors is None or len(names.tensors) == tensors


def test_the_122b_index_has_6912_float32_numbers_besides_dt_bias():
  names = name_map(model_config("qwen3.5-122b-a10b"), prefix="model.", fused=True)
  wide = {n: s for n, s in names.tensors.items() if s.dtype == "float32" and "dt_bias" not in n}
  assert sum(math.prod(spec.shape) for spec in wide.values()) == 6912
  inner = {name.split(".", 3)[-1] for name in wide}
  assert inner == {"linear_attn.A_log", "linear_attn.norm.weight"}


def test_a_parameter_without_a_name_is_an_error(monkeypatch):
  extra = ParamSpec((3,), (None,), "zeros", 1, "float32")
  specs = lambda config: param_specs(config) | {"extra": extra}
  monkeypatch.setattr(hf_names, "param_specs", specs)
  with pytest.raises(ValueError, match="parameter extra has no name"):
    name_map(hf_folders.QWEN3, prefix="model.", fused=True)
