"""Duplicates and overlap of questions, against a slow oracle."""

import random

import pytest

from searchjax.data.overlap import Evaluation, duplicates, ngrams, words


def test_words_are_folded_and_cjk_characters_are_words():
  assert words("Who’s Ørsted, É. U.S.?") == ("who", "s", "ørsted", "e", "u", "s")
  assert words("北京2008年") == ("北", "京", "2008", "年")
  assert ngrams("a b c", 2) == {("a", "b"), ("b", "c")} and ngrams("a", 3) == {("a",)}
  assert ngrams("?", 3) == frozenset()


def test_exact_and_near_duplicates_point_to_the_text_that_stands():
  texts = ["Who wrote the old book about the sea and the storm?",
           "who wrote the OLD book, about the sea and the storm",
           "Who wrote the old book about the sea and the storms?", "When was it built?"]
  assert duplicates(texts, similarity=0.7) == {1: (0, "exact"), 2: (0, "near")}
  assert duplicates(texts, similarity=1.0) == {1: (0, "exact")}
  answers = [frozenset({"a"}), frozenset({"b"}), frozenset({"b"}), frozenset({"a"})]
  assert duplicates(texts, similarity=0.7, answers=answers) == {1: (0, "exact")}


@pytest.mark.parametrize("similarity", [0.5, 0.8])
def test_the_prefix_filter_finds_what_comparing_all_pairs_finds(similarity):
  draw = random.Random(0)
  texts = []
  for _ in range(101):
    base = draw.choice(texts).split() if texts and draw.random() < 0.6 else draw.choices("abcdefg", k=11)
    base = list(base)
    for _ in range(draw.randrange(3)):
      base[draw.randrange(len(base))] = draw.choice("abcdefg")
    texts.append(" ".join(base))
  expected, standing = {}, []
  for i, text in enumerate(texts):
    one = ngrams(text, 3)
    alike = [j for j in standing
             if len(one & ngrams(texts[j], 3)) >= similarity * len(one | ngrams(texts[j], 3))]
    same = [j for j in alike if words(texts[j]) == words(text)]
    if alike:
      expected[i] = (same or alike)[0]
    else:
      standing.append(i)
  found = duplicates(texts, similarity=similarity)
  assert {i: j for i, (j, _) in found.items()} == expected and len(expected) > 20


def test_overlap_by_n_words_in_a_row_and_by_whole_short_questions():
  evaluation = Evaluation(["a b c d e f g h", "one two three four five six", "very short"], n=7)
  assert evaluation.overlaps("so: B, c d e f g H!")
  assert not evaluation.overlaps("b c d e f g")
  assert evaluation.overlaps("zero one two three four five six seven")
  assert evaluation.overlaps("Very short?") and not evaluation.overlaps("a very short question")


def test_bad_arguments():
  with pytest.raises(ValueError, match=r"similarity in \(0, 1\]"):
    duplicates(["a"], similarity=0.0)
