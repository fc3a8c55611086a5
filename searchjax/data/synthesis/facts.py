"""Atomic statements in one form, whoever extracted them, and what identifies what.  PURE.

A fact links an entity to another entity or to a literal, and says how either end is named by the
other: "the country whose capital is {x}" names the subject, "the capital of {x}" the object. A
fact identifies its subject if no other entity of the subject's kind has that fact, and its object
if the subject has no other object by that relation. Only identifying steps make a question, so
every noun phrase of it names exactly one entity.

Spec     1.3 (seed selection, atomic statements).
"""

import collections
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Thing(NamedTuple):
  """An entity: `split` is "sft", "rl", "heldout", or "shared" where it belongs to no single one."""

  id: str
  name: str
  kind: str
  split: str = "shared"


class Fact(NamedTuple):
  """One atomic statement.

  Attributes:
    page: id of the page that states it.
    sentence: where it is stated, as a reader sees it.
    subject: id of an entity.
    relation: a short name, equal for equal relations.
    object: id of an entity; None where `literal` holds the value.
    literal: a number, a date, a code.
    names_subject: noun phrases for the subject, "{x}" standing for the other end; may be empty.
    names_object: noun phrases for the other end, "{x}" standing for the subject; may be empty.
  """

  page: str
  sentence: str
  subject: str
  relation: str
  object: str | None
  literal: str | None
  names_subject: tuple[str, ...]
  names_object: tuple[str, ...]

  @property
  def end(self) -> str:
    """The id of the object, or the literal."""
    return self.literal if self.object is None else self.object


class Step(NamedTuple):
  """A fact used to name one end by the other.

  Attributes:
    fact: what is used.
    outward: True names the subject by the object or literal, False the object by the subject.
  """

  fact: Fact
  outward: bool

  @property
  def named(self) -> str:
    """The id, or literal, that the step names."""
    return self.fact.subject if self.outward else self.fact.end

  @property
  def by(self) -> str:
    """The id, or literal, by which it is named."""
    return self.fact.end if self.outward else self.fact.subject

  @property
  def label(self) -> str:
    """The relation; "^" before it says that the object is named by the subject."""
    return self.fact.relation if self.outward else f"^{self.fact.relation}"


@runtime_checkable
class Extractor(Protocol):
  """Where facts come from: the atlas's own statements, or a language model that reads pages."""

  def extract(self) -> "FactBase": ...


class FactBase:
  """Entities, facts about them, and which sentences name which entities.

  Args:
    things: entities.
    facts: about them; those whose ends are unknown entities are refused.
    mentions: page to its sentences, each as the ids of the entities that it names.
    dangling: (subject, relation, object) of facts whose object has no entry: never used, but
      counted among the subject's objects.

  Raises:
    ValueError: a fact of an unknown entity.
  """

  def __init__(
    self, things: Iterable[Thing], facts: Iterable[Fact],
    mentions: Mapping[str, Sequence[frozenset[str]]],
    dangling: Iterable[tuple[str, str, str]] = (),
  ):
    self.things = {thing.id: thing for thing in things}
    self.facts = tuple(facts)
    self.mentions = mentions
    self._subjects: dict[tuple, set[str]] = collections.defaultdict(set)
    self._objects: dict[tuple, set[str]] = collections.defaultdict(set)
    for fact in self.facts:
      for end in (fact.subject, fact.object):
        if end is not None and end not in self.things:
          raise ValueError(f"facts: {fact.sentence!r} is of the unknown entity {end!r}")
      self._subjects[self._claim(fact)].add(fact.subject)
      self._objects[fact.subject, fact.relation].add(fact.end)
    for subject, relation, end in dangling:
      self._objects[subject, relation].add(end)

  def _claim(self, fact: Fact) -> tuple:
    return self.things[fact.subject].kind, fact.relation, fact.object is None, fact.end

  def identifies_subject(self, fact: Fact) -> bool:
    """No other entity of the subject's kind has the same relation to the same end."""
    return bool(fact.names_subject) and len(self._subjects[self._claim(fact)]) == 1

  def identifies_end(self, fact: Fact) -> bool:
    """The subject has no other object, or literal, by this relation."""
    return bool(fact.names_object) and len(self._objects[fact.subject, fact.relation]) == 1

  @functools.cached_property
  def _pages_naming(self) -> dict[tuple[str, str], set[str]]:
    pages: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for page, sentences in self.mentions.items():
      for named in sentences:
        for pair in itertools.combinations(sorted(named), 2):
          pages[pair].add(page)
    return pages

  def pages_confirming(self, fact: Fact) -> frozenset[str]:
    """The page that states a fact, and those of which one sentence names both its entities."""
    if fact.object is None:
      return frozenset({fact.page})
    pair = min(fact.subject, fact.object), max(fact.subject, fact.object)
    return frozenset(self._pages_naming.get(pair, ())) | {fact.page}

  def seeds(self, pages: int) -> list[str]:
    """Entities one of whose facts at least so many pages confirm, in the order of the entities."""
    found = set()
    for fact in self.facts:
      if fact.object is not None and not (fact.subject in found and fact.object in found):
        if len(self.pages_confirming(fact)) >= pages:
          found |= {fact.subject, fact.object}
    return [thing for thing in self.things if thing in found]
