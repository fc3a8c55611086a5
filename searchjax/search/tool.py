"""The search_web tool: one call in, one of three outcomes out.  HOST.

  ok             the service answered; an empty list is an answer
  model_failure  the call itself was bad; it is answered, charged, and never sent
  infra_failure  the service could not be had after its retries; it is never an empty list

Calls run concurrently on one background event loop over a bounded pool of connections.

Spec     3 (tool limits, three outcomes), 2.2 (which failures are the policy's).
Source   httpx, tenacity.
"""

import asyncio
import concurrent.futures
import dataclasses
import json
import threading
from typing import Any, Protocol

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
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_WAIT_S = 8.0


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


def read_results(status: int, body: bytes, headers, limit: int) -> tuple[Result, ...]:
  """Results from an HTTP reply.

  Raises:
    ServiceFailure: any status but 200, or a body that is not a list of results.
  """
  if status != 200:
    raise ServiceFailure(f"HTTP {status}", again=status in RETRIED_STATUS,
                         wait_s=_retry_after(headers))
  try:
    rows = json.loads(body)["results"]
    if not isinstance(rows, list):
      raise TypeError("results is not a list")
    results = tuple(Result(_text(row["title"]), _text(row["url"]), _text(row["snippet"]))
                    for row in rows[:limit])
  except (ValueError, KeyError, TypeError) as error:
    raise ServiceFailure("unreadable reply", again=True) from error
  return results


def _text(value) -> str:
  if not isinstance(value, str):
    raise TypeError(f"expected text, got {type(value).__name__}")
  return " ".join(value.split())


def _retry_after(headers) -> float | None:
  try:
    return min(MAX_WAIT_S, max(0.0, float(headers.get("retry-after", ""))))
  except ValueError:
    return None


class SearchTool:
  """Runs search_web calls against a search service.

  Args:
    base_url: of the service, "http://127.0.0.1:8000".
    max_results: most results of a call, 1 to 100.
    max_query_chars: a longer query is the policy's failure.
    timeout_s: deadline of one attempt, in seconds, connecting included.
    retries: attempts after the first.
    backoff_s: wait before the first retry; it doubles, and Retry-After overrules it.
    connections: most requests under way at once.
    titles: False shows snippets alone, for short contexts.
  """

  def __init__(self, base_url: str, *, max_results: int = 10, max_query_chars: int = 250,
               timeout_s: float = 10.0, retries: int = 3, backoff_s: float = 0.25,
               connections: int = 64, titles: bool = True):
    if not base_url.startswith(("http://", "https://")):
      raise ValueError(f"search service: expected an http(s) URL, got {base_url!r}")
    if min(max_results, max_query_chars, connections) < 1 or retries < 0 or timeout_s <= 0:
      raise ValueError("search tool: max_results, max_query_chars, connections and timeout_s must "
                       f"be positive and retries not negative, got {max_results}, "
                       f"{max_query_chars}, {connections}, {timeout_s}, {retries}")
    self.base_url = base_url.rstrip("/")
    self.max_results, self.max_query_chars = max_results, max_query_chars
    self.timeout_s, self.retries, self.backoff_s = timeout_s, retries, backoff_s
    self.titles = titles
    self._connections = connections
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(target=self._run, daemon=True, name="search_web")
    self._thread.start()
    self._client = self._on_loop(self._open()).result()

  def submit(self, call: Call, world: int | None = None) -> concurrent.futures.Future:
    """Starts a call and returns at once; the future gives a ToolOutcome and never raises."""
    reason = check_call(call, self.max_query_chars)
    if reason:
      done = concurrent.futures.Future()
      done.set_result(model_failure(reason))
      return done
    return self._on_loop(self._search(call.arguments["query"], world))

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
    """Closes connections and ends the background thread; calling it twice is harmless."""
    if self._loop.is_closed():
      return
    self._on_loop(self._client.aclose()).result()
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def _run(self):
    asyncio.set_event_loop(self._loop)
    self._loop.run_forever()

  def _on_loop(self, coroutine) -> concurrent.futures.Future:
    return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

  async def _open(self) -> httpx.AsyncClient:
    self._turns = asyncio.Semaphore(self._connections)
    limits = httpx.Limits(max_connections=self._connections,
                          max_keepalive_connections=self._connections)
    # The deadline below bounds the whole attempt, so the pool needs none of its own.
    return httpx.AsyncClient(limits=limits, timeout=None, trust_env=False,
                             headers={"content-type": "application/json"})

  async def _search(self, query: str, world: int | None) -> ToolOutcome:
    async with self._turns:
      try:
        results = await self._with_retries(query, world)
      except ServiceFailure as failure:
        return infra_failure(failure.reason)
    lines = [f"{r.title}: {r.snippet}" if self.titles else r.snippet for r in results]
    return ToolOutcome("\n".join(lines) or "No results.", "ok", True, "", results)

  async def _with_retries(self, query: str, world: int | None) -> tuple[Result, ...]:
    content = json.dumps({"query": query, "num_results": self.max_results, "world": world}).encode()
    try:
      return await self._attempt(content)
    except ServiceFailure as failure:
      if not failure.again or not self.retries:
        raise
      first = failure
    await asyncio.sleep(self._wait(first, 1))
    async for attempt in tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(self.retries), reraise=True,
        retry=tenacity.retry_if_exception(lambda e: isinstance(e, ServiceFailure) and e.again),
        wait=lambda state: self._wait(state.outcome.exception(), state.attempt_number + 1)):
      with attempt:
        return await self._attempt(content)

  def _wait(self, failure: ServiceFailure, attempt: int) -> float:
    if failure.wait_s is not None:
      return failure.wait_s
    return min(MAX_WAIT_S, self.backoff_s * 2 ** (attempt - 1))

  async def _attempt(self, content: bytes) -> tuple[Result, ...]:
    try:
      async with asyncio.timeout(self.timeout_s):
        reply = await self._client.post(f"{self.base_url}/search", content=content)
    except TimeoutError as error:
      raise ServiceFailure("timed out", again=True) from error
    except httpx.TransportError as error:
      raise ServiceFailure("no connection", again=True) from error
    except httpx.HTTPError as error:
      raise ServiceFailure("unreadable reply", again=True) from error
    return read_results(reply.status_code, reply.content, reply.headers, self.max_results)
