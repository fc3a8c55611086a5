"""Folders on local disks and in buckets, `gs://BUCKET/FOLDER`.  HOST.

Checkpoints go to a bucket directly, through Orbax and TensorStore. What is appended to or written
by libraries that know only local files (metrics, rollouts, TensorBoard) lies in a local folder of
process 0; `Mirror` copies it to the bucket, and back when another machine goes on.

Letters  none.
Source   etils.epath (which needs gcsfs for gs://).
"""

import os
import pathlib
from typing import Any

from etils import epath

SCHEME = "gs://"


def is_remote(path: str | os.PathLike) -> bool:
  """Whether it lies in a bucket."""
  return str(path).startswith(SCHEME)


def as_folder(path: str | os.PathLike) -> Any:
  """A path with pathlib's methods: a pathlib.Path, absolute, or an epath.Path in a bucket."""
  return epath.Path(path) if is_remote(path) else pathlib.Path(path).absolute()


def local_part(workdir: str | os.PathLike, local_folder: str) -> pathlib.Path:
  """Where the local part of a run folder lies: the folder itself, or in LOCAL_FOLDER/BUCKET/…"""
  if not is_remote(workdir):
    return pathlib.Path(workdir)
  return pathlib.Path(local_folder) / str(workdir).removeprefix(SCHEME)


def key_value_store(folder: Any) -> dict[str, Any]:
  """TensorStore's spec of a folder."""
  if not is_remote(folder):
    return {"driver": "file", "path": f"{folder}/"}
  bucket, _, path = str(folder).removeprefix(SCHEME).partition("/")
  return {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}


class Mirror:
  """A local folder and its copy in a bucket.

  Args:
    local: the folder that is written.
    remote: its copy.
  """

  def __init__(self, local: pathlib.Path, remote: Any):
    self.local, self.remote = local, remote
    self._sent: dict[pathlib.Path, tuple[int, int]] = {}

  def fetch(self, *names: str) -> None:
    """Copies files of the bucket, where they are there, over the local ones."""
    for name in names:
      source = self.remote / name
      if source.exists():
        self.local.mkdir(parents=True, exist_ok=True)
        (self.local / name).write_bytes(source.read_bytes())

  def send(self) -> None:
    """Copies what is new or has changed since the last call."""
    for path in sorted(self.local.rglob("*")):
      if not path.is_file():
        continue
      status = path.stat()
      version = (status.st_mtime_ns, status.st_size)
      if self._sent.get(path) != version:
        target = self.remote / path.relative_to(self.local).as_posix()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        self._sent[path] = version
