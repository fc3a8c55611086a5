"""Rows of data files in any common form, and an account of every row that was read.  HOST.

JSON lines, a JSON array (or an object whose "data", "rows" or "examples" is one), CSV, TSV and
Parquet, each also as `.gz`, or a Hugging Face data set by name, `hf:OWNER/NAME[/CONFIG][:SPLIT]`.
A row that cannot be read is a `Problem` with its file, line and field; it is counted and never
ends the reading. A file that cannot be read at all is a ValueError.

Parquet needs the package pyarrow, a data set by name the package datasets and a network.
"""

import collections
import csv
import dataclasses
import gzip
import importlib
import io
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

HUB = "hf:"
SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
_LARGEST_FIELD = 1 << 27
_ARRAY = re.compile(r'\s*\{\s*(?:"(?!data"|rows"|examples")\w+"\s*:\s*(?:"[^"]*"|[\w.+-]+)\s*,\s*)*'
                    r'"(?:data|rows|examples)"\s*:\s*(?=\[)', re.IGNORECASE)


class Problem(NamedTuple):
  """Why a row cannot be used; `field` is "" where it is the row as a whole."""

  file: str
  line: int
  field: str
  reason: str

  def __str__(self) -> str:
    return ": ".join(filter(None, (f"{self.file}:{self.line}", self.field, self.reason)))


class Row(NamedTuple):
  """One row: its fields, and where they begin; lines and rows of Parquet count from 1."""

  file: str
  line: int
  fields: Mapping[str, Any]


class FieldError(ValueError):
  """What is wrong with one field of a row."""

  def __init__(self, field: str, reason: str):
    super().__init__(f"{field}: {reason}")
    self.field, self.reason = field, reason


@dataclasses.dataclass
class Account:
  """What became of rows: `rows = len(problems) + Σ dropped + kept`.

  Attributes:
    rows: how many were met.
    problems: the malformed ones.
    dropped: sound rows left out, by reason.
    noted: things done to kept rows, by name.
  """

  rows: int = 0
  problems: list[Problem] = dataclasses.field(default_factory=list)
  dropped: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  noted: collections.Counter = dataclasses.field(default_factory=collections.Counter)

  @property
  def kept(self) -> int:
    return self.rows - len(self.problems) - self.dropped.total()

  def refuse(self, row: Row, field: str, reason: str) -> None:
    """Counts a malformed row."""
    self.problems.append(Problem(row.file, row.line, field, reason))

  def summary(self) -> str:
    """One line."""
    parts = [f"{self.rows} rows", f"{self.kept} kept", f"{len(self.problems)} malformed"]
    parts += [f"{count} dropped: {reason}" for reason, count in sorted(self.dropped.items())]
    parts += [f"{count} {name}" for name, count in sorted(self.noted.items())]
    return ", ".join(parts)


def read_each(
  path: str | os.PathLike, account: Account, read: Callable[[Row], Any]
) -> Iterator[Any]:
  """What `read` makes of every row, in order; a FieldError it raises becomes a problem."""
  for row in read_rows(path, account):
    try:
      yield read(row)
    except FieldError as error:
      account.refuse(row, error.field, error.reason)


def read_rows(path: str | os.PathLike, account: Account) -> Iterator[Row]:
  """The rows of a file that can be read, in order.

  Args:
    path: a file, or `hf:OWNER/NAME[/CONFIG][:SPLIT]` (the split "train" unless it is named).
    account: counts every row, and takes the problems.

  Raises:
    ValueError: no such file, a form that is not known, not UTF-8, or a package that is missing.
  """
  name = os.fspath(path)
  if name.startswith(HUB):
    yield from _hub_rows(name, account)
    return
  file = pathlib.Path(name)
  suffix = "".join(file.suffixes[-2:]).removesuffix(".gz") if file.suffix == ".gz" else file.suffix
  suffix = "." + suffix.lower().rpartition(".")[2]
  if suffix not in SUFFIXES:
    raise ValueError(f"{name}: expected a file that ends in {', '.join(SUFFIXES)}, with or without "
                     ".gz after it")
  if not file.is_file():
    raise ValueError(f"{name}: no such file")
  if suffix == ".parquet":
    yield from _parquet_rows(name, account)
    return
  try:
    data = file.read_bytes()
    data = gzip.decompress(data) if file.suffix == ".gz" else data
  except (OSError, EOFError) as error:
    raise ValueError(f"{name}: cannot be read ({error})") from error
  data = data.removeprefix(b"\xef\xbb\xbf")
  if suffix == ".jsonl":
    yield from _json_lines(name, data, account)
    return
  try:
    text = data.decode("utf-8")
  except UnicodeDecodeError as error:
    line = data[:error.start].count(b"\n") + 1
    raise ValueError(f"{name}:{line}: not UTF-8 ({error.reason})") from error
  if suffix == ".json":
    yield from _json_rows(name, text, account)
  else:
    yield from _table_rows(name, text, "\t" if suffix == ".tsv" else ",", account)


def find(fields: Mapping[str, Any], path: str) -> Any:
  """The value at a path such as "prompt.0.content"; of "a|b" the first that is there.

  Raises:
    FieldError: there is none.
  """
  for one in path.split("|"):
    value: Any = fields
    for key in one.split("."):
      if isinstance(value, Mapping) and key in value:
        value = value[key]
      elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
        value = value[int(key)]
      else:
        break
    else:
      return value
  raise FieldError(path, "missing")


def find_text(fields: Mapping[str, Any], path: str) -> str:
  """The text at a path, trimmed.

  Raises:
    FieldError: missing, not text, or empty.
  """
  value = find(fields, path)
  if not isinstance(value, str):
    raise FieldError(path, f"expected text, got {type(value).__name__}")
  if not value.strip():
    raise FieldError(path, "empty")
  return value.strip()


# ---- forms of files ----------------------------------------------------------------------------


def _checked(name: str, line: int, value: Any, account: Account) -> Iterator[Row]:
  account.rows += 1
  row = Row(name, line, value)
  if isinstance(value, Mapping):
    yield row
  else:
    account.refuse(row, "", f"expected an object, got {type(value).__name__}")


def _unread(name: str, line: int, reason: str, account: Account) -> None:
  account.rows += 1
  account.problems.append(Problem(name, line, "", reason))


def _json_lines(name: str, data: bytes, account: Account) -> Iterator[Row]:
  for line, raw in enumerate(data.split(b"\n"), start=1):
    if not raw.strip():
      continue
    try:
      value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
      _unread(name, line, f"not JSON ({error})", account)
      continue
    yield from _checked(name, line, value, account)


def _json_rows(name: str, text: str, account: Account) -> Iterator[Row]:
  array = _ARRAY.match(text)
  at = array.end() if array else len(text) - len(text.lstrip())
  if text[at:at + 1] != "[":
    if text[at:at + 1] == "{":  # JSON lines under another name
      yield from _json_lines(name, text.encode(), account)
      return
    raise ValueError(f"{name}: expected a JSON array of rows, or an object whose \"data\" is one")
  decoder = json.JSONDecoder()
  at, line, counted = at + 1, 1, 0
  between = re.compile(r"[\s,]*")
  while True:
    at = between.match(text, at).end()
    line, counted = line + text.count("\n", counted, at), at
    if text[at:at + 1] == "]":
      return
    try:
      value, at = decoder.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
      _unread(name, line, f"not JSON ({error}); nothing after it is read", account)
      return
    yield from _checked(name, line, value, account)


def _table_rows(name: str, text: str, delimiter: str, account: Account) -> Iterator[Row]:
  csv.field_size_limit(_LARGEST_FIELD)
  reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
  columns: list[str] = []
  while True:
    line = reader.line_num + 1
    try:
      cells = next(reader)
    except StopIteration:
      return
    except csv.Error as error:
      _unread(name, line, f"not a table's row ({error})", account)
      continue
    if not cells:
      continue
    if not columns:
      named = [cell.strip() for cell in cells]
      if "" not in named[1:] and len(set(named)) == len(named):
        columns = [named[0] or "index", *named[1:]]
        continue
      columns = [str(i) for i in range(len(cells))]  # no header
    if len(cells) != len(columns):
      _unread(name, line, f"{len(cells)} cells, expected {len(columns)}", account)
      continue
    yield from _checked(name, line, dict(zip(columns, cells)), account)


def _parquet_rows(name: str, account: Account) -> Iterator[Row]:
  parquet = _package("pyarrow.parquet", name)
  number = 0
  with parquet.ParquetFile(name) as file:
    for batch in file.iter_batches():
      for value in batch.to_pylist():
        number += 1
        yield from _checked(name, number, value, account)


def _hub_rows(name: str, account: Account) -> Iterator[Row]:
  where, _, split = name.removeprefix(HUB).partition(":")
  owner, _, rest = where.partition("/")
  title, _, config = rest.partition("/")
  if not owner or not title:
    raise ValueError(f"{name}: expected hf:OWNER/NAME[/CONFIG][:SPLIT]")
  datasets = _package("datasets", name)
  try:
    rows = datasets.load_dataset(f"{owner}/{title}", config or None, split=split or "train")
  except (OSError, ValueError, ConnectionError) as error:
    raise ValueError(f"{name}: cannot be had from Hugging Face ({error})") from error
  for number, value in enumerate(rows, start=1):
    yield from _checked(name, number, value, account)


def _package(module: str, name: str) -> Any:
  try:
    return importlib.import_module(module)
  except ImportError as error:
    package = module.partition(".")[0]
    raise ValueError(f"{name}: needs the package {package}; pip install {package}") from error
