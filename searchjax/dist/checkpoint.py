"""Checkpoints: a tree of arrays and a JSON record, written whole or not at all.  HOST.

A checkpoint lies in `DIR/<step>/` with the arrays under `tree/` and the record under `meta/`.
Orbax writes it under a temporary name and renames it when complete, so a killed save leaves the
previous checkpoint the latest (FAULTS C4).  Restored arrays are committed device
buffers that a jitted step may donate (FAULTS C5).

`save_blocks` writes arrays that no host could hold: block by block, each process its share, as the
zarr3 files (one file a block, in chunks of a few megabytes) that Orbax itself would write without
OCDBT; `restore` reads them like any other. `saved_blocks` reads a checkpoint the same way.

Letters  none.
Source   orbax.checkpoint; the zarr3 sharding codec.
"""

import contextlib
import itertools
import json
import math
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from jax.experimental import multihost_utils

from searchjax.dist.distributed import from_first
from searchjax.dist.storage import as_folder, is_remote, key_value_store

CAUSE_LENGTH = 160  # Characters of a library's message that are shown.
# Where a block lies: start and stop along every axis.
Box = tuple[slice, ...]


def save(
  directory: str | os.PathLike, step: int, tree: Any, meta: dict[str, Any], keep: int
) -> None:
  """Writes one checkpoint and removes the oldest ones; returns when it is complete on disk.

  Args:
    directory: the checkpoint folder; made if absent.
    step: the number of finished steps; 0 or more and not yet saved here.
    tree: a pytree of arrays.
    meta: JSON-able record beside it: data position, seeds, resolved config.
    keep: how many checkpoints to keep, the newest ones; 1 or more.

  Raises:
    ValueError: `step` is already saved, or `keep` is not positive.
  """
  with Saver(directory, keep=keep) as saver:
    saver.save(step, tree, meta)


class Saver:
  """Writes a run's checkpoints while it goes on.  A context manager, held open for the run.

  `save` returns when the arrays have been copied, so that the next step may donate them; files are
  written in the background. The next save, and leaving, wait for that and raise what went wrong.
  """

  def __init__(self, directory: str | os.PathLike, keep: int):
    """Args as for the function `save`."""
    if keep < 1:
      raise ValueError(f"checkpoints to keep: expected 1 or more, got {keep}")
    self._directory, self._keep = directory, keep
    self._manager: ocp.CheckpointManager | None = None

  def __enter__(self) -> "Saver":
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    # After a failure the other processes may never come to finish a save together.
    if kind is None or jax.process_count() == 1:
      self.close()

  def save(self, step: int, tree: Any, meta: dict[str, Any]) -> None:
    """Begins to write one checkpoint, as the function `save` does; every process calls it."""
    if self._manager is None:
      self._manager = _manager(self._directory, keep=self._keep)
    if step in self._manager.all_steps():
      raise ValueError(
        f"step {step} is already saved in {self._directory}; resume after it or give another "
        f"folder"
      )
    items = ocp.args.Composite(tree=ocp.args.StandardSave(tree), meta=ocp.args.JsonSave(meta))
    self._manager.save(step, args=items)

  def close(self) -> None:
    """Waits until everything is on disk."""
    if self._manager is not None:
      manager, self._manager = self._manager, None
      manager.wait_until_finished()
      manager.close()


def restore(
  directory: str | os.PathLike, template: Any, step: int | None = None
) -> tuple[Any, dict[str, Any]]:
  """Reads one checkpoint.

  Args:
    directory: the checkpoint folder.
    template: a pytree of arrays or `jax.ShapeDtypeStruct`s with the structure, shapes, dtypes and
      shardings wanted; a leaf without a sharding goes to the default device.
    step: which one; None takes the latest complete one.

  Returns:
    The tree and its JSON record.

  Raises:
    ValueError: no checkpoint there, a damaged one, or it does not fit the template (the first
      differing leaf is named).
  """
  with _open_step(directory, step) as (manager, wanted):
    _check_fits(_saved_tree(manager, directory, wanted), template, directory)
    target = jax.tree.map(_as_struct, template)
    items = ocp.args.Composite(tree=ocp.args.StandardRestore(target), meta=ocp.args.JsonRestore())
    with _naming_damage(directory, wanted):
      restored = manager.restore(wanted, args=items)
  return restored["tree"], restored["meta"]


def save_blocks(
  directory: str | os.PathLike,
  step: int,
  template: Any,
  read: Callable[[str, Box], np.ndarray],
  meta: dict[str, Any],
  *,
  file_bytes: int = 128 * 2**20,
  chunk_bytes: int = 8 * 2**20,
) -> None:
  """Writes a checkpoint whose arrays are made block by block; memory holds a few blocks.

  Called by every process; process i of n writes every n-th block, on a file system all share.

  Args:
    directory: the checkpoint folder, not there yet.
    step: the number of finished steps.
    template: nested dicts of `jax.ShapeDtypeStruct`.
    read: gives the block of an array: (its dotted name, slices with start and stop) to values.
    meta: JSON-able record beside it.
    file_bytes: largest block, a file each.
    chunk_bytes: largest part of a file that is read alone, e.g. one expert.

  Raises:
    ValueError: `directory` is there already.
  """
  if is_remote(directory):
    raise ValueError(
      f"a checkpoint is written block by block into a local folder, got {directory}; give one, and "
      f"copy it: gcloud storage cp -r FOLDER {directory}"
    )
  directory = pathlib.Path(directory).absolute()
  if directory.exists():
    raise ValueError(f"{directory} is there already; remove it or give another folder")
  partial = directory.with_name(directory.name + ".partial")
  first = jax.process_index() == 0
  if first:
    shutil.rmtree(partial, ignore_errors=True)
  barrier("partial folder is clear")
  # Orbax writes the records of a tree of this structure; its one-element arrays are then replaced.
  handlers = {
    "tree": ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=True),
    "meta": ocp.JsonCheckpointHandler(),
  }
  options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
  with ocp.CheckpointManager(partial, options=options, item_handlers=handlers) as manager:
    tree = jax.tree.map(lambda leaf: np.zeros((1,) * len(leaf.shape), leaf.dtype), template)
    items = ocp.args.Composite(tree=ocp.args.PyTreeSave(tree), meta=ocp.args.JsonSave(meta))
    manager.save(step, args=items)
    manager.wait_until_finished()
  folder = partial / str(step) / "tree"
  leaves = {_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(template)}
  plans = {
    name: _plan(leaf.shape, np.dtype(leaf.dtype).itemsize, file_bytes, chunk_bytes)
    for name, leaf in leaves.items()
  }
  if first:
    _replace_arrays(folder, leaves, plans)
  barrier("arrays are laid out")
  number = itertools.count()
  for name, leaf in leaves.items():
    store = tensorstore.open(_stored_at(folder, name), open=True).result()
    for box in _boxes(leaf.shape, plans[name][0]):
      if next(number) % jax.process_count() == jax.process_index():
        store[box].write(read(name, box)).result()
  barrier("blocks are written")
  if first:
    os.rename(partial, directory)
  barrier("checkpoint is in place")


def saved_shapes(
  directory: str | os.PathLike, step: int | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
  """Shape and dtype of every array of a checkpoint, by dotted name.

  Raises:
    ValueError: no such checkpoint, or a damaged one.
  """
  with _open_step(directory, step) as (manager, wanted):
    saved = _saved_tree(manager, directory, wanted)
  return {
    _path(path): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    for path, leaf in jax.tree_util.tree_leaves_with_path(saved)
  }


def saved_blocks(
  directory: str | os.PathLike, step: int | None = None
) -> Iterator[tuple[str, Box, np.ndarray]]:
  """Reads every array of a checkpoint once, in the blocks it was written in.

  Memory holds one block: a file of `save_blocks`, a device's shard of `save`.

  Returns:
    Dotted name, slices with start and stop, values.

  Raises:
    ValueError: no such checkpoint, or a damaged one.
  """
  shapes = saved_shapes(directory, step)
  wanted = latest_step(directory) if step is None else step
  folder = as_folder(directory) / str(wanted) / "tree"
  for name, leaf in shapes.items():
    with _naming_damage(directory, wanted):
      store = tensorstore.open(_stored_at(folder, name), open=True).result()
    for box in _boxes(leaf.shape, store.chunk_layout.write_chunk.shape):
      with _naming_damage(directory, wanted):
        values = store[box].read().result()
      yield name, box, values


def read_meta(directory: str | os.PathLike, step: int | None = None) -> dict[str, Any]:
  """Reads only the JSON record, e.g. to learn a model's config before making its template.

  Raises:
    ValueError: no such checkpoint, or a damaged one.
  """
  items = ocp.args.Composite(meta=ocp.args.JsonRestore())
  with _open_step(directory, step) as (manager, wanted), _naming_damage(directory, wanted):
    return manager.restore(wanted, args=items)["meta"]


def latest_step(directory: str | os.PathLike) -> int | None:
  """The newest complete checkpoint's step; None where there is none.

  Of several processes the first looks and tells the others, which call this too: what each would
  find by itself depends on when it looks (FAULTS Y6).
  """
  steps = lambda: max(ocp.utils.checkpoint_steps(as_folder(directory)), default=None)
  return from_first(steps)


def _manager(directory: str | os.PathLike, keep: int | None = None) -> ocp.CheckpointManager:
  options = ocp.CheckpointManagerOptions(
    max_to_keep=keep, create=keep is not None, enable_async_checkpointing=keep is not None
  )
  handlers = {"tree": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
  return ocp.CheckpointManager(as_folder(directory), options=options, item_handlers=handlers)


@contextlib.contextmanager
def _open_step(
  directory: str | os.PathLike, step: int | None
) -> Iterator[tuple[ocp.CheckpointManager, int]]:
  wanted = latest_step(directory) if step is None else step
  if wanted is None or not as_folder(directory).is_dir():
    raise ValueError(f"no complete checkpoint in {directory}; run the stage that writes it first")
  with _manager(directory) as manager:
    if wanted not in manager.all_steps():
      raise ValueError(
        f"no checkpoint of step {wanted} in {directory}; there are {sorted(manager.all_steps())}"
      )
    yield manager, wanted


@contextlib.contextmanager
def _naming_damage(directory: str | os.PathLike, step: int) -> Iterator[None]:
  """What Orbax and TensorStore raise at truncated or missing files becomes one line.

  Bad JSON and bad UTF-8 are ValueErrors.
  """
  try:
    yield
  except (ValueError, KeyError, FileNotFoundError) as error:
    lines = str(error.args[0] if isinstance(error, KeyError) else error).splitlines()
    cause = lines[0] if lines else type(error).__name__
    if len(cause) > CAUSE_LENGTH:
      cause = cause[:CAUSE_LENGTH] + "…"
    if is_remote(directory):  # It may be the way there that is broken.
      raise ValueError(
        f"checkpoint {directory} step {step} cannot be read ({cause}); is it whole, and may this "
        f"machine read the bucket?"
      ) from error
    raise ValueError(
      f"checkpoint {directory} step {step} is damaged ({cause}); "
      f"delete {directory}/{step} and run the stage again"
    ) from error


def _saved_tree(manager: ocp.CheckpointManager, directory: str | os.PathLike, step: int) -> Any:
  """Shapes and dtypes as the checkpoint has them."""
  folder = as_folder(directory) / str(step) / "tree"
  with _naming_damage(directory, step):
    if folder.is_dir():
      # One at a time: an array that does not open stops Orbax amid its threads, which complain.
      record = json.loads((folder / "_METADATA").read_text(encoding="utf-8"))
      for entry in record["tree_metadata"].values():
        if not entry["value_metadata"].get("skip_deserialize"):
          name = ".".join(key["key"] for key in entry["key_metadata"])
          tensorstore.open(_stored_at(folder, name), open=True).result()
    return manager.item_metadata(step)["tree"]


def barrier(name: str) -> None:
  """Waits until every process is here; nothing where there is one."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def _plan(
  shape: tuple[int, ...], itemsize: int, file_bytes: int, chunk_bytes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
  """Shapes of a file and of a chunk: leading axes are cut first, so both are runs of memory.

  A cut axis has a power of two per chunk, which divides most shardings; a file has whole chunks.
  """
  chunk = list(_cut(shape, chunk_bytes // itemsize))
  for axis, size in enumerate(chunk):
    if size < shape[axis]:
      chunk[axis] = 1 << (size.bit_length() - 1)
  # A file of whole chunks along every axis; -(-a // b) rounds up.
  cells = tuple(-(-size // part) for size, part in zip(shape, chunk, strict=True))
  files = _cut(cells, file_bytes // (itemsize * math.prod(chunk)))
  return tuple(n * part for n, part in zip(files, chunk, strict=True)), tuple(chunk)


def _cut(shape: tuple[int, ...], limit: int) -> tuple[int, ...]:
  """The longest run of at most `limit` elements (at least one) that is a box."""
  box, rest = [], math.prod(shape)
  for size in shape:
    rest //= max(size, 1)
    box.append(min(size, max(1, limit // max(rest, 1))))
  return tuple(box)


def _boxes(shape: tuple[int, ...], block: tuple[int, ...]) -> Iterator[Box]:
  starts = [range(0, size, part) for size, part in zip(shape, block, strict=True)]
  for corner in itertools.product(*starts):
    sizes = zip(corner, block, shape, strict=True)
    yield tuple(slice(start, min(start + part, size)) for start, part, size in sizes)


def _replace_arrays(
  folder: pathlib.Path,
  leaves: dict[str, Any],
  plans: dict[str, tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
  record = json.loads((folder / "_METADATA").read_text(encoding="utf-8"))
  for entry in record["tree_metadata"].values():
    name = ".".join(key["key"] for key in entry["key_metadata"])
    entry["value_metadata"] |= {"value_type": "jax.Array", "write_shape": list(plans[name][0])}
  (folder / "_METADATA").write_text(json.dumps(record), encoding="utf-8")
  # Optional records, which would speak of the one-element arrays.
  shutil.rmtree(folder / "array_metadatas", ignore_errors=True)
  (folder / "_sharding").unlink(missing_ok=True)
  for name, leaf in leaves.items():
    shutil.rmtree(folder / name)
    file_shape, chunk = plans[name]
    codec = {
      "name": "sharding_indexed",
      "configuration": {
        "chunk_shape": chunk,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
      },
    }
    metadata = {
      "shape": leaf.shape,
      "data_type": np.dtype(leaf.dtype).name,
      "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": file_shape}},
      "codecs": [codec],
    }
    spec = _stored_at(folder, name) | {"metadata": metadata}
    tensorstore.open(spec, create=True).result()


def _stored_at(folder: Any, name: str) -> dict[str, Any]:
  """TensorStore's spec of one array of a checkpoint's `tree` folder."""
  record = json.loads((folder / "_METADATA").read_text(encoding="utf-8"))
  kvstore = key_value_store(folder / name)
  if (folder / "manifest.ocdbt").exists():
    kvstore = {"driver": "ocdbt", "base": key_value_store(folder), "path": f"{name}/"}
  # A complete checkpoint does not change: what has been read since it was opened stands.
  return {
    "driver": "zarr3" if record.get("use_zarr3") else "zarr", "kvstore": kvstore,
    "recheck_cached_metadata": "open", "recheck_cached_data": "open",
  }


def _as_struct(leaf: Any) -> jax.ShapeDtypeStruct:
  here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  sharding = getattr(leaf, "sharding", None) or here
  sharding.shard_shape(np.shape(leaf))  # A mesh that does not divide it is no damage: said here.
  return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)


def _check_fits(saved: Any, template: Any, directory: str | os.PathLike) -> None:
  def describe(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"

  there = {_path(path): describe(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(saved)}
  here = {
    _path(path): describe(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(template)
  }
  for name in sorted(there.keys() | here.keys()):
    if there.get(name) != here.get(name):
      raise ValueError(
        f"checkpoint in {directory} does not fit: {name} is {there.get(name, 'absent')} there, "
        f"expected {here.get(name, 'absent')}; restore it with the config it was saved with"
      )


def _path(path: tuple[Any, ...]) -> str:
  """One spelling for dict keys, record fields and positions: the saved tree has only names."""
  words = [getattr(part, "key", getattr(part, "name", getattr(part, "idx", part))) for part in path]
  return ".".join(str(word) for word in words)
