"""The search_web tool: one call in, one of three outcomes out.  HOST.

  ok             the service answered; an empty list is an answer
  model_failure  the call itself was bad; it is answered, charged, and never sent
  infra_failure  the service could not be had after its retries; it is never an empty list

Calls run concurrently on one background event loop over a bounded pool of connections.

Spec     3 (tool limits, three outcomes), 2.2 (which failures are the policy's).
Source   httpx, tenacity.
"""

import asyncio
import collections
import concurrent.futures
import dataclasses
import json
import threading
from typing import Any, Protocol, runtime_checkable

import httpx
import tenacity

SEARCH_WEB = {
  "type": "function",
  "function": {
    "name": "search_web",
    "description": "Searches the web.",
    "parameters": {
      "type": "object",
      "properties": {"query": {"type": "string", "description": "What to search for."}},
      "required": ["query"],
    },
  },
}
BUDGET_USED_UP = "the search budget is used up, answer now"
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_WAIT_S = 8.0
GATHER_S = 0.001  # calls that arrive within it may share a request


@runtime_checkable
class Call(Protocol):
  """What a tool call looks like: data.chat.ToolCall."""

  name: str
  arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Result:
  """One search result."""

  title: str
  url: str
  snippet: str


@dataclasses.dataclass(frozen=True)
class ToolOutcome:
  """What one call came to.

  Attributes:
    text: the tool response that the policy reads.
    status: "ok", "model_failure" or "infra_failure".
    executed: True if the query was sent to the service.
    reason: empty for ok, else a few words.
    results: what the service found; empty unless ok.
  """

  text: str
  status: str
  executed: bool
  reason: str = ""
  results: tuple[Result, ...] = ()


class ServiceFailure(Exception):
  """The service did not give a usable answer."""

  def __init__(self, reason: str, *, again: bool, wait_s: float | None = None):
    super().__init__(reason)
    self.reason, self.again, self.wait_s = reason, again, wait_s


def infra_failure(reason: str) -> ToolOutcome:
  """The outcome of a search that the service could not serve."""
  return ToolOutcome(f"Search failed: {reason}.", "infra_failure", True, reason)


def model_failure(reason: str) -> ToolOutcome:
  """The outcome of a call that the policy got wrong; also for an exhausted budget."""
  return ToolOutcome(f"Error: {reason}.", "model_failure", False, reason)


def check_call(call: Call, max_query_chars: int) -> str | None:
  """Why a call is bad, or None if it may be sent."""
  if call.name != "search_web":
    return f"unknown tool {str(call.name)[:40]!r}; use search_web"
  if not isinstance(call.arguments, dict):
    return "arguments must be an object"
  query = call.arguments.get("query")
  extra = sorted(set(map(str, call.arguments)) - {"query"})
  if "query" not in call.arguments:
    return "search_web needs a query"
  if extra:
    return f"unknown argument {extra[0][:40]!r}"
  if not isinstance(query, str) or not query.strip():
    return "query must be non-empty text"
  if len(query) > max_query_chars:
    return f"query longer than {max_query_chars} characters"
  return None


def read_reply(status: int, body: bytes, headers, limit: int, queries: int
               ) -> list[tuple[Result, ...]]:
  """Results, one tuple a query, from an HTTP reply.

  Args:
    status: of the reply; anything but 200 is a failure, also 204: no body is no answer.
    body: {"results": [...]} for one query, {"answers": [{"results": [...]}, ...]} for several.
    headers: where Retry-After may stand.
    limit: most results kept of a query.
    queries: how many the request held.

  Raises:
    ServiceFailure: any other status, or a body that is not lists of results.
  """
  if status != 200:
    raise ServiceFailure(f"HTTP {status}", again=status in RETRIED_STATUS,
                         wait_s=_retry_after(headers))
  try:
    reply = json.loads(body)
    answers = [reply] if queries == 1 else reply["answers"]
    if not isinstance(answers, list) or len(answers) != queries:
      raise TypeError("not one answer a query")
    return [_results(answer["results"], limit) for answer in answers]
  except (ValueError, KeyError, TypeError) as error:
    raise ServiceFailure("unreadable reply", again=True) from error


def _results(rows, limit: int) -> tuple[Result, ...]:
  if not isinstance(rows, list):
    raise TypeError(f"expected a list of results, got {type(rows).__name__}")
  return tuple(Result(_text(row["title"]), _text(row["url"]), _text(row["snippet"]))
               for row in rows[:limit])


def _text(value) -> str:
  if not isinstance(value, str):
    raise TypeError(f"expected text, got {type(value).__name__}")
  return " ".join(value.split())


def _retry_after(headers) -> float | None:
  try:
    return min(MAX_WAIT_S, max(0.0, float(headers.get("retry-after", ""))))
  except ValueError:
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class _Pending:
  """A query under way and the future that its caller holds."""

  query: str
  world: int | None
  future: concurrent.futures.Future


class SearchTool:
  """Runs search_web calls against a search service.

  Calls that arrive together travel in one request where the service takes several (`batch`). A
  batch that fails is no outcome: its queries are then sent one by one, each with its retries.

  Args:
    base_url: of the service, "http://127.0.0.1:8000".
    max_results: most results of a call, 1 to 100.
    max_query_chars: a longer query is the policy's failure.
    timeout_s: deadline of one attempt, in seconds, connecting included.
    retries: attempts after the first.
    backoff_s: wait before the first retry; it doubles, and Retry-After overrules it.
    connections: most requests under way at once.
    batch: most queries of a request; 1 for a service that takes one.
    titles: False shows snippets alone, for short contexts.
  """

  def __init__(self, base_url: str, *, max_results: int = 10, max_query_chars: int = 250,
               timeout_s: float = 10.0, retries: int = 3, backoff_s: float = 0.25,
               connections: int = 8, batch: int = 64, titles: bool = True):
    if not base_url.startswith(("http://", "https://")):
      raise ValueError(f"search service: expected an http(s) URL, got {base_url!r}")
    if (min(max_results, max_query_chars, connections, batch) < 1 or retries < 0
        or timeout_s <= 0):
      raise ValueError("search tool: expected max_results, max_query_chars, connections, batch and "
                       "timeout_s above 0 and retries from 0, got "
                       f"{max_results}, {max_query_chars}, {connections}, {batch}, {timeout_s}, "
                       f"{retries}")
    self.base_url = base_url.rstrip("/")
    self.max_results, self.max_query_chars = max_results, max_query_chars
    self.timeout_s, self.retries, self.backoff_s = timeout_s, retries, backoff_s
    self.connections, self.batch, self.titles = connections, batch, titles
    self._lock = threading.Lock()
    self._arrived: list[_Pending] = []
    self._waiting: collections.deque[_Pending] = collections.deque()
    self._tasks: set[asyncio.Task] = set()
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="search_web")
    self._thread.start()
    self._client = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

  def submit(self, call: Call, world: int | None = None) -> concurrent.futures.Future:
    """Starts a call and returns at once; the future gives a ToolOutcome, whatever happens."""
    future: concurrent.futures.Future = concurrent.futures.Future()
    reason = check_call(call, self.max_query_chars)
    if reason:
      future.set_result(model_failure(reason))
      return future
    with self._lock:
      if self._loop.is_closed():
        raise RuntimeError("search tool: submit after close")
      self._arrived.append(_Pending(call.arguments["query"], world, future))
      if len(self._arrived) == 1:
        self._loop.call_soon_threadsafe(self._loop.call_later, GATHER_S, self._take_arrived)
    return future

  def check(self):
    """Asks the service for its health.

    Raises:
      ValueError: it is not reachable.
    """
    try:
      reply = httpx.get(f"{self.base_url}/health", timeout=self.timeout_s, trust_env=False)
      reason = None if reply.status_code == 200 else f"HTTP {reply.status_code}"
    except httpx.HTTPError as error:
      reason = str(error) or type(error).__name__
    if reason:
      raise ValueError(f"search service {self.base_url}: not reachable ({reason}); start it with "
                       "python -m searchjax.search.server, or mend the URL")

  def close(self):
    """Ends the background thread; calls under way end as infra_failure. Twice is harmless."""
    if self._loop.is_closed():
      return
    asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    with self._lock:
      self._loop.close()
      left = self._arrived + list(self._waiting)
    for pending in left:
      pending.future.set_result(infra_failure("search tool closed"))

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  async def _open(self) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=self.connections,
                          max_keepalive_connections=self.connections)
    # The deadline of an attempt bounds all of it, so the client needs none of its own.
    return httpx.AsyncClient(limits=limits, timeout=None, trust_env=False,
                             headers={"content-type": "application/json"})

  async def _shut(self):
    for task in list(self._tasks):
      task.cancel()
    await asyncio.gather(*self._tasks, return_exceptions=True)
    await self._client.aclose()

  def _take_arrived(self):
    with self._lock:
      self._waiting.extend(self._arrived)
      self._arrived.clear()
    self._start_requests()

  def _start_requests(self):
    while self._waiting and len(self._tasks) < self.connections:
      group = [self._waiting.popleft() for _ in range(min(self.batch, len(self._waiting)))]
      task = self._loop.create_task(self._serve(group))
      self._tasks.add(task)
      task.add_done_callback(self._request_done)

  def _request_done(self, task: asyncio.Task):
    self._tasks.discard(task)
    if not task.cancelled():
      self._start_requests()

  async def _serve(self, group: list[_Pending]):
    try:
      answers = await self._serve_together(group) if len(group) > 1 else None
      for i, pending in enumerate(group):
        outcome = self._outcome(answers[i]) if answers else await self._serve_alone(pending)
        pending.future.set_result(outcome)
    except asyncio.CancelledError:
      for pending in group:
        if not pending.future.done():
          pending.future.set_result(infra_failure("search tool closed"))
      raise

  async def _serve_together(self, group: list[_Pending]) -> list[tuple[Result, ...]] | None:
    try:
      return await self._attempt(group)
    except ServiceFailure:
      return None

  async def _serve_alone(self, pending: _Pending) -> ToolOutcome:
    try:
      async for attempt in tenacity.AsyncRetrying(
          stop=tenacity.stop_after_attempt(1 + self.retries), wait=self._wait, reraise=True,
          retry=tenacity.retry_if_exception(lambda e: isinstance(e, ServiceFailure) and e.again)):
        with attempt:
          results, = await self._attempt([pending])
    except ServiceFailure as failure:
      return infra_failure(failure.reason)
    return self._outcome(results)

  def _wait(self, state: tenacity.RetryCallState) -> float:
    told = state.outcome.exception().wait_s
    if told is not None:
      return told
    return min(MAX_WAIT_S, self.backoff_s * 2 ** (state.attempt_number - 1))

  def _outcome(self, results: tuple[Result, ...]) -> ToolOutcome:
    lines = [f"{r.title}: {r.snippet}" if self.titles else r.snippet for r in results]
    return ToolOutcome("\n".join(lines) or "No results.", "ok", True, "", results)

  async def _attempt(self, group: list[_Pending]) -> list[tuple[Result, ...]]:
    """One request for one query, or for several; a tuple of results a query."""
    searches = [{"query": p.query, "num_results": self.max_results, "world": p.world}
                for p in group]
    body = searches[0] if len(group) == 1 else {"searches": searches}
    try:
      async with asyncio.timeout(self.timeout_s):
        reply = await self._client.post(f"{self.base_url}/search",
                                        content=json.dumps(body).encode())
    except TimeoutError as error:
      raise ServiceFailure("timed out", again=True) from error
    except httpx.TransportError as error:
      raise ServiceFailure("no connection", again=True) from error
    except httpx.HTTPError as error:
      raise ServiceFailure("unreadable reply", again=True) from error
    return read_reply(reply.status_code, reply.content, reply.headers, self.max_results, len(group))
