"""Verifiable questions made from facts: chains, name-free wording, independent solvers.  HOST.

  facts → seeds that several pages confirm → chains of 2 to 4 facts → nested questions without
  names → solvers that see the question alone → questions that all of them answer alike (SPEC 1.3)

python -m searchjax.synthesize --config configs/synthesize.py --workdir runs/synthetic/seed

WORKDIR/questions.jsonl is read by config.data.questions_file of train_grpo and evaluate;
WORKDIR/report.json counts what every filter dropped. A killed run goes on where it was and ends
with the same questions.jsonl. docs/synthesis.md says what a record holds.
"""

import collections
import contextlib
import itertools
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from searchjax.data.chat import ToolCall
from searchjax.data.synthesis.atlas_facts import WORDS, AtlasExtractor
from searchjax.data.synthesis.endpoint import Endpoint
from searchjax.data.synthesis.facts import FactBase
from searchjax.data.synthesis.journal import Journal, is_text
from searchjax.data.synthesis.llm_facts import LanguageModelExtractor, Source
from searchjax.data.synthesis.records import (
  Candidate, candidates, in_another_format, question_record, wants_format,
)
from searchjax.data.synthesis.solvers import (
  FOUND, NOTHING, OTHER, Grammar, SearchSolver, StatementSolver, verdict,
)
from searchjax.dist.checks import check_config
from searchjax.dist.run_log import RunLog, is_finished, write_json, write_jsonl
from searchjax.dist.settings import run_main
from searchjax.dist.storage import is_remote
from searchjax.reward.answer import Verdict, judge_answer
from searchjax.rollout.agent import Agent, load_chat, open_agent
from searchjax.search.atlas import fold, load_atlas, plain, read_pages
from searchjax.search.options import check_search
from searchjax.search.server import SearchService

# What a solver that is a language model is asked besides the question.
UNIQUE = "If more than one answer fits, name every one of them."
UNSERVED = "a solver could not be served"
ENOUGH = "confirmed, but more than count"
# Verdicts of each solver, or None where one could not be served.
Verdicts = list[dict[str, Any]] | None
Verify = Callable[[Sequence[Candidate]], list[Verdicts]]


def main(config, workdir: os.PathLike) -> None:
  check_config(config)
  check_search(config.search)
  if is_remote(workdir):
    raise ValueError(f"synthesis writes a local folder, got --workdir {workdir}")
  if config.extractor == "llm" and not config.inference.url:
    raise ValueError("extractor=llm needs inference.url, an OpenAI-compatible endpoint")
  report_path = workdir / "report.json"
  done = config.count if report_path.is_file() else None
  if is_finished(workdir, config, done=done, total_steps=config.count, title="synthesize"):
    return
  began = time.monotonic()
  dropped: collections.Counter = collections.Counter()
  opened = atlas_parts if config.extractor == "atlas" else llm_parts
  with contextlib.ExitStack() as stack:
    make = stack.enter_context(opened(config, workdir))
    log = stack.enter_context(
      RunLog(workdir, config, total_steps=config.count, title="synthesize")
    )
    base, verify, facts_dropped = make()
    journal = stack.enter_context(Journal(workdir / "verdicts.jsonl", are_verdicts))
    records = make_questions(config, base, verify, journal, dropped, log)
  seconds = time.monotonic() - began
  augmented = [
    in_another_format(record, config.seed) for record in records
    if wants_format(record, config.seed, config.format_share)
  ]
  write_jsonl(workdir / "questions.jsonl", records + augmented)
  report = make_report(config, base, records, augmented, dropped, facts_dropped)
  write_json(report_path, report | {"seconds": round(seconds, 1)})
  show(report, seconds, workdir)


def make_questions(
  config, base: FactBase, verify: Verify, journal: Journal, dropped: collections.Counter,
  log: RunLog,
) -> list[dict]:
  """The kept questions' records, at most `config.count`; drops are counted by reason."""
  source = candidates(
    base, direction=config.direction, hops=config.hops, seed=config.seed,
    seed_pages=config.seed_pages, split=config.split, fold=fold, dropped=dropped,
    relations=config.relations,
  )
  records: list[dict] = []
  began = time.monotonic()
  while len(records) < config.count:
    batch = list(itertools.islice(source, min(config.batch, 2 * (config.count - len(records)))))
    if not batch:
      break
    fresh = [c for c in batch if c.id not in journal.kept]
    for candidate, verdicts in zip(fresh, verify(fresh) if fresh else [], strict=True):
      if verdicts is not None:
        journal.add(candidate.id, verdicts)
    journal.flush()
    for candidate in batch:
      verdicts = journal.kept.get(candidate.id)
      refused = why_refused(verdicts)
      if refused:
        dropped[refused] += 1
      elif len(records) == config.count:
        dropped[ENOUGH] += 1
      else:
        records.append(question_record(candidate, base, verdicts))
    if records:
      log.write(
        len(records) - 1,
        {
          "synthesis_kept": len(records) / dropped["chains"],
          "questions_per_second": len(records) / (time.monotonic() - began),
        },
      )
  return records


def are_verdicts(value: Any) -> bool:
  """Whether it is what a journal keeps of a candidate: a verdict of each solver."""
  return isinstance(value, list) and all(
    isinstance(one, dict) and isinstance(one.get("verdict"), str)
    and isinstance(one.get("solver"), str) for one in value
  )


def why_refused(verdicts: Verdicts) -> str | None:
  """The first solver that does not confirm the answer; None if all do."""
  if verdicts is None:
    return UNSERVED
  for one in verdicts:
    if one["verdict"] != FOUND:
      return f"solver {one['solver']}: {one['verdict']}"
  return None


# ---- the atlas -----------------------------------------------------------------------------------


@contextlib.contextmanager
def atlas_parts(config, workdir: pathlib.Path) -> Iterator[Callable[[], tuple]]:
  """Facts from the pages' own statements; solvers over statements and over the search service."""
  del workdir
  atlas = load_atlas(config.search.corpus or None, for_questions=True)

  def make() -> tuple[FactBase, Verify, collections.Counter]:
    extractor = AtlasExtractor(atlas)
    base = extractor.extract()
    grammar, service = Grammar(WORDS), SearchService(atlas)
    search = lambda query, count: service.search(query, count, None)
    solvers = (
      StatementSolver(atlas, grammar), SearchSolver(search, grammar, config.search.max_results),
    )
    verify = lambda batch: [solve(candidate, solvers) for candidate in batch]
    return base, verify, collections.Counter(extractor.skipped)

  yield make


def solve(candidate: Candidate, solvers) -> list[dict[str, Any]]:
  """The solvers' verdicts, none after the first that does not confirm the answer."""
  verdicts = []
  for solver in solvers:
    found = solver.solve(candidate.text)
    verdicts.append(
      {
        "solver": solver.name, "found": found[:5], "verdict": verdict(candidate.answer, found),
      }
    )
    if verdicts[-1]["verdict"] != FOUND:
      break
  return verdicts


# ---- a language model ----------------------------------------------------------------------------


@contextlib.contextmanager
def llm_parts(config, workdir: pathlib.Path) -> Iterator[Callable[[], tuple]]:
  """Facts that a model reads from pages; solvers are its rollouts with the search tool."""
  if not config.search.corpus and not config.llm.queries:
    raise ValueError(
      "extractor=llm needs search.corpus, a JSONL file of pages, or llm.queries, a text file of "
      "seed queries, one a line"
    )
  queries = read_queries(config.llm.queries) if config.llm.queries else []
  pages = corpus_pages(config.search.corpus) if config.search.corpus else []
  chat = load_chat(config.tokenizer, **config.get("chat", {}))
  with contextlib.ExitStack() as stack:
    agent = stack.enter_context(open_agent(config, None, chat))
    inference = dict(config.inference) | {"model": agent.engine.model}
    endpoint = stack.enter_context(Endpoint(**inference))

    def make() -> tuple[FactBase, Verify, collections.Counter]:
      replies = stack.enter_context(Journal(workdir / "replies.jsonl", is_text))
      searches = stack.enter_context(Journal(workdir / "searches.jsonl"))
      base, failures = read_facts(config, agent, endpoint, pages, queries, replies, searches)
      return base, lambda batch: verify_by_rollouts(config, agent, batch), failures

    yield make


def read_facts(
  config, agent: Agent, endpoint: Endpoint, pages: list[Source], queries: list[str],
  replies: Journal, searches: Journal,
) -> tuple[FactBase, collections.Counter]:
  """Facts of the corpus, or of what seed queries and then the entities' own names bring."""
  known = {page.id: page for page in pages[: config.llm.most_pages]}
  asked: set[str] = set()

  def keep(page: str, reply: str) -> None:
    replies.add(page, reply)
    replies.flush()

  for round_ in range(config.llm.rounds + 1 if queries else 1):
    fresh = [query for query in dict.fromkeys(queries) if query not in asked]
    asked.update(fresh)
    lost = 0
    for page in search_pages(agent, fresh, searches):
      if page is None:
        lost += 1
      elif len(known) < config.llm.most_pages:
        known.setdefault(page.id, page)
    extractor = LanguageModelExtractor(
      list(known.values()), endpoint, replies=replies.kept, keep=keep,
    )
    base = extractor.extract()
    if lost:
      extractor.failures["search that could not be served"] += lost
    queries = [thing.name for thing in base.things.values()]
    if len(known) >= config.llm.most_pages or round_ == config.llm.rounds:
      break
  return base, extractor.failures


def search_pages(
  agent: Agent, queries: Sequence[str], searches: Journal
) -> Iterator[Source | None]:
  """What the search tool brings, as pages; None for a search that could not be served."""
  futures = {
    query: agent.tool.submit(ToolCall("search_web", {"query": query}))
    for query in queries if query not in searches.kept
  }
  for query in queries:
    if query in futures:
      outcome = futures[query].result()
      agent.tool.raise_if_stopped()
      if outcome.status != "ok":
        yield None
        continue
      searches.add(query, [[r.url, r.title, r.snippet] for r in outcome.results])
      searches.flush()
    for url, title, snippet in searches.kept[query]:
      yield Source(url, title, snippet)


def verify_by_rollouts(config, agent: Agent, batch: Sequence[Candidate]) -> list[Verdicts]:
  """Each question asked of several independent rollouts, which are told to name every answer."""
  asked = [c._replace(text=f"{c.text} {UNIQUE}") for c in batch]
  groups = agent.collect(
    asked, None, group_size=config.llm.solvers, temperature=config.llm.temperature,
    seed=config.seed, purpose="evaluation", step=0,
  )
  results: list[Verdicts] = []
  for candidate, group in zip(batch, groups, strict=True):
    if not all(episode.valid for episode in group):
      results.append(None)
      continue
    results.append(
      [
        {
          "solver": f"rollout {i}", "found": [episode.final_answer],
          "verdict": judged(candidate, episode.final_answer),
        }
        for i, episode in enumerate(group)
      ]
    )
  return results


def judged(candidate: Candidate, answer: str) -> str:
  """A rollout's answer as a verdict; several answers count as another one."""
  came = judge_answer(answer, [candidate.answer], candidate.text)
  return {Verdict.CORRECT: FOUND, Verdict.NOT_ATTEMPTED: NOTHING}.get(came, OTHER)


def corpus_pages(path: str) -> list[Source]:
  """The pages of a JSONL corpus as plain text."""
  rows, _ = read_pages(path)
  return [
    Source(row["id"], row["title"], " ".join(plain(s) for s in row["sentences"])) for row in rows
  ]


def read_queries(path: str) -> list[str]:
  """Seed queries, one a line.

  Raises:
    ValueError: no such file, or none in it.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    raise ValueError(f"llm.queries {path}: no such file; expected one query a line")
  queries = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
  if not queries:
    raise ValueError(f"llm.queries {path}: no query in it; expected one a line")
  return queries


# ---- the report ----------------------------------------------------------------------------------


def make_report(config, base: FactBase, records, augmented, dropped, facts_dropped) -> dict:
  """Counts of everything that was made and of everything that was not kept."""
  by = lambda key, rows: dict(sorted(collections.Counter(row[key] for row in rows).items()))
  chains = dropped["chains"]
  return {
    "direction": config.direction, "facts": len(base.facts), "entities": len(base.things),
    "seeds": len(base.seeds(config.seed_pages)), "facts_dropped": dict(facts_dropped),
    "chains": chains, "questions": len(records),
    "dropped": {k: n for k, n in dropped.most_common() if k != "chains"},
    "by_hops": {str(k): n for k, n in by("hops", records).items()},
    "by_split": by("split", records), "by_pattern": by("pattern", records),
    "augmented": by("format", augmented),
  }


def show(report: dict, seconds: float, workdir: os.PathLike) -> None:
  """Prints the report in a few lines."""
  n = report["questions"]
  print(
    f"{n:,} questions over {len(report['by_pattern']):,} relation patterns, hops "
    f"{report['by_hops']}, in {seconds:.0f} s ({n / max(seconds, 1e-9):.0f} a second); "
    f"{sum(report['augmented'].values()):,} of them in another format too"
  )
  print(f"of {report['facts']:,} facts; {report['seeds']:,} of {report['entities']:,} entities "
        f"have a confirmed fact; not read: {report['facts_dropped'] or 'nothing'}")
  print(f"of {report['chains']:,} chains, dropped:")
  for reason, count in report["dropped"].items():
    print(f"  {count:>9,}  {reason}")
  print(f"{workdir}/questions.jsonl, report.json", flush=True)


if __name__ == "__main__":
  run_main(main, __doc__.splitlines()[0])
