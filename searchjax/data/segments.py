"""Conversations cut where a template would write their past in another way.  HOST.

Qwen3.5's template drops the thinking of earlier turns once the user speaks again, and with it the
empty block of turns that did not think. The turns after that were sampled behind the rewritten
past, those before it behind the full one: no single row of ids holds both. So a conversation
becomes segments, each a prompt and turns appended to it:

  [s u1 a1 tool a2 u2 a3]  ->  [s u1 | a1 tool a2],  [s u1 a1' tool a2' u2 | a3]

with ' for a turn without its thinking, and the loss on what follows the bar. Every turn is trained
once, behind the ids it was, or would be, sampled from. A format that only grows needs one segment.
"""

from collections.abc import Mapping, Sequence

from searchjax.data.chat import ChatFormat

Example = tuple[list[int], list[bool]]


def training_segments(
  chat: ChatFormat,
  messages: Sequence[Mapping],
  tools: Sequence[Mapping] | None = None,
  *,
  enable_thinking: bool | None = None,
) -> list[Example]:
  """The segments of one conversation.

  Args:
    chat: the format.
    messages: as for `ChatFormat.encode_conversation`.
    tools: schemas printed in the system block.
    enable_thinking: as for `ChatFormat.encode_prompt`.

  Returns:
    (ids, mask) pairs as `encode_conversation` makes them. A segment with no turn to train is left
    out.

  Raises:
    ValueError: as for `encode_conversation`; a turn to be trained that no prompt leads to.
  """
  read = chat.read_messages(messages)
  if not read or read[-1].role != "assistant":
    raise ValueError("a conversation must end with an assistant message")
  bounds: list[tuple[int, int]] = []
  for turn in chat.sampled_turns(read):
    since = read[bounds[-1][1]:turn] if bounds else []
    if bounds and (chat.only_grows or not any(map(chat.markup.is_query, since))):
      bounds[-1] = (bounds[-1][0], turn + 1)
    else:
      bounds.append((turn, turn + 1))
  examples = [
    chat.encode_conversation(messages[:stop], tools, enable_thinking=enable_thinking, start=start)
    for start, stop in bounds
  ]
  return [(ids, mask) for ids, mask in examples if any(mask)]


def training_examples(
  chat: ChatFormat,
  rows: Sequence[Sequence[Mapping]],
  tools: Sequence[Mapping] | None = None,
  *,
  enable_thinking: bool | None = None,
) -> list[Example]:
  """The segments of many conversations, in order.

  Raises:
    ValueError: as for `training_segments`; the row is named by its index.
  """
  examples = []
  for number, messages in enumerate(rows):
    try:
      examples += training_segments(chat, messages, tools, enable_thinking=enable_thinking)
    except ValueError as error:
      raise ValueError(f"row {number}, {error}") from error
  return examples
