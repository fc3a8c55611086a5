"""Conversations as token ids, in Qwen3.5's chat and tool-call format.  HOST.

One module writes and reads the format for every tokenizer: prompts, what the agent writes, what
comes between two of its turns, and the reading of a sampled turn.  Ids are only ever appended
(SPEC 3, "token ids in, token ids out"): nothing that was sampled is decoded and encoded again.

Text is either *markup* (written here) or *plain* (users, search results, the agent's own words).
Control ids come from markup only; plain text that looks like `<|im_end|>` is spelt in ordinary
tokens and decodes to the same text.

Source   the chat template published with Qwen3.5 (system block with tools, XML calls, tool results
         inside user turns, thinking kept after the last user query only).
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
NO_THINKING = "<think>\n\n</think>\n\n"

_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_MARKER = re.compile(
  r"</?tool_call>|</?think>|</?tool_response>|<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>"
)
_FUNCTION = re.compile(r"\A\s*<function=([^>\n]+)>\n?(.*)</function>\s*\Z", re.DOTALL)
_PARAMETER = re.compile(
  r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL
)

_TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
_TOOLS_TAIL = """
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must \
be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the \
function call, but NOT after
- If there is no function call available, answer the question like normal with your current \
knowledge and do not tell the user about function calls
</IMPORTANT>"""


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """One call as the agent wrote it: tool name and typed arguments."""

  name: str
  arguments: dict[str, Any]


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


@dataclasses.dataclass(frozen=True)
class _Part:
  text: str
  markup: bool


class ChatFormat:
  """Encodes and reads conversations for one tokenizer.

  Args:
    tokenizer: a `tokenizers.Tokenizer`, or a transformers fast tokenizer around one. It must know
      `<|im_start|>`, `<|im_end|>`, `<tool_call>` and `<think>` (with their closing forms) as added
      tokens. Longer added tokens that spell several lines of markup are used where they fit.
    tools: the tool schemas (OpenAI function format) against which calls are read; None means the
      project's search tool.

  Attributes:
    stop_ids: ids that end a sampled turn.
    control_ids: every id that only markup may yield.
    pad_id: the id to pad with (`<|endoftext|>`, or the end of a turn where there is none).
    vocab_size: number of ids in use; a model's padding rows begin here.
  """

  def __init__(self, tokenizer: Any, tools: Sequence[Mapping] | None = None):
    self.tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(self.tokenizer, tokenizers.Tokenizer):
      raise ValueError(
        f"expected a tokenizers.Tokenizer or a fast transformers tokenizer, got {type(tokenizer)}"
      )
    if tools is None:
      from searchjax.search.tool import SEARCH_WEB  # here: reading text needs no HTTP client
      tools = (SEARCH_WEB,)
    self._schemas = {t.get("function", t)["name"]: t.get("function", t) for t in tools}
    added = self.tokenizer.get_added_tokens_decoder()
    self._control_text = {i: token.content for i, token in added.items()}
    self._control_id = {text: i for i, text in self._control_text.items()}
    wanted = ("<|im_start|>", END, _CALL_OPEN, _CALL_CLOSE, _THINK_OPEN, _THINK_CLOSE)
    missing = [text for text in wanted if text not in self._control_id]
    if missing:
      raise ValueError(f"tokenizer lacks the added tokens {missing} of the Qwen3.5 format")
    longest_first = sorted(self._control_id, key=len, reverse=True)
    self._control = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
    description = json.loads(self.tokenizer.to_str())
    description["added_tokens"] = []
    description["post_processor"] = None
    self._plain = tokenizers.Tokenizer.from_str(json.dumps(description))
    self._plain_size = self._plain.get_vocab_size()
    self.control_ids = frozenset(self._control_text)
    self.stop_ids = tuple(
      self._control_id[text] for text in (END, END_OF_TEXT) if text in self._control_id
    )
    self.pad_id = self.stop_ids[-1]
    self.vocab_size = 1 + max(max(self._control_text), self._plain_size - 1)

  # ---- writing ---------------------------------------------------------------------------------

  def encode_text(self, text: str) -> list[int]:
    """Encodes plain text: never a control id, whatever the text looks like."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates become "?"
    return self._plain.encode(text, add_special_tokens=False).ids if text else []

  def encode_prompt(
    self,
    messages: Sequence[Mapping],
    *,
    tools: Sequence[Mapping] | None = None,
    enable_thinking: bool = False,
    preserve_thinking: bool = False,
  ) -> list[int]:
    """Encodes a whole history with the opening of the agent's next turn.

    Args:
      messages: `{"role", "content", "calls", "thinking"}`; a system message only first; "calls"
        and "thinking" are optional and belong to the assistant.
      tools: schemas printed in the system block; None prints none.
      enable_thinking: True leaves the thinking block open for the agent, False closes it empty.
      preserve_thinking: True keeps the thinking block of assistant turns before the last user
        query, as a growing conversation has it; False drops it, as Qwen3.5's template does.

    Raises:
      ValueError: no user message, a system message that is not first, an unknown role.
    """
    parts = self._history(messages, tools, preserve_thinking)
    parts.append(_Part(_opening(enable_thinking), True))
    return self._encode(parts)

  def encode_assistant(
    self, content: str, calls: Sequence[ToolCall] = (), thinking: str | None = None
  ) -> list[int]:
    """Encodes what the agent itself writes after an opening, ending in `<|im_end|>`.

    Args:
      content: the visible text; trimmed.
      calls: calls that follow the text.
      thinking: None after an opening without thinking; else the text put before `</think>`.
    """
    parts = []
    if thinking is not None:
      parts += [_Part(thinking.strip(), False), _Part("\n</think>\n\n", True)]
    parts += _turn(content, calls) + [_Part(END, True)]
    return self._encode(parts)

  def encode_tool_delta(
    self, responses: Sequence[str], *, enable_thinking: bool = False
  ) -> list[int]:
    """Encodes tool responses: all that stands between a sampled `<|im_end|>` and the next turn."""
    if not responses:
      raise ValueError("a tool turn needs at least one response, got none")
    parts = [_Part("\n", True), *_tool_turn(responses), _Part(END + "\n", True)]
    return self._encode([*parts, _Part(_opening(enable_thinking), True)])

  def encode_user_delta(self, text: str, *, enable_thinking: bool = False) -> list[int]:
    """Encodes a further user message after a sampled `<|im_end|>`, up to the agent's next turn."""
    parts = [_Part("\n<|im_start|>user\n", True), _Part(text.strip(), False)]
    return self._encode([*parts, _Part(END + "\n" + _opening(enable_thinking), True)])

  def encode_alternative(self, content: str) -> list[int]:
    """Encodes another whole answer to the same prompt, to stand after a finished one."""
    return self._encode([
      _Part("\n" + _opening(False), True), _Part(content.strip(), False), _Part(END, True)
    ])

  def turn_suffix(self, sampled: Sequence[int]) -> list[int]:
    """Ids to append so that a sampled turn is closed; the agent did not write them (mask False)."""
    return [] if sampled and sampled[-1] in self.stop_ids else [self.stop_ids[0]]

  def encode_conversation(
    self,
    messages: Sequence[Mapping],
    tools: Sequence[Mapping] | None = None,
    *,
    enable_thinking: bool = False,
  ) -> tuple[list[int], list[bool]]:
    """Encodes a finished conversation exactly as a rollout would have built it.

    Args:
      messages: as for `encode_prompt`; the last one is the assistant's. An assistant message with
        `"train": False` is part of the text but not of the mask.
      tools: schemas printed in the system block.
      enable_thinking: as for `encode_prompt`.

    Returns:
      (ids, mask): mask is True on the tokens the agent wrote, their `<|im_end|>` included.
    """
    first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), None)
    if first is None or messages[-1]["role"] != "assistant":
      raise ValueError("a conversation must end with an assistant message")
    ids = self.encode_prompt(messages[:first], tools=tools, enable_thinking=enable_thinking)
    mask = [False] * len(ids)
    at = first
    while at < len(messages):
      message = messages[at]
      thinking = (message.get("thinking") or "") if enable_thinking else None
      written = self.encode_assistant(
        message.get("content") or "", message.get("calls") or (), thinking
      )
      ids += written
      mask += [bool(message.get("train", True))] * len(written)
      at += 1
      between: list[int] = []
      if at < len(messages) and messages[at]["role"] == "tool":
        responses = []
        while at < len(messages) and messages[at]["role"] == "tool":
          responses.append(messages[at]["content"])
          at += 1
        between = self.encode_tool_delta(responses, enable_thinking=enable_thinking)
      elif at < len(messages) and messages[at]["role"] == "user":
        between = self.encode_user_delta(messages[at]["content"], enable_thinking=enable_thinking)
        at += 1
      if at < len(messages) and messages[at]["role"] != "assistant":
        raise ValueError(
          f"message {at}: expected an assistant message, got {messages[at]['role']!r}"
        )
      if at < len(messages) and not between:
        raise ValueError(f"message {at}: two assistant messages in a row")
      ids += between
      mask += [False] * len(between)
    return ids, mask

  # ---- reading ---------------------------------------------------------------------------------

  def decode(self, ids: Sequence[int]) -> str:
    """The text of ids, control tokens spelt out. Bytes that are not UTF-8 read as U+FFFD."""
    return "".join(text for text, _ in self._segments(ids))

  def parse_turn(self, ids: Sequence[int], *, in_thinking: bool = False) -> ParsedTurn:
    """Reads what the agent sampled in one turn.

    Args:
      ids: the sampled ids; what follows the first stop id is ignored.
      in_thinking: True if the opening left the thinking block open.

    Returns:
      A ParsedTurn. Anything malformed (an unclosed or nested call, a call spelt in plain text, a
      control token that has no place in a turn, arguments against the schema) is an error there.
    """
    stop = next((i for i, token in enumerate(ids) if token in self.stop_ids), len(ids))
    pieces, thinking, attempts = [], [], []
    state = "think" if in_thinking else "text"
    call: list[str] = []
    disorder: list[str] = []  # what is wrong with the turn's structure; the first is reported
    for text, kind in self._events(ids[:stop]):
      if kind == "plain":
        {"text": pieces, "think": thinking, "call": call}[state].append(text)
      elif kind == "stray":
        disorder.append(f"Error: {text} has no place here.")
      elif text == _THINK_OPEN and state == "text":
        state = "think"
      elif text == _THINK_CLOSE and state == "think":
        state = "text"
      elif text == _CALL_OPEN and state == "text":
        state, call = "call", []
      elif text == _CALL_CLOSE and state == "call":
        attempts.append(self._read_call("".join(call)))
        state = "text"
      else:
        disorder.append(f"Error: {text} has no place here.")
    if state == "call":
      disorder.append("Error: the call is not closed.")
    if state == "think":
      disorder.append("Error: the thinking is not closed.")
    content = "".join(pieces).strip()
    if _CALL_OPEN in content:
      disorder.append("Error: a call in plain text.")
    attempts += disorder[:1]
    return ParsedTurn(
      content=content,
      calls=tuple(a for a in attempts if isinstance(a, ToolCall)),
      errors=tuple(a for a in attempts if isinstance(a, str)),
      thinking="".join(thinking).strip(),
      attempts=tuple(attempts),
    )

  # ---- inside ----------------------------------------------------------------------------------

  def _history(self, messages, tools, preserve_thinking) -> list[_Part]:
    if not any(m["role"] == "user" for m in messages):
      raise ValueError("expected at least one user message, got none")
    last_query = max(i for i, m in enumerate(messages) if m["role"] == "user")
    system = messages[0]["content"].strip() if messages[0]["role"] == "system" else None
    parts: list[_Part] = []
    if tools:
      lines = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
      block = _TOOLS_HEAD + lines + _TOOLS_TAIL
      # The block quotes `<tool_call>` as the published template does, so it is markup too.
      parts += [_Part("<|im_start|>system\n" + block, True)]
      if system:
        parts += [_Part("\n\n", True), _Part(system, False)]
      parts += [_Part(END + "\n", True)]
    elif system is not None:
      parts += [_Part("<|im_start|>system\n", True), _Part(system, False), _Part(END + "\n", True)]
    for i, message in enumerate(messages):
      role, content = message["role"], message.get("content") or ""
      if role == "system":
        if i:
          raise ValueError(f"message {i}: a system message must be the first")
      elif role == "user":
        parts += [_Part("<|im_start|>user\n", True), _Part(content.strip(), False)]
        parts += [_Part(END + "\n", True)]
      elif role == "assistant":
        parts += [_Part("<|im_start|>assistant\n", True)]
        if preserve_thinking or i > last_query:
          parts += [_Part("<think>\n", True), _Part((message.get("thinking") or "").strip(), False)]
          parts += [_Part("\n</think>\n\n", True)]
        parts += _turn(content, message.get("calls") or ()) + [_Part(END + "\n", True)]
      elif role == "tool":
        if i == 0 or messages[i - 1]["role"] != "tool":
          following = messages[i:]
          end = next((j for j, m in enumerate(following) if m["role"] != "tool"), len(following))
          parts += _tool_turn([m["content"] for m in following[:end]]) + [_Part(END + "\n", True)]
      else:
        raise ValueError(f"message {i}: unknown role {role!r}")
    return parts

  def _encode(self, parts: Sequence[_Part]) -> list[int]:
    """Ids of parts. Neighbouring plain runs are encoded together, so ids are the ordinary ones."""
    runs: list[str | int] = []

    def plain(text: str):
      if not text:
        return
      if runs and isinstance(runs[-1], str):
        runs[-1] += text
      else:
        runs.append(text)

    at = 0
    parts = [part for part in parts if part.text]
    while at < len(parts):
      if not parts[at].markup:
        plain(parts[at].text)
        at += 1
        continue
      markup = ""
      while at < len(parts) and parts[at].markup:
        markup += parts[at].text
        at += 1
      for piece in self._control.split(markup):
        if piece in self._control_id:
          runs.append(self._control_id[piece])
        else:
          plain(piece)
    ids: list[int] = []
    for run in runs:
      ids += [run] if isinstance(run, int) else self.encode_text(run)
    return ids

  def _segments(self, ids: Sequence[int]):
    """Yields (text, is control) for runs of ids."""
    run: list[int] = []
    for token in map(int, ids):
      if token in self._control_text or not 0 <= token < self._plain_size:
        if run:
          yield self._plain.decode(run, skip_special_tokens=False), False
          run = []
        yield self._control_text.get(token, f"<unused id {token}>"), True
      else:
        run.append(token)
    if run:
      yield self._plain.decode(run, skip_special_tokens=False), False

  def _events(self, ids: Sequence[int]):
    """Yields (text, "plain" | "marker" | "stray"); a long control token yields all its parts."""
    for text, control in self._segments(ids):
      if not control:
        yield text, "plain"
        continue
      at = 0
      for match in _MARKER.finditer(text):
        if match.start() > at:
          yield text[at:match.start()], "plain"
        yield match.group(), "marker"
        at = match.end()
      if at == 0:
        yield text, "stray"
      elif at < len(text):
        yield text[at:], "plain"

  def _read_call(self, body: str) -> ToolCall | str:
    function = _FUNCTION.match(body)
    if not function:
      return "Error: a call needs <function=name>."
    name, inside = function.group(1).strip(), function.group(2)
    schema = self._schemas.get(name)
    if schema is None:
      return f"Error: no tool {name}."
    properties = schema.get("parameters", {}).get("properties", {})
    arguments: dict[str, Any] = {}
    at = 0
    while inside[at:].strip():
      parameter = _PARAMETER.match(inside, at)
      if not parameter:
        return "Error: a parameter is not closed."
      key, value = parameter.group(1).strip(), parameter.group(2)
      if key not in properties:
        return f"Error: no parameter {key}."
      if key in arguments:
        return f"Error: {key} is given twice."
      try:
        arguments[key] = _typed(value, properties[key].get("type", "string"))
      except ValueError:
        return f"Error: {key} must be {properties[key]['type']}."
      at = parameter.end()
    for key in schema.get("parameters", {}).get("required", ()):
      if key not in arguments:
        return f"Error: no {key} given."
    return ToolCall(name, arguments)


def _opening(enable_thinking: bool) -> str:
  return "<|im_start|>assistant\n" + ("<think>\n" if enable_thinking else NO_THINKING)


def _tool_turn(responses: Sequence[str]) -> list[_Part]:
  parts = [_Part("<|im_start|>user", True)]
  for response in responses:
    parts += [_Part("\n<tool_response>\n", True), _Part(response.strip(), False)]
    parts += [_Part("\n</tool_response>", True)]
  return parts


def _turn(content: str, calls: Sequence[ToolCall]) -> list[_Part]:
  content = content.strip()
  parts = [_Part(content, False)]
  for i, call in enumerate(calls):
    lead = ("\n\n" if content else "") if i == 0 else "\n"
    parts += [_Part(f"{lead}<tool_call>\n<function={call.name}>\n", True)]
    for key, value in call.arguments.items():
      as_json = isinstance(value, (dict, list, tuple))
      text = json.dumps(value, ensure_ascii=False) if as_json else str(value)
      parts += [_Part(f"<parameter={key}>\n", True), _Part(text, False)]
      parts += [_Part("\n</parameter>\n", True)]
    parts += [_Part("</function>\n</tool_call>", True)]
  return parts


def _typed(value: str, kind: str) -> Any:
  """Casts a parameter's text to its schema type; both Python's and JSON's constants are read."""
  if kind == "string":
    return value
  text = {"True": "true", "False": "false", "None": "null"}.get(value.strip(), value.strip())
  result = json.loads(text)  # a JSONDecodeError is a ValueError
  kinds = {
    "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list
  }
  wrong_bool = isinstance(result, bool) and kind != "boolean"
  if kind in kinds and (wrong_bool or not isinstance(result, kinds[kind])):
    raise ValueError(f"expected {kind}, got {value!r}")
  return result
