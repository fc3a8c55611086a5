"""Formats of questions: every one keeps the question; the draw is the question's own."""

import collections

import pytest

from searchjax.data.prompt_formats import FORMATS, with_format


def test_every_format_holds_the_question_and_the_stated_share_has_none():
  questions = [f"Who is {{number {i}}}?" for i in range(997)]
  made = [with_format(q, seed=0, plain=0.3) for q in questions]
  assert all(q in text for q, (text, _) in zip(questions, made, strict=True))
  counts = collections.Counter(name for _, name in made)
  assert set(counts) == set(FORMATS) and 0.25 < counts["plain"] / 997 < 0.35
  assert made == [with_format(q, seed=0, plain=0.3) for q in questions]
  assert made != [with_format(q, seed=1, plain=0.3) for q in questions]
  assert with_format("Who?", seed=3, plain=1.0) == ("Who?", "plain")


def test_bad_shares():
  with pytest.raises(ValueError, match="got 1.5"):
    with_format("q", seed=0, plain=1.5)
