"""Languages: by lingua, by a script of their own, and those that nothing here tells."""

import pytest

from searchjax.data.rows import Account
from searchjax.data.rubric_files import read_language_confusion
from searchjax.reward.languages import detect_language, is_language


def test_languages_are_detected():
  assert detect_language("Vielen Dank.") == "de"
  assert detect_language("Buenos días.") == "es"


def test_a_language_of_its_own_script_and_markup():
  assert is_language("**ಕನ್ನಡ** ಒಂದು ಭಾಷೆ [1] https://example.org/in/english", "kn")
  assert not is_language("A long English text with one word, ಕನ್ನಡ.", "kn")
  assert is_language("Merci beaucoup. [web:3]", "fr-FR")
  with pytest.raises(ValueError, match="no detector of the language 'xx'"):
    is_language("text", "xx")


@pytest.mark.slow
def test_completions_in_the_wrong_language_are_found(repository):
  """English where another language was asked for is the usual confusion of these completions."""
  path = repository.parent / "shared/data/rubrics_if/language_confusion.first60.jsonl"
  if not path.is_file():
    pytest.skip("no ../shared/data/rubrics_if beside the repository")
  rows = list(read_language_confusion(path, account := Account()))
  assert account.rows == len(rows) == 60
  for row in rows:
    latin = sum(c.isascii() for c in row.completion if c.isalpha())
    letters = sum(c.isalpha() for c in row.completion)
    if row.language in ("ar", "zh", "ja", "ko", "hi", "ru") and latin > 0.95 * letters:
      assert not is_language(row.completion, row.language), row.id
    if row.language == "en" and latin == letters:
      assert is_language(row.completion, "en"), row.id
