"""Scripted experts: what they do at which rate, and that they see only what the tool shows."""

import pytest

from searchjax.data.demonstrations import (
  FAILURES, RATES, budget_statement, check_rates, make_demonstrations, style_demonstrations,
  summary)
from searchjax.data.pairs import UNKNOWN
from searchjax.data.questions import forward_questions
from searchjax.dist.settings import load_config
from searchjax.search.atlas import fold
from searchjax.search.server import start_server
from searchjax.search.tool import BUDGET_USED_UP, SearchTool
from small_web import names, small_atlas, small_corpus

PERFECT = dict.fromkeys(RATES, 0.0)


@pytest.fixture(scope="module")
def web():
  with start_server(small_corpus()) as url, SearchTool(url, max_results=1) as tool:
    yield small_atlas(), tool


@pytest.fixture(scope="module")
def questions(web):
  return [q for hops in (1, 2, 3)
          for q in forward_questions(web[0], "sft", hops=hops, count=101, seed=0)]


def queries(demonstration):
  return [call.arguments["query"] for m in demonstration.messages for call in m["calls"]]


def responses(demonstration):
  return [m["content"] for m in demonstration.messages if m["role"] == "tool"]


def answer(demonstration):
  assert demonstration.messages[-1]["role"] == "assistant"
  assert not demonstration.messages[-1]["calls"]
  return demonstration.messages[-1]["content"]


def test_a_perfect_expert_makes_the_needed_searches_and_states_the_answer(web, questions):
  atlas, tool = web
  made = make_demonstrations(questions, tool, atlas=atlas, seed=0, rates=PERFECT)
  for question, demonstration in zip(questions, made, strict=True):
    assert queries(demonstration) == [query for query, _ in question.steps]
    assert answer(demonstration) == question.statement
    assert demonstration.messages[0] == {"role": "user", "content": question.text, "calls": []}
    assert demonstration.hops == question.hops and demonstration.world == question.world
    assert demonstration.kind == "tool_use" and demonstration.question_id == question.id


def test_every_response_is_the_live_tools_own(web, questions):
  atlas, tool = web
  made = make_demonstrations(questions, tool, atlas=atlas, seed=0, rates=RATES)
  for demonstration in made[::7]:
    calls = [m["calls"][0] for m in demonstration.messages if m["calls"]]
    for call, text in zip(calls, responses(demonstration), strict=True):
      if not text.startswith(("Search failed", "Error")):
        assert text == tool.submit(call, demonstration.world).result().text


def test_equal_seeds_give_equal_conversations(web, questions):
  atlas, tool = web
  few = questions[::5]
  first, again, other = (make_demonstrations(few, tool, atlas=atlas, seed=s, rates=RATES) for s in (1, 1, 2))
  assert first == again != other


def test_rates_of_imperfection(web, questions):
  atlas, tool = web
  made = make_demonstrations(questions * 3, tool, atlas=atlas, seed=0,
                             rates=RATES | dict(budget=0.0, two_turn=0.0, multi_turn=0.0))
  pairs = list(zip(questions * 3, made, strict=True))
  extra = sum(len(queries(d)) - q.hops for q, d in pairs) / len(pairs)
  unknown = sum(answer(d) == UNKNOWN for _, d in pairs) / len(pairs)
  exact = sum(answer(d) == q.statement for q, d in pairs) / len(pairs)
  right = sum(q.answer in answer(d) for q, d in pairs) / len(pairs)
  assert 0.8 < extra < 1.6            # .6 verifying once, .36 twice, .15 a hop repeated, less skips
  assert 0.06 < unknown < 0.14
  assert 0.18 < exact < 0.42
  assert 0.6 < right < 0.85
  assert max(len(queries(d)) for d in made) <= 5
  counts = summary(made)
  assert counts["failed"] > 5 and counts["empty"] > 5 and counts["calls"] == sum(
    len(queries(d)) for d in made)


@pytest.mark.parametrize("rate, holds", [
  ("abstain", lambda q, d: answer(d) == UNKNOWN and len(queries(d)) == q.hops),
  ("verify", lambda q, d: len(queries(d)) == q.hops + 1 and answer(d) == q.statement),
  ("verify_again", lambda q, d: len(queries(d)) == q.hops and answer(d) == q.statement),
  ("repeat", lambda q, d: len(queries(d)) == min(5, 2 * q.hops) and answer(d) == q.statement),
  ("verbose", lambda q, d: q.statement in answer(d) and len(answer(d)) > len(q.statement)),
  ("bare", lambda q, d: answer(d) == q.answer),
  ("wrong", lambda q, d: q.answer not in answer(d)),
  ("empty", lambda q, d: "No results." in responses(d) and answer(d) == q.statement),
  ("skip", lambda q, d: q.hops == 1 or (
    len(queries(d)) == q.hops - 1 and q.steps[-2][1] in answer(d))),
  ("budget", lambda q, d: d.messages[0]["role"] == "system"),
])
def test_each_imperfection_alone(web, questions, rate, holds):
  atlas, tool = web
  few = questions[::6]
  for question, demonstration in zip(
      few, make_demonstrations(few, tool, atlas=atlas, seed=0, rates=PERFECT | {rate: 1.0}),
      strict=True):
    assert holds(question, demonstration), demonstration.messages


def test_a_failed_search_is_made_again(web, questions):
  atlas, tool = web
  made = make_demonstrations(questions[:31], tool, atlas=atlas, seed=0,
                             rates=PERFECT | {"failed": 1.0})
  for question, demonstration in zip(questions, made):
    asked, got = queries(demonstration), responses(demonstration)
    assert got[0] in {f"Search failed: {reason}." for reason in FAILURES}
    assert asked[0] == asked[1] == question.steps[0][0] and answer(demonstration) == (
      question.statement)


def test_B3_a_stated_budget_is_obeyed_or_the_call_is_refused(web, questions):
  atlas, tool = web
  rates = PERFECT | {"budget": 1.0, "overrun": 0.5}
  refused = unknown = 0
  for question, demonstration in zip(
      questions, make_demonstrations(questions, tool, atlas=atlas, seed=0, rates=rates)):
    first = demonstration.messages[0]
    budget = int(first["content"].split()[-2])
    assert first["content"] == budget_statement(budget) == (
      f"You may search at most {budget} times.")
    got = responses(demonstration)
    served = [text for text in got if text != f"Error: {BUDGET_USED_UP}."]
    assert len(served) == min(budget, question.hops)
    assert got[:len(served)] == served and len(got) - len(served) <= 1
    refused += len(got) - len(served)
    if budget < question.hops:
      assert answer(demonstration) == UNKNOWN
      unknown += 1
    else:
      assert answer(demonstration) == question.statement and len(got) == question.hops
  assert 0 < refused < unknown


def test_conversations_of_two_and_more_questions_stay_in_one_world(web, questions):
  atlas, tool = web
  made = make_demonstrations(questions, tool, atlas=atlas, seed=0,
                             rates=PERFECT | {"multi_turn": 1.0})
  turns = [sum(m["role"] == "user" for m in d.messages) for d in made]
  assert set(turns) == {1, 2, 3} and max(d.hops for d in made) == 3
  for demonstration in made:
    assert len(queries(demonstration)) == demonstration.hops
    assert all("No results" not in text for text in responses(demonstration))


def test_no_held_out_name_is_ever_shown(web, questions):
  atlas, tool = web
  held_out = names(atlas, "heldout")
  for demonstration in make_demonstrations(questions[::4], tool, atlas=atlas, seed=0, rates=RATES):
    said = " ".join([m["content"] for m in demonstration.messages] + queries(demonstration))
    assert all(f" {name} " not in f" {fold(said)} " for name in held_out)


def test_style_chats_need_no_search(web):
  made = style_demonstrations(0, 17, web[0].names_bank)
  assert len(made) == 17 and {d.kind for d in made} == {"preference"}
  for demonstration in made:
    assert [m["role"] for m in demonstration.messages] == ["user", "assistant"]
    assert queries(demonstration) == [] and answer(demonstration)


@pytest.mark.parametrize("name", ["tiny", "35b", "122b", "397b"])
def test_the_configs_have_every_rate_at_its_usual_value(repository, name):
  path = str(repository / f"configs/sft_{name}.py")
  assert dict(load_config(path).data.rates) == RATES
  rates = dict(load_config(path, ["--config.data.rates.verify=0.25"]).data.rates)
  assert rates == RATES | {"verify": 0.25} and RATES["verify"] == 0.6


@pytest.mark.parametrize("rates, message", [
  ({"verfy": 0.5}, "unknown rate 'verfy'"), ({"verify": 1.5}, r"in \[0, 1\], got 1.5"),
  ({"verify": 0.5}, "rate 'verify_again' is missing")])
def test_bad_rates(rates, message):
  with pytest.raises(ValueError, match=message):
    check_rates(rates)
