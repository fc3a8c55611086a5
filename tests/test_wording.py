"""Nested questions, the names they must not say, and that solvers read them back."""

import random

from searchjax.data.synthesis.atlas_facts import WORDS
from searchjax.data.synthesis.solvers import Grammar
from searchjax.data.synthesis.wording import FORMATS, NameFinder, word_question
from searchjax.search.atlas import fold
from test_chains import FACTS, base_of, chains


def words_of(direction, path, seed=0):
  base = base_of()
  (chain,) = [c for c in chains(base, direction, (2, 3)) if c.path == path][:1]
  names = {t.id: t.name for t in base.things.values()}
  kinds = {t.id: t.kind for t in base.things.values()}
  return word_question(chain, names, kinds, random.Random(seed))


def test_a_question_nests_from_the_answer_to_the_literal():
  text = words_of("seed", ("a1", "c1", "k1", "+7"))
  assert "IATA code of the thing whose city is the capital of the thing whose code is +7" in text
  assert "the name of the capital of the thing whose code is +7" in words_of(
    "seed", ("c1", "k1", "+7")
  )


def test_a_forward_question_names_its_start():
  text = words_of("forward", ("a1", "c1", "11"))
  assert "the size of the city of airport A1" in text


def test_a_relative_clause_becomes_the_question():
  fact = FACTS[4]._replace(names_subject=("the country that dials {x}",))
  base = base_of((FACTS[0]._replace(names_object=("the town that rules {x}",)), fact))
  (chain,) = chains(base, "seed", (2,))
  text = word_question(chain, {}, {"c1": "city"}, random.Random(0))
  assert text == "Which town rules the country that dials +7?"


def test_names_are_found_whole_and_in_any_case():
  finder = NameFinder(["Of", "São Paulo", "Lima", "THE"], ["the capital of {x}"], fold)
  assert finder.exempt == {"of", "the"}
  assert finder.found("the capital of sao paulo") == "sao paulo"
  assert finder.found("the capital of Limassol, America/Lima") == "lima"
  assert finder.found("the capital of 1,171") is None
  assert finder.says("the capital of", "Of") and not finder.says("Limassol", "Lima")


def test_solvers_read_every_phrase_of_the_atlas_back():
  grammar = Grammar(WORDS)
  for (kind, relation), sides in WORDS.items():
    for phrases, outward in zip(sides, (True, False), strict=True):
      for phrase in phrases:
        assert phrase.startswith("the ") and phrase.endswith(" {x}")
        nested, said = grammar.read(f"What is {phrase.replace('{x}', '+7')}?")
        assert said == "+7" and (kind, relation, outward) in nested[0]


def test_formats_leave_the_question_as_it_is():
  assert len(FORMATS) >= 5 and all(text.endswith(".") for text in FORMATS.values())
