"""Which language a text is written in.  HOST: lingua loads its models on first use.

Section: SPEC 1.3 (rubrics on language), 4 (language-mismatch).

Source   lingua for its 75 languages; the script decides for languages that have one of their own.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

# Few languages make detection on a short answer sharper; others can be named by their code.
USUAL_LANGUAGES = ("en", "fr", "es", "de", "it")
# Languages that lingua lacks and whose script, as Unicode names it, no other common language uses.
OWN_SCRIPTS = {"kn": "KANNADA", "ml": "MALAYALAM", "or": "ORIYA", "si": "SINHALA", "km": "KHMER",
               "lo": "LAO", "my": "MYANMAR", "bo": "TIBETAN", "am": "ETHIOPIC"}
SCRIPT_SHARE = 0.5
_MARKUP = re.compile(r"https?://\S+|```.*?```|[*_#`|]|\[[^\]\n]{0,12}\]", re.S)


def is_language(text: str, code: str) -> bool:
  """Whether a text is written in a language, compared with the usual ones.

  Args:
    code: ISO 639-1; a region after "-" or "_" does not count.

  Raises:
    ValueError: a language that neither lingua nor its script tells.
  """
  code = re.split(r"[-_]", code.lower())[0]
  text = _MARKUP.sub(" ", text)
  if code in OWN_SCRIPTS:
    letters = [c for c in text if c.isalpha()]
    scripts = Counter(unicodedata.name(c, "?").split()[0] for c in letters)
    return bool(letters) and scripts[OWN_SCRIPTS[code]] > SCRIPT_SHARE * len(letters)
  return detect_language(text, (*USUAL_LANGUAGES, code)) == code


def detect_language(text: str, candidates: Sequence[str] = USUAL_LANGUAGES) -> str | None:
  """The ISO 639-1 code that lingua finds most likely among candidates; None if it finds none."""
  language = _detector(tuple(sorted(set(candidates)))).detect_language_of(text)
  return None if language is None else language.iso_code_639_1.name.lower()


@functools.cache
def _detector(codes: tuple[str, ...]):
  import lingua  # here: its models are large, and most runs never ask for a language
  wanted = []
  for code in codes:
    try:
      wanted.append(lingua.IsoCode639_1.from_str(code.upper()))
    except ValueError as error:
      raise ValueError(f"no detector of the language {code!r}") from error
  return lingua.LanguageDetectorBuilder.from_iso_codes_639_1(*wanted).build()
