"""The processes that compile: they may die, hang or refuse, and each of these has a name."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import ml_collections
import pytest

from searchjax.dist import compiling
from searchjax.dist.topology import missing_compiler

HERE = pathlib.Path(__file__).parent
MESH = {"fsdp": 2, "expert": 2, "context": 1}

needs_compiler = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))


@pytest.fixture(autouse=True)
def programs_are_importable(monkeypatch):
  monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE), str(HERE.parent))))


def job(tmp_path, variant="", program="", topology="v5e:2x2"):
  config = f"{HERE / 'small_pod.py'}:{variant}"
  return compiling.Job(config, (), topology, "small_pod:programs", program, str(tmp_path / "job"))


@needs_compiler
def test_a_compiler_that_dies_is_named_by_its_signal(tmp_path):
  outcome = compiling.compile_program(job(tmp_path, "dying", "dying"), "hlo", 120, MESH, {})
  assert (outcome.status, outcome.message) == ("crashed", "the compiler died by SIGSEGV")
  assert outcome.costs is None and outcome.memory is None


def test_a_compilation_that_takes_too_long_is_ended(tmp_path, monkeypatch):
  started = []
  start = compiling._start
  monkeypatch.setattr(compiling, "_start", lambda job: started.append(start(job)) or started[-1])
  outcome = compiling.compile_program(job(tmp_path, program="step"), "full", 0.3, MESH, {})
  assert (outcome.status, outcome.message) == ("timeout", "ended after the limit of 0 s")
  assert started[0].returncode == -signal.SIGKILL


@needs_compiler
def test_a_mesh_that_does_not_divide_is_bad_input(tmp_path):
  with pytest.raises(ValueError, match="blocks.w: its axis embed of 257 does not divide"):
    compiling.list_programs(job(tmp_path, "bad"), 120)


@needs_compiler
def test_a_list_that_cannot_be_had_says_why(tmp_path):
  broken = dataclasses.replace(job(tmp_path), builder="no_such:thing")
  with pytest.raises(RuntimeError, match="ended with exit code 1: .*no_such") as error:
    compiling.list_programs(broken, 120)
  assert "\n" not in str(error.value)


def test_the_mesh_of_a_config_is_its_sizes_only():
  config = ml_collections.ConfigDict(dict(mesh=dict(fsdp=0, expert=8, layout="zero3")))
  assert compiling.mesh_axes(config) == {"fsdp": 0, "expert": 8}
  with pytest.raises(ValueError, match="no group mesh"):
    compiling.mesh_axes(ml_collections.ConfigDict())


def test_an_orphan_ends(monkeypatch):
  ended = []
  monkeypatch.setattr(compiling.os, "_exit", ended.append)
  compiling._end_with_parent(os.getppid() + 1)
  assert ended == [1]


def fake_process(folder, body):
  """Stands for a compiling process: writes what XLA would, then waits."""
  script = folder / "fake.py"
  script.write_text(body)
  return subprocess.Popen([sys.executable, str(script)], start_new_session=True)


def test_stage_hlo_ends_when_the_dumps_stand_still(tmp_path, monkeypatch):
  the_job = job(tmp_path, program="step")
  dump = pathlib.Path(the_job.folder) / "dump"
  dump.mkdir(parents=True)
  text, buffers = ((HERE / "hlo" / name).read_text() for name in ("step.txt", "step_buffers.txt"))
  contents = dict(zip(compiling.DUMPS, ("report", text, buffers, text), strict=True))
  (tmp_path / "contents.json").write_text(json.dumps(contents))
  body = f"""
import json, pathlib, time
contents = json.loads(pathlib.Path({str(tmp_path / "contents.json")!r}).read_text())
for name, text in contents.items():
  with open({str(dump)!r} + "/module_0000.jit_step.cl_1." + name, "w") as file:
    half = len(text) // 2
    file.write(text[:half])
    file.flush()
    time.sleep(0.3)
    file.write(text[half:])
other = pathlib.Path({str(dump)!r}, "module_0001.jit_add.cpu_after_optimizations.txt")
other.write_text("another compiler's")
time.sleep(600)
"""
  monkeypatch.setattr(compiling, "_start", lambda job: fake_process(tmp_path, body))
  outcome = compiling.compile_program(the_job, "hlo", 60, MESH, {})
  assert outcome.status == "optimised" and outcome.seconds < 30
  assert outcome.costs.total_flops == 3 * 3 * 2 * 256**3
  assert outcome.memory.arguments == 327680 and outcome.instructions > 50


def test_half_a_dump_is_not_read(tmp_path, monkeypatch):
  the_job = job(tmp_path, program="step")
  dump = pathlib.Path(the_job.folder) / "dump"
  dump.mkdir(parents=True)
  text = (HERE / "hlo" / "step.txt").read_text()
  (dump / f"m.{compiling.DUMPS[1]}").write_text(text[:20000])
  (dump / f"m.{compiling.DUMPS[2]}").write_text("allocation 0: size 512, page 0, constant:\n")
  monkeypatch.setattr(
    compiling, "_start", lambda job: fake_process(tmp_path, "import os; os.kill(os.getpid(), 11)")
  )
  outcome = compiling.compile_program(the_job, "hlo", 60, MESH, {})
  assert outcome.status == "crashed" and outcome.costs is None
