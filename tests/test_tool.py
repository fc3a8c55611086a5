"""search_web's three outcomes, against a service that misbehaves in every way reported."""

import json
import subprocess
import sys
import textwrap
import time

import pytest

from searchjax.data.chat import ToolCall
from searchjax.search.tool import SEARCH_WEB, SearchTool
from small_web import Reply, faulty_service

GOOD = json.dumps({"results": [
  {"title": "Guiyang", "url": "https://a.example", "snippet": "Guiyang lies in\n the country."},
  {"title": "Other", "url": "https://b.example", "snippet": "Other."}]}).encode()


def call(query="Guiyang country", **more):
  return ToolCall("search_web", {"query": query, **more})


def test_ok_is_one_line_a_result():
  with faulty_service(lambda *_: Reply(body=GOOD)) as (url, seen, _), SearchTool(url) as tool:
    outcome = tool.submit(call(), 7).result()
    assert outcome.status == "ok" and outcome.executed and outcome.reason == ""
    assert outcome.text == "Guiyang: Guiyang lies in the country.\nOther: Other."
    assert outcome.results[1].url == "https://b.example"
    assert seen[0][1] == {"query": "Guiyang country", "num_results": 10, "world": 7}


def test_settings_of_the_text():
  with faulty_service(lambda *_: Reply(body=GOOD)) as (url, seen, _):
    with SearchTool(url, max_results=1, titles=False) as tool:
      assert tool.submit(call()).result().text == "Guiyang lies in the country."
    assert seen[0][1]["num_results"] == 1 and seen[0][1]["world"] is None


def test_an_empty_list_is_an_answer():
  with faulty_service(lambda *_: Reply()) as (url, _, _), SearchTool(url) as tool:
    outcome = tool.submit(call()).result()
    assert (outcome.status, outcome.text, outcome.results) == ("ok", "No results.", ())


@pytest.mark.parametrize("bad, reason", [
  (ToolCall("browse", {"query": "a"}), "unknown tool 'browse'"),
  (ToolCall("search_web", {}), "needs a query"),
  (ToolCall("search_web", {"query": ""}), "non-empty"),
  (ToolCall("search_web", {"query": " \n"}), "non-empty"),
  (ToolCall("search_web", {"query": 5}), "non-empty text"),
  (ToolCall("search_web", {"query": "a", "pages": "2"}), "unknown argument 'pages'"),
  (ToolCall("search_web", {"query": "x" * 251}), "longer than 250"),
])
def test_a_bad_call_is_the_models_and_is_never_sent(bad, reason):
  with faulty_service(lambda *_: Reply(body=GOOD)) as (url, seen, _), SearchTool(url) as tool:
    outcome = tool.submit(bad).result(timeout=1)
    assert outcome.status == "model_failure" and not outcome.executed
    assert reason in outcome.reason and outcome.text.startswith("Error: ")
    assert seen == []
    assert tool.submit(call("x" * 250)).result().status == "ok"


def test_H1_a_service_that_never_answers_is_a_deadline_error():
  with faulty_service(lambda *_: Reply(wait_s=5.0)) as (url, _, _):
    with SearchTool(url, timeout_s=0.1, retries=1, backoff_s=0.01) as tool:
      start = time.monotonic()
      outcome = tool.submit(call()).result()
      assert time.monotonic() - start < 2.0
      assert outcome.status == "infra_failure" and outcome.executed
      assert outcome.text == "Search failed: timed out." != "No results."


def test_H2_429_is_retried_after_what_it_says_then_is_an_infra_failure_never_an_empty_list():
  limited = Reply(429, b'{"error": "slow down"}', {"Retry-After": "0.3"})
  with faulty_service(lambda *_: limited) as (url, seen, _):
    with SearchTool(url, retries=2, backoff_s=0.001) as tool:
      outcome = tool.submit(call()).result()
  assert outcome.status == "infra_failure" and outcome.text == "Search failed: HTTP 429."
  assert outcome.results == () and outcome.text != "No results."
  times = [at for at, _ in seen]
  assert len(times) == 3 and all(b - a >= 0.29 for a, b in zip(times, times[1:]))


def test_H2_back_off_doubles():
  with faulty_service(lambda *_: Reply(503)) as (url, seen, _):
    with SearchTool(url, retries=3, backoff_s=0.05) as tool:
      tool.submit(call()).result()
  waits = [b[0] - a[0] for a, b in zip(seen, seen[1:])]
  assert [round(wait / 0.05) >= least for wait, least in zip(waits, (1, 2, 4))] == [True] * 3


BODIES = {
  "200": (Reply(body=GOOD), "ok", 1),
  "204": (Reply(204, b""), "infra_failure", 1),
  "400": (Reply(400, b'{"error": "bad"}'), "infra_failure", 1),
  "401": (Reply(401), "infra_failure", 1),
  "403": (Reply(403), "infra_failure", 1),
  "429": (Reply(429), "infra_failure", 3),
  "500": (Reply(500), "infra_failure", 3),
  "503": (Reply(503), "infra_failure", 3),
  "invalid JSON": (Reply(body=b"{oops"), "infra_failure", 3),
  "HTML body": (Reply(body=b"<html>Sign in</html>"), "infra_failure", 3),
  "truncated body": (Reply(body=GOOD[:40], promise=len(GOOD)), "infra_failure", 3),
  "no results key": (Reply(body=b'{"error": "quota"}'), "infra_failure", 3),
  "results no list": (Reply(body=b'{"results": {}}'), "infra_failure", 3),
  "a result without a title": (Reply(body=b'{"results": [{"url": "u", "snippet": "s"}]}'),
                               "infra_failure", 3),
}


@pytest.mark.parametrize("name", BODIES)
def test_H3_status_table(name):
  reply, status, attempts = BODIES[name]
  with faulty_service(lambda *_: reply) as (url, seen, _):
    with SearchTool(url, retries=2, backoff_s=0.001, timeout_s=5.0) as tool:
      outcome = tool.submit(call()).result()
  assert outcome.status == status and len(seen) == attempts
  assert (outcome.text == "No results.") is False


def test_H3_wrong_count_more_results_than_asked_are_cut():
  with faulty_service(lambda *_: Reply(body=GOOD)) as (url, _, _):
    with SearchTool(url, max_results=1) as tool:
      assert len(tool.submit(call()).result().results) == 1


def test_a_failure_that_passes_is_no_failure():
  with faulty_service(lambda n, _: Reply(503) if n < 2 else Reply(body=GOOD)) as (url, seen, _):
    with SearchTool(url, retries=2, backoff_s=0.001) as tool:
      assert tool.submit(call()).result().status == "ok" and len(seen) == 3


def test_calls_that_arrive_together_share_requests_and_each_gets_its_own():
  def answer(_, body):
    def result(search):
      return {"results": [{"title": search["query"], "url": "u", "snippet": str(search["world"])}]}
    if "searches" in body:
      return Reply(body=json.dumps({"answers": [result(s) for s in body["searches"]]}).encode())
    return Reply(body=json.dumps(result(body)).encode())

  with faulty_service(answer) as (url, seen, _), SearchTool(url) as tool:
    futures = [tool.submit(call(f"q{i}"), i) for i in range(127)]
    assert [f.result().text for f in futures] == [f"q{i}: {i}" for i in range(127)]
    assert len(seen) < 64


@pytest.mark.parametrize("broken", [
  Reply(500), Reply(404), Reply(body=b'{"results": []}'), Reply(body=b'{"answers": []}')])
def test_a_batch_that_fails_is_no_outcome(broken):
  # The service takes one query a request: every call must still get its own answer.
  with faulty_service(lambda _, body: broken if "searches" in body else Reply(body=GOOD)) as (
      url, _, _), SearchTool(url, backoff_s=0.001) as tool:
    futures = [tool.submit(call(f"q{i}")) for i in range(13)]
    assert {f.result().status for f in futures} == {"ok"}


def test_H6_many_calls_few_connections():
  with faulty_service(lambda *_: Reply(body=GOOD, wait_s=0.001)) as (url, _, load):
    with SearchTool(url, connections=5, batch=1) as tool:
      futures = [tool.submit(call(f"q{i}")) for i in range(97)]
      assert {f.result().status for f in futures} == {"ok"}
    assert 1 <= load["most"] <= 5


def test_H6_500_calls_pass_with_64_open_files(plain_environment):
  with faulty_service(lambda *_: Reply(body=GOOD)) as (url, _, _):
    program = textwrap.dedent(f"""
      import resource
      resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
      from searchjax.data.chat import ToolCall
      from searchjax.search.tool import SearchTool
      with SearchTool("{url}", batch=1) as tool:
        futures = [tool.submit(ToolCall("search_web", {{"query": f"q{{i}}"}})) for i in range(500)]
        assert {{f.result().status for f in futures}} == {{"ok"}}
      """)
    subprocess.run([sys.executable, "-c", program], check=True, env=plain_environment)


def test_no_service_at_all():
  with faulty_service(lambda *_: Reply()) as (url, _, _):
    pass
  with SearchTool(url, retries=1, backoff_s=0.001) as tool:
    assert tool.submit(call()).result().text == "Search failed: no connection."
    with pytest.raises(ValueError, match="not reachable") as caught:
      tool.check()
    assert url in str(caught.value) and "\n" not in str(caught.value)


def test_closing_ends_what_is_under_way():
  with faulty_service(lambda *_: Reply(wait_s=1.0)) as (url, _, _):
    tool = SearchTool(url, connections=1, batch=1)
    futures = [tool.submit(call(f"q{i}")) for i in range(3)]
    time.sleep(0.05)
    tool.close()
    tool.close()
    assert {f.result(timeout=1).status for f in futures} == {"infra_failure"}
    with pytest.raises(RuntimeError, match="after close"):
      tool.submit(call())


@pytest.mark.parametrize("arguments, message", [
  (dict(service="localhost:80"), "expected an http"), (dict(max_results=0), "above 0"),
  (dict(retries=-1), "retries from 0"), (dict(timeout_s=0.0), "timeout_s")])
def test_bad_settings_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    SearchTool(**{"service": "http://127.0.0.1:1", **arguments})


def test_the_schema_has_one_required_text():
  function = SEARCH_WEB["function"]
  assert function["name"] == "search_web"
  assert function["parameters"]["required"] == ["query"] == list(function["parameters"]["properties"])
