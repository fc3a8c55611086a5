"""Reading of answers: what a reader sees of them, their words and their sentences.  HOST.

Everything later compares words that are free of case, accents, Markdown and citation marks.
Section: SPEC 2 (r_base). Nothing is read or written; HOST, since it works on text.
"""

import dataclasses
import functools
import re
import unicodedata


_FOLDED = str.maketrans({
    "ø": "o", "ł": "l", "đ": "d", "ð": "d", "ı": "i", "ß": "ss", "æ": "ae", "œ": "oe", "þ": "th"})
_QUOTES = str.maketrans("’‘“”″", "''\"\"\"")
_DASHES = re.compile(r"[\u2010-\u2013\u2212\ufe58\ufe63\uff0d]")
# "km²", "x²" and "10²⁴" are no footnotes.
_POWERS = re.compile(
    r"(\b(?:km|cm|mm|dm|mi|ft|yd|in|[a-z])|[×x*·]\s?10)([\u00b9\u00b2\u00b3\u2070-\u2079\u207b]+)",
    re.I)
_THIN_BLANKS = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_SOURCES = re.compile(
    r"\n\W*(?:sources?|references?|citations?|bibliography|参考(?:资料|文献)?|来源)\W*(?::|\n).*",
    re.I | re.S)
_CITATIONS = re.compile(
    r"\[\^?(?:\d+|[a-z_]+:\d+(?:[-,:]\d+)*)(?:\s*[,;–-]\s*\d+)*\](?:\([^)]*\))?|【[^】]*】"
    r"|[\u00b9\u00b2\u00b3\u2070-\u2079]+(?!\w)"
    r"|<cite[^>]*>[\d\s,;:.-]*</cite>|</?cite[^>]*>|<sup>.*?</sup>"
    r"|\(\s*(?:source|ref|see)s?\s*:[^)]*\)|https?://\S+",
    re.I)
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{CJK}]|[^\W_{CJK}]+(?:['’][^\W\d_{CJK}]+)*")


def clean(text: str) -> str:
  """What a reader sees: no thinking, tags, Markdown, citations or links; one kind of dash."""
  text = re.sub(r"(?s)<think>.*?</think>", " ", text).rsplit("</think>", 1)[-1]
  text = _THIN_BLANKS.sub("", _SOURCES.sub("", text))
  text = _POWERS.sub(_written_out, text)
  text = re.sub(r"!?\[(?!\^?\d+\])([^\]]*)\]\([^)]*\)", r"\1", text)
  text = unicodedata.normalize("NFKC", _CITATIONS.sub(" ", text))
  text = re.sub(r"\\(?:boxed|text|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", text)
  text = re.sub(r"</?[a-z][^<>]*>", " ", text, flags=re.I)
  text = re.sub(r"[*`#|]+|__+|~~", "", text)
  text = _DASHES.sub("-", text).replace("—", " - ").translate(_QUOTES)
  text = re.sub(r"[ \t]+", " ", text)
  text = re.sub(r"\s+([.,;:!?])", r"\1", text)
  return text.strip().strip("\"'").strip()


def _written_out(power: re.Match) -> str:
  mark = "^" if power[1].endswith("10") else ""
  return power[1] + mark + unicodedata.normalize("NFKC", power[2])


def fold(text: str) -> str:
  """Without case and without accents: "Temür" and "TEMUR" are one word."""
  text = unicodedata.normalize("NFKD", text.casefold().translate(_FOLDED))
  return unicodedata.normalize("NFC", "".join(
      c for c in text if c in "\u3099\u309a" or not unicodedata.combining(c)))  # で is not て


@dataclasses.dataclass(frozen=True)
class Token:
  """A folded word, and what stands between it and the word before: "" for a blank, "^" at the
  beginning."""
  text: str
  gap: str
  start: int

  @property
  def joined(self) -> bool:
    """Nothing but a blank, a hyphen or a genitive parts it from the word before."""
    return self.gap in ("", "-", "'s")


_SPELLED = {"st": "saint", "mt": "mount"} | {word: digits for word, digits in zip(
    "two three four five six seven eight nine ten eleven twelve fourth fifth sixth seventh eighth "
    "ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth "
    "nineteenth twentieth".split(), [*map(str, range(2, 13)), *(f"{i}th" for i in range(4, 21))],
    strict=True)}
_SHORTENED = frozenset("st ste mt ft dr mr mrs ms prof gen col capt lt rev hon no vs jr sr".split())


def folded(text: str) -> str:
  """The text that tokens' starts count in."""
  return fold(text).replace("&", " and ")


@functools.lru_cache(4096)
def tokenize(text: str) -> tuple[Token, ...]:
  """Words of a text; every CJK character is one, "J. K." is one, "&" reads "and"."""
  text = folded(text)
  out: list[Token] = []
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
    word = _SPELLED.get(word, word)
    single = len(word) == 1 and word.isalpha() and word < "\u2e80"
    if single and initials and gap in ("", "."):
      out[-1] = Token(out[-1].text + word, out[-1].gap, out[-1].start)
    else:
      out.append(Token(word, gap if out else "^", match.start()))
      initials = single
  return tuple(out)


def plain(text: str) -> str:
  return " ".join(t.text for t in tokenize(text) if t.text not in ARTICLES)


def identical(text: str, alias: str) -> bool:
  """The same words; where there are digits, the same signs too: 1-8 is not 18, and -5 not 5.

  A name that is an article ("A") is compared as it stands.
  """
  if any(c.isdigit() for c in alias) or not plain(alias):
    said = fold(text).rstrip(" .!?")
    return bool(said) and said == fold(alias).rstrip(" .!?")
  return plain(text) == plain(alias)


ARTICLES = frozenset(("the", "a", "an"))


def sentences(text: str) -> list[str]:
  ends = r"(?<=[!?。！？])\s*|(?<=[^\W\d_]{2}[.)\"'])\s+|(?<=\d[.])\s+(?=\D)|\n+"
  parts = re.split(ends, text)
  return [part for part in parts if part and tokenize(part)]
