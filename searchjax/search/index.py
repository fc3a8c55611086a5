"""A BM25 index over pages, with one query-biased sentence as the snippet.  HOST.

  score(q, d) = sum_{w in q} log(1 + (n - n_w + 1/2) / (n_w + 1/2))
                             tf(w, d) / (tf(w, d) + k1 (1 - b + b |d| / mean |d|))

over the distinct words w of q, n pages of which n_w have w, k1 = 1.5, b = 3/4; the title counts
three times; equal scores go to the earlier page.

Spec     3 (search_web's results).
Source   Okapi BM25 (Lucene's idf) by bm25s, arXiv:2407.03618.
"""

import functools
import importlib
import logging
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from searchjax.search.atlas import fold, plain

TITLE_WEIGHT = 3
STOPWORDS = frozenset(
  "a an and are as at by for from has have how in is it its of on or that the their this to was "
  "were what when where which who whose with lies".split())


class Hit(NamedTuple):
  """A page, the sentence that answers the query best, and the page's score."""

  page: int
  sentence: int
  score: float


@functools.cache
def _bm25s():
  """bm25s, imported so that it does not see JAX.

  On import it runs a JAX computation where it can. That takes seconds, holds the accelerator in a
  process that has no use for it, and comes before jax.distributed may start.
  """
  hidden = {name: sys.modules.get(name) for name in ("jax", "jax.lax")}
  for name in hidden:
    sys.modules[name] = None  # `import jax.lax` then raises ImportError, which bm25s expects
  try:
    module = importlib.import_module("bm25s")
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every index at DEBUG
    return module
  finally:
    for name, module in hidden.items():
      if module is None:
        del sys.modules[name]
      else:
        sys.modules[name] = module


def words(text: str) -> list[str]:
  """The words the index knows a text by: folded, without stop words."""
  return [word for word in fold(text).split() if word not in STOPWORDS]


class SearchIndex:
  """Pages by BM25.

  Args:
    titles: one a page.
    sentences: the sentences of every page, markup allowed.
  """

  def __init__(self, titles: Sequence[str], sentences: Sequence[Sequence[str]]):
    self._sentence_words = [[words(plain(s)) for s in page] for page in sentences]
    self._title_words = [frozenset(words(title)) for title in titles]
    tokens = [words(title) * TITLE_WEIGHT + [w for sentence in page for w in sentence]
              for title, page in zip(titles, self._sentence_words, strict=True)]
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in page] for page in tokens]
    model = _bm25s().BM25(method="lucene")
    if not vocabulary:
      raise ValueError("no page has a word to search for: all are empty or stop words like \"the\"")
    model.index((ids, dict(vocabulary)), show_progress=False, create_empty_token=False)
    self._vocabulary = vocabulary
    self._data = np.asarray(model.scores["data"], np.float32)
    self._pages = np.asarray(model.scores["indices"], np.int32)
    self._starts = np.asarray(model.scores["indptr"]).tolist()
    self._num_pages = len(ids)

  def search(self, query: str, num_results: int) -> list[Hit]:
    """The best pages for a query, best first; pages that share no word with it never appear."""
    asked = words(query)
    known = [self._vocabulary[word] for word in dict.fromkeys(asked) if word in self._vocabulary]
    if not known or num_results < 1:
      return []
    scores = np.zeros(self._num_pages, np.float32)
    for word in known:
      start, stop = self._starts[word], self._starts[word + 1]
      scores[self._pages[start:stop]] += self._data[start:stop]
    count = min(num_results, self._num_pages)
    floor = np.partition(scores, self._num_pages - count)[self._num_pages - count]
    # Every page at the floor is a candidate: partition alone would choose among ties by chance.
    found = np.flatnonzero(scores >= floor if floor > 0 else scores > 0)
    order = found[np.argsort(-scores[found], kind="stable")][:count]
    return [Hit(int(page), self._best_sentence(int(page), asked), float(scores[page]))
            for page in order]

  def _best_sentence(self, page: int, asked: list[str]) -> int:
    """The sentence with most of the query's words, each weighed by its rarity on the page.

    A word of the title counts half: what is asked about the title tells the sentences apart.
    """
    sentences = self._sentence_words[page]
    weight = {word: 0.5 if word in self._title_words[page] else 1.0 for word in asked}
    holders: dict[str, int] = {}
    for sentence in sentences:
      for word in set(sentence):
        holders[word] = holders.get(word, 0) + 1
    best, best_score = 0, -1.0
    for i, sentence in enumerate(sentences):
      present = set(sentence)
      score = sum(w / holders[word] for word, w in weight.items() if word in present)
      if score > best_score + 1e-9:
        best, best_score = i, score
    return best
