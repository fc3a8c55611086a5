"""Messages and tool calls as records, read from the forms that data comes in.  PURE.

A message is `{"role", "content"}` with, on an assistant's, `"thinking"` (or `"reasoning_content"`)
and calls: `"calls"` holds ToolCall records, `"tool_calls"` OpenAI's form, whose arguments are an
object or a string of JSON. Both forms of arguments mean the same call.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """One call as the agent wrote it: tool name and typed arguments."""

  name: str
  arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Message:
  """One message.

  Attributes:
    role: one of ROLES.
    content: its text.
    calls: what an assistant called after the text.
    thinking: an assistant's reasoning, given apart from the text; None if it was not.
    train: False keeps an assistant's turn out of the loss mask.
  """

  role: str
  content: str = ""
  calls: tuple[ToolCall, ...] = ()
  thinking: str | None = None
  train: bool = True


def read_messages(messages: Sequence[Mapping]) -> list[Message]:
  """Messages as records.

  Args:
    messages: see the module; "content" is text, None, or a list of `{"type": "text", "text"}`,
      whose texts are joined.

  Raises:
    ValueError: an unknown role, content that is not text, a call without a name, arguments that
      are neither an object nor JSON of one. The message is named by its index.
  """
  read = []
  for i, message in enumerate(messages):
    try:
      read.append(_read_message(message))
    except ValueError as error:
      raise ValueError(f"message {i}: {error}") from error
  return read


def _read_message(message: Mapping) -> Message:
  role = message.get("role")
  if role not in ROLES:
    raise ValueError(f"unknown role {role!r}; expected one of {', '.join(ROLES)}")
  thinking = message.get("thinking")
  if thinking is None:
    thinking = message.get("reasoning_content")
  if not isinstance(thinking, str | None):
    raise ValueError(f"thinking must be text, got {type(thinking).__name__}")
  calls: list[Any] = []
  for name in ("calls", "tool_calls"):
    given = message.get(name) or ()
    if not isinstance(given, list | tuple):
      raise ValueError(f"{name} must be a list, got {type(given).__name__}")
    calls += given
  if role != "assistant" and (calls or thinking):
    raise ValueError(f"only an assistant calls tools or thinks, not the {role}")
  return Message(
    role, _text(message.get("content")), tuple(_read_call(call) for call in calls), thinking,
    bool(message.get("train", True)),
  )


def _text(content: Any) -> str:
  if content is None:
    return ""
  if isinstance(content, str):
    return content
  if not isinstance(content, list | tuple):
    raise ValueError(f"content must be text or a list of texts, got {type(content).__name__}")
  for part in content:
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
      raise ValueError(f"content may hold text only, got the part {str(part)[:60]}")
  return "".join(part["text"] for part in content)


def _read_call(call: Any) -> ToolCall:
  if isinstance(call, ToolCall):
    return call
  call = call.get("function", call) if isinstance(call, Mapping) else call
  if not isinstance(call, Mapping):
    raise ValueError(f"a tool call must be an object, got {str(call)[:60]!r}")
  name, arguments = call.get("name"), call.get("arguments", {})
  if not isinstance(name, str) or not name:
    raise ValueError(f"a tool call needs the tool's name, got {name!r}")
  if isinstance(arguments, str):
    try:
      arguments = json.loads(arguments)
    except (ValueError, RecursionError) as error:
      raise ValueError(
        f"the arguments of the call to {name} are not JSON ({error}): {arguments[:60]!r}"
      ) from error
  if not isinstance(arguments, Mapping):
    raise ValueError(
      f"the arguments of the call to {name} must be an object, got {str(arguments)[:60]!r}"
    )
  return ToolCall(name, dict(arguments))
