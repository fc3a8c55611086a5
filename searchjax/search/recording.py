"""Answered searches kept on disk: a cache, and a recording to replay a run against.  HOST.

  FOLDER/<time>-<process>.jsonl, a line an answer:
  {"date", "provider", "query", "parameters", "results": [[title, url, snippet], ...]}

Every process appends to a file of its own, so writers never meet; what a killed one left unfinished
is ignored and counted. Of several answers to one search the earliest counts. Failures are never
kept, and nothing of a request but its query and parameters, so no key either.

Spec     3; resuming from recorded replies.
"""

import datetime
import hashlib
import json
import os
import pathlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from searchjax.search.reply import Result


class _Place(NamedTuple):
  """Where an answer stands, and since when."""

  date: str
  path: pathlib.Path
  offset: int


def search_key(provider: str, query: str, parameters: Mapping[str, Any]) -> bytes:
  """What identifies a search in recordings."""
  text = json.dumps([provider, query, dict(parameters)], sort_keys=True)
  return hashlib.blake2b(text.encode(), digest_size=16).digest()


class Recording:
  """The answers in a folder, found by key; new ones are added as they come.

  Attributes:
    unfinished: lines of the folder's files that are no whole answer.
  """

  def __init__(self, folder: str | os.PathLike):
    """Reads which answers the folder holds; it is made with the first one.

    Raises:
      ValueError: it is a file.
    """
    self._folder = pathlib.Path(folder)
    self._places: dict[bytes, _Place] = {}
    self._file: int | None = None
    self.unfinished = 0
    if self._folder.exists() and not self._folder.is_dir():
      raise ValueError(f"search.cache {folder} is a file; give a folder")
    for path in sorted(self._folder.glob("*.jsonl")):
      self._read(path)

  def __len__(self) -> int:
    return len(self._places)

  def find(self, key: bytes) -> tuple[Result, ...] | None:
    """The results of a search; None where it is not recorded.

    Raises:
      OSError: the file can no longer be read.
    """
    place = self._places.get(key)
    if place is None:
      return None
    with place.path.open("rb") as file:
      file.seek(place.offset)
      return _results(json.loads(file.readline()))

  def add(self, provider: str, query: str, parameters: Mapping[str, Any],
          results: Sequence[Result]) -> None:
    """Keeps an answer.

    Raises:
      OSError: it cannot be written.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    line = json.dumps({
      "date": now, "provider": provider, "query": query, "parameters": dict(parameters),
      "results": [[r.title, r.url, r.snippet] for r in results]}).encode() + b"\n"
    if self._file is None:
      self._folder.mkdir(parents=True, exist_ok=True)
      # A name of its own for every writer, also on file systems shared by machines.
      self._path = self._folder / f"{now[:19].replace(':', '')}-{secrets.token_hex(8)}.jsonl"
      self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
      self._written = 0
    written = os.write(self._file, line)
    if written < len(line):
      self.close()  # whatever comes next begins a file of its own, not in the middle of this line
      raise OSError(f"{self._path}: only {written} of {len(line)} bytes could be written")
    key = search_key(provider, query, parameters)
    self._places.setdefault(key, _Place(now, self._path, self._written))
    self._written += written

  def close(self) -> None:
    """Ends writing; twice is harmless."""
    if self._file is not None:
      os.close(self._file)
      self._file = None

  def _read(self, path: pathlib.Path) -> None:
    offset = 0
    with path.open("rb") as lines:
      for line in lines:
        try:
          if not line.endswith(b"\n"):
            raise ValueError("no end of line")
          row = json.loads(line)
          _results(row)
          key = search_key(row["provider"], row["query"], row["parameters"])
          place = _Place(str(row["date"]), path, offset)
          self._places[key] = min(place, self._places.get(key, place))
        except (ValueError, KeyError, TypeError):
          self.unfinished += 1
        offset += len(line)


def _results(row: Mapping[str, Any]) -> tuple[Result, ...]:
  return tuple(Result(str(title), str(url), str(snippet))
               for title, url, snippet in row["results"])
