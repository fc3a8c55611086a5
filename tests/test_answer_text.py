"""Reading of answers: what is stripped, what is one word, what ends a sentence."""

from searchjax.reward.answer_text import clean, fold, identical, plain, sentences, tokenize


def test_what_a_reader_sees():
  assert clean("<think>Bergen</think>**Oslo** [1][2], [Norway](http://x.no) <cite>3</cite>") == "Oslo, Norway"
  assert clean("Oslo\n\nSources:\n[1] http://x.no/Bergen") == "Oslo"
  assert clean("505 km², 6 × 10²⁴, Oslo² and 1\u202f234") == "505 km2, 6 × 10^24, Oslo and 1234"
  assert clean("x² + y³ by Gauss²") == "x2 + y3 by Gauss"


def test_words():
  assert plain("J. K. Rowling & the St. Louis Müllers") == "jk rowling and saint louis mullers"
  assert plain("Apollo Eleven, the nineteenth century") == "apollo 11 19th century"
  assert [t.text for t in tokenize("北京A")] == ["北", "京", "a"] and fold("です") != fold("てす")
  assert identical("THE Hague!", "the hague") and not identical("18", "1-8")
  assert identical("a.", "A") and not identical("", ".") and not identical("?", "A")


def test_sentences():
  assert sentences("It is 3.5 km. Is it? Yes") == ["It is 3.5 km.", "Is it?", "Yes"]
