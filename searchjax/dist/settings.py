"""Config files, their overrides, and how an entry point starts and fails.  HOST.

A config is a Python file with `get_config()` (or `get_config(variant)`, reached as
`FILE.py:variant`) that returns a `ml_collections.ConfigDict`; its docstring is the recipe card.
`--config.a.b=value` replaces one value and must fit the type that stands there.

Letters  none.
Source   the `FILE.py:variant` form is that of big_vision and ml_collections.config_flags.
"""

import argparse
import ast
import difflib
import errno
import importlib.util
import inspect
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import ml_collections

from searchjax.dist.storage import SCHEME, as_folder, is_remote

EXIT_BAD_INPUT = 2
# What a file system refuses; every other OSError is a fault of the program.
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
EXIT_INTERRUPTED = 130  # 128 and SIGINT's number, as shells have it.
PACKAGE_ROOT = pathlib.Path(__file__).resolve().parents[1]
TRUE_WORDS = ("true", "1", "yes", "on")
FALSE_WORDS = ("false", "0", "no", "off")


def load_config(path: str, overrides: Sequence[str] = ()) -> ml_collections.FrozenConfigDict:
  """Runs a config file's `get_config` and applies overrides.

  Args:
    path: `FILE.py` or `FILE.py:variant`.
    overrides: `--config.a.b=value` or `a.b=value`, applied in order; the value is read as the type
      that the config has there.  Tuples are written `1,2,3` or `(1, 2, 3)`.

  Returns:
    The resolved config, frozen.

  Raises:
    ValueError: no such file, no `get_config`, unknown variant or key (with the nearest one), or a
      value that does not fit.
  """
  config = _run_config_file(path)
  for override in overrides:
    _apply_override(config, override)
  return ml_collections.FrozenConfigDict(config)


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
  """Lists a config's leaves as {"a.b": value} in file order; tuples become lists, as in JSON."""
  leaves = {}
  for key, value in config.items():
    name = f"{prefix}{key}"
    if isinstance(value, ml_collections.ConfigDict | dict):
      leaves.update(flatten(value, name + "."))
    else:
      leaves[name] = list(value) if isinstance(value, tuple | list) else value
  return leaves


def run_main(
  main: Callable[..., None],
  description: str,
  *,
  argv: Sequence[str] | None = None,
  needs_config: bool = True,
) -> None:
  """Reads the command line, calls `main`, and turns bad input into one line and exit code 2.

  Args:
    main: called as `main(config, workdir)`, or `main(workdir)` where `needs_config` is False;
      workdir is a `pathlib.Path`, not made here, or an `epath.Path` where it is gs://….
    description: one sentence for `--help`.
    argv: the arguments; None reads `sys.argv`.
    needs_config: whether the entry point takes `--config FILE` and overrides.

  Raises:
    SystemExit: code 2 for bad arguments, for a ValueError that searchjax or the config file raised
      itself, for a key that `main` looks up and the config lacks, and for a file that the system
      refuses to read or write; code 130 for Ctrl-C.  A ValueError from inside a library is a fault
      of the program, and keeps its traceback.
  """
  parser = OneLineParser(description=description, allow_abbrev=False)
  if needs_config:
    parser.add_argument(
      "--config", required=True, metavar="FILE.py[:VARIANT]", help="the config file"
    )
    parser.epilog = "--config.KEY=VALUE replaces one value of the config, e.g. --config.seed=1"
  parser.add_argument("--workdir", required=True, metavar="DIR", help="the run's folder")
  arguments, rest = parser.parse_known_args(sys.argv[1:] if argv is None else list(argv))
  config_path = arguments.config if needs_config else None
  try:
    overrides = collect_overrides(rest, allowed=needs_config)
    workdir = _read_workdir(arguments.workdir)
    if needs_config:
      _run_with_config(main, load_config(config_path, overrides), workdir, config_path)
    else:
      main(workdir)
  except ValueError as error:
    if not is_ours(error, config_path):
      raise
    fail(str(error))
  except OSError as error:
    if error.errno not in REFUSALS:
      raise
    fail(f"cannot use {error.filename or 'a file'}: {error.strerror}")
  except KeyboardInterrupt:
    goes_on = "; the same command goes on from the last checkpoint" if needs_config else ""
    print(f"interrupted{goes_on}", file=sys.stderr)
    raise SystemExit(EXIT_INTERRUPTED) from None


def fail(message: str) -> None:
  """Prints one line on stderr and leaves with exit code 2."""
  print("error: " + " ".join(message.split()), file=sys.stderr)
  raise SystemExit(EXIT_BAD_INPUT)


def exit_code(error: BaseException) -> int:
  """What `run_main` ends with where `main` raises this."""
  if isinstance(error, KeyboardInterrupt):
    return EXIT_INTERRUPTED
  ours = isinstance(error, ValueError) and is_ours(error, None)
  lacks_key = isinstance(error, AttributeError | KeyError) and _missing_key(error) is not None
  refused = isinstance(error, OSError) and error.errno in REFUSALS
  return EXIT_BAD_INPUT if ours or lacks_key or refused else 1


def nearest(name: str, known: Sequence[str]) -> str:
  """Says which known name is closest: `; nearest: "a.b"`, or the first few where none is close."""
  close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
  if not close:  # The right word under another group is still a good guess.
    tails = {key.rsplit(".", 1)[-1]: key for key in known}
    found = difflib.get_close_matches(name.rsplit(".", 1)[-1], list(tails), n=1, cutoff=0.6)
    close = [tails[found[0]]] if found else []
  if close:
    return f'; nearest: "{close[0]}"'
  return "; known: " + ", ".join(sorted(known)[:8]) + (", …" if len(known) > 8 else "")


class OneLineParser(argparse.ArgumentParser):
  """argparse without the usage block in front of its one-line errors."""

  def error(self, message: str) -> None:
    fail(f"{message} (--help shows the arguments)")


def _read_workdir(text: str) -> os.PathLike:
  if not text.strip():
    raise ValueError("--workdir is empty; give a folder")
  if is_remote(text):
    if not text.removeprefix(SCHEME).partition("/")[2]:
      raise ValueError(f"--workdir must be gs://BUCKET/FOLDER, got {text}")
    return as_folder(text)
  workdir = pathlib.Path(text)
  try:
    if workdir.exists() and not workdir.is_dir():
      raise ValueError(f"--workdir {workdir} is a file; give a folder")
    above = next(parent for parent in workdir.absolute().parents if parent.exists())
  except OSError as error:  # A folder that may not be read, a name that is too long.
    raise ValueError(f"work folder {workdir} cannot be made: {error.strerror}") from error
  if not above.is_dir():
    raise ValueError(f"work folder {workdir} cannot be made: {above} is a file")
  if workdir.is_dir() and not os.access(workdir, os.R_OK | os.W_OK | os.X_OK):
    raise ValueError(f"work folder {workdir} may not be read and written; give another --workdir")
  if not workdir.is_dir() and not os.access(above, os.W_OK | os.X_OK):
    raise ValueError(f"work folder {workdir} cannot be made: {above} may not be written")
  return workdir


def _run_with_config(
  main: Callable[..., None],
  config: ml_collections.FrozenConfigDict,
  workdir: os.PathLike,
  config_path: str,
) -> None:
  try:
    main(config, workdir)
  except (AttributeError, KeyError) as error:
    key = _missing_key(error)
    if key is None:
      raise
    raise ValueError(
      f'config has no key "{key}"; is {config_path} the config of this stage?'
    ) from error


def _missing_key(error: AttributeError | KeyError) -> str | None:
  """The key that a ConfigDict's own lookup did not find; None where anything else raised."""
  frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
  if not frames or frames[-1].f_globals.get("__name__") != ml_collections.ConfigDict.__module__:
    return None
  argument = {"__getattr__": "attribute", "__getitem__": "key"}.get(frames[-1].f_code.co_name)
  return None if argument is None else str(frames[-1].f_locals[argument])


def _run_config_file(path: str) -> ml_collections.ConfigDict:
  file_name, _, variant = path.partition(":")
  file = pathlib.Path(file_name)
  if not file.is_file():
    stems = [p.stem for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
    close = difflib.get_close_matches(file.stem, stems, n=1, cutoff=0.6)
    hint = f'; nearest: "{file.parent / close[0]}.py"' if close else ""
    raise ValueError(f'no config file "{file_name}"{hint}')
  spec = importlib.util.spec_from_file_location(f"searchjax_config_{file.stem}", file)
  if spec is None or spec.loader is None:
    raise ValueError(
      f'config file "{file_name}" is not a Python file; give a .py file with get_config()'
    )
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
  except SyntaxError as error:
    raise ValueError(f"config file {file_name}, line {error.lineno}: {error.msg}") from error
  get_config = getattr(module, "get_config", None)
  if not callable(get_config):
    raise ValueError(f'config file "{file_name}" has no function get_config()')
  takes_variant = bool(inspect.signature(get_config).parameters)
  if variant and not takes_variant:
    raise ValueError(f'config file "{file_name}" has no variants; got ":{variant}", leave it out')
  config = get_config(variant) if variant else get_config()
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(
      f"get_config() of {file_name} must return a ConfigDict, got {type(config).__name__}"
    )
  return ml_collections.ConfigDict(config).lock()


def collect_overrides(rest: Sequence[str], *, allowed: bool) -> list[str]:
  """Reads `--config.KEY=VALUE` and `--config.KEY VALUE`; anything else is an unknown argument."""
  overrides, words = [], list(rest)
  while words:
    word = words.pop(0)
    if not allowed or not word.startswith("--config."):
      raise ValueError(f'unknown argument "{word}" (--help shows the arguments)')
    if "=" not in word:
      if not words or words[0].startswith("--"):
        raise ValueError(f"{word} needs a value: write {word}=VALUE")
      word = f"{word}={words.pop(0)}"
    overrides.append(word)
  return overrides


def _apply_override(config: ml_collections.ConfigDict, override: str) -> None:
  key, equals, text = override.removeprefix("--config.").partition("=")
  if not equals:
    raise ValueError(f'override "{override}" has no value; write --config.{key}=VALUE')
  *groups, leaf = key.split(".")
  node = config
  for group in groups:
    node = node[group] if isinstance(node, ml_collections.ConfigDict) and group in node else None
  if not isinstance(node, ml_collections.ConfigDict) or leaf not in node:
    raise ValueError(f'unknown config key "{key}"{nearest(key, list(flatten(config)))}')
  current = node[leaf]
  if isinstance(current, ml_collections.ConfigDict):
    inner = ", ".join(f"{key}.{name}" for name in list(current)[:6])
    raise ValueError(f'config key "{key}" is a group; set one of its keys: {inner}')
  node[leaf] = _read_as(current, text, key)


def _read_as(current: Any, text: str, key: str) -> Any:
  """Reads `text` as the type of the value that stands in the config."""
  kind = type(current)
  if kind in (tuple, list):
    return _read_sequence(current, text, key)
  try:
    if kind is bool:
      word = text.lower()
      if word not in TRUE_WORDS + FALSE_WORDS:
        raise ValueError
      return word in TRUE_WORDS
    if kind is int:
      return int(text)
    if kind is float:
      return float(text)
    if kind is str:
      return text
    if current is None:
      return _literal_or_text(text)
  except ValueError as error:
    expected = "true or false" if kind is bool else kind.__name__
    raise ValueError(
      f'config key "{key}" expects {expected} (now {current!r}), got "{text}"'
    ) from error
  raise ValueError(
    f'config key "{key}" holds a {kind.__name__}, which cannot be set from the command line'
  )


def _read_sequence(current: Sequence[Any], text: str, key: str) -> tuple[Any, ...]:
  inner = text.strip()
  if inner[:1] + inner[-1:] in ("()", "[]"):
    inner = inner[1:-1]
  words = [word.strip().strip("'\"") for word in inner.split(",") if word.strip()]
  if not current:
    return tuple(_literal_or_text(word) for word in words)
  return tuple(_read_as(current[0], word, key) for word in words)


def _literal_or_text(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):  # Not a Python literal: a plain word.
    return text


def is_ours(error: ValueError, config_path: str | None) -> bool:
  """Whether searchjax or the config file raised the error itself, not a library below them."""
  frames = traceback.extract_tb(error.__traceback__)
  if not frames:
    return False
  raised_in = pathlib.Path(frames[-1].filename).resolve()
  from_config = (
    config_path is not None and raised_in == pathlib.Path(config_path.partition(":")[0]).resolve()
  )
  return from_config or raised_in.is_relative_to(PACKAGE_ROOT)
