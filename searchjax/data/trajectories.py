"""Tool-use conversations in the layouts they are published in, as `messages` and `tools`.  HOST.

Read are messages (OpenAI's form, or Qwen's and Hermes's calls written into the text), ShareGPT,
items of OpenAI's Responses API, and Search-R1's tags:

  <think>…</think> <tool_call>{"name": …, "arguments": …}</tool_call>         Hermes, Qwen JSON
  <think>…</think> <tool_call><function=…><parameter=…>…</tool_call>          Qwen XML
  <think>…</think> <search>…</search> <information>…</information> <answer>…  Search-R1

Every turn is checked: roles in order, calls well formed, of a declared tool and answered once
each, thinking closed. A conversation with anything else is a problem that names the turn; it is
never mended in silence. Every assistant turn is trained (FAULTS T9, T11) unless the caller says
otherwise, behind a prompt that shows the tools (M5).

Spec     1.1 (tool-use trajectories in production format).
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from searchjax.data.arguments import (
  check, load_json, load_literal, missing_argument, schema_fault, sendable)
from searchjax.data.chat import ChatFormat
from searchjax.data.markup import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN
from searchjax.data.messages import Message, ToolCall, read_messages
from searchjax.data.qwen3_5 import Qwen35
from searchjax.data.rows import Account, FieldError, Problem, Row, find, find_text, read_each
from searchjax.data.segments import Example, training_segments
from searchjax.search.tool import SEARCH_WEB

ROLES = {
  "system": "system", "developer": "system", "user": "user", "human": "user",
  "assistant": "assistant", "gpt": "assistant", "function_call": "assistant", "tool": "tool",
  "function": "tool", "observation": "tool", "ipython": "tool",
}
SUPERVISED = ("all", "last")
GENERATED = ("tool_use", "preference")  # sources of examples that are no files
_CONVERSATION = "messages|conversations"
_WRITTEN = "response|completion|output|trajectory|text"
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL)
_RESPONSE = re.compile(r"<(tool_response|information)>(.*?)</\1>", re.DOTALL)
_TOOLS = re.compile(r"<tools>\s*([\[{].*?)\s*</tools>", re.DOTALL)
_ANSWER = re.compile(r"</?answer>")


@dataclasses.dataclass(frozen=True)
class Trajectory:
  """One conversation to train on.

  Attributes:
    messages: {"role", "content"} and, on an assistant's, "thinking", "tool_calls" (OpenAI's form,
      arguments an object) and "train"; as `ChatFormat` reads them.
    tools: the schemas of the tools, in OpenAI's form.
    layout: "messages", "sharegpt", "responses" or "search_r1".
    file, line: where its row begins.
  """

  messages: tuple[dict[str, Any], ...]
  tools: tuple[dict[str, Any], ...]
  layout: str
  file: str
  line: int


@dataclasses.dataclass
class _Turn:
  """A turn while it is read; `ids` name its calls, `answers` the call that a tool's answers."""

  path: str
  role: str
  content: str = ""
  thinking: str = ""
  calls: list[ToolCall] = dataclasses.field(default_factory=list)
  ids: list[str] = dataclasses.field(default_factory=list)
  answers: str = ""


def layout_of(fields: Mapping) -> str | None:
  """The layout that fits a row's fields, None if none does."""
  if "responses_create_params" in fields or _items(fields.get("input"), fields.get("output")):
    return "responses"
  for name in _CONVERSATION.split("|"):
    entries = fields.get(name)
    if isinstance(entries, list) and entries and isinstance(entries[0], Mapping):
      return "sharegpt" if "from" in entries[0] else "messages"
  written = [fields.get(name) for name in _WRITTEN.split("|")]
  if any(isinstance(text, str) and ("<search>" in text or "<answer>" in text) for text in written):
    return "search_r1"
  return None


def _items(asked: Any, output: Any) -> bool:
  return isinstance(output, list) and isinstance(asked, str | list) and all(
    isinstance(item, Mapping) and "type" in item for item in output)


def read_trajectories(paths: Iterable[str | os.PathLike], account: Account) -> list[Trajectory]:
  """Reads files of conversations of any known layout.

  Args:
    paths: see `rows.read_rows`.
    account: counts rows and what became of them.

  Raises:
    ValueError: a file that cannot be read.
  """
  read = [one for path in paths for one in read_each(path, account, _read_row)]
  kept = []
  for one in read:
    if isinstance(one, str):
      account.dropped[one] += 1
      continue
    kept.append(one)
    if one.messages[-1].get("tool_calls"):
      account.noted["end with a call"] += 1
    if any(not message.get("train", True) for message in one.messages):
      account.noted["with a turn before the first user message, not trained"] += 1
  return kept


def _read_row(row: Row) -> Trajectory | str:
  """A row's conversation, or why a sound row holds none to train on."""
  try:
    return _trajectory(row)
  except RecursionError as error:
    raise FieldError("", "nested too deeply") from error


def _trajectory(row: Row) -> Trajectory | str:
  layout = layout_of(row.fields)
  if layout is None:
    fields = ", ".join(map(str, list(row.fields)[:8]))
    raise FieldError("", f"no known layout has the fields {fields}")
  turns, tools = {
    "responses": _responses, "search_r1": _search_r1, "sharegpt": _conversation,
    "messages": _conversation,
  }[layout](row.fields)
  turns, tools = _unwrapped(turns, tools)
  if not any(turn.role == "assistant" for turn in turns):
    return "no assistant turn"
  for turn in turns:
    _read_markup(turn, tools)
  if turns[-1].role != "assistant":
    return "ends without an answer"
  if not tools and any(call.name == _search_call("").name for t in turns for call in t.calls):
    tools = [SEARCH_WEB]
  _check(turns, {tool["function"]["name"]: tool["function"] for tool in tools})
  return Trajectory(_written(turns), tuple(tools), layout, row.file, row.line)


# ---- layouts -----------------------------------------------------------------------------------


def _conversation(fields: Mapping) -> tuple[list[_Turn], list[dict]]:
  """Messages under role and content, or from and value."""
  name = next(n for n in _CONVERSATION.split("|") if isinstance(fields.get(n), list))
  turns: list[_Turn] = []
  for i, entry in enumerate(fields[name]):
    path = f"{name}.{i}"
    if not isinstance(entry, Mapping):
      raise FieldError(path, f"expected a message, got {type(entry).__name__}")
    given = entry.get("role", entry.get("from"))
    role = _role(given, path)
    content = entry.get("content", entry.get("value"))
    if given == "function_call":
      called = [_json_call(one, path) for one in _json_list(content, path)]
      turn = _Turn(path, "assistant", calls=called)
      if turns and turns[-1].role == "assistant" and not turns[-1].calls:
        turn = dataclasses.replace(turn, path=turns[-1].path, content=turns.pop().content)
      turns.append(turn)
      continue
    single = entry.get("function_call")
    calls = entry.get("tool_calls") or ([single] if single else [])
    message = _message(path, role, content, calls, entry)
    turns.append(_Turn(
      path, message.role, message.content.strip(), (message.thinking or "").strip(),
      list(message.calls), [str(call.get("id") or "") for call in calls],
      str(entry.get("tool_call_id") or ""),
    ))
  return turns, _declared(fields)


def _role(given: Any, path: str) -> str:
  if not isinstance(given, str) or given not in ROLES:
    raise FieldError(path, f"unknown role {given!r:.60}")
  return ROLES[given]


def _message(path, role, content, calls, entry) -> Message:
  fields = {"role": role, "content": content, "tool_calls": calls, "calls": entry.get("calls"),
            "thinking": entry.get("thinking"), "reasoning_content": entry.get("reasoning_content")}
  try:
    return read_messages([fields])[0]
  except (ValueError, AttributeError) as error:
    raise FieldError(path, str(error).removeprefix("message 0: ")) from error


def _responses(fields: Mapping) -> tuple[list[_Turn], list[dict]]:
  """Items of the Responses API: what was sent, then what came back."""
  request = fields.get("responses_create_params", fields)
  prefix = "responses_create_params." if request is not fields else ""
  if not isinstance(request, Mapping):
    raise FieldError(prefix[:-1], f"expected an object, got {type(request).__name__}")
  if "input" not in request:
    raise FieldError(f"{prefix}input", "missing")
  asked = request["input"]
  if not isinstance(asked, str | list):
    raise FieldError(f"{prefix}input", f"expected text or a list, got {type(asked).__name__}")
  turns = []
  if request.get("instructions"):
    path = f"{prefix}instructions"
    turns.append(_Turn(path, "system", find_text(fields, path)))
  items = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
  where = [f"{prefix}input.{i}" for i in range(len(items))]
  path = "response.output" if "response" in fields else "output"
  output = find(fields, path) if path.partition(".")[0] in fields else []
  if not isinstance(output, list):
    raise FieldError(path, f"expected a list, got {type(output).__name__}")
  items += output
  where += [f"{path}.{i}" for i in range(len(output))]
  for path, item in zip(where, items, strict=True):
    turn = _item(path, item)
    last = turns[-1] if turns else None
    if last and turn.role == last.role == "assistant":  # pieces of one turn
      if last.calls and not turn.calls:
        raise FieldError(path, "follows a call that was not answered")
      last.content = "\n\n".join(filter(None, (last.content, turn.content)))
      last.thinking = "\n\n".join(filter(None, (last.thinking, turn.thinking)))
      last.calls, last.ids = last.calls + turn.calls, last.ids + turn.ids
    else:
      turns.append(turn)
  tools = request.get("tools")
  return turns, _tools(tools, f"{prefix}tools") if tools else []


def _item(path: str, item: Any) -> _Turn:
  kind = item.get("type") or "message" if isinstance(item, Mapping) else None
  if kind == "reasoning":
    return _Turn(path, "assistant", thinking="\n".join(
      _texts(item.get("summary") or item.get("content"), path)).strip())
  if kind == "function_call":
    call = {"name": item.get("name"), "arguments": item.get("arguments")}
    message = _message(path, "assistant", "", [call], {})
    return _Turn(path, "assistant", calls=list(message.calls), ids=[str(item.get("call_id") or "")])
  if kind == "function_call_output":
    if item.get("output") is None:
      raise FieldError(path, "expected a tool's output as text, got none")
    return _Turn(path, "tool", "".join(_texts(item["output"], path)),
                 answers=str(item.get("call_id") or ""))
  if kind != "message":
    raise FieldError(path, f"unknown item {kind!r:.60}")
  role = _role(item.get("role"), path)
  return _Turn(path, role, "".join(_texts(item.get("content"), path)).strip())


def _texts(value: Any, path: str) -> list[str]:
  """The texts of an item's parts; a text alone is one, none is none."""
  if isinstance(value, str):
    return [value]
  if not isinstance(value, list | None):
    raise FieldError(path, f"expected text or parts of text, got {type(value).__name__}")
  return [_text_of(part, path) for part in value or ()]


def _text_of(part: Any, path: str) -> str:
  if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
    raise FieldError(path, f"content may hold text only, got the part {str(part)[:60]}")
  return part["text"]


def _search_r1(fields: Mapping) -> tuple[list[_Turn], list[dict]]:
  """A prompt and one text in which the tool's responses stand between tags."""
  prompt = find(fields, "prompt|question|input")
  if isinstance(prompt, list):
    turns, _ = _conversation({"messages": prompt})
  else:
    turns = [_Turn("prompt", "user", find_text(fields, "prompt|question|input"))]
  name = next(n for n in _WRITTEN.split("|") if isinstance(fields.get(n), str))
  text, at = fields[name], 0
  for found in _RESPONSE.finditer(text):
    turns.append(_Turn(name, "assistant", text[at:found.start()].strip()))
    turns.append(_Turn(name, "tool", found[2].strip()))
    at = found.end()
  if text[at:].strip():
    turns.append(_Turn(name, "assistant", text[at:].strip()))
  return turns, _declared(fields)


# ---- tools -------------------------------------------------------------------------------------


def _declared(fields: Mapping) -> list[dict]:
  """The tools that a row's own fields declare."""
  name = next((name for name in ("tools", "functions") if fields.get(name)), None)
  return _tools(fields[name], name) if name else []


def _tools(value: Any, path: str) -> list[dict]:
  """Schemas in OpenAI's form, from that, its inner part alone, or Qwen-Agent's."""
  tools = []
  for i, given in enumerate(_json_list(value, path)):
    inner = given.get("function", given) if isinstance(given, Mapping) else {}
    name = inner.get("name", inner.get("name_for_model")) if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or not name:
      raise FieldError(f"{path}.{i}", "a tool needs a name")
    schema = {"name": name, "description": str(
      inner.get("description", inner.get("description_for_model")) or "")}
    schema["parameters"] = inner.get("parameters") or {"type": "object", "properties": {}}
    parameters = f"{path}.{i}.parameters"
    if not isinstance(schema["parameters"], Mapping):
      raise FieldError(parameters, "expected a JSON schema")
    fault = schema_fault(schema["parameters"])
    if fault:
      raise FieldError(f"{parameters}.{fault[0]}", fault[1])
    if schema["parameters"].get("properties", {}) is None:
      schema["parameters"] = {**schema["parameters"], "properties": {}}
    try:
      sendable(schema)
    except ValueError as error:
      raise FieldError(f"{path}.{i}", f"a tool that cannot be written as JSON ({error})") from error
    tools.append({"type": "function", "function": schema})
  return tools


def _json_list(value: Any, path: str) -> list:
  """A list, an object, or text that spells either, or several objects after each other."""
  if isinstance(value, str):
    decoder, values, at = json.JSONDecoder(), [], 0
    while at < len(value):
      if value[at] in " \t\r\n,":
        at += 1
        continue
      try:
        one, at = decoder.raw_decode(value, at)
      except (ValueError, RecursionError) as error:
        raise FieldError(path, f"not JSON ({error})") from error
      values += one if isinstance(one, list) else [one]
    return values
  if isinstance(value, Mapping):
    return [value]
  if not isinstance(value, list):
    raise FieldError(path, f"expected a list or JSON of one, got {type(value).__name__}")
  return value


def _unwrapped(turns: list[_Turn], tools: list[dict]) -> tuple[list[_Turn], list[dict]]:
  """Tools printed in a message, and responses wrapped in a user's or tool's, taken out of them.

  Printed tools go before declared ones: they are what the agent saw. The format writes them anew,
  so what a message said about them goes too: of a system message what follows "# Tools", or all;
  of a user's what stands before "User:".
  """
  read = []
  for turn in turns:
    printed = _TOOLS.search(turn.content) if turn.role in ("system", "user") else None
    if printed:
      tools = _tools(printed[1], f"{turn.path}.<tools>")
      before, heading, _ = turn.content.partition("# Tools")
      if turn.role == "system":
        turn.content = before.strip() if heading else ""
        if not turn.content:
          continue
      else:
        _, user, question = turn.content[printed.end():].rpartition("\nUser:")
        if not user:
          raise FieldError(turn.path, 'expected the question after "User:" behind the tools')
        turn.content = question.strip()
    text = turn.content
    wrapped = [found[2].strip() for found in _RESPONSE.finditer(text)]
    whole = turn.role in ("user", "tool") and wrapped and not _RESPONSE.sub("", text).strip()
    if whole:
      read += [dataclasses.replace(turn, role="tool", content=response) for response in wrapped]
    else:
      read.append(turn)
  return read, tools


# ---- an assistant's text -----------------------------------------------------------------------


def _read_markup(turn: _Turn, tools: Sequence[Mapping]) -> None:
  """Takes thinking, calls and answer tags out of an assistant's text."""
  if turn.role != "assistant":
    return
  text = turn.content
  if THINK_OPEN in text or THINK_CLOSE in text:
    opened, closed = text.count(THINK_OPEN), text.count(THINK_CLOSE)
    before, _, after = text.partition(THINK_CLOSE)
    lead, mark, thought = before.partition(THINK_OPEN)
    if closed != 1 or opened > 1 or (mark and lead.strip()):
      raise FieldError(turn.path, "expected one closed thinking block at the start of the turn")
    if turn.thinking:
      raise FieldError(turn.path, "thinking is given twice, in the text and beside it")
    turn.thinking, text = (thought if mark else before).strip(), after
  for pattern, marks, read in (
      (_CALL, (CALL_OPEN, CALL_CLOSE), lambda body: _text_call(body, turn.path, tools)),
      (_SEARCH, ("<search>", "</search>"), _search_call)):
    found = list(pattern.finditer(text))
    if found:
      turn.calls += [read(one[1]) for one in found]
      text, after = text[:found[0].start()], pattern.sub("", text[found[0].start():]).strip()
      if after:
        raise FieldError(turn.path, f"text after or between calls: {after[:40]!r}")
    if any(mark in text for mark in marks):
      raise FieldError(turn.path, f"{marks[0]} without {marks[1]}, or the other way round")
  if _RESPONSE.search(text):
    raise FieldError(turn.path, "a tool's response inside the assistant's turn")
  turn.content = _ANSWER.sub("", text).strip()


def _search_call(query: str) -> ToolCall:
  """Search-R1's one tool is this project's."""
  return ToolCall(SEARCH_WEB["function"]["name"], {"query": query.strip()})


def _text_call(body: str, path: str, tools: Sequence[Mapping]) -> ToolCall:
  if not body.lstrip().startswith("<function="):
    try:
      value = load_json(body)
    except json.JSONDecodeError as error:
      try:  # Hermes's early files write a Python dict.
        value = load_literal(body)
      except ValueError:
        raise FieldError(path, f"a call is not JSON ({error})") from error
    except ValueError as error:
      raise FieldError(path, f"a call is not JSON ({error})") from error
    return _json_call(value, path)
  call = Qwen35().read_call(body, {t["function"]["name"]: t["function"] for t in tools})
  if isinstance(call, str):
    raise FieldError(path, call.removeprefix("Error: ").rstrip("."))
  swallowed = [k for k, v in call.arguments.items() if isinstance(v, str) and "<parameter=" in v]
  if swallowed:
    raise FieldError(path, f"the parameter {swallowed[0]} is not closed")
  return call


def _json_call(value: Any, path: str) -> ToolCall:
  if not isinstance(value, Mapping):
    raise FieldError(path, f"a call must be an object, got {type(value).__name__}")
  return _message(path, "assistant", "", [value], {}).calls[0]


# ---- checking and writing ----------------------------------------------------------------------


def _check(turns: Sequence[_Turn], schemas: Mapping[str, Mapping]) -> None:
  """Raises FieldError at the first turn that is out of order."""
  waiting: list[str] = []  # calls that were not answered yet, by id
  for i, turn in enumerate(turns):
    before = turns[i - 1].role if i else ""
    if turn.role == "tool":
      if not waiting:
        raise FieldError(turn.path, "a tool's response that no call asked for")
      if turn.answers and any(waiting):
        if turn.answers not in waiting:
          raise FieldError(turn.path, f"answers no open call: {turn.answers[:40]!r}")
        waiting.remove(turn.answers)
      else:
        waiting.pop(0)
      continue
    if waiting:
      raise FieldError(turn.path, f"{len(waiting)} of the calls before this turn are not answered")
    if turn.role == "system" and i:
      raise FieldError(turn.path, "a system message must be the first")
    if turn.role == "assistant":
      if before == "assistant":
        raise FieldError(turn.path, "two assistant turns in a row")
      if not turn.content and not turn.calls:
        raise FieldError(turn.path, "an empty turn")
      for call in turn.calls:
        _check_call(call, schemas, turn.path)
      named = len(turn.ids) == len(turn.calls)
      waiting = list(turn.ids) if named else [""] * len(turn.calls)


def _check_call(call: ToolCall, schemas: Mapping[str, Mapping], path: str) -> None:
  schema = schemas.get(call.name)
  if schema is None:
    known = f"; the tools are {', '.join(schemas)}" if schemas else ", and no tools are declared"
    raise FieldError(path, f"calls {call.name!r:.60}{known}")
  try:
    sendable(call.arguments)
  except ValueError as error:
    raise FieldError(path, f"{call.name}: arguments that cannot be sent ({error})") from error
  properties = schema["parameters"].get("properties") or {}
  for key, value in call.arguments.items():
    if key not in properties:
      raise FieldError(path, f"{call.name} has no parameter {key!r}")
    try:
      check(value, properties[key])
    except ValueError as error:
      raise FieldError(path, f"{call.name}: {key} {error}") from error
  missing = missing_argument(call.arguments, schema)
  if missing:
    raise FieldError(path, f"{call.name} needs {missing}")


def _written(turns: Sequence[_Turn]) -> tuple[dict[str, Any], ...]:
  """Turns as messages; parallel responses in the order of their calls."""
  messages: list[dict[str, Any]] = []
  asked = False
  at = 0
  while at < len(turns):
    turn = turns[at]
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    asked = asked or turn.role == "user"
    if turn.thinking:
      message["thinking"] = turn.thinking
    if turn.role == "assistant" and not asked:
      message["train"] = False  # no prompt leads to it
    if turn.calls:
      message["tool_calls"] = [
        {"type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in turn.calls
      ]
    messages.append(message)
    answers = turns[at + 1:at + 1 + len(turn.calls)]
    if all(answer.answers in turn.ids for answer in answers):
      answers = sorted(answers, key=lambda answer: turn.ids.index(answer.answers))
    messages += [{"role": "tool", "content": answer.content} for answer in answers]
    at += 1 + len(answers)
  return tuple(messages)


def training_rows(
  chat: ChatFormat,
  trajectories: Sequence[Trajectory],
  account: Account,
  *,
  supervise: str = "all",
) -> list[Example]:
  """The segments of trajectories, each behind a prompt that shows its own tools.

  Args:
    chat: the format. Where it does not think, thinking is left out and counted.
    trajectories: see `read_trajectories`.
    account: takes conversations that the format cannot write.
    supervise: "all" assistant turns, or the "last" of each conversation.

  Raises:
    ValueError: another `supervise`.
  """
  if supervise not in SUPERVISED:
    raise ValueError(f"supervise must be one of {', '.join(SUPERVISED)}; got {supervise!r}")
  examples = []
  for one in trajectories:
    messages = [dict(message) for message in one.messages]
    for i, message in enumerate(messages):
      if not chat.thinking and message.pop("thinking", None):
        account.noted["turns without their thinking"] += 1
      if supervise == "last" and message["role"] == "assistant" and i + 1 < len(messages):
        message["train"] = False
    try:
      examples += training_segments(chat, messages, list(one.tools) or None)
    except (ValueError, RecursionError) as error:
      account.problems.append(Problem(one.file, one.line, "", str(error)))
  return examples


def training_sources(
  chat: ChatFormat,
  files: Mapping[str, str | Sequence[str]],
  *,
  supervise: str = "all",
) -> tuple[dict[str, list[Example]], dict[str, Account]]:
  """The segments of several sources of trajectories, and what became of their rows.

  Args:
    chat: the format.
    files: by the source's name, its path or paths.
    supervise: see `training_rows`.

  Raises:
    ValueError: a file that cannot be read, a source without a conversation to train on, or one
      named as the generated ones are.
  """
  examples, accounts = {}, {}
  for name, paths in files.items():
    if name in GENERATED:
      raise ValueError(f"data.files.{name}: the name is taken by generated examples; use another")
    account = accounts[name] = Account()
    read = read_trajectories([paths] if isinstance(paths, str) else paths, account)
    examples[name] = training_rows(chat, read, account, supervise=supervise)
    if not examples[name]:
      first = f"; {account.problems[0]}" if account.problems else ""
      raise ValueError(f"data.files.{name} holds no conversation to train on: "
                       f"{account.summary()}{first}")
  return examples, accounts
