"""Whether an answer says yes or no, or carries the facts of an expected sentence.  HOST.

Section: SPEC 2 (r_base).
"""

import re

from searchjax.reward import answer_words as words
from searchjax.reward import quantities as q
from searchjax.reward.answer_quantities import Match, same_quantity, spread
from searchjax.reward.answer_text import ARTICLES, CJK, Token, tokenize


def polarity(claim: str, question: str) -> bool | None:
  """True for yes, False for no, None where the claim does not say, or says both."""
  tokens = tokenize(claim)
  text = [t.text for t in tokens]
  if words.SHORT_NO.match(claim):
    return False
  filler = ARTICLES | set("it is answer that this possibly probably likely maybe perhaps".split())
  opening = [w for w in text if w not in filler][:2]
  lead = opening[0] if opening else ""
  if lead == "not" and len(opening) > 1 and opening[1] in words.YES | words.NO:
    return opening[1] in words.NO                             # "that is not true"
  said = {True: lead in words.YES, False: lead in words.NO}
  if len(text) > 1 and lead in ("yes", "no") and {"yes", "no"} <= set(text):
    after = [t for t in tokens if t.text == ("no" if lead == "yes" else "yes")]
    # "No - although people often answer yes": only a word that stands alone takes it back.
    if any(t.gap not in ("", "'s") or _before(tokens, t) in ("or", "and") for t in after):
      return None
  if said[True] or said[False]:
    return said[True]
  if any("\u2e80" <= c for c in claim[:1]):
    return next((value for value, group in ((False, words.NO), (True, words.YES))
                 if any(claim.startswith(w) for w in group if w >= "\u2e80")), None)
  asked = [t.text for t in tokenize(question) if t.text not in words.FUNCTION | {"ever"}]
  wanted = set(asked)
  shared = wanted & set(text)
  if not wanted or len(shared) < 0.6 * len(wanted) or not words.YES_NO_QUESTION.search(question):
    return None
  # "Ann is taller than Bo" does not follow from "Bo is taller than Ann".
  ordered = [w for w in dict.fromkeys(text) if w in shared]
  if ordered != [w for w in dict.fromkeys(asked) if w in shared]:
    return None
  if words.NEGATIVE_CLAIM.search(claim):
    return None if words.NEGATIVE_CLAIM.search(question) else False
  contrast = re.search(r"\b(?:while|whereas|but|although|though|different|only|or)\b", claim, re.I)
  asked_for = {t.text for t in tokenize(question)} & words.RELATIONS
  if asked_for != set(text) & words.RELATIONS:
    return None
  return None if shared < wanted or contrast or words.NEGATIVE_CLAIM.search(question) else True


def _before(tokens: tuple[Token, ...], token: Token) -> str:
  index = tokens.index(token)
  return tokens[index - 1].text if index else ""


def says_statement(claim: str, alias: str, question: str) -> bool:
  """True where a claim carries every fact of an expected sentence, and its polarity."""
  if words.YES_NO_QUESTION.search(question):
    expected = _leaning(alias)
    if _leaning(claim) != expected:
      return False
  elif bool(words.NEGATIVE_CLAIM.search(alias)) != bool(words.NEGATIVE_CLAIM.search(claim)):
    return False
  if len(tokenize(claim)) > 3 * len(tokenize(alias)) + 30:
    return False
  # What the sentence says in passing about its subject is not what was asked.
  be = r"\b(?:is|are|was|were)\b"
  alias = re.sub(rf"\b(?:that|which|who)\b[^,.]*?{be}[^,.]*?(?={be})", "", alias)
  asked = {t.text for t in tokenize(question)}
  said = [*q.find_quantities(claim), *spread(q.find_quantities(claim)),
          *spread(q.find_quantities(question))]
  facts = q.find_quantities(alias)
  for fact in facts:
    if not any(same_quantity(s, fact, question) == Match.YES for s in said):
      return False
  covered = [(fact.start, fact.end) for fact in facts]
  spoken = {t.text for t in tokenize(claim)}
  names, content = set(), set()
  for match in re.finditer(rf"[^\W_{CJK}]+(?:'[^\W_]+)*|[{CJK}]", alias):
    if any(start <= match.start() < end for start, end in covered):
      continue
    folded = tokenize(match.group())
    word = folded[0].text if folded else ""
    if not word or word in words.FUNCTION or word in asked or word in words.NEGATIONS:
      continue
    content.add(word)
    opens = match.start() == 0 or alias[:match.start()].rstrip()[-1:] in ".!?"
    written = match.group()
    if (written[0].isupper() and not opens or any(c.isdigit() for c in word)
        or written[1:] != written[1:].lower()):
      names.add(word)
  if not names <= spoken:
    return False
  if names or facts:
    return len(names) + len(facts) > 1 or len(content & spoken) >= 0.5 * len(content)
  return bool(content) and len(content & spoken) >= 0.85 * len(content)


def _leaning(text: str) -> bool:
  """Polarity of a sentence that answers a yes-or-no question."""
  lead = next((t.text for t in tokenize(text) if t.text not in ARTICLES), "")
  if lead in words.YES:
    return True
  return not (lead in words.NO or words.NEGATIVE_CLAIM.search(text))
