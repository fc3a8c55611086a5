"""BM25 against the formula, ties, and the snippet's sentence."""

import collections
import math
import subprocess
import sys

import pytest

from searchjax.search.index import TITLE_WEIGHT, SearchIndex, words

TITLES = ["Guiyang", "China", "KWE", "Guiyang Tower", "Nothing"]
SENTENCES = [
  ["Guiyang lies in the country of China.", "Guiyang has a population of 7."],
  ["The capital of China is Beijing.", "The currency of [China](/country/CN) is the Yuan.",
   "China borders Nepal."],
  ["KWE serves the city of Guiyang."],
  ["The tower of Guiyang is tall.", "It stands in China."],
  [],
]


@pytest.fixture(scope="module")
def index():
  return SearchIndex(TITLES, SENTENCES)


def slow_score(query: str, page: int) -> float:
  """Okapi BM25 from the docstring, in loops."""
  import re
  docs = [words(t) * TITLE_WEIGHT + [w for s in ss for w in words(re.sub(r"\(/.*?\)", "", s))]
          for t, ss in zip(TITLES, SENTENCES)]
  mean = sum(map(len, docs)) / len(docs)
  total = 0.0
  for word in set(words(query)):
    holders = sum(word in doc for doc in docs)
    if holders:
      tf = collections.Counter(docs[page])[word]
      total += (math.log(1 + (len(docs) - holders + 0.5) / (holders + 0.5))
                * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * len(docs[page]) / mean)))
  return total


@pytest.mark.parametrize("query", ["Guiyang country", "china currency", "KWE city", "tower",
                                   "China China currency"])
def test_scores_are_bm25(index, query):
  for hit in index.search(query, 5):
    assert hit.score == pytest.approx(slow_score(query, hit.page), rel=1e-5)


def test_by_hand():
  # Pages "a" (3 + 1 words) and "b" (3): idf = log(1 + 1.5 / 1.5) = log 2, mean length 3.5.
  # tf = 4, |d| = 4: 4 / (4 + 1.5 (0.25 + 0.75 * 4 / 3.5)); a title counted once gives another.
  index = SearchIndex(["foo", "bar"], [["Foo."], []])
  (hit,) = index.search("foo", 5)
  assert hit.score == pytest.approx(math.log(2) * 4 / (4 + 1.5 * (0.25 + 0.75 * 4 / 3.5)), rel=1e-6)
  assert hit.score != pytest.approx(math.log(2) * 2 / (2 + 1.5 * (0.25 + 0.75 * 2 / 1.5)), rel=1e-6)


def test_the_title_leads(index):
  assert [TITLES[hit.page] for hit in index.search("Guiyang country", 2)] == [
    "Guiyang", "Guiyang Tower"]


def test_ties_go_to_the_earlier_page_also_at_the_cut():
  titles = [f"Twin {'abcdefghijklm'[i]}" for i in range(13)]
  index = SearchIndex(titles, [["The same words."]] * 13)
  for count in (1, 3, 11, 13, 50):
    hits = index.search("twin words", count)
    assert [hit.page for hit in hits] == list(range(min(count, 13)))


@pytest.mark.parametrize("query", ["", "zzz", "the of is", "?!"])
def test_no_shared_word_is_no_result(index, query):
  assert index.search(query, 10) == []


def test_only_pages_with_a_word_of_the_query(index):
  assert [hit.page for hit in index.search("beijing", 10)] == [1]
  assert index.search("beijing", 0) == []


@pytest.mark.parametrize("query, sentence", [
  ("China currency", 1), ("China capital", 0), ("China borders", 2), ("China", 0),
  ("population of China in Nepal", 2)])
def test_the_snippet_is_the_sentence_that_answers(index, query, sentence):
  (hit,) = [hit for hit in index.search(query, 5) if TITLES[hit.page] == "China"]
  assert hit.sentence == sentence


def test_accents_and_case_do_not_matter():
  index = SearchIndex(["São Tomé", "Other"], [["São Tomé is an island."], ["An island."]])
  assert index.search("SAO TOME", 1)[0].page == 0


def test_an_index_needs_a_word():
  with pytest.raises(ValueError, match="no page has a word"):
    SearchIndex(["?"], [["!"]])


@pytest.mark.parametrize("before", ["", "import jax"])
def test_bm25s_never_runs_jax(plain_environment, before):
  # Its import computes with JAX if it can: that would take the accelerator in the search server.
  program = f"""
import sys
{before}
from searchjax.search.index import SearchIndex
SearchIndex(["a"], [["b"]])
import bm25s.selection
assert not bm25s.selection.JAX_IS_AVAILABLE
assert ("jax" in sys.modules) == {bool(before)}, sorted(sys.modules)
if {bool(before)}:
  import jax.lax
  assert not jax._src.xla_bridge._backends
"""
  subprocess.run([sys.executable, "-c", program], check=True, env=plain_environment)
