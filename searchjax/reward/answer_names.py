"""Whether an answer gives a name as its one answer.  HOST.

A name inside a longer name ("York" in "New York"), beside another candidate, or denied, is not the
answer. Section: SPEC 2 (r_base).
"""

import re

from rapidfuzz.distance import OSA

from searchjax.reward import answer_words as words
from searchjax.reward.answer_text import ARTICLES, Token, folded, plain, sentences, tokenize

_CJK_BESIDE = frozenset(
    "的是在为為于於、有由叫即了到名市省国國は县縣教授先生女士等就乃也吧呢：:「」『』《》“”")


def says(
    claim: str, alias: str, question: str, aliases: list[str], *,
    listed: bool = False, whole: bool = False
) -> bool:
  """True where the claim gives the name as its one answer.

  `listed`: as one of several items, so company is welcome. `whole`: the name reads like a list, so
  only in full.
  """
  asked = {t.text for t in tokenize(question)}
  person = bool(words.PERSON_QUESTION.search(question))
  allowed = {t.text for other in aliases for t in tokenize(other)}
  text = claim if listed else words.CONCESSION.sub(" ", claim)
  if not listed and len(tokenize(claim)) > max(60, 6 * len(tokenize(alias))):
    ends = sentences(claim)                            # a report: its answer opens or closes it
    text = f"{ends[0]}\n\n{ends[-1]}" if len(ends) > 1 else ""
  tokens = tokenize(text)
  if not listed and _rivals(text, alias, asked):
    return False
  for name in _variants(alias, asked, question, listed)[:1 if whole else None]:
    spans = _find(tokens, name, person)
    if len(name) == 1 and len(name[0]) == 1:
      spans = [span for span in spans if not _goes_on(text, tokens, span[1])]
    if spans:
      # The last mention decides: what follows "not Paris but" or "A or B, so" is what is meant.
      start, end = spans[-1]
      return (_stands_alone(tokens, start, end, name, asked, person, allowed)
              and not _negated(tokens, start, end, question, asked)
              and (listed or not _has_company(tokens, start, end, asked, allowed)
                   and not _headed_by_another(tokens, start, asked | allowed)))
  return False


def _variants(alias: str, asked: set[str], question: str, listed: bool) -> list[tuple[str, ...]]:
  """Ways to write a name, the fullest first."""
  core = lambda text: tuple(t.text for t in tokenize(text) if t.text not in ARTICLES)
  out = [core(alias)]
  head, comma, tail = alias.partition(",")
  if comma and core(head):
    implied = set(core(tail)) <= asked
    asks_place = re.search(r"\b(?:city|town|village|place|where)\b", question, re.I)
    implied = implied or plain(tail) in words.PLACES and bool(listed or asks_place)
    if implied:
      out.append(core(head))
    if len(core(head)) == 1 and "," not in tail and words.PERSON_QUESTION.search(question):
      out.append(core(tail) + core(head))                     # "Sugeno, Michio"
  for form in list(out) if listed else []:
    if len(form) > 3 and form[-2] == "in":              # "Chinese Culture University in Taipei"
      out.append(form[:-2])
  for form in list(out):
    of = re.fullmatch(r"(\w+) of ([\w ]+)", " ".join(form))
    if of:                                              # "University of Lund", "Lund University"
      out.append((*of.group(2).split(), of.group(1)))
  for name in list(out):
    rest = tuple(w for w in name if w not in asked)
    if listed and rest and rest != name and len(name) == 2 and rest[0] == name[0]:
      out.append(rest)                                        # a surname that the question has
  return [name for name in dict.fromkeys(out) if name]


def _find(tokens: tuple[Token, ...], name: tuple[str, ...], person: bool) -> list[tuple[int, int]]:
  """Spans [start, end) of tokens where the name stands."""
  spans = []
  for start in range(len(tokens)):
    at, matched, typos = start, 0, 0
    while at < len(tokens) and matched < len(name):
      word = tokens[at].text
      if at > start and tokens[at].gap in ("\n", ";", ":", "!", "?"):
        break
      if word == name[matched]:
        matched += 1
      elif word in ARTICLES and at > start:
        pass
      elif len(name) >= 3 and not typos and _typo(word, name[matched]):
        matched, typos = matched + 1, 1
      elif (person and len(name) == 2 and matched == 1 and at - start <= 2 and word.isalpha()
            and word not in words.FUNCTION and word not in words.DISTINGUISHING
            and tokens[at].gap in ("", "(", ")", ".", "\"", "-")):
        pass                                                  # a middle name
      else:
        break
      at += 1
    if matched == len(name):
      spans.append((start, at))
  return spans


def _goes_on(text: str, tokens: tuple[Token, ...], end: int) -> bool:
  """True where a letter is part of a longer sign: "C++", "C#", "C. Ronaldo", "A-flat"."""
  after = folded(text)[tokens[end - 1].start + 1:]
  return after[:1] in tuple("+#^*'-/_") or bool(re.match(r"\.\s*\w", after))


def _typo(word: str, expected: str) -> bool:
  return (min(len(word), len(expected)) > 4 and word[0] == expected[0]
          and word.isalpha() and expected.isalpha() and OSA.distance(word, expected) == 1)


def _stands_alone(
    tokens: tuple[Token, ...], start: int, end: int, name: tuple[str, ...], asked: set[str],
    person: bool, allowed: set[str]
) -> bool:
  """False where the name is part of another one: "York" of New York, "Paris" of Paris Hilton."""
  is_cjk = lambda word: word >= "\u2e80"
  if end < len(tokens) and tokens[end].gap in (":", "--", ",", "(") and (
      tokens[end].text in words.SEQUELS and tokens[end].text not in asked):
    return False                                              # "The Godfather: Part II"
  others = asked | (allowed - set(name))
  titles = words.TITLES if person or not asked else frozenset()
  if start and tokens[start].joined:
    at = start - 1
    if at and tokens[at].text in ARTICLES and tokens[at].joined and tokens[at - 1].text == "of":
      at -= 1                                                 # "Republic of the Congo"
    left = tokens[at].text
    before = tokens[at - 1].text if at and tokens[at].joined else ""
    if is_cjk(left) and is_cjk(tokens[start].text):
      if left not in _CJK_BESIDE:
        return False
    elif left in words.VICINITY and left not in asked:
      return False
    elif words.VICINITY_PHRASE.search(f"{before} {left}") and before not in asked:
      return False
    elif left in words.DISTINGUISHING or left in words.MODALS - asked:
      return False
    elif left in words.PARTICLES:
      if before not in words.COPULAS - {"is", "are", "was", "were"}:
        return False
    elif left == "from":
      if before not in words.FUNCTION | words.ORIGINS | asked:
        return False
    elif left == "of":
      if before not in words.FUNCTION | words.PLACE_KINDS:
        return False
    elif left in words.PLACE_KINDS:
      if before and before not in words.FUNCTION:
        return False
    elif tokens[start].gap == "-":
      return False
    elif left not in words.FUNCTION | words.LABELS | titles | others and not is_cjk(left):
      given_name = person and len(name) == 1 and left.isalpha() and tokens[start].gap == ""
      if not given_name:
        return False
  if end < len(tokens) and (tokens[end].joined or tokens[end].text in ("jr", "sr", "ii", "iii")):
    right = tokens[end].text
    if is_cjk(right) and is_cjk(tokens[end - 1].text):
      return right in _CJK_BESIDE or _cjk_run(tokens, end) in words.CJK_ENDINGS
    after = tokens[end + 1].text if end + 1 < len(tokens) and tokens[end + 1].joined else ""
    ends = not after or after in words.FUNCTION
    if tokens[end].gap == "-":
      return right in ("based", "born")
    if right in words.DISTINGUISHING | words.PLACE_ENDINGS | words.NAME_LINKS:
      return False
    last = end + 1 == len(tokens) or not tokens[end + 1].joined
    if right == "i" and last:                                 # "Elizabeth I"
      return False
    if right == "of" and len(name) == 1 and not person and _names_more(tokens, end + 1):
      return False                                            # "Godfather of Soul"
    if right == "on" and not person and _names_more(tokens, end + 1):
      return False                                            # "Kingston on the Thames"
    if right in words.PARTICLES - words.COPULAS:              # "Barra do Corda", unlike "do not"
      return right in words.FUNCTION and ends
    if right in words.KIND_NOUNS:
      return ends or after in words.KIND_NOUNS
    if right not in words.FUNCTION | others and not is_cjk(right):
      return False
  return True


def _cjk_run(tokens: tuple[Token, ...], at: int) -> str:
  """The CJK text from a token to the next gap."""
  run = ""
  while at < len(tokens) and tokens[at].text >= "\u2e80" and (not run or tokens[at].joined):
    run += tokens[at].text
    at += 1
  return run


def _names_more(tokens: tuple[Token, ...], at: int) -> bool:
  """True where a word stands that is no date, no number and no small word."""
  at += at < len(tokens) and tokens[at].text in ARTICLES
  if at >= len(tokens) or not tokens[at].joined:
    return False
  word = tokens[at].text
  return word not in words.FUNCTION and not word[0].isdigit() and not words.CALENDAR.match(word)


def _negated(
    tokens: tuple[Token, ...], start: int, end: int, question: str, asked: set[str]
) -> bool:
  around = "".join(t.text for t in tokens[max(0, start - 3):start]), _cjk_run(tokens, end)
  if start < len(tokens) and tokens[start].text >= "\u2e80" and any(
      map(words.CJK_DENIALS.search, around)):
    return True
  if start > 1 and tokens[start - 1].text == "but" and re.match(
      r"(?:any|every|no)(?:thing|one|body|where)$|all$", tokens[start - 2].text):
    return True                                               # "anything but Paris"
  before: list[str] = []
  for index in range(start - 1, max(-1, start - 6), -1):
    if tokens[index].text == "but":
      break
    before.append(tokens[index].text)
    if tokens[index + 1].gap not in ("", "-", "'s", "\"", "(") and index + 1 != start:
      before.pop()
      break
  phrase = " ".join(reversed(before))
  if set(before) & (words.DEFEATS - asked) or words.HEARSAY.search(phrase):
    return True
  if words.FORMER.search(phrase) and not words.PAST_QUESTION.search(question):
    return True
  passed_over = r"rather than|instead of|other than|mistaken for|confused with"
  if set(before) & words.NEGATIONS or re.search(passed_over, phrase):
    return True
  if words.DISMISSAL.match(" ".join(t.text for t in tokens[end:end + 6])):
    return True
  after = []
  for token in tokens[end:end + 3]:
    if token.gap not in ("", "-", "'s"):
      break
    after.append(token.text)
  return bool(set(after) & words.NEGATIONS) and not words.NEGATIVE_CLAIM.search(question)


_SEPARATORS = frozenset((",", "/", ";", "\n", "+", "、", "，", "--", "..", "?", "→", "->", "=>"))
_RANGES = frozenset("to through until till vs versus".split())
_LINKS = frozenset("is are was were be been being named called as answer either both".split())


def _has_company(
    tokens: tuple[Token, ...], start: int, end: int, asked: set[str], allowed: set[str]
) -> bool:
  """True where another candidate stands beside the name: "X or Y", "X, Y and Z", "X/Y"."""
  conjunctions = ("and", "or", "nor")
  numbered = any(t.text.isdigit() for t in tokens[start:end])
  known = lambda word: word in asked or word in allowed or word.isdigit() and not numbered
  harmless = lambda item: all(map(known, item)) or " ".join(item) in words.PLACES
  beside = {t.text for t in tokens[max(0, start - 1):start] + tokens[end:end + 1]}
  if tokens[start].text >= "\u2e80" and beside & words.CJK_CONJUNCTIONS:
    return True
  # To the right.
  at = end
  if at < len(tokens):
    gap, word = tokens[at].gap, tokens[at].text
    linked = word in conjunctions
    ranged = word in _RANGES
    if linked or ranged or gap.strip("\")(") in _SEPARATORS:
      at += linked or ranged
      if at < len(tokens) and tokens[at].text in (*conjunctions, "then"):
        linked, at = True, at + 1
      if at < len(tokens) and tokens[at].text in ("the", "a", "an") and linked:
        at += 1
      item, stop = [], at
      while (stop < len(tokens) and (stop == at or tokens[stop].joined)
             and tokens[stop].text not in words.FUNCTION):
        item.append(tokens[stop].text)
        stop += 1
      own = " ".join(t.text for t in tokens[start:end])
      both_places = " ".join(item) in words.PLACES and own in words.PLACES
      qualified = both_places and not linked and gap.startswith(",")
      closes = stop == len(tokens) or not tokens[stop].joined or tokens[stop].text in conjunctions
      if item and (linked or closes) and (not harmless(item) or qualified):
        return True
  # To the left.
  back = start - 1
  if back >= 0 and re.fullmatch(r"\W*[(\[]\W*", tokens[start].gap):  # "Bergen (Oslo)"
    left = tokens[back].text
    own = words.FUNCTION | words.LABELS | words.KIND_NOUNS | words.PLACE_KINDS | words.TITLES
    if not known(left) and left not in own and (left < "\u2e80") == (tokens[start].text < "\u2e80"):
      return True
  while back >= 0 and tokens[back].text in ARTICLES and tokens[back + 1].joined:
    back -= 1
  if back >= 0:
    gap = tokens[back + 1].gap
    linked = tokens[back].text in conjunctions
    if linked or gap.strip("\")(") in _SEPARATORS:
      back -= linked
      item = []
      while (back >= 0 and tokens[back].text not in words.FUNCTION
             and (not item or tokens[back + 1].joined)):
        item.insert(0, tokens[back].text)
        back -= 1
      stops = tokens[back].text if back >= 0 else ""
      fresh = back < 0 or not tokens[back + 1].joined
      listing = linked or fresh or stops in _LINKS | set(conjunctions) or (
          stops in ARTICLES and back > 0 and tokens[back - 1].text in _LINKS)
      if item and listing and not harmless(item):
        return True
  return False


def _headed_by_another(tokens: tuple[Token, ...], start: int, known: set[str]) -> bool:
  """True where a bare name opens the answer, and this one only says more of it.

  "Bergen, 300 km from Oslo", "Bram Stoker, inspired by Mary Shelley".
  """
  if start and tokens[start - 1].text in ("now", "today", "modern"):
    return False
  head = []
  for at, token in enumerate(tokens[:start]):
    if at and not token.joined:
      break
    head.append(token.text)
  else:
    return False
  own = words.FUNCTION | words.LABELS | words.KIND_NOUNS | words.PLACE_KINDS | words.TITLES
  bare = [word for word in head if word not in ARTICLES]
  return 0 < len(bare) <= 4 and tokens[len(head)].gap not in (":", ".", "!", "\n") and not any(
      word in own | known or word.endswith("ly") or word[0].isdigit() for word in bare)


def _rivals(text: str, alias: str, asked: set[str]) -> bool:
  """True where several sentences or bullets give the same question different answers."""
  lines = [line.strip() for line in text.split("\n") if tokenize(line)]
  bullets = [line for line in lines if re.match(r"(?:[-•–]|\d+[.)])\s", line)]
  if len(bullets) > 1 and len({plain(re.sub(r"^\W*\d*[.)]?", "", b)) for b in bullets}) > 1:
    return True
  frames: dict[str, set[str]] = {}
  for sentence in sentences(text):
    opening = r"^\W*(?:or|and|also|maybe|perhaps|possibly)\W+"
    line = re.sub(opening, "", plain(sentence))
    link = re.search(r" (?:is|was) ", line)
    if link:
      frames.setdefault(line[:link.start()], set()).add(line[link.end():])
  name = plain(alias)
  for subject, rests in frames.items():
    if len(rests) > (1 if subject in ("it", "answer", "this", "he", "she", "that") else 2):
      return True
    if len(rests) > 1 and name not in subject and _only_names(rests) and not all(
        name in rest for rest in rests):
      return True
  return False


def _only_names(rests: set[str]) -> bool:
  return all(len(rest.split()) <= 5 and not set(rest.split()) & words.FUNCTION for rest in rests)
