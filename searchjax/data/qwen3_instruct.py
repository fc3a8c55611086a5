"""Qwen3-Instruct-2507's markup: JSON calls, text as it is, no thinking.  PURE.

  <tool_call>\\n{"name": "NAME", "arguments": {...}}\\n</tool_call>

Nothing is trimmed and no turn is ever written in another way later, so a conversation only grows.
Thinking that a message holds is not written, as in the template.

Source   the chat template published with Qwen3-30B-A3B-Instruct-2507.
"""

from collections.abc import Mapping, Sequence

from searchjax.data.arguments import check, load_json, missing_argument
from searchjax.data.markup import (
  CALL_CLOSE, CALL_OPEN, END, START, Markup, Part, as_json, checked_name, markup,
)
from searchjax.data.messages import Message, ToolCall

_TOOLS_HEAD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""
_TOOLS_TAIL = """
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


class Qwen3Instruct(Markup):
  """See the module."""

  name = "qwen3_instruct"
  thinks = False
  needs_query = False
  control = (START, END, CALL_OPEN, CALL_CLOSE)

  def system_block(self, system: str | None, tools: Sequence[Mapping]) -> list[Part]:
    if not tools and system is None:
      return []
    parts = [markup(f"{START}system\n")] + ([] if system is None else [Part(system)])
    if tools:
      parts.append(markup(("" if system is None else "\n\n") + _TOOLS_HEAD))
      parts += [Part("\n" + as_json(tool)) for tool in tools]
      parts.append(markup(_TOOLS_TAIL))
    return [*parts, markup(f"{END}\n")]

  def opening(self, thinking: bool) -> str:
    return f"{START}assistant\n"

  def tidy(self, text: str) -> str:
    return text

  def read(self, message: Message) -> Message:
    return message

  def calls(self, content: str, calls: Sequence[ToolCall]) -> list[Part]:
    parts: list[Part] = []
    for i, call in enumerate(calls):
      lead = "\n" if content or i else ""
      name = checked_name(call.name, "tool")
      parts += [
        markup(f"{lead}{CALL_OPEN}\n"),
        Part(f'{{"name": "{name}", "arguments": {as_json(call.arguments)}}}'),
        markup(f"\n{CALL_CLOSE}"),
      ]
    return parts

  def read_call(self, body: str, schemas: Mapping[str, Mapping]) -> ToolCall | str:
    try:
      call = load_json(body)
    except ValueError as error:
      twice = str(error) if "given twice" in str(error) else "the call is not JSON"
      return f"Error: {twice}."
    if not isinstance(call, dict):
      return "Error: a call must be a JSON object."
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str):
      return "Error: a call needs a name."
    extra = next((key for key in call if key not in ("name", "arguments")), None)
    if extra is not None:
      return f"Error: a call holds name and arguments, not {extra[:40]}."
    schema = schemas.get(name)
    if schema is None:
      return f"Error: no tool {name[:40]}."
    if "arguments" not in call:
      return "Error: a call needs arguments."
    if not isinstance(arguments, dict):
      return "Error: arguments must be a JSON object."
    properties = schema.get("parameters", {}).get("properties", {})
    for key, value in arguments.items():
      if key not in properties:
        return f"Error: no parameter {key[:40]}."
      try:
        check(value, properties[key])
      except ValueError as error:
        return f"Error: {key} {error}."
    missing = missing_argument(arguments, schema)
    return f"Error: no {missing} given." if missing else ToolCall(name, arguments)
