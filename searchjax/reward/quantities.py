"""Numbers, units, dates, clock times and ordered pairs, found in running text.  HOST.

Used by the answer matcher: "US$222,000,000", "222 million dollars" and "$0.222 billion" become one
value, "June 20th, 1837" and "1837-06-20" one date, "1903-04" and "from 1903 to 1904" one ordered
pair. Section: SPEC 2 (r_base: the final answer matches the ground truth).

Source   dates are read by python-dateutil, units converted by pint; how precise an answer must be
         follows the SimpleQA graders: right to the last significant figure that is expected.
"""

import dataclasses
import functools
import math
import re

from dateutil import parser as date_parser


@dataclasses.dataclass(frozen=True)
class Number:
  """One number as written.

  value: after scale words; unit: pint name, "%", currency code, or None; step: size of the last
  significant digit as written; exact: a plain integer, which only equals itself; ordinal: "37th";
  bound: "", "about", "above" or "below" as the words before it say.
  """
  value: float
  start: int
  end: int
  unit: str | None = None
  step: float = 1.0
  exact: bool = True
  ordinal: bool = False
  bound: str = ""
  spelled: bool = False


@dataclasses.dataclass(frozen=True)
class Date:
  """A date down to the day, the month or the year; year is negative before Christ, None when not
  written."""
  year: int | None
  month: int | None
  day: int | None
  start: int
  end: int


@dataclasses.dataclass(frozen=True)
class Clock:
  """Digits with colons: a time of day, or a duration."""
  parts: tuple[int, ...]
  half: str
  start: int
  end: int


@dataclasses.dataclass(frozen=True)
class Pair:
  """Two quantities in an order that matters: a range, a score, a first and a last year."""
  first: "Quantity"
  second: "Quantity"
  start: int
  end: int


Quantity = Number | Date | Clock | Pair

_SMALL = {word: value for value, word in enumerate(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen".split())}
_TENS = {word: 10 * value for value, word in enumerate(
    "twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
_ORDINALS = {"first": 1, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}
_ORDINALS |= {word + "th": value for word, value in _SMALL.items()
              if word not in {"zero", "one", "two", "three", "five", "eight", "nine", "twelve"}}
_ORDINALS |= {word[:-1] + "ieth": value for word, value in _TENS.items()}
_SCALES = {
    "hundred": 1e2, "thousand": 1e3, "k": 1e3, "million": 1e6, "millions": 1e6, "mn": 1e6,
    "mln": 1e6, "billion": 1e9, "billions": 1e9, "bn": 1e9, "bln": 1e9, "trillion": 1e12,
    "tn": 1e12, "lakh": 1e5, "crore": 1e7, "dozen": 12,
    "百": 1e2, "千": 1e3, "万": 1e4, "萬": 1e4, "亿": 1e8, "億": 1e8}
_UNITS = {
    "kilometer": "km kms kilometer kilometers kilometre kilometres 公里 千米",
    "meter": "m meter meters metre metres 米",
    "centimeter": "cm centimeter centimeters centimetre centimetres",
    "millimeter": "mm millimeter millimeters millimetre millimetres", "mile": "mi mile miles",
    "foot": "ft foot feet", "inch": "inch inches", "yard": "yd yds yard yards",
    "nautical_mile": "nmi nautical-mile nautical-miles", "light_year": "light-year light-years ly",
    "kilogram": "kg kgs kilo kilos kilogram kilograms", "gram": "g gram grams gramme grammes",
    "milligram": "mg milligram milligrams", "metric_ton": "tonne tonnes metric-ton metric-tons",
    "short_ton": "ton tons", "pound": "lb lbs pound pounds", "ounce": "oz ounce ounces",
    "second": "s sec secs second seconds 秒", "minute": "min mins minute minutes 分钟",
    "hour": "h hr hrs hour hours 小时", "day": "day days 天", "week": "week weeks",
    "month": "month months 个月", "year": "yr yrs year years 年",
    "decade": "decade decades", "century": "century centuries",
    "degC": "°c celsius degrees-celsius degree-celsius",
    "degF": "°f fahrenheit degrees-fahrenheit",
    "kelvin": "kelvin kelvins", "degree": "° degree degrees",
    "kilometer**2": "km2 km^2 sq-km square-kilometers square-kilometres square-km",
    "mile**2": "mi2 sq-mi square-miles square-mile sq-miles",
    "meter**2": "m2 sq-m square-meters square-metres",
    "meter**3": "m3 cubic-meters cubic-metres", "kilometer**3": "km3 cubic-kilometers",
    "foot**2": "sq-ft square-feet", "acre": "acre acres", "hectare": "ha hectare hectares",
    "kilometer/hour": "km/h kph kmh kilometers-per-hour kilometres-per-hour",
    "mile/hour": "mph miles-per-hour",
    "meter/second": "m/s meters-per-second metres-per-second", "knot": "kn knot knots",
    "liter": "l liter liters litre litres",
    "milliliter": "ml milliliter milliliters millilitre millilitres",
    "gallon": "gal gallon gallons", "watt": "w watt watts", "kilowatt": "kw kilowatt kilowatts",
    "megawatt": "mw megawatt megawatts", "gigawatt": "gw gigawatt gigawatts",
    "%": "% percent per-cent percentage-points percentage-point",
    "USD": "usd dollar dollars us-dollars", "EUR": "eur euro euros", "GBP": "gbp pounds-sterling",
    "JPY": "jpy yen 日元", "CNY": "cny rmb yuan 元", "INR": "inr rupee rupees",
    "CAD": "cad canadian-dollar canadian-dollars", "NZD": "nzd", "BRL": "brl reais",
    "AUD": "aud australian-dollar australian-dollars", "HKD": "hkd hong-kong-dollars",
    "SGD": "sgd singapore-dollars",
    "peso": "peso pesos mxn", "RUB": "rub ruble rubles rouble roubles", "CHF": "chf franc francs",
    "KRW": "krw", "SEK": "sek kronor", "NOK": "nok", "DKK": "dkk", "krone": "krone kroner"}
UNIT_OF = {surface.replace("-", " "): unit
           for unit, names in _UNITS.items() for surface in names.split()}
CURRENCIES = frozenset(
    "USD EUR GBP JPY CNY INR CAD AUD HKD SGD NZD BRL peso RUB CHF KRW SEK NOK DKK krone".split())
TIME_UNITS = frozenset("second minute hour day week month year decade century".split())
_SIGNS = {"us$": "USD", "$": "USD", "c$": "CAD", "ca$": "CAD", "a$": "AUD", "au$": "AUD",
          "hk$": "HKD", "s$": "SGD", "nz$": "NZD", "r$": "BRL", "€": "EUR", "£": "GBP", "¥": "JPY",
          "usd": "USD", "eur": "EUR", "gbp": "GBP"}

_alternatives = lambda names: "|".join(re.escape(n) for n in sorted(names, key=len, reverse=True))
_MONTH = (r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
          r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?")
_DAY = r"(?:[0-3]?\d)(?:st|nd|rd|th)?"
_ERA = r"(b\.?\s?c\.?(?:\s?e\.?)?|a\.?d\.?|c\.?e\.?)(?!\w)"
_DATES = [(kind, re.compile(pattern, re.I)) for kind, pattern in [
    ("ymd", r"(?<![\w.])(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?![\w-])"),
    ("day of era", rf"\b({_DAY}(?:\s+of)?\s+{_MONTH}),?\s+(\d{{1,4}})\s*{_ERA}"),
    ("day of era", rf"\b({_MONTH}\s+(?:the\s+)?{_DAY}),?\s+(\d{{1,4}})\s*{_ERA}"),
    ("cjk", r"(\d{4})\s*年(?:\s*(\d{1,2})\s*月(?:\s*(\d{1,2})\s*日)?)?"),
    ("day", rf"\b{_DAY}(?:\s+day)?(?:\s+of)?[\s-]+{_MONTH}(?:\s+of)?,?[\s-]+\d{{4}}\b"),
    ("day", rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}\s*,?\s+\d{{4}}\b"),
    ("numeric", r"(?<![\w./-])(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?![\w-])"),
    ("month", rf"\b{_MONTH},?\s+(?:of\s+)?\d{{4}}\b"),
    ("month/year", r"(?<![\w./-])(0?[1-9]|1[0-2])/(\d{4})(?![\w/-])"),
    ("no year", rf"\b{_DAY}(?:\s+of)?\s+{_MONTH}(?!\w)"),
    ("no year", rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}\b"),
    ("era", rf"\b(\d{{1,4}})\s*{_ERA}"),
    ("era", r"\b(ad)\s*(\d{1,4})\b"),
]]
_CLOCK = re.compile(
    r"(?<![\w:.])(\d{1,3}):([0-5]\d)(?::([0-5]\d))?(?![\d:])\s*([ap]\.?m\b\.?)?", re.I)
_DIGITS = re.compile(
    rf"(?P<sign>{_alternatives(_SIGNS)})?\s*(?<![\w.])(?P<minus>-)?"
    rf"(?P<digits>\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    rf"(?P<ordinal>st|nd|rd|th)?", re.I)
_EXPONENT = re.compile(r"e([+-]?\d{1,3})(?!\w)|\s?[×x*·]\s?10\s?\^\s?(-?\d{1,3})", re.I)
_DURATION = re.compile(
    r"(?<![\w.])(\d{1,3})\s?h(?:(?:ou)?rs?)?\s?(\d{1,2})\s?m(?:in(?:ute)?s?)?"
    r"(?:\s?(\d{1,2})\s?s)?(?!\w)", re.I)
_SCALE = re.compile(rf"[\s-]?({_alternatives(_SCALES)})(?![^\W\d_])", re.I)
_CJK_SCALE = re.compile(r"\s?([百千万萬亿億])")
_UNIT_NAMES = _alternatives(UNIT_OF).replace("\\ ", "[ -]")
_UNIT = re.compile(rf"[\s-]?({_UNIT_NAMES})(?![^\W_])|\s?([%°])", re.I)
_CJK_UNIT = re.compile(r"\s?(公里|千米|米|秒|分钟|小时|天|个月|年|日元|元)")
_WORDS = re.compile(
    rf"\b(?:(?:{'|'.join([*_SMALL, *_TENS, *_ORDINALS])}"
    rf"|hundred|thousand|million|billion|trillion|dozen)"
    rf"(?:\s+and\s+(?={'|'.join([*_SMALL, *_TENS])})|[\s-]+|\b))+", re.I)
_BOUNDS = [(name, re.compile(rf"(?:{before})\s*$", re.I)) for name, before in [
    ("above", r"more than|over|at least|above|greater than|exceed(?:s|ing|ed)?|upwards of|>"),
    ("below", r"less than|under|at most|below|fewer than|up to|nearly|almost|<"),
    ("about", r"about|around|approximately|approx\.?|roughly|circa|c\.|ca\.|some|~|≈"),
]]
_BETWEEN = re.compile(r"\s*(?:to|-|until|till|through|thru|up to|and ended in|至|到)\s*|:", re.I)


def _read_words(text: str) -> tuple[float, bool] | None:
  """"one hundred and five" -> 105; None where the words do not form one number."""
  total, group, ordinal, last = 0.0, 0.0, False, ""
  for word in re.findall(r"[a-z]+", text.lower()):
    if word == "and":
      continue
    if ordinal:
      return None
    if word in _SCALES:
      scale = _SCALES[word]
      if scale == 100 or word == "dozen":
        group = max(group, 1) * scale
      else:
        total, group = total + max(group, 1) * scale, 0.0
    else:
      value = _SMALL.get(word, _TENS.get(word, _ORDINALS.get(word)))
      ordinal = word in _ORDINALS
      if last in _SMALL or (last in _TENS and value >= 10):       # "five six": two numbers, not one
        return None
      group += value
    last = word
  return total + group, ordinal


def _read_date(kind: str, match: re.Match) -> Date | None:
  text, span = match.group(), match.span()
  try:
    if kind == "ymd":
      year, month, day = (int(match.group(i)) for i in (1, 3, 4))
    elif kind == "cjk":
      year, month, day = (int(g) if g else None for g in match.groups())
    elif kind == "era":
      number, era = match.groups() if match.group(1).isdigit() else match.groups()[::-1]
      year = int(number) * (-1 if era.lower().startswith("b") else 1)
      return Date(year, None, None, *span)
    elif kind == "day of era":
      written, number, era = match.groups()
      read = date_parser.parse(re.sub(r"\b(?:of|the)\b", " ", written, flags=re.I), default=_EPOCH)
      year, month, day = int(number), read.month, read.day
      if era.lower().startswith("b"):
        return Date(-year, month, day, *span)
    elif kind == "month/year":
      year, month, day = int(match.group(2)), int(match.group(1)), None
    elif kind == "numeric":
      # Slashes and dashes are read month first, as public answer files write them; dots day first.
      one, mark, two, year = (int(g) if g.isdigit() else g for g in match.groups())
      day_first = mark == "." or one > 12
      year, month, day = (year, two, one) if day_first else (year, one, two)
    else:
      cleaned = re.sub(r"\b(?:day|of|the)\b", " ", text, flags=re.I)
      read = date_parser.parse(cleaned, default=_EPOCH)
      year = None if kind == "no year" else read.year
      month, day = read.month, None if kind == "month" else read.day
    if month is not None:
      date_parser.parse(f"{year if year else 2000:04d}-{month:02d}-{day or 1:02d}")
  except (ValueError, OverflowError):                     # 30 February, month 13: not a date
    return None
  return Date(year, month, day, *span)


_EPOCH = date_parser.parse("2000-01-01")


def _numbers(text: str, taken: list[bool]) -> list[Number]:
  found = []
  for match in _DIGITS.finditer(text):
    start, end = match.span()
    while start < end and text[start].isspace():
      start += 1
    digits = match.group("digits")
    if any(taken[start:end]) or found and start < found[-1].end:
      continue
    value = float(digits.replace(",", ""))
    sign = match.group("sign")
    unit = _SIGNS[sign.lower()] if sign else None
    scale, rest = 1.0, end
    scaled = _SCALE.match(text, end) or _CJK_SCALE.match(text, end)
    power = _EXPONENT.match(text, end)
    if power:                                               # 5.97e24, 5.97 × 10^24
      scale, rest = 10.0 ** int(power.group(power.lastindex)), power.end()
    elif scaled and not match.group("ordinal"):
      scale, rest = _SCALES[scaled.group(1).lower()], scaled.end()
    elif unit and re.match(r"\s?[mb](?!\w)", text[end:], re.I):  # $5m: money has no metres
      scale = 1e6 if text[end:].lstrip()[0] in "mM" else 1e9
      rest = end + len(text[end:]) - len(text[end:].lstrip()) + 1
    if not match.group("ordinal") and unit is None:
      named = _UNIT.match(text, rest) or _CJK_UNIT.match(text, rest)
      if named:
        surface = named.group(named.lastindex).lower().replace("-", " ")
        if surface == "s" and value >= 1000:                # "1990s" is no duration
          continue
        unit, rest = UNIT_OF.get(surface, surface), named.end()
    if rest == end and re.match(r"(?![\u2e80-\uffff])[^\W\d_]", text[end:end + 1]):
      continue                                              # "IIIE4x", "1990s": part of a name
    decimals = len(digits.split(".")[1]) if "." in digits else 0
    step = 10.0 ** -decimals
    if scale > 1 and not decimals and not power:
      whole = digits.replace(",", "")
      step = 10.0 ** (len(whole) - len(whole.rstrip("0")))
    negative = match.group("minus") or re.search(r"\b(?:minus|negative)\s+$", text[:start], re.I)
    minus = -1.0 if negative else 1.0
    found.append(Number(minus * value * scale, start, rest, unit, step * scale,
                        scale == 1 and not decimals, bool(match.group("ordinal"))))
  for match in _WORDS.finditer(text):
    words = match.group().rstrip(" -\t\n")
    start, end = match.start(), match.start() + len(words)
    if any(taken[start:end]) or any(n.start < end and start < n.end for n in found):
      continue
    read = _read_words(words)
    if read is None or re.match(r"\s+of\b", text[end:]) and words.lower() == "one":
      continue
    named = _UNIT.match(text, end)
    surface = named.group(1).lower().replace("-", " ") if named and named.group(1) else ""
    unit = None if read[1] else UNIT_OF.get(surface)          # no unit: "the nineteenth century"
    scaled = re.search(r"thousand|million|billion|trillion", words, re.I)
    step = _SCALES[scaled.group().lower()] if scaled else 1.0
    found.append(Number(read[0], start, named.end() if unit else end, unit, step, step == 1,
                        read[1], spelled=True))
  bounded = []
  for number in sorted(found, key=lambda n: n.start):
    before = text[max(0, number.start - 24):number.start]
    bound = next((name for name, pattern in _BOUNDS if pattern.search(before)), "")
    if re.match(r"\s*(?:\+(?!\s*\d)|or more\b|or so\b)", text[number.end:], re.I):
      bound = "above"
    bounded.append(dataclasses.replace(number, bound=bound))
  return bounded


def find_quantities(text: str) -> list[Quantity]:
  """Every quantity of a text, in the order of its first character; none overlaps another.

  Args:
    text: plain text, NFKC, with "-" for every kind of dash.

  Returns:
    quantities with their character spans. Two joined by "to", a dash and the like are one `Pair`;
    consecutive times with units ("1 hour, 10 minutes") are one number of seconds.
  """
  taken = [False] * len(text)
  found: list[Quantity] = []

  def take(item: Quantity) -> None:
    found.append(item)
    taken[item.start:item.end] = [True] * (item.end - item.start)

  for match in _CLOCK.finditer(text):
    parts = tuple(int(g) for g in match.groups()[:3] if g is not None)
    take(Clock(parts, (match.group(4) or "").lower()[:1], match.start(), match.end()))
  for kind, pattern in _DATES:
    for match in pattern.finditer(text):
      date = None if any(taken[match.start():match.end()]) else _read_date(kind, match)
      if date:
        take(date)
  for match in _DURATION.finditer(text):
    hours, minutes, rest = (int(group or 0) for group in match.groups())
    step = 1.0 if match.group(3) else 60.0
    take(Number(3600.0 * hours + 60 * minutes + rest, *match.span(), "second", step))
  found = sorted([*found, *_merge_durations(_numbers(text, taken), text)], key=lambda q: q.start)
  return _join_pairs(found, text)


def _merge_durations(numbers: list[Number], text: str) -> list[Number]:
  merged: list[Number] = []
  finest = ""                                               # unit of the last part of merged[-1]
  for number in numbers:
    last = merged[-1] if merged else None
    timed = number.unit in TIME_UNITS
    if (last and timed and finest and seconds(1, finest) > seconds(1, number.unit)
        and re.fullmatch(r"[\s,]*(?:and)?\s*", text[last.end:number.start], re.I)):
      total = seconds(last.value, last.unit) + seconds(number.value, number.unit)
      step = seconds(number.step, number.unit)
      merged[-1] = dataclasses.replace(last, value=total, unit="second", step=step, end=number.end)
    else:
      merged.append(number)
    finest = number.unit if timed else ""
  return merged


def _join_pairs(found: list[Quantity], text: str) -> list[Quantity]:
  joined: list[Quantity] = []
  for item in found:
    last = joined[-1] if joined else None
    if isinstance(last, (Number, Date)) and isinstance(item, (Number, Date)):
      between = text[last.end:item.start]
      both = re.fullmatch(r"\s*and\s*", between, re.I) and re.search(
          r"\bbetween\s+(?:the\s+)?\W*$", text[:last.start], re.I)
      if both or _BETWEEN.fullmatch(between):
        joined[-1] = Pair(last, _complete(last, item), last.start, item.end)
        continue
    joined.append(item)
  return joined


def _complete(first: Quantity, second: Quantity) -> Quantity:
  """1903-04 ends in 1904."""
  if isinstance(first, Number) and isinstance(second, Number):
    two_digits = second.exact and second.value >= 0 and second.end - second.start == 2
    if is_year(first) and two_digits:
      return dataclasses.replace(second, value=first.value // 100 * 100 + second.value)
  return second


def is_year(item: Quantity) -> bool:
  """A plain four-digit number that can be read as a year."""
  return (isinstance(item, Number) and item.exact and not item.ordinal and item.unit is None
          and not item.spelled and 1000 <= item.value <= 2100 and item.end - item.start == 4)


def seconds(value: float, unit: str) -> float:
  """A duration in seconds; a month is a twelfth of a year."""
  return convert(value, unit, "second")


@functools.cache
def _factor(unit: str, target: str) -> tuple[float, float] | None:
  import pint                                               # half a second: only when units differ
  registry = pint.application_registry.get()
  try:
    zero, one = (registry.Quantity(x, unit).to(target).magnitude for x in (0.0, 1.0))
  except pint.DimensionalityError:
    return None                                             # a length is not a mass
  return one - zero, zero


def convert(value: float, unit: str, target: str) -> float:
  """A value in another unit; NaN where the two do not measure the same thing."""
  if unit == target:
    return value
  money = CURRENCIES | {"%"}
  factor = None if unit in money or target in money else _factor(unit, target)
  return math.nan if factor is None else value * factor[0] + factor[1]
