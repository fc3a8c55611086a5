"""The run folder and the metric table."""

import json
import math
import re
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.dist import metrics, run_log
from searchjax.dist.distributed import Run
from searchjax.dist.run_log import RunLog

CONFIG = {"seed": 0, "steps": 5, "reward": {"gated": True, "weights": (1.0, 2.0)}}


def test_the_metric_page_is_the_table(repository):
  page = (repository / "docs/metrics.md").read_text(encoding="utf-8")
  assert page == metrics.metrics_page(), "run: python -m searchjax.dist.metrics > docs/metrics.md"


def test_every_metric_is_described():
  for name, metric in run_log.METRICS.items():
    assert metric.name == name
    assert metric.formula and metric.unit and metric.healthy and metric.stages
    assert set(metric.stages.split()) <= {"sft", "rm", "grpo", "synthesize"}
    assert metric.low <= metric.high


def test_a_run_writes_its_config_first_and_then_a_line_a_step(tmp_path, capsys):
  with RunLog(tmp_path / "sft", CONFIG, total_steps=2) as log:
    assert json.loads((tmp_path / "sft/config.json").read_text())["reward"]["weights"] == [1.0, 2.0]
    log.write(0, {"loss": 2.0, "grad_norm": jnp.float32(0.5)})
    log.write(1, {"loss": np.float64(1.0)})
  lines = (tmp_path / "sft/metrics.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in lines] == [
    {"step": 0, "loss": 2.0, "grad_norm": 0.5},
    {"step": 1, "loss": 1.0},
  ]
  assert list((tmp_path / "sft/tensorboard").glob("events.*"))
  assert "sft 2/2  loss 1" in capsys.readouterr().out


@pytest.mark.parametrize(("width", "pairs"), [(40, 0), (60, 1), (80, 2), (140, 4)])
@pytest.mark.parametrize(("title", "total"), [("sft", 1600), ("evaluate", 28)])
def test_the_progress_line_fits_the_terminal(tmp_path, monkeypatch, capsys, title, total, width, pairs):
  monkeypatch.setenv("FORCE_COLOR", "1")  # What makes rich take a captured stream for a terminal.
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.setenv("COLUMNS", str(width))
  numbers = {"loss": 0.12345, "token_accuracy": 0.98765, "kl_k3": 1.5e-8, "grad_norm": 1.25}
  with RunLog(tmp_path, CONFIG, total_steps=total, title=title) as log:
    for step in range(3):
      time.sleep(0.01)
      log.write(step, numbers)
  plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
  lines = [line.rstrip() for line in plain.replace("\r", "\n").split("\n") if f"3/{total}" in line]
  assert lines and all(len(line) <= width for line in lines)
  found = re.fullmatch(rf"{title} \S* +3/{total} \d:\d\d:\d\d ?(.*)", lines[-1])
  shown = found[1].split("  ") if found[1] else []
  # A pair is shown whole or not at all.
  assert shown == [f"{name} {value:.4g}" for name, value in numbers.items()][: len(shown)]
  assert len(shown) >= (pairs if title == "sft" else min(pairs, 1))


def test_a_finished_run_says_so_and_a_stopped_one_where_it_goes_on(tmp_path, capsys):
  ask = lambda done, config=CONFIG: run_log.is_finished(
    tmp_path / "sft", config, done=done, total_steps=5, title="sft"
  )
  assert not ask(None) and not ask(5)  # No config.json: nothing says whose the results are.
  assert not (tmp_path / "sft").exists()
  with RunLog(tmp_path / "sft", CONFIG, total_steps=5, title="sft"):
    pass
  assert not ask(None) and not ask(4)
  assert capsys.readouterr().out == ""
  assert ask(5)
  assert capsys.readouterr().out == f"sft: 5 of 5 steps done already ({tmp_path}/sft)\n"
  for done in (5, None):
    with pytest.raises(ValueError, match="work folder of another run.*seed .there 0, here 1."):
      ask(done, CONFIG | {"seed": 1})
  with RunLog(tmp_path / "sft", CONFIG, total_steps=5, resume_step=2, title="sft"):
    pass
  assert capsys.readouterr().out == f"sft: 2 of 5 steps done already ({tmp_path}/sft)\n"


def test_an_unknown_metric_names_the_nearest(tmp_path):
  with RunLog(tmp_path, CONFIG, total_steps=1) as log:
    with pytest.raises(ValueError, match='unknown metric "base_rewards"; nearest: "base_reward"'):
      log.write(0, {"base_rewards": 1.0})
  assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_the_folder_of_another_run_is_refused_and_left_alone(tmp_path):
  with RunLog(tmp_path, CONFIG, total_steps=1) as log:
    log.write(0, {"loss": 1.0})
  before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
  other = CONFIG | {"seed": 1}
  with pytest.raises(ValueError, match="work folder of another run.*seed .there 0, here 1."):
    RunLog(tmp_path, other, total_steps=1)
  assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_folder_with_files_but_no_config_is_refused(tmp_path):
  (tmp_path / "metrics.jsonl").write_text("{}\n")
  with pytest.raises(ValueError, match="holds metrics.jsonl but no config.json"):
    RunLog(tmp_path, CONFIG, total_steps=1)


@pytest.mark.parametrize(
  ("content", "message"),
  [(b"[1]", "holds a list, expected an object"), (b"\xff{}", "is not UTF-8"), (b"{", "is not JSON")],
)
def test_a_config_that_cannot_be_read_is_refused(tmp_path, content, message):
  (tmp_path / "config.json").write_bytes(content)
  with pytest.raises(ValueError, match=message):
    RunLog(tmp_path, CONFIG, total_steps=1)
  assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_that_cannot_be_made_says_why(tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(ValueError, match="work folder .*file/sub cannot be made: Not a directory"):
    RunLog(tmp_path / "file/sub", CONFIG, total_steps=1)


def _fail_after(workdir, write=lambda log: None, config=CONFIG):
  with pytest.raises(ValueError, match="a bad value found late"):
    with RunLog(workdir, config, total_steps=1) as log:
      write(log)
      raise ValueError("a bad value found late")


def test_a_run_that_fails_before_its_first_line_takes_back_its_new_folder(tmp_path):
  _fail_after(tmp_path / "new/sft")
  assert list(tmp_path.iterdir()) == []
  # The mended command may have the folder.
  with RunLog(tmp_path / "new/sft", CONFIG | {"seed": 1}, total_steps=1):
    pass


def test_what_was_there_before_a_failed_run_stays(tmp_path):
  (tmp_path / "a/tensorboard").mkdir(parents=True)
  for name in ("a/notes.txt", "a/tensorboard/events.old"):
    (tmp_path / name).write_text("mine")
  before = sorted(tmp_path.rglob("*"))
  _fail_after(tmp_path / "a")
  assert sorted(tmp_path.rglob("*")) == before
  (tmp_path / "empty").mkdir()
  _fail_after(tmp_path / "empty")
  assert (tmp_path / "empty").is_dir() and not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize(
  "write",
  [
    lambda log: log.write(0, {"loss": 1.0}),
    lambda log: log.rollouts(0, [{"a": 1}]),
    lambda log: (log.workdir / "checkpoints").mkdir(),
  ],
  ids=["metrics", "rollouts", "checkpoints"],
)
def test_a_failed_run_that_has_begun_keeps_its_folder(tmp_path, write):
  _fail_after(tmp_path / "sft", write)
  assert (tmp_path / "sft/config.json").is_file()
  with pytest.raises(ValueError, match="another run"):
    RunLog(tmp_path / "sft", CONFIG | {"seed": 1}, total_steps=1)


def test_a_resumed_run_that_fails_keeps_its_folder(tmp_path):
  with RunLog(tmp_path / "sft", CONFIG, total_steps=1):
    pass
  before = {path for path in tmp_path.rglob("*") if "events" not in path.name}
  _fail_after(tmp_path / "sft")
  assert before == {path for path in tmp_path.rglob("*") if "events" not in path.name}


def test_c1_a_resumed_run_has_the_lines_of_one_never_stopped(tmp_path):
  def run(folder, steps, resume):
    with RunLog(folder, CONFIG, total_steps=5, resume_step=resume) as log:
      for step in steps:
        log.write(step, {"loss": 1.0 / (step + 1)})

  run(tmp_path / "whole", range(5), 0)
  run(tmp_path / "killed", range(4), 0)
  with (tmp_path / "killed/metrics.jsonl").open("a") as file:
    file.write('{"step": 4, "lo')  # The line that the kill cut.
  run(tmp_path / "killed", range(2, 5), 2)  # The checkpoint was of two finished steps.
  whole, killed = (tmp_path / f"{name}/metrics.jsonl" for name in ("whole", "killed"))
  assert whole.read_text() == killed.read_text()


def test_numbers_that_are_not_finite_are_valid_json_and_read_as_nan(tmp_path, capsys):
  with RunLog(tmp_path, CONFIG, total_steps=1) as log:
    log.write(0, {"loss": math.nan, "grad_norm": math.inf})
  path = tmp_path / "metrics.jsonl"
  json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
  assert math.isnan(run_log.read_metrics(path)[0]["loss"])
  assert "outside its healthy range: loss nan" in capsys.readouterr().out


def test_w6_values_out_of_range_are_alarms_and_said_once(tmp_path, capsys):
  assert metrics.alarms({"grad_norm": 99.0, "generated_length": 12.0}) == []
  names = [text.split()[0] for text in metrics.alarms({"grad_norm": 1e4, "generated_length": 0.0})]
  assert names == ["grad_norm", "generated_length"]
  with RunLog(tmp_path, CONFIG, total_steps=2) as log:
    log.write(0, {"grad_norm": 1e4})
    log.write(1, {"grad_norm": 1e4})
  assert capsys.readouterr().out.count("outside its healthy range") == 1


def test_rollouts_are_written_whole_with_arrays_as_lists(tmp_path):
  with RunLog(tmp_path, CONFIG, total_steps=1) as log:
    path = log.rollouts(12, [{"tokens": np.arange(3), "logp": jnp.ones(2), "text": "Ñandú\u2028"}])
    assert path.name == "step_000012.jsonl"

    def broken():
      yield {"a": 1}
      raise KeyError("while scoring")

    with pytest.raises(KeyError):
      log.rollouts(13, broken())
  record = json.loads(path.read_text(encoding="utf-8"))
  assert record == {"tokens": [0, 1, 2], "logp": [1.0, 1.0], "text": "Ñandú\u2028"}
  assert [file.name for file in (tmp_path / "rollouts").iterdir()] == ["step_000012.jsonl"]


def test_a_stage_is_found_beside_the_run_or_beside_a_parent(tmp_path):
  with RunLog(tmp_path / "sft", CONFIG, total_steps=1):
    pass
  assert run_log.find_stage(tmp_path / "rm", "sft") == tmp_path / "sft"
  assert run_log.find_stage(tmp_path / "ablation/anchored/seed_0", "sft") == tmp_path / "sft"
  with pytest.raises(ValueError, match='no finished stage "rm" beside'):
    run_log.find_stage(tmp_path / "grpo", "rm")


def test_a_closed_log_leaves_no_thread(tmp_path):
  before = threading.active_count()
  log = RunLog(tmp_path, CONFIG, total_steps=1)
  log.write(0, {"loss": 1.0})
  log.close()
  log.close()
  deadline = time.monotonic() + 5
  while threading.active_count() > before and time.monotonic() < deadline:
    time.sleep(0.02)  # TensorBoard's writer ends on its own, a moment later.
  assert threading.active_count() <= before


def test_only_the_first_process_writes_and_the_others_log_does_nothing(tmp_path):
  other = Run()
  other.first = False
  with run_log.open_log(tmp_path / "w", {"seed": 1}, other, total_steps=3) as log:
    log.write(0, {"loss": 1.0})
    log.rollouts(0, [{}])
    log.sync()
  assert not (tmp_path / "w").exists()


def test_a_run_goes_on_with_other_processes_and_another_profile(tmp_path):
  first = Run()
  config = {"seed": 1, "distributed": {"processes": 2}, "profile": {"steps": 0}}
  run_log.open_log(tmp_path, config, first, total_steps=3).close()
  elsewhere = config | {"distributed": {"processes": 4}, "profile": {"steps": 1}}
  run_log.open_log(tmp_path, elsewhere, first, total_steps=3).close()
  with pytest.raises(ValueError, match="config differs in seed"):
    run_log.open_log(tmp_path, config | {"seed": 2}, first, total_steps=3)
