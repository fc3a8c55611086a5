"""Independent solvers over the atlas: each reads a question's text alone.  HOST.

`StatementSolver` finds every entity that fits, over the atlas's own statements: it proves that an
answer is the only one. `SearchSolver` has the search service alone, as an agent has: it asks from
the innermost noun phrase outward and reads plain sentences. Neither sees the chain that a question
was made from.

Spec     1.3 (verification).
"""

import collections
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from searchjax.data.questions import QUERY_WORDS
from searchjax.data.synthesis.wording import FORWARD_FRAMES, NOUNS, SEED_FRAMES
from searchjax.search.atlas import TEMPLATES, Atlas

FOUND, SEVERAL, OTHER, NOTHING = "confirmed", "several answers", "another answer", "no answer"
MOST_CANDIDATES = 8  # of a search solver at one step


@runtime_checkable
class Solver(Protocol):
  """Answers questions by itself."""

  name: str

  def solve(self, question: str) -> list[str]:
    """Every answer found, sorted; [] for none."""


def verdict(answer: str, found: Sequence[str]) -> str:
  """What a solver's answers say about the gold answer."""
  if not found:
    return NOTHING
  if len(found) > 1:
    return SEVERAL
  return FOUND if found[0] == answer else OTHER


class Reading(NamedTuple):
  """One way to name something: `kind` is the subject's, `outward` as in facts.Step."""

  kind: str
  relation: str
  outward: bool


class Grammar:
  """Reads the nested noun phrases of questions.

  Args:
    words: by (kind, relation) the phrases for the subject and for the other end, "{x}" last.
  """

  def __init__(self, words: Mapping[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]]):
    self._readings: dict[str, list[Reading]] = collections.defaultdict(list)
    for (kind, relation), sides in words.items():
      for side, outward in zip(sides, (True, False), strict=True):
        for phrase in side:
          self._readings[phrase.removesuffix("{x}")].append(Reading(kind, relation, outward))
    self._prefixes = sorted(self._readings, key=len, reverse=True)

  def read(self, question: str) -> tuple[list[list[Reading]], str]:
    """The readings of every noun phrase, outermost first, and what stands innermost."""
    rest = self._phrase(question)
    nested = []
    while True:
      prefix = next((p for p in self._prefixes if rest.startswith(p)), None)
      if prefix is None:
        return nested, rest
      nested.append(self._readings[prefix])
      rest = rest.removeprefix(prefix)

  def _phrase(self, question: str) -> str:
    """The noun phrase that a question asks for."""
    if question.startswith("Which ") and question.endswith("?"):
      kind, _, rest = question.removeprefix("Which ").removesuffix("?").partition(" ")
      return f"the {kind} that {rest}"
    nouns = {"name", *NOUNS.values()}
    frames = [f.replace("{noun}", noun) for f in SEED_FRAMES for noun in nouns]
    for frame in (*frames, *FORWARD_FRAMES):
      before, _, after = frame.partition("{np}")
      if question.startswith(before) and question.endswith(after):
        return question.removeprefix(before).removesuffix(after)
    return question


class StatementSolver:
  """Everything that fits a question, over an atlas's statements."""

  name = "statements"

  def __init__(self, atlas: Atlas, grammar: Grammar):
    self._atlas, self._grammar = atlas, grammar
    self._subjects: dict[tuple, set[str]] = collections.defaultdict(set)
    self._ends: dict[tuple, set[str]] = collections.defaultdict(set)
    self._named: dict[str, set[str]] = collections.defaultdict(set)
    for entity in atlas.entities.values():
      self._named[entity.name].add(entity.id)
    for page in atlas.pages.values():
      kind = atlas.entities[page.id].kind
      for s in page.statements:
        end = ("=", s.literal) if s.object is None else ("", s.object)
        self._subjects[kind, s.relation, end].add(s.subject)
        self._ends[s.subject, s.relation].add(end)

  def solve(self, question: str) -> list[str]:
    """See `Solver`."""
    nested, said = self._grammar.read(question)
    name = said.removeprefix("airport ")
    found = {("=", said)} | {("", entity) for entity in self._named.get(name, ())}
    for readings in reversed(nested):
      there: set[tuple[str, str]] = set()
      for kind, relation, outward in readings:
        for mark, node in found:
          if outward:
            there |= {("", s) for s in self._subjects.get((kind, relation, (mark, node)), ())}
          elif not mark and node.startswith(f"{kind}/"):
            there |= self._ends.get((node, relation), set())
      found = there
    entities = self._atlas.entities
    # An entity whose page the corpus does not have goes by its id: it is an answer all the same.
    return sorted(entities[node].name if node in entities else node for _, node in found)


class SearchSolver:
  """Follows a question through a search service, sentence by sentence.

  Args:
    search: (query, number of results) to results with "title", "url" and "snippet".
    grammar: of the questions.
    results: most results of a search.
  """

  name = "search"

  def __init__(
    self, search: Callable[[str, int], list[dict]], grammar: Grammar, results: int = 10
  ):
    self._grammar, self._results = grammar, results
    self._search = functools.lru_cache(maxsize=65536)(search)
    self.follow = functools.lru_cache(maxsize=262144)(self._follow)

  def solve(self, question: str) -> list[str]:
    """See `Solver`."""
    nested, said = self._grammar.read(question)
    found = {said.removeprefix("airport ")}
    for readings in reversed(nested):
      there: set[str] = set()
      for node in sorted(found)[:MOST_CANDIDATES]:
        for reading in readings:
          there |= self.follow(reading, node)
      found = there
    return sorted(found)

  def _follow(self, reading: Reading, node: str) -> frozenset[str]:
    """What stands at the other end of a relation, by the sentences that a search brings."""
    words = QUERY_WORDS.get(reading.relation, reading.relation.replace("_", " "))
    for query in (f"{node} {words}", f"{reading.kind} {words} {node} {node}"):
      found = self._read(self._search(query, self._results), reading, node)
      if found:
        return found
    return self._by_acquaintance(reading, node, words) if reading.outward else frozenset()

  def _by_acquaintance(self, reading: Reading, node: str, words: str) -> frozenset[str]:
    """The same for a node on whose own page the subject is named: asks for each such name."""
    named = set()
    for result in self._search(f"{node} {reading.kind}", self._results):
      for relation in TEMPLATES:
        stated = _sentence_pattern(relation).fullmatch(result["snippet"])
        if stated is not None and stated["s"] == node:
          named.add(stated["o"])
    found: set[str] = set()
    for name in sorted(named)[:MOST_CANDIDATES]:
      found |= self._read(self._search(f"{name} {words}", self._results), reading, node)
    return frozenset(found)

  def _read(self, results: list[dict], reading: Reading, node: str) -> frozenset[str]:
    """The other ends that the results' sentences state."""
    found = set()
    for result in results:
      if reading.kind not in result["url"].split("/")[2:4]:
        continue
      stated = _sentence_pattern(reading.relation).fullmatch(result["snippet"])
      if stated is None:
        continue
      subject, end = stated["s"], stated["o"]
      if reading.outward and end == node:
        found.add(subject)
      elif not reading.outward and subject == node:
        found.add(end)
    return frozenset(found)


@functools.cache
def _sentence_pattern(relation: str) -> re.Pattern:
  before, between, after = re.split(r"\{[so]\}", TEMPLATES[relation])
  order = re.findall(r"\{([so])\}", TEMPLATES[relation])
  return re.compile(
    f"{re.escape(before)}(?P<{order[0]}>.+){re.escape(between)}(?P<{order[1]}>.+){re.escape(after)}"
  )
