"""Runs of two processes over gloo: the numbers of one process, whole records, named deaths.

FAULTS Y6 (the same calls in the same order), Y7 (one mesh for sampling and training), C5, C6.
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.dist import checkpoint, settings
from searchjax.dist.mesh import make_mesh
from searchjax.dist.run_log import write_json
from searchjax.model.params import init_params
from searchjax.optim.optimizer import make_optimizer
from searchjax.optim.update import init_state
from searchjax.rollout.agent import load_chat, new_model, save_policy
from searchjax.search.server import start_server

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 3
SMALL = [
  f"--config.steps={STEPS}", "--config.checkpoint_every=2", "--config.engine.decode_steps=16",
  "--config.data.questions=30", "--config.data.chats=5", "--config.data.rubric_share=0.25",
  "--config.limits.turn_tokens=16", "--config.limits.tokens=128", "--config.lengths=128",
]
# Parameters and moments divided over the devices of both processes.
DIVIDED = ["--config.mesh.layout=zero3", "--config.mesh.fsdp=4", "--config.mesh.expert=2"]
# Weights, heads and positions over both processes, for training and for rollouts: a pod's program.
POD = [
  "--config.mesh.layout=zero3", "--config.mesh.fsdp=1", "--config.mesh.expert=2",
  "--config.engine.layout=decode",
]
HEADS = {"delta_key_heads": 2, "delta_value_heads": 2}  # three do not divide
SFT = [
  *DIVIDED, "--config.steps=3", "--config.checkpoint_every=3", "--config.batch.rows=8",
  "--config.batch.length=128", "--config.limits.tokens=128", "--config.limits.turn_tokens=16",
  "--config.data.questions=30", "--config.data.chats=10", "--config.gate.questions=2",
]
RM = [
  *DIVIDED, "--config.steps=3", "--config.rows=8", "--config.holdout_every=3",
  "--config.data.questions=30", "--config.data.chats=5",
]
# What depends on when searches answer.
TIMES = ("rollout_seconds", "score_seconds", "update_seconds", "lane_use")
SAMPLED = ("rollout_accuracy", "rollout_tool_calls")
LIMIT_S = 20.0


def free_port():
  with socket.create_server(("127.0.0.1", 0)) as probe:
    return probe.getsockname()[1]


def start(words, *, processes, devices, cache, module=None):
  """Starts every process of a run; module None runs recorded_grpo.py with `words`."""
  where = f"127.0.0.1:{free_port()}"
  started = []
  for process in range(processes):
    entry = ["-m", f"searchjax.{module}"] if module else ["tests/end_to_end/recorded_grpo.py"]
    more = [] if processes == 1 else [
      f"--config.distributed.coordinator={where}", f"--config.distributed.processes={processes}",
      f"--config.distributed.process={process}", "--config.distributed.form_limit_s=240.0",
      f"--config.distributed.silence_limit_s={LIMIT_S}",
    ]
    environment = os.environ | {
      "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
      "XLA_FLAGS": f"--xla_backend_optimization_level=0 "
                   f"--xla_force_host_platform_device_count={devices}",
    }
    started.append(
      subprocess.Popen(
        [sys.executable, *entry, *words, *more], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
      )
    )
  return started


def finish(started, timeout=900):
  """Waits for all; (exit code, stdout, stderr) of each."""
  try:
    ends = []
    for process in started:
      out, err = process.communicate(timeout=timeout)
      ends.append((process.returncode, out, err))
    return ends
  finally:
    for process in started:
      with contextlib.suppress(ProcessLookupError):
        process.kill()


def run(words, **settings):
  for code, out, err in finish(start(words, **settings)):
    assert code == 0, out[-2000:] + err[-4000:]


def words(stage, workdir, *more):
  config = {"train_grpo": "grpo_tiny", "train_sft": "sft_tiny", "train_rm": "rm_tiny"}[stage]
  return ["--config", f"configs/{config}.py:smoke", "--workdir", str(workdir), *more]


def small_model(**sizes):
  """Two layers, one of each kind: all of the time here is compilation."""
  config = settings.load_config(str(ROOT / "configs/sft_tiny.py"))
  section = dict(config.model) | {"num_layers": 2, "full_attention_interval": 2} | sizes
  return config, new_model(section, load_chat(""), dict(config.compute))


def untrained(folder, **sizes):
  """A policy and a preference model as their stages leave them, never trained."""
  config, model = small_model(**sizes)
  params = init_params(jax.random.key(5), model)
  head = jax.random.normal(jax.random.key(6), (model.hidden_size,), jnp.float32)
  for stage, of in (("sft", params), ("rm", params | {"value_head": head})):
    save_policy(folder / stage, 1, of, model)
    write_json(folder / stage / "config.json", config.to_dict())


def metrics(workdir):
  rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def read_blocks(folder):
  """A checkpoint's arrays, whole."""
  arrays = {
    name: np.zeros(leaf.shape, leaf.dtype)
    for name, leaf in checkpoint.saved_shapes(folder).items()
  }
  for name, box, values in checkpoint.saved_blocks(folder):
    arrays[name][box] = values
  return arrays


def records(workdir):
  return {
    (r["step"], r["question_id"], r["rollout"]): r
    for path in sorted((workdir / "rollouts").glob("*.jsonl"))
    for r in map(json.loads, path.read_text().splitlines())
  }


def check_the_same_numbers(one, two):
  """Rewards and counts equal; what is computed over all devices to rounding."""
  rows = list(zip(metrics(one), metrics(two), strict=True))
  assert len(rows) == STEPS
  for a, b in rows:
    assert a.keys() == b.keys()
    for name in a:
      # Two roundings of one sum; the means of log-ratios and of the objective are zero but for that.
      rtol = 1e-4 if name == "grad_norm" else 1e-5
      np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=1e-6, err_msg=name)
  a, b = records(one), records(two)
  assert a.keys() == b.keys()
  for key, r in a.items():
    assert r["tokens"] == b[key]["tokens"] and r["turns"] == b[key]["turns"]
    assert r["reward"]["base"] == b[key]["reward"]["base"]
    # Before the first update the engines compute the very same; after it they see rounded weights.
    np.testing.assert_allclose(r["logp"], b[key]["logp"], atol=2e-6 if key[0] == 0 else 1e-4)
    np.testing.assert_allclose(r["advantage"], b[key]["advantage"], atol=1e-5)


def check_records(workdir, questions, group_size):
  """Nothing lost, nothing twice, every record whole, groups of more than one completion."""
  found = records(workdir)
  lines = sum(
    path.read_text().count("\n") for path in (workdir / "rollouts").glob("*.jsonl")
  )
  assert lines == len(found) == STEPS * questions * group_size
  for r in found.values():
    assert len(r["tokens"]) == len(r["mask"]) == len(r["logp"])
    assert all(p == 0 for p, m in zip(r["logp"], r["mask"], strict=True) if not m)
    assert all(p < 0 for p, m in zip(r["logp"], r["mask"], strict=True) if m)
    assert r["reward"]["total"] == pytest.approx(
      r["reward"]["base"] * r["reward"]["preference"] - r["reward"]["penalty"], abs=1e-6
    )
    assert 0 <= r["reward"]["preference"] <= 1 and r["valid"]
  groups = {}
  for (step, question, _), r in found.items():
    groups.setdefault((step, question), []).append(r)
  assert len(groups) == STEPS * questions
  for group in groups.values():
    assert [r["rollout"] for r in group] == list(range(group_size))
    assert abs(sum(r["advantage"] for r in group)) < 1e-3
    sampled = [tuple(r["tokens"]) for r in group if r["rollout"] > 1]
    assert len(set(sampled)) == len(sampled), "the sampled completions of a group are the same"
  assert sum(r["tool_calls"] for r in found.values()) >= STEPS * 2
  assert any(turn["role"] == "tool" for r in found.values() for turn in r["turns"])


@pytest.fixture(scope="module")
def service():
  """One search service for all processes, as a pod has."""
  with start_server() as url:
    yield f"--config.search.url={url}"


@pytest.fixture(scope="module")
def short(tmp_path_factory, service):
  """Two processes of one device, recorded and traced; one process of two devices, replayed.

  Training and the rollout engine are divided over both.
  """
  folder = tmp_path_factory.mktemp("short")
  untrained(folder, **HEADS)
  tape, cache = folder / "tape", folder / "cache"
  traced = ["--config.profile.first_step=1", "--config.profile.steps=1"]
  run(["record", tape, *words("train_grpo", folder / "two", service, *SMALL, *POD, *traced)],
      processes=2, devices=1, cache=cache)
  run(["replay", tape, *words("train_grpo", folder / "one", service, *SMALL, *POD)], processes=1,
      devices=2, cache=cache)
  return folder


def test_Y6_Y7_two_processes_give_the_numbers_of_one_on_forced_tokens(short):
  check_the_same_numbers(short / "one", short / "two")


def test_C6_T1_a_sampled_run_of_two_processes_has_whole_records_written_once(short):
  check_records(short / "two", questions=4, group_size=4)
  assert json.loads((short / "two/config.json").read_text())["distributed"]["process"] == 0


def test_Y6_every_process_traces_the_step_that_the_config_names(short):
  folder = short / "two/profile/plugins/profile/steps_000001_000001"
  for process in (0, 1):
    assert (folder / f"process_00{process}.xplane.pb").stat().st_size > 1000


def test_C5_checkpoints_of_two_processes_are_restored_into_another_mesh_and_donated(short):
  """Four devices of one process, parameters and moments divided; the numbers of the other run."""
  _, model = small_model(**HEADS)
  config = settings.load_config(str(ROOT / "configs/grpo_tiny.py:smoke"))
  mesh = make_mesh(2, 2)
  optimizer = make_optimizer(model=model, total=STEPS, **config.optimizer)

  def whole_state(key):
    return init_state(init_params(key, model), optimizer)

  def divided(leaf):
    over = "expert" if leaf.ndim and leaf.shape[-1] % 2 == 0 else None
    spec = jax.sharding.PartitionSpec(*[None] * (leaf.ndim - 1), over)
    if not leaf.ndim:
      spec = jax.sharding.PartitionSpec()
    return jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=jax.sharding.NamedSharding(mesh, spec)
    )

  template = jax.tree.map(divided, jax.eval_shape(whole_state, jax.random.key(0)))
  states = []
  for name in ("one", "two"):
    assert checkpoint.latest_step(short / name / "checkpoints") == STEPS
    state, meta = checkpoint.restore(short / name / "checkpoints", template)
    states.append((state, meta))
  (one, meta), (two, other_meta) = states
  assert meta == other_meta and int(two.step) == STEPS
  for a, b, wanted in zip(*map(jax.tree.leaves, (one, two, template)), strict=True):
    assert b.sharding == wanted.sharding
    # Adam divides small moments by each other: rounding shows more than in the losses.
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-5)
  jax.jit(lambda s: jax.tree.map(lambda x: x + x, s), donate_argnums=0)(two)
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(two))


@pytest.fixture(scope="module")
def before_grpo(tmp_path_factory, service):
  """SFT and the preference model after it, by two processes of four devices and one of eight."""
  folder = tmp_path_factory.mktemp("before_grpo")
  untrained(folder, **HEADS)
  for name, processes in (("one", 1), ("two", 2)):
    several = {"processes": processes, "devices": 8 // processes, "cache": folder / "cache"}
    run(words("train_sft", folder / name / "sft", service, f"--config.init={folder / 'sft'}", *SFT),
        module="train_sft", **several)
    run(words("train_rm", folder / name / "rm", *RM), module="train_rm", **several)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", "rm"])
def test_Y6_two_processes_train_what_one_trains(before_grpo, stage):
  """Losses, gradients and every parameter, with the model divided over both."""
  runs = [before_grpo / name / stage for name in ("one", "two")]
  rows = list(zip(*map(metrics, runs), strict=True))
  assert len(rows) == 3
  for a, b in rows:
    assert a.keys() == b.keys()
    for name in a.keys() - set(SAMPLED):
      rtol = 1e-4 if name == "grad_norm" else 1e-5
      np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=1e-6, err_msg=name)
  policies = [read_blocks(folder / "policy") for folder in runs]
  assert policies[0].keys() == policies[1].keys()
  for name, values in policies[0].items():
    np.testing.assert_allclose(values, policies[1][name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def long(tmp_path_factory, service):
  """Two processes of four devices, recorded; one process of eight, replayed.

  Every device has the whole policy and its own engine.
  """
  folder = tmp_path_factory.mktemp("long")
  untrained(folder)
  tape, cache = folder / "tape", folder / "cache"
  run(["record", tape, *words("train_grpo", folder / "two", service, *SMALL)], processes=2,
      devices=4, cache=cache)
  run(["replay", tape, *words("train_grpo", folder / "one", service, *SMALL)], processes=1,
      devices=8, cache=cache)
  return folder


@pytest.mark.slow
def test_Y6_Y7_two_processes_of_four_devices_give_the_numbers_of_one_of_eight(long):
  check_the_same_numbers(long / "one", long / "two")
  check_records(long / "two", questions=4, group_size=4)


@pytest.mark.slow
def test_C1_a_run_of_which_a_process_was_killed_goes_on_with_another_number_of_them(long, service):
  arguments = ["replay", long / "tape", *words("train_grpo", long / "cut", service, *SMALL)]
  started = start(arguments, processes=2, devices=4, cache=long / "cache")
  deadline = time.monotonic() + 900
  while checkpoint.latest_step(long / "cut/checkpoints") is None and time.monotonic() < deadline:
    assert started[0].poll() is None
    time.sleep(0.1)
  started[1].kill()
  (code, _, err), _ = finish(started)
  assert code == 1 and "error: process 1 (" in err and "died in" in err
  run(arguments, processes=1, devices=8, cache=long / "cache")
  check_the_same_numbers(long / "one", long / "cut")


STANDING = """
import os, signal, sys, time
from searchjax.dist import distributed
where, process, victim, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
section = dict(coordinator=where, processes=2, process=process, form_limit_s=120.0,
               silence_limit_s=8.0, stall_limit_s=100.0)
with distributed.join({"distributed": section}) as run:
  for step in range(1000):
    run.phase(f"step {step}")
    if step == 3 and process == victim:
      print("now", time.time(), flush=True)
      os.kill(os.getpid(), getattr(signal, how))
    distributed.exchange(b"x")
    time.sleep(0.05)
"""


@pytest.mark.parametrize("victim, how, word", [
  (0, "SIGKILL", "died in step 3"),
  (1, "SIGKILL", "died in step 3"),
  (1, "SIGSTOP", "has given no sign of life for 8 s (in step 3)"),
  pytest.param(0, "SIGSTOP", "has given no sign of life for 8 s (in step 3)",
               marks=pytest.mark.slow),
])
def test_a_process_that_died_or_stands_still_is_named_within_the_limit(
  victim, how, word, plain_environment
):
  where = f"127.0.0.1:{free_port()}"
  started = [
    subprocess.Popen([sys.executable, "-c", STANDING, where, str(p), str(victim), how],
                     env=plain_environment, text=True, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE)
    for p in (0, 1)
  ]
  try:
    out, err = started[1 - victim].communicate(timeout=200)
    ended = time.time()
    assert started[1 - victim].returncode == 1, out + err
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1, err
    assert f"error: process {victim} (" in said[0] and word in said[0]
    started[victim].kill()
    began = float(started[victim].communicate(timeout=60)[0].split("now ")[1].split()[0])
    # The limit, a beat, and what a busy machine adds.
    assert ended - began < (8 if how == "SIGSTOP" else 0) + 12
  finally:
    for process in started:
      with contextlib.suppress(ProcessLookupError):
        process.kill()
      process.communicate()
