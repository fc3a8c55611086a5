"""Does the final answer match the expected one?  The rule-based judge behind r_base.  HOST.

  judge_answer(prediction, gold, question) -> CORRECT | INCORRECT | NOT_ATTEMPTED          (SPEC 2)

A wrong answer taken for right teaches the policy to give it; a right one missed costs one rollout.
So every rule here prefers to miss: a name inside a longer name, two candidates for one answer, a
bare year for a day, one of two items, a number of another scale or unit are all INCORRECT. No
verdict depends on case, on closing punctuation, on Markdown or on citation marks.

Source   own rules; the last-significant-figure rule and the three verdicts follow the SimpleQA
         graders. Nothing is read or written; HOST, since it works on text.
"""

import dataclasses
import enum
import functools
import math
import re
import unicodedata

from rapidfuzz.distance import OSA

from searchjax.reward import answer_words as words
from searchjax.reward import quantities as q


class Verdict(enum.Enum):
  """Outcome of a comparison."""
  CORRECT = "CORRECT"
  INCORRECT = "INCORRECT"
  NOT_ATTEMPTED = "NOT_ATTEMPTED"


class _Match(enum.IntEnum):
  NO = 0
  VAGUE = 1                       # consistent with the answer, but not the answer: "more than 50k"
  YES = 2


_FOLDED = str.maketrans({
    "ø": "o", "ł": "l", "đ": "d", "ð": "d", "ı": "i", "ß": "ss", "æ": "ae", "œ": "oe", "þ": "th"})
_QUOTES = str.maketrans("’‘“”″", "''\"\"\"")
_DASHES = re.compile(r"[\u2010-\u2013\u2212\ufe58\ufe63\uff0d]")
_CITATIONS = re.compile(
    r"\[\^?(?:\d+|[a-z_]+:\d+(?:[-,:]\d+)*)(?:\s*[,;–-]\s*\d+)*\](?:\([^)]*\))?|【[^】]*】"
    r"|[\u00b9\u00b2\u00b3\u2070-\u2079]+(?=\s|$|[.,;])|</?cite[^>]*>|<sup>.*?</sup>"
    r"|\(\s*(?:source|ref|see)s?\s*:[^)]*\)|https?://\S+",
    re.I)
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+(?:['’][^\W\d_{_CJK}]+)*")
_CJK_BESIDE = frozenset(
    "的是在为為于於和与與及、有由叫即了到名市省国國县縣教授先生女士等就乃也吧呢：:「」『』《》“”")


def judge_answer(
    prediction: str, gold: str | list, question: str = ""
) -> Verdict:
  """Compares a final answer with what was expected.

  Args:
    prediction: the final answer as the user reads it: a name, a sentence, several; any language.
    gold: the expected answer: a string; one with aliases joined by "<|answer_split|>"; or a list
      of aliases, nested lists included. A parenthesised note in it ("also acceptable: petroleum")
      adds aliases.
    question: what was asked. It says which part of an answer may be left out ("in which year"),
      whether a person, a quantity or yes and no is expected, and which numbers are only repeated.

  Returns:
    CORRECT: the answer states one of the aliases, hedged or not, and nothing that contradicts it.
    NOT_ATTEMPTED: no answer, a refusal, or a bound that leaves the answer open ("more than 50k").
    INCORRECT: everything else, half an answer included.

  Raises:
    ValueError: gold holds no text.
  """
  aliases = _aliases(gold)
  if not aliases:
    raise ValueError(f"gold: expected at least one answer that is not empty; got {gold!r}")
  text = _clean(prediction)
  if any(_identical(text, alias) for alias in aliases):
    return Verdict.CORRECT
  claim = _claim(text)
  if not claim:
    return Verdict.NOT_ATTEMPTED
  question = _clean(question)
  best = max(_match(claim, alias, question, aliases) for alias in aliases)
  return {_Match.YES: Verdict.CORRECT, _Match.VAGUE: Verdict.NOT_ATTEMPTED,
          _Match.NO: Verdict.INCORRECT}[best]


# ---------------------------------------------------------------- text

def _clean(text: str) -> str:
  """What a reader sees: no thinking, tags, Markdown, citations or links; one kind of dash."""
  text = re.sub(r"(?s)<think>.*?</think>", " ", text).rsplit("</think>", 1)[-1]
  text = unicodedata.normalize("NFKC", _CITATIONS.sub(" ", text))
  text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
  text = re.sub(r"\\(?:boxed|text|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", text)
  text = re.sub(r"</?[a-z][^<>]*>", " ", text, flags=re.I)
  text = re.sub(r"[*`#|]+|__+|~~", "", text)
  text = _DASHES.sub("-", text).replace("—", " - ").translate(_QUOTES)
  text = re.sub(r"[ \t]+", " ", text)
  text = re.sub(r"\s+([.,;:!?])", r"\1", text)
  return text.strip().strip("\"'").strip()


def _fold(text: str) -> str:
  """Without case and without accents: "Temür" and "TEMUR" are one word."""
  text = unicodedata.normalize("NFKD", text.casefold().translate(_FOLDED))
  return unicodedata.normalize("NFC", "".join(c for c in text if not unicodedata.combining(c)))


@dataclasses.dataclass(frozen=True)
class _Token:
  """A folded word, and what stands between it and the word before: "" for a blank, "^" at the
  beginning."""
  text: str
  gap: str
  start: int

  @property
  def joined(self) -> bool:
    """Nothing but a blank, a hyphen or a genitive parts it from the word before."""
    return self.gap in ("", "-", "'s")


_SHORTENED = frozenset("st ste mt ft dr mr mrs ms prof gen col capt lt rev hon no vs jr sr".split())


@functools.lru_cache(4096)
def _tokens(text: str) -> tuple[_Token, ...]:
  """Words of a text; every CJK character is one, "J. K." is one, "&" reads "and"."""
  text = _fold(text).replace("&", " and ")
  out: list[_Token] = []
  end, genitive, initials, shortened = 0, False, False, False
  for match in _TOKEN.finditer(text):
    raw = text[end:match.start()]
    end = match.end()
    gap = "\n" if "\n" in raw else raw.strip() if raw.strip() != "-" or raw == "-" else "--"
    gap = "'s" if genitive and not gap else gap
    word = match.group()
    genitive = word.endswith(("'s", "s'"))
    word = (word[:-2] if word.endswith("'s") else word).replace("'", "")
    gap = "" if gap == "." and out and shortened else gap     # "St. Louis" is no two sentences
    shortened = word in _SHORTENED
    word = {"st": "saint", "mt": "mount"}.get(word, word)
    single = len(word) == 1 and word.isalpha() and word < "\u2e80"
    if single and initials and gap in ("", "."):
      out[-1] = _Token(out[-1].text + word, out[-1].gap, out[-1].start)
    else:
      out.append(_Token(word, gap if out else "^", match.start()))
      initials = single
  return tuple(out)


def _plain(text: str) -> str:
  return " ".join(t.text for t in _tokens(text) if t.text not in _ARTICLES)


def _identical(text: str, alias: str) -> bool:
  """The same words; where there are digits, the same signs too: 1-8 is not 18, and -5 not 5."""
  if any(c.isdigit() for c in alias):
    return _fold(text).rstrip(" .!?") == _fold(alias).rstrip(" .!?")
  return bool(_plain(alias)) and _plain(text) == _plain(alias)


_ARTICLES = frozenset(("the", "a", "an"))


def _aliases(gold: str | list | tuple) -> list[str]:
  """Every string that would do: nested lists flattened, joined aliases split, notes read."""
  if isinstance(gold, (list, tuple)):
    return [alias for part in gold for alias in _aliases(part)]
  out = []
  for alias in str(gold).split("<|answer_split|>"):
    alias = _clean(alias)
    note = r"\s*\((?:[^()]|\([^()]*\))*\)"
    head = re.sub(note, lambda found: _read_note(found.group(), out), alias)
    head = words.HONORIFICS.sub("", head.strip()).strip(" .")
    out += [text for text in (head, alias.strip(" .")) if text]
  return list(dict.fromkeys(out))


def _read_note(note: str, aliases: list[str]) -> str:
  """Takes a grader's note out of an answer, and its aliases in; other parentheses stay."""
  inside = note.strip()[1:-1]
  if re.fullmatch(r"[A-Z][A-Z0-9.]{1,7}", inside):                            # an acronym
    aliases.append(inside)
    return ""
  if not words.NOTE.search(inside):
    return note
  quoted = re.findall(r"(?<!\w)['\"]([^'\"]+)['\"](?!\w)", inside)
  bare = re.match(r"\s*(?:or|also(?: accept(?:able)?)?:?|aka|a\.k\.a\.|formerly|also known as)"
                  r"\s+([\w .-]+)$", inside)
  aliases += [text for text in quoted + ([bare.group(1)] if bare else []) if text.strip()]
  return ""


def _sentences(text: str) -> list[str]:
  ends = r"(?<=[!?。！？])\s*|(?<=[^\W\d_]{2}[.)\"'])\s+|(?<=\d[.])\s+(?=\D)|\n+"
  parts = re.split(ends, text)
  return [part for part in parts if part and _tokens(part)]


def _claim(text: str) -> str:
  """What a prediction asserts, refusals taken out; an announced answer alone; "" for nothing."""
  *_, marker = [None, *words.MARKER.finditer(text)]
  if marker and _tokens(text[marker.end():]):
    text = _sentences(text[marker.end():])[0]
  text = words.DOUBT.sub(" ", text)
  if not _tokens(text):
    return ""
  if not words.ABSTENTION.search(text):
    return text
  kept = []
  for sentence in _sentences(text):
    pieces = [piece for piece in words.CONTRAST.split(sentence) if piece and _tokens(piece)]
    refused = [bool(words.ABSTENTION.search(piece)) for piece in pieces]
    for number, piece in enumerate(pieces):
      beside = any(refused) and (not any(refused[:number]) or len(_tokens(piece)) <= 6)
      if not refused[number] and (beside or words.CLAIM.search(piece)):
        kept.append(piece)
  return ". ".join(kept)


# ---------------------------------------------------------------- kinds of answers

def _match(claim: str, alias: str, question: str, aliases: list[str]) -> _Match:
  plain = _plain(alias)
  if plain in words.YES or plain in words.NO:
    return _Match.YES if _polarity(claim, question) is (plain in words.YES) else _Match.NO
  if words.SECOND_THOUGHT.search(claim):
    return _Match.NO
  quantity = _sole_quantity(alias, question)
  if quantity is not None:
    return _match_quantity(claim, quantity, question)
  items = _items(alias, question)
  if _says(claim, alias, question, aliases, whole=len(items) > 1):
    return _Match.YES
  if len(items) > 1:
    return _Match.YES if _says_all(claim, items, question) else _Match.NO
  if len(_tokens(alias)) > (4 if words.YES_NO_QUESTION.search(question) else 7):
    return _Match.YES if _says_statement(claim, alias, question) else _Match.NO
  return _Match.NO


# ---------------------------------------------------------------- yes and no

def _polarity(claim: str, question: str) -> bool | None:
  """True for yes, False for no, None where the claim does not say, or says both."""
  tokens = _tokens(claim)
  text = [t.text for t in tokens]
  filler = _ARTICLES | {"it", "is", "answer", "that", "this"}
  lead = next((w for w in text if w not in filler), "")
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
  wanted = {t.text for t in _tokens(question)} - words.FUNCTION
  shared = wanted & set(text)
  if not wanted or len(shared) < 0.6 * len(wanted) or not words.YES_NO_QUESTION.search(question):
    return None
  if words.NEGATIVE_CLAIM.search(claim):
    return None if words.NEGATIVE_CLAIM.search(question) else False
  contrast = re.search(r"\b(?:while|whereas|but|although|though|different|only|or)\b", claim, re.I)
  return None if contrast or words.NEGATIVE_CLAIM.search(question) else True


def _before(tokens: tuple[_Token, ...], token: _Token) -> str:
  index = tokens.index(token)
  return tokens[index - 1].text if index else ""


# ---------------------------------------------------------------- numbers, dates, ranges

def _sole_quantity(alias: str, question: str) -> q.Quantity | None:
  """The quantity that an expected answer consists of; None where it is a name or a sentence."""
  found = q.find_quantities(alias)
  if not found or found[0].start > 14:
    return None
  first = found[0]
  before, after = alias[:first.start], alias[first.end:]
  small = lambda text: all(t.text in words.FUNCTION or t.text in ("circa", "ca", "c", "us", "us$")
                           for t in _tokens(text))
  if not small(before):
    return None
  if small(after):
    return first
  asked = bool(words.QUANTITY_QUESTION.search(question))
  worked_out = re.fullmatch(r"\s*[=(][\d\s+\-*/×÷=().,%]*", after)     # "100 (59 + 76) - 35"
  number = isinstance(first, q.Number)
  converted = number and first.unit and len(found) == 2 and re.fullmatch(r"\s*\([^()]*\)", after)
  noun = number and len(found) == 1 and len(_tokens(after)) <= 3 and re.match(r"[\s-]\w", after)
  explained = re.match(r"\s*(?:--|\s-\s|[:;(,])", after)
  return first if worked_out or converted or asked and (noun or explained) else None


def _match_quantity(claim: str, gold: q.Quantity, question: str) -> _Match:
  said = q.find_quantities(claim)
  asked = q.find_quantities(question)
  echoes = lambda item: any(_same_quantity(item, other, question) == _Match.YES for other in asked)
  counted = re.search(r"\bhow\s+(?:many|much)\b", question, re.I)
  if q.is_year(gold) and not counted:
    gold = q.Date(int(gold.value), None, None, gold.start, gold.end)
  if isinstance(gold, q.Date):
    said = [q.Date(int(s.value), None, None, s.start, s.end) if q.is_year(s) else s for s in said]
  kinds = {q.Date: (q.Date,), q.Pair: (q.Pair,), q.Clock: (q.Clock, q.Number),
           q.Number: (q.Number, q.Clock)}
  candidates = [s for s in said if isinstance(s, kinds[type(gold)])]
  if isinstance(gold, q.Number):
    same_unit = [s for s in candidates if gold.unit and getattr(s, "unit", None)
                 and not math.isnan(q.convert(1.0, s.unit, gold.unit))]
    ordinal = lambda s: isinstance(s, q.Number) and s.ordinal
    foreign = [s for s in candidates if ordinal(s) and not gold.ordinal]
    candidates = same_unit or [s for s in candidates if s not in foreign] or candidates
  new = [s for s in candidates if not echoes(s)]
  candidates = new or candidates
  if not candidates or _negated_quantity(claim, candidates[0]):
    return _Match.NO
  if isinstance(gold, (q.Number, q.Date)) and any(
      isinstance(s, q.Pair) and not echoes(s) for s in said):
    return _Match.NO                                    # "4-5", "between 4 and 5": no commitment
  verdicts = [_same_quantity(s, gold, question) for s in candidates]
  for one, other, a, b in zip(candidates, candidates[1:], verdicts, verdicts[1:]):
    between = claim[one.end:other.start]
    listing = (r"[\s,(]*(?:or|and|/|,|;|\n)?[\s,]*"
               r"(?:(?:maybe|possibly|perhaps|even|in|on)\s+)*")
    if a != b and re.fullmatch(listing, between, re.I):
      return _Match.NO                                        # two candidates side by side
  if verdicts[0] == _Match.NO and _Match.YES in verdicts:
    chosen = verdicts.index(_Match.YES)
    total = re.search(r"(?:=|equals|total(?:s|ling)?(?: of)?|therefore|thus|so|hence)\W*"
                      r"(?:is|are|was|the|of|\s)*$", claim[:candidates[chosen].start], re.I)
    return _Match.YES if total and chosen == len(verdicts) - 1 else _Match.NO
  return verdicts[0]


def _negated_quantity(claim: str, item: q.Quantity) -> bool:
  before = _tokens(re.split(r"[.;,]|\bbut\b", claim[:item.start])[-1])
  return any(t.text in words.NEGATIONS for t in before[-3:])


def _same_quantity(said: q.Quantity, gold: q.Quantity, question: str) -> _Match:
  if isinstance(gold, q.Pair) and isinstance(said, q.Pair):
    return min(_same_quantity(said.first, gold.first, question),
               _same_quantity(said.second, gold.second, question))
  if isinstance(gold, q.Date):
    same = isinstance(said, q.Date) and _same_date(said, gold, question)
    return _Match.YES if same else _Match.NO
  if isinstance(gold, q.Clock) or isinstance(said, q.Clock):
    return _Match.YES if _same_time(said, gold) else _Match.NO
  if isinstance(gold, q.Number) and isinstance(said, q.Number):
    return _same_number(said, gold, question)
  return _Match.NO


def _same_date(said: q.Date, gold: q.Date, question: str) -> bool:
  """Equal down to what is expected, less what the question already says or does not ask."""
  year_only = re.search(r"\b(?:what|which)\s+year\b", question, re.I)
  month_only = re.search(r"\b(?:what|which)\s+month\b", question, re.I)
  told = gold.year is not None and re.search(rf"\b{abs(gold.year)}\b", question)
  if told and said.year is None:
    said = dataclasses.replace(said, year=gold.year)
  if said.year != gold.year:
    return False
  if gold.month is None or (year_only and said.month is None):
    return True
  if said.month != gold.month:
    return False
  return gold.day is None or (month_only and said.day is None) or said.day == gold.day


def _same_time(said: q.Quantity, gold: q.Quantity) -> bool:
  if isinstance(said, q.Clock) and isinstance(gold, q.Clock):
    return said.parts == gold.parts and (not gold.half or not said.half or said.half == gold.half)
  clock, number = (said, gold) if isinstance(said, q.Clock) else (gold, said)
  if not isinstance(number, q.Number) or number.unit not in q.TIME_UNITS or clock.half:
    return False
  total = q.seconds(number.value, number.unit)
  a, b, c = (*clock.parts, 0)[:3]
  readings = {3600 * a + 60 * b + c} if len(clock.parts) == 3 else {3600 * a + 60 * b, 60 * a + b}
  return any(math.isclose(total, reading) for reading in readings)


def _same_number(said: q.Number, gold: q.Number, question: str) -> _Match:
  value, step = said.value, said.step
  if gold.unit and said.unit and gold.unit != said.unit:
    value, step = q.convert(value, said.unit, gold.unit), step * abs(
        q.convert(1.0, said.unit, gold.unit) - q.convert(0.0, said.unit, gold.unit))
    if math.isnan(value):
      return _Match.NO
    tolerance = min(0.5 * (gold.step + step), 0.01 * abs(gold.value))
    return _Match.YES if abs(value - gold.value) <= tolerance else _Match.NO
  if gold.unit and not said.unit and gold.unit not in q.CURRENCIES:
    named = [surface for surface, unit in q.UNIT_OF.items() if unit == gold.unit]
    asked = _tokens(question)
    if gold.unit != "%" and not any(t.text in named for t in asked):
      return _Match.NO
    if gold.unit == "%" and not re.search(r"percent|share|rate|proportion|%", question, re.I):
      return _Match.NO
  half = 0.5 * gold.step
  if gold.exact:
    equal = math.isclose(value, gold.value, rel_tol=1e-12)
  else:
    equal = gold.value - half - 1e-9 * abs(gold.value) <= value < gold.value + half
  if said.bound in ("above", "below") and said.bound != gold.bound:
    open_end = value < gold.value if said.bound == "above" else value > gold.value
    return _Match.VAGUE if open_end or equal else _Match.NO
  if equal:
    return _Match.YES
  near = said.bound == "about" and abs(value - gold.value) <= 0.25 * abs(gold.value)
  return _Match.VAGUE if near else _Match.NO


# ---------------------------------------------------------------- names

def _says(
    claim: str, alias: str, question: str, aliases: list[str], *,
    listed: bool = False, whole: bool = False
) -> bool:
  """True where the claim gives the name as its one answer.

  `listed`: as one of several items, so company is welcome. `whole`: the name reads like a list, so
  only in full.
  """
  asked = {t.text for t in _tokens(question)}
  person = bool(words.PERSON_QUESTION.search(question))
  allowed = {t.text for other in aliases for t in _tokens(other)}
  text = claim
  if not listed and len(_tokens(claim)) > max(60, 6 * len(_tokens(alias))):
    ends = _sentences(claim)                            # a report: its answer opens or closes it
    text = f"{ends[0]}\n\n{ends[-1]}" if len(ends) > 1 else ""
  tokens = _tokens(text)
  if not listed and _rivals(text, alias, asked):
    return False
  for name in _variants(alias, asked, question, listed)[:1 if whole else None]:
    spans = _find(tokens, name, person)
    if spans:
      # The last mention decides: what follows "not Paris but" or "A or B, so" is what is meant.
      start, end = spans[-1]
      return (_stands_alone(tokens, start, end, name, asked, person, allowed)
              and not _negated(tokens, start, end, question)
              and (listed or not _has_company(tokens, start, end, asked, allowed)))
  return False


def _variants(alias: str, asked: set[str], question: str, listed: bool) -> list[tuple[str, ...]]:
  """Ways to write a name, the fullest first."""
  core = lambda text: tuple(t.text for t in _tokens(text) if t.text not in _ARTICLES)
  out = [core(alias)]
  head, comma, tail = alias.partition(",")
  if comma and core(head):
    implied = set(core(tail)) <= asked
    asks_place = re.search(r"\b(?:city|town|village|place|where)\b", question, re.I)
    implied = implied or _plain(tail) in words.PLACES and bool(listed or asks_place)
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


def _find(tokens: tuple[_Token, ...], name: tuple[str, ...], person: bool) -> list[tuple[int, int]]:
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
      elif word in _ARTICLES and at > start:
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


def _typo(word: str, expected: str) -> bool:
  return (min(len(word), len(expected)) > 4 and word[0] == expected[0]
          and word.isalpha() and expected.isalpha() and OSA.distance(word, expected) == 1)


def _stands_alone(
    tokens: tuple[_Token, ...], start: int, end: int, name: tuple[str, ...], asked: set[str],
    person: bool, allowed: set[str]
) -> bool:
  """False where the name is part of another one: "York" of New York, "Paris" of Paris Hilton."""
  is_cjk = lambda word: word >= "\u2e80"
  others = asked | (allowed - set(name))
  titles = words.TITLES if person or not asked else frozenset()
  if start and tokens[start].joined:
    at = start - 1
    if at and tokens[at].text in _ARTICLES and tokens[at].joined and tokens[at - 1].text == "of":
      at -= 1                                                 # "Republic of the Congo"
    left = tokens[at].text
    before = tokens[at - 1].text if at and tokens[at].joined else ""
    if is_cjk(left) and is_cjk(tokens[start].text):
      if left not in _CJK_BESIDE:
        return False
    elif left in words.DISTINGUISHING:
      return False
    elif left in words.PARTICLES:
      if before not in words.COPULAS - {"is", "are", "was", "were"}:
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
      return right in _CJK_BESIDE
    after = tokens[end + 1].text if end + 1 < len(tokens) and tokens[end + 1].joined else ""
    ends = not after or after in words.FUNCTION
    if tokens[end].gap == "-":
      return right in ("based", "born")
    if right in words.DISTINGUISHING | words.PLACE_ENDINGS:
      return False
    if right in words.PARTICLES - words.COPULAS:              # "Barra do Corda", unlike "do not"
      return right in words.FUNCTION and ends
    if right in words.KIND_NOUNS:
      return ends or after in words.KIND_NOUNS
    if right not in words.FUNCTION | others and not is_cjk(right):
      return False
  return True


def _negated(tokens: tuple[_Token, ...], start: int, end: int, question: str) -> bool:
  before: list[str] = []
  for index in range(start - 1, max(-1, start - 6), -1):
    if tokens[index].text == "but":
      break
    before.append(tokens[index].text)
    if tokens[index + 1].gap not in ("", "-", "'s", "\"", "(") and index + 1 != start:
      before.pop()
      break
  phrase = " ".join(reversed(before))
  passed_over = r"rather than|instead of|other than|mistaken for|confused with"
  if set(before) & words.NEGATIONS or re.search(passed_over, phrase):
    return True
  after = []
  for token in tokens[end:end + 3]:
    if token.gap not in ("", "-", "'s"):
      break
    after.append(token.text)
  return bool(set(after) & words.NEGATIONS) and not words.NEGATIVE_CLAIM.search(question)


_SEPARATORS = frozenset((",", "/", ";", "\n", "+", "、", "，", "--", ".."))
_LINKS = frozenset("is are was were be been being named called as answer either both".split())


def _has_company(
    tokens: tuple[_Token, ...], start: int, end: int, asked: set[str], allowed: set[str]
) -> bool:
  """True where another candidate stands beside the name: "X or Y", "X, Y and Z", "X/Y"."""
  conjunctions = ("and", "or", "nor")
  known = lambda word: word in asked or word in allowed or word.isdigit()
  harmless = lambda item: all(map(known, item)) or " ".join(item) in words.PLACES
  # To the right.
  at = end
  if at < len(tokens):
    gap, word = tokens[at].gap, tokens[at].text
    linked = word in conjunctions
    if linked or gap.strip("\")(") in _SEPARATORS:
      at += linked
      if at < len(tokens) and tokens[at].text in conjunctions:
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
  while back >= 0 and tokens[back].text in _ARTICLES and tokens[back + 1].joined:
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
          stops in _ARTICLES and back > 0 and tokens[back - 1].text in _LINKS)
      if item and listing and not harmless(item):
        return True
  return False


def _rivals(text: str, alias: str, asked: set[str]) -> bool:
  """True where several sentences or bullets give the same question different answers."""
  lines = [line.strip() for line in text.split("\n") if _tokens(line)]
  bullets = [line for line in lines if re.match(r"(?:[-•–]|\d+[.)])\s", line)]
  if len(bullets) > 1 and len({_plain(re.sub(r"^\W*\d*[.)]?", "", b)) for b in bullets}) > 1:
    return True
  frames: dict[str, set[str]] = {}
  for sentence in _sentences(text):
    opening = r"^\W*(?:or|and|also|maybe|perhaps|possibly)\W+"
    plain = re.sub(opening, "", _plain(sentence))
    link = re.search(r" (?:is|was) ", plain)
    if link:
      frames.setdefault(plain[:link.start()], set()).add(plain[link.end():])
  name = _plain(alias)
  for subject, rests in frames.items():
    if len(rests) > (1 if subject in ("it", "answer", "this", "he", "she", "that") else 2):
      return True
    if len(rests) > 1 and name not in subject and _only_names(rests) and not all(
        name in rest for rest in rests):
      return True
  return False


def _only_names(rests: set[str]) -> bool:
  return all(len(rest.split()) <= 5 and not set(rest.split()) & words.FUNCTION for rest in rests)


# ---------------------------------------------------------------- lists

def _items(alias: str, question: str) -> list[str]:
  """Items that must all be given; one item where the answer is no list."""
  if "\n" in alias or ";" in alias:
    parts = re.split(r"[\n;]+", alias)
  elif len(_tokens(alias)) > 14 and not alias.count(",") > 2:
    return [alias]
  elif re.search(r",.*,|,\s*and\b", alias) or re.search(r"\s(?:and|&)\s", alias):
    parts = re.split(r",\s*(?:and\s+)?|\s+(?:and|&)\s+", alias)
  elif alias.count(",") == 1 and _plain(alias.split(",")[1]) not in words.PLACES and re.search(
      r"\b(?:two|both|names|which \w+s\b)", question, re.I):
    parts = alias.split(",")
  else:
    return [alias]
  parts = [part.strip(" .") for part in parts if _tokens(part)]
  if any(len(_tokens(part)) > 8 for part in parts):
    return [alias]
  return parts or [alias]


def _says_all(claim: str, items: list[str], question: str) -> bool:
  """True where every item is given, and no item beside them."""
  asked = {t.text for t in _tokens(question)}
  for item in items:
    quantity = _sole_quantity(item, question)
    if quantity is not None:
      said = q.find_quantities(claim)
      if not any(_same_quantity(s, quantity, question) == _Match.YES for s in said):
        return False
    elif not _says(claim, item, question, items, listed=True):
      return False
  known = {t.text for item in items for t in _tokens(item)}
  opening = r"\b(?:is|are|was|were|include|includes|included|namely)\b|:"
  body = re.split(opening, claim, maxsplit=1, flags=re.I)[-1]
  if not any(t.text in known for t in _tokens(body)):
    body = claim
  for part in re.split(r"[,;\n/]|\b(?:and|or|plus|as well as)\b", body, flags=re.I):
    own = [t.text for t in _tokens(re.split(r"[(.]", part)[0])]
    content = [w for w in own if w not in words.FUNCTION | words.TITLES | asked]
    if content and own[0] not in words.FUNCTION - _ARTICLES and not set(content) & known:
      return False
    if re.search(r"\bor\b", body, re.I) and not re.search(r"\bor\b", " ".join(items), re.I):
      return False
  return not words.SECOND_THOUGHT.search(claim)


# ---------------------------------------------------------------- sentences

def _says_statement(claim: str, alias: str, question: str) -> bool:
  """True where a claim carries every fact of an expected sentence, and its polarity."""
  if words.YES_NO_QUESTION.search(question):
    expected = _leaning(alias)
    if _leaning(claim) != expected:
      return False
  elif bool(words.NEGATIVE_CLAIM.search(alias)) != bool(words.NEGATIVE_CLAIM.search(claim)):
    return False
  if len(_tokens(claim)) > 3 * len(_tokens(alias)) + 30:
    return False
  # What the sentence says in passing about its subject is not what was asked.
  be = r"\b(?:is|are|was|were)\b"
  alias = re.sub(rf"\b(?:that|which|who)\b[^,.]*?{be}[^,.]*?(?={be})", "", alias)
  asked = {t.text for t in _tokens(question)}
  said = [*q.find_quantities(claim), *_spread(q.find_quantities(claim)),
          *_spread(q.find_quantities(question))]
  facts = q.find_quantities(alias)
  for fact in facts:
    if not any(_same_quantity(s, fact, question) == _Match.YES for s in said):
      return False
  covered = [(fact.start, fact.end) for fact in facts]
  spoken = {t.text for t in _tokens(claim)}
  names, content = set(), set()
  for match in re.finditer(rf"[^\W_{_CJK}]+(?:'[^\W_]+)*|[{_CJK}]", alias):
    if any(start <= match.start() < end for start, end in covered):
      continue
    folded = _tokens(match.group())
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
  lead = next((t.text for t in _tokens(text) if t.text not in _ARTICLES), "")
  if lead in words.YES:
    return True
  return not (lead in words.NO or words.NEGATIVE_CLAIM.search(text))


def _spread(found: list[q.Quantity]) -> list[q.Quantity]:
  """Quantities with the ends of pairs, and years as dates."""
  out = []
  for item in found:
    parts = [item.first, item.second] if isinstance(item, q.Pair) else [item]
    out += parts + [q.Date(int(p.value), None, None, p.start, p.end) for p in parts if q.is_year(p)]
  return out
