"""How a run forms and what is said of one that ends; for more see end_to_end/test_two_processes."""

import contextlib
import json
import socket
import subprocess
import sys
import textwrap

import pytest

from searchjax.dist import distributed

SECTION = dict(coordinator="", processes=1, process=-1, form_limit_s=9.0, silence_limit_s=6.0,
               stall_limit_s=30.0)


def config(**changes):
  return {"seed": 1, "distributed": SECTION | changes}


def test_one_process_is_the_first_and_exchanges_with_itself():
  with distributed.join(config()) as run:
    assert (run.index, run.count, run.first) == (0, 1, True)
    run.phase("step 1")
    assert distributed.exchange(b"abc") == [b"abc"]
    assert distributed.exchange_json({"a": 1}) == [{"a": 1}]
    tuples = [(1, 2)]
    assert distributed.from_first(lambda: tuples) is tuples
    distributed.check_same("config", {"a": 1})


@pytest.mark.parametrize("changes, message", [
  (dict(processes=2), "distributed.processes is 2 but there is no coordinator"),
  (dict(coordinator="host"), 'must be "", "auto" or HOST:PORT, got "host"'),
  (dict(coordinator=":80", processes=2), 'must be "", "auto" or HOST:PORT'),
  (dict(coordinator="host:80", processes=2), "must be from 0 to 1 with coordinator host:80, got -1"),
  (dict(coordinator="host:80", processes=2, process=2), "must be from 0 to 1"),
])
def test_a_section_that_contradicts_itself_is_refused(changes, message):
  with pytest.raises(ValueError) as error:
    distributed.join(config(**changes))
  assert message in str(error.value)


LONELY = textwrap.dedent(
  """
  import sys
  from searchjax.dist import distributed
  section = dict(coordinator=sys.argv[1], processes=2, process=int(sys.argv[2]), form_limit_s=2.0,
                 silence_limit_s=6.0, stall_limit_s=9.0)
  distributed.join({"distributed": section})
  print("formed")
  """
)


def test_a_process_that_stays_alone_ends_in_one_line(plain_environment):
  with socket.create_server(("127.0.0.1", 0)) as probe:
    where = f"127.0.0.1:{probe.getsockname()[1]}"
  done = subprocess.run([sys.executable, "-c", LONELY, where, "0"], env=plain_environment,
                        capture_output=True, text=True, timeout=120)
  assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
  assert f"error: the run did not form: within 2 s not all of 2 processes came to {where}" in done.stderr


@pytest.fixture
def watched(monkeypatch):
  """Makes a Watched; its sockets are closed at the end."""
  made = []

  def make(**limits):
    made.append(Watched(monkeypatch, **limits))
    return made[0]

  yield make
  for end in (*made[0].watch._links.values(), *made[0].others.values()):
    end.close()
  made[0].thread.join(10)


class Watched:
  """The judge of process 0 over sockets to two others that this test plays; what it concludes."""

  def __init__(self, monkeypatch, silence_s=5.0, stall_s=50.0):
    self.said = []
    watch = object.__new__(distributed._Watch)
    watch.index, watch.count = 0, 3
    watch._silence_s, watch._stall_s, watch._beat_s = silence_s, stall_s, 0.02
    watch._lock, watch._failed = distributed.threading.Lock(), distributed.threading.Event()
    watch._at = (0, "start")
    watch._names = [f"process {p} (host-{p}, pid 7)" for p in range(3)]
    pairs = {p: socket.socketpair() for p in (1, 2)}
    watch._links = {p: pair[0] for p, pair in pairs.items()}
    self.others = {p: pair[1] for p, pair in pairs.items()}
    self.watch = watch
    ended = distributed.threading.Event()

    def say_and_end(text):
      self.said.append(text)
      ended.set()
      raise InterruptedError  # Ends the watching thread, as it would end the process.

    def watch_until_then():
      with contextlib.suppress(InterruptedError):
        watch.run()

    monkeypatch.setattr(distributed, "_say_and_end", say_and_end)
    self.ended = ended
    self.thread = distributed.threading.Thread(target=watch_until_then, daemon=True)
    self.thread.start()

  def tell(self, process, **words):
    self.others[process].sendall(json.dumps(words).encode() + b"\n")

  def heard(self, process):
    """The last word that the process got."""
    self.others[process].settimeout(5)
    data = b""
    while b"end" not in data:
      data += self.others[process].recv(1 << 16)
    return json.loads(data.splitlines()[-1])


def test_a_death_is_named_at_once_with_where_it_was(watched):
  run = watched()
  run.tell(2, at=[3, "the update of step 7"])
  run.tell(1, at=[3, "the update of step 7"])
  distributed.time.sleep(0.2)
  run.others[2].close()
  assert run.ended.wait(30)
  name = "process 2 (host-2, pid 7) died in the update of step 7"
  assert run.said == [f"{name}; this run of 3 processes ends"]
  assert run.heard(1) == {"end": name}


def test_a_silence_is_named_after_its_limit(watched):
  run = watched(silence_s=2.0)
  while not run.ended.wait(0.1):
    run.tell(1, at=[0, "start"])
  assert "process 2 (host-2, pid 7) has given no sign of life for 2 s (in start)" in run.said[0]


def test_a_standstill_names_the_process_that_is_behind(watched):
  run = watched(silence_s=30.0, stall_s=2.0)
  run.watch.progress("step 1")
  while not run.ended.wait(0.1):
    run.tell(1, at=[1, "step 1"])
    run.tell(2, at=[0, "start"])
  assert run.said[0].startswith(
    "no progress for 2 s: process 2 (host-2, pid 7) is in start, the foremost in step 1"
  )


def test_a_process_that_said_goodbye_is_not_dead_and_an_error_is_passed_on(watched):
  run = watched()
  run.tell(2, bye=True)
  distributed.time.sleep(0.1)
  run.others[2].close()
  distributed.time.sleep(0.2)
  assert run.said == []
  run.tell(1, end="process 1 (host-1, pid 7) ended in start: no such corpus")
  assert run.ended.wait(30)
  assert "ended in start: no such corpus" in run.said[0]
