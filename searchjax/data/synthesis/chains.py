"""Chains of 2 to 4 facts from an answer outward, taken in turn from every relation pattern.  PURE.

  seed:     answer = e_1 ← e_2 ← … ← e_k ← literal       every step names e_i by e_{i+1}
  forward:  answer = e_1 ← e_2 ← … ← e_k ← start         the question says the start's name

In both directions the first step names the answer and the last one stands innermost in the
question. A pattern is the kinds and relations on the way, in the order of the walk: from the seed
outward, or from the start to the answer. Hops take turns, then the patterns of a number of hops,
then the entities where a pattern begins, so that no pattern swamps the rest.

Spec     1.3 (sequential expansion; `direction: seed`, `direction: forward`).
"""

import collections
import functools
import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from searchjax.data.synthesis.facts import FactBase, Step

DIRECTIONS = ("seed", "forward")
LITERAL = "literal"
MOST_LISTED = 3000  # nodes of a set that is kept to cut walks short


class Chain(NamedTuple):
  """Steps from the answer to what the question says.

  Attributes:
    steps: the first names the answer, the last is named by the literal or the start.
    pattern: kinds and relations of the walk.
    direction: one of DIRECTIONS.
  """

  steps: tuple[Step, ...]
  pattern: tuple[str, ...]
  direction: str

  @property
  def nodes(self) -> tuple[str, ...]:
    """Ids and literals from the answer to what the question says."""
    return self.steps[0].named, *(step.by for step in self.steps)

  @property
  def path(self) -> tuple[str, ...]:
    """The same in the order of the walk: from the seed, or from the start."""
    return self.nodes if self.direction == "seed" else self.nodes[::-1]

  @property
  def labels(self) -> tuple[str, ...]:
    """The relations in the order of the walk; "^" marks one walked from object to subject."""
    if self.direction == "seed":
      return tuple(step.label for step in self.steps)
    flip = {True: "^", False: ""}
    return tuple(flip[step.outward] + step.fact.relation for step in reversed(self.steps))


class ChainSource:
  """All chains of one direction.

  Args:
    base: the facts.
    direction: one of DIRECTIONS.
    starts: where walks begin: the seeds, or the entities whose names a question may say.
    relations: labels as `Chain.labels` has them, the only ones walked; () walks all.

  Raises:
    ValueError: an unknown direction, or a relation that no fact has.
  """

  def __init__(
    self, base: FactBase, direction: str, starts: Sequence[str], relations: Sequence[str] = ()
  ):
    if direction not in DIRECTIONS:
      raise ValueError(f"direction: expected seed or forward, got {direction!r}")
    known = {fact.relation for fact in base.facts}
    unknown = sorted({label.lstrip("^") for label in relations} - known)
    if unknown:
      raise ValueError(
        f"relations: no fact has {', '.join(unknown)}; known: {', '.join(sorted(known))}"
      )
    self.base, self.direction, self.relations = base, direction, frozenset(relations)
    self._moves: dict[str, dict[tuple[str, str], list[Step]]] = {}
    self._before: dict[tuple[str, str], dict[str, list[str]]] = {}
    self._kinds: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)
    for fact in base.facts:
      if base.identifies_subject(fact):
        self._add(Step(fact, True))
      if base.identifies_end(fact):
        self._add(Step(fact, False))
    self._starts: dict[tuple[str, tuple[str, str]], dict[str, None]] = {}
    for start in starts:
      for way in self._moves.get(start, ()):
        self._starts.setdefault((base.things[start].kind, way), {})[start] = None
    self._able = functools.lru_cache(maxsize=None)(self._nodes_able)

  def _add(self, step: Step) -> None:
    """Files a step under the entity that a walk leaves by it."""
    seed = self.direction == "seed"
    if seed and step.fact.object is None and not step.outward:
      return  # it names a literal
    if not seed and step.fact.object is None and step.outward:
      return  # a walk never begins at a literal
    here, there = (step.named, step.by) if seed else (step.by, step.named)
    kind = LITERAL if step.fact.object is None else self.base.things[there].kind
    relation = step.label if seed else ("^" if step.outward else "") + step.fact.relation
    if self.relations and relation not in self.relations:
      return
    self._moves.setdefault(here, {}).setdefault((relation, kind), []).append(step)
    self._before.setdefault((relation, kind), {}).setdefault(there, []).append(here)
    self._kinds[self.base.things[here].kind].add((relation, kind))

  def patterns(self, hops: int) -> list[tuple[str, ...]]:
    """Every sequence of kinds and relations that the facts allow, no relation twice, sorted."""
    found: list[tuple[str, ...]] = []

    def extend(done: tuple[str, ...], left: int):
      if not left:
        if self.direction == "forward" or done[-1] == LITERAL:
          found.append(done)
        return
      used = {word.lstrip("^") for word in done[1::2]}
      for relation, kind in sorted(self._kinds.get(done[-1], ())):
        if relation.lstrip("^") not in used and (kind != LITERAL or left == 1):
          extend((*done, relation, kind), left - 1)

    for kind in sorted({kind for kind, _ in self._starts}):
      extend((kind,), hops)
    return found

  def chains(self, pattern: tuple[str, ...], draw: random.Random) -> Iterator[Chain]:
    """Every chain of a pattern, its entities distinct; each start once before any comes twice."""
    ways = tuple(zip(pattern[1::2], pattern[2::2], strict=True))
    starts = self._starts.get((pattern[0], ways[0]), {})
    able = self._able(ways)
    starts = list(starts) if able is None else [node for node in sorted(able) if node in starts]
    walks = (self._walks((start,), (), ways, draw) for start in _shuffled(starts, draw))
    while True:
      going = []
      for walk in walks:
        steps = next(walk, None)
        if steps is not None:
          going.append(walk)
          yield Chain(steps if self.direction == "seed" else steps[::-1], pattern, self.direction)
      if not going:
        return
      walks = going

  def _walks(self, nodes, steps, ways, draw) -> Iterator[tuple[Step, ...]]:
    if not ways:
      yield steps
      return
    options = self._moves.get(nodes[-1], {}).get(ways[0], ())
    if len(options) > 1:
      options = draw.sample(options, len(options))
    able = self._able(ways[1:])
    for step in options:
      there = step.by if self.direction == "seed" else step.named
      if there not in nodes and (able is None or there in able):
        yield from self._walks((*nodes, there), (*steps, step), ways[1:], draw)

  def _nodes_able(self, ways: tuple[tuple[str, str], ...]) -> frozenset[str] | None:
    """Where a walk of these ways can begin, distinctness aside; None where that is anywhere much.

    Most patterns die out: without this nearly all the time goes into walks that lead nowhere.
    """
    if not ways:
      return None
    after = self._able(ways[1:])
    before = self._before.get(ways[0], {})
    if after is None:
      after = before.keys()
    found: set[str] = set()
    for node in after:
      found.update(before.get(node, ()))
      if len(found) > MOST_LISTED:
        return None
    return frozenset(found)

  def in_turn(self, hops: Sequence[int], seed: int) -> Iterator[Chain]:
    """Chains of all patterns, in turn by hops, then by pattern, until none is left."""
    by_hops = [self._patterns_in_turn(h, seed) for h in hops]
    yield from take_turns(by_hops)

  def _patterns_in_turn(self, hops: int, seed: int) -> Iterator[Chain]:
    patterns = self.patterns(hops)
    random.Random(f"{seed}/{self.direction}/{hops}").shuffle(patterns)
    yield from take_turns(
      [self.chains(p, random.Random(f"{seed}/{self.direction}/{'/'.join(p)}")) for p in patterns]
    )


def _shuffled(items: Sequence[str], draw: random.Random) -> Iterator[str]:
  """The items in the order i ↦ (a i + b) mod n, a prime to n: thousands of patterns start here."""
  n = len(items)
  a, b = draw.randrange(n) if n else 0, draw.randrange(n) if n else 0
  while n and math.gcd(a, n) != 1:
    a += 1
  for i in range(n):
    yield items[(a * i + b) % n]


def take_turns(sources: Sequence[Iterator]) -> Iterator:
  """One from each source, again and again; an empty one leaves."""
  sources = list(sources)
  while sources:
    going = []
    for source in sources:
      for item in source:
        going.append(source)
        yield item
        break
    sources = going


class ChainFilter:
  """Why a chain makes no question.

  Args:
    base: the facts.
    fold: a name as names are compared.
  """

  def __init__(self, base: FactBase, fold):
    self.base = base
    self._folded = {thing.id: fold(thing.name) for thing in base.things.values()}
    bearers = collections.Counter(self._folded.values())
    self._ambiguous = {name for name, count in bearers.items() if count > 1}
    self._has_splits = any(thing.split != "shared" for thing in base.things.values())
    self._linked: dict[str, set[str]] = collections.defaultdict(set)
    for fact in base.facts:
      self._linked[fact.subject].add(fact.end)
      if fact.object is not None:
        self._linked[fact.object].add(fact.subject)

  def split_of(self, chain: Chain) -> str:
    """The split of its entities; "shared" where they have none."""
    things = self.base.things
    splits = {things[node].split for node in chain.nodes if node in things} - {"shared"}
    return min(splits, default="shared")

  def why_dropped(self, chain: Chain, split: str = "") -> str | None:
    """The first reason against a chain, None if there is none.

    Args:
      split: the only one that is wanted; "" for any.
    """
    things, nodes = self.base.things, chain.nodes
    entities = [node for node in nodes if node in things]
    splits = {things[node].split for node in entities} - {"shared"}
    if self._has_splits and len(splits) != 1:
      return "entities of several splits" if splits else "entities of no split"
    if split and splits and split not in splits:
      return "another split"
    names = [self._folded[node] for node in entities]
    if len(set(names)) < len(names):
      return "two entities of one name"
    answer, far = nodes[0], nodes[2:]
    linked = self._linked[answer] if answer in things else {
      node for node in far if answer in self._linked[node]
    }
    if not linked.isdisjoint(far):
      return "a single statement gives the answer away"
    if chain.direction == "forward" and self._folded[nodes[-1]] in self._ambiguous:
      return "ambiguous start"
    return None
