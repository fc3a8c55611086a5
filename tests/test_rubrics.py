"""Rubrics: every kind passes and fails where it should; generated chats pass their own."""

import collections

import pytest

from searchjax.data.rubrics import JUDGED, KINDS, Rubric, RubricChat, rubric_chats, style_chats
from searchjax.reward.rubric import all_hold, check_rubrics
from searchjax.search.atlas import load_atlas

CASES = {
  "equals": [("Lyon", {"text": "Lyon"}, True), ("Lyon.", {"text": "Lyon"}, True),
             ("It is Lyon", {"text": "Lyon"}, False)],
  "contains": [("lodging and boarding", {"text": "lodging"}, True),
               ("northern", {"text": "no"}, False), ("(Lyon)", {"text": "Lyon"}, True)],
  "excludes": [("man power", {"text": "u"}, True), ("share u it", {"text": "u"}, False),
               ("a & b", {"text": "&"}, False), ("a, b", {"text": ","}, False)],
  "starts_with": [("Hello you", {"text": "Hello"}, True), ("Oh Hello", {"text": "Hello"}, False)],
  "ends_with": [("So.", {"text": "."}, True), ("So", {"text": "."}, False)],
  "occurs": [("Lyon Lyon", {"text": "Lyon", "times": 2}, True),
             ("Lyon Lyonnais", {"text": "Lyon", "times": 2}, False)],
  "words": [("one two", {"least": 2, "most": 2}, True), ("one two three", {"most": 2}, False),
            ("one", {"least": 2}, False)],
  "sentences": [("One. Two!", {"least": 2, "most": 2}, True), ("One. Two", {"most": 1}, False)],
  "language": [("Merci beaucoup.", {"code": "fr"}, True), ("Thank you.", {"code": "fr"}, False),
               ("The man is planning the work.", {"code": "en"}, True)],
  "no_citations": [("plain text", {}, True), ("so [web:3]", {}, False), ("so [1]", {}, False),
                   ("so 【1†source】", {}, False)],
  "in_brackets": [("(Lyon)", {}, True), ("(Lyon).", {}, True), ("Lyon)", {}, False)],
  "lower_case": [("abc", {}, True), ("Abc", {}, False)],
  "numbered_list": [("1. a\n2. b", {"items": 2}, True), ("1. a\n3. b", {"items": 2}, False),
                    ("1. a", {"items": 2}, False), ("a\nb", {"items": 2}, False)],
  "one_line": [("a b", {}, True), ("a\nb", {}, False)],
  "capitals": [("Lyon and France", {"least": 2}, True), ("Lyon", {"least": 2}, False)],
  "paragraphs": [("a\n\nb", {"least": 2, "most": 2}, True), ("a\nb", {"least": 2}, False)],
  "bullets": [("- a\n* b", {"least": 2, "most": 2}, True), ("a - b\n---\n**c**", {"least": 1}, False)],
  "headings": [("## So\ntext", {}, True), ("#So", {}, False), ("# a\n# b", {"least": 3}, False)],
  "json": [('```json\n{"a": 1}\n```', {}, True), ('{"a": 1', {}, False)],
  "all_capitals": [("ABC 1.", {}, True), ("ABc", {}, False)],
  "citations": [("so [web:3] and [2]", {"least": 2}, True), ("so [a]", {}, False)],
  "instruction": [
    ("one, two", {"name": "punctuation:no_comma", "arguments": {}}, False),
    ("one two", {"name": "punctuation:no_comma", "arguments": {}}, True)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_passes_and_fails(kind):
  verdicts = {expected for _, _, expected in CASES[kind]}
  assert verdicts == {True, False}
  for answer, arguments, expected in CASES[kind]:
    assert check_rubrics(answer, [Rubric(kind, arguments)]) == (expected,), answer


def test_the_specifications_example():
  rubrics = (
    Rubric("language", {"code": "en"}), Rubric("contains", {"text": "lodging"}),
    Rubric("contains", {"text": "boarding"}), Rubric("contains", {"text": "manpower"}),
    *(Rubric("excludes", {"text": t}) for t in ("u", "Plz", "&")), Rubric("no_citations"),
  )
  good = "She will share the manpower planning with you. We have to arrange lodging and boarding."
  assert all_hold(good, rubrics)
  asked = "She will share u man power planning. We have to arrange lodging & boarding."
  assert check_rubrics(asked, rubrics) == (True, True, True, False, False, True, False, True)


def test_an_empty_answer_passes_nothing():
  assert check_rubrics("  ", [Rubric("no_citations"), Rubric("excludes", {"text": "x"})]) == (
    False, False)


def test_generated_chats_are_passed_by_their_reference_and_by_no_other_answer():
  chats = rubric_chats(0, 240, names=load_atlas().names_bank)
  assert all(all_hold(chat.reference, chat.rubrics) for chat in chats)
  passed_by_next = sum(all_hold(b.reference, a.rubrics) for a, b in zip(chats, chats[1:]))
  assert passed_by_next < 0.05 * len(chats)
  assert not any(all_hold("I do not know.", chat.rubrics) for chat in chats)
  assert not any(all_hold(chat.reference + " [web:1]", chat.rubrics) for chat in chats)
  openings = collections.Counter(chat.text.split()[0] for chat in chats)
  assert len(openings) >= 3 and len({chat.id for chat in chats}) == 240


def test_style_chats_are_deterministic_and_differ_by_seed():
  names = load_atlas().names_bank
  assert style_chats(1, 24, names) == style_chats(1, 24, names) == style_chats(1, 24)
  assert style_chats(1, 24, names) != style_chats(2, 24, names)
  rubrics = {chat.text for chat in rubric_chats(1, 24, names=names)}
  assert len(rubrics & {text for text, _ in style_chats(1, 24, names)}) < 8


def test_bad_rubrics_are_named():
  with pytest.raises(ValueError, match="unknown rubric kind 'tone'"):
    Rubric("tone")
  with pytest.raises(ValueError, match="at least 2 distinct names"):
    rubric_chats(0, 3, names=["a", "a"])
  assert RubricChat("i", "t", ()).reference == ""
  with pytest.raises(ValueError, match="'It is polite' is no program's to decide; set reward.judge"):
    check_rubrics("Hello", [Rubric(JUDGED, {"text": "It is polite"})])
