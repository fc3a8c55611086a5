"""What the record of a finished rollout must satisfy, told from its tokens.  PURE.

The tokens are cut into turns by their mask, parsed and written again by the chat format, and
compared with what the record says: prompt, borders, calls, budgets, flags, counts (SPEC 3). Neither
engine nor service is needed.

Source   FAULTS T1, T2, T5, T6, P5, P6, B2, B3, M3, R1.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from searchjax.data.chat import ChatFormat
from searchjax.data.turns import ParsedTurn
from searchjax.rollout.episode import NO_ROOM, Limits
from searchjax.search.tool import BUDGET_USED_UP, model_failure

# Of a record, the fields that are read, and the types of each.
FIELDS = {
  "step": (int,), "question_id": (str,), "rollout": (int,), "question": (str,), "turns": (list,),
  "tokens": (list,), "mask": (list,), "logp": (list,), "final_answer": (str,), "stop": (str,),
  "valid": (bool,), "invalid_reason": (str,), "policy_version": (int,), "tool_calls": (int,),
  "tool_failures": (int,), "searches": (int,), "malformed_calls": (int,), "forced": (bool,),
  "length": (int,), "prompt_length": (int,), "limits": (dict,), "reward": (dict,),
  "advantage": (int, float),
}
ROUTING = ("rows", "bits", "experts", "least", "most", "repeated")
CALLS_REFUSED, RESULTS_REFUSED = (model_failure(t).text for t in (BUDGET_USED_UP, NO_ROOM))
SHOWN = 4  # Tokens of a difference that are spelt out.


@dataclasses.dataclass(frozen=True)
class Violation:
  """Attributes:
    kind: one of the names in the table of `searchjax.check`.
    text: what was expected and what stands there.
    position: index of the token where it shows; None where it is not at a token.
  """

  kind: str
  text: str
  position: int | None = None


@dataclasses.dataclass(frozen=True)
class Turn:
  """A sampled turn, tokens [begin, end), and the given ones after it, [end, after).

  Attributes:
    stopped: it ended in a stop id.
    parsed: the turn, read again.
    said: the record's text and calls of it.
    responses: the record's tool responses to it.
    first_call: number of the rollout's calls before it.
  """

  begin: int
  end: int
  after: int
  stopped: bool
  parsed: ParsedTurn
  said: Mapping[str, Any]
  responses: tuple[Mapping[str, Any], ...]
  first_call: int

  @property
  def calls(self) -> int:
    return len(self.parsed.attempts) if self.stopped else 0

  @property
  def fed(self) -> bool:
    return self.after > self.end

  @property
  def refused(self) -> bool:
    """Whether a budget's end was told to the agent."""
    texts = [r["text"] for r in self.responses]
    return CALLS_REFUSED in texts or (self.fed and RESULTS_REFUSED in texts)


def check_record(
  record: Any, chat: ChatFormat, tools: Sequence[Mapping] | None
) -> Iterator[Violation]:
  """All that is wrong with one record.

  Args:
    chat: the run's format.
    tools: schemas printed in the prompt, or None.
  """
  broken = list(_check_fields(record))
  yield from broken
  if broken:  # The others read these fields.
    return
  try:
    yield from _check_contents(record, chat, tools, Limits(**record["limits"]))
  except ValueError as error:
    yield Violation("prompt", f"the format cannot write these turns: {error}")


def cut_turns(record: Mapping, chat: ChatFormat) -> list[Turn] | None:
  """The sampled turns, by the mask; None where the record tells of more or fewer."""
  sampled = np.array([False, *(m == 1 for m in record["mask"]), False], np.int8)
  edges = np.flatnonzero(np.diff(sampled)).tolist()
  spans = list(zip(edges[::2], edges[1::2], strict=True))
  said = [i for i, turn in enumerate(record["turns"]) if turn["role"] == "assistant"]
  if len(spans) != len(said):
    return None
  turns: list[Turn] = []
  calls = 0
  afters = [begin for begin, _ in spans[1:]] + [len(record["tokens"])]
  for (begin, end), after, i in zip(spans, afters, said, strict=True):
    sampled = record["tokens"][begin:end]
    responses = itertools.takewhile(lambda t: t["role"] == "tool", record["turns"][i + 1 :])
    turns.append(
      Turn(
        begin, end, after, sampled[-1] in chat.stop_ids, chat.parse_turn(sampled),
        record["turns"][i], tuple(responses), calls,
      )
    )
    calls += turns[-1].calls
  return turns


def routing_summary(routing: Sequence[np.ndarray], experts: int) -> dict[str, int] | None:
  """What a record keeps of recorded experts, which are too many to be kept themselves.

  Args:
    routing: pieces [n, L, X], the experts of each token in each layer.
    experts: the model's.

  Returns:
    None where nothing was recorded.
  """
  if not routing:
    return None
  rows = np.sort(np.concatenate(routing), axis=-1)
  return {
    "rows": len(rows), "bits": 8 * rows.dtype.itemsize, "experts": experts,
    "least": int(rows.min(initial=0)),
    "most": int(rows.max(initial=0)),
    "repeated": int((rows[..., 1:] == rows[..., :-1]).any((-2, -1)).sum()),
  }


# ---- one check each ------------------------------------------------------------------------------


def _check_contents(record, chat, tools, limits):
  numbers = list(_check_numbers(record, chat, limits))
  yield from numbers
  if any(violation.kind == "token" for violation in numbers):  # Nothing to be read.
    return
  turns = cut_turns(record, chat)
  if turns is None:
    yield Violation("mask", "the mask's sampled turns are not as many as the assistant's turns")
    return
  yield from _check_prompt(record, chat, tools, turns)
  for turn in turns:
    yield from _check_turn(record, chat, limits, turn)
    yield from _check_responses(record, limits, turn)
    yield from _check_border(record, chat, limits, turn)
  yield from _check_history(record, chat, tools, turns)
  yield from _check_end(record, limits, turns)
  yield from _check_counts(record, limits, turns)
  yield from _check_routing(record)
  yield from _check_validity(record, limits)


def _check_fields(record):
  if not isinstance(record, dict):
    yield Violation("fields", f"expected an object, got {type(record).__name__}")
    return
  wrong = [name for name, kinds in FIELDS.items() if type(record.get(name)) not in kinds]
  for name in wrong:
    names = " or ".join(kind.__name__ for kind in FIELDS[name])
    found = str(record[name])[:40] if name in record else "no such field"
    yield Violation("fields", f'"{name}": expected {names}, got {found}')
  if wrong:
    return
  if not all(
    isinstance(turn, dict) and isinstance(turn.get("role"), str)
    and isinstance(turn.get("text"), str) for turn in record["turns"]
  ):
    yield Violation("fields", '"turns": expected objects with the texts "role" and "text"')
  parts = {"limits": [field.name for field in dataclasses.fields(Limits)], "routing": ROUTING}
  for name, known in parts.items():
    part = record.get(name)
    if name == "routing" and part is None:
      continue
    if not isinstance(part, dict) or sorted(part) != sorted(known) or not all(
      isinstance(value, int | float) for value in part.values()
    ):
      yield Violation("fields", f'"{name}": expected numbers named {", ".join(known)}')
  sizes = [len(record[name]) for name in ("tokens", "mask", "logp")]
  if len(set(sizes)) > 1:
    yield Violation("length", "{} tokens, {} in the mask, {} log-probs".format(*sizes))


def _check_numbers(record, chat, limits):
  for i, (token, sampled, logp) in enumerate(
    zip(record["tokens"], record["mask"], record["logp"], strict=True)
  ):
    if type(token) is not int or not 0 <= token < chat.vocab_size:
      yield Violation("token", f"expected an id below {chat.vocab_size}, got {token}", i)
    if sampled not in (0, 1):
      yield Violation("mask", f"expected 0 or 1, got {sampled}", i)
    elif not isinstance(logp, (int, float)) or not math.isfinite(logp) or logp > 0:
      yield Violation("logp", f"expected a finite log-probability, at most 0, got {logp}", i)
    elif not sampled and logp != 0:
      yield Violation("logp", f"expected 0 for a given token, got {logp}", i)
  if len(record["tokens"]) > limits.tokens:
    yield Violation(
      "token_budget", f"expected at most {limits.tokens} tokens, got {len(record['tokens'])}",
      limits.tokens,
    )


def _check_prompt(record, chat, tools, turns):
  end = turns[0].begin if turns else len(record["tokens"])
  if record["prompt_length"] != end:
    yield Violation(
      "prompt", f"prompt_length {record['prompt_length']}, sampled from {end} on", end
    )
  messages = _messages(
    itertools.takewhile(lambda t: t["role"] in ("system", "user"), record["turns"])
  )
  if not messages or messages[-1]["content"] != record["question"]:
    yield Violation("prompt", "the last message before the first turn is not the question")
    return
  yield from _difference(
    "prompt", chat.encode_prompt(messages, tools=tools), record["tokens"][:end], 0, chat
  )


def _check_turn(record, chat, limits, turn):
  sampled = record["tokens"][turn.begin : turn.end]
  past = next((i for i, token in enumerate(sampled[:-1]) if token in chat.stop_ids), None)
  if past is not None:
    yield Violation("turn_end", "tokens were sampled after the end of the turn", turn.begin + past)
  if turn.fed and not turn.stopped:
    yield Violation(
      "turn_end", f"expected a stop id at the turn's end, got {chat.decode(sampled[-1:])!r}",
      turn.end - 1,
    )
  if len(sampled) > limits.turn_tokens:
    yield Violation(
      "turn_budget", f"expected at most {limits.turn_tokens} tokens, got {len(sampled)}",
      turn.begin + limits.turn_tokens,
    )
  calls = [{"name": c.name, "arguments": c.arguments} for c in turn.parsed.calls]
  if (turn.parsed.content, calls) != (turn.said["text"], turn.said.get("calls")):
    yield Violation("text", "text or calls are not those of the sampled tokens", turn.begin)


def _check_responses(record, limits, turn):
  """One response a call, those over the budget refused, malformed ones told (FAULTS P5, P6)."""
  cut_off = record["stop"] in ("budget", "infra") and not turn.fed
  if len(turn.responses) != turn.calls and not (cut_off and not turn.responses):
    yield Violation(
      "responses", f"{turn.calls} calls, {len(turn.responses)} tool responses", turn.end
    )
    return
  for number, (attempt, response) in enumerate(
    zip(turn.parsed.attempts, turn.responses, strict=False), turn.first_call + 1
  ):
    text, over = response["text"], number > limits.calls
    if over and text not in (CALLS_REFUSED, RESULTS_REFUSED):
      yield Violation(
        "call_budget", f"call {number} of {limits.calls} allowed: expected the refusal, got "
        f"{text[:60]!r}", turn.end,
      )
    elif not over and text == CALLS_REFUSED:
      yield Violation(
        "call_budget", f"call {number} of {limits.calls} allowed was refused", turn.end
      )
    elif not over and isinstance(attempt, str) and text not in (attempt, RESULTS_REFUSED):
      yield Violation(
        "malformed", f"expected {attempt!r} as the response, got {text[:60]!r}", turn.end
      )


def _check_border(record, chat, limits, turn):
  """Between two turns stands what the format writes, and nothing else (FAULTS T5, T6)."""
  texts = [response["text"] for response in turn.responses]
  delta = chat.encode_tool_delta(texts) if texts else []
  given = record["tokens"][turn.end : turn.after]
  if not turn.fed:
    if record["stop"] == "context" and texts and limits.leave_room(turn.end + len(delta)):
      yield Violation("token_budget", "the tool response would have fitted", turn.end)
    return
  yield from _difference("border", delta, given, turn.end, chat)
  control = lambda ids: [i for i in ids if i in chat.control_ids]
  structure = control(chat.encode_tool_delta(["x"] * len(texts))) if texts else []
  if control(given) != structure:
    yield Violation("control", "a tool response holds control tokens", turn.end)
  if not limits.leave_room(turn.after):
    yield Violation(
      "token_budget", f"a tool response leaves {limits.tokens - turn.after} tokens to answer in",
      turn.after,
    )


def _check_history(record, chat, tools, turns):
  """The template, given the whole history, writes the ids that are stored (FAULTS T1, T2).

  Turns that the agent spelt otherwise than the format would are kept as sampled, so a history with
  one of them has nothing to be compared with.
  """
  written = [
    chat.encode_assistant(
      t.parsed.content, t.parsed.calls, t.parsed.thinking if chat.thinking else None
    ) == record["tokens"][t.begin : t.end] and not t.parsed.errors
    for t in turns[:-1]
  ]
  if not written or not all(written):
    return
  history = _messages(record["turns"])
  for message, turn in zip(
    (m for m in history if m["role"] == "assistant"), turns[:-1], strict=False
  ):
    message |= {"calls": list(turn.parsed.calls), "thinking": turn.parsed.thinking or None}
  last = max(i for i, m in enumerate(history) if m["role"] == "assistant")
  begin = turns[-1].begin
  yield from _difference(
    "prefix", chat.encode_prompt(history[:last], tools=tools), record["tokens"][:begin], 0, chat
  )


def _check_end(record, limits, turns):
  """Whether `stop`, `forced`, the answer and its length follow from the turns (FAULTS B2)."""
  stop, last = record["stop"], turns[-1] if turns else None
  told = [i for i, turn in enumerate(turns) if turn.refused]
  if record["forced"] != bool(told):
    yield Violation("forced", f"forced is {record['forced']}, {len(told)} turns were refused")
  if told and told[0] < len(turns) - 2:
    yield Violation(
      "forced", "more than one turn after the budget's end", turns[told[0] + 2].begin
    )
  if last is None:
    expected = "infra"
  elif not last.stopped:
    expected = "turn_length" if last.end - last.begin >= limits.turn_tokens else "context"
  elif not last.calls:
    expected = "answer"
  else:
    expected = "budget" if any(turn.refused for turn in turns[:-1]) else "context"
  if stop != expected and not (stop == "infra" and expected != "answer"):
    yield Violation("stop", f'expected stop "{expected}", got "{stop}"', last and last.end - 1)
  elif last and expected == "context" and not last.stopped and last.end != limits.tokens:
    yield Violation("turn_end", "ended without a stop id, within all limits", last.end - 1)
  answer = last.parsed.content if last and expected == "answer" else ""
  if record["final_answer"] != answer:
    yield Violation(
      "answer", f"expected final_answer {answer[:60]!r}, got {record['final_answer'][:60]!r}"
    )
  length = last.end - last.begin if last else 0
  if record["length"] != length:
    yield Violation("counts", f"expected length {length}, got {record['length']}")


def _check_counts(record, limits, turns):
  heard = [t for t in turns if t.stopped and not (record["stop"] == "budget" and t is turns[-1])]
  within = [t.parsed.attempts[: max(limits.calls - t.first_call, 0)] for t in heard]
  statuses = [r.get("status") for t in turns for r in t.responses]
  counted = {
    "tool_calls": sum(turn.calls for turn in turns),
    "tool_failures": statuses.count("infra_failure"),
    "malformed_calls": sum(isinstance(a, str) for attempts in within for a in attempts),
  }
  for name, count in counted.items():
    if record[name] != count:
      yield Violation("counts", f"expected {name} {count}, got {record[name]}")
  served = statuses.count("ok") + statuses.count("infra_failure")
  unseen = sum(r["text"] == RESULTS_REFUSED for t in turns for r in t.responses)
  if not served <= record["searches"] <= served + unseen:
    yield Violation("counts", f"expected searches {served}, got {record['searches']}")


def _check_routing(record):
  routing = record.get("routing")
  if not routing or record["stop"] == "infra":
    return
  tokens = len(record["tokens"])
  if routing["rows"] != tokens - 1:
    yield Violation(
      "routing", f"expected experts of all but the last of {tokens} tokens, got {routing['rows']}"
    )
  if routing["bits"] != 32:
    yield Violation("routing", f"expected ids of 32 bits, got {routing['bits']}")
  if not 0 <= routing["least"] <= routing["most"] < routing["experts"]:
    yield Violation(
      "routing", f"expected experts from 0 to {routing['experts'] - 1}, got "
      f"{routing['least']} to {routing['most']}"
    )
  if routing["repeated"]:
    yield Violation("routing", f"{routing['repeated']} tokens have an expert twice in a layer")


def _check_validity(record, limits):
  """An invalid rollout has a reason and no reward; too many failures make one invalid."""
  failed = record["tool_failures"] > limits.invalid_share * max(record["searches"], 1)
  if record["valid"] and (failed or record["stop"] == "infra"):
    yield Violation("invalid", "valid, although its search or its engine failed")
  if record["valid"] == bool(record["invalid_reason"]):
    yield Violation(
      "invalid", f"valid is {record['valid']}, invalid_reason {record['invalid_reason']!r}"
    )
  total = record["reward"].get("total")
  if record["valid"] != (isinstance(total, float | int) and math.isfinite(total)):
    yield Violation("invalid", f"valid is {record['valid']}, its reward {total}")
  if not record["valid"] and record["advantage"] != 0:
    yield Violation("invalid", f"expected advantage 0, got {record['advantage']}")


# ---- inside --------------------------------------------------------------------------------------


def _messages(turns) -> list[dict[str, Any]]:
  return [{"role": turn["role"], "content": turn["text"]} for turn in turns]


def _difference(kind, expected, got, start, chat):
  """A violation at the first token that differs."""
  if expected == got:
    return
  at = next(
    (i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b),
    min(len(expected), len(got)),
  )
  spell = lambda ids: repr(chat.decode(ids[at : at + SHOWN])) if ids[at:] else "the end"
  yield Violation(kind, f"expected {spell(expected)}, got {spell(got)}", start + at)
