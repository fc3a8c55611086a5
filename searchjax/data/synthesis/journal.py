"""Results that cost time, kept by key as they come, for a run that goes on after a kill.  HOST."""

import json
import os
import pathlib
from typing import Any


class Journal:
  """A JSONL file of [key, value] lines; the last line of a killed run may be half a line.

  Args:
    path: made with the first result.

  Raises:
    ValueError: a line other than the last is not one.
  """

  def __init__(self, path: str | os.PathLike):
    self.path = pathlib.Path(path)
    self.kept: dict[str, Any] = {}
    lines = self.path.read_bytes().split(b"\n") if self.path.is_file() else []
    whole = 0
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline was cut off
      try:
        key, value = json.loads(line)
      except (ValueError, TypeError) as error:
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
