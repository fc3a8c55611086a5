"""Folders of safetensors files, read and written a slice at a time through memory maps.  HOST.

A file is 8 bytes n (little-endian), n bytes of JSON {name: {dtype, shape, data_offsets}}, then the
tensors back to back. A map costs nothing until it is sliced, so a process reads only the pages of
the slices it takes; dropping the map gives the pages back.

Letters  none.
Source   the safetensors format; the index file is that of Hugging Face's `transformers`.
"""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

DTYPES = {
  "F64": np.dtype(np.float64),
  "F32": np.dtype(np.float32),
  "F16": np.dtype(np.float16),
  "BF16": np.dtype(ml_dtypes.bfloat16),
  "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
  "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
  "I64": np.dtype(np.int64),
  "I32": np.dtype(np.int32),
  "I16": np.dtype(np.int16),
  "I8": np.dtype(np.int8),
  "U8": np.dtype(np.uint8),
  "BOOL": np.dtype(np.bool_),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_LONGEST_HEADER = 100_000_000  # The limit of the safetensors library.


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """Attributes:
    file: where it lies.
    offset: its first byte in the file.
    shape: sizes; () is a scalar.
    dtype: NumPy dtype of its elements.
  """

  file: pathlib.Path
  offset: int
  shape: tuple[int, ...]
  dtype: np.dtype

  @property
  def nbytes(self) -> int:
    return math.prod(self.shape) * self.dtype.itemsize

  def map(self, mode: str = "r") -> np.ndarray:
    """The tensor as an array backed by the file; "r+" also writes through it."""
    if not self.nbytes:
      return np.zeros(self.shape, self.dtype)
    mapped = np.memmap(self.file, np.uint8, mode, self.offset, (self.nbytes,))
    return np.asarray(mapped).view(self.dtype).reshape(self.shape)


def open_tensors(folder: str | pathlib.Path) -> dict[str, StoredTensor]:
  """Lists the tensors of a folder: of its index's files, or of its one safetensors file.

  Raises:
    ValueError: no such files, a file cut short or with a broken header, a dtype this module does
      not know, or an index that does not fit its files; the message names file and tensor.
  """
  folder = pathlib.Path(folder)
  index = folder / INDEX_FILE
  if index.is_file():
    return _open_indexed(folder, index)
  single = folder / SINGLE_FILE
  files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
  if len(files) != 1:
    raise ValueError(
      f"{folder} has {len(files)} safetensors files and no {INDEX_FILE}; expected the index, or "
      f"one file {SINGLE_FILE}"
    )
  return dict(_read_header(files[0]))


def create_tensors(
  folder: str | pathlib.Path,
  tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]],
  *,
  file_bytes: int = 5_000_000_000,
) -> dict[str, StoredTensor]:
  """Lays out files of zeros, with headers and index, for tensors to be filled through `map("r+")`.

  Args:
    folder: an existing folder.
    tensors: name to (shape, dtype), in the order in which they shall lie.
    file_bytes: a file is closed before it would grow beyond this; one larger tensor has its own.

  Returns:
    Where each tensor lies.
  """
  groups: list[list[str]] = [[]]
  filled = 0
  size = {n: math.prod(shape) * np.dtype(dtype).itemsize for n, (shape, dtype) in tensors.items()}
  for name in tensors:
    if groups[-1] and filled + size[name] > file_bytes:
      groups.append([])
      filled = 0
    groups[-1].append(name)
    filled += size[name]
  stored, weight_map = {}, {}
  for number, names in enumerate(groups, start=1):
    last = len(groups)
    file_name = SINGLE_FILE if last == 1 else f"model-{number:05d}-of-{last:05d}.safetensors"
    stored.update(_write_header(pathlib.Path(folder) / file_name, names, tensors))
    weight_map.update(dict.fromkeys(names, file_name))
  if len(groups) > 1:
    index = {"metadata": {"total_size": sum(size.values())}, "weight_map": weight_map}
    text = json.dumps(index, indent=2) + "\n"
    (pathlib.Path(folder) / INDEX_FILE).write_text(text, encoding="utf-8")
  return stored


def _open_indexed(folder: pathlib.Path, index: pathlib.Path) -> dict[str, StoredTensor]:
  try:
    weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    file_names = sorted(set(weight_map.values()))
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(
      f'{index} is no index of safetensors files ({error}); expected {{"weight_map": {{...}}}}'
    ) from error
  for file_name in file_names:
    if not (folder / file_name).is_file():
      raise ValueError(f"no file {file_name} in {folder}, which {INDEX_FILE} names; fetch it")
  stored = {}
  for file_name in file_names:
    for name, tensor in _read_header(folder / file_name):
      if weight_map.get(name) != file_name:
        raise ValueError(
          f"tensor {name} lies in {file_name}, but {INDEX_FILE} has it in "
          f"{weight_map.get(name, 'no file')}; fetch the folder again"
        )
      stored[name] = tensor
  for name, file_name in weight_map.items():
    if name not in stored:
      raise ValueError(
        f"tensor {name} is not in {file_name}, where {INDEX_FILE} has it; fetch the folder again"
      )
  return stored


def _read_header(file: pathlib.Path) -> Iterator[tuple[str, StoredTensor]]:
  total = file.stat().st_size
  with file.open("rb") as stream:
    length = int.from_bytes(stream.read(8), "little")
    if total < 8 or length > min(total - 8, _LONGEST_HEADER):
      raise ValueError(f"{file} is cut short or no safetensors file ({total} bytes)")
    text = stream.read(length)
  try:
    entries = dict(json.loads(text))
  except (ValueError, TypeError) as error:
    raise ValueError(f"{file} has a broken header: {error}") from error
  entries.pop("__metadata__", None)
  for name, entry in entries.items():
    yield name, _read_entry(file, name, entry, start=8 + length, total=total)


def _read_entry(
  file: pathlib.Path, name: str, entry: Any, *, start: int, total: int
) -> StoredTensor:
  try:
    kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f"{file} has a broken entry for tensor {name}: {entry}") from error
  if kind not in DTYPES:
    raise ValueError(
      f"tensor {name} in {file.name} is {kind}; expected one of {', '.join(sorted(DTYPES))}"
    )
  tensor = StoredTensor(file, start + begin, shape, DTYPES[kind])
  if end - begin != tensor.nbytes:
    raise ValueError(
      f"tensor {name} in {file.name} is {kind}{list(shape)}, {tensor.nbytes} bytes, but has "
      f"{end - begin}; fetch the file again"
    )
  if start + end > total:
    raise ValueError(
      f"{file} is cut short: tensor {name} ends at byte {start + end} of {total}; fetch it again"
    )
  return tensor


def _write_header(
  file: pathlib.Path,
  names: list[str],
  tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]],
) -> dict[str, StoredTensor]:
  # transformers refuses files whose metadata does not name a framework.
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  offset = 0
  for name in names:
    shape, dtype = tensors[name]
    end = offset + math.prod(shape) * np.dtype(dtype).itemsize
    header[name] = {
      "dtype": NAMES[np.dtype(dtype)], "shape": list(shape), "data_offsets": [offset, end]
    }
    offset = end
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-(8 + len(text)) % 64)  # Tensors begin on a cache line.
  with file.open("xb") as stream:
    stream.write(len(text).to_bytes(8, "little") + text)
    os.truncate(stream.fileno(), 8 + len(text) + offset)
  start = 8 + len(text)
  return {
    name: StoredTensor(
      file, start + header[name]["data_offsets"][0], tuple(tensors[name][0]),
      np.dtype(tensors[name][1]),
    )
    for name in names
  }
