"""Search services: what each is asked, and how its reply is read.  PURE.

A provider builds a request and reads a reply; it knows no clock, network or file. Keys stand in
headers only, so that no address, log line or exception holds one.

  provider    key                  most results   dollars a 1,000 calls, as published
  local       -                    100            0
  searxng     -                    100            0
  serper      SERPER_API_KEY       100            1      serper.dev, August 2026; above 10: 2
  brave       BRAVE_API_KEY        20             5      brave.com/search/api, September 2026
  tavily      TAVILY_API_KEY       20             8      docs.tavily.com, api-credits, October 2026
  exa         EXA_API_KEY          100            7      exa.ai/docs, pricing, November 2026
  perplexity  PERPLEXITY_API_KEY   20             5      docs.perplexity.ai, pricing, October 2026
  google      GOOGLE_API_KEY       10             5      developers.google.com/custom-search

google also reads GOOGLE_CSE_ID, the search engine's id; the service ends on 1 January 2027.

Spec     3 (search_web).
Source   the services' API references.
"""

import dataclasses
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from searchjax.search.reply import Answer, Reply, Result, ServiceFailure
from searchjax.search.reply import amount_of, make_result, read_json, read_results, refusal, rows_of
from searchjax.search.reply import without_markup


class Search(NamedTuple):
  """A query; `world` is that of a renamed atlas, None the real one."""

  query: str
  world: int | None = None


@dataclasses.dataclass(frozen=True)
class Secret:
  """A key, which is not printed."""

  value: str = dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True)
class Request:
  """An HTTP request; its headers may hold a key, so they are not printed."""

  method: str
  url: str
  headers: Mapping[str, str] = dataclasses.field(repr=False)
  params: Mapping[str, str] = dataclasses.field(default_factory=dict)
  body: bytes | None = None


class Provider:
  """A service of the real web that takes one query a request; subclasses say how.

  Attributes:
    name: in configs.
    address: where requests go unless the config says otherwise.
    key_name: the environment variable that holds its key; "" if it needs none.
    variables: further variables it needs, not secret.
    most_results: that a request may ask for.
    price: dollars a thousand answered calls.
    batch: most queries of a request.
    worlds: whether it serves renamed worlds.
    remote: whether the proxies that the environment names lie before it.
  """

  name, address, key_name, variables = "", "", "", ()
  most_results, price, batch, worlds, remote = 100, 0.0, 1, False, True

  def __init__(self, url: str = "", *, key: Secret = Secret(),
               variables: Mapping[str, str] | None = None, source: str = "",
               price: float | None = None):
    """Args:
      url: of the service; "" is its published address.
      variables: values of `self.variables`.
      source: what else decides the results, for recordings.
      price: dollars a thousand calls, if not as published.
    """
    self.url = (url or self.address).rstrip("/")
    self.remote = self.remote and not is_loopback(self.url)
    self._key, self._variables = key, dict(variables or {})
    self._source = source
    self._dollars = (self.price if price is None else price) / 1000.0

  def request(self, searches: Sequence[Search], count: int, attempt: int) -> Request:
    """The request for up to `batch` searches and `count` results each."""
    raise TypeError(f"{type(self).__name__} builds no requests")

  def read(self, reply: Reply, queries: int, count: int) -> Answer:
    """The results of a reply.

    Raises:
      ServiceFailure: there are none to be had from it.
    """
    body = read_json(reply)
    if reply.status != 200:
      raise self.refused(reply, body) or refusal(reply, keyed=bool(self.key_name))
    found = read_results(body, self.found, queries=queries, limit=count)
    return Answer(found, self.cost(body, queries))

  def found(self, body: Any) -> Sequence[Sequence[Result]]:
    """The results in a reply's JSON, a sequence a query; raises where it is another shape."""
    raise TypeError(f"{type(self).__name__} reads no replies")

  def refused(self, reply: Reply, body: Any) -> ServiceFailure | None:
    """What the service itself means by a status; None: what everyone does."""
    del reply, body
    return None

  def cost(self, body: Any, queries: int) -> float:
    """Dollars that the answered request cost."""
    del body
    return queries * self._dollars

  def parameters(self, search: Search, count: int) -> dict[str, Any]:
    """What decides the results besides provider and query."""
    given = {"num_results": count, "world": search.world, "source": self._source}
    return {name: value for name, value in given.items() if value not in (None, "")}

  def _post(self, headers: Mapping[str, str], body: dict) -> Request:
    return Request("POST", self.url, {"content-type": "application/json", **headers},
                   body=json.dumps(body).encode())


class Local(Provider):
  """searchjax.search.server: the atlas or one's own pages."""

  name, batch, worlds, remote = "local", 64, True, False

  def request(self, searches, count, attempt):
    asked = [{"query": s.query, "num_results": count, "world": s.world} for s in searches]
    body = asked[0] if len(asked) == 1 else {"searches": asked}
    headers = {"content-type": "application/json", "x-attempt": str(attempt)}
    return Request("POST", f"{self.url}/search", headers, body=json.dumps(body).encode())

  def found(self, body):
    if "answers" in body:
      return [self._results(answer) for answer in rows_of(body["answers"])]
    return [self._results(body)]

  def _results(self, answer: dict) -> list[Result]:
    return [make_result(row["title"], row["url"], row["snippet"])
            for row in rows_of(answer["results"])]


class Serper(Provider):
  """Google's result pages by serper.dev."""

  name, address = "serper", "https://google.serper.dev/search"
  key_name, price = "SERPER_API_KEY", 1.0

  def request(self, searches, count, attempt):
    return self._post({"X-API-KEY": self._key.value}, {"q": searches[0].query, "num": count})

  def found(self, body):
    if "searchParameters" not in body:
      raise KeyError("searchParameters")
    # Sections without content are left out.
    return [[make_result(row["title"], row["link"], row.get("snippet"))
             for row in rows_of(body.get("organic", []))]]

  def refused(self, reply, body):
    if reply.status == 400 and "credits" in text_of(body, "message"):
      return ServiceFailure("the credits are used up (HTTP 400)", lasting=True)
    return None

  def cost(self, body, queries):
    credits = amount_of(body.get("credits"))
    return self._dollars * (queries if credits is None else credits)


class Brave(Provider):
  """Brave Search, plan "Search"."""

  name, address = "brave", "https://api.search.brave.com/res/v1/web/search"
  key_name, most_results, price = "BRAVE_API_KEY", 20, 5.0

  def request(self, searches, count, attempt):
    headers = {"accept": "application/json", "X-Subscription-Token": self._key.value}
    return Request("GET", self.url, headers, {"q": searches[0].query, "count": str(count)})

  def found(self, body):
    if body["type"] != "search":
      raise ValueError("not a search")
    # "web" is absent where nothing matches.
    rows = rows_of((body.get("web") or {"results": []})["results"])
    return [[make_result(without_markup(row["title"]), row["url"],
                         without_markup(row.get("description"))) for row in rows]]

  def refused(self, reply, body):
    # The reference shows both a list "errors" and an object "error".
    errors = body.get("errors") if isinstance(body, dict) else None
    first = errors[0] if isinstance(errors, list) and errors else field(body, "error")
    code = text_of(first, "code")
    if code.startswith("subscription_token"):
      return ServiceFailure(f"the key was refused (HTTP {reply.status})", lasting=True)
    if code == "quota_limited":
      return ServiceFailure(f"the plan's quota is used up (HTTP {reply.status})", lasting=True)
    if code.endswith("not_in_plan") or code == "resource_not_allowed":
      return ServiceFailure(f"not in the plan (HTTP {reply.status})", lasting=True)
    if reply.status == 429 and "retry-after" not in reply.headers:
      # Two windows, "1, 1419704": seconds until the second's and the month's limit are new.
      seconds = reply.headers.get("x-ratelimit-reset", "").split(",")[0].strip()
      return ServiceFailure("HTTP 429", again=True,
                            wait_s=float(seconds) if seconds.isdecimal() else None)
    return None


class Tavily(Provider):
  """Tavily, basic depth: one credit a search."""

  name, address = "tavily", "https://api.tavily.com/search"
  key_name, most_results, price = "TAVILY_API_KEY", 20, 8.0

  def request(self, searches, count, attempt):
    return self._post({"authorization": f"Bearer {self._key.value}"}, {
      "query": searches[0].query, "max_results": count, "search_depth": "basic"})

  def found(self, body):
    return [[make_result(row["title"], row["url"], row.get("content"))
             for row in rows_of(body["results"])]]

  def refused(self, reply, body):
    if reply.status in (432, 433):
      return ServiceFailure(f"the plan's limit is used up (HTTP {reply.status})", lasting=True)
    return None


class Exa(Provider):
  """Exa, highlights as snippets."""

  name, address, key_name, price = "exa", "https://api.exa.ai/search", "EXA_API_KEY", 7.0

  def request(self, searches, count, attempt):
    return self._post({"x-api-key": self._key.value}, {
      "query": searches[0].query, "numResults": count, "type": "auto",
      "contents": {"highlights": True}})

  def found(self, body):
    return [[make_result(row.get("title"), row["url"], self._snippet(row))
             for row in rows_of(body["results"])]]

  def _snippet(self, row: dict) -> str | None:
    highlights = [part for part in row.get("highlights") or [] if isinstance(part, str)]
    return " … ".join(highlights) or row.get("summary") or row.get("text")

  def refused(self, reply, body):
    if reply.status == 403 and "content" in text_of(body, "tag"):
      return ServiceFailure("the query was refused (HTTP 403)")  # by its content, not for good
    return None

  def cost(self, body, queries):
    total = amount_of(field(body.get("costDollars"), "total"))
    return queries * self._dollars if total is None else total


class SearXNG(Provider):
  """A SearXNG instance of one's own, with JSON among its formats; it has no page size."""

  name, remote = "searxng", False

  def request(self, searches, count, attempt):
    return Request("GET", f"{self.url}/search", {"accept": "application/json"},
                   {"q": searches[0].query, "format": "json"})

  def found(self, body):
    rows = rows_of(body["results"])
    found = rows or body.get("answers") or body.get("infoboxes")
    if not found and body.get("unresponsive_engines"):
      raise ServiceFailure("no engine answered", again=True)
    return [[make_result(row["title"], row["url"], row.get("content")) for row in rows]]

  def refused(self, reply, body):
    if reply.status == 403:
      return ServiceFailure("JSON is not among the instance's formats (HTTP 403)", lasting=True)
    return None

  def parameters(self, search, count):
    return super().parameters(search, count) | {"url": self.url}


class Perplexity(Provider):
  """Perplexity's Search API."""

  name, address = "perplexity", "https://api.perplexity.ai/search"
  key_name, most_results, price = "PERPLEXITY_API_KEY", 20, 5.0

  def request(self, searches, count, attempt):
    return self._post({"authorization": f"Bearer {self._key.value}"}, {
      "query": searches[0].query, "max_results": count})

  def found(self, body):
    rows = rows_of(body["results"])
    # Several queries may come back grouped, and one as a group of its own.
    flat = [row for group in rows for row in (group if isinstance(group, list) else [group])]
    return [[make_result(row["title"], row["url"], row.get("snippet")) for row in flat]]


class Google(Provider):
  """Google's Custom Search JSON API."""

  name, address = "google", "https://www.googleapis.com/customsearch/v1"
  key_name, variables, most_results, price = "GOOGLE_API_KEY", ("GOOGLE_CSE_ID",), 10, 5.0

  def request(self, searches, count, attempt):
    return Request("GET", self.url, {"x-goog-api-key": self._key.value}, {
      "cx": self._variables["GOOGLE_CSE_ID"], "q": searches[0].query, "num": str(count)})

  def found(self, body):
    if body["kind"] != "customsearch#search":
      raise ValueError("not a search")
    # "items" is absent where nothing matches.
    return [[make_result(row.get("title"), row["link"], row.get("snippet"))
             for row in rows_of(body.get("items", []))]]

  def refused(self, reply, body):
    told = json.dumps(field(body, "error"))
    if reply.status == 400 and ("API key not valid" in told or "API_KEY_INVALID" in told):
      return ServiceFailure("the key was refused (HTTP 400)", lasting=True)
    if reply.status in (403, 429):
      if any(word in told for word in ("PerDay", "per day", "dailyLimitExceeded", "quotaExceeded")):
        return ServiceFailure(f"the day's quota is used up (HTTP {reply.status})", lasting=True)
      if reply.status == 403 and "ateLimitExceeded" in told:
        return ServiceFailure("HTTP 403, too fast", again=True)
    return None

  def parameters(self, search, count):
    return super().parameters(search, count) | {"engine": self._variables["GOOGLE_CSE_ID"]}


PROVIDERS: dict[str, type[Provider]] = {
  kind.name: kind for kind in (Local, SearXNG, Serper, Brave, Tavily, Exa, Perplexity, Google)}


def is_loopback(url: str) -> bool:
  """Whether an address is this machine's own."""
  return (urllib.parse.urlsplit(url).hostname or "") in ("127.0.0.1", "::1", "localhost")


def field(body: Any, name: str) -> Any:
  """A field of a JSON object; None where there is no such field, or no object."""
  return body.get(name) if isinstance(body, dict) else None


def text_of(body: Any, name: str) -> str:
  """The field's text in lower case; empty where it is no text."""
  value = field(body, name)
  return value.casefold() if isinstance(value, str) else ""
