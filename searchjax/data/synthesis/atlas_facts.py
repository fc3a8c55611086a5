"""The atlas's own statements as facts, with the words of every relation.  HOST.

Spec     1.3 (atomic statements, name-free questions).
"""

from searchjax.data.synthesis.facts import Fact, FactBase, Thing
from searchjax.search.atlas import Atlas, plain

# By the subject's kind and the relation: how the subject is named by the other end, and the other
# end by the subject. "{x}" stands last, so that a nested question has one reading.
WORDS = {
  ("country", "capital"): (
    ("the country whose capital is {x}",),
    ("the capital of {x}", "the capital city of {x}"),
  ),
  ("country", "currency"): (
    ("the country whose currency is {x}", "the country that pays with {x}"),
    ("the currency of {x}", "the money of {x}"),
  ),
  ("country", "continent"): (("the country on the continent {x}",), ("the continent of {x}",)),
  ("country", "language"): (
    ("the country whose main language is {x}",),
    ("the main language of {x}",),
  ),
  ("country", "largest_city"): (
    ("the country whose largest city is {x}",),
    ("the largest city of {x}",),
  ),
  ("country", "borders"): (("the country that borders {x}",), ("the only neighbour of {x}",)),
  ("country", "calling_code"): (
    ("the country whose calling code is {x}", "the country with the phone code {x}"),
    ("the calling code of {x}", "the phone code of {x}"),
  ),
  ("country", "population"): (
    ("the country with a population of {x}", "the country whose population is {x}"),
    ("the population of {x}", "the number of people in {x}"),
  ),
  ("country", "area"): (("the country whose area is {x}",), ("the area of {x}",)),
  ("country", "internet_code"): (
    ("the country whose internet code is {x}",),
    ("the internet code of {x}",),
  ),
  ("country", "highest_point"): (
    ("the country whose highest point is {x}",),
    ("the highest point of {x}",),
  ),
  ("country", "lowest_point"): (
    ("the country whose lowest point is {x}",),
    ("the lowest point of {x}",),
  ),
  ("country", "independence"): (
    ("the country whose independence day is {x}",),
    ("the independence day of {x}",),
  ),
  ("country", "government_type"): (
    ("the country whose government type is {x}",),
    ("the government type of {x}",),
  ),
  ("country", "national_anthem"): (
    ("the country whose national anthem is {x}",),
    ("the national anthem of {x}",),
  ),
  ("city", "country"): (
    ("the city that lies in {x}",),
    ("the country of {x}", "the country that holds {x}"),
  ),
  ("city", "region"): (
    ("the city that lies in {x}",),
    ("the region of {x}", "the region that holds {x}"),
  ),
  ("city", "time_zone"): (("the city whose time zone is {x}",), ("the time zone of {x}",)),
  ("city", "only_airport"): (
    ("the city whose airport is {x}",),
    ("the airport of {x}",),
  ),
  ("city", "population"): (
    ("the city with a population of {x}", "the city whose population is {x}"),
    ("the population of {x}", "the number of people in {x}"),
  ),
  ("airport", "city"): (
    ("the airport that serves {x}",),
    ("the city of {x}", "the city served by {x}"),
  ),
  ("airport", "full_name"): (
    ("the airport whose full name is {x}",),
    ("the full name of {x}",),
  ),
  ("airport", "elevation"): (
    ("the airport whose elevation is {x}", "the airport at an elevation of {x}"),
    ("the elevation of {x}",),
  ),
  ("region", "country"): (
    ("the region that lies in {x}",),
    ("the country of {x}", "the country that holds {x}"),
  ),
  ("region", "region_type"): (("the region of the type {x}",), ("the type of {x}",)),
  ("currency", "currency_code"): (("the currency whose code is {x}",), ("the code of {x}",)),
  ("currency", "number_of_countries"): (
    ("the currency whose number of countries is {x}",),
    ("the number of countries with {x}",),
  ),
  ("language", "language_code"): (("the language whose code is {x}",), ("the code of {x}",)),
  ("language", "number_of_countries"): (
    ("the language whose number of countries is {x}",),
    ("the number of countries with {x}",),
  ),
  ("continent", "number_of_countries"): (
    ("the continent whose number of countries is {x}",),
    ("the number of countries with {x}",),
  ),
  ("continent", "largest_country"): (
    ("the continent whose largest country is {x}",),
    ("the largest country of {x}",),
  ),
}


class AtlasExtractor:
  """The statements of an atlas whose relations have words; others count in `skipped`, by reason."""

  def __init__(self, atlas: Atlas):
    self.atlas = atlas
    self.skipped: dict[str, int] = {}

  def extract(self) -> FactBase:
    """All facts, in the order of the pages."""
    atlas = self.atlas
    facts, mentions, dangling = [], {}, []
    for page in atlas.pages.values():
      named = []
      for s in page.statements:
        words = WORDS.get((atlas.entities[s.subject].kind, s.relation))
        lost = s.object is not None and s.object not in atlas.entities
        if lost:
          dangling.append((s.subject, s.relation, s.object))
        if words is None or lost:
          reason = f"link to no page: {s.relation}" if lost else f"no words: {s.relation}"
          self.skipped[reason] = self.skipped.get(reason, 0) + 1
          continue
        sentence = plain(page.sentences[s.sentence])
        facts.append(Fact(page.id, sentence, s.subject, s.relation, s.object, s.literal, *words))
        if s.object is not None:
          named.append(frozenset({s.subject, s.object}))
      mentions[page.id] = named
    things = (Thing(e.id, e.name, e.kind, atlas.split_of(e.id)) for e in atlas.entities.values())
    return FactBase(things, facts, mentions, dangling)
