"""Facts and chains on a hand-made web: what identifies what, every chain, every reason against one."""

import collections
import random

import pytest

from searchjax.data.synthesis.chains import ChainFilter, ChainSource, take_turns
from searchjax.data.synthesis.facts import Fact, FactBase, Step, Thing
from searchjax.search.atlas import fold


def link(subject, relation, object_, page=None):
  return Fact(
    page or subject, f"{subject} {relation} {object_}.", subject, relation, object_, None,
    (f"the thing whose {relation} is {{x}}",), (f"the {relation} of {{x}}",),
  )


def value(subject, relation, literal):
  return link(subject, relation, None)._replace(
    literal=literal, sentence=f"{subject} {relation} {literal}."
  )


# c1 is the capital of k1, c2 lies there too; a1 serves c1.
FACTS = (
  link("k1", "capital", "c1"), link("c1", "country", "k1"), link("c2", "country", "k1"),
  link("a1", "city", "c1"), value("k1", "code", "+7"), value("c1", "size", "11"),
  value("c2", "size", "11"), value("a1", "height", "13"),
)
KINDS = {"k": "country", "c": "city", "a": "airport"}


def base_of(facts=FACTS, names=None, splits=None):
  ids = sorted({end for f in facts for end in (f.subject, f.object) if end})
  things = [
    Thing(i, (names or {}).get(i, i.upper()), KINDS[i[0]], (splits or {}).get(i, "shared"))
    for i in ids
  ]
  mentions = collections.defaultdict(list)
  for fact in facts:
    if fact.object:
      mentions[fact.page].append(frozenset({fact.subject, fact.object}))
  return FactBase(things, facts, mentions)


def chains(base, direction, hops, starts=None):
  source = ChainSource(base, direction, starts or list(base.things))
  return list(source.in_turn(hops, seed=3))


def test_what_identifies_what():
  base = base_of()
  capital, country, country2, city, code, size, *_ = FACTS
  assert base.identifies_subject(capital) and base.identifies_end(capital)
  assert not base.identifies_subject(country) and base.identifies_end(country2)  # two cities there
  assert base.identifies_subject(code) and not base.identifies_subject(size)  # both have 11
  twice = base_of((*FACTS, link("k1", "capital", "c2")))
  assert not twice.identifies_end(capital)  # two right answers
  assert base.identifies_subject(city)


def test_a_link_to_no_page_is_an_object_all_the_same():
  base = FactBase([Thing("c2", "C2", "city"), Thing("k1", "K1", "country")], [FACTS[2]], {},
                  [("c2", "country", "k9")])
  assert not base.identifies_end(FACTS[2]) and base_of().identifies_end(FACTS[2])


def test_a_seed_needs_a_fact_that_two_pages_state():
  base = base_of()
  assert base.seeds(2) == ["c1", "k1"]  # the capital's page says the country, and the other way
  assert base.pages_confirming(FACTS[0]) == {"k1", "c1"}
  assert base.pages_confirming(FACTS[3]) == {"a1"} and base.pages_confirming(FACTS[4]) == {"k1"}
  assert base.seeds(1) == ["a1", "c1", "c2", "k1"] and base.seeds(3) == []


def test_a_fact_of_an_unknown_entity_is_refused():
  with pytest.raises(ValueError, match="unknown entity 'zz'"):
    FactBase([Thing("k1", "K1", "country")], [link("k1", "capital", "zz")], {})


def test_every_chain_from_the_seed_ends_in_a_literal():
  found = {(c.path, c.labels) for c in chains(base_of(), "seed", (2, 3))}
  assert found == {
    (("c1", "k1", "+7"), ("^capital", "code")),
    (("k1", "c1", "a1", "13"), ("capital", "^city", "height")),
    (("k1", "c1", "a1", "13"), ("^country", "^city", "height")),
    (("a1", "c1", "k1", "+7"), ("city", "^capital", "code")),
    (("c1", "a1", "13"), ("^city", "height")),
  }


def test_every_chain_forward_starts_at_a_name():
  found = {(c.path, c.labels) for c in chains(base_of(), "forward", (2,), ["a1"])}
  assert found == {
    (("a1", "c1", "k1"), ("city", "country")), (("a1", "c1", "k1"), ("city", "^capital")),
    (("a1", "c1", "11"), ("city", "size")),
  }
  (chain,) = [c for c in chains(base_of(), "forward", (2,), ["a1"]) if c.labels[1] == "size"]
  assert chain.nodes == ("11", "c1", "a1")  # from the answer to what is said
  assert chain.steps[0] == Step(FACTS[5], False)


def test_no_entity_and_no_relation_comes_twice():
  facts = [link(f"c{i}", r, f"c{(i + 1) % 5}") for i in range(5) for r in ("north", "east")]
  for chain in chains(base_of([*facts, value("c0", "size", "17")]), "seed", (2, 3, 4)):
    assert len(set(chain.nodes)) == len(chain.nodes)
    relations = [label.lstrip("^") for label in chain.labels]
    assert len(set(relations)) == len(relations)


def test_patterns_take_turns():
  facts = [*FACTS] + [link(f"k{i}", "capital", f"c{i}") for i in range(3, 40)]
  facts += [value(f"k{i}", "code", f"+{i}0") for i in range(3, 40)]
  first = chains(base_of(facts), "seed", (2, 3))[:6]
  assert [len(c.steps) for c in first][:4] == [2, 3, 2, 3]
  assert len({c.pattern for c in first}) >= 5  # 38 capitals do not swamp the rest
  assert list(take_turns([iter("abc"), iter(""), iter("xy")])) == ["a", "x", "b", "y", "c"]


def test_equal_seeds_give_equal_chains_in_equal_order():
  base = base_of([*FACTS, *(value(f"k{i}", "code", f"+{i}0") for i in range(3, 9))])
  assert chains(base, "seed", (2, 3, 4)) == chains(base, "seed", (2, 3, 4))
  pattern = ("city", "^capital", "country", "code", "literal")
  assert len(list(ChainSource(base, "seed", ["c1"]).chains(pattern, random.Random(0)))) == 1


def reasons(base, direction="seed", split=""):
  checks = ChainFilter(base, fold)
  return collections.Counter(
    checks.why_dropped(c, split) for c in chains(base, direction, (2, 3, 4))
  )


def test_reasons_against_a_chain():
  assert set(reasons(base_of())) == {None}
  away = base_of((*FACTS, link("a1", "hub", "k1")))  # the airport's own page names the country
  assert reasons(away)["a single statement gives the answer away"] == 5
  forward = reasons(away, "forward")
  assert forward["a single statement gives the answer away"] > 0
  literal = base_of((*FACTS, value("a1", "prefix", "+7")))
  assert reasons(literal)["a single statement gives the answer away"] == 3
  same = base_of(names={"k1": "Luxembourg", "c1": "luxembourg"})
  assert reasons(same)["two entities of one name"] == 4
  assert reasons(base_of(names={"a1": "C2"}), "forward")["ambiguous start"] > 0


def test_splits_do_not_mix():
  splits = {"k1": "rl", "c1": "rl", "c2": "rl", "a1": "sft"}
  found = reasons(base_of(splits=splits))
  assert found == {None: 1, "entities of several splits": 4}
  assert reasons(base_of(splits=splits), split="sft")["another split"] == 1
  checks = ChainFilter(base_of(splits=splits), fold)
  assert checks.split_of(chains(base_of(splits=splits), "seed", (2,), ["c1"])[0]) in ("rl", "sft")


def test_an_unknown_direction():
  with pytest.raises(ValueError, match="expected seed or forward, got 'back'"):
    ChainSource(base_of(), "back", [])


def test_chains_of_chosen_relations_alone():
  base = base_of()
  of = lambda *relations: {
    c.labels for c in ChainSource(base, "forward", ["a1"], relations).in_turn((2,), seed=3)
  }
  assert of("city", "country") == {("city", "country")}  # not back over the capital
  assert of("city", "^capital", "size") == {("city", "^capital"), ("city", "size")}
  with pytest.raises(ValueError, match="no fact has mayor; known: capital, city, code"):
    of("city", "^mayor")
