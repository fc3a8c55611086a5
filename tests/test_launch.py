"""The launch scripts: their arguments and their environment, without running a stage."""

import os
import shutil
import subprocess

import pytest


def _bash(repository, *arguments, **more):
  return subprocess.run(
    ["bash", *arguments], cwd=repository, capture_output=True, text=True, timeout=60, check=False,
    stdin=subprocess.DEVNULL, **more,
  )  # fmt: skip


@pytest.mark.parametrize("name", ["environment", "quickstart", "tests", "ablate", "table1"])
def test_the_scripts_are_valid_bash(repository, name):
  assert _bash(repository, "-n", f"launch/{name}.sh").returncode == 0


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["launch/quickstart.sh", "--sed", "1"], 'unknown argument "--sed"'),
    (["launch/quickstart.sh", "--seed"], "--seed needs a value"),
    (["launch/quickstart.sh", "--seed", "--smoke"], "--seed needs a value"),
    (["launch/quickstart.sh", "--seed", "one"], 'whole number from 0, got "one"'),
    (["launch/quickstart.sh", "--seed=-1"], 'whole number from 0, got "-1"'),
    (["launch/quickstart.sh", "--workdir", "LICENSE"], "is a file"),
    (["launch/quickstart.sh", "--workdir", "LICENSE/x"], "cannot make --workdir LICENSE/x"),
    (["launch/quickstart.sh", "--seed="], "--seed needs a value"),
    (["launch/quickstart.sh", "--workdir="], "--workdir needs a value"),
    (["launch/ablate.sh", "--workdir="], "--workdir needs a value"),
    (["launch/ablate.sh", "--seeds="], "--seeds needs a value"),
    (["launch/ablate.sh", "--seeds", " "], "--seeds needs a value"),
    (["launch/ablate.sh", "--arms="], "--arms needs a value"),
    (["launch/ablate.sh", "--arms", " "], "--arms needs a value"),
    (["launch/ablate.sh", "--arms", "anchored of"], 'unconditional or off, got "of"'),
    (["launch/ablate.sh", "--arms=anchored off", "--seeds=a"], 'whole numbers, got "a"'),
    (["launch/ablate.sh", "--seeds", "a"], 'whole numbers, got "a"'),
    (["launch/table1.sh", "--size", "0"], 'whole number from 1, got "0"'),
    (["launch/table1.sh", "--seed=a"], 'whole number from 0, got "a"'),
    (["launch/table1.sh", "--baseline="], "--baseline needs a value"),
    (["launch/table1.sh", "--baseline", "LICENSE no/such"], "--baseline no/such: no such file"),
    (["launch/table1.sh", "--synthetic", "no/such"], "--synthetic no/such: no such file"),
    (["launch/table1.sh", "--config.steps"], 'unknown argument "--config.steps"'),
    (["launch/table1.sh", "--workdir", "LICENSE"], "is a file"),
    (
      ["launch/ablate.sh", "--workdir", "no/such"],
      "run bash launch/quickstart.sh --workdir no/such",
    ),
  ],
)
def test_bad_arguments_give_one_line_and_exit_code_2(repository, arguments, words):
  done = _bash(repository, *arguments)
  assert done.returncode == 2 and done.stdout == ""
  assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and words in done.stderr


@pytest.mark.parametrize("name", ["quickstart", "tests", "ablate", "table1"])
def test_help_shows_the_arguments(repository, name):
  done = _bash(repository, f"launch/{name}.sh", "--help")
  assert done.returncode == 0 and f"bash launch/{name}.sh" in done.stdout and "#" not in done.stdout


def test_an_old_python_is_refused_in_one_line(repository, tmp_path):
  """Without a .venv, and with nothing newer than 3.10 on the path."""
  copy = tmp_path / "repository"
  (copy / "launch").mkdir(parents=True)
  shutil.copy(repository / "launch/environment.sh", copy / "launch")
  for name in ("setup.py", "requirements.lock"):
    shutil.copy(repository / name, copy)
  tools = tmp_path / "bin"
  tools.mkdir()
  for name in ("bash", "cat", "cksum", "grep", "dirname", "flock"):
    if found := shutil.which(name):
      os.symlink(found, tools / name)
  (tools / "python3").write_text("#!/bin/bash\nexit 1\n")
  (tools / "python3").chmod(0o755)
  script = f"source {copy}/launch/environment.sh; prepare_environment test"
  done = _bash(copy, "-c", script, env={"PATH": str(tools)})
  assert done.returncode == 1
  assert done.stderr == (
    "error: no Python 3.11 or newer found; install one, or name it in SEARCHJAX_PYTHON\n"
  )


def test_the_lock_file_has_a_version_of_every_requirement(repository):
  text = (repository / "setup.py").read_text(encoding="utf-8")
  locked = {
    line.split("==")[0].lower() for line in (repository / "requirements.lock").read_text().split()
  }
  tables = {}
  for name in ("CORE", "ATLAS", "NOTEBOOKS"):
    start = text.index(f"{name} = [")
    tables[name] = text[start : text.index("]", start)]
  wanted = {
    requirement.split('"')[1].split(">=")[0].lower()
    for table in tables.values()
    for requirement in table.split(",")
    if '"' in requirement
  }
  assert len(wanted) > 30
  assert {name.replace("_", "-") for name in wanted} <= {name.replace("_", "-") for name in locked}
  for line in (repository / "requirements.lock").read_text().split():
    assert line.count("==") == 1 and "/" not in line, line
