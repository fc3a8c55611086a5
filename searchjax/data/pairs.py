"""Preference pairs for the reward model: generated, labelled with noise, filtered, split.  HOST.

What is preferred, best first: a concise statement, the same with filler, the bare name, "I do not
know"; then whatever answers another question, is in another language, is cut off or repeats
itself. A citation marker spoils any answer. Right goes before wrong at any length.

Labels come from several simulated annotators, each of whom errs at a stated rate; the light filter
keeps the pairs on which enough of them agree (SPEC 2.1).  Prompts are split before anything else,
so no held-out prompt is trained on.

Spec     2.1 (data, label noise, light filter; what the preference model reads).
"""

import collections
import dataclasses
import hashlib
import random
from collections.abc import Sequence
from typing import Any

from searchjax.data.chat import ChatFormat
from searchjax.data.rubrics import RubricChat
from searchjax.search.atlas import Atlas, sentence_of
from searchjax.search.worlds import World

FILLER = (
  "I looked it up, and the answer is this: {answer}",
  "{answer} That is what I could find.",
  "Here is what I found: {answer} I hope this is of use to you.",
  "{answer} The search says so, and the answer is {bare}.",
)
FOREIGN = ("La réponse est {bare}.", "La respuesta es {bare}.", "Die Antwort ist {bare}.")
UNKNOWN = "I do not know."
CITATIONS = (" [search:1]", " [web:2]", " [1]")


@dataclasses.dataclass(frozen=True)
class Pair:
  """Two answers to a prompt.

  Attributes:
    prompt: the user's message.
    first: one answer, as a user reads it.
    second: the other.
    label: 1.0 if the first is preferred, 0.0 if the second, 0.5 for a tie.
    kind: what the pair tells apart, e.g. "statement>bare"; for tables only.
    context: (role, text) of what was said before the prompt.
  """

  prompt: str
  first: str
  second: str
  label: float
  kind: str = ""
  context: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class PairSet:
  """Pairs to train on and pairs held out by prompt, with counts of what was done to them."""

  train: tuple[Pair, ...]
  holdout: tuple[Pair, ...]
  counts: dict[str, int]


def question_candidates(
  atlas: Atlas, question: Any, world: World, draw: random.Random
) -> dict[str, str]:
  """Answers to a question of every quality, by quality."""
  statement, bare = question.statement, question.answer
  subject = question.path[-2]
  others = [
    s for s in atlas.pages[subject].statements
    if s.relation != question.relations[-1] and s.object is not None
    and world.name(s.object) not in (bare, *question.aliases)
  ]
  if others:
    other = draw.choice(others)
    tail = world.name(other.object)
    beside = sentence_of(atlas.entities[subject].kind, other.relation, world.name(subject), tail)
  else:
    tail = world.name(subject)
    beside = f"The answer is {tail}."
  return {
    "statement": statement,
    "verbose": draw.choice(FILLER).format(answer=statement, bare=bare),
    "bare": bare,
    "unknown": UNKNOWN,
    "beside": beside,
    "beside_bare": tail,
    "foreign": draw.choice(FOREIGN).format(bare=bare),
    "cited": statement + draw.choice(CITATIONS),
    "cut": statement[: max(4, int(len(statement) * draw.uniform(0.3, 0.8)))].rstrip(),
    "repeated": f"{statement} {statement}",
  }


ORDER = (
  ("statement", "bare"), ("statement", "verbose"), ("statement", "beside"), ("verbose", "bare"),
  ("bare", "beside"), ("bare", "beside_bare"), ("statement", "unknown"), ("unknown", "beside"),
  ("verbose", "beside"), ("statement", "foreign"), ("statement", "cited"), ("statement", "cut"),
  ("statement", "repeated"), ("bare", "unknown"),
)
# The first four decide what the reward tells apart most often, so they are drawn more often.
_WEIGHTS = (5, 5, 4, 4) + (1,) * (len(ORDER) - 4)


def make_pairs(
  atlas: Atlas,
  questions: Sequence[Any],
  *,
  seed: int,
  chats: Sequence[RubricChat] = (),
  per_question: int = 3,
  noise: float = 0.1,
  annotators: int = 3,
  agreement: float = 1.0,
  tie_rate: float = 0.05,
  holdout: float = 0.15,
) -> PairSet:
  """Generates labelled pairs.

  Args:
    atlas: where the questions come from.
    questions: data.questions.Question; each gives its `world`'s names.
    seed: decides everything.
    chats: rubric chats, one pair each: the reference against a spoilt answer.
    per_question: pairs a question.
    noise: chance that one annotator's label is turned round.
    annotators: labels a pair; the majority's is kept.
    agreement: least share of annotators that must agree (1.0: all of them).
    tie_rate: share of pairs with two answers of equal quality, labelled 0.5.
    holdout: share of prompts held out.

  Raises:
    ValueError: a rate outside [0, 1], or no annotator.
  """
  for name, rate in (("noise", noise), ("agreement", agreement), ("tie_rate", tie_rate),
                     ("holdout", holdout)):
    if not 0 <= rate <= 1:
      raise ValueError(f"{name} must lie in [0, 1], got {rate}")
  if annotators < 1 or per_question < 1:
    raise ValueError(f"expected at least 1 annotator and 1 pair a question, got {annotators} and "
                     f"{per_question}")
  draw = random.Random(f"pairs/{seed}")
  worlds: dict[Any, World] = {}
  clean: list[Pair] = []
  for question in questions:
    if question.world not in worlds:
      worlds[question.world] = World(atlas, question.world)
    candidates = question_candidates(atlas, question, worlds[question.world], draw)
    for _ in range(per_question):
      if draw.random() < tie_rate:
        fillers = draw.sample(FILLER, 2)
        first, second = (
          text.format(answer=candidates["statement"], bare=candidates["bare"]) for text in fillers
        )
        clean.append(Pair(question.text, first, second, 0.5, "tie"))
        continue
      better, worse = draw.choices(ORDER, _WEIGHTS)[0]
      clean.append(_placed(
        draw, question.text, candidates[better], candidates[worse], f"{better}>{worse}"
      ))
  for chat, other in zip(chats, [*chats[1:], *chats[:1]]):
    spoilt = draw.choice((other.reference, UNKNOWN, chat.reference + draw.choice(CITATIONS),
                          f"{chat.reference} {chat.reference}"))
    if spoilt != chat.reference:
      clean.append(_placed(draw, chat.text, chat.reference, spoilt, "chat"))
  train, held = [], []
  counts: collections.Counter[str] = collections.Counter(made=len(clean))
  for pair in clean:
    label, share = _annotate(draw, pair.label, noise, annotators)
    if share < agreement:
      counts["filtered"] += 1
      continue
    counts["mislabelled"] += label != pair.label
    side = held if is_held_out(pair.prompt, holdout) else train
    side.append(dataclasses.replace(pair, label=label))
  counts["train"], counts["holdout"] = len(train), len(held)
  draw.shuffle(train)
  return PairSet(tuple(train), tuple(held), dict(counts))


def is_held_out(prompt: str, share: float) -> bool:
  """Whether a prompt belongs to the held-out share; decided by the prompt's text alone."""
  point = int(hashlib.sha256(prompt.encode()).hexdigest()[:12], 16) / 16**12
  return point < share


def encode_pair(
  chat: ChatFormat, pair: Pair, *, swapped: bool = False
) -> tuple[list[int], int, int]:
  """Encodes prompt and both answers as one sequence.

  Args:
    chat: the format.
    pair: the pair.
    swapped: False puts pair.first first, True pair.second.

  Returns:
    (ids, end_first, end_second): positions of the `<|im_end|>` after pair.first and after
    pair.second, wherever they stand; the scalars read there are s(first) and s(second), so their
    difference in either order is the pair's, and the label need not be turned round.
  """
  answers = (pair.second, pair.first) if swapped else (pair.first, pair.second)
  said = (*pair.context, ("user", pair.prompt))
  ids = chat.encode_prompt(
    [{"role": role, "content": text} for role, text in said], enable_thinking=False
  )
  ids += chat.encode_assistant(answers[0])
  front = len(ids) - 1
  ids += chat.encode_alternative(answers[1])
  back = len(ids) - 1
  return (ids, back, front) if swapped else (ids, front, back)


def _placed(draw: random.Random, prompt: str, better: str, worse: str, kind: str) -> Pair:
  if draw.random() < 0.5:
    return Pair(prompt, better, worse, 1.0, kind)
  return Pair(prompt, worse, better, 0.0, kind)


def _annotate(
  draw: random.Random, label: float, noise: float, annotators: int
) -> tuple[float, float]:
  """The majority's label and the share that gave it. A tie stays one: nothing to turn round."""
  if label == 0.5:
    return label, 1.0
  wrong = sum(draw.random() < noise for _ in range(annotators))
  right = annotators - wrong
  return (label if right >= wrong else 1.0 - label), max(right, wrong) / annotators
