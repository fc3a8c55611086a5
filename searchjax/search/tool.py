"""The search_web tool: one call in, one of three outcomes out.  HOST.

  ok             the service answered; an empty list is an answer
  model_failure  the call itself was bad; it is answered, charged, and never sent
  infra_failure  the service could not be had after its retries; it is never an empty list

Calls run concurrently; client.py says how.

Spec     3 (tool limits, three outcomes), 2.2 (which failures are the policy's).
"""

import concurrent.futures
import dataclasses
from typing import Any, Protocol, runtime_checkable

import httpx

from searchjax.search.client import SearchClient, SearchCounts
from searchjax.search.providers import Local, Provider, Search
from searchjax.search.recording import Recording
from searchjax.search.reply import LONE_SURROGATE, Result, ServiceFailure
from searchjax.search.screening import Screening

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


@runtime_checkable
class Call(Protocol):
  """What a tool call looks like: data.chat.ToolCall."""

  name: str
  arguments: dict[str, Any]


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


class SearchTool:
  """Runs search_web calls against a search service.

  Args:
    service: a provider, or the URL of a local server, "http://127.0.0.1:8000".
    max_query_chars: a longer query is the policy's failure.
    screening: which results the policy may see; None: all.
    titles: False shows snippets alone, for short contexts.
    snippet_chars: longer snippets are cut; 0: never.
    max_results, timeout_s, deadline_s, retries, backoff_s, connections, batch, per_second,
      recording, replay: see SearchClient.
  """

  def __init__(self, service: Provider | str, *, max_results: int = 10, max_query_chars: int = 250,
               timeout_s: float = 10.0, deadline_s: float = 60.0, retries: int = 3,
               backoff_s: float = 0.25, connections: int = 8, batch: int = 64,
               per_second: float = 0.0, titles: bool = True, snippet_chars: int = 0,
               recording: Recording | None = None, replay: bool = False,
               screening: Screening | None = None):
    if isinstance(service, str):
      if not service.startswith(("http://", "https://")):
        raise ValueError(f"search service: expected an http(s) URL, got {service!r}")
      service = Local(service)
    if (min(max_results, max_query_chars, connections, batch) < 1 or retries < 0
        or timeout_s <= 0 or deadline_s <= 0):
      raise ValueError("search tool: expected max_results, max_query_chars, connections, batch, "
                       "timeout_s and deadline_s above 0 and retries from 0, got "
                       f"{max_results}, {max_query_chars}, {connections}, {batch}, {timeout_s}, "
                       f"{deadline_s}, {retries}")
    self.provider, self.max_query_chars, self.timeout_s = service, max_query_chars, timeout_s
    self.titles, self.snippet_chars = titles, snippet_chars
    self.screening = screening or Screening()
    self._client = SearchClient(
      service, max_results=max_results, timeout_s=timeout_s, deadline_s=deadline_s,
      retries=retries, backoff_s=backoff_s, connections=connections, batch=batch,
      per_second=per_second, recording=recording, replay=replay)

  def submit(self, call: Call, world: int | None = None, question: str = ""
             ) -> concurrent.futures.Future:
    """Starts a call and returns at once; the future gives a ToolOutcome, whatever happens.

    Args:
      world: the renamed atlas to search; None for the real one, and for every remote service.
      question: what the conversation is about; results that quote it are not shown.
    """
    future: concurrent.futures.Future = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from here on nobody can cancel it
    reason = check_call(call, self.max_query_chars)
    if reason:
      future.set_result(model_failure(reason))
      return future
    query = LONE_SURROGATE.sub("\ufffd", call.arguments["query"])
    if world is not None and not self.provider.worlds:
      raise ValueError(f"search.provider={self.provider.name} searches the real web, and the "
                       f"question is of renamed world {world}; use search.provider=local")
    self._client.submit(
      Search(query, world), lambda ended: future.set_result(self._outcome(ended, question)))
    return future

  def check(self):
    """Asks a local server for its health; other services tell with the first search.

    Raises:
      ValueError: it is not reachable.
    """
    if self.provider.name != "local":
      return
    url = self.provider.url
    try:
      reply = httpx.get(f"{url}/health", timeout=self.timeout_s, trust_env=False)
      reason = None if reply.status_code == 200 else f"HTTP {reply.status_code}"
    except httpx.HTTPError as error:
      reason = str(error) or type(error).__name__
    if reason:
      raise ValueError(f"search service {url}: not reachable ({reason}); start it with "
                       "python -m searchjax.search.server, or mend the URL")

  def raise_if_stopped(self):
    """Ends a run whose searches can no longer succeed.

    Raises:
      ValueError: a key was refused, a quota is used up, the cache cannot be written.
    """
    if self._client.broken is not None:
      raise self._client.broken
    if self._client.stopped:
      raise ValueError(f"search: {self._client.stopped}; no further search can succeed; mend it "
                       "and run again to resume")

  def take_counts(self) -> SearchCounts:
    """What came of the searches since the last call."""
    return self._client.take_counts()

  def close(self):
    """Ends the background thread; calls under way end as infra_failure. Twice is harmless."""
    self._client.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def _outcome(self, ended: tuple[Result, ...] | ServiceFailure, question: str) -> ToolOutcome:
    if isinstance(ended, ServiceFailure):
      return infra_failure(ended.reason)
    results, blocked, leaked = self.screening.screen(ended, question)
    self._client.counts.blocked += blocked
    self._client.counts.leaked += leaked
    if self.snippet_chars:
      results = tuple(dataclasses.replace(r, snippet=r.snippet[:self.snippet_chars])
                      for r in results)
    lines = [f"{r.title}: {r.snippet}" if self.titles else r.snippet for r in results]
    return ToolOutcome("\n".join(lines) or "No results.", "ok", True, "", results)
