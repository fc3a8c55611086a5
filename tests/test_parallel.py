"""The same numbers on any mesh: losses, log-probs and every gradient of SFT, RM and GRPO steps,
and the rollout engine's log-probs.

Eight virtual devices against one; packed rows, expert buffers large enough to leave nothing out.
The difference is the l2 norm over the parameter, relative to the gradient's. `pytest -m slow`
compares every stage on every mesh.
"""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

MESHES = ((8, 1, 1), (1, 8, 1), (4, 2, 1), (2, 2, 2))
QUICK = {"sft": ((2, 2, 2),), "rm": (), "grpo": ((1, 8, 1),)}
DISPATCH = {"sft": "ragged", "rm": "capacity", "grpo": "dense"}


def report(meshes):
  """One line an array: stage, mesh, dispatch, relative difference, which."""
  import jax.numpy as jnp

  from searchjax.dist.mesh import make_mesh, place, place_rows
  from searchjax.model.config import model_config
  from searchjax.model.parallel import divide
  from searchjax.model.params import init_params, param_specs
  from searchjax.optim.update import make_gradient
  from searchjax.train_grpo import grpo_loss
  from searchjax.train_rm import rm_loss
  from searchjax.train_sft import sft_loss

  B, T = 8, 24
  rng = np.random.default_rng(0)
  tokens = rng.integers(1, 61, (B, T)).astype(np.int32)
  segments = np.ones((B, T), np.int32)
  segments[:, 13:], segments[3, 21:], segments[5, 7:] = 2, 0, 3
  positions = np.zeros((B, T), np.int32)
  for row, ids in zip(positions, segments, strict=True):
    for t in range(1, T):
      row[t] = row[t - 1] + 1 if ids[t] == ids[t - 1] else 0
  packed = dict(tokens=tokens, segment_ids=segments, positions=positions,
                loss_mask=(segments > 0) & (positions > 0))
  lengths = rng.integers(9, T, B).astype(np.int32)
  mask = (np.arange(T) >= 3) & (np.arange(T) < lengths[:, None])
  rollouts = dict(
    tokens=tokens, mask=mask, logp=np.where(mask, -3.0, 0.0).astype(np.float32),
    advantage=rng.normal(size=B).astype(np.float32), valid=np.arange(B) != 6, lengths=lengths,
  )
  # The preference model reads 2 rows a pair, so 16 rows.
  pairs = dict(
    tokens=np.concatenate([tokens, tokens[::-1]]), segment_ids=np.ones((16, T), np.int32),
    ends=np.tile(np.array([[11, 23]], np.int32), (16, 1)),
    label=np.tile(np.array([1, 0.5, 0, 1], np.float32), 2), valid=np.arange(8) != 5,
  )

  def compare(stage, meshes, **changes):
    dispatch = DISPATCH[stage]
    # DeltaNet heads of 32, the least of any preset. Where a state decays within a token, its output
    # is (q·k) β v, and the norm divides q·k out: what is left for queries and keys is small beside
    # what rounds. In heads of 8, q·k is near 0 so often that float32 is off float64 by up to 2.7e-5
    # there (four draws of one layer; 3.4e-6 if states decay slowly); in heads of 32, by 2.8e-6.
    model = model_config(
      "tiny", hidden_size=32, num_layers=2, full_attention_interval=2, num_query_heads=8,
      num_kv_heads=1, head_size=16, rotary_dims=8, num_experts=8, experts_per_token=3,
      expert_size=16, shared_expert_size=16, vocab_size=64, real_vocab_size=61, delta_key_heads=4,
      delta_value_heads=8, delta_key_size=32, delta_value_size=32, chunk_length=8,
      moe_dispatch=dispatch, capacity_factor=8.0,
      remat="layer" if stage == "rm" else "parts",
      moe_exchange="gather" if stage == "rm" else "all_to_all", exchange_factor=8.0,
      moe_chunk=12 if stage == "sft" else 0, delta_block=16 if stage == "sft" else 0,
      router_aux_loss_coef=0.1 if stage == "sft" else 0.0, tie_embeddings=False, **changes,
    )
    params = init_params(jax.random.key(0), model)
    if stage == "rm":
      params["value_head"] = jnp.cos(jnp.arange(32, dtype=jnp.float32))
    # Larger activations, so that no gradient is a small difference of large terms.
    params["embed"] = params["embed"] * 50
    batch = {"sft": packed, "rm": pairs, "grpo": rollouts}[stage]
    want = None
    for mesh in ((1, 1, 1), *meshes):
      division = divide(
        make_mesh(*mesh, devices=jax.devices()[: int(np.prod(mesh))]),
        "zero3" if max(mesh) > 1 else "replicated", param_specs(model, value_head=stage == "rm"),
      )
      loss = {
        "sft": lambda p: sft_loss(model, p),
        "rm": lambda p: rm_loss(model, p),
        "grpo": lambda p: grpo_loss(
          model, p, temperature=0.7, strategy="token_is", truncate_at=None
        ),
      }[stage](division.parallel)
      grads, sums = make_gradient(loss, division)(
        place(params, division.mesh, division.specs), place_rows(batch, division.mesh)
      )
      got = jax.tree.map(lambda a: np.asarray(a, np.float64), (grads, sums))
      if want is None:
        want = got
        continue
      difference = jax.tree.map(
        lambda a, b: np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-12), want, got
      )
      for path, value in jax.tree_util.tree_leaves_with_path(difference):
        print(stage, "x".join(map(str, mesh)), dispatch, f"{value:.2e}",
              jax.tree_util.keystr(path), flush=True)

  for stage, chosen in meshes.items():
    if chosen:
      compare(stage, chosen, scan_layers=stage != "rm")


def report_engine(meshes, layers):
  """One line a mesh: relative and largest difference of log-probs, other expert ids, tokens.

  Conversations of several turns, prompts of different lengths, more of them than lanes: sampled on
  one device, then forced on every mesh, through the reshard from the training layout.
  """
  from test_engine import Scripted

  from searchjax.dist.mesh import make_mesh, place
  from searchjax.dist.reshard import make_reshard
  from searchjax.dist.sharding import LAYOUTS
  from searchjax.model import serving
  from searchjax.model.config import model_config
  from searchjax.model.parallel import divide
  from searchjax.model.params import init_params, param_specs
  from searchjax.rollout.engine import EngineGroup
  from searchjax.rollout.rescore import Rescored

  model = model_config(
    "tiny", hidden_size=32, num_layers=layers, full_attention_interval=3, num_query_heads=16,
    num_kv_heads=2, head_size=8, rotary_dims=4, num_experts=16, experts_per_token=3, expert_size=16,
    shared_expert_size=16, vocab_size=64, real_vocab_size=61, delta_key_heads=8,
    delta_value_heads=16, delta_key_size=8, delta_value_size=8, chunk_length=8,
    moe_dispatch="ragged", tie_embeddings=False,
  )
  params = init_params(jax.random.key(0), model)
  params["embed"] = params["embed"] * 50
  settings = dict(
    lanes=8, pool=16, length=64, feed_rows=8, feed_tokens=7, decode_steps=3, stop_ids=(7,),
    record_routing=True,
  )
  serving.DENSE_TOKENS = 16  # So that feeds sort tokens by expert, as large ones do.
  alone = EngineGroup(model, devices=jax.devices()[:1], **settings)
  said = [Scripted(n) for n in range(11)] + [Scripted(3) for _ in range(2)]
  for i in (11, 12):  # Three conversations share a prompt.
    said[i].key = said[i].key + np.uint32(i)
  alone.run(params, said, temperature=0.7)
  specs = param_specs(model)
  for mesh in meshes:
    on = make_mesh(*mesh, devices=jax.devices()[: int(np.prod(mesh))])
    trained = divide(on, "zero3", specs)
    reshard = make_reshard(on, specs, LAYOUTS["zero3"], LAYOUTS["decode"])
    engine = EngineGroup(
      model, devices=[], division=divide(on, "decode", specs), **settings
    )
    again = [Rescored(c) for c in said]
    engine.run(reshard(place(params, on, trained.specs)), again, temperature=0.7)
    got, want = (np.concatenate([c.logps for c in group]) for group in (again, said))
    routing = [np.concatenate([np.concatenate(c.routing) for c in group]) for group in (again, said)]
    print(
      "engine", "x".join(map(str, mesh)),
      f"{np.linalg.norm(got - want) / np.linalg.norm(want):.2e}", f"{abs(got - want).max():.2e}",
      int((routing[0] != routing[1]).sum()), np.count_nonzero(want), flush=True,
    )


def lines(code):
  # Eight devices: the tests' own process has four.
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path),
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=1",
  }
  done = subprocess.run(
    [sys.executable, "-c", f"import test_parallel; test_parallel.{code}"], env=environment,
    cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, timeout=1800,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
  "meshes", [QUICK, pytest.param(dict.fromkeys(QUICK, MESHES), marks=pytest.mark.slow)],
  ids=["some", "all"],
)
def test_losses_and_gradients_do_not_depend_on_the_mesh(meshes):
  rows = lines(f"report({meshes!r})")
  assert len({(r[0], r[1]) for r in rows}) == sum(map(len, meshes.values()))
  for stage, mesh, dispatch, worst, where in rows:
    assert float(worst) <= 1e-5, f"{stage} on {mesh}, {dispatch}: {worst} at {where}"


@pytest.mark.parametrize(
  "meshes, layers", [(((2, 2, 2),), 3), pytest.param(MESHES, 6, marks=pytest.mark.slow)],
  ids=["one", "all"],
)
def test_the_engines_logprobs_and_experts_do_not_depend_on_the_mesh(meshes, layers):
  rows = lines(f"report_engine({meshes!r}, {layers})")
  assert len(rows) == len(meshes)
  for _, mesh, relative, largest, other_experts, tokens in rows:
    assert float(relative) <= 1e-5 and float(largest) <= 1e-4, f"{mesh}: {relative}, {largest}"
    assert int(other_experts) == 0 and int(tokens) > 100
