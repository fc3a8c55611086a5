"""Searches over HTTP: a bounded pool, retries under a deadline, a rate limit, a recording.  HOST.

A search ends with its results or with a ServiceFailure, always. Everything runs on one background
event loop; `done` callbacks are called there.

Spec     3 (infra_failure after retries).
Source   httpx, tenacity; FAULTS H1-H3, H5, H6.
"""

import asyncio
import collections
import dataclasses
import random
import threading
import time
from collections.abc import Callable

import httpx
import tenacity

from searchjax.search.providers import Provider, Search
from searchjax.search.recording import Recording, search_key
from searchjax.search.reply import Answer, Reply, Result, ServiceFailure

MAX_WAIT_S = 8.0  # between attempts, where the service does not say
GATHER_S = 0.001  # searches that arrive within it may share a request
NOT_RECORDED = "not in the recording"
CLOSED = "search tool closed"


@dataclasses.dataclass
class SearchCounts:
  """What came of the searches since the last count.

  Attributes:
    searches: all of them.
    answered: with results or without, from the recording too.
    recorded: answered without a request of their own.
    requests, retries: sent, and those of them that were further attempts.
    failures: searches not answered, by reason.
    blocked, leaked: results dropped by the block list and for quoting the question.
    dollars: for answered requests, by the price of the provider or its reply.
  """

  searches: int = 0
  answered: int = 0
  recorded: int = 0
  requests: int = 0
  retries: int = 0
  failures: dict[str, int] = dataclasses.field(default_factory=dict)
  blocked: int = 0
  leaked: int = 0
  dollars: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class _Pending:
  """A search under way; `key` is its key in the recording, if there is one."""

  search: Search
  done: Callable[[tuple[Result, ...] | ServiceFailure], None]
  key: bytes = b""


class SearchClient:
  """Runs searches against one provider.

  Searches that arrive together travel in one request where the provider takes several. A batch that
  fails is no outcome: its searches are then sent one by one, each with its retries.

  Args:
    provider: what to ask and how to read the reply.
    max_results: most results of a search.
    timeout_s: of one attempt, connecting included.
    deadline_s: of a search, from its first attempt to the end of its last, waits included.
    retries: attempts after the first.
    backoff_s: wait before the first retry; it doubles, and Retry-After overrules it. A wait that
      does not fit the deadline is not begun.
    connections: most requests under way at once.
    batch: most searches of a request.
    per_second: most requests a second; 0 for no limit.
    recording: answers are looked up there first and kept there; a search that is under way already
      is not sent twice.
    replay: only the recording answers, and nothing is sent.
  """

  def __init__(self, provider: Provider, *, max_results: int, timeout_s: float, deadline_s: float,
               retries: int, backoff_s: float, connections: int, batch: int,
               per_second: float = 0.0, recording: Recording | None = None, replay: bool = False):
    self.provider, self.recording, self.replay = provider, recording, replay
    self.max_results, self.retries, self.backoff_s = max_results, retries, backoff_s
    self.timeout_s, self.deadline_s, self.per_second = timeout_s, deadline_s, per_second
    self.connections, self.batch = connections, min(batch, provider.batch)
    self.counts = SearchCounts()
    self.stopped = ""  # why no further search can succeed
    self.broken: BaseException | None = None
    self._lock = threading.Lock()
    self._arrived: list[_Pending] = []
    self._waiting: collections.deque[_Pending] = collections.deque()
    self._alone: collections.deque[_Pending] = collections.deque()
    self._alike: dict[bytes, list[_Pending]] = {}
    self._tasks: set[asyncio.Task] = set()
    self._next_slot = 0.0
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="search_web")
    self._thread.start()
    self._http = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

  def submit(self, search: Search, done: Callable[[tuple[Result, ...] | ServiceFailure], None]):
    """Starts a search and returns at once.

    Raises:
      RuntimeError: after close.
    """
    key = b""
    if self.recording is not None:
      parameters = self.provider.parameters(search, self.max_results)
      key = search_key(self.provider.name, search.query, parameters)
    with self._lock:
      if self._loop.is_closed():
        raise RuntimeError("search tool: submit after close")
      self._arrived.append(_Pending(search, done, key))
      if len(self._arrived) == 1:
        self._loop.call_soon_threadsafe(self._loop.call_later, GATHER_S, self._take_arrived)

  def take_counts(self) -> SearchCounts:
    """The counts since the last call, which begin anew."""
    async def take():
      taken, self.counts = self.counts, SearchCounts()
      return taken
    if self._loop.is_closed():
      return self.counts
    return asyncio.run_coroutine_threadsafe(take(), self._loop).result()

  def close(self):
    """Ends the background thread; searches under way end as failures. Twice is harmless."""
    if self._loop.is_closed():
      return
    asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    with self._lock:
      self._loop.close()
      left = [*self._arrived, *self._alone, *self._waiting]
    for pending in left:
      self._end(pending, ServiceFailure(CLOSED))
    if self.recording is not None:
      self.recording.close()

  async def _open(self) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=self.connections,
                          max_keepalive_connections=self.connections)
    # The deadline of an attempt bounds all of it, so the client needs none of its own.
    return httpx.AsyncClient(limits=limits, timeout=None, trust_env=self.provider.remote)

  async def _shut(self):
    for task in list(self._tasks):
      task.cancel()
    await asyncio.gather(*self._tasks, return_exceptions=True)
    await self._http.aclose()

  def _take_arrived(self):
    with self._lock:
      arrived, self._arrived = self._arrived, []
    for pending in arrived:
      self.counts.searches += 1
      if self.recording is None or self._must_be_sent(pending):
        self._waiting.append(pending)
    self._start_requests()

  def _must_be_sent(self, pending: _Pending) -> bool:
    """False for a search that the recording answers, now or when one like it has returned."""
    try:
      results = self.recording.find(pending.key)
    except (OSError, ValueError, LookupError) as error:
      self._end(pending, ServiceFailure(f"search.cache cannot be read ({type(error).__name__})"))
      return False
    if results is not None:
      self.counts.recorded += 1
      self._end(pending, results)
    elif self.replay:
      self._end(pending, ServiceFailure(NOT_RECORDED))
    elif pending.key in self._alike:
      self._alike[pending.key].append(pending)
    else:
      self._alike[pending.key] = []
      return True
    return False

  def _start_requests(self):
    while self.stopped and (self._alone or self._waiting):
      self._end(self._next_group(1)[0], ServiceFailure(self.stopped))
    while (self._alone or self._waiting) and len(self._tasks) < self.connections:
      task = self._loop.create_task(self._serve(self._next_group(self.batch)))
      self._tasks.add(task)
      task.add_done_callback(self._request_done)

  def _next_group(self, most: int) -> list[_Pending]:
    if self._alone:
      return [self._alone.popleft()]
    return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

  def _request_done(self, task: asyncio.Task):
    self._tasks.discard(task)
    if not task.cancelled():
      self.broken = self.broken or task.exception()
      self._start_requests()

  async def _serve(self, group: list[_Pending]):
    try:
      if len(group) == 1:
        ended = [await self._serve_alone(group[0])]
      else:
        await self._slot()
        ended = (await self._attempt(group, 1, self.timeout_s)).found
    except ServiceFailure:  # of a batch, which is no outcome
      self._alone.extend(group)
      return
    except BaseException as error:  # closing, or a fault of the program, which the task hands on
      closing = isinstance(error, asyncio.CancelledError)
      for pending in group:
        self._end(pending, ServiceFailure(CLOSED if closing else type(error).__name__))
      raise
    for pending, one in zip(group, ended, strict=True):
      if self.recording is not None and not isinstance(one, ServiceFailure):
        self._keep(pending.search, one)
      self._end(pending, one)

  async def _serve_alone(self, pending: _Pending) -> tuple[Result, ...] | ServiceFailure:
    if self.stopped:
      return ServiceFailure(self.stopped)
    await self._slot()
    end = time.monotonic() + self.deadline_s
    too_late = lambda state: time.monotonic() + state.upcoming_sleep >= end
    try:
      async for attempt in tenacity.AsyncRetrying(
          stop=tenacity.stop_any(tenacity.stop_after_attempt(1 + self.retries), too_late),
          wait=self._wait, reraise=True,
          retry=tenacity.retry_if_exception(lambda e: isinstance(e, ServiceFailure) and e.again)):
        with attempt:
          number = attempt.retry_state.attempt_number
          if number > 1:
            self.counts.retries += 1
            await self._slot()
          limit = min(self.timeout_s, end - time.monotonic())
          answer = await self._attempt([pending], number, limit)
    except ServiceFailure as failure:
      if failure.lasting:
        self.stopped = f"{self.provider.name}: {failure.reason}"
      return failure
    return answer.found[0]

  def _wait(self, state: tenacity.RetryCallState) -> float:
    told = state.outcome.exception().wait_s
    if told:  # 0 or a date gone by says only that the service has no wait to name
      return told
    # Spread, so that searches refused together do not return together.
    wait = self.backoff_s * 2 ** (state.attempt_number - 1) * random.uniform(1.0, 1.25)
    return min(MAX_WAIT_S, wait)

  async def _slot(self):
    """Waits until the rate limit allows a request."""
    if self.per_second:
      now = time.monotonic()
      at = max(now, self._next_slot)
      self._next_slot = at + 1.0 / self.per_second
      await asyncio.sleep(at - now)

  async def _attempt(self, group: list[_Pending], number: int, limit_s: float) -> Answer:
    """One request for one search, or for several."""
    request = self.provider.request([p.search for p in group], self.max_results, number)
    self.counts.requests += 1
    try:
      async with asyncio.timeout(limit_s):
        reply = await self._http.request(
          request.method, request.url, headers=request.headers, params=request.params or None,
          content=request.body)
    except TimeoutError as error:
      raise ServiceFailure("timed out", again=True) from error
    except httpx.TransportError as error:
      raise ServiceFailure("no connection", again=True) from error
    except httpx.HTTPError as error:
      raise ServiceFailure("unreadable reply", again=True) from error
    answer = self.provider.read(
      Reply(reply.status_code, reply.headers, reply.content, time.time()), len(group),
      self.max_results)
    self.counts.dollars += answer.dollars
    return answer

  def _keep(self, search: Search, results: tuple[Result, ...]):
    try:
      self.recording.add(self.provider.name, search.query,
                         self.provider.parameters(search, self.max_results), results)
    except OSError as error:
      self.stopped = f"search.cache cannot be written ({error.strerror or error})"

  def _end(self, pending: _Pending, ended: tuple[Result, ...] | ServiceFailure):
    """Tells what came of a search to whoever asked, and to those who asked the same meanwhile."""
    alike = self._alike.pop(pending.key, [])
    if isinstance(ended, ServiceFailure):
      failures = self.counts.failures
      failures[ended.reason] = failures.get(ended.reason, 0) + 1 + len(alike)
    else:
      self.counts.answered += 1 + len(alike)
      self.counts.recorded += len(alike)
    for one in (pending, *alike):
      one.done(ended)
