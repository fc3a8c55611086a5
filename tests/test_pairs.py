"""Preference pairs: order of quality, noise, filter, hold-out, encoding; FAULT W1."""

import collections

import pytest

from searchjax.data.chat import ChatFormat
from searchjax.data.pairs import Pair, encode_pair, is_held_out, make_pairs
from searchjax.data.questions import forward_questions
from searchjax.data.rubrics import rubric_chats
from searchjax.data.tokenizer import load_tokenizer
from searchjax.search.atlas import load_atlas


@pytest.fixture(scope="module")
def atlas():
  return load_atlas()


@pytest.fixture(scope="module")
def questions(atlas):
  return [q for hops in (1, 2, 3)
          for q in forward_questions(atlas, "sft", hops=hops, count=40, seed=5)]


def test_a_right_statement_wins_and_first_and_second_are_balanced(atlas, questions):
  made = make_pairs(atlas, questions, seed=0, noise=0.0, tie_rate=0.0)
  statement = {q.text: q.statement for q in questions}
  answer = {q.text: q.answer for q in questions}
  pairs = made.train + made.holdout
  assert len(pairs) == 3 * len(questions)
  for pair in pairs:
    assert pair.label in (0.0, 1.0) and pair.first != pair.second
    better, worse = (pair.first, pair.second) if pair.label == 1.0 else (pair.second, pair.first)
    if pair.kind.startswith("statement>"):
      assert better == statement[pair.prompt]
    if pair.kind.endswith(">bare"):
      assert worse == answer[pair.prompt]
  assert 0.4 < sum(p.label for p in pairs) / len(pairs) < 0.6
  kinds = collections.Counter(p.kind for p in pairs)
  assert kinds["statement>bare"] > kinds["statement>foreign"] > 0


def test_prompts_are_split_before_anything_else(atlas, questions):
  made = make_pairs(atlas, questions, seed=0, holdout=0.3)
  assert not {p.prompt for p in made.train} & {p.prompt for p in made.holdout}
  assert all(is_held_out(p.prompt, 0.3) for p in made.holdout)
  assert 0.15 < len(made.holdout) / (len(made.train) + len(made.holdout)) < 0.45


def test_noise_flips_labels_and_the_light_filter_removes_what_annotators_dispute(atlas, questions):
  noisy = make_pairs(atlas, questions, seed=1, noise=0.2, annotators=1, tie_rate=0.0)
  counts = noisy.counts
  assert 0.12 < counts["mislabelled"] / counts["made"] < 0.28 and counts.get("filtered", 0) == 0
  agreed = make_pairs(atlas, questions, seed=1, noise=0.2, annotators=3, tie_rate=0.0).counts
  # Three agree with probability .8^3 + .2^3 = .52; of these .008 / .52 are wrong.
  assert 0.38 < agreed["filtered"] / agreed["made"] < 0.58
  assert agreed.get("mislabelled", 0) <= 0.05 * agreed["made"]
  assert agreed["train"] + agreed["holdout"] + agreed["filtered"] == agreed["made"]


def test_ties_and_chats_are_there(atlas, questions):
  chats = rubric_chats(3, 40, names=atlas.names_bank)
  made = make_pairs(atlas, questions, seed=0, chats=chats, tie_rate=0.2, noise=0.0)
  pairs = made.train + made.holdout
  ties = [p for p in pairs if p.kind == "tie"]
  assert 0.1 < len(ties) / len(pairs) < 0.3 and {p.label for p in ties} == {0.5}
  assert sum(p.kind == "chat" for p in pairs) >= 30


def test_pairs_are_the_same_for_a_seed_and_others_for_another(atlas, questions):
  one = make_pairs(atlas, questions, seed=2)
  assert one == make_pairs(atlas, questions, seed=2)
  assert one.train != make_pairs(atlas, questions, seed=3).train


def test_w1_scores_are_read_at_the_end_of_each_answer():
  chat = ChatFormat(load_tokenizer())
  pair = Pair("What is the capital of France?", "Paris.", "The capital of France is Paris.", 0.0)
  ids, first, second = encode_pair(chat, pair)
  end = chat.stop_ids[0]
  assert ids[first] == ids[second] == end and second == len(ids) - 1
  answer = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
  prompt = f"<|im_start|>user\n{pair.prompt}<|im_end|>\n{answer}"
  assert chat.decode(ids[:first]) == prompt + pair.first
  assert chat.decode(ids) == f"{prompt}{pair.first}<|im_end|>\n{answer}{pair.second}<|im_end|>"
  other, first, second = encode_pair(chat, pair, swapped=True)
  assert chat.decode(other[:second]) == prompt + pair.second
  assert first == len(other) - 1 and sorted(other) == sorted(ids)


def test_an_answer_with_control_text_cannot_move_the_end():
  chat = ChatFormat(load_tokenizer())
  ids, first, second = encode_pair(chat, Pair("q", "a<|im_end|>", "b", 1.0))
  assert [i for i, token in enumerate(ids) if token == chat.stop_ids[0]] == [first, second]


def test_bad_rates_are_named(atlas, questions):
  with pytest.raises(ValueError, match=r"noise must lie in \[0, 1\], got 1.5"):
    make_pairs(atlas, questions, seed=0, noise=1.5)
  with pytest.raises(ValueError, match="at least 1 annotator"):
    make_pairs(atlas, questions, seed=0, annotators=0)
