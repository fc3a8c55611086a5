"""Synthesis from end to end: the atlas both ways, SPEC's example, restarts, bad input.

Whether an answer is the only one is re-checked here by a program that shares nothing with the
generator: it runs over the statements of the corpus file for every entity of the answer's kind.
"""

import collections
import gzip
import json
import re
import unicodedata

import pytest

from loopback import served
from searchjax import synthesize
from searchjax.data.question_file import read_questions
from searchjax.dist.settings import load_config, run_main
from searchjax.search.atlas import ASSETS
from small_synthesis import PAGES, QUESTION, Reader
from small_web import small_corpus

NOT_NAMES = {"the", "day", "independence", "national city"}  # words that questions are made of


def run(repository, workdir, *overrides, variant=""):
  config = load_config(str(repository / f"configs/synthesize.py{variant}"), overrides)
  synthesize.main(config, workdir)
  lines = (workdir / "questions.jsonl").read_text(encoding="utf-8").splitlines()
  report = json.loads((workdir / "report.json").read_text(encoding="utf-8"))
  return [json.loads(line) for line in lines], report


def rows_of(path):
  opened = gzip.open if path.suffix == ".gz" else open
  with opened(path, "rt", encoding="utf-8") as lines:
    return [row for row in map(json.loads, lines) if "id" in row]


def key(text):
  text = unicodedata.normalize("NFKD", text)
  text = "".join(c for c in text if not unicodedata.combining(c)).casefold()
  return " ".join(re.findall(r"[^\W_]+", text))


class BruteForce:
  """Every answer of a chain of relations, by the triples of a corpus."""

  def __init__(self, rows):
    self.names = {row["id"]: row["title"] for row in rows}
    self.triples = collections.defaultdict(list)
    for row in rows:
      for s in row["statements"]:
        self.triples[s["p"]].append((row["id"], s.get("o", s.get("v"))))

  def answers(self, record):
    """All ends of a record's chain, walked from what the question says to the answer."""
    kinds = record["pattern"].split("/")[0::2]
    hops = list(zip(record["relations"], kinds, kinds[1:], strict=False))
    said = record["path"][-1 if record["direction"] == "seed" else 0]
    reached = {said}
    for label, near, far in reversed(hops) if record["direction"] == "seed" else hops:
      wanted = near if record["direction"] == "seed" else far
      backward = (record["direction"] == "seed") != label.startswith("^")
      ends = {
        (s if backward else o) for s, o in self.triples[label.lstrip("^")]
        if (o if backward else s) in reached
      }
      reached = {e for e in ends if wanted == "literal" or e.startswith(f"{wanted}/")}
    return {self.names.get(e, e) for e in reached}


def check_records(records, rows, every=1):
  brute = BruteForce(rows)
  names = {key(name) for name in brute.names.values()} - NOT_NAMES
  longest = max(name.count(" ") for name in names) + 1
  for record in records[::every]:
    assert brute.answers(record) == {record["answer"]}, record
    assert 2 <= record["hops"] <= 4 and len(set(record["path"])) == record["hops"] + 1
    assert record["world"] is None and all(v["verdict"] == "confirmed" for v in record["verdicts"])
    assert {v["solver"] for v in record["verdicts"]} == {"statements", "search"}
    text = key(record["text"])
    said = [] if record["direction"] == "seed" else [record["path"][0]]
    for node in record["path"]:
      if node in brute.names and node not in said:
        assert f" {key(brute.names[node])} " not in f" {text} ", record
    if record["direction"] == "seed" and not record["format"]:
      words = text.split()
      for size in range(1, longest + 1):
        for i in range(len(words) - size + 1):
          assert " ".join(words[i : i + size]) not in names, record
      assert key(record["answer"]) not in text.split()


def check_counts(report):
  assert report["chains"] == report["questions"] + sum(report["dropped"].values())


@pytest.mark.parametrize("direction", ["seed", "forward"])
def test_questions_of_a_small_atlas(repository, tmp_path, direction):
  corpus = small_corpus()
  records, report = run(
    repository, tmp_path / "run", f"search.corpus={corpus}", f"direction={direction}", "count=120",
  )
  plain = [r for r in records if not r["format"]]
  check_records(records, rows_of(corpus))
  check_counts(report)
  assert len(plain) == report["questions"] >= 60 and {r["hops"] for r in plain} == {2, 3, 4}
  assert len({r["text"] for r in records}) == len({r["id"] for r in records}) == len(records)
  counts = collections.Counter(r["pattern"] for r in plain)
  assert len(counts) > 40 and max(counts.values()) < 20
  for record in plain:
    assert len(record["evidence"]) == len(record["chain"]) == record["hops"]
    assert record["steps"][-1][1] == record["answer"]
    if direction == "seed":
      assert any(len(e["confirmed_by"]) > 1 for e in record["evidence"]) or record["hops"] > 1
  asked_again = [r for r in records if r["format"]]
  assert len(asked_again) == sum(report["augmented"].values()) > 10
  texts = {r["id"]: r for r in plain}
  for record in asked_again:
    first = texts[record["id"].rpartition("/")[0]]
    assert record["text"].startswith(first["text"] + " ") and record["answer"] == first["answer"]
  read = read_questions(tmp_path / "run/questions.jsonl", "rl")
  assert read and {q.split for q in read} <= {"rl", "shared"}


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_file(repository, tmp_path, monkeypatch):
  settings = (f"search.corpus={small_corpus()}", "count=90", "batch=32")
  run(repository, tmp_path / "whole", *settings)
  solved, solve = [], synthesize.solve

  def killed(candidate, solvers):
    solved.append(candidate.id)
    if len(solved) == 50:
      raise KeyboardInterrupt
    return solve(candidate, solvers)

  monkeypatch.setattr(synthesize, "solve", killed)
  with pytest.raises(KeyboardInterrupt):
    run(repository, tmp_path / "killed", *settings)
  assert not (tmp_path / "killed/questions.jsonl").exists()
  with (tmp_path / "killed/verdicts.jsonl").open("a") as journal:
    journal.write('["synthetic/seed/0')
  again = []
  monkeypatch.setattr(
    synthesize, "solve", lambda c, solvers: again.append(c.id) or solve(c, solvers)
  )
  run(repository, tmp_path / "killed", *settings)
  assert not set(again) & set(solved[:32])  # verdicts of the finished batch are kept
  whole, killed = (tmp_path / n / "questions.jsonl" for n in ("whole", "killed"))
  assert whole.read_bytes() == killed.read_bytes()


def test_a_finished_run_is_not_made_again(repository, tmp_path, capsys, monkeypatch):
  settings = (f"search.corpus={small_corpus()}", "count=7")
  run(repository, tmp_path / "run", *settings)
  monkeypatch.setattr(synthesize, "make_questions", None)
  run(repository, tmp_path / "run", *settings)
  assert "done already" in capsys.readouterr().out
  with pytest.raises(ValueError, match="work folder of another run"):
    run(repository, tmp_path / "run", *settings, "seed=1")


@pytest.fixture
def four_pages(tmp_path):
  path = tmp_path / "pages.jsonl"
  path.write_text("\n".join(json.dumps(page) for page in PAGES), encoding="utf-8")
  return path


def test_the_mom_test(repository, tmp_path, four_pages, capsys):
  reader = Reader()
  with served(reader.app()) as url:
    records, report = run(
      repository, tmp_path / "run", f"search.corpus={four_pages}", f"inference.url={url}",
      "format_share=1.0", variant=":llm",
    )
  question, formatted = records
  assert question["text"] == QUESTION and question["answer"] == "The Mom Test"
  assert question["path"] == ["the mom test", "rob fitzpatrick", "y combinator", "March 2005"]
  assert [e["page"] for e in question["evidence"]] == [
    "book/mom-test", "person/fitzpatrick", "accelerator/yc"
  ]
  assert question["evidence"][0]["confirmed_by"] == ["book/mom-test", "person/fitzpatrick"]
  assert [v["verdict"] for v in question["verdicts"]] == 3 * ["confirmed"]
  assert formatted["answer"] == "The Mom Test" and formatted["text"].startswith(QUESTION)
  # The person's own question was answered otherwise; nothing vanishes.
  check_counts(report)
  assert report["dropped"] == {"solver rollout 0: another answer": 1}
  assert sum(report["facts_dropped"].values()) == 3
  assert sum(synthesize.UNIQUE in asked for asked in reader.questions) == 2 * 3
  assert "of 2 chains, dropped:" in capsys.readouterr().out


@pytest.mark.parametrize("answers, told", [
  (["The Lean Startup"], "solver rollout 0: another answer"),
  (["The Mom Test", "The Mom Test", "I do not know"], "solver rollout"),
])
def test_one_solver_that_differs_is_enough(repository, tmp_path, four_pages, answers, told):
  with served(Reader([*answers, "The Lean Startup"]).app()) as url:
    records, report = run(
      repository, tmp_path / "run", f"search.corpus={four_pages}", f"inference.url={url}",
      "inference.connections=1", variant=":llm",
    )
  assert records == [] and any(told in reason for reason in report["dropped"])


@pytest.mark.parametrize("overrides, told", [
  (("direction=back",), 'must be one of "seed", "forward"'),
  (("hops=1,2",), 'config key "hops" must be numbers from 2 to 4'),
  (("count=0",), '"count" must be at least 1'),
  (("search.corpus=/no/such.jsonl",), "no such file"),
  (("extractor=llm",), "needs inference.url"),
  (("extractor=llm", "inference.url=http://127.0.0.1:9"), "needs search.corpus"),
  (("extractor=llm", "inference.url=http://127.0.0.1:9", "llm.queries=/no/such"), "llm.queries"),
])
def test_bad_input_is_one_line_and_leaves_nothing(repository, tmp_path, capsys, overrides, told):
  arguments = ["--config", str(repository / "configs/synthesize.py"), "--workdir",
               str(tmp_path / "run"), *(f"--config.{o}" for o in overrides)]
  with pytest.raises(SystemExit) as ended:
    run_main(synthesize.main, "", argv=arguments)
  error = capsys.readouterr().err
  assert ended.value.code == 2 and told in error and error.count("\n") == 1
  assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("variant, least, patterns", [("", 2000, 100), (":forward", 50_000, 100)])
def test_the_whole_atlas(repository, tmp_path, variant, least, patterns):
  records, report = run(repository, tmp_path / "run", variant=variant)
  assert report["questions"] >= least and len(report["by_pattern"]) >= patterns
  check_counts(report)
  check_records(records, rows_of(ASSETS / "atlas.jsonl.gz"), every=20)
