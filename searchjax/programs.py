"""The jitted functions of a run, as abstract programs for `searchjax.compile`.  HOST.

Which run a config describes is read off its keys: a group size makes it GRPO, a pair length the
preference model, else SFT. Nothing is allocated: parameters, moments and batches are shapes with
shardings, the functions are those the trainers jit. The rollout engine's are among them where it is
divided over the mesh (engine.layout=decode); scoring rollouts again runs the same ones.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from searchjax.dist.compiling import Program
from searchjax.dist.reshard import make_reshard
from searchjax.dist.sharding import DECODE, LAYOUTS, ROWS
from searchjax.model.attention import SPLASH_BACKWARD
from searchjax.model.config import ModelConfig, model_config
from searchjax.model.parallel import Division, divide, make_row_function
from searchjax.model.params import ParamSpec, active_param_count, param_specs
from searchjax.model.serving import sorted_rows
from searchjax.objective.bradley_terry import preference_probability
from searchjax.optim.optimizer import make_optimizer
from searchjax.optim.update import init_state, make_gradient, make_update, state_specs
from searchjax.reward.preference import pair_deltas
from searchjax.rollout.agent import engine_division
from searchjax.rollout.engine import (
  FORKS, divided_lanes, divided_state, make_divided_steps,
)
from searchjax.train_grpo import grpo_loss
from searchjax.train_rm import rm_loss
from searchjax.train_sft import sft_loss


def programs(config, mesh: Mesh) -> list[Program]:
  """The functions that `config`'s run jits for its model, on a mesh.

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
    return _beside(*_grpo(config, model, mesh))
  if "pair_length" in config:
    return _beside(*_preference(config, model, mesh))
  return _beside(*_sft(config, model, mesh))


def _beside(listed: list[tuple[Program, set]], held: dict[str, float]) -> list[Program]:
  """Programs with what the run holds beside each one's arguments.

  Args:
    listed: programs, and the names in `held` that are their arguments or not there while they run.
    held: bytes a device of everything that outlives a program.
  """
  return [
    dataclasses.replace(
      program, resident={n: float(b) for n, b in held.items() if b and n not in own}
    )
    for program, own in listed
  ]


def _sft(config, model, mesh):
  division = divide(mesh, config.mesh.layout, param_specs(model))
  B, T = config.batch.rows, config.batch.length
  batch = {
    "tokens": _rows(mesh, B, T), "segment_ids": _rows(mesh, B, T), "positions": _rows(mesh, B, T),
    "loss_mask": _rows(mesh, B, T, dtype=bool),
  }
  training, held = _training(
    config, model, division, sft_loss(model, division.parallel), batch, B * T
  )
  engine, beside = _engine(config, model, mesh, 0)
  return training + engine, held | beside


def _preference(config, model, mesh):
  division = divide(mesh, config.mesh.layout, param_specs(model, value_head=True))
  batch = _pairs(mesh, config.rows, config.pair_length)
  loss = rm_loss(model, division.parallel)
  training, held = _training(
    config, model, division, loss, batch, 2 * config.rows * config.pair_length
  )
  deltas = lambda params, batch: pair_deltas(params, model, batch, division.parallel)
  held_out = _on_pairs("holdout", deltas, model, division, batch, calls=0.0)
  return [*training, (held_out, {PARAMS})], held


def _grpo(config, model, mesh):
  division = divide(mesh, config.mesh.layout, param_specs(model))
  B, T = config.rows, max(config.lengths)
  batch = {
    "tokens": _rows(mesh, B, T), "mask": _rows(mesh, B, T, dtype=bool),
    "logp": _rows(mesh, B, T, dtype="float32"), "advantage": _rows(mesh, B, dtype="float32"),
    "valid": _rows(mesh, B, dtype=bool), "lengths": _rows(mesh, B),
  }
  if config.mismatch == "bitwise":
    batch["logp_engine"] = batch["logp"]
  elif config.mismatch == "routing_replay":
    batch["experts"] = _rows(mesh, B, T, model.num_layers, model.experts_per_token)
  loss = grpo_loss(
    model, division.parallel, temperature=config.temperature, strategy=config.mismatch,
    truncate_at=config.truncate_at or None,
  )
  rollouts = config.questions_per_step * config.group_size
  training, held = _training(
    config, model, division, loss, batch, B * T, accumulated=math.ceil(rollouts / B)
  )
  # The policy's rollouts and the frozen reference's, whose decode copy stays.
  engine, beside = _engine(
    config, model, mesh, rollouts + config.questions_per_step * config.references,
    again=config.mismatch == "bitwise", record_routing=config.mismatch == "routing_replay",
  )
  beside["reference"] = beside.get(COPY, _tree_bytes(_params(model, division, value_head=False)))
  preference = _model(config.preference, config.compute)
  head = divide(mesh, config.mesh.layout, param_specs(preference, value_head=True))
  pairs = _pairs(mesh, config.scorer.rows, config.scorer.length)
  probability = lambda params, batch: preference_probability(
    *pair_deltas(params, preference, batch, head.parallel)
  )
  scoring = _on_pairs(
    "preference", probability, preference, head, pairs,
    calls=math.ceil(rollouts / config.scorer.rows),
  )
  beside["preference model"] = _tree_bytes(scoring.arguments[0])
  return [*training, (scoring, {"preference model"}), *engine], held | beside


# What outlives a program.
PARAMS, MOMENTS = "parameters", "moments"
COPY, CACHES = "policy in decode layout", "caches"


def _engine(config, model, mesh, conversations, *, again=False, record_routing=False):
  """Reshard, feed and decode, and what they leave in memory; nothing without a decode layout.

  Args:
    conversations: in one step.
    again: whether they are scored again, with their tokens forced.
  """
  division = engine_division(config, model, mesh)
  if division is None:
    return [], {}
  settings, limits = config.engine, config.limits
  lanes, pool, length = settings.lanes, settings.get("pool", settings.lanes), limits.tokens
  devices = mesh.devices.size
  trained = divide(mesh, config.mesh.layout, param_specs(model))
  params = _params(model, division, value_head=False)
  cache = divided_state(model, mesh, pool, length)
  steps = make_divided_steps(
    model, division, pool=pool, length=length, record_routing=record_routing, restricted=False,
    stop_ids=(model.real_vocab_size - 2, model.real_vocab_size - 1),
  )
  spec = PartitionSpec(DECODE["lanes"])
  rows = lambda *shape: jax.ShapeDtypeStruct(
    shape, jnp.int32, sharding=NamedSharding(mesh, spec)
  )
  b, C, J = settings.feed_rows, settings.feed_tokens, settings.decode_steps
  fed = {name: rows(b) for name in ("slots", "length", "start")} | {"tokens": rows(b, C)}
  blocks = mesh.shape["fsdp"] * mesh.shape["context"]
  copied = {name: rows(blocks * FORKS) for name in ("source", "target")} | {"count": rows(blocks)}
  per_token = lambda logits: 2.0 * _multiplied(model, logits=logits) / devices
  # Each step reads all weights but the embedding, the keys and the values; states also come back.
  read = _tree_bytes(params) - (0 if model.tie_embeddings else _bytes(params["embed"]))
  # Of the pool, the rows that decode.
  active = lanes / pool
  waves = math.ceil(conversations / lanes) * (2 if again else 1)
  advice = "lower engine.pool or limits.tokens, or take a larger slice"
  return [
    (
      Program(
        "reshard", make_reshard(mesh, param_specs(model), LAYOUTS[config.mesh.layout], DECODE),
        (_params(model, trained, value_head=False),), calls_per_step=float(conversations > 0),
      ),
      {PARAMS, COPY},
    ),
    (
      Program(
        "prefill", steps.feed, (params, cache, fed), model_flops=per_token(False) * b * C,
        padded_flops=_idle_flops(model, b * C, devices), calls_per_step=0.0, advice=advice,
      ),
      {COPY, CACHES},
    ),
    (
      Program(
        "fork", steps.fork, (cache, copied), calls_per_step=0.0, advice=advice,
      ),
      {CACHES},
    ),
    (
      Program(
        "decode", steps.decode, (params, cache, divided_lanes(mesh, lanes, J)),
        model_flops=per_token(True) * lanes * J,
        padded_flops=J * _idle_flops(model, lanes, devices),
        least_hbm=J * (read + active * (_tree_bytes(cache) + _tree_bytes(cache.states))),
        calls_per_step=0.0, most_calls=waves * math.ceil(length / J), advice=advice,
      ),
      {COPY, CACHES},
    ),
  ], {COPY: _tree_bytes(params), CACHES: _tree_bytes(cache)}


def _idle_flops(model, tokens, devices):
  """FLOPs of the engine's expert rows beyond an even load, in the first round of each layer."""
  held = model.num_experts // devices
  rows = sorted_rows(model, tokens, held)
  rows *= held if model.moe_dispatch == "capacity" else 1
  idle = (rows or tokens * held) - tokens * model.experts_per_token / devices
  return 6.0 * model.hidden_size * model.expert_size * model.num_layers * idle


def _on_pairs(name, function, model, division, pairs, *, calls):
  """A forward pass of a preference model over pairs in both orders."""
  tokens = math.prod(pairs["tokens"].shape) / division.mesh.devices.size
  return Program(
    name, make_row_function(function, division),
    (_params(model, division, value_head=True), pairs),
    model_flops=2.0 * _multiplied(model, logits=False) * tokens, calls_per_step=calls,
    kernel_costs=_splash_costs(model, division, pairs["tokens"].shape),
  )


def _training(config, model, division, loss, batch, tokens, accumulated=0):
  """The gradient of one micro-batch and the optimiser's step, and what they leave in memory.

  Args:
    accumulated: how many micro-batches of a step are added to one gradient; 0: one, added to none.
  """
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
  denominator = jax.ShapeDtypeStruct(
    (), jnp.float32, sharding=NamedSharding(division.mesh, PartitionSpec())
  )
  arguments = (params, batch, params) if accumulated else (params, batch)
  # The policy's copy for rollouts is gone before the update begins.
  gradient = Program(
    "gradient", make_gradient(loss, division), arguments,
    model_flops=6.0 * _multiplied(model, logits=not value_head) * tokens / devices,
    padded_flops=_padded_flops(model, division, tokens), calls_per_step=accumulated or 1,
    kernel_costs=_splash_costs(model, division, batch["tokens"].shape),
    advice="lower the rows or their length, or set compute.remat=layer and moment_dtype=bfloat16",
  )
  update = Program(
    "update", make_update(optimizer), (state, params, denominator),
    advice="set moment_dtype=bfloat16, or take a larger slice",
  )
  return [
    (gradient, {PARAMS, COPY}), (update, {PARAMS, COPY, MOMENTS})
  ], {PARAMS: _tree_bytes(params), MOMENTS: _tree_bytes(state.moments)}


def _multiplied(model, *, logits):
  """Parameters that multiply each token; without logits (preference model, prefill) no head."""
  head = 0 if logits else model.vocab_size * model.hidden_size
  return active_param_count(model, embedding=False) - head


def _padded_flops(model, division, tokens):
  """Of a gradient step, on buffer rows beyond an even load: forward, again, and backward."""
  if model.moe_dispatch in ("dense", "tiles") or not division.parallel.divided("experts"):
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
  tiles = -(-T // SPLASH_BACKWARD[0])
  return {
    "splash_mha_fwd_segmented_residuals": (2.0 * product, moved),
    "splash_mha_fwd_segmented_no_residuals": (2.0 * product, moved),
    # All three gradients at once; a summand of the queries' a tile of keys.
    "splash_mha_dkv_segmented_no_residuals": (
      5.0 * product, 1.5 * moved + 2.0 * tiles * rows * T * N * H
    ),
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


def _tree_bytes(tree):
  return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _bytes(leaf):
  part = leaf.sharding.shard_shape(leaf.shape)
  return math.prod(part) * jnp.dtype(leaf.dtype).itemsize
