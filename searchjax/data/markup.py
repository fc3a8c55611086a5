"""What Qwen's chat markups have in common, and the names of their control tokens.  PURE.

A conversation is written as parts. *Markup* is written by this project and may yield control ids;
*plain* text comes from users, tools, the web and the agent, and never does.

Source   the chat templates published with Qwen3.5 and Qwen3-Instruct-2507.
"""

import abc
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

from searchjax.data.messages import Message, ToolCall

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
# Every control token that a turn can hold, wherever it stands in a longer added token.
MARKER = re.compile(
  r"</?tool_call>|</?think>|</?tool_response>|<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>"
)
_TOOL_NAME = re.compile(r"[^\s<>\"\\]+")


@dataclasses.dataclass(frozen=True)
class Part:
  """A piece of text, and whether this project wrote it as markup."""

  text: str
  markup: bool = False


def markup(text: str) -> Part:
  return Part(text, True)


class Markup(abc.ABC):
  """One way of writing turns, tools and calls.

  Attributes:
    name: what `ChatFormat` is asked for.
    thinks: turns have a thinking block.
    needs_query: a prompt must hold a user's query, and a system message must be the first.
    control: added tokens that the tokenizer must have.
  """

  name: str
  thinks: bool
  needs_query: bool
  control: tuple[str, ...]

  @abc.abstractmethod
  def system_block(self, system: str | None, tools: Sequence[Mapping]) -> list[Part]:
    """What stands before the turns; system is None if the conversation has no such message."""

  @abc.abstractmethod
  def opening(self, thinking: bool) -> str:
    """What precedes the agent's turn."""

  @abc.abstractmethod
  def calls(self, content: str, calls: Sequence[ToolCall]) -> list[Part]:
    """Calls as they follow the turn's text."""

  @abc.abstractmethod
  def read_call(self, body: str, schemas: Mapping[str, Mapping]) -> ToolCall | str:
    """The call between `<tool_call>` and `</tool_call>`, or "Error: ..." for the agent to read."""

  @abc.abstractmethod
  def tidy(self, text: str) -> str:
    """Text of a message as the template writes it."""

  @abc.abstractmethod
  def read(self, message: Message) -> Message:
    """The message with text and thinking just as the template writes them."""

  def is_query(self, message: Message) -> bool:
    """Whether a user speaks; a user message that wraps a tool response is none."""
    content = message.content.strip()
    wrapped = content.startswith("<tool_response>") and content.endswith("</tool_response>")
    return message.role == "user" and not wrapped

  def last_query(self, messages: Sequence[Message]) -> int:
    """Index of the last query; -1 if there is none."""
    return max((i for i, message in enumerate(messages) if self.is_query(message)), default=-1)

  def turns(self, messages: Sequence[Message], *, thinking_after: int) -> list[Part]:
    """Messages in writing, each up to the line break after `<|im_end|>`.

    Args:
      messages: as `read` made them, without a leading system message.
      thinking_after: assistant turns of higher index keep their thinking block.
    """
    parts: list[Part] = []
    for i, message in enumerate(messages):
      if message.role == "tool":
        first = i == 0 or messages[i - 1].role != "tool"
        last = i + 1 == len(messages) or messages[i + 1].role != "tool"
        parts += [
          markup((f"{START}user" if first else "") + "\n<tool_response>\n"), Part(message.content),
          markup("\n</tool_response>" + (f"{END}\n" if last else "")),
        ]
        continue
      parts.append(markup(f"{START}{message.role}\n"))
      if message.role == "assistant" and self.thinks and i > thinking_after:
        parts += [markup(f"{THINK_OPEN}\n"), Part(message.thinking or ""), *self.thinking_end()]
      parts += [Part(message.content), *self.calls(message.content, message.calls)]
      parts.append(markup(f"{END}\n"))
    return parts

  def thinking_end(self) -> list[Part]:
    """What stands between thinking and text."""
    return [markup(f"\n{THINK_CLOSE}\n\n")]


def as_json(value) -> str:
  """JSON as the templates write it."""
  return json.dumps(value, ensure_ascii=False)


def checked_name(name: str, kind: str) -> str:
  """The name of a tool or parameter, if it may stand in markup.

  Raises:
    ValueError: it is empty or holds white space, quotes, a backslash or an angle bracket.
  """
  if not _TOOL_NAME.fullmatch(name):
    raise ValueError(
      f"{kind} {name[:60]!r}: expected a name without white space, quotes, backslashes and angle "
      "brackets"
    )
  return name
