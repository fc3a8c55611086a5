"""Questions made from chains, and their records: evidence and verdicts.  HOST.

Spec     1.3 (name-free question, format-diversity augmentation, verification).
"""

import collections
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from searchjax.data.questions import QUERY_WORDS
from searchjax.data.synthesis.chains import Chain, ChainFilter, ChainSource
from searchjax.data.synthesis.facts import FactBase
from searchjax.data.synthesis.wording import FORMATS, NameFinder, all_wording, word_question


class Candidate(NamedTuple):
  """A worded question that solvers have not seen yet; `world` is always the real one, None."""

  id: str
  text: str
  answer: str
  split: str
  chain: Chain
  world: None = None


def candidates(
  base: FactBase,
  *,
  direction: str,
  hops: Sequence[int],
  seed: int,
  seed_pages: int,
  split: str,
  fold: Callable[[str], str],
  dropped: collections.Counter,
  relations: Sequence[str] = (),
) -> Iterator[Candidate]:
  """Questions in turn from all relation patterns, until no chain is left.

  Args:
    base: the facts.
    direction: "seed" or "forward".
    hops: how many facts a chain may have.
    seed: of the order and the wording.
    seed_pages: a seed has a fact that so many pages confirm; forward walks start anywhere.
    split: the only one wanted; "" for any.
    fold: a text as words, in the way names are compared.
    dropped: counts "chains", and those refused by reason.
    relations: the only ones that chains may have; () for any. See `ChainSource`.
  """
  things = base.things
  names = {thing.id: thing.name for thing in things.values()}
  kinds = {thing.id: thing.kind for thing in things.values()}
  phrases = {
    phrase for fact in base.facts for side in (fact.names_subject, fact.names_object)
    for phrase in side
  }
  finder = NameFinder(names.values(), [*phrases, *all_wording()], fold)
  checks = ChainFilter(base, fold)
  starts = base.seeds(seed_pages) if direction == "seed" else list(things)
  seen: set[str] = set()
  for chain in ChainSource(base, direction, starts, relations).in_turn(hops, seed):
    dropped["chains"] += 1
    reason = checks.why_dropped(chain, split)
    if reason:
      dropped[reason] += 1
      continue
    key = f"{seed}/{direction}/{chain.path}/{chain.labels}"
    text = word_question(chain, names, kinds, random.Random(key))
    unsaid = chain.nodes if direction == "seed" else chain.nodes[:-1]
    unsaid = [names.get(node, node) for node in unsaid if node in names or node == unsaid[0]]
    if any(finder.says(text, name) for name in unsaid):
      dropped["the question says the answer or a name on the way"] += 1
    elif direction == "seed" and finder.found(text):
      dropped["the question says some entity's name"] += 1
    elif text in seen:
      dropped["the same question"] += 1
    else:
      seen.add(text)
      answer = names.get(chain.nodes[0], chain.nodes[0])
      name = hashlib.blake2b(f"{key}/{text}".encode(), digest_size=8).hexdigest()
      yield Candidate(
        f"synthetic/{direction}/{name}", text, answer, checks.split_of(chain), chain
      )


def question_record(
  candidate: Candidate, base: FactBase, verdicts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
  """A kept question, with data.questions.Question's fields and where it comes from.

  Args:
    verdicts: one a solver.
  """
  chain = candidate.chain
  show = lambda node: base.things[node].name if node in base.things else node
  facts = [step.fact for step in chain.steps]
  return {
    "id": candidate.id, "text": candidate.text, "answer": candidate.answer, "aliases": [],
    "hops": len(facts), "relations": list(chain.labels), "path": list(chain.path),
    "split": candidate.split, "world": None,
    "steps": [
      [_query(show(step.by), step.fact.relation), show(step.named)]
      for step in reversed(chain.steps)
    ],
    "statement": facts[0].sentence, "direction": chain.direction,
    "pattern": "/".join(chain.pattern), "format": "",
    "chain": [
      {
        "named": show(step.named), "by": show(step.by), "relation": step.fact.relation,
        "outward": step.outward,
      }
      for step in chain.steps
    ],
    "evidence": [
      {
        "page": fact.page, "statement": fact.sentence,
        "confirmed_by": sorted(base.pages_confirming(fact))[:5],
      }
      for fact in facts
    ],
    "verdicts": [dict(verdict) for verdict in verdicts],
  }


def _query(name: str, relation: str) -> str:
  return f"{name} {QUERY_WORDS.get(relation, relation.replace('_', ' '))}"


def in_another_format(record: Mapping[str, Any], seed: int) -> dict[str, Any]:
  """The same question and answer with an instruction of FORMATS."""
  name = random.Random(f"{seed}/format/{record['id']}").choice(sorted(FORMATS))
  return {
    **record, "id": f"{record['id']}/{name}", "text": f"{record['text']} {FORMATS[name]}",
    "format": name,
  }


def wants_format(record: Mapping[str, Any], seed: int, share: float) -> bool:
  """Whether a question is asked in another format too; a share of them is."""
  return random.Random(f"{seed}/augment/{record['id']}").random() < share
