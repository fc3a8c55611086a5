"""Rubrics written by a model: the precedence, the three requirements, and what is refused."""

import collections
import json

import pytest

from searchjax.data.rubric_writer import read_rubrics, rubric_prompt, write_rubrics
from searchjax.data.rubrics import JUDGED, Rubric
from searchjax.data.synthesis.endpoint import EndpointFailure
from searchjax.reward.rubric import check_rubrics

QUERY = ("She will share u man power planning. We have to arrange lodging & boarding. "
         "Plz correct swntence.")
REFERENCE = "She will share the manpower planning with you. We have to arrange lodging and boarding."


def holds(answer, rubric):
  return check_rubrics(answer, [rubric])[0]


def row(kind, source="content", **arguments):
  return {"source": source, "kind": kind, "arguments": arguments}


GOOD = [
  row("no_citations", "constraint"), row("contains", text="lodging"), row("contains", text="boarding"),
  row("language", "constraint", code="en"), row("contains", text="manpower"),
  row("excludes", "requirement", text="u"), row("excludes", text="Plz"), row("excludes", text="&"),
]


def reply(rubrics, reference=REFERENCE):
  return json.dumps({"reference": reference, "rubrics": rubrics})


def read(text):
  failures = collections.Counter()
  return read_rubrics(text, failures, holds), failures


def test_the_specifications_example():
  (reference, rubrics), failures = read(f"```json\n{reply(GOOD)}\n```")
  assert reference == REFERENCE and not failures and len(rubrics) == len(GOOD)
  assert rubrics[:3] == (Rubric("excludes", {"text": "u"}), Rubric("no_citations", {}),
                         Rubric("language", {"code": "en"}))
  assert all(check_rubrics(REFERENCE, rubrics)) and not all(check_rubrics(QUERY, rubrics))
  assert not all(check_rubrics(REFERENCE + " [doc:1]", rubrics))
  assert not all(check_rubrics(REFERENCE.replace("manpower", "man power"), rubrics))


@pytest.mark.parametrize("bad, reason", [
  (row("contains", text="dinner"), "not necessary, the reference answer fails it"),
  (row(JUDGED, text="The answer is clear and well-written."), "not objective"),
  (row(JUDGED, text="The answer names the planner and mentions the lodging."), "not atomic"),
  (row("tone", text="warm"), "unknown kind"), (row(["contains"], text="x"), "unknown kind"),
  (row("contains", "habit", text="lodging"), "no known source"), ("lodging", "no known source"),
  (row("contains", words="lodging"), "arguments of another form"),
  (row("contains"), "arguments of another form"), (row("json", least=1), "arguments of another form"),
  (row("words", least="two"), "arguments of another type"),
  (row("words", least=True), "arguments of another type"),
])
def test_what_is_not_atomic_objective_necessary_or_of_the_form_is_refused(bad, reason):
  (_, rubrics), failures = read(reply([*GOOD, bad]))
  assert len(rubrics) == len(GOOD)
  assert failures == {f"rubric: {reason}": 1}


def test_a_later_source_does_not_contradict_an_earlier_one():
  rubrics = [row("language", code="fr"), row("language", "requirement", code="de")]
  (_, kept), failures = read_rubrics(reply(rubrics), f := collections.Counter(), lambda a, r: True), f
  assert kept == (Rubric("language", {"code": "de"}),)
  assert failures == {"rubric: contradicts one of higher precedence": 1}


@pytest.mark.parametrize("text", [
  "", "no JSON", "[]", "{}", '{"reference": "", "rubrics": []}', '{"reference": "x", "rubrics": {}}'])
def test_other_replies_are_refused_whole(text):
  got, failures = read(text)
  assert got is None and failures == {"reply: not the JSON object that was asked for": 1}


def test_what_models_write_around_the_object_is_passed_over():
  (_, plain), _ = read(reply(GOOD))
  for text in ("Here {it} is:\n```json\n" + reply(GOOD) + "\n```\nDone.", reply(GOOD) + "\n{}"):
    (_, kept), failures = read(text)
    assert kept == plain and not failures


def test_rubrics_of_many_conversations_and_their_failures():
  turns = [{"role": "user", "content": QUERY + "</conversation>"}]
  prompt = rubric_prompt(turns)
  assert prompt.count("</conversation>") == 1 and "[user] She will" in prompt
  assert prompt.index('"requirement"') < prompt.index('"constraint"') < prompt.index('"content"')
  assert all(word in prompt for word in ("atomic", "objective", "necessary", "* words: least, most"))
  replies = [reply(GOOD), EndpointFailure("HTTP 503"), reply([])]
  failures = collections.Counter()
  named = [(name, turns) for name in "abc"]
  (chat,) = write_rubrics(named, lambda prompts: replies[: len(prompts)], failures, holds)
  assert chat.id == "a" and chat.reference == REFERENCE and len(chat.rubrics) == len(GOOD)
  assert failures == {"endpoint: HTTP 503": 1, "reply: no rubric is left": 1}
