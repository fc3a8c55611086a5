"""Renamed worlds: distinct, consistent, reversible, and free of real names."""

import re

import pytest

from searchjax.search.atlas import Atlas, Entity, Page, fold, plain
from searchjax.search.worlds import RESERVED, UNITS, World, name_banks
from small_web import packaged_atlas


@pytest.fixture(scope="module")
def atlas():
  return packaged_atlas()


def test_the_real_world_changes_nothing(atlas):
  world = World(atlas, None)
  sentence = atlas.pages["airport/KWE"].sentences[0]
  assert world.name("country/CN") == "China" and world.render(sentence) == plain(sentence)
  assert world.unrename("China currency") == "China currency"
  assert world.value("population", "1,009") == "1,009"


def test_names_are_distinct_and_never_real(atlas):
  real = {fold(entity.name) for entity in atlas.entities.values()}
  for seed in (7919,):
    world = World(atlas, seed)
    fresh = {fold(world.name(entity)) for entity in atlas.entities}
    assert len(fresh) == len(atlas.entities)
    assert real.isdisjoint(fresh)


def test_no_bank_name_holds_a_held_out_name_as_a_word(atlas):
  # Also recombined halves: "Bei" + "jing" must not come back.
  forbidden = {fold(e.name) for e in atlas.entities.values() if atlas.split_of(e.id) == "heldout"}
  single = {name for name in forbidden if " " not in name}
  banks = name_banks(atlas)
  for name in [*banks.banks["place"], *banks.banks["currency"], *banks.values]:
    words = fold(name).split()
    assert fold(name) not in forbidden
    assert single.isdisjoint(words[:-1] if words[-1].title() in UNITS else words)
    assert RESERVED.isdisjoint(words)


def test_equal_seeds_give_equal_worlds_and_other_seeds_others(atlas):
  ids = list(atlas.entities)[:997]
  first, again, other = ([World(atlas, seed).name(i) for i in ids] for seed in (3, 3, 4))
  assert first == again
  assert sum(a == b for a, b in zip(first, other)) < 5


def test_two_entities_names_are_independent(atlas):
  # With a shift alone, the second name would follow from the first.
  places = name_banks(atlas).banks["place"]
  order = {name: i for i, name in enumerate(places)}
  gaps = {(order[World(atlas, s).name("country/CN")] - order[World(atlas, s).name("country/FR")])
          % len(places) for s in range(50)}
  assert len(gaps) > 45


def test_every_name_is_undone(atlas):
  world = World(atlas, 11)
  for entity in list(atlas.entities.values())[::3]:
    query = f"{world.name(entity.id)} calling code"
    assert world.unrename(query) == f"{entity.name} calling code"


def test_undoing_reads_whole_names_in_any_case_and_keeps_the_rest(atlas):
  world = World(atlas, 5)
  china, code = world.name("country/CN"), world.name("airport/KWE")
  asked = world.unrename(f"what is the city of {code.lower()}, in {china.upper()}?")
  assert asked == "what is the city of KWE, in China?"
  assert world.unrename(f"{china}ese food") == f"{china}ese food"


def test_a_rendered_page_holds_no_real_name_or_number(atlas):
  world = World(atlas, 13)
  for page_id in ("country/CN", "airport/KWE", "city/1796236"):
    page = atlas.pages[page_id]
    text = " ".join(world.render(sentence) for sentence in page.sentences)
    assert world.name(page_id) in text
    for statement in page.statements:
      tail = atlas.tail_name(statement)
      assert world.tail(statement) in text
      if len(tail) > 3:
        assert not re.search(rf"(?<!\w){re.escape(tail)}(?!\w)", text), tail


def test_literals_keep_their_shape_and_stay_the_same(atlas):
  world = World(atlas, 17)
  for relation, literal, shape in (
      ("calling_code", "+376", r"\+[1-9]\d\d"), ("population", "77,006", r"[1-9]\d,\d\d\d"),
      ("independence", "2 December 1971", r"\d{1,2} [A-Z][a-z]+ 1[89]\d\d"),
      ("internet_code", ".ad", r"\.[a-z]{2}"), ("symbol", "Fe", "[A-Z][a-z]")):
    fresh = world.value(relation, literal)
    assert re.fullmatch(shape, fresh) and fresh == world.value(relation, literal)
    assert len({World(atlas, seed).value(relation, literal) for seed in range(20)}) > 10


def test_too_few_free_names_are_refused():
  entities = {f"city/{i}": Entity(f"city/{i}", f"Town{'abcdefghijk'[i]}", "city", None)
              for i in range(11)}
  pages = {key: Page(key, entity.name, (), ()) for key, entity in entities.items()}
  with pytest.raises(ValueError, match="11 entities of bank 'place', but only .* \"names_bank\""):
    World(Atlas(entities, pages, ("Quux Hill", "Foo Bay")), 1)
