"""Names: inside longer ones, beside others, denied, said in passing."""

import pytest

from searchjax.reward.answer_names import says

WRONG = [
  "Newcastle under Lyme", "Newcastle on the Tyne", "Newcastle-upon-Tyne", "New Newcastle",
  "near Newcastle", "Durham (Newcastle)", "Durham, 20 km from Newcastle", "anything but Newcastle",
  "Newcastle was ruled out", "it is commonly believed to be Newcastle", "they lost to Newcastle",
  "the town formerly called Newcastle", "a town once known as Newcastle", "Will Newcastle",
  "Newcastle → Durham", "Newcastle? Durham?", "Durham, although many say Newcastle", "Newcastle I",
]
RIGHT = [
  "Newcastle", "It is Newcastle, in England", "Newcastle on 3 May", "Newcastle on Monday",
  "Newcastle, although many say Durham", "the town (Newcastle)", "not Durham but Newcastle",
]


@pytest.mark.parametrize("said, claims", [(False, WRONG), (True, RIGHT)], ids=str)
def test_a_name_as_the_one_answer(said, claims):
  for claim in claims:
    assert says(claim, "Newcastle", "Which town?", ["Newcastle"]) is said, claim


def test_a_former_name_where_it_is_asked_for():
  claim = "It was formerly called Newcastle"
  assert says(claim, "Newcastle", "What was the town called before 1900?", ["Newcastle"])
  assert says(claim, "Newcastle", "What is the former name of the town?", ["Newcastle"])
  assert not says(claim, "Newcastle", "Which town lies on the river?", ["Newcastle"])


@pytest.mark.parametrize("claim, said", [
  ("C", True), ("It is C.", True), ("the language C", True), ("C, in 1972", True), ("C++", False),
  ("C#", False), ("C. Ronaldo", False), ("it is C-flat", False), ("C's", False)])
def test_a_name_of_one_letter(claim, said):
  assert says(claim, "C", "Which language?", ["C"]) is said


def test_a_modal_is_no_part_of_an_answer_to_a_person():
  ask = lambda claim: says(claim, "John Smith", "Who wrote it?", ["John Smith"])
  assert not ask("Will John Smith") and not ask("May John Smith")
  assert ask("It may be John Smith") and ask("John Smith will be named")
