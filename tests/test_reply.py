"""A reply is an answer or a classified failure; Retry-After in both forms."""

import json
import time

import pytest

from searchjax.search.reply import (
  Reply, Result, ServiceFailure, amount_of, make_result, read_json, read_results, refusal, retry_after,
  rows_of, without_markup,
)

DATE = 1792567680.0  # Wed, 21 Oct 2026 07:28:00 GMT


def reply(status=200, body=b"{}", received=DATE - 90.0, **headers):
  return Reply(status, {k.replace("_", "-"): v for k, v in headers.items()}, body, received)


@pytest.mark.parametrize("text, seconds", [
  ("1", 1.0), ("120", 120.0), ("0.5", 0.5), ("86400", 86400.0), ("0", 0.0),
  ("Wed, 21 Oct 2026 07:28:00 GMT", 90.0), ("Wed, 21 Oct 2020 07:28:00 GMT", 0.0),
  ("-1", None), ("banana", None), ("", None), ("nan", None), ("inf", None), ("1e999", None),
  ("Wed, 41 Oct 2026 07:28:00 GMT", None)])
def test_H2_retry_after_in_both_forms(text, seconds):
  assert retry_after(reply(429, retry_after=text)) == seconds


def test_H2_dates_are_utc_in_all_three_forms_wherever_this_machine_is(monkeypatch):
  monkeypatch.setenv("TZ", "Asia/Tokyo")
  time.tzset()
  try:
    for date in ("Wed Oct 21 07:28:00 2026", "Wednesday, 21-Oct-26 07:28:00 GMT",
                 "Wed, 21 Oct 2026 07:28:00 -0000"):
      assert retry_after(reply(429, retry_after=date)) == 90.0
  finally:
    monkeypatch.undo()
    time.tzset()


def test_H2_a_date_counts_from_the_services_own_clock():
  early = "Wed, 21 Oct 2026 07:27:55 GMT"  # its clock is 85 seconds ahead of ours
  assert retry_after(reply(429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT", date=early)) == 5.0
  assert retry_after(reply(429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT", date="today")) == 90.0


def test_amounts_are_finite_numbers():
  assert [amount_of(v) for v in (2, 0.5, 0)] == [2.0, 0.5, 0.0]
  for value in (None, True, "2", -1, float("nan"), float("inf"), 10**400):
    assert amount_of(value) is None


def test_H2_every_form_of_the_collection_is_read_or_left(shared):
  path = shared / "data/search_api/retry_after_forms.json"
  if not path.exists():
    pytest.skip(f"no {path}")
  seconds = [retry_after(Reply(429, {k.lower(): v for k, v in form.items()}, b"", DATE))
             for form in json.loads(path.read_text())]
  assert seconds == [1.0, 120.0, 0.5, 0.0, None, None, None, 86400.0, None]


@pytest.mark.parametrize("status, again, lasting, lasting_without_key", [
  (204, False, False, False), (301, False, False, False), (400, False, False, False),
  (401, False, True, False), (402, False, True, False), (403, False, True, False),
  (404, False, False, False), (408, True, False, False), (422, False, False, False),
  (429, True, False, False), (500, True, False, False), (501, False, False, False),
  (502, True, False, False), (503, True, False, False), (504, True, False, False),
  (505, False, False, False), (520, True, False, False)])
def test_H3_what_a_status_means(status, again, lasting, lasting_without_key):
  failure = refusal(reply(status), keyed=True)
  assert (failure.again, failure.lasting) == (again, lasting)
  assert f"HTTP {status}" in failure.reason
  assert refusal(reply(status), keyed=False).lasting is lasting_without_key


@pytest.mark.parametrize("body", [b"", b"{oops", b"<html>", b"\xff", b'{"a": [1', b"[" * 100_000])
def test_what_is_no_json_is_none(body):
  assert read_json(reply(body=body)) is None


def test_more_results_than_asked_are_cut_and_other_shapes_are_failures():
  rows = [Result("a", "u", "s"), Result("b", "v", "t"), Result("c", "w", "r")]
  read = lambda found: read_results({}, lambda _: found, queries=1, limit=2)
  assert read([rows]) == [tuple(rows[:2])] and read([[]]) == [()]
  for wrong in ([], [rows, rows]):
    with pytest.raises(ServiceFailure, match="unreadable") as caught:
      read(wrong)
    assert caught.value.again and not caught.value.lasting
  for body in (None, [], 7, "text", {"results": {}}, {"results": [7]}):
    with pytest.raises(ServiceFailure, match="unreadable"):
      read_results(body, lambda b: [[make_result("t", r["url"], "") for r in rows_of(b["results"])]],
                   queries=1, limit=2)


def test_text_of_results():
  assert make_result(None, " https://a.example ", None) == Result("https://a.example",
                                                                   "https://a.example", "")
  assert make_result("a\n b", "u", "half \ud83d a pair").snippet == "half \ufffd a pair"
  with pytest.raises(TypeError, match="expected text, got int"):
    make_result("t", 7, "s")
  assert without_markup("<strong>Tea</strong> &amp; 3 < 5 <b>milk</b>") == "Tea & 3 < 5 milk"
  assert without_markup(None) is None
