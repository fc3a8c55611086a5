"""Config files, overrides and how an entry point fails."""

import errno
import os
import subprocess
import sys

import ml_collections
import pytest

from searchjax.dist import settings

CONFIG = '''"""A recipe card."""
import ml_collections

def get_config(variant=""):
  if variant not in ("", "smoke"):
    raise ValueError(f'unknown variant "{variant}"; known: smoke')
  config = ml_collections.ConfigDict()
  config.seed = 0
  config.steps = 3 if variant else 300
  config.limit = ml_collections.config_dict.placeholder(int)
  config.reward = ml_collections.ConfigDict(
    dict(tool_penalty="anchored", weights=(0.5, 0.2), gated=True, eps=1e-6)
  )
  return config
'''


@pytest.fixture
def config_file(tmp_path):
  path = tmp_path / "some_tiny.py"
  path.write_text(CONFIG)
  return str(path)


def test_a_config_file_is_loaded_and_frozen(config_file):
  config = settings.load_config(config_file)
  assert config.steps == 300 and config.reward.tool_penalty == "anchored"
  assert isinstance(config, ml_collections.ConfigDict)
  with pytest.raises((AttributeError, ValueError)):
    config.steps = 4


def test_the_variant_after_the_colon_reaches_get_config(config_file):
  assert settings.load_config(config_file + ":smoke").steps == 3
  with pytest.raises(ValueError, match='unknown variant "smok"'):
    settings.load_config(config_file + ":smok")


@pytest.mark.parametrize(
  ("override", "key", "expected"),
  [
    ("--config.seed=7", "seed", 7),
    ("seed=-7", "seed", -7),
    ("--config.reward.eps=1", "reward.eps", 1.0),
    ("--config.reward.eps=5e-2", "reward.eps", 0.05),
    ("--config.reward.gated=false", "reward.gated", False),
    ("--config.reward.gated=True", "reward.gated", True),
    ("--config.reward.tool_penalty=off", "reward.tool_penalty", "off"),
    ("--config.reward.tool_penalty=a=b", "reward.tool_penalty", "a=b"),
    ("--config.reward.weights=(1, 2.5,3)", "reward.weights", (1.0, 2.5, 3.0)),
    ("--config.reward.weights=1,2", "reward.weights", (1.0, 2.0)),
    ("--config.limit=5", "limit", 5),
  ],
)
def test_an_override_is_read_as_the_type_that_stands_there(config_file, override, key, expected):
  value = settings.load_config(config_file, [override])
  for name in key.split("."):
    value = value[name]
  assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize(
  ("override", "message"),
  [
    (
      "--config.reward.tool_penalti=off",
      'unknown config key "reward.tool_penalti".*"reward.tool_penalty"',
    ),
    ("--config.tool_penalty=off", 'unknown config key "tool_penalty".*"reward.tool_penalty"'),
    ("--config.sed=1", 'unknown config key "sed"; nearest: "seed"'),
    ("--config.seed.x=1", 'unknown config key "seed.x"'),
    ("--config.seed=1.5", 'key "seed" expects int .now 0., got "1.5"'),
    ("--config.reward.gated=maybe", 'key "reward.gated" expects true or false'),
    ("--config.reward.eps=tiny", 'key "reward.eps" expects float'),
    ("--config.reward.weights=1,x", 'key "reward.weights" expects float'),
    ("--config.reward=1", 'key "reward" is a group; set one of its keys: reward'),
    ("--config.seed", "has no value"),
  ],
)
def test_a_bad_override_says_what_is_wrong(config_file, override, message):
  with pytest.raises(ValueError, match=message):
    settings.load_config(config_file, [override])


def test_a_missing_file_names_its_neighbour(config_file):
  with pytest.raises(ValueError, match="no config file .*some_tinny.py.*nearest.*some_tiny.py"):
    settings.load_config(config_file.replace("tiny", "tinny"))


def test_a_missing_file_with_no_similar_neighbour_names_none(config_file):
  path = config_file.replace("some_tiny", "nope")
  with pytest.raises(ValueError) as e:
    settings.load_config(path)
  assert str(e.value) == f'no config file "{path}"'


def test_files_that_are_no_configs_are_refused(tmp_path):
  cases = {
    "a.py": ("x = 1", "has no function get_config"),
    "b.py": ("def get_config(: pass", "b.py, line 1"),
    "c.py": ("def get_config(): return {}", "must return a ConfigDict, got dict"),
    "d.txt": ("hello", "not a Python file"),
  }
  for name, (text, message) in cases.items():
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
      settings.load_config(str(tmp_path / name))


def _run(argv, main=lambda config, workdir: None):
  settings.run_main(main, "Test.", argv=argv)


def test_run_main_hands_over_config_and_workdir(config_file, tmp_path):
  seen = {}
  arguments = ["--config", config_file, "--workdir", str(tmp_path / "w"), "--config.seed", "3"]
  _run(arguments, lambda config, workdir: seen.update(seed=config.seed, workdir=workdir))
  assert seen == {"seed": 3, "workdir": tmp_path / "w"}
  assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
  "extra",
  [["--config.sed=1"], ["--config.seed=x"], ["--wrkdir=x"], ["--config.seed"], ["loose"]],
)
def test_bad_arguments_give_one_line_and_exit_code_2(config_file, tmp_path, capsys, extra):
  with pytest.raises(SystemExit) as exit_info:
    _run(["--config", config_file, "--workdir", str(tmp_path / "w"), *extra])
  captured = capsys.readouterr()
  assert exit_info.value.code == 2 and captured.out == ""
  assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
  assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
  ("workdir", "message"),
  [
    ("", "--workdir is empty"),
    (" ", "--workdir is empty"),
    ("{file}", "is a file; give a folder"),
    ("{file}/a/b", "b cannot be made: {file} is a file"),
    ("{folder}/" + "n" * 300, "cannot be made: File name too long"),
  ],
)
def test_a_work_folder_that_cannot_be_is_refused(config_file, tmp_path, capsys, workdir, message):
  names = {"file": config_file, "folder": tmp_path}
  with pytest.raises(SystemExit) as exit_info:
    _run(["--config", config_file, "--workdir=" + workdir.format(**names)], _not_called)
  error = capsys.readouterr().err
  assert exit_info.value.code == 2 and error.count("\n") == 1
  assert message.format(**names) in error


@pytest.mark.parametrize(
  ("refused", "workdir", "message"),
  [
    ("run", "run", "work folder {0}/run may not be read and written; give another --workdir"),
    (".", "new/run", "work folder {0}/new/run cannot be made: {0} may not be written"),
  ],
)
def test_a_read_only_place_is_refused_first(
  config_file, tmp_path, capsys, monkeypatch, refused, workdir, message
):
  (tmp_path / "run").mkdir()
  # Permissions do not bind the superuser, who may be the one that runs the tests.
  monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / refused)
  with pytest.raises(SystemExit) as exit_info:
    _run(["--config", config_file, "--workdir", str(tmp_path / workdir)], _not_called)
  assert exit_info.value.code == 2
  assert capsys.readouterr().err == f"error: {message.format(tmp_path)}\n"


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only")])
def test_a_disk_that_refuses_is_one_line(config_file, tmp_path, capsys, number, words):
  def main(config, workdir):
    raise OSError(number, os.strerror(number), "/some/metrics.jsonl")

  with pytest.raises(SystemExit) as exit_info:
    _run(["--config", config_file, "--workdir", str(tmp_path)], main)
  error = capsys.readouterr().err
  assert exit_info.value.code == 2 and error.count("\n") == 1
  assert error.startswith("error: cannot use /some/metrics.jsonl: ") and words in error


def test_a_missing_file_is_a_fault_of_the_program(config_file, tmp_path):
  with pytest.raises(FileNotFoundError):
    _run(["--config", config_file, "--workdir", str(tmp_path)], lambda c, w: open(tmp_path / "none"))


def _not_called(config, workdir):
  pytest.fail("main was called")


def test_ctrl_c_is_one_line_and_exit_code_130(config_file, tmp_path, capsys):
  def main(config, workdir):
    raise KeyboardInterrupt

  with pytest.raises(SystemExit) as exit_info:
    _run(["--config", config_file, "--workdir", str(tmp_path)], main)
  assert exit_info.value.code == 130
  expected = "interrupted; the same command goes on from the last checkpoint\n"
  assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
  ("key", "lookup"),
  [
    ("model", lambda config: config.model.layers),
    ("model", lambda config: config["model"]),
    ("penalty", lambda config: config.reward.penalty),
    ("penalty", lambda config: dict(config.reward)["eps"] and config["reward"]["penalty"]),
  ],
)
def test_a_key_the_config_lacks_asks_for_the_stage(config_file, tmp_path, capsys, key, lookup):
  with pytest.raises(SystemExit) as exit_info:
    _run(
      ["--config", config_file, "--workdir", str(tmp_path)], lambda config, workdir: lookup(config)
    )
  assert exit_info.value.code == 2
  expected = f'error: config has no key "{key}"; is {config_file} the config of this stage?\n'
  assert capsys.readouterr().err == expected


@pytest.mark.parametrize("fault", [lambda config: {}["model"], lambda config: config.seed.model])
def test_other_missing_keys_and_attributes_keep_their_traceback(config_file, tmp_path, fault):
  with pytest.raises((KeyError, AttributeError), match="model"):
    _run(
      ["--config", config_file, "--workdir", str(tmp_path)], lambda config, workdir: fault(config)
    )


def test_a_value_error_of_a_library_keeps_its_traceback(config_file, tmp_path):
  def main(config, workdir):
    raise ValueError("from a test file, which is not searchjax")

  with pytest.raises(ValueError, match="from a test file"):
    _run(["--config", config_file, "--workdir", str(tmp_path)], main)


def test_a_multi_line_message_becomes_one_line(config_file, tmp_path, capsys):
  def main(config, workdir):
    settings.load_config("no\nsuch.py")

  with pytest.raises(SystemExit):
    _run(["--config", config_file, "--workdir", str(tmp_path)], main)
  assert capsys.readouterr().err.count("\n") == 1


def test_a_subprocess_leaves_with_code_2(tmp_path, plain_environment):
  command = [sys.executable, "-m", "searchjax.figures", "--workdir", str(tmp_path / "none")]
  done = subprocess.run(command, env=plain_environment, capture_output=True, text=True, check=False)
  assert done.returncode == 2 and done.stdout == ""
  assert done.stderr.startswith("error: no run folder") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (KeyError("x"), 1),
                                             (RuntimeError("x"), 1), (ValueError("a library's"), 1),
                                             (OSError(28, "disk full"), 2)])
def test_an_error_has_the_exit_code_of_run_main(error, code):
  assert settings.exit_code(error) == code


def test_bad_input_has_exit_code_2():
  with pytest.raises(ValueError) as info:
    settings.load_config("no_such_file.py")
  assert settings.exit_code(info.value) == 2
