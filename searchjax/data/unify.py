"""Public question sets as one file of questions to train on: filtered and formatted.  HOST.

  python -m searchjax.data.unify FILE …  --out questions.jsonl  [--evaluation FILE …]

Every question is asked with a format instruction or without one (`prompt_formats`). The file is
what `data.questions_file` reads; what was left out is printed by reason.

Spec     1.3 (public verifiable QA unified under the augmented prompt format, quality filters).
"""

import collections
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from searchjax.data.prompt_formats import with_format
from searchjax.data.public_qa import QAExample, Quality, evaluation_of, read_questions
from searchjax.data.rows import Account
from searchjax.dist import settings
from searchjax.dist.run_log import write_jsonl


def unified(examples: Sequence[QAExample], *, seed: int, plain: float) -> list[dict[str, Any]]:
  """Questions as `question_file` reads them, each with an id of its own.

  Args:
    seed, plain: see `prompt_formats.with_format`.
  """
  taken: collections.Counter[str] = collections.Counter()
  rows = []
  for example in examples:
    name = f"{example.source}/{example.id}"
    taken[name] += 1
    text, chosen = with_format(example.question, seed=seed, plain=plain)
    rows.append({
      "id": name if taken[name] == 1 else f"{name}#{taken[name]}", "text": text,
      "answer": example.answer, "aliases": list(example.aliases), "hops": example.hops or 1,
      "split": "rl", "source": example.source, "format": chosen,
    })
  return rows


def main(argv: Sequence[str] | None = None) -> int:
  """Writes the file and prints what became of every row."""
  parser = settings.OneLineParser(description=__doc__.splitlines()[0], allow_abbrev=False)
  parser.add_argument("files", nargs="+", metavar="FILE", help="as for searchjax.data.inspect")
  parser.add_argument("--out", required=True, type=pathlib.Path, metavar="FILE.jsonl")
  parser.add_argument("--evaluation", nargs="*", default=[], metavar="FILE",
                      help="question sets that must not be trained on")
  parser.add_argument("--ngram", type=int, default=13, help="words in a row that overlap (13)")
  parser.add_argument("--similarity", type=float, default=0.8,
                      help="of near-duplicates with a common answer (0.8); 0 keeps them all")
  parser.add_argument("--plain", type=float, default=0.5,
                      help="share of questions without a format instruction (0.5)")
  parser.add_argument("--seed", type=int, default=0)
  arguments = parser.parse_args(argv)
  account = Account()
  try:
    evaluation = evaluation_of(arguments.evaluation, n=arguments.ngram)
    examples = read_questions(
      arguments.files, account, quality=Quality(), similarity=arguments.similarity,
      evaluation=evaluation,
    )
    rows = unified(examples, seed=arguments.seed, plain=arguments.plain)
    write_jsonl(arguments.out, rows)
  except ValueError as error:
    if not settings.is_ours(error, None):
      raise
    settings.fail(str(error))
  except OSError as error:
    settings.fail(f"cannot use {error.filename}: {error.strerror}")
  print(f"{arguments.out}: {len(rows)} questions; {account.summary()}")
  for problem in account.problems:
    print(f"  {problem}", file=sys.stderr)
  return 0


if __name__ == "__main__":
  sys.exit(main())
