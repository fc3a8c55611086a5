"""The packaged atlas: what it holds, how clean it is, and how a corpus of one's own is refused."""

import collections
import gzip
import json
import re

import pytest

from searchjax.search import build_atlas
from searchjax.search.atlas import (
  ASSETS, LINK, TEMPLATES, fold, load_atlas, plain, sentence_of, split_of_country, split_sentences)
from small_web import packaged_atlas


@pytest.fixture(scope="module")
def atlas():
  return packaged_atlas()


def test_it_is_small_and_says_where_it_comes_from():
  assert (ASSETS / "atlas.jsonl.gz").stat().st_size <= 4_000_000
  attribution = (ASSETS / "ATTRIBUTION").read_text()
  for source in ("GeoNames", "Creative Commons Attribution 4.0", "airportsdata", "pycountry", "LGPL",
                 "World Factbook", "public domain", "mendeleev", "MIT"):
    assert source in attribution


def test_it_holds_thousands_of_cities_and_every_kind(atlas):
  kinds = collections.Counter(entity.kind for entity in atlas.entities.values())
  assert kinds["city"] > 5000 and kinds["airport"] > 2000 and kinds["country"] > 200
  assert set(kinds) == {"country", "city", "airport", "region", "currency", "language",
                        "continent", "element"}
  assert len(atlas.names_bank) >= 8000


def test_no_two_pages_of_a_kind_have_one_title(atlas):
  titles = collections.Counter((e.kind, fold(e.name)) for e in atlas.entities.values())
  assert titles.most_common(1)[0][1] == 1


def test_every_statement_is_what_its_sentence_says(atlas):
  for page in list(atlas.pages.values())[::3]:
    assert [s.sentence for s in page.statements] == list(range(len(page.sentences)))
    for statement in page.statements:
      assert (statement.object is None) != (statement.literal is None)
      tail = atlas.tail_name(statement)
      said = sentence_of("", statement.relation, page.title, tail)
      assert plain(page.sentences[statement.sentence]) == said
      if statement.object is not None:
        assert statement.object in atlas.entities and statement.object != page.id


def test_literals_are_clean(atlas):
  for page in atlas.pages.values():
    for statement in page.statements:
      if statement.relation == "calling_code":
        assert re.fullmatch(r"\+\d{1,4}(-\d{1,4})?", statement.literal), statement
      if statement.literal is not None:
        assert len(statement.literal) <= 40
        assert not re.search(r"more than|approximately|[<>()\[\];&]|  ", statement.literal)
    for sentence in page.sentences:
      assert all(kind == "value" or f"{kind}/{key}" in atlas.entities
                 for _, kind, key in LINK.findall(sentence))


def test_regions_are_not_joined_by_two_numberings(atlas):
  # GeoNames' JP.40 is Tokyo and TR.68 Ankara; ISO's JP-40 is Fukuoka and TR-68 Aksaray.
  for city, region in (("city/1850147", "Tokyo"), ("city/323786", "Ankara")):
    (statement,) = atlas.statements(city, "region")
    assert atlas.tail_name(statement) == region != {"Tokyo": "Fukuoka", "Ankara": "Aksaray"}[region]


def test_known_facts(atlas):
  for subject, relation, tail in (
      ("airport/KWE", "city", "Guiyang"), ("country/CN", "currency", "Yuan Renminbi"),
      ("country/AD", "capital", "Andorra la Vella"), ("country/AD", "calling_code", "+376"),
      ("country/JP", "continent", "Asia"), ("element/Fe", "atomic_number", "26"),
      ("city/1809461", "country", "China"), ("region/US-CA", "country", "United States")):
    assert [atlas.tail_name(s) for s in atlas.statements(subject, relation)] == [tail]
  assert atlas.statements("country/CN", "no such relation") == []
  assert atlas.statements("no/page", "capital") == []


def test_the_bank_names_nobody(atlas):
  known = {fold(entity.name) for entity in atlas.entities.values()}
  bank = [fold(name) for name in atlas.names_bank]
  assert len(set(bank)) == len(bank) and known.isdisjoint(bank)


def test_splits_go_by_country(atlas):
  counts = collections.Counter(
    atlas.split_of(e.id) for e in atlas.entities.values() if e.kind == "country")
  total = sum(counts.values())
  for split, share in (("sft", 0.40), ("rl", 0.35), ("heldout", 0.25)):
    assert abs(counts[split] / total - share) < 0.06
  assert atlas.split_of("airport/KWE") == atlas.split_of("country/CN") == split_of_country("CN")
  assert atlas.split_of("currency/CNY") == atlas.split_of("country/CN")
  assert atlas.split_of("currency/EUR") == atlas.split_of("continent/AS") == "shared"


def test_ambiguous_names_are_known(atlas):
  ambiguous = atlas.ambiguous_names()
  assert "singapore" in ambiguous and "guiyang" not in ambiguous


@pytest.mark.parametrize("text, folded", [
  ("Île-de-France", "ile de france"), ("São  Tomé", "sao tome"), ("Jabal Bil 'Ays", "jabal bil ays"),
  ("KWE", "kwe"), ("a_b", "a b"), ("", "")])
def test_fold(text, folded):
  assert fold(text) == folded


def test_split_sentences_of_plain_text():
  assert split_sentences("It is red. [Paris](/city/1) is 1.5 m wide! 3 of them. ") == (
    "It is red.", "[Paris](/city/1) is 1.5 m wide!", "3 of them.")


@pytest.mark.parametrize("lines, message", [
  (["{}"], r"line 1: expected a non-empty string \"title\""),
  (['{"title": "A", "text": "x"}', "", "{oops"], "line 3: not JSON"),
  (['["a"]'], "line 1: expected a JSON object, got list"),
  (['{"title": "A"}'], 'line 1: expected "text" as a string or "sentences"'),
  (['{"title": "A", "sentences": ["a", 3]}'], "line 1: expected \"text\""),
  (['{"title": "A", "text": "x", "id": 5}'], "line 1: expected \"id\""),
  (['{"title": "A", "text": "x", "id": "p/1"}', '{"title": "B", "text": "y", "id": "p/1"}'],
   "line 2: page 'p/1' stands in line 1 already"),
  (['{"title": "A", "text": "x", "statements": [{"p": "q", "o": "r", "sent": 7}]}'],
   "line 1: expected a statement .* below 1"),
  (['{"title": "A", "text": "x", "statements": [{"p": "q", "o": "r", "sent": true}]}'],
   "line 1: expected a statement"),
  (['{"title": "A", "text": "x"}', '{"title": "A", "text": "x", "statements": null}'],
   "line 2: expected \"statements\" as a list, got None"),
  (['{"title": "A", "text": "x", "statements": 5}'], "line 1: expected \"statements\" as a list"),
  (['{"title": "A", "text": "x", "id": "a", "url": 5}'], "line 1: expected \"url\" as a string"),
  (['{"title": "A", "text": "x", "country": []}'], "line 1: expected \"country\" as a string"),
  (["", '{"title": "A", "text": ' + "[" * 100000], "line 2: not a page .JSON nested too deeply"),
  (['{"title": "A", "text": "x", "n": ' + "1" * 5000 + "}"], "line 1: not JSON that can be read"),
  (['{"names_bank": "Ab"}', '{"title": "A", "text": "x"}'], "line 1: expected \"names_bank\""),
  (["", " "], "no pages; expected one a line, like"),
  (['{"title": "A", "text": "x"}', '{"name": "B", "text": "y"}'],
   'line 2: expected a non-empty string "title", the page\'s name, which the line lacks: it has '
   'name, text; write the page like {"title": "...", "text": "..."}$'),
  (['{"title": " ", "text": "x"}'], '"title", the page\'s name, got \' \'; write'),
  (['{"title": ["' + "a" * 999 + '"]}'], 'line 1: .*, got .{61}; write'),
  (['{"title": "A", "body": "x"}'], '"text" .* which the line lacks: it has title, body; write'),
  (['{"title": "A", "sentences": "x"}'], "\"sentences\" as a list of strings, got 'x'; write"),
])
def test_a_malformed_corpus_names_its_line(tmp_path, lines, message):
  path = tmp_path / "corpus.jsonl"
  path.write_text("\n".join(lines))
  with pytest.raises(ValueError, match=message) as caught:
    load_atlas(path)
  assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_pages_without_names_or_statements_make_no_questions(tmp_path):
  path = tmp_path / "corpus.jsonl"
  page = {"title": "A", "text": "The capital of A is B."}
  path.write_text(json.dumps(page))
  assert len(load_atlas(path).pages) == 1  # A search service can do with it.
  with pytest.raises(ValueError, match='none of its 1 pages has "statements".*; add them') as caught:
    load_atlas(path, for_questions=True)
  assert str(path) in str(caught.value)
  page |= {"statements": [{"p": "capital", "v": "B", "sent": 0}]}
  path.write_text(json.dumps(page))
  with pytest.raises(ValueError, match='no line has a "names_bank".*; add a line like') as caught:
    load_atlas(path, for_questions=True)
  assert str(path) in str(caught.value)
  path.write_text(json.dumps(page) + '\n{"names_bank": ["Abelo", "Brisk"]}')
  assert load_atlas(path, for_questions=True).names_bank == ("Abelo", "Brisk")


def test_a_missing_or_unreadable_corpus(tmp_path):
  with pytest.raises(ValueError, match="no such file"):
    load_atlas(tmp_path / "none.jsonl")
  good = b'{"title": "A", "text": "x"}\n'
  (tmp_path / "bytes.jsonl").write_bytes(good + b'{"title": "\xff"}')
  with pytest.raises(ValueError, match="line 2: not UTF-8 .invalid start byte at byte 12"):
    load_atlas(tmp_path / "bytes.jsonl")
  lines = (b'{"title": "%d", "text": "%x"}\n' % (i, i ** 7) for i in range(99))
  whole = gzip.compress(b"".join(lines))
  (tmp_path / "not.gz").write_bytes(b"plain")
  (tmp_path / "cut.gz").write_bytes(whole[:-20])
  (tmp_path / "damaged.gz").write_bytes(whole[:60] + b"\xff" * 60 + whole[120:])
  (tmp_path / "checksum.gz").write_bytes(whole[:-8] + bytes(8))
  for name in ("not.gz", "cut.gz", "damaged.gz", "checksum.gz"):
    with pytest.raises(ValueError, match=r"not readable after line \d+ ") as caught:
      load_atlas(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_url_is_an_id_with_its_host_path_and_query(tmp_path):
  urls = ["https://a.com/x", "https://b.com/x", "https://a.com", "https://b.com/",
          "https://a.com/x?page=2", "https://atlas.example/city/7"]
  path = tmp_path / "corpus.jsonl"
  path.write_text("\n".join(json.dumps({"title": "T", "text": "x", "url": url}) for url in urls))
  atlas = load_atlas(path)
  assert list(atlas.pages) == ["a.com/x", "b.com/x", "a.com", "b.com/", "a.com/x?page=2", "city/7"]
  assert [page.url for page in atlas.pages.values()] == urls


def test_half_a_surrogate_pair_is_replaced(tmp_path):
  path = tmp_path / "corpus.jsonl"
  path.write_text(r'{"title": "A\ud800", "text": "x\uDFFF y \ud83d\ude00 \\ud800"}')
  page = load_atlas(path).pages["page/1"]
  assert page.title == "A\ufffd" and page.sentences == ("x\ufffd y \U0001f600 \\ud800",)


def test_plain_pages_make_an_atlas(tmp_path):
  path = tmp_path / "corpus.jsonl"
  path.write_text(json.dumps({"title": "Tea", "text": "Tea is hot. It is green."}) + "\n"
                  + json.dumps({"title": "Ice", "text": "Cold.", "url": "https://ice.example/x/1"}))
  atlas = load_atlas(path)
  assert atlas.pages["page/1"].sentences == ("Tea is hot.", "It is green.")
  assert atlas.pages["ice.example/x/1"].url == "https://ice.example/x/1" and atlas.names_bank == ()


def test_the_sample_of_the_atlas_is_read(shared):
  atlas = load_atlas(shared / "data" / "atlas" / "pages_sample.jsonl")
  andorra = atlas.pages["country/AD"]
  assert andorra.title == "Andorra"
  by_relation = {s.relation: s for s in andorra.statements}
  assert by_relation["capital"].object == "city/3041563"
  assert by_relation["population"].literal == "77,006"
  assert plain(andorra.sentences[0]) == "The capital of Andorra is Andorra la Vella."


def test_the_sample_of_chains_is_walked_over_the_sample_of_pages(shared):
  """What stands on the pages there are; a relation derived from several pages is on none."""
  folder = shared / "data" / "atlas"
  pages = load_atlas(folder / "pages_sample.jsonl").pages
  chains = [json.loads(line) for line in (folder / "chains_sample.jsonl").read_text().splitlines()]
  walked = []
  for chain in chains:
    steps = list(zip(chain["path"], chain["relations"], chain["path"][1:], strict=False))
    assert len(steps) == len(chain["relations"]) == chain["hops"] == len(chain["path"]) - 1
    assert len(set(chain["path"])) == len(chain["path"]) and chain["answer"]
    for subject, relation, end in steps:
      said = [s for s in pages[subject].statements if s.relation == relation] if subject in pages else []
      walked += [end in (s.object or s.literal for s in said)] if said else []
  assert len(chains) == 36 and len(walked) == 8 and all(walked)


# ---- the builder


@pytest.mark.parametrize("raw, clean", [
  ("376", "+376"), ("+1-876", "+1-876"), ("+", None), ("", None), ("+1-809 and 1-829", None)])
def test_clean_calling_code(raw, clean):
  assert build_atlas.clean_calling_code(raw) == clean


@pytest.mark.parametrize("raw, clean", [
  ("<p>General&nbsp;Council</p>", "General Council"), ("lion (rampant)", "lion"),
  ("more than 7 others", None), ("red cow; blue cow", "red cow"), ("x" * 41, None), ("", None),
  ("lion - note: since 1990", "lion")])
def test_clean_literal(raw, clean):
  assert build_atlas.clean_literal(raw) == clean


def test_clean_point_and_language():
  assert build_atlas.clean_point("Mont Blanc 4,810") == "Mont Blanc"
  assert build_atlas.clean_point("Rhone River delta -2 m") == "Rhone River delta"
  assert build_atlas.clean_language("Greek, Modern (1453-)") == "Greek"


def test_the_builder_drops_taken_titles_and_writes_the_same_bytes(tmp_path):
  written = []
  for i in range(2):
    builder = build_atlas.Builder()
    assert builder.page("country/XX", "Xaria", "XX")
    assert builder.page("city/1", "Quito", "XX")
    assert not builder.page("city/2", "QUITO", "XX")
    assert not builder.page("city/3", "Quito (old)", "XX")
    builder.link("country/XX", "capital", "city/1")
    builder.link("country/XX", "capital", "city/2")
    builder.literal("country/XX", "calling_code", None)
    builder.literal("country/XX", "population", "1,009")
    build_atlas.write_atlas(builder, ["Abbotown"], tmp_path / f"{i}.jsonl.gz")
    written.append((tmp_path / f"{i}.jsonl.gz").read_bytes())
    assert builder.dropped == {"city: title taken": 1, "city: name needs qualification": 1}
  assert written[0] == written[1]
  atlas = load_atlas(tmp_path / "0.jsonl.gz")
  assert [plain(s) for s in atlas.pages["country/XX"].sentences] == [
    "The capital of Xaria is Quito.", "Xaria has a population of 1,009."]
  assert "city/1" not in atlas.pages  # a page without facts is not written


def test_regions_are_matched_by_votes():
  class Division:
    def __init__(self, code, name):
      self.code, self.name, self.country_code, self.parent_code = code, name, "JP", None

  class Source:
    subdivisions = [Division("JP-13", "Tokyo"), Division("JP-40", "Fukuoka")]

  airports = {code: {"country": "JP", "subd": subd} for code, subd in (
    ("AAA", "Tokyo"), ("BBB", "Tokyo"), ("CCC", "Fukuoka"), ("DDD", "Fukuoka"), ("EEE", "Tokyo"))}
  cities = {code: {"countrycode": "JP", "admin1code": admin} for code, admin in (
    ("AAA", "40"), ("BBB", "40"), ("CCC", "07"), ("DDD", "07"), ("EEE", "99"))}
  regions, _ = build_atlas.match_regions(airports, cities, [], Source)
  assert regions == {("JP", "40"): "JP-13", ("JP", "07"): "JP-40"}  # one vote is too few
  assert regions["JP", "40"] != "JP-40"


def test_every_relation_reads_as_a_sentence():
  for relation, template in TEMPLATES.items():
    assert template.count("{s}") == template.count("{o}") == 1 and template.endswith("."), relation
