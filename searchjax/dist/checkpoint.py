"""Checkpoints: a tree of arrays and a JSON record, written whole or not at all.  HOST.

A checkpoint lies in `DIR/<step>/` with the arrays under `tree/` and the record under `meta/`.
Orbax writes it under a temporary name and renames it when complete, so a killed save leaves the
previous checkpoint the latest (FAULTS C4).  Restored arrays are committed device
buffers that a jitted step may donate (FAULTS C5).

Letters  none.
Source   orbax.checkpoint.
"""

import pathlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp


def save(
  directory: str | pathlib.Path, step: int, tree: Any, meta: dict[str, Any], keep: int
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
  if keep < 1:
    raise ValueError(f"checkpoints to keep: expected 1 or more, got {keep}")
  with _manager(directory, keep=keep) as manager:
    if step in manager.all_steps():
      raise ValueError(
        f"step {step} is already saved in {directory}; resume after it or give another folder"
      )
    items = ocp.args.Composite(tree=ocp.args.StandardSave(tree), meta=ocp.args.JsonSave(meta))
    manager.save(step, args=items)
    manager.wait_until_finished()


def restore(
  directory: str | pathlib.Path, template: Any, step: int | None = None
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
    ValueError: no checkpoint there, or it does not fit the template (the first differing leaf is
      named).
  """
  wanted = latest_step(directory) if step is None else step
  if wanted is None:
    raise ValueError(f"no complete checkpoint in {directory}; run the stage that writes it first")
  with _manager(directory) as manager:
    if wanted not in manager.all_steps():
      raise ValueError(
        f"no checkpoint of step {wanted} in {directory}; there are {sorted(manager.all_steps())}"
      )
    _check_fits(manager.item_metadata(wanted)["tree"], template, directory)
    target = jax.tree.map(_as_struct, template)
    items = ocp.args.Composite(tree=ocp.args.StandardRestore(target), meta=ocp.args.JsonRestore())
    restored = manager.restore(wanted, args=items)
  return restored["tree"], restored["meta"]


def read_meta(directory: str | pathlib.Path, step: int | None = None) -> dict[str, Any]:
  """Reads only the JSON record, e.g. to learn a model's config before making its template.

  Raises:
    ValueError: no such checkpoint.
  """
  wanted = latest_step(directory) if step is None else step
  if wanted is None:
    raise ValueError(f"no complete checkpoint in {directory}; run the stage that writes it first")
  with _manager(directory) as manager:
    return manager.restore(wanted, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]


def latest_step(directory: str | pathlib.Path) -> int | None:
  """The newest complete checkpoint's step; None where there is none."""
  if not pathlib.Path(directory).is_dir():
    return None
  with _manager(directory) as manager:
    return manager.latest_step()


def _manager(directory: str | pathlib.Path, keep: int | None = None) -> ocp.CheckpointManager:
  options = ocp.CheckpointManagerOptions(
    max_to_keep=keep, create=keep is not None, enable_async_checkpointing=False
  )
  handlers = {"tree": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
  return ocp.CheckpointManager(
    pathlib.Path(directory).absolute(), options=options, item_handlers=handlers
  )


def _as_struct(leaf: Any) -> jax.ShapeDtypeStruct:
  sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)


def _check_fits(saved: Any, template: Any, directory: str | pathlib.Path) -> None:
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
