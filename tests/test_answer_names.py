"""Names: inside longer ones, beside others, denied, said in passing."""

import pytest

from searchjax.reward.answer_names import says

WRONG = [
  "Newcastle under Lyme", "Newcastle on the Tyne", "Newcastle-upon-Tyne", "New Newcastle",
  "near Newcastle", "Durham (Newcastle)", "Durham, 20 km from Newcastle", "anything but Newcastle",
  "Newcastle was ruled out", "it is commonly believed to be Newcastle", "they lost to Newcastle",
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
