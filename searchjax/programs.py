"""The jitted functions of a run, as abstract programs for `searchjax.compile`.  HOST.

Which run a config describes is read off its keys: a group size makes it GRPO, a pair length the
preference model, else SFT. Nothing is allocated: parameters, moments and batches are shapes with
shardings, the functions are those the trainers jit.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from searchjax.dist.compiling import Program
from searchjax.dist.sharding import ROWS
from searchjax.model.config import ModelConfig, model_config
from searchjax.model.parallel import Division, divide, make_row_function
from searchjax.model.params import ParamSpec, active_param_count, param_specs
from searchjax.objective.bradley_terry import preference_probability
from searchjax.optim.optimizer import make_optimizer
from searchjax.optim.update import init_state, make_gradient, make_update, state_specs
from searchjax.reward.preference import pair_deltas
from searchjax.train_grpo import grpo_loss
from searchjax.train_rm import rm_loss
from searchjax.train_sft import sft_loss


def programs(config, mesh: Mesh) -> list[Program]:
  """The functions of `config`'s training step, on a mesh: the rollout engine's are not among them.

  Raises:
    ValueError: the config names no model preset, or something that does not divide.
  """
  if not config.get("model"):
    raise ValueError(
      "this config names no model (its stage takes the SFT policy's): pass one of the pod configs, "
      "e.g. configs/grpo_397b.py"
    )
  model = _model(config.model, config.compute)
  if "group_size" in config:
    return _grpo(config, model, mesh)
  if "pair_length" in config:
    return _preference(config, model, mesh)
  return _sft(config, model, mesh)


def _sft(config, model, mesh):
  division = divide(mesh, config.mesh.layout, param_specs(model))
  B, T = config.batch.rows, config.batch.length
  batch = {
    "tokens": _rows(mesh, B, T), "segment_ids": _rows(mesh, B, T), "positions": _rows(mesh, B, T),
    "loss_mask": _rows(mesh, B, T, dtype=bool),
  }
  return _training(config, model, division, sft_loss(model, division.parallel), batch, B * T)


def _preference(config, model, mesh):
  division = divide(mesh, config.mesh.layout, param_specs(model, value_head=True))
  batch = _pairs(mesh, config.rows, config.pair_length)
  loss = rm_loss(model, division.parallel)
  return _training(config, model, division, loss, batch, 2 * config.rows * config.pair_length)


def _grpo(config, model, mesh):
  division = divide(mesh, config.mesh.layout, param_specs(model))
  B, T = config.rows, max(config.lengths)
  batch = {
    "tokens": _rows(mesh, B, T), "mask": _rows(mesh, B, T, dtype=bool),
    "logp": _rows(mesh, B, T, dtype="float32"), "advantage": _rows(mesh, B, dtype="float32"),
    "valid": _rows(mesh, B, dtype=bool), "lengths": _rows(mesh, B),
  }
  loss = grpo_loss(
    model, division.parallel, temperature=config.temperature, strategy=config.mismatch,
    truncate_at=config.truncate_at or None,
  )
  rollouts = config.questions_per_step * config.group_size
  training = _training(config, model, division, loss, batch, B * T, batches=math.ceil(rollouts / B))
  preference = _model(config.preference, config.compute)
  head = divide(mesh, config.mesh.layout, param_specs(preference, value_head=True))
  pairs = _pairs(mesh, config.scorer.rows, config.scorer.length)
  score = make_row_function(
    lambda params, batch: preference_probability(
      *pair_deltas(params, preference, batch, head.parallel)
    ),
    head,
  )
  tokens = 2 * config.scorer.rows * config.scorer.length / mesh.devices.size
  return [
    *training,
    Program(
      "preference", score, (_params(preference, head, value_head=True), pairs),
      model_flops=2.0 * active_param_count(preference, embedding=False) * tokens,
      calls_per_step=math.ceil(rollouts / config.scorer.rows),
      kernel_costs=_splash_costs(preference, head, pairs["tokens"].shape),
    ),
  ]


def _training(config, model, division, loss, batch, tokens, batches=1):
  """The gradient of one micro-batch and the optimiser's step."""
  devices = division.mesh.devices.size
  optimizer = make_optimizer(model=model, total=config.steps, **config.optimizer)
  value_head = "value_head" in division.specs
  params = _params(model, division, value_head=value_head)
  state = jax.eval_shape(
    lambda p: init_state(p, optimizer, moment_dtype=config.moment_dtype), params
  )
  state = jax.tree.map(
    lambda leaf, spec: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=NamedSharding(division.mesh, spec)
    ),
    state, state_specs(state, division),
  )
  moments = sum(_bytes(leaf) for leaf in jax.tree.leaves(state.moments))
  denominator = jax.ShapeDtypeStruct(
    (), jnp.float32, sharding=NamedSharding(division.mesh, PartitionSpec())
  )
  arguments = (params, batch) if batches == 1 else (params, batch, params)
  return [
    Program(
      "gradient", make_gradient(loss, division), arguments,
      model_flops=6.0 * active_param_count(model, embedding=False) * tokens / devices,
      padded_flops=_padded_flops(model, division, tokens), calls_per_step=batches,
      resident={"moments": float(moments)},
      kernel_costs=_splash_costs(model, division, batch["tokens"].shape),
      advice="lower the rows or their length, or set compute.remat=layer and moment_dtype=bfloat16",
    ),
    Program(
      "update", make_update(optimizer), (state, params, denominator),
      advice="set moment_dtype=bfloat16, or take a larger slice",
    ),
  ]


def _padded_flops(model, division, tokens):
  """Of a gradient step, on buffer rows beyond an even load: forward, again, and backward."""
  if model.moe_dispatch == "dense" or not division.parallel.divided("experts"):
    return 0.0
  passes = 3.0 if model.remat == "none" else 4.0
  per_row = 6.0 * model.hidden_size * model.expert_size
  rows = (model.capacity_factor - 1.0) * tokens / division.mesh.devices.size
  return passes * per_row * rows * model.experts_per_token * model.num_layers


def _splash_costs(model, division, shape):
  """(FLOPs, HBM bytes) of the attention kernels for a device's rows: they state none themselves."""
  if model.attention_implementation != "splash":
    return {}
  p = division.parallel
  rows, T, H = shape[0] // (p.fsdp * p.expert), shape[1], model.head_size
  N = model.num_query_heads // p.context
  product = rows * N * T * T * H  # one causal product of scores or values: half of 2 T T H
  moved = rows * T * H * 2.0 * (2 * N + 2 * max(model.num_kv_heads // p.context, 1))
  return {
    "splash_mha_fwd_segmented_residuals": (2.0 * product, moved),
    "splash_mha_fwd_segmented_no_residuals": (2.0 * product, moved),
    "splash_mha_dq_segmented_no_residuals": (3.0 * product, 1.5 * moved),
    "splash_mha_dkv_segmented_no_residuals": (4.0 * product, 1.5 * moved),
  }


def _model(section, compute) -> ModelConfig:
  fields = dict(section) | dict(compute)
  return model_config(fields.pop("preset"), **fields)


def _params(model: ModelConfig, division: Division, *, value_head: bool):
  return jax.tree.map(
    lambda spec, part: jax.ShapeDtypeStruct(
      spec.shape, spec.dtype, sharding=NamedSharding(division.mesh, part)
    ),
    param_specs(model, value_head=value_head), division.specs,
    is_leaf=lambda x: isinstance(x, ParamSpec),
  )


def _rows(mesh, *shape, dtype="int32"):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, ROWS))


def _pairs(mesh, rows, length):
  return {
    "tokens": _rows(mesh, 2 * rows, length), "segment_ids": _rows(mesh, 2 * rows, length),
    "ends": _rows(mesh, 2 * rows, 2), "label": _rows(mesh, rows, dtype="float32"),
    "valid": _rows(mesh, rows, dtype=bool),
  }


def _bytes(leaf):
  part = leaf.sharding.shard_shape(leaf.shape)
  return math.prod(part) * jnp.dtype(leaf.dtype).itemsize
