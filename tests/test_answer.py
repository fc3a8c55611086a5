"""The answer matcher: cases of every kind, and what must not change a verdict."""

import json
import pathlib
import re

import pytest
from hypothesis import given, settings, strategies as st

from searchjax.reward.answer import Verdict, judge_answer

CASES = [json.loads(line) for line in
         (pathlib.Path(__file__).parent / "vectors" / "answers.jsonl").read_text().splitlines()]
C, I, N = Verdict.CORRECT, Verdict.INCORRECT, Verdict.NOT_ATTEMPTED

NOISE = {
    "upper": str.upper, "lower": str.lower, "title": str.title,
    "full stop": lambda s: s + ".", "shouting": lambda s: s + "!!", "dots": lambda s: s + "...",
    "citation": lambda s: s + " [3]", "citations": lambda s: s + " [1][2].",
    "citation first": lambda s: "[1] " + s, "typed citation": lambda s: s + " [web:3]",
    "CJK citation": lambda s: s + "【3†source】",
    "citation inside": lambda s: re.sub(" ", " [2] ", s, count=1),
    "bold": lambda s: f"**{s}**", "quotes": lambda s: f'"{s}"', "blanks": lambda s: f"  {s} \n"}


def judge(case, prediction=None):
  prediction = case["prediction"] if prediction is None else prediction
  return judge_answer(prediction, case["gold"], case["question"]).value


def shared_cases(repository):
  path = repository.parent / "shared" / "data" / "matcher_cases.jsonl"
  if not path.is_file():
    pytest.skip("no ../shared/data/matcher_cases.jsonl beside the repository")
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", sorted({case["kind"] for case in CASES}))
def test_cases_of_each_kind(kind):
  got = [(case, judge(case)) for case in CASES if case["kind"] == kind]
  assert not [(case, verdict) for case, verdict in got if verdict != case["verdict"]]


def test_shared_cases(repository):
  cases = shared_cases(repository)
  got = {case["id"]: judge(case) for case in cases}
  assert not [c["id"] for c in cases if got[c["id"]] == "CORRECT" != c["verdict"]]
  missed = [c["id"] for c in cases if got[c["id"]] != c["verdict"]]
  assert len(cases) - len(missed) >= 29, missed


def test_shared_cases_under_noise(repository):
  for case in shared_cases(repository):
    verdict = judge(case)
    for name, noise in NOISE.items():
      assert judge(case, noise(case["prediction"])) == verdict, (case["id"], name)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(CASES), st.lists(st.sampled_from(sorted(NOISE)), max_size=2))
def test_case_punctuation_and_citations_change_no_verdict(case, noises):
  prediction = case["prediction"]
  for name in noises:
    prediction = NOISE[name](prediction)
  assert judge(case, prediction) == case["verdict"]


def test_known_misses_are_misses_not_false_positives():
  # Right answers that the rules do not see; they need knowledge, or a judge that reads.
  race = judge_answer("the Epsom Derby", "English horse race Derby", "Which race?")
  cup = judge_answer("No, there is none in 2026.", "There won't be a FIFA World Cup in 2026.",
                     "Will a World Cup be held in 2026?")
  assert race == I and cup == I


def test_names_that_share_a_word_are_told_apart():
  names = ["Guinea", "Guinea-Bissau", "Equatorial Guinea", "Papua New Guinea", "Congo", "Niger",
           "Democratic Republic of the Congo", "Republic of the Congo", "Nigeria", "Sudan",
           "South Sudan", "Dominica", "Dominican Republic", "Mali", "Malia", "Santana", "York",
           "Bosnia and Herzegovina", "Trinidad and Tobago", "Tobago", "New York", "El Beni",
           "Santana de Parnaíba", "North Korea", "South Korea", "Samoa", "American Samoa",
           "Ireland", "Northern Ireland", "San José", "San José de Mayo", "Victoria",
           "Victoria Falls", "CDG", "CDB"]
  for name in names:
    for other in names:
      verdict = judge_answer(f"It lies in {other}.", name, "Where does it lie?")
      assert (verdict == C) == (name == other), (name, other)


def test_long_answers_must_open_or_close_with_it():
  filler = "The article goes on about the weather, the harvest and the railways of that year. " * 8
  ask = lambda text: judge_answer(text, "Paris", "Which city?")
  assert ask(filler + "Someone mentions Paris here. " + filler) == I
  assert ask("It is Paris. " + filler) == C
  assert ask(filler + "So it is Paris.") == C
  assert ask(", ".join(["Rome", "Oslo", "Paris", "Bern", "Lima"] * 4)) == I


@pytest.mark.parametrize("gold", [
    ["UK", "Great Britain"], [["UK"], ["Great Britain"]], "UK<|answer_split|>Great Britain",
    "UK (also known as 'Great Britain')"], ids=str)
def test_aliases_in_every_form(gold):
  assert judge_answer("It was Great Britain.", gold, "Which country?") == C
  assert judge_answer("It was Brittany.", gold, "Which country?") == I


@pytest.mark.parametrize("gold", ["", "  ", [], [[""]]], ids=str)
def test_an_empty_gold_is_an_error(gold):
  with pytest.raises(ValueError, match="gold: expected at least one answer that is not empty"):
    judge_answer("Paris", gold, "")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.text(min_size=1, max_size=30), st.text(max_size=30))
def test_any_text_gets_a_verdict(prediction, gold, question):
  try:
    assert judge_answer(prediction, gold, question) in Verdict
  except ValueError as error:
    assert "gold: expected" in str(error)
