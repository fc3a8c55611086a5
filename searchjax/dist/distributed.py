"""One run of several processes: how it forms, what is exchanged, and who ended it.  HOST.

Every process runs the same program and issues the same jitted calls in the same order (FAULTS Y6).
`join` forms the run, or says in one line why it did not. While it lasts, a thread in every process
keeps a connection to process 0, which hears of each death at once and of a silence or a standstill
within a limit; then every process that still runs says who it was and ends with exit code 1.

Letters  none.
Source   none.
"""

import atexit
import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from searchjax.dist import settings

EXIT_LOST = 1
BEATS_PER_LIMIT = 6  # Signs of life within the limit of silence.
GRACE_S = 3.0  # An error that may be a collective's waits so long for the news of a death.
WORD = 500  # Characters of an error that are passed on.


class Run:
  """This process's part in the run; made by `join`, a context manager.

  Attributes:
    index, count: this process and how many there are.
    first: whether it is process 0, which alone writes metrics, reports and progress.
  """

  def __init__(self, watch: "_Watch | None" = None):
    self.index, self.count = jax.process_index(), jax.process_count()
    self.first = self.index == 0
    self._watch = watch

  def phase(self, name: str) -> None:
    """Says that this process got to `name`, e.g. "rollouts of step 3": a sign of progress."""
    if self._watch is not None:
      self._watch.progress(name)

  def __enter__(self) -> "Run":
    return self

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
    if self._watch is None:
      return
    if error is None:
      self._watch.leave("")
      return
    # The watch ends this process if another one's death was the cause. JAX raises what its
    # collectives meet as JaxRuntimeError or, where the call was dispatched from C++, ValueError.
    if isinstance(error, jax.errors.JaxRuntimeError | ValueError):
      time.sleep(GRACE_S)
    text = " ".join(str(error).split())[:WORD] or kind.__name__
    self._watch.leave(text if isinstance(error, ValueError) else f"{kind.__name__}: {text}")
    # The others end without saying goodbye to JAX's own service, which would wait for them.
    atexit.register(_end, settings.exit_code(error))


def join(config: Mapping[str, Any]) -> Run:
  """Forms the run that a config's `distributed` section describes.

  Args:
    config: the same on every process, but for distributed.process. Of the section: coordinator: ""
      is a run of one process; HOST:PORT of process 0; "auto" asks the TPU slice. processes: how
      many there must be. process: this one's number; -1 asks the slice. form_limit_s: seconds for
      all to come. silence_limit_s: without a sign of life from a process. stall_limit_s: without
      progress of any of them; longer than the longest step.

  Raises:
    ValueError: the section contradicts itself, or the run that formed is another one.
    SystemExit: code 1, it did not form in time; one line on stderr says so.
  """
  section = config["distributed"]
  where, processes, process = section["coordinator"], section["processes"], section["process"]
  if not where:
    if processes > 1:
      raise ValueError(
        f"distributed.processes is {processes} but there is no coordinator; set "
        f"distributed.coordinator=HOST:PORT, or auto on a TPU slice"
      )
    _check_count(1, "without distributed.coordinator")
    return Run()
  arguments: dict[str, Any] = {"num_processes": processes}
  if where != "auto":
    host, colon, port = where.rpartition(":")
    if not (host and colon and port.isdigit()):
      raise ValueError(f'distributed.coordinator must be "", "auto" or HOST:PORT, got "{where}"')
    if not 0 <= process < processes:
      raise ValueError(
        f"distributed.process must be from 0 to {processes - 1} with coordinator {where}, got "
        f"{process}"
      )
    arguments |= {"coordinator_address": where, "process_id": process}
  else:
    arguments = {}  # As the slice says; how many it must be is checked below.
  # Only a process that gets a signal ends by it; the service would swallow SIGTERM.
  jax.config.update("jax_enable_preemption_service", False)
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  _abort_late()
  me = f"this is process {process} on {socket.gethostname()}" if process >= 0 else (
    f"this is {socket.gethostname()}"
  )
  limit = section["form_limit_s"]
  late = threading.Timer(
    limit, _say_and_end,
    [f"the run did not form: within {limit:g} s not all of {processes} processes came to "
     f"{where} ({me}); is every one started, with the same config, and can it reach process 0?"],
  )
  late.daemon = True
  late.start()
  try:
    jax.distributed.initialize(
      **arguments, initialization_timeout=int(limit) + 60,
      heartbeat_timeout_seconds=int(section["silence_limit_s"]) + 60,
    )
  except (ValueError, RuntimeError) as error:
    line = " ".join(str(error).split())[:WORD]
    raise ValueError(f"the run did not form: {line} ({me})") from error
  _check_count(processes, f"the slice of {socket.gethostname()}" if where == "auto" else where)
  late.cancel()
  check_same("config", settings.flatten(config) | {"distributed.process": None})
  watch = _Watch(
    "" if where == "auto" else where.rpartition(":")[0], section["silence_limit_s"],
    section["stall_limit_s"],
  )
  return Run(watch)


def exchange(payload: bytes) -> list[bytes]:
  """Every process's bytes, in the order of the processes; a collective, so all of them call it."""
  if jax.process_count() == 1:
    return [payload]
  sizes = np.asarray(multihost_utils.process_allgather(np.array(len(payload), np.int32)))
  # Powers of two, so that few programs are compiled.
  width = 1 << max(int(sizes.max()) - 1, 1).bit_length()
  padded = np.zeros(width, np.uint8)
  padded[: len(payload)] = np.frombuffer(payload, np.uint8)
  parts = np.asarray(multihost_utils.process_allgather(padded))
  return [part[:size].tobytes() for part, size in zip(parts, sizes, strict=True)]


def exchange_json(value: Any) -> list[Any]:
  """`exchange` for what JSON can hold."""
  return [json.loads(part) for part in exchange(json.dumps(value).encode())]


def from_first(make: Any) -> Any:
  """What `make()` gives on process 0, as JSON holds it, on all; the others do not call it."""
  if jax.process_count() == 1:
    return make()
  return exchange_json(make() if jax.process_index() == 0 else None)[0]


def check_same(name: str, value: Any) -> None:
  """Refuses a run whose processes were given different values.

  Raises:
    ValueError: on every process; it names the first that differs from process 0.
  """
  values = exchange_json(value)
  for process, other in enumerate(values):
    if other != values[0]:
      raise ValueError(
        f"process {process} has another {name} than process 0; start every process with the same "
        f"command"
      )


def _check_count(wanted: int, how: str) -> None:
  found = jax.process_count()
  if found != wanted:
    raise ValueError(
      f"distributed.processes is {wanted}, but {found} processes formed a run ({how}); set "
      f"distributed.processes={found}, or mend the slice"
    )


# ---- the watch -----------------------------------------------------------------------------------


class _Watch(threading.Thread):
  """Signs of life to and from process 0, a line of JSON each; the main thread is never waited for.

  Process 0 judges; what it says goes to all. The others judge only process 0.
  """

  def __init__(self, host: str, silence_s: float, stall_s: float):
    super().__init__(name="watch", daemon=True)
    self.index, self.count = jax.process_index(), jax.process_count()
    self._silence_s, self._stall_s = silence_s, stall_s
    self._beat_s = silence_s / BEATS_PER_LIMIT
    self._lock = threading.Lock()
    self._at: tuple[int, str] = (0, "start")
    self._failed = threading.Event()
    self._listener = None
    if self.index == 0:
      self._listener = socket.create_server(("", 0), backlog=self.count)
    # Where process 0 listens, and who all are.
    port = self._listener.getsockname()[1] if self._listener else 0
    cards = exchange_json(
      [socket.gethostname(), os.getpid(), host or _own_address(), port]
    )
    self._names = [f"process {p} ({name}, pid {pid})" for p, (name, pid, *_) in enumerate(cards)]
    self._links: dict[int, socket.socket] = {}
    if self._listener:
      self._welcome()
    else:
      link = socket.create_connection((cards[0][2], cards[0][3]), timeout=silence_s)
      link.sendall(_line({"process": self.index}))
      self._links[0] = link
    self.start()

  def progress(self, name: str) -> None:
    with self._lock:
      self._at = at = (self._at[0] + 1, name)
    for link in list(self._links.values()):
      _send(link, {"at": at})

  def leave(self, error: str) -> None:
    """Says goodbye; with an error, that it was this process that ended the run.

    Without one it still watches those that are not done, until the process ends.
    """
    if error:
      self._failed.set()
    words = {"end": f"{self._names[self.index]} ended in {self._at[1]}: {error}"} if error else (
      {"bye": True}
    )
    for link in list(self._links.values()):
      _send(link, words)

  def _welcome(self) -> None:
    """Process 0 accepts a link from each of the others."""
    self._listener.settimeout(self._silence_s)
    while len(self._links) < self.count - 1:
      link, _ = self._listener.accept()
      link.settimeout(self._silence_s)
      first = b""
      while not first.endswith(b"\n"):
        first += link.recv(1) or b"\n"
      self._links[json.loads(first)["process"]] = link

  def run(self) -> None:
    now = time.monotonic()
    heard = dict.fromkeys(self._links, now)
    moved = dict.fromkeys([self.index, *self._links], ((0, "start"), now))
    rest = dict.fromkeys(self._links, b"")
    gone: set[int] = set()
    selector = selectors.DefaultSelector()
    for process, link in self._links.items():
      link.setblocking(False)
      selector.register(link, selectors.EVENT_READ, process)
    next_beat = now
    while True:
      now = time.monotonic()
      if now >= next_beat:
        next_beat = now + self._beat_s
        with self._lock:
          at = self._at
        if moved[self.index][0] != at:
          moved[self.index] = (at, now)
        for process in heard.keys() - gone:
          _send(self._links[process], {"at": at})
      for key, _ in selector.select(max(0.0, next_beat - time.monotonic())):
        process, link = key.data, key.fileobj
        data = _receive(link)
        if data is None:
          continue
        if not data:
          selector.unregister(link)
          if process not in gone:
            self._conclude(f"{self._names[process]} died in {moved[process][0][1]}")
          continue
        heard[process] = time.monotonic()
        *lines, rest[process] = (rest[process] + data).split(b"\n")
        for words in map(json.loads, lines):
          if "end" in words:
            self._conclude(words["end"])
          elif "bye" in words:
            gone.add(process)
          elif (at := tuple(words["at"])) != moved[process][0]:
            moved[process] = (at, heard[process])
      self._judge(heard, moved, gone)

  def _judge(self, heard, moved, gone) -> None:
    now = time.monotonic()
    for process in heard.keys() - gone:
      if now - heard[process] > self._silence_s:
        self._conclude(
          f"{self._names[process]} has given no sign of life for {self._silence_s:g} s (in "
          f"{moved[process][0][1]})"
        )
    # A process that has left cannot stand in the others' way.
    if self.index == 0 and not gone:
      if now - max(when for _, when in moved.values()) > self._stall_s:
        last = min(moved, key=lambda process: moved[process][0][0])
        ahead = max(moved.values(), key=lambda value: value[0][0])[0][1]
        self._conclude(
          f"no progress for {self._stall_s:g} s: {self._names[last]} is in {moved[last][0][1]}, "
          f"the foremost in {ahead}"
        )

  def _conclude(self, text: str) -> None:
    for link in self._links.values():
      if self.index == 0:
        _send(link, {"end": text})
    if self._failed.is_set():  # This process ends by itself, with its own words.
      return
    _say_and_end(f"{text}; this run of {self.count} processes ends")


def _line(words: Mapping[str, Any]) -> bytes:
  return json.dumps(words).encode() + b"\n"


def _send(link: socket.socket, words: Mapping[str, Any]) -> None:
  with contextlib.suppress(OSError):  # A dead link: reading from it says so, and whose it was.
    link.sendall(_line(words))


def _receive(link: socket.socket) -> bytes | None:
  """What has come; b"" when the link is closed, None when there is nothing after all."""
  try:
    return link.recv(1 << 16)
  except BlockingIOError:
    return None
  except OSError:
    return b""


def _own_address() -> str:
  """This host's address on the network that its default route is on; nothing is sent."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(("10.255.255.255", 1))
      return probe.getsockname()[0]
    except OSError:  # No route.
      return socket.gethostname()


def _abort_late() -> None:
  """Keeps an abort of JAX's service, which says nothing of who died, for when the watch has spoken.

  The service's client aborts the process the moment process 0's connection breaks. The handler of
  SIGABRT becomes C's sleep: called with the signal's number, it holds that thread for six seconds.
  """
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
  libc.signal.restype = ctypes.c_void_p
  libc.signal(int(signal.SIGABRT), ctypes.cast(libc.sleep, ctypes.c_void_p))


def _say_and_end(text: str) -> None:
  sys.stdout.flush()
  print(f"error: {text}", file=sys.stderr, flush=True)
  os._exit(EXIT_LOST)


def _end(code: int) -> None:
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)
