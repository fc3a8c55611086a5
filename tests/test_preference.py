"""The preference model at work: both orders, remembered pairs, symmetry."""

import jax
import numpy as np
import pytest

from searchjax.data.pairs import Pair, encode_pair
from searchjax.dist.mesh import make_mesh
from searchjax.model.config import model_config
from searchjax.model.parallel import divide
from searchjax.model.params import init_params, param_specs
from searchjax.reward.preference import PreferenceScorer, pair_rows
from searchjax.rollout.agent import load_chat


@pytest.fixture(scope="module")
def chat():
  return load_chat("")


@pytest.fixture(scope="module")
def model(chat):
  return model_config("tiny", hidden_size=24, num_layers=2, full_attention_interval=2,
                      real_vocab_size=chat.vocab_size)


@pytest.fixture(scope="module")
def scorer(chat, model):
  params = init_params(jax.random.key(0), model)
  params["embed"] = params["embed"] * 10
  params["value_head"] = jax.random.normal(jax.random.key(1), (24,))
  division = divide(make_mesh(), "replicated", param_specs(model, value_head=True))
  return PreferenceScorer(params, model, division, chat, rows=4, length=96)


X = "Name the city of airport ABC."


def test_swapping_the_answers_gives_the_complement(scorer):
  ab = scorer.score([(X, "Foo.", "It is Bar.")])
  ba = scorer.score([(X, "It is Bar.", "Foo.")])
  np.testing.assert_allclose(ab + ba, 1.0, atol=1e-6)
  assert abs(ab[0] - 0.5) > 1e-3


def test_equal_answers_are_a_half_and_the_batch_does_not_matter(scorer):
  many = scorer.score([(X, f"Foo {i}.", "Bar.") for i in range(7)] + [(X, "a", "a")])
  assert many[-1] == 0.5
  scorer._known.clear()
  np.testing.assert_allclose(scorer.score([(X, "Foo 3.", "Bar.")]), many[3:4], atol=1e-6)


def test_W1_scores_are_read_at_the_end_of_each_answer_in_both_orders(chat):
  (batch,) = pair_rows(chat, [Pair(X, "Foo.", "It is Bar.", 1.0)], rows=2, length=96)
  assert batch["valid"].tolist() == [True, False]
  for row, (first, second) in ((0, ("Foo.", "It is Bar.")), (1, ("Foo.", "It is Bar."))):
    for end, answer in zip(batch["ends"][row], (first, second), strict=True):
      tokens = batch["tokens"][row]
      assert tokens[end] == chat.stop_ids[0]
      assert chat.decode(tokens[: end].tolist()).endswith(answer)


def test_a_pair_that_does_not_fit_is_an_error(chat):
  with pytest.raises(ValueError, match="does not fit the preference model's 96"):
    pair_rows(chat, [Pair(X, "Foo " * 90, "Bar.", 1.0)], rows=2, length=96)


def test_answers_that_do_not_fit_are_read_as_far_as_they_do(scorer):
  assert scorer.has_room(X, 20) and not scorer.has_room(X, 50) and not scorer.has_room("Name it " * 60, 1)
  long, short = "é Foo " * 90, "It is Bar."
  for answers in ((long, short), (short, long), (long, long + "x")):
    pair = scorer._fitting((X, *answers))
    assert 80 < len(encode_pair(scorer._chat, pair)[0]) <= 96 or short in answers
    assert (pair.first == short or long.startswith(pair.first.rstrip("\ufffd"))) and pair.first
  assert 0 < scorer.score([(X, long, short), (X, "Foo.", short), (X, long, long)])[0] < 1
  assert scorer.cut == 1  # equal answers are not read at all
  scorer.score(2 * [(X, long, short)])
  assert scorer.cut == 2  # a remembered score is of the parts too
  scorer.score([(X, "Foo.", short)])
  assert scorer.cut == 0
  assert scorer._fitting((X, "Foo.", short)) == Pair(X, "Foo.", short, 0.5)
