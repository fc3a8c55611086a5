"""Facts that a language model reads from pages, each checked against its page.  HOST.

A fact is kept only if the page holds its evidence word for word, the page names both ends, and its
noun phrases say no name. What is refused is counted by reason. An entity is known by its folded
name, so the same name on two pages is one entity.

Spec     1.3 (atomic statements).
"""

import collections
import pathlib
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from searchjax.data.synthesis.endpoint import Endpoint, EndpointFailure, first_object
from searchjax.data.synthesis.facts import Fact, FactBase, Thing
from searchjax.search.atlas import fold, split_sentences

PROMPT = pathlib.Path(__file__).parent / "assets" / "extract.md"
KIND = re.compile(r"[a-z][a-z-]*(?: [a-z-]+){0,3}")
RELATION = re.compile(r"[a-z][a-z0-9_]{0,63}")
TEXT_FIELDS = ("subject", "subject_kind", "relation", "object", "phrase", "evidence")


class Source(NamedTuple):
  """A page's plain text, as a search or a corpus gives it."""

  id: str
  title: str
  text: str


def extraction_prompt(page: Source) -> str:
  """What the model is asked about a page."""
  return string.Template(PROMPT.read_text(encoding="utf-8")).safe_substitute(
    title=page.title, text=page.text
  )


def read_reply(reply: str, page: Source, failures: collections.Counter) -> list[dict[str, Any]]:
  """The facts of a reply that hold, as the prompt's objects; others count in `failures`."""
  found = first_object(reply, "facts")
  if found is None or not isinstance(found["facts"], list):
    failures["reply without a list of facts"] += 1
    return []
  kept = []
  for row in found["facts"]:
    reason = why_refused(row, page)
    if reason:
      failures[reason] += 1
    else:
      kept.append(row)
  return kept


def why_refused(row: Any, page: Source) -> str | None:
  """The first thing wrong with a fact of a reply; None if it holds."""
  if not isinstance(row, dict) or not all(
    isinstance(row.get(field), str) and row[field].strip() for field in TEXT_FIELDS
  ):
    return "fact without all its fields"
  inverse, object_kind = row.get("inverse"), row.get("object_kind")
  if not isinstance(inverse, str | None) or not isinstance(object_kind, str | None):
    return "fact without all its fields"
  if not RELATION.fullmatch(row["relation"]) or not all(
    KIND.fullmatch(kind) for kind in (row["subject_kind"], object_kind) if kind is not None
  ):
    return "relation or kind that is no plain word"
  says = lambda text, name: f" {fold(name)} " in f" {fold(text)} "
  if not fold(row["subject"]) or not fold(row["object"]):
    return "fact without all its fields"
  shown = f"{page.title} {page.text}"
  if not says(shown, row["evidence"]):
    return "evidence that the page does not hold"
  if not says(shown, row["subject"]) or not says(shown, row["object"]):
    return "name that the page does not hold"
  if fold(row["subject"]) == fold(row["object"]):
    return "fact of one entity alone"
  for phrase in (row["phrase"], inverse):
    if phrase is not None:
      if phrase.count("{x}") != 1 or not phrase.startswith("the "):
        return "phrase that is no noun phrase with one {x}"
      if says(phrase, row["subject"]) or says(phrase, row["object"]):
        return "phrase that says a name"
  return None


class LanguageModelExtractor:
  """Asks a model for the facts of every page.

  Args:
    pages: to be read.
    endpoint: the model.
    replies: page id to the reply of an earlier run; read first.
    keep: called with (page id, reply) as replies come, to be recorded.
    batch: pages asked about at once.

  Attributes:
    failures: refused facts and lost pages by reason.
  """

  def __init__(
    self, pages: Sequence[Source], endpoint: Endpoint, *,
    replies: Mapping[str, str] | None = None,
    keep: Callable[[str, str], None] = lambda page, reply: None, batch: int = 64,
  ):
    self.pages, self.endpoint = pages, endpoint
    self.failures: collections.Counter = collections.Counter()
    self._replies, self._keep, self._batch = dict(replies or {}), keep, batch

  def extract(self) -> FactBase:
    """See `Extractor`.

    Raises:
      ValueError: the endpoint refuses every request, for its key or its quota.
    """
    missing = [page for page in self.pages if page.id not in self._replies]
    for start in range(0, len(missing), self._batch):
      some = missing[start : start + self._batch]
      answers = self.endpoint.ask_all([extraction_prompt(page) for page in some])
      for page, answer in zip(some, answers, strict=True):
        if not isinstance(answer, EndpointFailure):
          self._replies[page.id] = answer
          self._keep(page.id, answer)
        elif answer.lasting:
          raise ValueError(f"inference.url {self.endpoint.url}: {answer.reason}")
        else:
          self.failures[f"page without a reply: {answer.reason}"] += 1
    rows = [
      (page, row)
      for page in self.pages if page.id in self._replies
      for row in read_reply(self._replies[page.id], page, self.failures)
    ]
    return facts_of(rows, self.pages, self.failures)


def facts_of(
  rows: Sequence[tuple[Source, Mapping[str, Any]]], pages: Sequence[Source],
  failures: collections.Counter,
) -> FactBase:
  """Facts of all pages as one base; a fact that two pages state is one fact of the first."""
  things: dict[str, Thing] = {}
  for _, row in rows:
    ends = [("subject", row["subject_kind"])]
    if row.get("object_kind") is not None:
      ends.append(("object", row["object_kind"]))
    for end, kind in ends:
      name = " ".join(row[end].split())
      things.setdefault(fold(name), Thing(fold(name), name, kind))
  facts: dict[tuple, Fact] = {}
  for page, row in rows:
    linked = row.get("object_kind") is not None or fold(row["object"]) in things
    end = fold(row["object"]) if linked else " ".join(row["object"].split())
    fact = Fact(
      page.id, row["evidence"], fold(row["subject"]), row["relation"], end if linked else None,
      None if linked else end, (row["phrase"],), (row["inverse"],) if row.get("inverse") else (),
    )
    if facts.setdefault((fact.subject, fact.relation, end), fact) is not fact:
      failures["fact that an earlier page states"] += 1
  mentions = {}
  for page in pages:
    sentences = [f" {fold(sentence)} " for sentence in split_sentences(page.text)]
    mentions[page.id] = [
      frozenset(thing for thing in things if f" {thing} " in sentence) for sentence in sentences
    ]
  return FactBase(things.values(), facts.values(), mentions)
