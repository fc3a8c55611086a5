"""What data files hold: rows, how many can be used, and what is wrong with the others.  HOST.

  python -m searchjax.data.inspect FILE …  [--kind qa|preference|trajectory]  [--problems 5]

Files of a kind are read together, so that a file of questions finds its file of answers. The kind
is told by the fields of a file's first rows. Exit code 0 where every row can be used or is left
out for a stated reason, 1 where rows are malformed, 2 where a file cannot be read.
"""

import collections
import itertools
import sys
from collections.abc import Mapping, Sequence

from searchjax.data import preferences, public_qa, trajectories
from searchjax.data.rows import Account, read_rows
from searchjax.dist import settings

GUESSED_FROM = 20  # first rows of a file


def kind_of(path: str) -> str:
  """What a file holds: "preference", "qa" or "trajectory".

  Raises:
    ValueError: it cannot be read, or no kind's layout fits any of its first rows.
  """
  account = Account()
  rows = [row.fields for row in itertools.islice(read_rows(path, account), GUESSED_FROM)]
  if not rows:
    raise ValueError(
      f"none of its rows can be read: {account.problems[0]}" if account.rows else
      f"{path}: it holds no rows"
    )
  for kind, fits in (("preference", preferences.layout_of), ("trajectory", _holds_turns),
                     ("qa", public_qa.layout_of)):
    if any(fits(fields) for fields in rows):
      return kind
  fields = ", ".join(map(str, list(rows[0])[:8]))
  raise ValueError(f"{path}: neither questions, preferences nor trajectories; name its --kind "
                   f"(fields: {fields})")


def _holds_turns(fields: Mapping) -> bool:
  return trajectories.layout_of(fields) is not None


def inspect(kind: str, paths: Sequence[str]) -> tuple[Account, list[str]]:
  """Reads files of one kind.

  Returns:
    The account of their rows, and lines that say what the usable ones hold.
  """
  account = Account()
  if kind == "qa":
    examples = public_qa.read_questions(paths, account)
    sources = collections.Counter(example.source for example in examples)
    hops = collections.Counter(example.hops for example in examples if example.hops)
    lines = [f"{count} questions of {name}" for name, count in sorted(sources.items())]
    lines += [f"{count} of {number} hops" for number, count in sorted(hops.items())]
  elif kind == "preference":
    pairs = [one.pair for one in preferences.read_preferences(paths, account)]
    lines = [preferences.describe(pairs)] if pairs else []
  else:
    read = trajectories.read_trajectories(paths, account)
    layouts = collections.Counter(one.layout for one in read)
    turns = [message for one in read for message in one.messages if message["role"] == "assistant"]
    calls = sum(len(message.get("tool_calls", ())) for message in turns)
    lines = [f"{count} conversations as {name}" for name, count in sorted(layouts.items())]
    lines.append(f"{len(turns)} assistant turns, {calls} calls")
  return account, lines


def main(argv: Sequence[str] | None = None) -> int:
  """Prints what the named files hold; see the module for the exit code."""
  parser = settings.OneLineParser(description=__doc__.splitlines()[0], allow_abbrev=False)
  parser.add_argument("files", nargs="+", metavar="FILE",
                      help="jsonl, json, csv, tsv or parquet, or hf:OWNER/NAME[/CONFIG][:SPLIT]")
  parser.add_argument("--kind", choices=("qa", "preference", "trajectory"),
                      help="what all files hold; guessed for each unless given")
  parser.add_argument("--problems", type=int, default=5, metavar="N",
                      help="how many problems to print a kind (5)")
  arguments = parser.parse_args(argv)
  malformed = 0
  try:
    kinds = collections.defaultdict(list)
    for path in arguments.files:
      kinds[arguments.kind or kind_of(path)].append(path)
    for kind, paths in sorted(kinds.items()):
      account, lines = inspect(kind, paths)
      malformed += len(account.problems)
      print(f"{kind}, {len(paths)} files: {account.summary()}")
      for line in lines + [str(problem) for problem in account.problems[:arguments.problems]]:
        print(f"  {line}")
      left = len(account.problems) - max(0, arguments.problems)
      if left > 0:
        print(f"  and {left} more malformed rows")
  except ValueError as error:
    if not settings.is_ours(error, None):
      raise
    settings.fail(str(error))
  except OSError as error:
    settings.fail(f"cannot read {error.filename}: {error.strerror}")
  return 1 if malformed else 0


if __name__ == "__main__":
  sys.exit(main())
