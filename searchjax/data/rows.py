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
import itertools
import json
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

HUB = "hf:"
SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
_LARGEST_FIELD = 1 << 27
_LONGEST_REASON = 300  # characters
_ARRAYS = ("data", "rows", "examples")
_SPACE = re.compile(r"\s*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


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
    """Counts a malformed row; a reason may quote the row, so it is cut."""
    reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} …"
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
  if file.is_dir():
    raise ValueError(f"{name}: a folder; name the files in it")
  if not file.is_file():
    raise ValueError(f"{name}: no such file")
  if suffix == ".parquet" and file.suffix != ".gz":
    yield from _parquet_rows(name, name, account)
    return
  try:
    data = file.read_bytes()
    data = gzip.decompress(data) if file.suffix == ".gz" else data
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f"{name}: cannot be read ({error})") from error
  if suffix == ".parquet":
    yield from _parquet_rows(name, io.BytesIO(data), account)
    return
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


def _checked(name: str, line: int, value: Any, account: Account, text: str = "") -> Iterator[Row]:
  """The row, if it is an object; `text` is the JSON that it was, if any."""
  account.rows += 1
  row = Row(name, line, value)
  if not isinstance(value, Mapping):
    account.refuse(row, "", f"expected an object, got {type(value).__name__}")
  elif _SURROGATE.search(text) and not _is_unicode(value):
    account.refuse(row, "", "text with half a surrogate pair")
  else:
    yield row


def _is_unicode(value: Any) -> bool:
  try:
    json.dumps(value, ensure_ascii=False).encode("utf-8")
  except UnicodeEncodeError:
    return False
  return True


def _unread(name: str, line: int, reason: str, account: Account) -> None:
  account.rows += 1
  account.problems.append(Problem(name, line, "", reason))


def _json_lines(name: str, data: bytes, account: Account) -> Iterator[Row]:
  for line, raw in enumerate(data.split(b"\n"), start=1):
    if not raw.strip():
      continue
    try:
      text = raw.decode("utf-8")
      value = json.loads(text)
    except (ValueError, RecursionError) as error:
      _unread(name, line, f"not JSON ({error})", account)
      continue
    yield from _checked(name, line, value, account, text)


def _json_rows(name: str, text: str, account: Account) -> Iterator[Row]:
  if _is_lines(text):
    yield from _json_lines(name, text.encode(), account)
    return
  at = _array(text)
  if at < 0:
    raise ValueError(f"{name}: expected a JSON array of rows, or an object whose \"data\" is one")
  whole = text.lstrip().startswith("[")
  decoder = json.JSONDecoder()
  at, line, counted, first = at + 1, 1, 0, True
  while True:
    at = _SPACE.match(text, at).end()
    comma = text[at:at + 1] == ","
    at = _SPACE.match(text, at + comma).end()
    line, counted = line + text.count("\n", counted, at), at
    if text[at:at + 1] == "]":
      rest = text[at + 1:].strip()
      if rest if whole else rest != "}" and not rest.startswith(","):
        _unread(name, line, f"after the array, and not read: {rest[:40]!r}", account)
      return
    if comma == first:
      _unread(name, line, "expected rows with one comma between two", account)
    first = False
    try:
      value, end = decoder.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
      _unread(name, line, f"not JSON ({error}); nothing after it is read", account)
      return
    yield from _checked(name, line, value, account, text[at:end])
    at = end


def _is_lines(text: str) -> bool:
  """Whether it is JSON lines: an object is whole at the end of its line."""
  line, _, rest = text.strip().partition("\n")
  if not line.startswith("{") or not rest and _array(text) >= 0:
    return False
  try:
    json.loads(line)
  except (ValueError, RecursionError):
    return _array(text) < 0
  return True


def _array(text: str) -> int:
  """Where the array of rows begins, which may be an object's field; -1 where there is none."""
  skip = lambda at: _SPACE.match(text, at).end()
  at = skip(0)
  if text[at:at + 1] == "[":
    return at
  decoder, mark = json.JSONDecoder(), "{"
  while text[at:at + 1] == mark:
    try:
      key, at = decoder.raw_decode(text, skip(at + 1))
      at = skip(at)
      if not isinstance(key, str) or text[at:at + 1] != ":":
        return -1
      at = skip(at + 1)
      if key.lower() in _ARRAYS and text[at:at + 1] == "[":
        return at
      _, at = decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
      return -1
    at, mark = skip(at), ","
  return -1


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


def _parquet_rows(name: str, source: str | io.BytesIO, account: Account) -> Iterator[Row]:
  parquet, errors = _package("pyarrow.parquet", name), _package("pyarrow", name).ArrowException

  def batches():
    try:
      with parquet.ParquetFile(source) as file:
        for batch in file.iter_batches():
          yield batch.to_pylist()
    except (errors, OSError) as error:
      raise ValueError(f"{name}: cannot be read as Parquet ({error})") from error

  for number, value in enumerate(itertools.chain.from_iterable(batches()), start=1):
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
