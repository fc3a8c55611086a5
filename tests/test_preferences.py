"""Preferences in their publishers' layouts: labels, ties, placement, the light filter, the split."""

import json
import math

import pytest

from searchjax.data.chat import ChatFormat
from searchjax.data.pairs import Pair, encode_pair
from searchjax.data.preferences import (
  Label, Preference, agreed, describe, layout_of, load_pairs, pair_statistics, read_preferences,
  split_by_prompt, turned, with_votes)
from searchjax.data.rows import Account
from searchjax.data.tokenizer import load_tokenizer
from searchjax.reward.preference import pair_rows

P, GOOD, BAD = "What is a weir?", "A low dam across a river.", "A kind of bird."
USER, ANSWER = {"role": "user", "content": P}, {"role": "assistant", "content": GOOD}
EARLIER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
           {"role": "assistant", "content": "Hello."}]
WORSE = {"role": "assistant", "content": BAD}


def human(role, text):
  return {"from": role, "value": text}


# Layout, row, and the (better, worse, tie) pairs that it must give.
ROWS = [
  ("helpsteer3", {"context": [USER], "response1": BAD, "response2": GOOD, "overall_preference": 2,
                  "individual_preference": [{"score": 1}, {"score": 0}, {"score": -1}]}, [(GOOD, BAD)]),
  ("helpsteer3", {"context": [USER], "response1": GOOD, "response2": BAD, "overall_preference": 0}, ["tie"]),
  ("search_arena", {"messages_a": [USER, ANSWER], "messages_b": [USER, WORSE], "winner": "model_a"},
   [(GOOD, BAD)]),
  ("search_arena", {"messages_a": [USER, ANSWER], "messages_b": [USER, WORSE],
                    "winner": "tie (bothbad)"}, ["tie"]),
  ("judgebench", {"question": P, "response_A": BAD, "response_B": GOOD, "label": "B>A", "source": "s"},
   [(GOOD, BAD)]),
  ("ultrafeedback", {"instruction": P, "completions": [
    {"response": BAD, "overall_score": 3}, {"response": GOOD, "overall_score": "8.5"},
    {"response": "A dam.", "overall_score": 3}]}, [(GOOD, BAD), (GOOD, "A dam."), "tie"]),
  ("chosen", {"prompt": P, "chosen": GOOD, "rejected": BAD, "subset": "alpacaeval-easy", "id": 0},
   [(GOOD, BAD)]),
  ("chosen", {"prompt": P, "chosen": [USER, ANSWER], "rejected": [USER, WORSE], "score_chosen": 8.0,
              "score_rejected": 8.0}, ["tie"]),
  ("chosen", {"id": 8, "prompt": P, "chosen": [GOOD, GOOD + "!"], "rejected": [BAD, BAD + "!"]},
   [(GOOD, BAD), (GOOD, BAD + "!"), (GOOD + "!", BAD), (GOOD + "!", BAD + "!")]),
  ("dpo", {"conversations": [human("human", P)], "chosen": human("gpt", GOOD),
           "rejected": human("gpt", BAD)}, [(GOOD, BAD)]),
  ("pairs", {"prompt": P, "first": GOOD, "second": BAD, "label": 1, "votes": [1, 0.5]}, [(GOOD, BAD)]),
]


def lines(path, *rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def read(*paths, **options):
  account = Account()
  return read_preferences(paths, account, **options), account


def order(pair):
  if pair.label == 0.5:
    return "tie"
  return (pair.first, pair.second) if pair.label == 1.0 else (pair.second, pair.first)


@pytest.mark.parametrize("name, fields, expected", ROWS)
def test_every_layout_has_its_label_whatever_the_order(tmp_path, name, fields, expected):
  assert layout_of(fields).name == name
  made, account = read(lines(tmp_path / "a.jsonl", fields))
  assert [order(p.pair) for p in made] == expected and {p.pair.prompt for p in made} == {P}
  assert account.kept == 1 and account.noted["pairs"] == len(expected)


def test_votes_of_single_annotators_are_kept(tmp_path):
  (helpsteer,), _ = read(lines(tmp_path / "a.jsonl", ROWS[0][1]))
  assert helpsteer.votes == (Label.SECOND, Label.TIE, Label.FIRST)
  (own,), _ = read(lines(tmp_path / "a.jsonl", ROWS[-1][1]))
  assert own.votes == (Label.FIRST, Label.TIE)


def test_a_chosen_answer_is_put_second_in_one_of_two_pairs(tmp_path):
  rows = [{"prompt": f"{P} {i}", "chosen": GOOD, "rejected": BAD} for i in range(401)]
  made, _ = read(lines(tmp_path / "a.jsonl", *rows))
  assert all(order(p.pair) == (GOOD, BAD) for p in made)
  assert 0.4 < pair_statistics(p.pair for p in made)["first"] < 0.6
  assert made == read(tmp_path / "a.jsonl")[0] != read(tmp_path / "a.jsonl", seed=1)[0]


def test_what_was_said_before_stands_before_the_prompt(tmp_path):
  rows = lines(tmp_path / "a.jsonl", {"context": [*EARLIER, USER], "response1": GOOD, "response2": BAD,
                                      "overall_preference": -3})
  (made,), _ = read(rows)
  assert made.pair.context == (("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."))
  chat = ChatFormat(load_tokenizer())
  ids, _, _ = encode_pair(chat, made.pair)
  prompt = chat.encode_prompt([*EARLIER, USER], enable_thinking=False)
  assert ids[:len(prompt)] == prompt
  assert chat.decode(ids[len(prompt):]).startswith(GOOD)


def test_answers_rated_alone_are_paired_by_prompt_or_counted(tmp_path):
  rows = [{"messages": [USER, ANSWER], "label": True}, {"messages": [USER, WORSE], "label": False},
          {"prompt": [USER], "completion": [{"role": "assistant", "content": "Rain."}], "label": False},
          {"messages": [*EARLIER, USER, WORSE], "label": False}]
  made, account = read(lines(tmp_path / "a.jsonl", *rows))
  assert [order(p.pair) for p in made] == [(GOOD, BAD), (GOOD, "Rain.")]
  assert dict(account.dropped) == {"rated alone, nothing to pair it with": 1} and account.kept == 3


def test_pairs_that_cannot_be_compared_are_counted(tmp_path):
  rows = [{"prompt": P, "chosen": GOOD, "rejected": GOOD + " "},
          {"messages_a": [*EARLIER, USER, ANSWER], "messages_b": [USER, WORSE], "winner": "model_b"}]
  made, account = read(lines(tmp_path / "a.jsonl", *rows))
  assert made == [] and dict(account.dropped) == {"the same answer twice": 1, "two histories": 1}


@pytest.mark.parametrize("fields, field, reason", [
  (ROWS[0][1] | {"overall_preference": 4}, "overall_preference", "whole number from -3 to 3, got 4"),
  (ROWS[0][1] | {"individual_preference": [{}]}, "individual_preference.0.score", "missing"),
  (ROWS[0][1] | {"context": [ANSWER]}, "context", "end with the user's"),
  (ROWS[2][1] | {"winner": "a"}, "winner", "expected one of model_a"),
  (ROWS[2][1] | {"messages_b": [{"role": "user", "content": "Other"}, WORSE]},
   "messages_b|conversation_b", "asked different things"),
  (ROWS[4][1] | {"label": "A"}, "label", "expected one of A>B"),
  (ROWS[5][1] | {"completions": [{"response": "x", "overall_score": 1}]}, "completions", "at least two"),
  (ROWS[6][1] | {"chosen": ""}, "chosen", "empty"),
  (ROWS[9][1] | {"conversations": [human("robot", P)]},
   "prompt|conversations|instruction|question.0", "unknown role 'robot'"),
  (ROWS[10][1] | {"votes": [2]}, "votes.0", "expected 1, 0 or 0.5, got 2"),
  ({"messages": [USER, ANSWER], "label": "yes"}, "label", "expected true or false"),
  ({"text": P}, "", "no known layout has the fields text"),
])
def test_malformed_rows_are_named_by_field(tmp_path, fields, field, reason):
  made, account = read(lines(tmp_path / "a.jsonl", ROWS[6][1], fields))
  (problem,) = account.problems
  assert len(made) == 1 and account.rows == 2
  assert (problem.line, problem.field) == (2, field) and reason in problem.reason


def pair(label=1.0, first=GOOD, second=BAD, prompt=P):
  return Pair(prompt, first, second, label)


def test_the_light_filter_keeps_what_models_agree_on():
  votes = [("first first", 1.0), ("first second", 1.0), ("second second", 1.0), ("tie tie", 0.5),
           ("first", 0.0)]
  rows = [Preference(pair(label), "", tuple(Label[v.upper()] for v in text.split()))
          for text, label in votes]
  account = Account()
  assert agreed(rows, account) == [rows[0], rows[3], rows[4]]
  assert dict(account.noted) == {"pairs dropped: votes disagree": 2, "pairs with too few votes to filter": 1}
  assert agreed(rows, Account(), share=0.5) == [rows[0], rows[1], rows[3], rows[4]]
  with pytest.raises(ValueError, match="got 1.5"):
    agreed(rows, Account(), share=1.5)


def test_a_judge_that_prefers_the_first_place_has_no_opinion():
  def longer(p):
    return 0.9 if len(p.first) > len(p.second) else 0.1

  def first(p):
    return 0.9

  (made,) = with_votes([Preference(pair(0.0, "aa", "a"), "")], [longer, first])
  assert made.votes == (Label.FIRST, Label.TIE)
  assert turned(turned(pair())) == pair() and turned(pair()).label == 0.0


def test_statistics_before_and_after():
  pairs = [pair(1.0, "aaaa", "a"), pair(0.0, "aaa", "a"), pair(0.0, "b", "bb"), pair(0.5),
           pair(1.0, "c", "d")]
  s = pair_statistics(pairs)
  assert s == {"pairs": 5.0, "ties": 0.2, "first": 0.5, "longer": pytest.approx(2 / 3),
               "preferred_chars": 1.5, "other_chars": 1.0}
  assert describe(pairs) == ("5 pairs, 20% ties; preferred: the first 50%, the longer 67%; median "
                             "characters 2 against 1")
  assert math.isnan(pair_statistics([])["first"])


def test_all_pairs_of_a_prompt_are_on_one_side():
  rows = [Preference(pair(prompt=f"{P} {i % 101}", first=f"{i}"), "") for i in range(303)]
  made = split_by_prompt(rows, holdout=0.2)
  train, held = ({p.prompt for p in side} for side in (made.train, made.holdout))
  assert not train & held and len(train | held) == 101 and 8 <= len(held) <= 35
  assert made.counts == {"train": len(made.train), "holdout": len(made.holdout)}


def test_pairs_of_files_are_filtered_split_and_described(tmp_path):
  chat = ChatFormat(load_tokenizer())
  rows = [{"prompt": f"{P} {i}", "first": GOOD, "second": BAD, "label": 1, "votes": [1, 1 if i % 5 else 0]}
          for i in range(50)] + [{"prompt": P, "first": GOOD * 99, "second": BAD, "label": 0.5}]
  made, report = load_pairs([str(lines(tmp_path / "a.jsonl", *rows))], chat, length=101, holdout=0.3)
  assert made.counts["train"] + made.counts["holdout"] == 40 and made.counts["holdout"] > 3
  assert "10 pairs dropped: votes disagree" in report[0] and "1 pairs dropped: over 101" in report[0]
  assert report[1].startswith("before: 51 pairs") and report[2].startswith("after: 40 pairs, 0% ties")
  (batch,) = pair_rows(chat, made.holdout, rows=23, length=101)
  assert batch["valid"].sum() == made.counts["holdout"] and set(batch["label"][batch["valid"]]) == {1.0}
  with pytest.raises(ValueError, match="leave 0 pairs to train on"):
    load_pairs([str(tmp_path / "a.jsonl")], chat, length=101, holdout=1.0)


def test_every_preference_file_is_read_whole(shared):
  files = sorted((shared / "data/preference").glob("*"))
  assert len(files) >= 4
  for path in files:
    made, account = read(path)
    assert account.problems == [] and account.rows > 0, path
    assert made or "rated alone" in account.summary(), path
