"""Lists: every item and none beside them."""

from searchjax.reward.answer_lists import list_items, says_all


def test_items():
  assert list_items("France, Germany and Italy", "") == ["France", "Germany", "Italy"]
  assert list_items("Oslo\nBergen", "") == ["Oslo", "Bergen"]
  assert list_items("Dallas, Texas", "Which city?") == ["Dallas, Texas"]


def test_all_of_them_and_no_other():
  ask = lambda claim: says_all(claim, ["1998", "2018"], "Which years?")
  assert ask("2018 and 1998") and ask("1. 1998\n2. 2018")
  assert not ask("1998") and not ask("1998, 2018 and 2022") and not ask("1998 or 2018")
