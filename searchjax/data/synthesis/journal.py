"""Results that cost time, kept by key as they come, for a run that goes on after a kill.  HOST."""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any


def is_text(value: Any) -> bool:
  """Whether it is a reply, for a journal of replies."""
  return isinstance(value, str)


class Journal:
  """A JSONL file of [key, value] lines; the last line of a killed run may be half a line.

  Args:
    path: made, with its folder, for the first result.
    fits: whether a value is of the form that is kept here.

  Raises:
    ValueError: a line other than the last is not one, or its value does not fit.
  """

  def __init__(
    self, path: str | os.PathLike, fits: Callable[[Any], bool] = lambda value: True
  ):
    self.path = pathlib.Path(path)
    self.kept: dict[str, Any] = {}
    lines = self.path.read_bytes().split(b"\n") if self.path.is_file() else []
    whole = 0
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline was cut off
      try:
        row = json.loads(line)
        if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], str):
          raise ValueError("expected a key and a value")
        key, value = row
        if not fits(value):
          raise ValueError("its value is of another form")
      except (ValueError, RecursionError) as error:
        raise ValueError(f"{self.path}, line {number}: not a line of a journal ({error}); delete "
                         "the work folder") from error
      self.kept[key] = value
      whole += len(line) + 1
    if self.path.is_file():
      os.truncate(self.path, whole)
    self._file = None

  def add(self, key: str, value: Any) -> None:
    """Keeps a result."""
    if self._file is None:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      self._file = self.path.open("a", encoding="utf-8")
    self._file.write(json.dumps([key, value], ensure_ascii=False) + "\n")
    self.kept[key] = value

  def flush(self) -> None:
    """Hands what was added to the system, so that a kill does not lose it."""
    if self._file is not None:
      self._file.flush()

  def close(self) -> None:
    """Closes the file. Twice is harmless."""
    if self._file is not None:
      self._file.close()
      self._file = None

  def __enter__(self) -> "Journal":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()
