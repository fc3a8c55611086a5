"""What each search service is asked, and what its replies come to; real replies where there are some."""

import json
import types

import pytest

from searchjax.search.providers import PROVIDERS, Search, Secret
from searchjax.search.reply import Reply, Result, ServiceFailure
from searchjax.search.tool import SearchTool
from small_web import faulty_service
from small_web import Reply as Sent

KEY = "sekret-4711"
A = Result("A", "https://a.example/1", "Tea is hot.")
B = Result("B", "https://b.example/2", "Tea is made of leaves.")
# The same two pages as each service sends them, and its answer where nothing matches.
ROWS = {
  "local": ("results", "title", "url", "snippet"), "searxng": ("results", "title", "url", "content"),
  "serper": ("organic", "title", "link", "snippet"), "brave": (None, "title", "url", "description"),
  "tavily": ("results", "title", "url", "content"), "exa": ("results", "title", "url", "text"),
  "perplexity": ("results", "title", "url", "snippet"), "google": ("items", "title", "link", "snippet"),
}
EMPTY = {
  "local": {"results": []}, "searxng": {"results": [], "unresponsive_engines": []},
  "serper": {"searchParameters": {"q": "x"}, "organic": []}, "brave": {"type": "search"},
  "tavily": {"results": []}, "exa": {"results": []}, "perplexity": {"results": []},
  "google": {"kind": "customsearch#search", "searchInformation": {"totalResults": "0"}},
}


def provider(name, **settings):
  kind = PROVIDERS[name]
  settings = {"url": "" if kind.address else "http://127.0.0.1:9"} | settings
  return kind(key=Secret(KEY), variables={v: "an-engine" for v in kind.variables}, **settings)


def body_of(name, results):
  where, title, url, snippet = ROWS[name]
  rows = [{title: r.title, url: r.url, snippet: r.snippet} for r in results]
  return EMPTY[name] | ({where: rows} if where else {"web": {"results": rows}})


def read(name, status, body, headers=None, count=10):
  body = body if isinstance(body, bytes) else json.dumps(body).encode()
  return provider(name).read(Reply(status, headers or {}, body, 0.0), 1, count)


def call(query):
  return types.SimpleNamespace(name="search_web", arguments={"query": query})


@pytest.mark.parametrize("name", PROVIDERS)
def test_results_and_none(name):
  assert read(name, 200, body_of(name, [A, B])).found == [(A, B)]
  assert read(name, 200, EMPTY[name]).found == [()]  # an answer


def test_requests_carry_the_key_in_a_header_and_nowhere_else():
  headers = {"serper": "X-API-KEY", "brave": "X-Subscription-Token", "tavily": "authorization",
             "exa": "x-api-key", "perplexity": "authorization", "google": "x-goog-api-key"}
  for name in PROVIDERS:
    request = provider(name).request([Search("hot tea & milk")], 7, 1)
    where = [header for header, value in request.headers.items() if KEY in value]
    assert where == ([headers[name]] if name in headers else [])
    assert KEY not in repr((request, request.params, request.url, provider(name), Secret(KEY)))
    assert KEY.encode() not in (request.body or b"")
    asked = request.params if request.body is None else json.loads(request.body)
    assert "hot tea & milk" in asked.values()
    assert name == "searxng" or "7" in map(str, asked.values())


# A failure is (again, lasting); an int says how many results.
AGAIN, ONCE, LASTING = (True, False), (False, False), (False, True)
STATUS_TABLE = {
  "200": (200, None, 2), "204": (204, b"", ONCE), "400": (400, b"{}", ONCE),
  "401": (401, b"<html>401 Authorization Required</html>", LASTING), "403": (403, b"{}", LASTING),
  "429": (429, b"Too Many Requests", AGAIN), "500": (500, b"{}", AGAIN), "503": (503, b"<html>", AGAIN),
  "invalid JSON": (200, b"{oops", AGAIN), "HTML body": (200, b"<!DOCTYPE html>", AGAIN),
  "truncated body": (200, "truncated", AGAIN), "wrong count": (200, "thrice", 2),
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_H3_status_table_of_every_provider_through_the_tool(name):
  whole = json.dumps(body_of(name, [A, B])).encode()
  special = {None: whole, "truncated": whole[:len(whole) // 2],
             "thrice": json.dumps(body_of(name, [A, B] * 3)).encode()}

  def answer(_, request):
    status, body, _ = STATUS_TABLE[request.get("query", request.get("q"))]
    return Sent(status, special.get(body, body))

  def tool(url):
    return SearchTool(provider(name, url=url), max_results=2, batch=1, retries=2, backoff_s=0.001)

  last = {"local": [], "searxng": ["403"]}.get(name, ["401", "403"])
  with faulty_service(answer) as (url, seen, _):
    asked = lambda: [request.get("query", request.get("q")) for _, request in seen]
    with tool(url) as one:
      found = {row: one.submit(call(row)) for row in STATUS_TABLE if row not in last}
      for row, future in found.items():
        outcome, want = future.result(timeout=20), STATUS_TABLE[row][2]
        if isinstance(want, int):
          assert (outcome.status, outcome.results) == ("ok", (A, B)[:want]), row
        else:
          assert outcome.status == "infra_failure" and outcome.results == (), row
          assert outcome.text.startswith("Search failed: "), row
          assert asked().count(row) == (3 if want == AGAIN else 1), row
      one.raise_if_stopped()
    for row in last:  # no further call is sent
      with tool(url) as one:
        outcomes = [one.submit(call(query)).result(timeout=20) for query in (row, "200")]
        assert {o.status for o in outcomes} == {"infra_failure"} and asked().count(row) == 1
        assert asked().count("200") == 1 and outcomes[1].reason == f"{name}: {outcomes[0].reason}"
        with pytest.raises(ValueError, match=f"search: {name}: .*HTTP {row}.*no further search"):
          one.raise_if_stopped()


@pytest.mark.parametrize("name, status, body, reason, kind", [
  ("serper", 400, {"message": "Not enough credits", "statusCode": 400}, "credits", LASTING),
  ("serper", 400, {"message": "Missing query"}, "HTTP 400", ONCE),
  ("brave", 422, {"error": {"code": "SUBSCRIPTION_TOKEN_INVALID"}}, "key", LASTING),
  ("brave", 422, {"errors": [{"code": "SUBSCRIPTION_TOKEN_INVALID"}]}, "key", LASTING),
  ("brave", 422, {"error": {"code": "VALIDATION"}}, "HTTP 422", ONCE),
  ("brave", 429, {"error": {"code": "QUOTA_LIMITED"}}, "quota", LASTING),
  ("brave", 429, {"error": {"code": "RATE_LIMITED"}}, "HTTP 429", AGAIN),
  ("brave", 400, {"error": {"code": "OPTION_NOT_IN_PLAN"}}, "plan", LASTING),
  ("tavily", 432, {"detail": {"error": "plan"}}, "limit", LASTING),
  ("tavily", 433, {"detail": {"error": "pay as you go"}}, "limit", LASTING),
  ("tavily", 422, {"detail": [{"msg": "Field required"}]}, "HTTP 422", ONCE),
  ("exa", 402, {"tag": "NO_MORE_CREDITS"}, "credits", LASTING),
  ("exa", 403, {"tag": "PROHIBITED_CONTENT"}, "refused", ONCE),
  ("exa", 403, {"tag": "FEATURE_DISABLED"}, "key", LASTING),
  ("searxng", 403, b"<title>403 Forbidden</title>", "JSON", LASTING),
  ("searxng", 200, {"results": [], "unresponsive_engines": [["google", "CAPTCHA"]]}, "engine", AGAIN),
  ("google", 400, {"error": {"message": "API key not valid. Pass a valid one."}}, "key", LASTING),
  ("google", 400, {"error": {"message": "Invalid value"}}, "HTTP 400", ONCE),
  ("google", 429, {"error": {"message": "limit 'Queries per day'"}}, "quota", LASTING),
  ("google", 429, {"error": {"message": "limit 'Queries per minute'"}}, "HTTP 429", AGAIN),
  ("google", 403, {"error": {"errors": [{"reason": "userRateLimitExceeded"}]}}, "fast", AGAIN),
  ("google", 403, {"error": {"errors": [{"reason": "dailyLimitExceeded"}]}}, "quota", LASTING),
])
def test_H3_what_a_service_means_by_a_status(name, status, body, reason, kind):
  with pytest.raises(ServiceFailure, match=reason) as caught:
    read(name, status, body)
  assert (caught.value.again, caught.value.lasting) == kind


def test_searxng_is_not_down_while_anything_answered():
  down = [["google", "timeout"]]
  assert read("searxng", 200, body_of("searxng", [A]) | {"unresponsive_engines": down}).found == [(A,)]
  assert read("searxng", 200, EMPTY["searxng"] | {"answers": [{"answer": "x"}],
                                                  "unresponsive_engines": down}).found == [()]


def test_what_an_answer_costs():
  dollars = {name: round(1000 * read(name, 200, EMPTY[name]).dollars, 6) for name in PROVIDERS}
  assert dollars == {"local": 0, "searxng": 0, "serper": 1, "brave": 5, "tavily": 8, "exa": 7,
                     "perplexity": 5, "google": 5}
  assert read("serper", 200, EMPTY["serper"] | {"credits": 2}).dollars == pytest.approx(0.002)
  assert read("exa", 200, EMPTY["exa"] | {"costDollars": {"total": 0.004}}).dollars == 0.004
  cheap = PROVIDERS["brave"](price=3.0).read(Reply(200, {}, b'{"type": "search"}', 0.0), 1, 10)
  assert cheap.dollars == pytest.approx(0.003)


def test_what_identifies_a_search():
  assert provider("serper").parameters(Search("q"), 7) == {"num_results": 7}
  assert provider("google").parameters(Search("q"), 7)["engine"] == "an-engine"
  assert provider("local", source="s").parameters(Search("q", 3), 7) == {
    "num_results": 7, "world": 3, "source": "s"}
  assert provider("searxng").parameters(Search("q"), 7)["url"] == "http://127.0.0.1:9"


# ---- replies of the services themselves: (results) or (again, lasting, wait)

REAL = {
  "serper_200": 2, "serper_200_answerbox": 1, "serper_empty": 0, "serper_400_credits": (False, True, None),
  "serper_401_403": (False, True, None), "serper_429": (True, False, None),
  "brave_200": 2, "brave_200_noweb": 0, "brave_422_token": (False, True, None),
  "brave_422_token_docs_variant": (False, True, None), "brave_429_quota": (False, True, None),
  "brave_429_rate": (True, False, 1.0), "tavily_200": 1, "tavily_400": (False, False, None),
  "tavily_401": (False, True, None), "tavily_422_detail_list": (False, False, None),
  "tavily_429": (True, False, 60.0), "tavily_432": (False, True, None), "tavily_433": (False, True, None),
  "tavily_500": (True, False, None), "exa_200": 1, "exa_401": (False, True, None),
  "exa_429": (True, False, None), "searxng_200": 1, "searxng_400": (False, False, None),
  "searxng_500": (True, False, None), "searxng_allengines_down": (True, False, None),
  "perplexity_search_200": 2, "perplexity_400": (False, False, None),
  "perplexity_422": (False, False, None), "google_cse_200": 1, "google_cse_400_key": (False, True, None),
  "google_cse_429": (False, True, None),
}


@pytest.mark.parametrize("stem", REAL)
def test_H3_replies_of_the_services_themselves(stem, shared):
  path = shared / f"data/search_api/{stem}.json"
  if not path.exists():
    pytest.skip(f"no {path}")
  row, name = json.loads(path.read_text()), stem.split("_")[0]
  reply = row["status"], row["body"], {k.lower(): v for k, v in row["headers"].items()}
  if isinstance(REAL[stem], int):
    (results,) = read(name, *reply).found
    assert len(results) == REAL[stem]
    assert all(r.title and r.url.startswith("https://") for r in results)
    assert all(r.snippet and "<strong>" not in r.snippet for r in results)
    return
  with pytest.raises(ServiceFailure) as caught:
    read(name, *reply)
  failure = caught.value
  assert (failure.again, failure.lasting, failure.wait_s) == REAL[stem]


@pytest.mark.parametrize("stem, status", [
  ("any_200_html_challenge.html", 200), ("any_200_truncated.txt", 200), ("any_502_cloudflare.html", 502),
  ("any_503_html.html", 503), ("bing_200_empty_body.txt", 200)])
def test_H3_bodies_of_whatever_stands_before_a_service(stem, status, shared):
  path = shared / f"data/search_api/{stem}"
  if not path.exists():
    pytest.skip(f"no {path}")
  for name in PROVIDERS:
    with pytest.raises(ServiceFailure) as caught:
      read(name, status, path.read_bytes())
    assert caught.value.again and not caught.value.lasting
