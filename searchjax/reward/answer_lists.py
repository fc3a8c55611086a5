"""Whether an answer gives every item of a list, and none beside them.  HOST.

Section: SPEC 2 (r_base).
"""

import re

from searchjax.reward import answer_words as words
from searchjax.reward import quantities as q
from searchjax.reward.answer_names import says
from searchjax.reward.answer_quantities import Match, as_date, same_quantity, sole_quantity
from searchjax.reward.answer_text import ARTICLES, plain, tokenize


def list_items(alias: str, question: str) -> list[str]:
  """Items that must all be given; one item where the answer is no list."""
  if "\n" in alias or ";" in alias:
    parts = re.split(r"[\n;]+", alias)
  elif len(tokenize(alias)) > 14 and not alias.count(",") > 2:
    return [alias]
  elif re.search(r",.*,|,\s*and\b", alias) or re.search(r"\s(?:and|&)\s", alias):
    parts = re.split(r",\s*(?:and\s+)?|\s+(?:and|&)\s+", alias)
  elif alias.count(",") == 1 and plain(alias.split(",")[1]) not in words.PLACES and re.search(
      r"\b(?:two|both|names|which \w+s\b)", question, re.I):
    parts = alias.split(",")
  else:
    return [alias]
  parts = [part.strip(" .") for part in parts if tokenize(part)]
  if any(len(tokenize(part)) > 8 for part in parts):
    return [alias]
  return parts or [alias]


def says_all(claim: str, items: list[str], question: str) -> bool:
  """True where every item is given, and no item beside them."""
  asked = {t.text for t in tokenize(question)}
  claim = re.sub(r"(?m)^\s*\d{1,2}[.)]\s+", "", claim)
  wanted = [sole_quantity(item, question) for item in items]
  if all(wanted):
    known = [as_date(one) for one in [*wanted, *q.find_quantities(question)]]
    if not all(any(same_quantity(as_date(one), other, question) == Match.YES for other in known)
               for one in q.find_quantities(claim)):
      return False
  for item in items:
    quantity = sole_quantity(item, question)
    if quantity is not None:
      said = q.find_quantities(claim)
      if not any(same_quantity(s, quantity, question) == Match.YES for s in said):
        return False
    elif not says(claim, item, question, items, listed=True):
      return False
  known = {t.text for item in items for t in tokenize(item)}
  opening = r"\b(?:is|are|was|were|include|includes|included|namely)\b|:"
  body = re.split(opening, claim, maxsplit=1, flags=re.I)[-1]
  if not any(t.text in known for t in tokenize(body)):
    body = claim
  for part in re.split(r"[,;\n/]|\b(?:and|or|plus|as well as)\b", body, flags=re.I):
    own = [t.text for t in tokenize(re.split(r"[(.]", part)[0])]
    content = [w for w in own if w not in words.FUNCTION | words.TITLES | asked]
    if content and own[0] not in words.FUNCTION - ARTICLES and not set(content) & known:
      return False
    if re.search(r"\bor\b", body, re.I) and not re.search(r"\bor\b", " ".join(items), re.I):
      return False
  return not words.SECOND_THOUGHT.search(claim)
