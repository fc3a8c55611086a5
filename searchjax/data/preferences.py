"""Human and model preferences in their publishers' layouts, as pairs to train on.  HOST.

Side-by-side votes (HelpSteer3, Search Arena, JudgeBench), chosen and rejected answers (DPO files,
UltraFeedback, RewardBench, RM-Bench), scored completions, and answers rated one at a time (KTO),
which are paired where one prompt has both kinds. Layouts that always put the chosen answer first
are turned round by a draw, so that position tells nothing.

Label noise: a row may carry votes of several annotators or models; the light filter keeps the
pairs whose label enough of them share.

Spec     2.1 (training data, label noise, light filter, ties).
Source   the data cards of the sets named in LAYOUTS.
"""

import collections
import dataclasses
import enum
import itertools
import math
import os
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from searchjax.data.chat import ChatFormat
from searchjax.data.pairs import Pair, PairSet, encode_pair, is_held_out
from searchjax.data.rows import Account, FieldError, Row, find, find_text, read_rows

ROLES = {
  "system": "system", "developer": "system", "user": "user", "human": "user",
  "assistant": "assistant", "gpt": "assistant",
}


class Label(enum.Enum):
  """Which of two answers is preferred; the value is the label of `Pair`."""

  FIRST = 1.0
  SECOND = 0.0
  TIE = 0.5

  @classmethod
  def of(cls, difference: float) -> "Label":
    """The label of a score for the first answer minus one for the second."""
    return cls.TIE if difference == 0 else cls.FIRST if difference > 0 else cls.SECOND


class Preference(NamedTuple):
  """A pair, what it is called, and the labels that single annotators or models gave it."""

  pair: Pair
  id: str
  votes: tuple[Label, ...] = ()


class Rating(NamedTuple):
  """One answer that was judged alone."""

  context: tuple[tuple[str, str], ...]
  prompt: str
  answer: str
  good: bool


class Layout(NamedTuple):
  """A layout: its name, the fields that tell it, and what reads a row.

  `ordered` says that the publisher's order of answers means nothing; else the chosen one is first.
  """

  name: str
  marks: tuple[str, ...]
  read: Callable[[Mapping], list[Any]]
  ordered: bool = False


# ---- reading a row -----------------------------------------------------------------------------


def _said(value: Any, path: str) -> list[tuple[str, str]]:
  """(role, text) of a list of messages, or of a prompt that is text."""
  if isinstance(value, str):
    value = [{"role": "user", "content": value}]
  if not isinstance(value, list) or not value:
    raise FieldError(path, "expected text or a list of messages")
  said = []
  for i, message in enumerate(value):
    role = _entry(message, ("role", "from"), f"{path}.{i}")
    if role not in ROLES:
      raise FieldError(f"{path}.{i}", f"unknown role {role!r:.60}")
    said.append((ROLES[role], _entry(message, ("content", "value"), f"{path}.{i}").strip()))
    if said[-1][0] == "system" and i:
      raise FieldError(f"{path}.{i}", "a system message must be the first")
  return said


def _entry(message: Any, names: tuple[str, str], path: str) -> str:
  value = next((message[n] for n in names if n in message), None) if isinstance(
    message, Mapping) else None
  if isinstance(value, list):  # parts of text
    parts = [part.get("text") if isinstance(part, Mapping) else None for part in value]
    value = None if None in parts else "".join(parts)
  if not isinstance(value, str):
    raise FieldError(path, f"expected a message with text under {' or '.join(names)}")
  return value


def _prompt(said: list[tuple[str, str]], path: str) -> tuple[tuple[tuple[str, str], ...], str]:
  """What was said before, and the user's last message."""
  if not said or said[-1][0] != "user":
    raise FieldError(path, "expected messages that end with the user's")
  if not said[-1][1]:
    raise FieldError(path, "empty")
  return tuple(said[:-1]), said[-1][1]


def _answer(value: Any, path: str) -> str:
  """An answer: text, a message, or a conversation that ends with it."""
  if isinstance(value, Mapping):
    value = [value]
  text = _said(value, path)[-1][1] if isinstance(value, list) else value
  if not isinstance(text, str) or not text.strip():
    raise FieldError(path, "empty" if text == "" else "expected an answer's text")
  return text.strip()


def _helpsteer(fields: Mapping) -> list[Any]:
  context, prompt = _prompt(_said(find(fields, "context"), "context"), "context")
  answers = (_answer(fields[name], name) for name in ("response1", "response2"))
  label = _against_scale(find(fields, "overall_preference"), "overall_preference")
  single = _list(fields, "individual_preference")
  votes = tuple(_against_scale(find(fields, f"individual_preference.{i}.score"),
                               f"individual_preference.{i}.score") for i in range(len(single)))
  kind = str(fields.get("domain") or "helpsteer3")
  return [(Pair(prompt, *answers, label.value, kind, context), votes)]


def _against_scale(value: Any, path: str) -> Label:
  """HelpSteer3's scale: -3, the first is much better, to 3, the second is."""
  if not isinstance(value, int) or isinstance(value, bool) or not -3 <= value <= 3:
    raise FieldError(path, f"expected a whole number from -3 to 3, got {value!r:.60}")
  return Label.of(-value)


def _list(fields: Mapping, path: str) -> list:
  """The list of a field; empty where there is none."""
  value = fields.get(path)
  if not isinstance(value, list | None):
    raise FieldError(path, f"expected a list, got {type(value).__name__}")
  return value or []


def _score(value: Any, path: str) -> float:
  """A finite number, which may be written as text."""
  try:
    score = float("nan" if isinstance(value, bool) else value)
  except (TypeError, ValueError, OverflowError):
    score = math.nan
  if not math.isfinite(score):
    raise FieldError(path, f"expected a finite number, got {value!r:.60}")
  return score


_WINNERS = {
  "model_a": Label.FIRST, "model_b": Label.SECOND, "tie": Label.TIE, "tie (bothbad)": Label.TIE,
  "both_bad": Label.TIE, "bothbad": Label.TIE,
}


def _arena(fields: Mapping) -> list[Any]:
  winner = find_text(fields, "winner")
  if winner not in _WINNERS:
    raise FieldError("winner", f"expected one of {', '.join(_WINNERS)}; got {winner!r:.60}")
  sides = []
  for side in "ab":
    path = f"messages_{side}|conversation_{side}"
    said = _said(find(fields, path), path)
    if said[-1][0] != "assistant" or not said[-1][1]:
      raise FieldError(path, "expected a conversation that ends with an answer")
    sides.append((*_prompt(said[:-1], path), said[-1][1]))
  (context, prompt, first), (other, again, second) = sides
  if prompt != again:
    raise FieldError("messages_b|conversation_b", "the two sides were asked different things")
  if context != other:
    return ["two histories"]
  return [(Pair(prompt, first, second, _WINNERS[winner].value, "arena", context), ())]


_SIGNS = {"A>B": Label.FIRST, "B>A": Label.SECOND, "A=B": Label.TIE}


def _judgebench(fields: Mapping) -> list[Any]:
  label = find_text(fields, "label")
  if label not in _SIGNS:
    raise FieldError("label", f"expected one of {', '.join(_SIGNS)}; got {label!r:.60}")
  return [(Pair(find_text(fields, "question"), find_text(fields, "response_A"),
                find_text(fields, "response_B"), _SIGNS[label].value,
                str(fields.get("source", "judgebench"))), ())]


def _chosen(fields: Mapping) -> list[Any]:
  """One chosen and one rejected answer, or every chosen one against every rejected one."""
  path = "prompt|conversations|instruction|question"
  context, prompt = _prompt(_said(find(fields, path), path), path)
  sides = []
  for name in ("chosen", "rejected"):
    value = find(fields, name)
    several = isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)
    sides.append([_answer(v, name) for v in (value if several else [value])])
  scores = [_score(fields[name], name) for name in ("score_chosen", "score_rejected")
            if fields.get(name) not in (None, "")]
  label = Label.of(scores[0] - scores[1]) if len(scores) == 2 else Label.FIRST
  kind = str(fields.get("subset") or "chosen")
  return [(Pair(prompt, good, bad, label.value, kind, context), ())
          for good, bad in itertools.product(*sides)]


def _completions(fields: Mapping) -> list[Any]:
  """UltraFeedback: every two of the scored completions."""
  prompt, scored = find_text(fields, "instruction"), []
  listed = find(fields, "completions")
  if not isinstance(listed, list) or len(listed) < 2:
    raise FieldError("completions", "expected at least two completions")
  for i in range(len(listed)):
    path = f"completions.{i}.overall_score"
    score = _score(find(fields, path), path)
    scored.append((find_text(fields, f"completions.{i}.response"), score))
  scored.sort(key=lambda one: -one[1])
  kind = str(fields.get("source", "ultrafeedback"))
  return [(Pair(prompt, a, b, Label.of(p - q).value, kind), ())
          for (a, p), (b, q) in itertools.combinations(scored, 2)]


def _kto(fields: Mapping) -> list[Any]:
  path = "messages|prompt"
  said, good = _said(find(fields, path), path), find(fields, "label")
  if "completion" in fields:
    said.append(("assistant", _answer(fields["completion"], "completion")))
  if not isinstance(good, bool):
    raise FieldError("label", f"expected true or false, got {good!r:.60}")
  if said[-1][0] != "assistant" or not said[-1][1]:
    raise FieldError(path, "expected a conversation that ends with an answer")
  return [Rating(*_prompt(said[:-1], path), said[-1][1], good)]


def _own(fields: Mapping) -> list[Any]:
  """This project's: `Pair`'s fields, and the votes of models on it."""
  labels = []
  for path, value in [("label", find(fields, "label")),
                      *((f"votes.{i}", v) for i, v in enumerate(_list(fields, "votes")))]:
    if value not in (0, 0.5, 1):
      raise FieldError(path, f"expected 1, 0 or 0.5, got {value!r:.60}")
    labels.append(Label(float(value)))
  said = _said(fields["context"], "context") if fields.get("context") else []
  return [(Pair(find_text(fields, "prompt"), find_text(fields, "first"),
                find_text(fields, "second"), labels[0].value, str(fields.get("kind") or ""),
                tuple(said)), tuple(labels[1:]))]


# The first whose marks a row has is the row's.
LAYOUTS = (
  Layout("helpsteer3", ("context", "response1", "response2"), _helpsteer, ordered=True),
  Layout("search_arena", ("messages_a|conversation_a", "messages_b|conversation_b", "winner"),
         _arena, ordered=True),
  Layout("judgebench", ("question", "response_A", "response_B"), _judgebench, ordered=True),
  Layout("pairs", ("prompt", "first", "second", "label"), _own, ordered=True),
  Layout("ultrafeedback", ("instruction", "completions"), _completions),
  Layout("dpo", ("conversations", "chosen", "rejected"), _chosen),
  # RewardBench, RM-Bench and UltraFeedback's binarized form.
  Layout("chosen", ("prompt", "chosen", "rejected"), _chosen),
  Layout("kto", ("messages|completion", "label"), _kto),
)


def layout_of(fields: Mapping) -> Layout | None:
  """The layout that fits a row's fields."""
  return next((one for one in LAYOUTS if all(
    any(name in fields for name in mark.split("|")) for mark in one.marks)), None)


# ---- reading files -----------------------------------------------------------------------------


def read_preferences(
  paths: Iterable[str | os.PathLike], account: Account, *, seed: int = 0
) -> list[Preference]:
  """Reads preference files of any known layout.

  Args:
    paths: see `rows.read_rows`.
    account: counts rows and what became of them.
    seed: of the draw that turns round pairs whose chosen answer always came first.

  Raises:
    ValueError: a file that cannot be read.
  """
  made: list[Preference] = []
  rated: dict[Any, list[tuple[Row, Rating]]] = collections.defaultdict(list)
  for path in paths:
    for row in read_rows(path, account):
      try:
        layout = layout_of(row.fields)
        if layout is None:
          fields = ", ".join(map(str, list(row.fields)[:8]))
          raise FieldError("", f"no known layout has the fields {fields}")
        read = layout.read(row.fields)
      except FieldError as error:
        account.refuse(row, error.field, error.reason)
        continue
      except RecursionError:
        account.refuse(row, "", "nested too deeply")
        continue
      if isinstance(read[0], str):
        account.dropped[read[0]] += 1
      elif isinstance(read[0], Rating):
        rated[read[0].context, read[0].prompt].append((row, read[0]))
      else:
        made += _kept(row, read, layout.ordered, account, seed)
  for (context, prompt), ratings in rated.items():
    sides = [[(row, r.answer) for row, r in ratings if r.good is good] for good in (True, False)]
    if not all(sides):
      account.dropped["rated alone, nothing to pair it with"] += len(ratings)
      continue
    read = [(Pair(prompt, good, bad, 1.0, "kto", context), ())
            for (_, good), (_, bad) in itertools.product(*sides)]
    made += _kept(ratings[0][0], read, False, Account(), seed)
  account.noted["pairs"] = len(made)
  account.noted["ties"] = sum(p.pair.label == Label.TIE.value for p in made)
  return made


def _kept(row: Row, read: list, ordered: bool, account: Account, seed: int) -> list[Preference]:
  different = [(pair, votes) for pair, votes in read if pair.first != pair.second]
  if not different:
    account.dropped["the same answer twice"] += 1
  fields = row.fields
  name = str(fields.get("id", fields.get("pair_id", f"{os.path.basename(row.file)}:{row.line}")))
  return [Preference(pair if ordered else _placed(pair, seed), name, votes)
          for pair, votes in different]


def _placed(pair: Pair, seed: int) -> Pair:
  """The pair, turned round for one of two, as its text and the seed decide."""
  draw = random.Random(f"{seed}/{pair.prompt}/{pair.first}/{pair.second}")
  return pair if draw.random() < 0.5 else turned(pair)


def turned(pair: Pair) -> Pair:
  """The pair with its answers in the other order."""
  return dataclasses.replace(
    pair, first=pair.second, second=pair.first, label=1.0 - pair.label)


# ---- noise, statistics, split ------------------------------------------------------------------


def with_votes(
  preferences: Sequence[Preference], judges: Sequence[Callable[[Pair], float]]
) -> list[Preference]:
  """Adds a vote of every judge.

  Args:
    judges: each gives the probability that the first answer is preferred. One that prefers
      another answer when their order is turned votes for a tie.
  """
  def vote(judge, pair):
    one, other = Label.of(judge(pair) - 0.5), Label.of(0.5 - judge(turned(pair)))
    return one if one == other else Label.TIE

  return [p._replace(votes=p.votes + tuple(vote(judge, p.pair) for judge in judges))
          for p in preferences]


def agreed(
  preferences: Sequence[Preference], account: Account, *, share: float = 1.0, least: int = 2
) -> list[Preference]:
  """The light filter: pairs whose label enough of their votes share.

  Args:
    account: counts what is dropped, and the pairs without enough votes, which stay.
    share: least share of the votes that are the label.
    least: votes that a pair must have to be judged.

  Raises:
    ValueError: a share outside [0, 1].
  """
  if not 0 <= share <= 1:
    raise ValueError(f"agreement must lie in [0, 1], got {share}")
  kept = []
  for preference in preferences:
    votes = preference.votes
    if len(votes) < least:
      account.noted["pairs with too few votes to filter"] += 1
    elif sum(vote.value == preference.pair.label for vote in votes) < share * len(votes):
      account.noted["pairs dropped: votes disagree"] += 1
      continue
    kept.append(preference)
  return kept


def pair_statistics(pairs: Iterable[Pair]) -> dict[str, float]:
  """What a model could learn without reading: how often length or position give the label away.

  Returns:
    pairs; ties, a share; of the decided: first, the share whose first answer is preferred;
    longer, the share whose longer one is (of those that differ in length); and the median
    characters of preferred and other answers. NaN where there is nothing to count.
  """
  pairs = list(pairs)
  decided = [(p.first, p.second, p.label) for p in pairs if p.label != Label.TIE.value]
  sides = [(a, b) if label > 0.5 else (b, a) for a, b, label in decided]
  unlike = [len(a) > len(b) for a, b in sides if len(a) != len(b)]
  return {
    "pairs": float(len(pairs)),
    "ties": _mean([p.label == Label.TIE.value for p in pairs]),
    "first": _mean([label > 0.5 for _, _, label in decided]),
    "longer": _mean(unlike),
    "preferred_chars": _median([len(a) for a, _ in sides]),
    "other_chars": _median([len(b) for _, b in sides]),
  }


def _mean(values: Sequence[float]) -> float:
  return sum(values) / len(values) if values else float("nan")


def _median(values: Sequence[int]) -> float:
  return float(statistics.median(values)) if values else float("nan")


def split_by_prompt(preferences: Iterable[Preference], *, holdout: float) -> PairSet:
  """Pairs to train on and pairs held out; all pairs of a prompt are on one side.

  Args:
    holdout: share of prompts held out. A prompt is its whole conversation.
  """
  sides: tuple[list[Pair], list[Pair]] = ([], [])
  for preference in preferences:
    pair = preference.pair
    said = "\n".join([*(text for _, text in pair.context), pair.prompt])
    sides[is_held_out(said, holdout)].append(pair)
  train, held = sides
  return PairSet(tuple(train), tuple(held), {"train": len(train), "holdout": len(held)})


def load_pairs(
  paths: Sequence[str],
  chat: ChatFormat,
  *,
  length: int,
  seed: int = 0,
  agreement: float = 1.0,
  holdout: float = 0.15,
) -> tuple[PairSet, list[str]]:
  """Pairs of files, filtered and split by prompt, to train a preference model on.

  Args:
    paths: see `rows.read_rows`.
    chat: the format that counts tokens.
    length: tokens of the longest pair that is kept.
    seed: see `read_preferences`.
    agreement: least share of a pair's votes that are its label.
    holdout: share of prompts held out.

  Returns:
    The pairs, and lines that say what was read, dropped, and how length and position speak for the
    label before and after.

  Raises:
    ValueError: a file that cannot be read, or no pair left to train on or to hold out.
  """
  account = Account()
  read = read_preferences(paths, account, seed=seed)
  before = describe(p.pair for p in read)
  kept = agreed(read, account, share=agreement)
  short = [p for p in kept if len(encode_pair(chat, p.pair)[0]) <= length]
  account.noted[f"pairs dropped: over {length} tokens"] = len(kept) - len(short)
  made = split_by_prompt(short, holdout=holdout)
  if not made.train or not made.holdout:
    raise ValueError(f"data.files leave {len(made.train)} pairs to train on and "
                     f"{len(made.holdout)} held out; both must be above 0 ({account.summary()})")
  lines = [account.summary(), *(f"malformed: {problem}" for problem in account.problems[:5]),
           f"before: {before}", f"after: {describe(p.pair for p in short)}"]
  return made, lines


def describe(pairs: Iterable[Pair]) -> str:
  """`pair_statistics` in words, one line."""
  s = pair_statistics(pairs)
  return (
    f"{s['pairs']:.0f} pairs, {s['ties']:.0%} ties; preferred: the first {s['first']:.0%}, "
    f"the longer {s['longer']:.0%}; median characters {s['preferred_chars']:.0f} against "
    f"{s['other_chars']:.0f}"
  )
