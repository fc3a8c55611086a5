"""IFEval's instructions: every kind kept and broken, and what a lax reading would let through."""

import pytest

from searchjax.data.rubric_files import INSTRUCTIONS as READ
from searchjax.reward.instructions import INSTRUCTIONS, check_instruction, count_sentences, count_words

RELATION = {"relation": "at least"}
CASES = {
  "keywords:existence": [("Moms and my mother", {"keywords": ["mother"]}, True),
                         ("motherly", {"keywords": ["mother"]}, False)],
  "keywords:frequency": [("War, war!", RELATION | {"keyword": "war", "frequency": 2}, True),
                         ("war wart", RELATION | {"keyword": "war", "frequency": 2}, False),
                         ("war", {"relation": "less than", "keyword": "war", "frequency": 1}, False)],
  "keywords:forbidden_words": [("rocky", {"forbidden_words": ["rock"]}, True),
                               ("ROCK!", {"forbidden_words": ["rock"]}, False)],
  "keywords:letter_frequency": [
    ("a! b!", {"letter": "!", "let_frequency": 2, "let_relation": "at least"}, True),
    ("Tt", {"letter": "t", "let_frequency": 2, "let_relation": "less than"}, False)],
  "language:response_language": [("ನಮಸ್ಕಾರ ಜಗತ್ತು", {"language": "kn"}, True),
                                 ("Hello world, how are you?", {"language": "kn"}, False)],
  "length_constraints:number_sentences": [
    ("It is 3.5 km. Dr. No agrees, e.g. here.", RELATION | {"num_sentences": 3}, False),
    ("One. Two! Three?", RELATION | {"num_sentences": 3}, True)],
  "length_constraints:number_paragraphs": [("a\n***\nb", {"num_paragraphs": 2}, True),
                                           ("a\n***\n", {"num_paragraphs": 2}, False),
                                           ("a\n\nb", {"num_paragraphs": 2}, False)],
  "length_constraints:number_words": [("well-known isn't", RELATION | {"num_words": 2}, True),
                                      ("- one -", RELATION | {"num_words": 2}, False)],
  "length_constraints:nth_paragraph_first_word": [
    ("a\n\nSo it is", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"}, True),
    ("a\n\nIt", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"}, False)],
  "detectable_content:number_placeholders": [("[name], [place]", {"num_placeholders": 2}, True),
                                             ("[name]", {"num_placeholders": 2}, False)],
  "detectable_content:postscript": [("Bye\nP.P.S. more", {"postscript_marker": "P.P.S"}, True),
                                    ("Bye\nP.S. more", {"postscript_marker": "P.P.S"}, False)],
  "detectable_format:number_bullet_lists": [("* a\n- b", {"num_bullets": 2}, True),
                                            ("* a\n- b\n* c", {"num_bullets": 2}, False)],
  "detectable_format:constrained_response": [("My answer is maybe.", {}, True), ("Maybe.", {}, False)],
  "detectable_format:number_highlighted_sections": [
    ("*a b* and **c**", {"num_highlights": 2}, True), ("*a* ** **", {"num_highlights": 2}, False)],
  "detectable_format:multiple_sections": [
    ("SECTION 1\na\nSECTION 2\nb", {"section_spliter": "SECTION", "num_sections": 2}, True),
    ("SECTION 1\na", {"section_spliter": "SECTION", "num_sections": 2}, False)],
  "detectable_format:json_format": [('```json\n{"a": [1]}\n```', {}, True), ("{a: 1}", {}, False)],
  "detectable_format:title": [("<<A song>>\nla", {}, True), ("<< >>", {}, False)],
  "combination:two_responses": [("a\n******\nb", {}, True), ("a\n******\na", {}, False),
                                ("a ****** b ****** c", {}, False)],
  "combination:repeat_prompt": [("Say hi. Hi", {"prompt_to_repeat": "Say hi."}, True),
                                ("Hi", {"prompt_to_repeat": "Say hi."}, False)],
  "startend:end_checker": [('So. "Is that all?"', {"end_phrase": "Is that all?"}, True),
                           ("Is that all? Yes", {"end_phrase": "Is that all?"}, False)],
  "change_case:capital_word_frequency": [
    ("NO WAY out", {"capital_relation": "at least", "capital_frequency": 2}, True),
    ("NO way", {"capital_relation": "at least", "capital_frequency": 2}, False)],
  "change_case:english_capital": [("THE HOUSE IS OLD AND LARGE.", {}, True), ("The HOUSE", {}, False)],
  "change_case:english_lowercase": [("the house is old and large.", {}, True), ("The house", {}, False)],
  "punctuation:no_comma": [("one two", {}, True), ("one，two", {}, False)],
  "startend:quotation": [('"So it is."', {}, True), ('"So" it is', {}, False), ('"', {}, False)],
}


def test_every_kind_is_kept_and_broken():
  assert set(CASES) == set(INSTRUCTIONS) == set(READ) and len(CASES) == 25
  for name, cases in CASES.items():
    assert {kept for _, _, kept in cases} == {True, False}, name
    for answer, arguments, kept in cases:
      assert check_instruction(answer, name, arguments) is kept, (name, answer)


def test_what_is_unknown_is_refused_by_name():
  with pytest.raises(ValueError, match="unknown instruction 'style:rhyme'"):
    check_instruction("a", "style:rhyme", {})
  with pytest.raises(ValueError, match="startend:quotation: it does not take {'words': 2}"):
    check_instruction("a", "startend:quotation", {"words": 2, "filled": None})
  with pytest.raises(ValueError, match="relation 'about'"):
    check_instruction("a", "length_constraints:number_words", {"relation": "about", "num_words": 2})


def test_counts():
  assert count_words("It's a well-known 3.5 km walk") == 7
  assert count_sentences("One.\n\nA heading\n\nTwo (see below). 三。四") == 5
