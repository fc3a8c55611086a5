"""An LLM's verdicts on answers and on rubrics, at an OpenAI-compatible endpoint.  HOST.

In the place of the matcher: CORRECT, INCORRECT or NOT_ATTEMPTED for an answer, met or not for one
rubric. The reasons come first and the verdict last (FAULTS J3); a reply is read strictly, and one
that is not exactly what was asked for is asked for again. What cannot be had in the end is None,
an infra_failure, never a wrong answer (FAULTS J1).

Section  SPEC 2 (r_base), 3 (outcomes).
Source   the SimpleQA, HLE, FRAMES and HealthBench graders' protocols, whose readers take a verdict
         from the middle of a word, of a denial or of several.
"""

import collections
import concurrent.futures
import contextlib
import json
import pathlib
import re
import string
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from searchjax.data.synthesis.endpoint import Endpoint, EndpointFailure
from searchjax.reward.answer import Verdict
from searchjax.search.recording import Recording, search_key
from searchjax.search.reply import Result

ASSETS = pathlib.Path(__file__).parent / "assets"
KEY_VARIABLE = "JUDGE_API_KEY"
# A `judge` section: times in seconds; `reads` replies are read before a verdict is given up;
# `deadline_s` is for all verdicts of one call; `cache` is a folder, "" keeps nothing.
JUDGE = dict(
  url="", model="", connections=16, timeout_s=60.0, retries=3, reads=2, deadline_s=300.0, cache="",
)
ANSWER_VERDICTS = {verdict.value: verdict for verdict in Verdict}
RUBRIC_VERDICTS = {"MET": True, "NOT_MET": False}

T = TypeVar("T")
_VERDICT_LINE = re.compile(r"\W*verdict\W*:\W*([a-z]+(?:[ _-][a-z]+)?)\W*", re.I)
_STATED = re.compile(
  r"\b(?:therefore|thus|hence|so|overall|in conclusion)\b[^.\n]*?\b(?:is|are)\s+"
  r"(not\s+)?(correct|incorrect|right|wrong|met)\b", re.I)


@runtime_checkable
class Asker(Protocol):
  """What answers a prompt with a text, as Endpoint does."""

  model: str
  url: str

  def ask(self, prompt: str) -> str: ...


def read_verdict(reply: str, verdicts: Mapping[str, T]) -> T:
  """The one verdict that a judge's reply ends with.

  Args:
    reply: the whole text. A JSON object {"reasons", "verdict"} is read too, in a fence or not.
    verdicts: what each of the words stands for, in upper case with "_".

  Raises:
    ValueError: no verdict, several, another word ("not correct"), text after it, none before it, or
      reasons that conclude the opposite.
  """
  *thoughts, reply = re.split(r"</think>", reply)
  reply = re.sub(r"^\s*```\w*\s*\n(.*?)\n?\s*```\s*$", r"\1", reply.strip(), flags=re.S)
  reasons, word = _from_json(reply) if reply.startswith("{") else _from_lines(reply)
  word = re.sub(r"[ -]", "_", word.strip().upper())
  if word not in verdicts:
    raise ValueError(f"a verdict that was not offered ({word[:40]!r})")
  if not (reasons.strip() or "".join(thoughts).strip()):
    raise ValueError("a verdict without reasons before it")
  *_, stated = [None, *_STATED.finditer(reasons)]
  if stated and word != "NOT_ATTEMPTED":
    positive = (stated[2].lower() in ("correct", "right", "met")) != bool(stated[1])
    if positive != (word in ("CORRECT", "MET")):
      raise ValueError("a verdict that contradicts its reasons")
  return verdicts[word]


def _from_lines(reply: str) -> tuple[str, str]:
  lines = [line for line in reply.splitlines() if line.strip(" \t`*_")]
  found = [_VERDICT_LINE.fullmatch(line) for line in lines]
  named = [number for number, line in enumerate(lines) if re.match(r"\W*verdict\W*:", line, re.I)]
  if len(named) != 1:
    raise ValueError("no line with a verdict" if not named else "several verdicts")
  if named[0] != len(lines) - 1:
    raise ValueError("text after the verdict")
  if found[-1] is None:
    raise ValueError("a verdict line that says more than a verdict")
  return "\n".join(lines[:-1]), found[-1][1]


def _from_json(reply: str) -> tuple[str, str]:
  try:
    pairs = json.loads(reply, object_pairs_hook=list)
  except ValueError as error:
    raise ValueError("neither JSON nor a verdict line") from error
  if [name for name, _ in pairs] != ["reasons", "verdict"] or not all(
      isinstance(value, str) for _, value in pairs):
    raise ValueError('JSON of another form than {"reasons": text, "verdict": text}')
  return pairs[0][1], pairs[1][1]


def _inside(text: str) -> str:
  """Text that cannot close the prompt's tags."""
  return re.sub(r"</?(?:question|request|expected|answer|criterion)>", " ", text, flags=re.I)


class Judge:
  """Verdicts by an LLM, many at once, each asked for once.

  Args:
    endpoint: gives the replies.
    connections: requests under way at once.
    reads: replies that are read, at most, for one verdict.
    deadline_s: seconds after which what has no verdict gets none (FAULTS J6).
    recording: where replies are kept and found again; None keeps them in memory alone.

  Attributes:
    counts: verdicts "asked" for, "known" already, "unreadable" replies, and, of what got no
      verdict, "failed" and "late".
  """

  def __init__(
    self, endpoint: Asker, *, connections: int = 16, reads: int = 2, deadline_s: float = 300.0,
    recording: Recording | None = None,
  ):
    self._endpoint, self._reads, self._deadline_s = endpoint, reads, deadline_s
    self._recording, self._lock = recording, threading.Lock()
    self._known: dict[str, Any] = {}
    self._pool = concurrent.futures.ThreadPoolExecutor(connections, thread_name_prefix="judge")
    self._templates = {
      name: string.Template((ASSETS / f"{name}.md").read_text(encoding="utf-8"))
      for name in ("judge_answer", "judge_rubric")
    }
    self.counts: collections.Counter[str] = collections.Counter()

  def judge_answers(
    self, items: Sequence[tuple[str, Sequence[str], str]]
  ) -> list[Verdict | None]:
    """Verdicts on (question, expected answer's forms, answer), in order; None: none to be had."""
    prompts = [
      self._templates["judge_answer"].substitute(
        question=_inside(question), gold=_inside("\n".join(gold)), answer=_inside(answer))
      for question, gold, answer in items
    ]
    return self._verdicts(prompts, ANSWER_VERDICTS)

  def judge_rubrics(self, items: Sequence[tuple[str, str, str]]) -> list[bool | None]:
    """Whether (request, criterion, answer) is met, in order; None: no verdict to be had."""
    prompts = [
      self._templates["judge_rubric"].substitute(
        question=_inside(question), criterion=_inside(criterion), answer=_inside(answer))
      for question, criterion, answer in items
    ]
    return self._verdicts(prompts, RUBRIC_VERDICTS)

  def close(self) -> None:
    """Asks for nothing more. Twice is harmless."""
    self._pool.shutdown(wait=False, cancel_futures=True)

  def _verdicts(self, prompts: Sequence[str], verdicts: Mapping[str, T]) -> list[T | None]:
    end = time.monotonic() + self._deadline_s
    under_way = {
      prompt: self._pool.submit(self._ask, prompt, verdicts, end)
      for prompt in dict.fromkeys(prompts) if prompt not in self._known
    }
    self.counts["asked"] += len(under_way)
    self.counts["known"] += len(prompts) - len(under_way)
    concurrent.futures.wait(under_way.values(), timeout=self._deadline_s)
    for prompt, future in under_way.items():
      if future.cancel() or not future.done():
        self.counts["late"] += 1
      elif future.result() is not None:
        self._known[prompt] = future.result()
    return [self._known.get(prompt) for prompt in prompts]

  def _ask(self, prompt: str, verdicts: Mapping[str, T], end: float) -> T | None:
    name = f"judge {self._endpoint.model}"
    if self._recording is not None:
      kept = self._recording.find(search_key(name, prompt, {}))
      if kept is not None:
        return read_verdict(kept[0].snippet, verdicts)
    for _ in range(self._reads):
      if time.monotonic() > end:
        return None
      try:
        reply = self._endpoint.ask(prompt)
        verdict = read_verdict(reply, verdicts)
      except EndpointFailure:
        break
      except ValueError:
        with self._lock:
          self.counts["unreadable"] += 1
        continue
      if self._recording is not None:
        with self._lock:
          self._recording.add(name, prompt, {}, [Result("", "", reply)])
      return verdict
    with self._lock:
      self.counts["failed"] += 1
    return None


@contextlib.contextmanager
def open_judge(section: Any) -> Iterator[Judge | None]:
  """The judge that a `judge` section describes; None, so the matcher, where there is none.

  Args:
    section: a mapping with JUDGE's keys, or None; what is left out is at JUDGE's value.
      `JUDGE_API_KEY` of the environment is sent where it is set.

  Raises:
    ValueError: an unknown key, no model, or an address that is none.
  """
  section = dict(section or {})
  if unknown := sorted(set(section) - set(JUDGE)):
    raise ValueError(f"reward.judge has no {unknown[0]}; it has {', '.join(JUDGE)}")
  section = JUDGE | section
  if not section["url"]:
    yield None
    return
  if not section["model"]:
    raise ValueError("reward.judge.model is empty; name the model that judges")
  recording = Recording(section["cache"]) if section["cache"] else None
  options = {name: section[name] for name in ("connections", "timeout_s", "retries")}
  with Endpoint(
    section["url"], model=section["model"], key_variable=KEY_VARIABLE, **options
  ) as endpoint:
    judge = Judge(
      endpoint, connections=section["connections"], reads=section["reads"],
      deadline_s=section["deadline_s"], recording=recording,
    )
    try:
      yield judge
    finally:
      judge.close()
      if recording is not None:
        recording.close()
