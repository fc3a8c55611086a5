"""Duplicates within a set of questions and overlap with questions kept for evaluation.  PURE.

  near-duplicates   |A ∩ B| / |A ∪ B| ≥ t over the sets A, B of word n-grams of two questions
  overlap           a question holds n words in a row of an evaluation question, or all the words
                    of one that has fewer

Words are folded (case, accents, punctuation); every CJK character is a word.

Letters  n words in a row, t least similarity.
Source   prefix filter: each set's |A| − ⌈t|A|⌉ + 1 rarest n-grams are looked up, since two sets as
         alike as t share one of them (Bayardo et al. 2007, "Scaling up all pairs similarity
         search"); word n-grams as a sign of contamination, arXiv:2005.14165 app. C.
"""

import collections
import math
import re
from collections.abc import Sequence

from searchjax.search.atlas import fold

LEAST_WORDS = 6  # of a shorter evaluation question, only a question of the same words is an overlap
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff"
                   r"\uac00-\ud7af]+")


def words(text: str) -> tuple[str, ...]:
  """Folded words; see the module."""
  return tuple(_WORD.findall(fold(text)))


def ngrams(text: str, n: int) -> frozenset[tuple[str, ...]]:
  """Every n words in a row; of a shorter text all its words."""
  said = words(text)
  return frozenset(said[i:i + n] for i in range(max(1, len(said) - n + 1))) if said else frozenset()


def duplicates(
  texts: Sequence[str],
  *,
  n: int = 3,
  similarity: float = 0.8,
  answers: Sequence[frozenset[str]] | None = None,
) -> dict[int, tuple[int, str]]:
  """Texts that repeat an earlier one that is itself no duplicate.

  Args:
    texts: in order of preference; the first of several alike stands.
    n: words in a row.
    similarity: least share of n-grams in common; 1 finds equal sets only.
    answers: by text; near-duplicates must have one in common ("enter office" is not "leave
      office"). None compares the texts alone.

  Returns:
    By index: (index of the text that stands, "exact" or "near"); exact is the same words.

  Raises:
    ValueError: n below 1, or a similarity outside (0, 1].
  """
  if n < 1 or not 0 < similarity <= 1:
    raise ValueError(f"expected n of at least 1 and a similarity in (0, 1], got {n}, {similarity}")
  sets = [ngrams(text, n) for text in texts]
  frequency = collections.Counter(gram for grams in sets for gram in grams)
  first_of: dict[tuple[str, ...], int] = {}
  having: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
  found: dict[int, tuple[int, str]] = {}
  for i, grams in enumerate(sets):
    said = words(texts[i])
    if said in first_of:
      found[i] = first_of[said], "exact"
      continue
    rarest = sorted(grams, key=lambda gram: (frequency[gram], gram))
    prefix = rarest[:len(rarest) - math.ceil(similarity * len(rarest)) + 1]
    near = {j for gram in prefix for j in having[gram]}
    alike = [j for j in sorted(near)
             if len(grams & sets[j]) >= similarity * len(grams | sets[j])
             and (answers is None or answers[i] & answers[j])]
    if alike:
      found[i] = alike[0], "near"
      continue
    first_of[said] = i
    for gram in prefix:
      having[gram].append(i)
  return found


class Evaluation:
  """Questions that must not be trained on."""

  def __init__(self, questions: Sequence[str], *, n: int = 13):
    """Args:
      questions: of the evaluation sets.
      n: words in a row that give a question away.
    """
    self._n = n
    self._whole = frozenset(map(words, questions))
    self._grams: dict[int, set[tuple[str, ...]]] = collections.defaultdict(set)
    for said in self._whole:
      size = min(n, len(said))
      if size >= min(n, LEAST_WORDS):
        self._grams[size].update(said[i:i + size] for i in range(len(said) - size + 1))

  def overlaps(self, text: str) -> bool:
    """Whether a text holds an evaluation question, or n words in a row of one."""
    said = words(text)
    return said in self._whole or any(
      said[i:i + size] in grams
      for size, grams in self._grams.items() for i in range(len(said) - size + 1)
    )
