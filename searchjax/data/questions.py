"""Forward questions over the atlas: name a start, ask for the end of a chain of facts.  HOST.

  "What is the currency of the country of the city served by airport KWE?"
  airport/KWE --city--> Guiyang --country--> China --currency--> Yuan Renminbi

A chain walks statements of the atlas, its entities distinct, every name on it borne by one
entity only. A question is kept only if a perfect agent's query at every hop (the entity's name
and the relation's words) brings the needed sentence first from the served index, under the
question's own world; the others are dropped and counted.

Spec     1.3 (`direction: forward`).
"""

import collections
import functools
import hashlib
import itertools
import random
from typing import NamedTuple

from searchjax.search.atlas import Atlas, Statement, fold
from searchjax.search.index import SearchIndex
from searchjax.search.worlds import World

# What an agent adds to an entity's name to ask for a relation, and how a question says it.
QUERY_WORDS = {
  "city": "city", "country": "country", "region": "region", "capital": "capital",
  "currency": "currency", "continent": "continent", "calling_code": "calling code",
  "language": "language", "population": "population", "largest_city": "largest city",
  "highest_point": "highest point", "internet_code": "internet code", "time_zone": "time zone",
  "only_airport": "airport", "symbol": "symbol", "atomic_number": "atomic number",
}
PHRASES = {
  "city": ("the city of {x}", "the city served by {x}"),
  "country": ("the country of {x}", "the country holding {x}"),
  "region": ("the region of {x}", "the region holding {x}"),
  "capital": ("the capital of {x}", "the capital city of {x}"),
  "currency": ("the currency of {x}", "the money of {x}"),
  "continent": ("the continent of {x}", "the continent holding {x}"),
  "calling_code": ("the calling code of {x}", "the phone code of {x}"),
  "language": ("the main language of {x}", "the language of {x}"),
  "population": ("the population of {x}",),
  "largest_city": ("the largest city of {x}",),
  "highest_point": ("the highest point of {x}",),
  "internet_code": ("the internet code of {x}",),
  "time_zone": ("the time zone of {x}",),
  "only_airport": ("the airport of {x}",),
  "symbol": ("the symbol of {x}",),
  "atomic_number": ("the atomic number of {x}",),
}
START = {"airport": "airport {x}"}
FRAMES = ("What is {np}?", "Name {np}.", "Tell me {np}.")

_LAST = ("capital", "currency", "continent", "calling_code")
PATTERNS = {
  1: (("airport", "city"), ("city", "country"), ("city", "region"),
      *(("country", last) for last in _LAST)),
  2: (("airport", "city", "country"), ("airport", "city", "region"),
      *(("city", "country", last) for last in _LAST)),
  3: (*(("airport", "city", "country", last) for last in _LAST),
      ("city", "country", "capital", "region")),
}


class Question(NamedTuple):
  """A question in one world, with its answer and the path to it.

  Attributes:
    id: unique by split, chain and world.
    text: what the user asks.
    answer: the gold answer, a name or a literal of this world.
    aliases: other right answers.
    hops: searches that a perfect agent needs.
    relations: one a hop.
    path: ids of the start and of every hop's end; a literal stands as it is in the real world.
    split: "sft", "rl" or "heldout".
    world: seed of the renamed world; None is the real one.
    steps: (query, what it should bring) of a perfect agent, one a hop.
    statement: the answer as one concise sentence.
  """

  id: str
  text: str
  answer: str
  aliases: tuple[str, ...]
  hops: int
  relations: tuple[str, ...]
  path: tuple[str, ...]
  split: str
  world: int | None
  steps: tuple[tuple[str, str], ...]
  statement: str


class Chain(NamedTuple):
  """Statements that lead from one entity to an answer, each starting where the last ended."""

  statements: tuple[Statement, ...]

  @property
  def path(self) -> tuple[str, ...]:
    return (self.statements[0].subject,
            *(s.object if s.object is not None else s.literal for s in self.statements))


class _Walker:
  """Chains of one atlas, and whether its own index answers their hops."""

  def __init__(self, atlas: Atlas):
    self.atlas = atlas
    self.ambiguous = atlas.ambiguous_names()
    self._ids = list(atlas.pages)
    pages = [atlas.pages[i] for i in self._ids]
    self._index = SearchIndex([p.title for p in pages], [p.sentences for p in pages])
    self.answered = functools.lru_cache(maxsize=None)(self._answered)
    self.chains = functools.lru_cache(maxsize=None)(self._chains)

  def _answered(self, statement: Statement) -> bool:
    name = self.atlas.entities[statement.subject].name
    hits = self._index.search(query_for(name, statement.relation), 1)
    return bool(hits) and (self._ids[hits[0].page], hits[0].sentence) == (
      statement.subject, statement.sentence)

  def _chains(self, pattern: tuple[str, ...], split: str) -> tuple[Chain, ...]:
    """Every chain of a pattern whose entities are this split's, or shared but not all."""
    kind, *relations = pattern
    found = []
    for start, entity in self.atlas.entities.items():
      if entity.kind == kind and self.atlas.split_of(start) == split:
        found += [Chain(c) for c in self._extend((), start, relations, split)]
    return tuple(found)

  def _extend(self, done, subject, relations, split):
    if not relations:
      yield done
      return
    options = self.atlas.statements(subject, relations[0])
    if len(options) != 1:  # no such fact, or several right answers
      return
    statement = options[0]
    if statement.object is None:
      if len(relations) == 1:
        yield (*done, statement)
    elif (statement.object in self.atlas.entities
          and statement.object not in {s.subject for s in done} | {subject}
          and self.atlas.split_of(statement.object) in (split, "shared")):
      yield from self._extend((*done, statement), statement.object, relations[1:], split)


@functools.lru_cache(maxsize=2)
def _walker(atlas: Atlas) -> _Walker:
  return _Walker(atlas)


def query_for(name: str, relation: str) -> str:
  """The query of a perfect agent: the entity's name and the relation's words."""
  return f"{name} {QUERY_WORDS[relation]}"


def why_unusable(atlas: Atlas, chain: Chain, world: World, *, max_name_chars: int = 20,
                 ascii_only: bool = True) -> str | None:
  """Why a chain makes no question in this world, or None if it makes one."""
  walker = _walker(atlas)
  names = [world.name(s.subject) for s in chain.statements] + [world.tail(chain.statements[-1])]
  for statement in chain.statements:
    real = atlas.entities[statement.subject].name
    if fold(real) in walker.ambiguous:
      return "ambiguous name"
    if not walker.answered(statement):
      return "not found at rank 1"
    query = query_for(world.name(statement.subject), statement.relation)
    if world.unrename(query) != query_for(real, statement.relation):
      return "not found under renaming"
  if len({fold(name) for name in names}) < len(names):
    return "two entities of one name"
  if any(len(name) > max_name_chars for name in names):
    return "long name"
  if ascii_only and not all(name.isascii() for name in names):
    return "name beyond ASCII"
  return None


def question_in_world(atlas: Atlas, chain: Chain, split: str, world: World,
                      draw: random.Random) -> Question:
  """Words a chain as a question under one world's names."""
  relations = tuple(s.relation for s in chain.statements)
  start = chain.statements[0].subject
  text = START.get(atlas.entities[start].kind, "{x}").format(x=world.name(start))
  for relation in relations:
    text = draw.choice(PHRASES[relation]).format(x=text)
  last = chain.statements[-1]
  where = "real" if world.seed is None else world.seed
  return Question(
    id=f"{split}/{chain.path[0]}/{'.'.join(relations)}/{where}",
    text=draw.choice(FRAMES).format(np=text), answer=world.tail(last), aliases=(),
    hops=len(relations), relations=relations, path=chain.path, split=split, world=world.seed,
    steps=tuple((query_for(world.name(s.subject), s.relation), world.tail(s))
                for s in chain.statements),
    statement=world.render(atlas.pages[last.subject].sentences[last.sentence]))


def question_elsewhere(atlas: Atlas, question: Question, world: World,
                       draw: random.Random) -> Question:
  """The same chain asked in another world."""
  statements = tuple(atlas.statements(subject, relation)[0]
                     for subject, relation in zip(question.path, question.relations))
  return question_in_world(atlas, Chain(statements), question.split, world, draw)


def forward_questions(
    atlas: Atlas, split: str, *, hops: int, count: int, seed: int, world: str | None = None,
    max_name_chars: int = 20, ascii_only: bool = True,
    dropped: collections.Counter | None = None) -> list[Question]:
  """Makes distinct questions, balanced over the chain patterns of their number of hops.

  Args:
    atlas: the facts.
    split: "sft", "rl" or "heldout"; chains stay within it (shared entities aside).
    hops: 1, 2 or 3.
    count: how many; fewer come back where the real names give no more.
    seed: decides the order, the wording and the worlds.
    world: "fresh", a renamed world of its own for every question, or "real". None: real for
      held-out questions, else fresh.
    max_name_chars: names on the path are no longer than this.
    ascii_only: names on the path are plain ASCII.
    dropped: receives the number of chains refused by reason.

  Raises:
    ValueError: an unknown split, world or number of hops.
  """
  if split not in ("sft", "rl", "heldout"):
    raise ValueError(f"questions: expected split sft, rl or heldout, got {split!r}")
  if hops not in PATTERNS:
    raise ValueError(f"questions: expected 1, 2 or 3 hops, got {hops!r}")
  world = world or ("real" if split == "heldout" else "fresh")
  if world not in ("real", "fresh"):
    raise ValueError(f"questions: expected world real or fresh, got {world!r}")
  dropped = collections.Counter() if dropped is None else dropped
  sources = [_questions_of(atlas, split, pattern, seed, world, max_name_chars, ascii_only, dropped)
             for pattern in PATTERNS[hops]]
  questions = []
  while sources and len(questions) < count:
    for source in list(sources):
      question = next(source, None)
      if question is None:
        sources.remove(source)
      elif len(questions) < count:
        questions.append(question)
  return questions


def _questions_of(atlas, split, pattern, seed, world, max_name_chars, ascii_only, dropped):
  """Questions of one pattern: every chain once in the real world, without end in fresh ones."""
  walker = _walker(atlas)
  draw = random.Random(f"{seed}/{split}/{'.'.join(pattern)}")
  chains = walker.chains(pattern, split)
  real = World(atlas, None)
  for round_ in itertools.count() if world == "fresh" else range(1):
    usable = 0
    for i, chain in enumerate(_countries_in_turn(atlas, chains, draw)):
      place = real if world == "real" else World(
        atlas, _world_seed(f"{seed}/{split}/{pattern}/{round_}/{i}"))
      reason = why_unusable(atlas, chain, place, max_name_chars=max_name_chars,
                            ascii_only=ascii_only)
      if reason:
        dropped[reason] += 1
      else:
        usable += 1
        yield question_in_world(atlas, chain, split, place, draw)
    if not usable:
      return


def _countries_in_turn(atlas, chains, draw) -> list[Chain]:
  """Shuffles chains so that every country comes once before any comes twice."""
  by_country = collections.defaultdict(list)
  for chain in draw.sample(chains, len(chains)):
    by_country[atlas.entities[chain.path[0]].country].append(chain)
  order = sorted(by_country, key=str)
  draw.shuffle(order)
  rounds = itertools.zip_longest(*(by_country[country] for country in order))
  return [chain for round_ in rounds for chain in round_ if chain is not None]


def _world_seed(text: str) -> int:
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little")
