"""A sampled turn, read: text, thinking, calls, and what is wrong with it.  PURE.

Whatever is malformed becomes an error that the agent reads as a tool response: it is never a call,
never dropped, and a turn that holds one is never an answer.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from searchjax.data.markup import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN, Markup
from searchjax.data.messages import ToolCall


@dataclasses.dataclass(frozen=True)
class ParsedTurn:
  """A sampled turn, read.

  Attributes:
    content: what a user reads: no thinking, no calls, trimmed.
    calls: the well-formed calls, in written order.
    errors: one short reason per malformed call, and one if the turn as a whole is out of order. A
      turn with errors is never an answer.
    thinking: the text of the thinking block, trimmed.
    attempts: calls and errors together, in written order; each wants one tool response.
  """

  content: str
  calls: tuple[ToolCall, ...] = ()
  errors: tuple[str, ...] = ()
  thinking: str = ""
  attempts: tuple[ToolCall | str, ...] = ()


def read_turn(
  events: Iterable[tuple[str, str]], markup: Markup, schemas: Mapping[str, Mapping], *,
  in_thinking: bool,
) -> ParsedTurn:
  """Reads a turn from its pieces.

  Args:
    events: (text, kind) in order; kind is "plain", "marker" (one of `markup.MARKER`) or "stray" (a
      control token that belongs to no turn).
    markup: how calls are written.
    schemas: by tool name, its schema.
    in_thinking: True if the opening left the thinking block open.
  """
  pieces, thinking, attempts = [], [], []
  state = "think" if in_thinking else "text"
  call: list[str] = []
  disorder: list[str] = []  # what is wrong with the turn's structure; the first is reported
  for text, kind in events:
    if kind == "plain":
      {"text": pieces, "think": thinking, "call": call}[state].append(text)
    elif kind == "stray":
      disorder.append(f"Error: {text} has no place here.")
    elif text == THINK_OPEN and state == "text" and markup.thinks:
      state = "think"
    elif text == THINK_CLOSE and state == "think":
      state = "text"
    elif text == CALL_OPEN and state == "text":
      state, call = "call", []
    elif text == CALL_CLOSE and state == "call":
      attempts.append(markup.read_call("".join(call), schemas))
      state = "text"
    else:
      disorder.append(f"Error: {text} has no place here.")
  if state == "call":
    disorder.append("Error: the call is not closed.")
  if state == "think":
    disorder.append("Error: the thinking is not closed.")
  content = "".join(pieces).strip()
  if CALL_OPEN in content:
    disorder.append("Error: a call in plain text.")
  attempts += disorder[:1]
  return ParsedTurn(
    content=content,
    calls=tuple(a for a in attempts if isinstance(a, ToolCall)),
    errors=tuple(a for a in attempts if isinstance(a, str)),
    thinking="".join(thinking).strip(),
    attempts=tuple(attempts),
  )
