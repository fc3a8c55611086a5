"""Numbers, dates and times: which of several is meant, and what makes two the same."""

import pytest

from searchjax.reward.answer_quantities import Match, match_quantity, sole_quantity


@pytest.mark.parametrize("gold, question, claim, match", [
  ("32", "How many goals?", "In 38 matches he scored 32 goals.", Match.YES),
  ("27", "How old?", "27 years", Match.YES), ("27", "How old?", "27 months", Match.NO),
  ("5", "How many?", "5 minus 1", Match.NO), ("5", "How many?", "2 + 3 = 5", Match.YES),
  ("5", "How many?", "5th", Match.NO), ("more than 100", "How many?", "100", Match.VAGUE),
  ("$5 million", "How much?", "A$5 million", Match.NO),
  ("$5 million", "How much?", "5 million people", Match.NO),
  ("£5 million", "How much?", "5 million pounds", Match.YES),
  ("12 May 1990", "When was she born?", "She died on 12 May 1990.", Match.NO),
  ("12 May 1990", "When was she born?", "11 or 12 May 1990", Match.NO),
  ("1969", "What year?", "after 1969", Match.VAGUE), ("3:30 pm", "What time?", "15:30", Match.YES),
  ("1914-1918", "When?", "from July 1914 to November 1918", Match.YES),
])
def test_worked_cases(gold, question, claim, match):
  assert match_quantity(claim, sole_quantity(gold, question), question) == match


def test_a_counter_is_no_unit_and_a_name_no_quantity():
  assert sole_quantity("1400万人", "").value == 1.4e7
  assert sole_quantity("Apollo 11", "Which mission?") is None
