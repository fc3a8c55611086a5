"""Searches under a deadline, a rate limit and a recording; what each came to is counted."""

import contextlib
import email.utils
import json
import threading
import time

import pytest

from searchjax.search.client import SearchClient
from searchjax.search.providers import Local, Search
from searchjax.search.recording import Recording
from searchjax.search.reply import Result, ServiceFailure
from small_web import Reply, faulty_service

A = Result("A", "https://a.example", "Tea is hot.")
GOOD = Reply(body=json.dumps({"results": [{"title": "A", "url": A.url, "snippet": A.snippet}]}).encode())


@contextlib.contextmanager
def client(url, **settings):
  settings = dict(max_results=3, timeout_s=5.0, deadline_s=20.0, retries=3, backoff_s=0.001,
                  connections=4, batch=1) | settings
  one = SearchClient(Local(url), **settings)
  try:
    yield one
  finally:
    one.close()


def ask(one, *queries):
  """Waits for what came of searches that are begun together."""
  ended, all_done = {}, threading.Semaphore(0)
  for i, query in enumerate(queries):
    def done(what, i=i):
      ended[i] = what
      all_done.release()
    one.submit(Search(query), done)
  for _ in queries:
    assert all_done.acquire(timeout=30)
  return [ended[i] for i in range(len(queries))]


def reason(ended):
  assert isinstance(ended, ServiceFailure)
  return ended.reason


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_H2_retry_after_is_waited_for_in_both_forms(form):
  def answer(n, _):
    # A date has whole seconds, so it must lie one and a half ahead to mean half a second at least.
    wait = "0.5" if form == "seconds" else email.utils.formatdate(time.time() + 1.5, usegmt=True)
    return Reply(429, headers={"Retry-After": wait}) if n == 0 else GOOD

  with faulty_service(answer) as (url, seen, _), client(url) as one:
    assert ask(one, "q") == [(A,)]
    assert seen[1][0] - seen[0][0] >= 0.45
    assert one.take_counts().retries == 1


@pytest.mark.parametrize("told", ["0", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_H2_a_wait_of_nothing_is_our_own_back_off(told):
  """All attempts at once would come to nothing, and fall upon a service that is down."""
  refuse = Reply(503, headers={"Retry-After": told})
  with faulty_service(lambda n, _: GOOD if n == 2 else refuse) as (url, seen, _):
    with client(url, backoff_s=0.1) as one:
      assert ask(one, "q") == [(A,)]
  assert seen[1][0] - seen[0][0] >= 0.1 and seen[2][0] - seen[1][0] >= 0.2


def test_H2_a_wait_that_does_not_fit_the_deadline_is_not_begun():
  with faulty_service(lambda *_: Reply(429, headers={"Retry-After": "86400"})) as (url, seen, _):
    with client(url, deadline_s=2.0) as one:
      start = time.monotonic()
      assert reason(*ask(one, "q")) == "HTTP 429" and time.monotonic() - start < 1.0
      assert len(seen) == 1


def test_H1_one_deadline_for_all_attempts():
  with faulty_service(lambda *_: Reply(wait_s=3.0)) as (url, seen, _):
    with client(url, timeout_s=0.3, deadline_s=0.7, retries=50) as one:
      start = time.monotonic()
      assert reason(*ask(one, "q")) == "timed out" and time.monotonic() - start < 3.0
      assert 2 <= len(seen) <= 4


def test_the_rate_limit_spaces_requests_and_retries():
  with faulty_service(lambda n, _: Reply(503) if n == 0 else GOOD) as (url, seen, _):
    with client(url, per_second=20.0) as one:
      assert ask(one, *"abcdef") == [(A,)] * 6
  times = [at for at, _ in seen]
  assert len(times) == 7 and times[-1] - times[0] >= 6 / 20.0 - 0.03


def test_counts_say_what_every_search_came_to():
  def answer(n, request):
    return {"bad": Reply(400), "down": Reply(503), "html": Reply(body=b"<html>")}.get(request["query"], GOOD)

  with faulty_service(answer) as (url, *_), client(url, retries=2) as one:
    ask(one, "q", "bad", "down", "html", "r")
    counts = one.take_counts()
    assert (counts.searches, counts.answered, counts.requests, counts.retries) == (5, 2, 9, 4)
    assert counts.failures == {"HTTP 400": 1, "HTTP 503": 1, "unreadable reply": 1}
    assert one.take_counts().searches == 0


def test_H5_dollars_are_counted_for_answers_only():
  with faulty_service(lambda _, r: Reply(500) if r["query"] == "down" else GOOD) as (url, *_):
    one = SearchClient(Local(url, price=5.0), max_results=1, timeout_s=5.0, deadline_s=9.0, retries=1,
                       backoff_s=0.001, connections=4, batch=64)
    ask(one, *"abcdefg", "down")
    assert one.take_counts().dollars == pytest.approx(7 * 0.005)
    one.close()


# ---- the recording


def test_H5_an_answer_is_asked_once_and_failures_are_not_kept(tmp_path):
  service = faulty_service(lambda n, r: Reply(400) if r["query"] == "bad" else GOOD)
  with service as (url, seen, _):
    with client(url, recording=Recording(tmp_path)) as one:
      assert ask(one, "q", "bad", "q", "q")[::2] == [(A,), (A,)]  # alike and under way: sent once
      assert ask(one, "q") == [(A,)] and reason(*ask(one, "bad")) == "HTTP 400"
      counts = one.take_counts()
      assert (counts.searches, counts.answered, counts.recorded, counts.requests) == (6, 4, 3, 3)
    with client(url, recording=Recording(tmp_path)) as one:
      assert ask(one, "q") == [(A,)]
    assert [r["query"] for _, r in seen].count("q") == 1
  with client("http://127.0.0.1:9", recording=Recording(tmp_path), replay=True) as one:
    first, second, third = ask(one, "q", "new", "bad")
    assert first == (A,) and reason(second) == reason(third) == "not in the recording"
    counts = one.take_counts()
    assert counts.requests == 0 and counts.failures == {"not in the recording": 2}


def test_a_failure_is_shared_by_those_who_asked_the_same(tmp_path):
  with faulty_service(lambda *_: Reply(500, wait_s=0.05)) as (url, seen, _):
    with client(url, recording=Recording(tmp_path), retries=0) as one:
      assert [reason(e) for e in ask(one, "q", "q", "q")] == ["HTTP 500"] * 3
      assert len(seen) == 1 and one.take_counts().failures == {"HTTP 500": 3}


def test_answers_of_a_batch_are_recorded_each(tmp_path):
  def answer(_, request):
    one = {"results": [{"title": "A", "url": A.url, "snippet": A.snippet}]}
    return Reply(body=json.dumps({"answers": [one] * len(request["searches"])}).encode())

  with faulty_service(answer) as (url, *_), client(url, recording=Recording(tmp_path), batch=64) as one:
    ask(one, *"abcde")
  assert len(Recording(tmp_path)) == 5


def test_a_cache_that_cannot_be_written_stops_the_run_but_loses_no_answer(tmp_path, monkeypatch):
  recording = Recording(tmp_path)
  def full(*_):
    raise OSError(28, "No space left on device")
  monkeypatch.setattr(recording, "add", full)
  with faulty_service(lambda *_: GOOD) as (url, seen, _), client(url, recording=recording) as one:
    assert ask(one, "q") == [(A,)] and "No space left on device" in one.stopped
    assert reason(*ask(one, "r")) == one.stopped and len(seen) == 1


def test_a_fault_of_the_program_is_handed_on_and_nothing_is_stuck(monkeypatch):
  with faulty_service(lambda *_: GOOD) as (url, *_), client(url) as one:
    monkeypatch.setattr(one.provider, "read", lambda *_: 1 / 0)
    assert reason(*ask(one, "q")) == "ZeroDivisionError"
    time.sleep(0.05)
    assert isinstance(one.broken, ZeroDivisionError)
