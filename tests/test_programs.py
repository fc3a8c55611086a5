"""The programs that `python -m searchjax.compile` is given: every jitted function of a run."""

import pathlib

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from searchjax.dist import settings
from searchjax.dist.mesh import make_mesh
from searchjax.programs import programs

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENGINE = ["reshard", "prefill", "fork", "decode"]
NAMES = {
  "sft": ["gradient", "update", *ENGINE],
  "rm": ["gradient", "update", "holdout"],
  "grpo": ["gradient", "update", "preference", *ENGINE],
}


def pod_in_small(stage, **changes):
  """A pod card with the tiny model, on four devices."""
  config = ConfigDict(settings.load_config(str(ROOT / f"configs/{stage}_35b.py")).to_dict())
  config.mesh.fsdp, config.mesh.expert = 2, 2
  model = dict(preset="tiny", num_layers=2, full_attention_interval=2)
  # Two heads of each kind, so that they divide; three do not.
  config.model = ConfigDict(model | dict(delta_key_heads=2, delta_value_heads=2))
  config.compute = ConfigDict(dict(moe_dispatch="ragged", remat="none"))
  if stage == "grpo":
    config.preference = config.model
    config.rows, config.lengths, config.questions_per_step = 8, (64,), 3
    config.scorer.rows, config.scorer.length = 4, 32
    config.limits.tokens = 256
  config.update(changes)
  config.update(changes)
  return FrozenConfigDict(config)


def listed(config):
  mesh = make_mesh(2, 2, devices=jax.devices()[:4])
  return {program.name: program for program in programs(config, mesh)}


@pytest.mark.parametrize("stage", NAMES)
def test_a_run_lists_every_function_that_it_jits(stage):
  config = pod_in_small(stage)
  found = listed(config)
  assert list(found) == NAMES[stage]
  for program in found.values():
    assert all(leaf.sharding is not None for leaf in jax.tree.leaves(program.arguments))


def test_calls_of_a_step():
  """Three questions of 16 rollouts and 4 of the reference: 48 rows by 8, 48 pairs by 4."""
  found = listed(pod_in_small("grpo"))
  assert found["gradient"].calls_per_step == 6 and found["preference"].calls_per_step == 12
  # 60 conversations in waves of as many as the card has lanes, 256 tokens by 32.
  lanes = pod_in_small("grpo").engine.lanes
  assert found["decode"].most_calls == -(-60 // lanes) * 256 / 32


def test_what_a_run_holds_beside_a_program():
  found = listed(pod_in_small("grpo"))
  names = {name: set(program.resident) for name, program in found.items()}
  both = {"reference", "preference model"}
  assert names["gradient"] == {"moments", "caches"} | both
  assert names["decode"] == {"parameters", "moments"} | both
  assert names["preference"] == {
    "parameters", "moments", "policy in decode layout", "caches", "reference"
  }


@pytest.mark.parametrize("mismatch", ["token_is", "routing_replay", "bitwise"])
def test_the_gradient_takes_what_the_mismatch_strategy_reads(mismatch):
  gradient = listed(pod_in_small("grpo", mismatch=mismatch))["gradient"]
  with jax.numpy_dtype_promotion("standard"):
    total, sums = jax.eval_shape(gradient.function, *gradient.arguments)
  same = lambda a, b: a.shape == b.shape
  assert jax.tree.all(jax.tree.map(same, total, gradient.arguments[0]))
  assert sums["loss"].shape == ()


def test_the_held_out_pairs_of_the_preference_model():
  holdout = listed(pod_in_small("rm"))["holdout"]
  deltas = jax.eval_shape(holdout.function, *holdout.arguments)
  rows = pod_in_small("rm").rows
  assert [(d.shape, d.dtype) for d in deltas] == [((rows,), jnp.float32)] * 2


def test_model_flops_count_the_head_where_there_are_logits():
  """6 FLOPs a parameter and token with gradients, 2 without; tokens of a device, of four."""
  found = listed(pod_in_small("grpo"))
  policy = found["gradient"].model_flops / (6 * 8 * 64 / 4)
  assert policy - found["preference"].model_flops / (2 * 2 * 4 * 32 / 4) == 704 * 96
  assert found["decode"].model_flops == 2 * policy * 64 * 32 / 4
  fed = pod_in_small("grpo").engine
  assert found["prefill"].model_flops == (
    2 * (policy - 704 * 96) * fed.feed_rows * fed.feed_tokens / 4
  )


def test_a_config_without_a_model_says_which_has_one():
  config = settings.load_config(str(ROOT / "configs/grpo_tiny.py"))
  with pytest.raises(ValueError, match="names no model .* configs/grpo_397b.py"):
    listed(config)
