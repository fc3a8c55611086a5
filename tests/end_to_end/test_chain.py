"""The whole chain, small: two runs agree bit for bit, one of them killed on the way; golden curves.

One run is made as it is; the other's GRPO is killed after a few steps and started again. Their
metrics must be equal in every digit (times aside), which holds determinism and resuming (FAULTS C1)
at once.

`python tests/end_to_end/test_chain.py` writes the golden curves anew; say why in the commit.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/curves.json"
STAGES = {
  "sft": ("train_sft", "sft_tiny", ["--config.steps=10", "--config.gate.every=10",
                                    "--config.checkpoint_every=10"]),
  "rm": ("train_rm", "rm_tiny", ["--config.steps=10", "--config.holdout_every=10"]),
  # With the sampler's experts: in a policy this new two of them may tie to rounding, and training
  # choose the other (R6; seen once in ten steps, as a k3 of 7e-6).
  "grpo": ("train_grpo", "grpo_tiny", ["--config.steps=10", "--config.checkpoint_every=2",
                                       "--config.mismatch=routing_replay"]),
  "eval": ("evaluate", "evaluate_tiny", []),
}
# By metric, how far another machine may be over how many steps. Optimisers that normalise amplify
# rounding: between two machines, SFT's losses differ by 2e-7 in the first three steps and by 1e-3
# in ten, its gradient norms by 1e-3 in three and then by a factor of two; the preference model, which
# begins where SFT ends, by 6e-4 in the losses of four steps and 1.3e-2 in those of ten, and by 8 % in
# three gradient norms; GRPO by 22 % in its first gradient norm, in its first penalties not at all, and
# by 7 % in the lengths of ten steps. So the first steps hold the code, and later losses that it learns.
CURVES = {
  "sft": {"loss": [(1e-5, 3), (0.002, 10)], "grad_norm": [(0.01, 3)]},
  "rm": {"loss": [(0.002, 4), (0.025, 10)], "grad_norm": [(0.3, 3)]},
  "grpo": {
    "generated_length": [(0.25, 10)], "penalty": [(0.05, 1)], "length_penalty": [(0.05, 1)],
    "grad_norm": [(0.25, 1)],
  },
}
# How full the lanes are depends on when searches answer.
TIMES = ("rollout_seconds", "score_seconds", "update_seconds", "lane_use")


def command(workdir, stage):
  module, config, overrides = STAGES[stage]
  return [sys.executable, "-m", f"searchjax.{module}", "--config", f"configs/{config}.py:smoke",
          "--workdir", str(workdir / stage), *overrides]


def environment(cache):
  # One device; compilation, most of the time here, costs a third less at this level.
  return os.environ | {
    "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache),
    "XLA_FLAGS": "--xla_backend_optimization_level=1",
  }


def run(workdir, cache, stage):
  done = subprocess.run(command(workdir, stage), cwd=ROOT, env=environment(cache),
                        capture_output=True, text=True, timeout=900)
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def run_killed(workdir, cache, stage, after):
  """Starts a stage, kills it when `after` metric lines stand, and starts it again."""
  lines = workdir / stage / "metrics.jsonl"
  process = subprocess.Popen(command(workdir, stage), cwd=ROOT, env=environment(cache),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  deadline = time.monotonic() + 600
  while time.monotonic() < deadline and process.poll() is None:
    if lines.is_file() and lines.read_text().count("\n") >= after:
      process.send_signal(signal.SIGKILL)
      break
    time.sleep(0.02)
  assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"
  run(workdir, cache, stage)


def metrics(workdir, stage):
  lines = (workdir / stage / "metrics.jsonl").read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def chains(tmp_path_factory, cache):
  whole, killed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
  for stage in STAGES:
    run(whole, cache, stage)
  for stage in ("sft", "rm"):
    run(killed, cache, stage)
  run_killed(killed, cache, "grpo", after=5)
  return whole, killed


@pytest.mark.parametrize("stage", ["sft", "rm", "grpo"])
def test_C1_two_runs_are_equal_bit_for_bit_also_when_one_was_killed(chains, stage):
  whole, killed = chains
  assert metrics(whole, stage) == metrics(killed, stage)
  assert len(metrics(whole, stage)) == 10


def test_killed_and_whole_rollouts_are_the_same(chains):
  whole, killed = chains
  for step in range(10):
    name = f"grpo/rollouts/step_{step:06d}.jsonl"
    assert (whole / name).read_text() == (killed / name).read_text()


@pytest.mark.parametrize("stage", ["sft", "rm", "grpo"])
def test_golden_curves(chains, stage):
  golden = json.loads(GOLDEN.read_text())[stage]
  for name, held in CURVES[stage].items():
    got = [row[name] for row in metrics(chains[0], stage)]
    for tolerance, steps in held:
      np.testing.assert_allclose(got[:steps], golden[name][:steps], rtol=tolerance, err_msg=name)


def test_train_and_inference_agree_to_1e6_in_float32(chains):
  assert all(abs(row["kl_k3"]) <= 1e-6 for row in metrics(chains[0], "grpo"))


def test_T1_every_record_is_whole(chains):
  for path in (chains[0] / "grpo/rollouts").glob("*.jsonl"):
    for line in path.read_text().splitlines():
      r = json.loads(line)
      assert len(r["tokens"]) == len(r["mask"]) == len(r["logp"])
      assert all(p == 0 for p, m in zip(r["logp"], r["mask"], strict=True) if not m)
      assert r["reward"]["total"] == pytest.approx(
        r["reward"]["base"] * r["reward"]["preference"] - r["reward"]["penalty"], abs=1e-6
      )


def test_recorded_rollouts_pass_the_offline_check(chains):
  done = subprocess.run(
    [sys.executable, "-m", "searchjax.check", str(chains[0] / "grpo")], cwd=ROOT,
    env=environment(chains[0]), capture_output=True, text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert done.stdout.splitlines()[-1] == (
    "check: 10 files, 160 rollouts in 40 groups: no violation"
  )


def test_W4_every_question_is_scored_and_W5_the_setting_is_stored(chains):
  results = json.loads((chains[0] / "eval/results.json").read_text())
  for policy in ("base", "sft", "rl"):
    for mode in ("greedy", "sampled"):
      row = results["policies"][policy][mode]
      assert row["n"] + row["invalid"] == results["n"] == 9
  assert {"date", "judge", "search_provider", "prices", "sampling"} <= set(results)


def test_figures_and_report_are_made_from_the_files_alone(chains):
  for module in ("figures", "report"):
    done = subprocess.run([sys.executable, "-m", f"searchjax.{module}", "--workdir", str(chains[0])],
                          cwd=ROOT, env=environment(chains[0]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
  page = (chains[0] / "report.html").read_text()
  assert "<script" not in page and "http-equiv" in page


def test_another_config_in_the_same_folder_is_refused(chains):
  done = subprocess.run([*command(chains[0], "rm"), "--config.seed=5"], cwd=ROOT,
                        env=environment(chains[0]), capture_output=True, text=True)
  assert done.returncode == 2 and done.stderr.count("\n") == 1 and "seed" in done.stderr


def test_an_unreachable_search_service_is_one_line(tmp_path):
  done = subprocess.run(
    [*command(tmp_path, "sft"), "--config.search.url=http://127.0.0.1:9"], cwd=ROOT,
    env=environment(tmp_path), capture_output=True, text=True,
  )
  assert done.returncode == 2 and "not reachable" in done.stderr
  assert done.stderr.count("\n") == 1 and not (tmp_path / "sft").exists()


def run_on_files(workdir, cache, stage, *lines):
  """Runs a stage with the smoke config as these lines change it; gives what it printed."""
  module, config, _ = STAGES[stage]
  path = workdir / f"{config}.py"
  path.write_text("\n  ".join([
    f"from configs.{config} import get_config as tiny\n\n\ndef get_config():", 'c = tiny("smoke")',
    *lines, "return c\n"]))
  done = subprocess.run(
    [sys.executable, "-m", f"searchjax.{module}", "--config", path, "--workdir", workdir / stage],
    cwd=ROOT, env=environment(cache), capture_output=True, text=True, timeout=900)
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
  return done.stdout


def write_rows(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def test_every_stage_takes_files_and_says_what_it_leaves_out(chains, cache, tmp_path):
  """In each file one row is malformed or one does not fit."""
  tool = {"name": "search_web",
          "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}
  said = lambda asked, answer: [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
  chats = [{"messages": said(f"Name the {i}th letter.", f"It is {chr(97 + i)}.")} for i in range(5)]
  called = [*said("Where is Foo?", ""), {"role": "tool", "content": "Foo is in Bar. " * 40},
            {"role": "assistant", "content": "In Bar."}]
  called[1]["tool_calls"] = [{"function": {"name": "search_web", "arguments": {"query": "Foo"}}}]
  rows = [*chats, {"messages": called, "tools": [tool]}, {"messages": [{"role": "nobody", "content": ""}]}]
  path = write_rows(tmp_path / "said.jsonl", rows)
  printed = run_on_files(
    tmp_path, cache, "sft", "c.steps = c.gate.every = c.checkpoint_every = 2",
    f"c.data.files = dict(said={path!r})",
    "c.data.weights = dict(tool_use=0.5, preference=0.2, said=0.3)")
  assert "data.files.said: 7 rows, 6 kept, 1 malformed" in printed and "said.jsonl:7" in printed
  row, last = metrics(tmp_path, "sft")
  assert row["dropped_rows"] >= 1 and last["rollout_tool_calls"] >= 0

  pairs = [{"prompt": f"Say {i}.", "first": f"It is {i}.", "second": "No.", "label": 1,
            "votes": [1, i % 3 > 0]} for i in range(45)]
  pairs += [pairs[0] | {"first": "It is 0. " * 60, "votes": []}, pairs[0] | {"label": 3}]
  path = write_rows(tmp_path / "pairs.jsonl", pairs)
  printed = run_on_files(
    tmp_path, cache, "rm", "c.steps = c.holdout_every = 2", f"c.data.files = ({path!r},)")
  assert "47 rows, 46 kept, 1 malformed" in printed and "1 pairs dropped: over 128 tokens" in printed
  assert "15 pairs dropped: votes disagree" in printed and "pairs.jsonl:47: label" in printed
  assert 0 <= metrics(tmp_path, "rm")[-1]["holdout_accuracy"] <= 1

  questions = [{"id": f"{split}{i}", "text": f"Name the capital of {i}." + " Tell me." * 99 * (i > 4),
                "answer": "Foo", "split": split} for split in ("rl", "heldout") for i in range(6)]
  path = write_rows(tmp_path / "questions.jsonl", questions)
  printed = run_on_files(
    tmp_path, cache, "grpo", "c.steps = c.checkpoint_every = 1", 'c.mismatch = "routing_replay"',
    f"c.data.questions_file = {path!r}")
  assert f"data.questions_file: 5 of 6 questions of {path}, 1 left out as too long" in printed
  assert metrics(tmp_path, "grpo")[0]["cut_pairs"] >= 0
  printed = run_on_files(tmp_path, cache, "eval", "c.budgets = (5,)", f"c.data.questions_file = {path!r}")
  assert f"data.questions_file: 5 of 6 questions of {path}, 1 left out as too long" in printed
  assert json.loads((tmp_path / "eval/results.json").read_text())["n"] == 5


if __name__ == "__main__":
  import tempfile

  with tempfile.TemporaryDirectory() as folder:
    here = pathlib.Path(folder)
    curves = {}
    for each, names in CURVES.items():
      run(here, here / "cache", each)
      rows_ = metrics(here, each)
      curves[each] = {name: [row[name] for row in rows_] for name in names}
  GOLDEN.write_text(json.dumps(curves, indent=1) + "\n")
