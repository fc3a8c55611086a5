"""Chains worded as questions, the formats they may ask for, and names not to be said.  PURE.

A question nests: every entity stands as the noun phrase by which the next one names it, "the
country whose capital is the city with a population of 77,006".

Spec     1.3 (name-free question, format-diversity augmentation).
"""

import random
import re
from collections.abc import Callable, Iterable, Mapping

from searchjax.data.synthesis.chains import Chain

FORWARD_FRAMES = ("What is {np}?", "Name {np}.", "Tell me {np}.")
SEED_FRAMES = ("What is the {noun} of {np}?", "Tell me the {noun} of {np}.")
NOUNS = {"airport": "IATA code"}  # by which an answer of a kind goes, if not by a name
STARTS = {"airport": "airport {x}"}
RELATIVE = re.compile(r"the (\S+(?: \S+)??) that (.+)", re.DOTALL)

# The answer stays the same under each of them.
FORMATS = {
  "list": "Show a list of the facts that lead to the answer, and the answer at its end.",
  "numbered": "Show the steps as a numbered list; the last one states the answer.",
  "table": "Summarise the facts in a table, one fact a row, and give the answer below it.",
  "answer_only": "Reply with the answer alone, without a sentence around it.",
  "sentence": "Answer in one complete sentence.",
  "bold": "Write the answer in bold and nothing else in bold.",
  "json": 'Reply with a JSON object that has the one key "answer".',
  "short_report": "Write a short report of at most three sentences that states the answer first.",
}


def noun_phrase(chain: Chain, names: Mapping[str, str], kinds: Mapping[str, str], draw) -> str:
  """The nested noun phrase that stands for the answer.

  Args:
    chain: from the answer outward.
    names: by entity id; only a forward chain's start is looked up.
    kinds: by entity id, likewise.
    draw: chooses among the phrases of a step.
  """
  last = chain.nodes[-1]
  text = last
  if chain.direction == "forward":
    text = STARTS.get(kinds[last], "{x}").format(x=names[last])
  for step in reversed(chain.steps):
    phrases = step.fact.names_subject if step.outward else step.fact.names_object
    text = draw.choice(phrases).replace("{x}", text)
  return text


def word_question(
  chain: Chain, names: Mapping[str, str], kinds: Mapping[str, str], draw: random.Random
) -> str:
  """The question; args as for `noun_phrase`."""
  phrase = noun_phrase(chain, names, kinds, draw)
  if chain.direction == "forward":
    return draw.choice(FORWARD_FRAMES).format(np=phrase)
  noun = NOUNS.get(kinds[chain.nodes[0]], "name")
  relative = RELATIVE.fullmatch(phrase)
  if relative and noun == "name":
    return f"Which {relative[1]} {relative[2]}?"
  return draw.choice(SEED_FRAMES).format(np=phrase, noun=noun)


class NameFinder:
  """Finds names of entities in a text, as whole words of any case.

  Args:
    names: what must not be said.
    wording: phrases of questions; a name that consists of their words alone is not looked for.
    fold: a text as single words, in the way names are compared.
  """

  def __init__(
    self, names: Iterable[str], wording: Iterable[str], fold: Callable[[str], str]
  ):
    self._fold = fold
    own = set(fold(" ".join(wording)).split())
    keys = {fold(name) for name in names}
    self.exempt = frozenset(key for key in keys if set(key.split()) <= own)
    self._keys = keys - self.exempt - {""}
    self._longest = max((key.count(" ") + 1 for key in self._keys), default=0)

  def found(self, text: str) -> str | None:
    """A name that stands in the text, folded; None without one."""
    words = self._fold(text).split()
    for start in range(len(words)):
      for stop in range(start + 1, min(start + self._longest, len(words)) + 1):
        key = " ".join(words[start:stop])
        if key in self._keys:
          return key
    return None

  def says(self, text: str, name: str) -> bool:
    """Whether this very name stands in the text, one of the questions' own words or not."""
    return f" {self._fold(name)} " in f" {self._fold(text)} "


def all_wording() -> list[str]:
  """The frames' own words."""
  return [*FORWARD_FRAMES, *SEED_FRAMES, *NOUNS.values(), "Which that"]
