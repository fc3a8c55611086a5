"""A web that misbehaves on purpose: what is drawn, how often, and that it is the same each time."""

import collections
import email.utils
import json

import pytest

from searchjax.search.faults import KINDS, POISON, parse_faults

ROWS = [{"title": "A", "url": "u", "snippet": "Tea."}, {"title": "B", "url": "v", "snippet": "Milk."}]


def drawn(text, queries=2003, attempt=1):
  faults = parse_faults(text)
  return collections.Counter(faults.of(f"q{i}", attempt) for i in range(queries))


def test_no_faults():
  assert parse_faults("") is None and parse_faults(" , ") is None and parse_faults("seed=3") is None


def test_rates_hold():
  counts = drawn("429=0.1,hang=0.05,poison=0.3")
  assert set(counts) == {"429", "hang", "poison", None}
  for kind, rate in (("429", 0.1), ("hang", 0.05), ("poison", 0.3), (None, 0.55)):
    assert abs(counts[kind] / 2003 - rate) < 4 * (rate * (1 - rate) / 2003) ** 0.5
  assert drawn("any=1") .keys() == set(KINDS)
  assert abs(1 - drawn("any=0.2")[None] / 2003 - 0.2) < 0.04


def test_the_same_attempt_at_a_query_always_meets_the_same_fault():
  faults, again = parse_faults("any=0.5"), parse_faults("any=0.5,seed=0")
  order = [(f"q{i}", n) for i in range(97) for n in (1, 2, 3)]
  first = {pair: faults.of(*pair) for pair in order}
  assert first == {pair: again.of(*pair) for pair in reversed(order)}
  assert {first["q0", n] for n in (1, 2, 3)} != {first["q0", 1]} or first["q1", 1] != first["q1", 2]
  other = parse_faults("any=0.5,seed=7")
  assert first != {pair: other.of(*pair) for pair in order}


def test_a_pattern_chooses_queries():
  faults = parse_faults("500=1@capital of,429=0")
  assert faults.of("the Capital of Peru", 1) == "500" and faults.of("the capital", 1) is None


@pytest.mark.parametrize("text, message", [
  ("429", "got '429'"), ("429=2", "got '429=2'"), ("429=-0.1", "got"), ("404=0.1", "KIND one of 429, 500"),
  ("429=x", "got '429=x'"), ("429=0.1@(", "got"), ("429=0.1@", "got"), ("seed=x", "got"), ("429=nan", "got"),
  ("seed=-1", "got"), ("429=0.6,500=0.6", "sum to at most 1, got 1.2")])
def test_what_cannot_be_read_is_refused_in_one_line(text, message):
  with pytest.raises(ValueError, match="search faults: expected") as caught:
    parse_faults(text)
  assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_each_fault_sends():
  faults = parse_faults("any=1,seconds=3")
  sent = lambda kind, i=0: faults.reply(kind, f"q{i}", 1, ROWS, 1_000_000.0)
  results = lambda kind: json.loads(sent(kind).body)["results"]
  assert {sent("429").status, sent("500").status, sent("503").status} == {429, 500, 503}
  waits = {sent("429", i).retry_after for i in range(97)}
  assert waits == {"3", email.utils.formatdate(1_000_003.0, usegmt=True)}  # both forms
  assert sent("hang").wait_s == 300.0 and sent("drip").drip_s == 300.0 and results("drip") == ROWS
  assert sent("html").media == "text/html" and sent("html").status == 200
  with pytest.raises(json.JSONDecodeError):
    results("truncated")
  assert results("empty") == [] and results("duplicates") == ROWS[:1] * 2 and results("counts") == ROWS * 3
  poisoned = results("poison")
  assert [row["title"] for row in poisoned] == ["A", "B"]
  for row, clean in zip(poisoned, ROWS, strict=True):
    assert row["snippet"].removeprefix(f"{clean['snippet']} ") in POISON
  assert all(faults.reply(kind, "q", 1, [], 0.0) for kind in KINDS)
