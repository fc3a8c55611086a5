"""Chats judged by rubrics instead of one right answer, and style chats for SFT.  HOST.

A rubric is one atomic, objective, necessary check (SPEC 1.3); the kinds here are those a program
can decide, and reward/rubric.py decides them. The generated chats ask for small things a tiny
policy can do: repeat a word it has just read, join two names, greet someone, keep a format,
answer in a named language. Answers are copied from the prompt more often than remembered, so a
policy that follows instructions passes on names it has never seen.

Spec     1.1 (preference-oriented examples), 1.3 (rubric-based general chat).
"""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

KINDS = (
  "equals", "contains", "excludes", "starts_with", "ends_with", "occurs", "words", "sentences",
  "language", "no_citations", "in_brackets", "lower_case", "numbered_list", "one_line", "capitals",
  "paragraphs", "bullets", "headings", "json", "all_capitals", "citations", "instruction",
)

# A criterion in words, in the argument "text"; reward/judge.py decides it.
JUDGED = "judged"


@dataclasses.dataclass(frozen=True)
class Rubric:
  """One check: a kind of KINDS and its arguments (see reward/rubric.py), or a JUDGED criterion."""

  kind: str
  arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    if self.kind not in (*KINDS, JUDGED):
      raise ValueError(f"unknown rubric kind {self.kind!r}; expected one of {', '.join(KINDS)}")


@dataclasses.dataclass(frozen=True)
class RubricChat:
  """A user's message, the checks its answer must pass, and one answer that passes them."""

  id: str
  text: str
  rubrics: tuple[Rubric, ...]
  reference: str = ""


_NO_CITATIONS = Rubric("no_citations")
_COMMON_WORDS = ("yes", "no", "blue", "green", "north", "south", "water", "bread", "seven", "tea")
_PHRASES = {
  "thank you": {
    "French": "Merci beaucoup.", "Spanish": "Muchas gracias.", "German": "Vielen Dank.",
    "Italian": "Grazie mille.",
  },
  "good morning": {
    "French": "Bonjour.", "Spanish": "Buenos días.", "German": "Guten Morgen.",
    "Italian": "Buongiorno.",
  },
  "good night": {
    "French": "Bonne nuit.", "Spanish": "Buenas noches.", "German": "Gute Nacht.",
    "Italian": "Buona notte.",
  },
}
CODES = {"French": "fr", "Spanish": "es", "German": "de", "Italian": "it", "English": "en"}


def _word(draw: random.Random, names: Sequence[str]):
  word = draw.choice(_COMMON_WORDS) if draw.random() < 0.4 else draw.choice(names)
  return f"Reply with the word {word}.", word, (Rubric("equals", {"text": word}),)


def _join(draw: random.Random, names: Sequence[str]):
  first, second = draw.sample(names, 2)
  rubrics = (
    Rubric("contains", {"text": first}), Rubric("contains", {"text": second}),
    Rubric("excludes", {"text": ","}),
    Rubric("words", {"most": len(f"{first} {second}".split()) + 1}),
  )
  return f"Reply with {first} and {second}, without commas.", f"{first} and {second}", rubrics


def _greet(draw: random.Random, names: Sequence[str]):
  name = draw.choice(names)
  rubrics = (
    Rubric("starts_with", {"text": "Hello"}), Rubric("contains", {"text": name}),
    Rubric("words", {"most": len(name.split()) + 2}), Rubric("ends_with", {"text": "."}),
  )
  return f"Say hello to {name} in one short sentence.", f"Hello, {name}.", rubrics


def _twice(draw: random.Random, names: Sequence[str]):
  name = draw.choice(names)
  rubrics = (Rubric("occurs", {"text": name, "times": 2}), Rubric("one_line"))
  return f"Write {name} twice.", f"{name} {name}", rubrics


def _first(draw: random.Random, names: Sequence[str]):
  first, second = draw.sample(names, 2)
  which = draw.random() < 0.5
  right, wrong = (first, second) if which else (second, first)
  rubrics = (Rubric("contains", {"text": right}), Rubric("excludes", {"text": wrong}))
  order = "first" if which else "second"
  return f"Reply with the {order} of the words {first} and {second}.", right, rubrics


def _brackets(draw: random.Random, names: Sequence[str]):
  name = draw.choice(names)
  rubrics = (Rubric("contains", {"text": name}), Rubric("in_brackets"))
  return f"Write {name} in brackets.", f"({name})", rubrics


def _translate(draw: random.Random, names: Sequence[str]):
  del names
  phrase = draw.choice(sorted(_PHRASES))
  language = draw.choice(sorted(_PHRASES[phrase]))
  rubrics = (Rubric("language", {"code": CODES[language]}), Rubric("words", {"most": 4}))
  return f"Say {phrase} in {language}.", _PHRASES[phrase][language], rubrics


def _list(draw: random.Random, names: Sequence[str]):
  first, second = draw.sample(names, 2)
  rubrics = (
    Rubric("numbered_list", {"items": 2}), Rubric("contains", {"text": first}),
    Rubric("contains", {"text": second}),
  )
  return f"Write {first} and {second} as a list with numbers.", f"1. {first}\n2. {second}", rubrics


MAKERS = (_word, _join, _greet, _twice, _first, _brackets, _translate, _list)
WORDINGS = tuple(
  text for make in MAKERS for text in make(random.Random(0), ("", " "))[:2]
) + _COMMON_WORDS + tuple(_PHRASES)


def rubric_chats(
  seed: int, count: int, *, names: Sequence[str], prefix: str = "rubric"
) -> list[RubricChat]:
  """Generates chats with their rubrics, every maker as often as every other.

  Args:
    seed: decides everything; other seeds draw other names.
    count: how many.
    names: names to fill in, e.g. an atlas's names_bank; at least two distinct ones.
    prefix: of the ids.

  Raises:
    ValueError: fewer than two distinct names.
  """
  names = sorted(set(names))
  if len(names) < 2:
    raise ValueError(f"rubric chats need at least 2 distinct names, got {len(names)}")
  draw = random.Random(f"{prefix}/{seed}")
  chats = []
  for i in range(count):
    text, answer, rubrics = MAKERS[i % len(MAKERS)](draw, names)
    chats.append(RubricChat(f"{prefix}-{seed}-{i}", text, (*rubrics, _NO_CITATIONS), answer))
  draw.shuffle(chats)
  return chats


def style_chats(
  seed: int, count: int, names: Sequence[str] | None = None
) -> list[tuple[str, str]]:
  """(user text, good answer) pairs: the preference-oriented part of the SFT data.

  Args:
    seed: decides everything; use another one than for rubric chats.
    count: how many.
    names: names to fill in; None takes the packaged atlas's bank of free names.
  """
  if names is None:
    from searchjax.search.atlas import load_atlas
    names = load_atlas().names_bank
  chats = rubric_chats(seed, count, names=names, prefix="style")
  return [(chat.text, chat.reference) for chat in chats]
