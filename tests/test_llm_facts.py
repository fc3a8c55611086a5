"""Facts read by a language model: what is kept, what is refused and counted, what a page confirms."""

import collections
import json

import pytest

from loopback import served
from searchjax.data.synthesis.endpoint import Endpoint, EndpointFailure
from searchjax.data.synthesis.llm_facts import (
  LanguageModelExtractor, Source, extraction_prompt, read_reply, why_refused)
from small_synthesis import FACTS, LAUNCHED, PAGES, WENT, WRITTEN, Reader

SOURCES = [Source(page["id"], page["title"], page["text"]) for page in PAGES]


def extract(reader, **settings):
  with served(reader.app()) as url, Endpoint(url, model="m", backoff_s=0.01, retries=2) as endpoint:
    extractor = LanguageModelExtractor(SOURCES, endpoint, **settings)
    return extractor.extract(), extractor.failures


def test_facts_that_hold_are_kept_and_the_others_counted():
  base, failures = extract(Reader())
  assert [f.sentence for f in base.facts] == [
    row["evidence"] for row in (WRITTEN, WENT, LAUNCHED)
  ]
  assert failures == {
    "evidence that the page does not hold": 1, "phrase that says a name": 1,
    "fact without all its fields": 1,
  }
  assert base.things["rob fitzpatrick"].kind == "person"
  assert base.seeds(2) == ["the mom test", "rob fitzpatrick", "y combinator"]


@pytest.mark.parametrize("change, reason", [
  ({"phrase": "the book"}, "phrase that is no noun phrase with one {x}"),
  ({"inverse": "{x} writes"}, "phrase that is no noun phrase with one {x}"),
  ({"phrase": "the book by {x} and {x}"}, "phrase that is no noun phrase with one {x}"),
  ({"phrase": "the book by Rob Fitzpatrick, {x}"}, "phrase that says a name"),
  ({"phrase": "the mom test of {x}"}, "phrase that says a name"),
  ({"phrase": "the book about moms by {x}"}, None),
  ({"inverse": "the Rob Fitzpatrick of {x}"}, "phrase that says a name"),
  ({"object": "Ron Fitzpatrick"}, "name that the page does not hold"),
  ({"object": "The Mom Test"}, "fact of one entity alone"),
  ({"relation": "written by"}, "relation or kind that is no plain word"),
  ({"subject_kind": "Book!"}, "relation or kind that is no plain word"),
  ({"evidence": ""}, "fact without all its fields"),
  ({"object_kind": 3}, "fact without all its fields"),
  ({"object": "…"}, "fact without all its fields"),
])
def test_what_is_wrong_with_a_fact(change, reason):
  assert why_refused(WRITTEN | change, SOURCES[0]) == reason


def test_replies_that_are_no_facts_are_counted():
  failures = collections.Counter()
  for reply in ("I cannot.", "{}", '{"facts": 3}', '{"facts": [', "[1]", "}{", "[" * 10_000):
    assert read_reply(reply, SOURCES[0], failures) == []
  assert failures == {"reply without a list of facts": 7}
  good = json.dumps({"facts": [WRITTEN]})
  assert read_reply(f"Sure!\n```json\n{good}\n```", SOURCES[0], failures) == [WRITTEN]
  # What small models write: thoughts with braces in front, a second object or chatter behind.
  for reply in ("{x} is a place. " + good, good + "\n" + good, good + "\nI hope {this} helps."):
    assert read_reply(reply, SOURCES[0], failures) == [WRITTEN]
  assert read_reply('{"a":' * 5000 + good, SOURCES[0], failures) == []


def test_a_reply_that_was_cut_off_is_counted_and_asked_for_again_in_the_next_run():
  reader, kept = Reader(cut=["The Mom Test"]), {}
  base, failures = extract(reader, keep=kept.__setitem__)
  assert failures["page without a reply: a reply that the endpoint's limit of tokens cut off"] == 1
  assert len(kept) == len(FACTS) - 1 and len(base.facts) == 2
  reader.cut = ()
  base, failures = extract(reader, replies=kept)
  assert len(base.facts) == 3 and reader.asked["The Mom Test"] == 2


def test_the_same_fact_of_two_pages_is_one():
  raw = {"Rob Fitzpatrick": json.dumps({"facts": [WRITTEN | {
    "evidence": "Rob Fitzpatrick wrote The Mom Test."}]})}
  base, failures = extract(Reader(raw=raw))
  assert len([f for f in base.facts if f.relation == "written_by"]) == 1
  assert failures["fact that an earlier page states"] == 1


def test_a_page_is_asked_about_once_over_restarts():
  reader, kept = Reader(), {}
  first, _ = extract(reader, keep=kept.__setitem__)
  again, _ = extract(reader, replies=kept)
  assert set(reader.asked.values()) == {1} and len(kept) == len(FACTS)
  assert first.facts == again.facts


def test_the_prompt_holds_the_page_as_it_is():
  prompt = extraction_prompt(Source("p", "A $title", "costs $5 {x} ${y}"))
  assert "Title: A $title" in prompt and prompt.rstrip().endswith("costs $5 {x} ${y}")


def test_an_endpoint_that_fails_for_a_while_is_asked_again():
  reader = Reader()
  reader.statuses = [500, 429]
  base, failures = extract(reader, batch=1)
  assert len(base.facts) == 3 and not any("reply" in reason for reason in failures)


def test_a_page_that_cannot_be_read_is_counted_and_a_bad_key_ends_the_run():
  reader = Reader()
  reader.statuses = [400]
  base, failures = extract(reader, batch=1)
  assert failures["page without a reply: HTTP 400"] == 1 and len(base.facts) == 2
  reader.statuses = [401]
  with pytest.raises(ValueError, match="the key was refused"):
    extract(reader, batch=1)


def test_endpoint_failures_are_told():
  with pytest.raises(ValueError, match="must be http"):
    Endpoint("ftp://x", model="m")
  with Endpoint("http://127.0.0.1:9", model="m", retries=1, backoff_s=0.01) as endpoint:
    with pytest.raises(EndpointFailure, match="no reply"):
      endpoint.ask("hello")
    (failure,) = endpoint.ask_all(["hello"])
    assert failure.again and not failure.lasting
