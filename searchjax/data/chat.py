"""Conversations as token ids: prompts, the agent's turns, and what comes between them.  HOST.

One class writes and reads every format for every tokenizer. Ids are only ever appended (SPEC 3,
"token ids in, token ids out"): nothing that was sampled is decoded and encoded again. Where a
published template would write an earlier turn in another way (Qwen3.5 drops thinking once the user
speaks again), a conversation is cut into segments instead: see `segments.py`.

Text is either *markup* (written here) or *plain* (users, search results, the agent's own words).
Control ids come from markup only; plain text that looks like `<|im_end|>` is spelt in ordinary
tokens and decodes to the same text.

Source   the chat templates published with Qwen3.5 and Qwen3-Instruct-2507.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers

from searchjax.data.markup import END, END_OF_TEXT, MARKER, Markup, Part, markup
from searchjax.data.messages import Message, ToolCall, read_messages
from searchjax.data.qwen3_5 import Qwen35
from searchjax.data.qwen3_instruct import Qwen3Instruct
from searchjax.data.turns import ParsedTurn, read_turn

STYLES: dict[str, Markup] = {m.name: m for m in (Qwen35(), Qwen3Instruct())}
# Vocabularies whose published template is known, by the id of <|endoftext|>: the first after the
# ordinary tokens. Any other tokenizer, the tiny one too, writes Qwen3.5's markup.
PUBLISHED = {248044: "qwen3_5", 151643: "qwen3_instruct"}

# What begins like a control token, and what breaks it without being seen.
_LOOKALIKE = re.compile(r"<(?=\||/?(?:tool_call|tool_response|think)>)")
_GUARDED = "<\u200b"


class ChatFormat:
  """Encodes and reads conversations for one tokenizer.

  Args:
    tokenizer: a `tokenizers.Tokenizer`, or a transformers fast tokenizer around one. It must know
      `<|im_start|>`, `<|im_end|>`, `<tool_call>`, `</tool_call>` and, for Qwen3.5's markup,
      `<think>` and `</think>` as added tokens. Longer added tokens that spell several lines of
      markup are used where they fit.
    tools: the tool schemas (OpenAI function format) against which calls are read; None means the
      project's search tool.
    style: "qwen3_5" or "qwen3_instruct"; None is the one published with the tokenizer's vocabulary
      (`PUBLISHED`), else "qwen3_5". Qwen3 models that think share the Instruct vocabulary but not
      its template, and have no style here.
    thinking: the agent thinks before it writes, unless a call says otherwise.
    preserve_thinking: True keeps the thinking block of every turn, so a conversation only grows;
      False drops those before the last query, as Qwen3.5's template does. None is False for a
      published vocabulary, True for any other. Without meaning where the style has no thinking.

  Attributes:
    markup: how turns are written.
    stop_ids: ids that end a sampled turn: `<|im_end|>`, and `<|endoftext|>` where there is one.
    control_ids: every id that only markup may yield.
    pad_id: the id to pad with (`<|endoftext|>`, or the end of a turn where there is none).
    vocab_size: number of ids in use; a model's padding rows begin here.
  """

  def __init__(
    self,
    tokenizer: Any,
    tools: Sequence[Mapping] | None = None,
    *,
    style: str | None = None,
    thinking: bool = False,
    preserve_thinking: bool | None = None,
  ):
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
    published = PUBLISHED.get(self._control_id.get(END_OF_TEXT, -1))
    style = style or published or Qwen35.name
    if style not in STYLES:
      raise ValueError(f"unknown chat style {style!r}; expected one of {', '.join(STYLES)}")
    self.markup = STYLES[style]
    missing = [text for text in self.markup.control if text not in self._control_id]
    if missing:
      raise ValueError(f"tokenizer lacks the added tokens {missing} of the {style} format")
    if thinking and not self.markup.thinks:
      raise ValueError(f"the {style} format has no thinking; got thinking=True")
    self.thinking = thinking
    self.preserve_thinking = preserve_thinking
    if preserve_thinking is None:
      self.preserve_thinking = published is None
    longest_first = sorted(self._control_id, key=len, reverse=True)
    self._control = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
    self._plain = _without_added_tokens(self.tokenizer)
    self._plain_size = self._plain.get_vocab_size()
    self.control_ids = frozenset(self._control_text)
    for sample in (" a\n\n b", *self._control_id):
      ids = self.encode_text(sample)
      if self._plain.decode(ids, skip_special_tokens=False) != sample or (
        self.control_ids.intersection(ids)
      ):
        raise ValueError(
          f"tokenizer does not spell plain text as it stands: {sample!r} gives ids {ids[:8]}; "
          "expected a byte-level tokenizer such as Qwen's"
        )
    self.stop_ids = tuple(
      self._control_id[text] for text in (END, END_OF_TEXT) if text in self._control_id
    )
    self.pad_id = self.stop_ids[-1]
    self.vocab_size = 1 + max(max(self._control_text), self._plain_size - 1)

  # ---- writing ---------------------------------------------------------------------------------

  @property
  def only_grows(self) -> bool:
    """Whether no later message changes how an earlier turn is written."""
    return self.preserve_thinking or not self.markup.thinks

  def read_messages(self, messages: Sequence[Mapping]) -> list[Message]:
    """Messages as this format writes them: trimmed, or with thinking taken out of the text.

    Raises:
      ValueError: see `messages.read_messages`; a system message that is not the first where the
        format allows none there.
    """
    read = [self.markup.read(message) for message in read_messages(messages)]
    for i, message in enumerate(read):
      if message.role == "system" and i and self.markup.needs_query:
        raise ValueError(f"message {i}: a system message must be the first")
    return read

  def encode_text(self, text: str) -> list[int]:
    """Encodes plain text: never a control id, whatever the text looks like."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates become "?"
    return self._plain.encode(text, add_special_tokens=False).ids if text else []

  def encode_prompt(
    self,
    messages: Sequence[Mapping],
    *,
    tools: Sequence[Mapping] | None = None,
    enable_thinking: bool | None = None,
    preserve_thinking: bool | None = None,
    add_generation_prompt: bool = True,
  ) -> list[int]:
    """Encodes a whole history, as the published template renders it.

    Args:
      messages: see `messages.py`.
      tools: schemas printed in the system block; None prints none.
      enable_thinking: True leaves the thinking block open for the agent, False closes it empty;
        None is the format's own `thinking`.
      preserve_thinking: as for the class; None is the format's own.
      add_generation_prompt: True ends with the opening of the agent's next turn.

    Raises:
      ValueError: see `read_messages`; no message, a tool message at the start, no user query where
        the format needs one.
    """
    read = self.read_messages(messages)
    parts = self._history(read, tools, preserve_thinking)
    if add_generation_prompt:
      parts.append(markup(self.markup.opening(self._thinks(enable_thinking))))
    return self._encode(parts)

  def encode_assistant(
    self, content: str, calls: Sequence[ToolCall] = (), thinking: str | None = None
  ) -> list[int]:
    """Encodes what the agent itself writes after an opening, ending in `<|im_end|>`.

    Args:
      content: the visible text; trimmed where the format trims.
      calls: calls that follow the text.
      thinking: None after an opening without thinking; else the text put before `</think>`.
    """
    return self._encode(self._written(self.markup.tidy(content), calls, thinking))

  def encode_tool_delta(
    self, responses: Sequence[str], *, enable_thinking: bool | None = None
  ) -> list[int]:
    """Encodes tool responses: all that stands between a sampled `<|im_end|>` and the next turn."""
    if not responses:
      raise ValueError("a tool turn needs at least one response, got none")
    messages = [Message("tool", self.markup.tidy(response)) for response in responses]
    return self._delta(messages, self._thinks(enable_thinking))

  def encode_user_delta(self, text: str, *, enable_thinking: bool | None = None) -> list[int]:
    """Encodes a further user message after a sampled `<|im_end|>`, up to the agent's next turn.

    Raises:
      ValueError: the format writes earlier turns in another way once the user speaks again.
    """
    message = Message("user", self.markup.tidy(text))
    if self.markup.is_query(message) and not self.only_grows:
      raise ValueError(
        f"a new user message drops earlier thinking in the {self.markup.name} format: encode a "
        "new prompt, or make the format with preserve_thinking=True"
      )
    return self._delta([message], self._thinks(enable_thinking))

  def encode_alternative(self, content: str) -> list[int]:
    """Encodes another whole answer to the same prompt, to stand after a finished one."""
    parts = [markup("\n" + self.markup.opening(False)), Part(self.markup.tidy(content))]
    return self._encode([*parts, markup(END)])

  def encode_written(self, text: str) -> list[int]:
    """Encodes a turn that a server wrote and returned as text: control tokens in it are real."""
    return self._encode([markup(text)])

  def turn_suffix(self, sampled: Sequence[int]) -> list[int]:
    """Ids to append so that a sampled turn is closed; the agent did not write them (mask False)."""
    return [] if sampled and sampled[-1] in self.stop_ids else [self.stop_ids[0]]

  def encode_conversation(
    self,
    messages: Sequence[Mapping],
    tools: Sequence[Mapping] | None = None,
    *,
    enable_thinking: bool | None = None,
    start: int | None = None,
  ) -> tuple[list[int], list[bool]]:
    """Encodes a finished conversation exactly as a rollout would have built it.

    Args:
      messages: as for `encode_prompt`; the last one is the assistant's. An assistant message with
        `"train": False` is part of the text but not of the mask.
      tools: schemas printed in the system block.
      enable_thinking: as for `encode_prompt`.
      start: index of the assistant message from which turns are appended; what precedes it is
        the prompt. None is the first that can have been sampled.

    Returns:
      (ids, mask): mask is True on the tokens the agent wrote, its thinking and `<|im_end|>`
      included.

    Raises:
      ValueError: as for `encode_prompt`; the last message is not the assistant's, two assistant
        messages in a row, a turn with thinking while thinking is off, or a user message after
        `start` that makes the format write earlier turns in another way (see `segments.py`).
    """
    thinks = self._thinks(enable_thinking)
    read = self.read_messages(messages)
    if not read or read[-1].role != "assistant":
      raise ValueError("a conversation must end with an assistant message")
    if start is None:
      start = next(iter(self.sampled_turns(read)), len(read) - 1)
    parts = self._history(read[:start], tools, None)
    ids = self._encode([*parts, markup(self.markup.opening(thinks))])
    mask = [False] * len(ids)
    turns = [i for i, message in enumerate(read) if i >= start and message.role == "assistant"]
    for number, i in enumerate(turns):
      message = read[i]
      if message.thinking and not thinks:
        raise ValueError(
          f"message {i}: has thinking, but thinking is off for this conversation; turn it on or "
          "leave the thinking out"
        )
      thinking = (message.thinking or "") if thinks else None
      written = self._encode(self._written(message.content, message.calls, thinking))
      ids += written
      mask += [message.train] * len(written)
      if number + 1 < len(turns):
        between = read[i + 1:turns[number + 1]]
        if not between:
          raise ValueError(f"message {i + 1}: two assistant messages in a row")
        if not self.only_grows and any(map(self.markup.is_query, between)):
          raise ValueError(
            f"message {i + 1}: the user speaks again, which drops earlier thinking in the "
            f"{self.markup.name} format; use training_segments, or preserve_thinking=True"
          )
        delta = self._delta(between, thinks)
        ids += delta
        mask += [False] * len(delta)
    return ids, mask

  def sampled_turns(self, messages: Sequence[Message]) -> list[int]:
    """Indices of the assistant messages before which a prompt can stand.

    Raises:
      ValueError: a turn that is to be trained is none of them.
    """
    first = 1
    if self.markup.needs_query:
      first += next((i for i, m in enumerate(messages) if self.markup.is_query(m)), len(messages))
    turns = [i for i, message in enumerate(messages) if message.role == "assistant"]
    for i in turns:
      if i < first and messages[i].train:
        raise ValueError(
          f"message {i}: no user query precedes this turn, so no prompt could have led to it; "
          'set its "train" to False to keep it as context'
        )
    return [i for i in turns if i >= first]

  # ---- reading ---------------------------------------------------------------------------------

  def decode(self, ids: Sequence[int]) -> str:
    """The text of ids, control tokens spelt out. Bytes that are not UTF-8 read as U+FFFD."""
    return "".join(text for text, _ in self._runs(ids))

  def decode_guarded(self, ids: Sequence[int]) -> str:
    """The text of ids for a server that takes text alone: what only looks like a control token is
    broken by a zero-width space, so that the server reads none there (SPEC 3)."""
    return "".join(
      text if control else _LOOKALIKE.sub(_GUARDED, text) for text, control in self._runs(ids)
    )

  def parse_turn(self, ids: Sequence[int], *, in_thinking: bool | None = None) -> ParsedTurn:
    """Reads what the agent sampled in one turn.

    Args:
      ids: the sampled ids; what follows the first stop id is ignored.
      in_thinking: True if the opening left the thinking block open; None is the format's own
        `thinking`.

    Returns:
      A ParsedTurn. Anything malformed (an unclosed or nested call, a call spelt in plain text, a
      control token that has no place in a turn, arguments against the schema) is an error there.
    """
    stop = next((i for i, token in enumerate(ids) if token in self.stop_ids), len(ids))
    return read_turn(
      self._events(ids[:stop]), self.markup, self._schemas, in_thinking=self._thinks(in_thinking)
    )

  # ---- inside ----------------------------------------------------------------------------------

  def _thinks(self, enable_thinking: bool | None) -> bool:
    thinks = self.thinking if enable_thinking is None else enable_thinking
    if thinks and not self.markup.thinks:
      raise ValueError(f"the {self.markup.name} format has no thinking; got enable_thinking=True")
    return thinks

  def _history(
    self, read: Sequence[Message], tools: Sequence[Mapping] | None, preserve: bool | None
  ) -> list[Part]:
    if not read or read[0].role == "tool":
      raise ValueError("a conversation must begin with a system, user or assistant message")
    query = self.markup.last_query(read)
    if query < 0 and self.markup.needs_query:
      raise ValueError("expected at least one user message, got none")
    preserve = self.preserve_thinking if preserve is None else preserve
    leading = int(read[0].role == "system")
    system = read[0].content if leading else None
    return self.markup.system_block(system, tools or ()) + self.markup.turns(
      read[leading:], thinking_after=-1 if preserve else query - leading
    )

  def _written(
    self, content: str, calls: Sequence[ToolCall], thinking: str | None
  ) -> list[Part]:
    parts = []
    if thinking is not None:
      self._thinks(True)
      parts = [Part(thinking.strip()), *self.markup.thinking_end()]
    return [*parts, Part(content), *self.markup.calls(content, calls), markup(END)]

  def _delta(self, between: Sequence[Message], thinks: bool) -> list[int]:
    """What stands between a sampled `<|im_end|>` and the agent's next turn."""
    turns = self.markup.turns(between, thinking_after=len(between))
    return self._encode([markup("\n"), *turns, markup(self.markup.opening(thinks))])

  def _encode(self, parts: Sequence[Part]) -> list[int]:
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
      written = ""
      while at < len(parts) and parts[at].markup:
        written += parts[at].text
        at += 1
      for piece in self._control.split(written):
        if piece in self._control_id:
          runs.append(self._control_id[piece])
        else:
          plain(piece)
    ids: list[int] = []
    for run in runs:
      ids += [run] if isinstance(run, int) else self.encode_text(run)
    return ids

  def _runs(self, ids: Sequence[int]) -> Iterator[tuple[str, bool]]:
    """(text, is control) for runs of ids."""
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

  def _events(self, ids: Sequence[int]) -> Iterator[tuple[str, str]]:
    """(text, "plain" | "marker" | "stray"); a long control token yields all its parts."""
    for text, control in self._runs(ids):
      if not control:
        yield text, "plain"
        continue
      at = 0
      for match in MARKER.finditer(text):
        if match.start() > at:
          yield text[at:match.start()], "plain"
        yield match.group(), "marker"
        at = match.end()
      if at == 0:
        yield text, "stray"
      elif at < len(text):
        yield text[at:], "plain"


def template_style(template: str, source: str) -> str:
  """The style that writes what a chat template writes, told by the template's own words.

  Args:
    template: the template's text.
    source: where it stands, for the error.

  Raises:
    ValueError: none does; Qwen3 models that think, Qwen3.6 and Qwen2.5 are such.
  """
  if "<function=" in template and "preserve_thinking" not in template:
    return "qwen3_5"
  json_calls = '"arguments' in template and "<tool_call>" in template
  other = ("<function=", "<think>", "<|vision_start|>", "You are Qwen")
  if json_calls and not any(words in template for words in other):
    return "qwen3_instruct"
  raise ValueError(
    f"{source}: its chat template is neither Qwen3.5's nor Qwen3-Instruct-2507's; name the style "
    f"to use all the same, one of {', '.join(STYLES)}"
  )


def _without_added_tokens(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """The same model and cutting of text, with no added token, template, truncation or padding."""
  plain = tokenizers.Tokenizer(tokenizer.model)
  for part in ("normalizer", "pre_tokenizer", "decoder"):
    if getattr(tokenizer, part) is not None:
      setattr(plain, part, getattr(tokenizer, part))
  return plain
