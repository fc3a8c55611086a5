"""Blocked sites and pages that quote the question (FAULTS J8)."""

import pytest

from searchjax.search.reply import Result
from searchjax.search.screening import BENCHMARKS, Screening

QUESTION = ("Which book was written by the person whose first startup went through the accelerator "
            "launched in March 2005?")


def page(url="https://a.example", title="A", snippet="Tea is hot."):
  return Result(title, url, snippet)


def blocked(url, *sites):
  return Screening(sites).screen([page(url)], "").blocked == 1


@pytest.mark.parametrize("url, yes", [
  ("https://example.org", True), ("https://example.org/x?y", True), ("http://www.example.org:80/", True),
  ("https://a.b.EXAMPLE.org.", True), ("https://user:x@example.org/", True), ("//example.org/x", True),
  ("example.org/x", True), ("https:///example.org", True), ("https:example.org", True),
  ("example.org:8080/x", True), ("https://ex%61mple.org", True), ("https://example。org/x", True),
  ("https://notexample.org", False), ("https://example.org.evil.net", False),
  ("https://evil.net/example.org", False), ("https://evil.net/?u=https://example.org", False),
  ("example", False), ("", False), ("https://[::1", False)])
def test_J8_a_site_and_its_subdomains(url, yes):
  assert blocked(url, "example.org") is yes
  assert blocked(url) is False


def test_J8_a_path_blocks_what_lies_below_it():
  assert blocked("https://github.com/openai/simple-evals/blob/main/x.csv", "github.com/openai/simple-evals")
  assert not blocked("https://github.com/openai/simple-evals-fork", "github.com/openai/simple-evals")
  assert not blocked("https://github.com/openai", "github.com/openai/simple-evals")


@pytest.mark.parametrize("url", [
  "https://huggingface.co/%64atasets/x", "https://huggingface.co//datasets/x",
  "https://huggingface.co/docs/../datasets/x", "https://HuggingFace.co:443/Datasets?x",
  "https://github.com/OpenAI/Simple-Evals"])
def test_J8_one_path_has_many_spellings(url):
  assert blocked(url, "benchmarks")


def test_J8_a_name_in_unicode_and_its_ascii_form_are_one_site():
  for site in ("bücher.example", "xn--bcher-kva.example"):
    assert blocked("https://Bücher.example/a", site) and blocked("https://www.xn--bcher-kva.example", site)
    assert not blocked("https://bucher.example", site)


def test_J8_the_benchmarks_own_sites():
  assert blocked("https://huggingface.co/datasets/google/frames-benchmark", "benchmarks")
  assert not blocked("https://huggingface.co/docs", "benchmarks")
  assert blocked("https://openaipublic.blob.core.windows.net/simple-evals/simple_qa.csv", "benchmarks")
  assert len(BENCHMARKS) == len(set(BENCHMARKS))


@pytest.mark.parametrize("site", ["", "https://example.org", "word", "a b.org", "[::1", " example.org"])
def test_what_is_no_site_is_refused(site):
  with pytest.raises(ValueError, match="search.blocked_domains: expected sites like"):
    Screening([site])


@pytest.mark.parametrize("text, n, yes", [
  (QUESTION, 10, True), (f"Q17. {QUESTION.upper()} Answer: The Mom Test", 10, True),
  ("the person whose first startup went through the accelerator launched", 10, True),
  ("the person whose first startup went through the accelerator", 10, False),  # nine words
  ("the person whose first startup went through the accelerator", 9, True),
  ("The Mom Test was written by Rob Fitzpatrick.", 10, False), (QUESTION, 0, False), ("", 10, False)])
def test_J8_n_words_of_the_question_in_a_row(text, n, yes):
  for result in (page(snippet=text), page(title=text or "A")):
    screened = Screening((), n).screen([page(), result], QUESTION)
    assert screened.leaked == yes and len(screened.kept) == 2 - yes
  assert Screening((), n).screen([page(snippet=text)], "").leaked == 0


def test_J8_a_shorter_question_is_looked_for_whole_unless_it_is_a_phrase():
  screening = Screening((), 10)
  six, five = "who wrote the book about tea", "who wrote about hot tea"
  assert screening.screen([page(snippet=f"Asked: {six}?")], six).leaked == 1
  assert screening.screen([page(snippet="who wrote the book")], six).leaked == 0
  assert screening.screen([page(snippet=five)], five).leaked == 0


def test_order_and_counts():
  results = [page("https://x.org"), page(title="1"), page(snippet=QUESTION), page(title="2")]
  screened = Screening(["x.org"], 10).screen(results, QUESTION)
  assert [r.title for r in screened.kept] == ["1", "2"] and screened[1:] == (1, 1)
