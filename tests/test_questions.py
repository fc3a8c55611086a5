"""Forward questions: true, answerable at every hop, of one split, and fresh in every world."""

import collections

import pytest

from searchjax.data.questions import (
  PATTERNS, PHRASES, QUERY_WORDS, START, forward_questions, question_elsewhere)
from searchjax.search.atlas import TEMPLATES, Atlas, fold
from searchjax.search.server import SearchService
from searchjax.search.worlds import World
from small_web import names, small_atlas


@pytest.fixture(scope="module")
def atlas() -> Atlas:
  return small_atlas()


@pytest.fixture(scope="module")
def service(atlas) -> SearchService:
  return SearchService(atlas)


@pytest.mark.parametrize("split", ["sft", "rl", "heldout"])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_perfect_agent_finds_every_step_first(atlas, service, split, hops):
  questions = forward_questions(atlas, split, hops=hops, count=31, seed=2)
  assert len(questions) > 10
  for question in questions:
    assert question.hops == len(question.steps) == len(question.relations) == hops
    for query, found in question.steps:
      (result,) = service.search(query, 1, question.world)
      assert found in result["snippet"], (question, result)
    assert question.steps[-1][1] == question.answer and question.answer in question.statement
    assert result["snippet"] == question.statement


def test_the_path_is_true_and_its_entities_are_distinct(atlas):
  for hops in (1, 2, 3):
    for question in forward_questions(atlas, "heldout", hops=hops, count=53, seed=0):
      for subject, relation, tail in zip(question.path, question.relations, question.path[1:]):
        (statement,) = atlas.statements(subject, relation)
        assert tail in (statement.object, statement.literal)
      assert len(set(question.path)) == hops + 1
      assert question.answer == atlas.tail_name(statement)


def test_splits_do_not_mix(atlas):
  for split in ("sft", "rl", "heldout"):
    for question in forward_questions(atlas, split, hops=2, count=53, seed=0, world="real"):
      entities = [step for step in question.path if step in atlas.entities]
      assert {atlas.split_of(e) for e in entities} <= {split, "shared"}
      assert atlas.split_of(question.path[0]) == split


def test_held_out_names_never_reappear_in_fresh_worlds(atlas):
  held_out = names(atlas, "heldout")
  for question in forward_questions(atlas, "sft", hops=3, count=53, seed=0):
    said = " ".join((question.text, question.statement, *(q for q, _ in question.steps)))
    assert all(f" {name} " not in f" {fold(said)} " for name in held_out)


def test_worlds_of_questions(atlas):
  held_out = forward_questions(atlas, "heldout", hops=2, count=20, seed=0)
  assert {question.world for question in held_out} == {None}
  fresh = forward_questions(atlas, "rl", hops=2, count=101, seed=0)
  assert len(fresh) == 101  # without end: the chains come again under other names
  assert len({question.world for question in fresh}) == 101
  assert len({question.steps[0] for question in fresh}) > 95


def test_equal_seeds_give_equal_questions(atlas):
  first, again, other = (forward_questions(atlas, "sft", hops=2, count=29, seed=seed)
                         for seed in (5, 5, 6))
  assert first == again and not {q.id for q in first} & {q.id for q in other}
  assert len({question.id for question in first}) == 29


def test_patterns_are_balanced(atlas):
  questions = forward_questions(atlas, "sft", hops=2, count=60, seed=0)
  counts = collections.Counter(question.relations for question in questions)
  possible = [pattern for pattern in PATTERNS[2] if counts[pattern[1:]]]
  assert len(possible) >= 5 and max(counts.values()) - min(counts.values()) <= 1


def test_countries_take_turns(atlas):
  questions = [q for q in forward_questions(atlas, "heldout", hops=2, count=60, seed=0)
               if q.relations == ("country", "continent")]
  first = [atlas.entities[q.path[0]].country for q in questions[:2]]
  assert len(set(first)) == 2


def test_the_wording_names_the_start_only(atlas):
  for question in forward_questions(atlas, "sft", hops=3, count=31, seed=0):
    world = World(atlas, question.world)
    assert world.name(question.path[0]) in question.text
    assert all(found not in question.text for _, found in question.steps)
    assert len(question.text) < 160


def test_refused_chains_are_counted(atlas):
  dropped = collections.Counter()
  forward_questions(atlas, "heldout", hops=2, count=10_000, seed=0, dropped=dropped,
                    max_name_chars=7)
  assert dropped["long name"] > 0
  assert set(dropped) <= {"long name", "name beyond ASCII", "ambiguous name", "not found at rank 1",
                          "not found under renaming", "two entities of one name"}


def test_ambiguous_names_ask_nothing(atlas):
  ambiguous = atlas.ambiguous_names()
  for question in forward_questions(atlas, "heldout", hops=2, count=500, seed=0):
    assert all(fold(atlas.entities[s].name) not in ambiguous for s in question.path[:-1])


def test_a_question_can_be_asked_in_another_world(atlas, service):
  import random
  question = forward_questions(atlas, "sft", hops=2, count=1, seed=0)[0]
  moved = question_elsewhere(atlas, question, World(atlas, 23), random.Random(0))
  assert moved.path == question.path and moved.world == 23 and moved.answer != question.answer
  for query, found in moved.steps:
    assert found in service.search(query, 1, 23)[0]["snippet"]


@pytest.mark.parametrize("arguments, message", [
  (dict(split="test", hops=1), "expected split"), (dict(split="rl", hops=4), "1, 2 or 3 hops"),
  (dict(split="rl", hops=1, world="new"), "real or fresh")])
def test_bad_input(atlas, arguments, message):
  with pytest.raises(ValueError, match=message):
    forward_questions(atlas, count=1, seed=0, **arguments)


def test_every_relation_can_be_asked_for():
  used = {relation for patterns in PATTERNS.values() for p in patterns for relation in p[1:]}
  assert used <= set(QUERY_WORDS) == set(PHRASES)
  for relation, words in QUERY_WORDS.items():
    assert set(words.split()) <= set(fold(TEMPLATES[relation].format(s="", o="")).split())
    assert all(phrase.count("{x}") == 1 for phrase in PHRASES[relation])
  assert all(phrase.count("{x}") == 1 for phrase in START.values())
