"""Parameter trees: published counts, axes, dtypes, defaults, layers in order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.model.config import PRESETS, model_config
from searchjax.model.params import (
  ParamSpec,
  active_param_count,
  init_params,
  param_count,
  param_specs,
  unstack_layers,
)


@pytest.mark.parametrize("name, total", [
  ("qwen3.5-397b-a17b", 396_346_350_336),
  ("qwen3.5-122b-a10b", 122_111_526_912),
  ("qwen3.5-35b-a3b", 34_660_610_688),
  ("qwen3-30b-a3b", 30_532_122_624),
])
def test_parameter_counts_of_the_published_models(name, total):
  assert param_count(model_config(name)) == total


@pytest.mark.parametrize("name, with_embedding, without", [
  ("qwen3.5-397b-a17b", 17.35, 16.33),
  ("qwen3.5-122b-a10b", 9.77, 9.01),
  ("qwen3.5-35b-a3b", 3.45, 2.95),
  ("qwen3-30b-a3b", 3.35, 3.04),
])
def test_active_parameters_of_the_published_models(name, with_embedding, without):
  config = model_config(name)
  billions = lambda **how: round(active_param_count(config, **how) / 1e9, 2)
  assert (billions(), billions(embedding=False)) == (with_embedding, without)


def test_a_tied_embedding_is_the_head_too():
  config = model_config("tiny")
  assert active_param_count(config, embedding=False) == active_param_count(config)
  # 4 layers, 6 of 8 experts idle, 3 matrices of 96 · 32.
  assert param_count(config) - active_param_count(config) == 4 * 6 * 3 * 96 * 32


def leaves(config):
  return jax.tree.leaves(param_specs(config), is_leaf=lambda x: isinstance(x, ParamSpec))


@pytest.mark.parametrize("name", PRESETS)
def test_every_parameter_has_one_axis_name_a_dimension(name):
  assert all(len(s.shape) == len(s.axes) for s in leaves(model_config(name)))


def test_what_is_float32_in_a_bfloat16_model():
  specs = param_specs(model_config("qwen3.5-35b-a3b"))
  wide = {n for n, s in specs["delta"].items() if s.dtype == "float32"}
  assert wide == {"A_log", "dt_bias", "out_norm"}
  others = [s for n, s in specs["moe"].items()] + [specs["embed"], specs["head"]]
  assert all(s.dtype == "bfloat16" for s in others)


@pytest.mark.parametrize("zero_centred, block", [(True, "zeros"), (False, "ones")])
def test_G3_every_norm_starts_with_scale_one(zero_centred, block):
  """FAULTS G3: block norms start at 0 where they multiply by 1 + w; the gated norm always at 1."""
  specs = param_specs(model_config("tiny", zero_centred_norm=zero_centred))
  norms = [specs["final_norm"], *(specs[k]["norm"] for k in ("attention", "delta", "moe"))]
  norms += [specs["attention"]["query_norm"], specs["attention"]["key_norm"]]
  assert all(spec.init == block for spec in norms)
  assert specs["delta"]["out_norm"].init == "ones"


def test_initial_values():
  config = model_config(
    "tiny", hidden_size=16, num_layers=2, full_attention_interval=2, vocab_size=101,
    real_vocab_size=101, delta_value_heads=30,
  )
  params = jax.jit(lambda key: init_params(key, config))(jax.random.key(0))
  assert np.all(params["attention"]["norm"] == 0.0) and np.all(params["delta"]["out_norm"] == 1.0)
  rate = np.exp(params["delta"]["A_log"])
  assert np.all((rate > 0.0099) & (rate < 16.01)) and rate.std() > 1
  np.testing.assert_allclose(params["embed"].std(), 0.02, rtol=0.1)
  np.testing.assert_allclose(params["moe"]["gate_up"].std(), 16**-0.5, rtol=0.1)


def test_layers_come_in_order():
  config = model_config("tiny", num_layers=6, full_attention_interval=3)
  count = lambda *lead: jnp.arange(np.prod(lead)).reshape(lead)
  tree = {
    "attention": {"a": count(2)}, "delta": {"d": count(2, 2)}, "moe": {"m": count(2, 3)},
  }  # fmt: skip
  unstacked = unstack_layers(tree | {"embed": "untouched"}, config)
  layers = unstacked.pop("layers")
  assert unstacked == {"embed": "untouched"}
  assert [x.kind for x in layers] == ["delta", "delta", "attention"] * 2
  assert [int(x.moe["m"]) for x in layers] == list(range(6))
  assert [int(*x.mixer.values()) for x in layers] == [0, 1, 0, 2, 3, 1]
