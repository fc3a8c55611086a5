"""Table 1: a policy trained on public-format questions and one on synthetic questions.  HOST.

  python -m searchjax.table1 questions --workdir W/table1 --config GRPO.py --synthetic FILE.jsonl
    [--baseline FILE …]
  python -m searchjax.table1 table --workdir W/table1

`questions` reads both sets with the publishers' readers, filters and formats them alike, leaves out
what the arms' GRPO has no room for, cuts both to one size, and writes
W/table1/{baseline,synthetic}.jsonl for data.questions_file. `table` compares the
evaluations in W/table1/{baseline,synthetic}/eval. launch/table1.sh runs both with training between.

Without files of its own the baseline is questions of one and two facts about the local web, each
written in the layout of one of the five public sets (SPEC 1.3).

Spec     1.3 (quick validation), 5 (Table 1).
"""

import collections
import csv
import itertools
import pathlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from searchjax import figures
from searchjax.data.prompt_formats import with_format
from searchjax.data.public_qa import QAExample, Quality, read_questions
from searchjax.data.questions import FRAMES, PHRASES, Question, forward_questions
from searchjax.data.rows import Account
from searchjax.data.synthesis.wording import NameFinder, all_wording
from searchjax.data.unify import unified
from searchjax.dist import settings
from searchjax.dist.run_log import write_json, write_jsonl
from searchjax.evals.statistics import paired_difference
from searchjax.evaluate import digest
from searchjax.reward.preference import pair_has_room
from searchjax.rollout.agent import load_chat, prompt_has_room
from searchjax.search.atlas import Atlas, fold, load_atlas

ARMS = ("baseline", "synthetic")


# ---- the baseline, as its publishers write it ----------------------------------------------------


def _bamboogle(q: Question) -> dict[str, Any]:
  return {"Question": q.text, "Answer": q.answer}


def _deepdive(q: Question) -> dict[str, Any]:
  return {"question": q.text, "answer": q.answer, "conversations": []}


def _sealqa(q: Question) -> dict[str, Any]:
  return {"question": q.text, "answer": q.answer, "freshness": "never-changing"}


def _webshaper(q: Question) -> dict[str, Any]:
  ends = [f"C@{q.path[0]}", *(f"V@{i}" for i in range(1, q.hops)), "?"]
  facts = [list(fact) for fact in zip(ends, q.relations, ends[1:], strict=False)]
  return {"id": q.id, "question": q.text, "answer": q.answer, "formalization": facts, "urls": []}


def _webwalkerqa(q: Question) -> dict[str, Any]:
  kind = "single_source" if q.hops == 1 else "multi_source"
  return {"question": q.text, "answer": q.answer, "root_url": "", "info": {"type": kind}}


# By file: what makes its rows, and how many facts its questions take.
PUBLIC: dict[str, tuple[Callable[[Question], dict[str, Any]], int]] = {
  "bamboogle.csv": (_bamboogle, 2), "deepdive.jsonl": (_deepdive, 2),
  "webshaper.jsonl": (_webshaper, 2), "sealqa.jsonl": (_sealqa, 1),
  "webwalkerqa.jsonl": (_webwalkerqa, 1),
}


def write_public(atlas: Atlas, folder: pathlib.Path, *, count: int, seed: int) -> list[str]:
  """Files of the five public layouts over questions about the atlas's countries for RL.

  Args:
    count: of all files together, a fifth each; fewer where the atlas gives no more.

  Returns:
    Their paths.

  Raises:
    ValueError: the atlas gives no such question.
  """
  each = -(-count // len(PUBLIC))
  asked = {
    hops: iter(forward_questions(atlas, "rl", hops=hops, count=3 * each, seed=seed, world="real"))
    for hops in (1, 2)
  }
  rows = {
    name: [make(q) for q in itertools.islice(asked[hops], each)]
    for name, (make, hops) in PUBLIC.items()
  }
  rows = {name: made for name, made in rows.items() if made}
  if not rows:
    raise ValueError("the corpus gives no question of one or two facts about its rl countries")
  folder.mkdir(parents=True, exist_ok=True)
  for name, made in rows.items():
    if name.endswith(".csv"):
      with (folder / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]))
        writer.writeheader()
        writer.writerows(made)
    else:
      write_jsonl(folder / name, made)
  return [str(folder / name) for name in rows]


# ---- two sets of one size ------------------------------------------------------------------------


def held_out_names(atlas: Atlas) -> NameFinder:
  """Finds the names of held-out entities, which every held-out question begins with."""
  names = [e.name for e in atlas.entities.values() if atlas.split_of(e.id) == "heldout"]
  phrases = [phrase for some in PHRASES.values() for phrase in some]
  return NameFinder(names, [*FRAMES, *phrases, *all_wording()], fold)


def make_fits(config: Any, *, seed: int, plain: float) -> Callable[[str], bool]:
  """Whether a run of `config` has room for a question, with the format that it will be given."""
  chat = load_chat(config.tokenizer, **config.get("chat", {}))

  def fits(question: str) -> bool:
    text, _ = with_format(question, seed=seed, plain=plain)
    return prompt_has_room(config, chat, text) and pair_has_room(
      chat, text, config.limits.answer_tokens, config.scorer.length
    )

  return fits


def read_arm(
  paths: Sequence[str], account: Account, held_out: NameFinder, fits: Callable[[str], bool]
) -> list[QAExample]:
  """The questions of an arm's files that may be trained on; the others are counted by reason."""
  kept = []
  for example in read_questions(paths, account, quality=Quality(), similarity=0.8):
    said = (example.question, example.answer, *example.aliases)
    if example.metadata.get("format", "plain") != "plain":
      account.dropped["asked in another format"] += 1  # formats are drawn below, for both arms
    elif any(map(held_out.found, said)):
      account.dropped["names a held-out entity"] += 1
    elif not fits(example.question):
      account.dropped["too long for the run"] += 1
    else:
      kept.append(example)
  return kept


def write_questions(arguments) -> None:
  """Writes both arms' files and table1/arms.json, which says what they were made of."""
  workdir = arguments.workdir
  given = {"synthetic": arguments.synthetic, "baseline": arguments.baseline}
  made_of = {
    "seed": arguments.seed, "size": arguments.size, "plain": arguments.plain,
    **{name: [digest(pathlib.Path(path)) for path in paths] for name, paths in given.items()},
  }
  record = workdir / "arms.json"
  if record.is_file():
    there = figures.read_json(record).get("made_of", {})
    differing = sorted(key for key in made_of if there.get(key) != made_of[key])
    if differing:
      raise ValueError(
        f"{workdir} compares other questions ({', '.join(differing)}); delete it or give another "
        "--workdir"
      )
    show_arms(figures.read_json(record)["arms"])
    return
  atlas = load_atlas(for_questions=True)
  held_out = held_out_names(atlas)
  files = {"synthetic": given["synthetic"], "baseline": given["baseline"] or write_public(
    atlas, workdir / "public", count=2 * arguments.size, seed=arguments.seed)}
  accounts = {arm: Account() for arm in ARMS}
  fits = make_fits(arguments.config, seed=arguments.seed, plain=arguments.plain)
  examples = {arm: read_arm(files[arm], accounts[arm], held_out, fits) for arm in ARMS}
  for arm in ARMS:
    if not examples[arm]:
      raise ValueError(f"{arm}: no question to train on in {', '.join(files[arm])}: "
                       f"{accounts[arm].summary()}")
  size = min(arguments.size, *(len(some) for some in examples.values()))
  arms = {}
  for arm in ARMS:
    chosen = random.Random(f"{arguments.seed}/{arm}").sample(examples[arm], size)
    rows = unified(chosen, seed=arguments.seed, plain=arguments.plain)
    write_jsonl(workdir / f"{arm}.jsonl", rows)
    arms[arm] = {
      "n": size, "by_source": counts(e.source for e in chosen),
      "by_hops": counts("not stated" if e.hops is None else str(e.hops) for e in chosen),
      "with a format": sum(row["format"] != "plain" for row in rows),
      "files": files[arm], "rows": accounts[arm].summary(),
    }
  write_json(record, {"made_of": made_of, "arms": arms})
  show_arms(arms)


def counts(names) -> dict[str, int]:
  return dict(sorted(collections.Counter(names).items()))


def show_arms(arms: Mapping[str, Mapping]) -> None:
  """Prints what each arm trains on."""
  for arm, one in arms.items():
    said = lambda of: ", ".join(f"{name} {count}" for name, count in of.items())
    print(f"{arm}: {one['n']} questions ({said(one['by_source'])}), hops {said(one['by_hops'])}, "
          f"{one['with a format']} with a format instruction")
    print(f"  read: {one['rows']}", flush=True)


# ---- the table -----------------------------------------------------------------------------------


def compare(workdir: pathlib.Path) -> dict[str, Any]:
  """Both arms' evaluations as one record.

  Returns:
    {"arms" of arms.json, "policies": by "sft", "baseline", "synthetic" an evaluation's rows by
    mode, "difference": synthetic less baseline by mode, of accuracy and calls [mean, low, high]}.

  Raises:
    ValueError: an evaluation is missing, or the two are of other questions, policies or configs.
  """
  if not (workdir / "arms.json").is_file():
    raise ValueError(f"{workdir}/arms.json is missing; run bash launch/table1.sh")
  found = {arm: figures.read_results(workdir / arm) for arm in ARMS}
  inputs = {arm: {k: v for k, v in found[arm].get("inputs", {}).items() if k != "grpo"}
            for arm in ARMS}
  differing = [key for key in inputs["baseline"] | inputs["synthetic"]
               if inputs["baseline"].get(key) != inputs["synthetic"].get(key)]
  if differing:
    raise ValueError(f"{workdir}: the arms were evaluated with another {', '.join(differing)}; "
                     "delete both eval folders and run the command again")
  difference = {}
  for mode in figures.DECODING:
    rows = {arm: figures.read_records(workdir / arm / f"eval/rollouts/rl_{mode}.jsonl")
            for arm in ARMS}
    values = {
      arm: {row["question_id"]: (row["reward"]["base"], row["tool_calls"]) for row in rows[arm]
            if row["valid"] and row["reward"]["base"] is not None} for arm in ARMS
    }
    both = sorted(values["baseline"].keys() & values["synthetic"].keys())
    difference[mode] = {
      name: list(paired_difference(*([values[arm][q][i] for q in both]
                                     for arm in reversed(ARMS))))
      for i, name in enumerate(("accuracy", "calls"))
    } | {"n": len(both)}
  return {
    "arms": figures.read_json(workdir / "arms.json")["arms"],
    "policies": {"sft": found["baseline"]["policies"]["sft"]}
    | {arm: found[arm]["policies"]["rl"] for arm in ARMS},
    "difference": difference, "perfect_calls": found["baseline"]["perfect_calls"],
    "inputs": inputs["baseline"],
  }


def table1(record: Mapping[str, Any]) -> list[dict[str, str]]:
  """The rows of the table as text."""
  hops = figures.hops_of(record["policies"])
  rows = []
  for policy, modes in record["policies"].items():
    trained = f"{record['arms'][policy]['n']} {policy}" if policy in ARMS else "none (SFT)"
    for mode, decoding in figures.DECODING.items():
      rows.append({"RL questions": trained, **figures.result_row(modes[mode], decoding, hops)})
  return rows


def notes(record: Mapping[str, Any]) -> list[str]:
  """What has to be known to read the table."""
  lines = [f"A perfect agent needs {record['perfect_calls']:.2f} calls on these questions."]
  for mode, decoding in figures.DECODING.items():
    by = record["difference"][mode]
    accuracy, calls = by["accuracy"], by["calls"]
    lines.append(
      f"Synthetic less baseline, {decoding}, paired over {by['n']} questions: accuracy "
      f"{accuracy[0]:+.3f} [{accuracy[1]:+.3f}, {accuracy[2]:+.3f}], calls {calls[0]:+.2f} "
      f"[{calls[1]:+.2f}, {calls[2]:+.2f}]."
    )
  return lines


def latex(rows: Sequence[Mapping[str, str]]) -> str:
  """The rows as a LaTeX tabular."""
  escape = lambda text: text.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")
  lines = [r"\begin{tabular}{ll" + "r" * (len(rows[0]) - 2) + "}", r"\hline"]
  lines.append(" & ".join(map(escape, rows[0])) + r" \\ \hline")
  lines += [" & ".join(map(escape, row.values())) + r" \\" for row in rows]
  return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def write_table(arguments) -> None:
  """Prints the table and writes results.json, table1.md and table1.tex."""
  record = compare(arguments.workdir)
  rows, said = table1(record), notes(record)
  write_json(arguments.workdir / "results.json", record)
  for name, text in (("table1.md", figures.markdown_table(rows) + "\n" + "\n\n".join(said) + "\n"),
                     ("table1.tex", latex(rows))):
    (arguments.workdir / name).write_text(text, encoding="utf-8")
  widths = {key: max(len(key), *(len(row[key]) for row in rows)) for key in rows[0]}
  for row in [dict(zip(rows[0], rows[0], strict=True)), *rows]:
    print("  ".join(row[key].ljust(width) for key, width in widths.items()).rstrip())
  print(*said, f"{arguments.workdir}: results.json, table1.md, table1.tex", sep="\n", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one of the two parts; bad input is one line and exit code 2."""
  parser = settings.OneLineParser(description=__doc__.splitlines()[0], allow_abbrev=False)
  parts = parser.add_subparsers(required=True, metavar="questions|table")
  questions = parts.add_parser("questions", help="the two sets of questions, of one size")
  questions.set_defaults(run=write_questions)
  questions.add_argument("--synthetic", nargs="+", required=True, metavar="FILE")
  questions.add_argument("--baseline", nargs="+", default=[], metavar="FILE",
                         help="public sets, as for searchjax.data.inspect")
  questions.add_argument("--config", required=True, metavar="FILE.py[:VARIANT]",
                         help="of both arms' GRPO; --config.KEY=VALUE as there")
  questions.add_argument("--size", type=int, default=300, help="questions of each set (300)")
  questions.add_argument("--plain", type=float, default=0.5,
                         help="share of questions without a format instruction (0.5)")
  questions.add_argument("--seed", type=int, default=0)
  table = parts.add_parser("table", help="compares the two evaluations")
  table.set_defaults(run=write_table)
  for part in (questions, table):
    part.add_argument("--workdir", required=True, type=pathlib.Path, metavar="W/table1")
  arguments, rest = parser.parse_known_args(argv)
  if getattr(arguments, "size", 1) < 1:
    parser.error(f"--size must be at least 1, got {arguments.size}")
  try:
    overrides = settings.collect_overrides(rest, allowed="config" in arguments)
    if "config" in arguments:
      arguments.config = settings.load_config(arguments.config, overrides)
    arguments.run(arguments)
  except ValueError as error:
    if not settings.is_ours(error, None):
      raise
    settings.fail(str(error))
  except OSError as error:
    settings.fail(f"cannot use {error.filename}: {error.strerror}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
