"""Public question sets in their publishers' own layouts, as records of one kind.  HOST.

A `Layout` says where a publisher keeps question, answers, id and hops; `LAYOUTS` lists them, and a
file's layout is told by the fields of its rows. `read_questions` reads files, filters by quality,
and leaves out duplicates and what overlaps with evaluation sets; all is counted.

Spec     1.3 (public verifiable QA, quality filters).
Source   the data cards of the sets named in LAYOUTS; BrowseComp's encryption as published in
         openai/simple-evals (XOR with the SHA-256 of the row's canary, base64).
"""

import base64
import binascii
import dataclasses
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from searchjax.data.arguments import load_json, load_literal
from searchjax.data.overlap import Evaluation, duplicates, words
from searchjax.data.rows import Account, FieldError, Row, find, find_text, read_rows
from searchjax.search.atlas import fold

SPLIT = "<|answer_split|>"  # between the answers of verl's ground_truth
YES_NO = ("yes", "no")
_HOPS = re.compile(r"(?:musique_)?([0-9]{1,3})hop")


@dataclasses.dataclass(frozen=True)
class QAExample:
  """One verifiable question.

  Attributes:
    question: what is asked.
    answer: the gold answer.
    aliases: other right answers.
    hops: facts that lead to the answer, as its publisher says; None if it does not.
    source: the set it is from.
    id: its publisher's, or "FILE:LINE".
    metadata: further fields of the row.
  """

  question: str
  answer: str
  aliases: tuple[str, ...] = ()
  hops: int | None = None
  source: str = ""
  id: str = ""
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where a publisher keeps things; paths as for `rows.find`.

  Attributes:
    name: of the set.
    marks: fields that tell the layout; all must be there.
    question: path of the question; "" in a file of answers alone.
    answers: paths of the answers, the first the gold one; () in a file of questions alone, which
      is joined with its answers by id.
    id: path of the id.
    hops: a number that holds for the whole set, or what reads it off a row's fields.
    metadata: paths of further fields to keep.
    decode: by path, what turns a text into the value it spells.
    when: a further condition on a row's fields.
    source: path of the set's name where a file mixes several.
    prepare: what is done to a row's fields first.
  """

  name: str
  marks: tuple[str, ...]
  question: str = "question"
  answers: tuple[str, ...] = ("answer",)
  id: str = "id"
  hops: int | Callable[[Mapping], int | None] | None = None
  metadata: tuple[str, ...] = ()
  decode: Mapping[str, Callable[[str], Any]] = dataclasses.field(default_factory=dict)
  when: Callable[[Mapping], bool] = lambda fields: True
  source: str = ""
  prepare: Callable[[Mapping], Mapping] = lambda fields: fields


def decrypt(text: str, password: str) -> str:
  """Text that BrowseComp's publisher encrypted with a row's canary.

  Raises:
    ValueError: not base64, or not UTF-8 after decryption.
  """
  try:
    data = base64.b64decode(text, validate=True)
    digest = hashlib.sha256(password.encode()).digest()
    key = digest * (len(data) // len(digest) + 1)
    return bytes(a ^ b for a, b in zip(data, key)).decode("utf-8")
  except (binascii.Error, UnicodeDecodeError) as error:
    raise ValueError(f"cannot be decrypted with the row's canary ({error})") from error


def _decrypted(fields: Mapping) -> Mapping:
  """A row of BrowseComp with its question and answer in plain text."""
  password, plain = find_text(fields, "canary"), {}
  for name in ("problem", "answer"):
    try:
      plain[name] = decrypt(find_text(fields, name), password)
    except ValueError as error:
      raise FieldError(name, str(error).removeprefix(f"{name}: ")) from error
  return {**fields, **plain}


def _musique_hops(fields: Mapping) -> int | None:
  steps = fields.get("question_decomposition")
  return len(steps) if isinstance(steps, list) and steps else _hops_in_id(fields)


def _hops_in_id(fields: Mapping) -> int | None:
  """MuSiQue's ids begin with the number of hops, as in "3hop1__…"."""
  found = _HOPS.match(str(fields.get("id") or _maybe(fields, "extra_info.index") or ""))
  return int(found[1]) if found else None


def _verl_hops(fields: Mapping) -> int | None:
  extra = fields.get("extra_info")
  if not isinstance(extra, Mapping | None):
    raise FieldError("extra_info", f"expected an object, got {type(extra).__name__}")
  return _hops_in_id(fields)


def _two_wiki_hops(fields: Mapping) -> int | None:
  evidences = fields["evidences"]
  return len(evidences) or None if isinstance(evidences, list) else None


def _stated_hops(fields: Mapping) -> int | None:
  hops = fields.get("hops", fields.get("num_hops"))
  return hops if isinstance(hops, int) and not isinstance(hops, bool) else None


# The first whose marks a row has is the row's.
LAYOUTS = (
  Layout("browsecomp", ("problem", "answer", "canary"), "problem", prepare=_decrypted,
         metadata=("problem_topic", "canary")),
  Layout("simpleqa", ("problem", "answer", "metadata"), "problem", hops=1,
         metadata=("metadata.topic", "metadata.answer_type", "metadata.urls"),
         decode={"metadata": load_literal}),
  Layout("facts_search", ("problem", "gold answer"), "problem", ("gold answer",)),
  Layout("frames", ("Prompt", "Answer"), "Prompt", ("Answer",), "index|Unnamed: 0",
         metadata=("reasoning_types", "wiki_links"), decode={"wiki_links": load_literal}),
  Layout("triviaqa", ("question", "question_id", "answer"), id="question_id", hops=1,
         answers=("answer.value", "answer.aliases")),
  Layout("triviaqa", ("Question", "QuestionId", "Answer"), "Question", id="QuestionId", hops=1,
         answers=("Answer.Value", "Answer.Aliases")),
  Layout("bamboogle", ("Question", "Answer"), "Question", ("Answer",), hops=2),
  Layout("bamboogle", ("0", "4", "6"), "0", ("4",), hops=2),
  Layout("sealqa", ("freshness", "Question|question", "answer"), "Question|question",
         metadata=("urls", "freshness", "question_types", "effective_year", "search_results",
                   "topic", "canary")),
  Layout("webwalkerqa", ("root_url|info", "Question|question", "answer|Answer"),
         "Question|question", ("answer|Answer",),
         metadata=("root_url", "info", "source_website", "golden_path", "type", "domain",
                   "difficulty_level", "lang")),
  Layout("webshaper", ("formalization", "question", "answer"),
         metadata=("formalization", "urls")),
  Layout("popqa", ("question", "possible_answers", "obj"), answers=("obj", "possible_answers"),
         hops=1, metadata=("subj", "prop", "s_pop"), decode={"possible_answers": load_json}),
  Layout("musique", ("question", "answer", "answer_aliases"), hops=_musique_hops,
         answers=("answer", "answer_aliases"), metadata=("answerable",)),
  Layout("2wiki", ("question", "answer", "evidences"), id="_id|id", hops=_two_wiki_hops,
         metadata=("type", "evidences")),
  Layout("deepdive", ("question", "answer", "conversations")),
  Layout("webdancer", ("question", "answer", "tag"), metadata=("tag",)),
  Layout("hotpotqa", ("question", "answer", "type"), id="_id|id", hops=2,
         metadata=("type", "level")),
  Layout("verl", ("data_source", "prompt", "reward_model"), "prompt.0.content",
         ("reward_model.ground_truth",), "extra_info.index", _verl_hops,
         ("extra_info.split", "ability"), source="data_source"),
  Layout("bfcl_web_search", ("id", "question", "involved_classes"), "question.0.0.content", ()),
  Layout("bfcl_web_search", ("id", "ground_truth", "num_hops"), "", ("ground_truth",),
         hops=_stated_hops, metadata=("source",)),
  # This project's own files; see question_file.py.
  Layout("questions", ("id", "text", "answer"), "text", ("answer", "aliases"), hops=_stated_hops,
         source="source", metadata=("relations", "format")),
  Layout("flashrag", ("question", "golden_answers"), answers=("golden_answers",),
         source="data_source"),
  Layout("nq", ("question", "answer"), hops=1, when=lambda f: isinstance(f["answer"], list)),
  Layout("qa", ("question", "answer"), answers=("answer", "aliases"), hops=_stated_hops,
         metadata=("metadata",)),
)


def layout_of(fields: Mapping, name: str = "") -> Layout | None:
  """The first layout that fits a row; of one set where its name is given."""
  for layout in LAYOUTS:
    if name in ("", layout.name) and all(_has(fields, mark) for mark in layout.marks):
      if layout.when(fields):
        return layout
  return None


def _has(fields: Mapping, mark: str) -> bool:
  return any(name in fields for name in mark.split("|"))


@dataclasses.dataclass(frozen=True)
class Quality:
  """Which sound rows to leave out.

  Attributes:
    question_words: fewer make no question.
    answer_words: an answer of more cannot be matched.
    given_away: keep a question that holds its own answer (one that offers a choice may).
    changing: keep questions whose answers are marked as changing over time.
  """

  question_words: int = 4
  answer_words: int = 30
  given_away: bool = False
  changing: bool = True

  def objection(self, example: QAExample) -> str | None:
    """Why an example is left out, or None."""
    asked, gold = words(example.question), words(example.answer)
    if example.metadata.get("answerable") is False:
      return "marked unanswerable"
    if len(asked) < self.question_words:
      return "short question"
    if len(gold) > self.answer_words:
      return "long answer"
    if not self.changing and example.metadata.get("freshness", "never") not in ("never-changing",
                                                                                 "never"):
      return "answer changes over time"
    choice = "or" in asked or "或" in asked or "还是" in example.question
    if not self.given_away and not choice and example.answer.casefold() not in YES_NO and any(
        asked[i:i + len(gold)] == gold for i in range(len(asked) - len(gold) + 1)):
      return "answer in the question"
    return None


def read_questions(
  paths: Iterable[str | os.PathLike],
  account: Account,
  *,
  layout: str = "",
  quality: Quality | None = None,
  similarity: float = 0.0,
  evaluation: Evaluation | None = None,
) -> list[QAExample]:
  """Reads question sets.

  Args:
    paths: files, or data sets by name; see `rows.read_rows`.
    account: counts rows, takes problems, and counts what is dropped, by reason.
    layout: a set's name; "" tells the layout by the fields of every row.
    quality: the filter; None keeps every sound row.
    similarity: least similarity of near-duplicates, which are left out; 0 leaves out none.
    evaluation: what must not be trained on; None is nothing.

  Raises:
    ValueError: an unknown layout, or a file that cannot be read.
  """
  known = sorted({one.name for one in LAYOUTS})
  if layout and layout not in known:
    raise ValueError(f"unknown layout {layout!r}; expected one of {', '.join(known)}")
  made: list[QAExample] = []
  asked: dict[str, tuple[Row, str]] = {}
  answered: dict[str, tuple[Row, Layout]] = {}
  for path in paths:
    for row in read_rows(path, account):
      try:
        found = layout_of(row.fields, layout)
        if found is None:
          fields = ", ".join(map(str, list(row.fields)[:8]))
          raise FieldError("", f"no known layout{' of ' + layout if layout else ''} has the fields "
                               f"{fields}")
        if found.question and found.answers:
          made.append(_read(row, found))
          continue
        key = find_text(row.fields, found.id)
        halves = asked if found.question else answered
        if key in halves:
          raise FieldError(found.id, f"{key} is given twice")
        if found.question:
          asked[key] = row, find_text(row.fields, found.question)
        else:
          answered[key] = row, found
      except FieldError as error:
        account.refuse(row, error.field, error.reason)
  made += _joined(asked, answered, account)
  return _selected(made, account, quality, similarity, evaluation)


def _read(row: Row, layout: Layout, question: str | None = None) -> QAExample:
  try:
    return _example(row, layout, question)
  except RecursionError as error:
    raise FieldError("", "nested too deeply") from error


def _example(row: Row, layout: Layout, question: str | None) -> QAExample:
  fields = {**layout.prepare(row.fields)}
  for path, decode in layout.decode.items():
    if isinstance(fields.get(path), str):
      try:
        fields[path] = decode(fields[path])
      except ValueError as error:
        raise FieldError(path, f"cannot be read ({error})") from error
  answers: list[str] = []
  for number, path in enumerate(layout.answers):
    try:
      answers += _texts(find(fields, path), path)
    except FieldError as error:
      if number == 0 or error.reason != "missing":
        raise
  answers = list(dict.fromkeys(answers))
  if not answers:
    raise FieldError(layout.answers[0], "empty")
  asked = find_text(fields, layout.question) if question is None else question
  if len(asked) > 2 and asked[0] == asked[-1] == '"' and '"' not in asked[1:-1]:
    asked = asked[1:-1].strip()
  metadata = {path.rpartition(".")[2]: value for path in layout.metadata
              if (value := _maybe(fields, path)) not in (None, "")}
  number = _maybe(fields, layout.id)
  if not isinstance(number, str | None) and not _is_number(number):
    raise FieldError(layout.id, f"expected text or a number, got {number!r:.60}")
  return QAExample(
    asked, answers[0], tuple(answers[1:]),
    layout.hops(fields) if callable(layout.hops) else layout.hops,
    str(_maybe(fields, layout.source) or layout.name) if layout.source else layout.name,
    str(number) if number not in (None, "") else f"{os.path.basename(row.file)}:{row.line}",
    metadata,
  )


def _maybe(fields: Mapping, path: str) -> Any:
  try:
    return find(fields, path)
  except FieldError:
    return None


def _is_number(value: Any) -> bool:
  """Whether it is a whole number or a finite one; true and false are none."""
  if isinstance(value, float):
    return math.isfinite(value)
  return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: Any, path: str) -> list[str]:
  """Answers in the forms they come in; a number is an answer too."""
  if isinstance(value, Mapping) and "target" in value:
    return _texts(value["target"], path)
  if isinstance(value, list | tuple):
    return [text for one in value for text in _texts(one, path)]
  if _is_number(value):
    return [str(value)]
  if isinstance(value, float):
    raise FieldError(path, f"expected a finite number, got {value}")
  if not isinstance(value, str):
    raise FieldError(path, f"expected text or a list of texts, got {type(value).__name__}")
  return [text.strip() for text in value.split(SPLIT) if text.strip()]


def _joined(asked, answered, account) -> list[QAExample]:
  """Questions with the answers of the same id; what has no other half is a problem."""
  made = []
  for key, (row, question) in asked.items():
    if key not in answered:
      account.refuse(row, "id", f"no file read here has an answer for {key}")
      continue
    account.dropped["answers joined to their questions"] += 1
    half, layout = answered[key]
    try:
      made.append(_read(half, layout, question))
    except FieldError as error:
      account.refuse(row, error.field, error.reason)
  for key, (row, _) in answered.items():
    if key not in asked:
      account.refuse(row, "id", f"no file read here has a question for {key}")
  return made


def _selected(made, account, quality, similarity, evaluation) -> list[QAExample]:
  kept = []
  for example in made:
    reason = quality.objection(example) if quality else None
    if reason is None and evaluation and evaluation.overlaps(example.question):
      reason = "overlaps an evaluation set"
    if reason:
      account.dropped[reason] += 1
    else:
      kept.append(example)
  if not similarity:
    return kept
  repeated = duplicates(
    [example.question for example in kept], similarity=similarity,
    answers=[frozenset(map(fold, (e.answer, *e.aliases))) for e in kept],
  )
  for _, how in repeated.values():
    account.dropped[f"{how} duplicate"] += 1
  return [example for i, example in enumerate(kept) if i not in repeated]


def evaluation_of(paths: Sequence[str | os.PathLike], *, n: int = 13) -> Evaluation:
  """The questions of evaluation files.

  Raises:
    ValueError: a file without a question that can be read: no overlap with it could be seen.
  """
  questions: list[str] = []
  for path in paths:
    account = Account()
    read = read_questions([path], account)
    if not read:
      raise ValueError(f"{path}: no question to compare with; {account.summary()}")
    questions += [example.question for example in read]
  return Evaluation(questions, n=n)
