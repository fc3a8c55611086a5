"""Yes and no, and the facts of a sentence."""

from searchjax.reward.answer_sentences import polarity, says_statement

QUESTION = "Is the Eiffel Tower taller than Big Ben?"


def test_a_restatement_counts_only_as_it_was_asked():
  assert polarity("The Eiffel Tower is taller than Big Ben.", QUESTION) is True
  assert polarity("The Eiffel Tower is not taller than Big Ben.", QUESTION) is False
  for claim in ("Big Ben is taller than the Eiffel Tower.", "The Eiffel Tower is shorter than Big Ben."):
    assert polarity(claim, QUESTION) is None
  assert polarity("Ann was born after Bob.", "Was Ann born before Bob?") is None


def test_short_replies():
  assert polarity("Possibly yes", QUESTION) is True
  for claim in ("Of course not.", "They aren't.", "That is not true.", "I would say no."):
    assert polarity(claim, QUESTION) is False, claim
  assert polarity("Yes and no", QUESTION) is None


def test_every_fact_of_a_sentence():
  gold = "The factory closed in 1987 because of the fire."
  assert says_statement("It closed in 1987 because of a fire.", gold, "Why did the factory close?")
  assert not says_statement("It closed in 1988 because of a fire.", gold, "Why did the factory close?")
