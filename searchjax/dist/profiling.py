"""Profiler traces of a few training steps, by every process.  HOST.

    WORKDIR/profile/plugins/profile/steps_000012_000013/process_000.xplane.pb

Every process traces the same steps, as its peers would wait in vain otherwise (FAULTS Y6); a file a
process, which xprof and TensorBoard's profile plugin show as hosts of one run:
`xprof --logdir WORKDIR/profile`.

Letters  none.
Source   jax.profiler.
"""

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath


class Profile:
  """Traces `steps` steps from `first_step` on.  A context manager around the training loop.

  Args:
    section: a config's `profile` section: first_step, counted from 0, and steps; 0 is off.
    workdir: the run's folder, gs:// too.
  """

  def __init__(self, section: Mapping[str, int], workdir: Any):
    self._first, self._steps = section["first_step"], section["steps"]
    last = self._first + self._steps - 1
    self._name = f"steps_{self._first:06d}_{last:06d}"
    self._folder = epath.Path(workdir) / "profile/plugins/profile" / self._name
    self._partial: tempfile.TemporaryDirectory | None = None

  def __enter__(self) -> "Profile":
    return self

  def __exit__(self, *_: object) -> None:
    self._stop()

  def at(self, step: int) -> None:
    """Called before each step: begins or ends the trace where it is due."""
    if step == self._first + self._steps:
      self._stop()
    if self._steps and step == self._first:
      self._partial = tempfile.TemporaryDirectory(prefix="profile")
      options = jax.profiler.ProfileOptions()
      options.session_id = self._name
      jax.profiler.start_trace(self._partial.name, profiler_options=options)

  def _stop(self) -> None:
    if self._partial is None:
      return
    jax.profiler.stop_trace()
    self._folder.mkdir(parents=True, exist_ok=True)
    written = pathlib.Path(self._partial.name) / "plugins/profile" / self._name
    for kind in ("xplane.pb", "trace.json.gz"):  # HOST.KIND; a host may run several processes.
      for path in written.glob(f"*.{kind}"):
        name = f"process_{jax.process_index():03d}.{kind}"
        epath.Path(path).copy(self._folder / name, overwrite=True)
    self._partial.cleanup()
    self._partial = None
