"""Whether an answer gives a number, a date, a time or a range.  HOST.

`reward.quantities` finds and reads them; here is what makes two of them the same answer, and which
one of several is meant. Section: SPEC 2 (r_base).

Source   right to the last significant figure that is expected: the SimpleQA graders' rule.
"""

import dataclasses
import enum
import math
import re

from searchjax.reward import answer_words as words
from searchjax.reward import quantities as q
from searchjax.reward.answer_text import tokenize


class Match(enum.IntEnum):
  NO = 0
  VAGUE = 1                       # consistent with the answer, but not the answer: "more than 50k"
  YES = 2


def sole_quantity(alias: str, question: str) -> q.Quantity | None:
  """The quantity that an expected answer consists of; None where it is a name or a sentence."""
  found = q.find_quantities(alias)
  if not found or found[0].start > 14:
    return None
  first = found[0]
  before, after = alias[:first.start], alias[first.end:]
  if re.fullmatch(r"[人名个個位次岁歳件]", after):             # "1400万人": a counter, not a unit
    after = ""
  small = lambda text: all(t.text in words.FUNCTION or t.text in ("circa", "ca", "c", "us", "us$")
                           for t in tokenize(text))
  if not small(before):
    return None
  if small(after):
    return first
  asked = bool(words.QUANTITY_QUESTION.search(question))
  worked_out = re.fullmatch(r"\s*[=(][\d\s+\-*/×÷=().,%]*", after)     # "100 (59 + 76) - 35"
  number = isinstance(first, q.Number)
  converted = number and first.unit and len(found) == 2 and re.fullmatch(r"\s*\([^()]*\)", after)
  noun = number and len(found) == 1 and len(tokenize(after)) <= 3 and re.match(r"[\s-]\w", after)
  explained = re.match(r"\s*(?:--|\s-\s|[:;(,])", after)
  return first if worked_out or converted or asked and (noun or explained) else None


def match_quantity(claim: str, gold: q.Quantity, question: str) -> Match:
  said = q.find_quantities(claim)
  asked = q.find_quantities(question)
  echoes = lambda item: any(same_quantity(item, other, question) == Match.YES for other in asked)
  counted = re.search(r"\bhow\s+(?:many|much)\b(?:\s+(\w+))?", question, re.I)
  if not counted:
    gold = as_date(gold)
  if isinstance(gold, q.Date):
    said = [as_date(s) for s in said]
  kinds = {q.Date: (q.Date,), q.Pair: (q.Pair,), q.Clock: (q.Clock, q.Number),
           q.Number: (q.Number, q.Clock)}
  candidates = [s for s in said if isinstance(s, kinds[type(gold)])]
  if isinstance(gold, q.Number):
    same_unit = [s for s in candidates if gold.unit and getattr(s, "unit", None)
                 and not math.isnan(q.convert(1.0, s.unit, gold.unit))]
    ordinal = lambda s: isinstance(s, q.Number) and s.ordinal
    foreign = [s for s in candidates if ordinal(s) and not gold.ordinal]
    candidates = same_unit or [s for s in candidates if s not in foreign] or (
        [] if counted else candidates)
    candidates = [s for s in candidates if _of_its_kind(s, gold, claim, question)]
  if counted and counted[1]:                  # how many goals: "32 goals", not "38 matches"
    noun = re.compile(rf"\W+(?:\w+\W+)?{re.escape(counted[1])}\b", re.I)
    candidates = [s for s in candidates if noun.match(claim, s.end)] or candidates
  new = [s for s in candidates if not echoes(s)]
  candidates = new or candidates
  if not candidates or _negated_quantity(claim, candidates[0]):
    return Match.NO
  if _computed(claim, candidates[0]) or _other_event(claim, question):
    return Match.NO
  if isinstance(gold, q.Date) and _open_ended(claim, candidates[0], question):
    return Match.VAGUE
  if isinstance(gold, (q.Number, q.Date)) and any(
      isinstance(s, q.Pair) and not echoes(s) for s in said):
    return Match.NO                                    # "4-5", "between 4 and 5": no commitment
  verdicts = [same_quantity(s, gold, question) for s in candidates]
  for one, other, a, b in zip(candidates, candidates[1:], verdicts, verdicts[1:]):
    between = claim[one.end:other.start]
    listing = (r"[\s,(]*(?:or|and|/|,|;|\n)?[\s,]*"
               r"(?:(?:maybe|possibly|perhaps|even|in|on)\s+)*")
    if a != b and re.fullmatch(listing, between, re.I):
      return Match.NO                                        # two candidates side by side
  if verdicts[0] == Match.NO and Match.YES in verdicts:
    chosen = verdicts.index(Match.YES)
    total = re.search(r"(?:=|equals|total(?:s|ling)?(?: of)?|therefore|thus|so|hence)\W*"
                      r"(?:is|are|was|the|of|\s)*$", claim[:candidates[chosen].start], re.I)
    return Match.YES if total and chosen == len(verdicts) - 1 else Match.NO
  return verdicts[0]


def _of_its_kind(said: q.Quantity, gold: q.Number, claim: str, question: str) -> bool:
  """False where one counts what the other does not: "27 months" for 27, "5 people" for $5."""
  unit = getattr(said, "unit", None)
  if isinstance(said, q.Clock) or bool(gold.unit) == bool(unit):
    return True
  if gold.unit:
    after = re.match(r"\s+([^\W\d_]+)", claim[said.end:])
    told = {t.text for t in tokenize(question)} | words.FUNCTION
    return not after or tokenize(after[1])[0].text in told
  usual = {"%": r"percent|share|rate|proportion|%", "year": r"\bold\b|\bage\b|\byears?\b"}
  money = r"\bmuch\b|cost|price|worth|salary|revenue|budget|paid|raised|\$|value|money"
  named = "|".join(re.escape(surface) for surface, name in q.UNIT_OF.items() if name == unit)
  return bool(re.search(usual.get(unit, money if unit in q.CURRENCIES else r"(?!)"), question, re.I)
              or re.search(rf"\b(?:{named})\b", question, re.I))


def _computed(claim: str, item: q.Quantity) -> bool:
  """The number is a part of a sum, or one of two days: "5 minus 1", "11 or 12 May"."""
  after = r"\s*(?:[-+*×/÷]\s+\d|\^\s*-?\d|(?:minus|plus|times)\s+\d)"
  rest = claim[item.end:]
  if isinstance(item, q.Number) and re.match(after, rest, re.I) and not (
      re.search(r"=|equals", rest, re.I)):
    return True
  return isinstance(item, q.Date) and bool(
      re.search(r"\b\d{1,2}\s*(?:or|and|/|-|to)\s*$", claim[:item.start], re.I))


_EVENTS = [tuple(re.compile(rf"\b(?:{side})\b", re.I) for side in pair) for pair in [
    (r"born|births?|birthday", r"die[ds]?|deaths?|dead"),
    (r"open(?:s|ed|ing)?|found(?:s|ed|ing)?|established|start(?:s|ed)?|beg[aiu]n(?:s|ning)?",
     r"clos(?:e[ds]?|ing)|dissol\w+|abolish\w+|ended|ends?|finish\w*|demolish\w+"),
]]


def _other_event(claim: str, question: str) -> bool:
  """The claim only speaks of an event's opposite: of a death where a birth was asked."""
  for one, other in [*_EVENTS, *(pair[::-1] for pair in _EVENTS)]:
    if one.search(question) and not other.search(question) and (
        other.search(claim) and not one.search(claim)):
      return True
  return False


_OPEN_END = re.compile(r"\b(after|before|prior to|earlier than|later than)\W*$", re.I)


def _open_ended(claim: str, item: q.Quantity, question: str) -> bool:
  """"after 1969" names no date, unless the question asks for one in these words."""
  found = _OPEN_END.search(claim[:item.start])
  return bool(found) and found[1].lower() not in question.lower()


def _negated_quantity(claim: str, item: q.Quantity) -> bool:
  before = tokenize(re.split(r"[.;,]|\bbut\b", claim[:item.start])[-1])
  return any(t.text in words.NEGATIONS for t in before[-3:])


def same_quantity(said: q.Quantity, gold: q.Quantity, question: str) -> Match:
  if isinstance(gold, q.Pair) and isinstance(said, q.Pair):
    ends = [[as_date(end) for end in (pair.first, pair.second)] for pair in (said, gold)]
    if not all(isinstance(end, q.Date) for pair in ends for end in pair):
      ends = [[pair.first, pair.second] for pair in (said, gold)]
    return min(same_quantity(one, other, question) for one, other in zip(*ends, strict=True))
  if isinstance(gold, q.Date):
    same = isinstance(said, q.Date) and _same_date(said, gold, question)
    return Match.YES if same else Match.NO
  if isinstance(gold, q.Clock) or isinstance(said, q.Clock):
    return Match.YES if _same_time(said, gold) else Match.NO
  if isinstance(gold, q.Number) and isinstance(said, q.Number):
    return _same_number(said, gold, question)
  return Match.NO


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
    loose = said.parts == gold.parts and not (gold.half and said.half and gold.half != said.half)
    return loose or _on_the_day(said) == _on_the_day(gold)
  clock, number = (said, gold) if isinstance(said, q.Clock) else (gold, said)
  if not isinstance(number, q.Number) or number.unit not in q.TIME_UNITS or clock.half:
    return False
  total = q.seconds(number.value, number.unit)
  a, b, c = (*clock.parts, 0)[:3]
  readings = {3600 * a + 60 * b + c} if len(clock.parts) == 3 else {3600 * a + 60 * b, 60 * a + b}
  return any(math.isclose(total, reading) for reading in readings)


def _on_the_day(clock: q.Clock) -> tuple[int, ...]:
  """Parts on a clock of 24 hours."""
  hour = clock.parts[0] % 12 + 12 * (clock.half == "p") if clock.half else clock.parts[0]
  return hour, *clock.parts[1:]


def _same_number(said: q.Number, gold: q.Number, question: str) -> Match:
  value, step = said.value, said.step
  if (gold.unit, said.unit) in (("GBP", "pound"), ("pound", "GBP")):
    said = dataclasses.replace(said, unit=gold.unit)
  if gold.unit and said.unit and gold.unit != said.unit:
    value, step = q.convert(value, said.unit, gold.unit), step * abs(
        q.convert(1.0, said.unit, gold.unit) - q.convert(0.0, said.unit, gold.unit))
    if math.isnan(value):
      return Match.NO
    tolerance = min(max(0.5 * (gold.step + step), 1e-5 * abs(gold.value)), 0.01 * abs(gold.value))
    return Match.YES if abs(value - gold.value) <= tolerance else Match.NO
  if gold.unit and not said.unit and gold.unit not in q.CURRENCIES:
    named = [surface for surface, unit in q.UNIT_OF.items() if unit == gold.unit]
    asked = tokenize(question)
    if gold.unit != "%" and not any(t.text in named for t in asked):
      return Match.NO
    if gold.unit == "%" and not re.search(r"percent|share|rate|proportion|%", question, re.I):
      return Match.NO
  half = 0.5 * gold.step
  if gold.exact:
    equal = math.isclose(value, gold.value, rel_tol=1e-12)
  else:
    equal = gold.value - half - 1e-9 * abs(gold.value) <= value < gold.value + half
  if gold.bound in ("above", "below") and not said.bound:
    return Match.VAGUE
  if said.bound in ("above", "below") and said.bound != gold.bound:
    open_end = value < gold.value if said.bound == "above" else value > gold.value
    return Match.VAGUE if open_end or equal else Match.NO
  if equal:
    return Match.YES
  near = said.bound == "about" and abs(value - gold.value) <= 0.25 * abs(gold.value)
  return Match.VAGUE if near else Match.NO


def as_date(item: q.Quantity) -> q.Quantity:
  """A plain year as a date; anything else as it is."""
  return q.Date(int(item.value), None, None, item.start, item.end) if q.is_year(item) else item


def spread(found: list[q.Quantity]) -> list[q.Quantity]:
  """Quantities with the ends of pairs, and years as dates."""
  out = []
  for item in found:
    parts = [item.first, item.second] if isinstance(item, q.Pair) else [item]
    out += parts + [as_date(p) for p in parts if q.is_year(p)]
  return out
