"""Qwen3.5's markup: XML calls, trimmed text, thinking kept after the last query.  PURE.

  <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> </function> </tool_call>

with a line break instead of each blank; the value begins and ends with its own.

A value that is an object or an array is JSON; any other is Python's str, so True and None.

Source   the chat template published with Qwen3.5-397B-A17B, -122B-A10B and -35B-A3B (thinking is
         their default; here it is asked for).
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from searchjax.data.arguments import cast, missing_argument
from searchjax.data.markup import (
  CALL_CLOSE, CALL_OPEN, END, START, THINK_CLOSE, THINK_OPEN, Markup, Part, as_json, checked_name,
  markup,
)
from searchjax.data.messages import Message, ToolCall

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\n?")
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


class Qwen35(Markup):
  """See the module."""

  name = "qwen3_5"
  thinks = True
  needs_query = True
  control = (START, END, CALL_OPEN, CALL_CLOSE, THINK_OPEN, THINK_CLOSE)

  def system_block(self, system: str | None, tools: Sequence[Mapping]) -> list[Part]:
    if not tools:
      if system is None:
        return []
      return [markup(f"{START}system\n"), Part(system), markup(f"{END}\n")]
    parts = [markup(f"{START}system\n{_TOOLS_HEAD}")]
    parts += [Part("\n" + as_json(tool)) for tool in tools]
    parts.append(markup(_TOOLS_TAIL))
    if system:
      parts += [markup("\n\n"), Part(system)]
    return [*parts, markup(f"{END}\n")]

  def opening(self, thinking: bool) -> str:
    block = f"{THINK_OPEN}\n" if thinking else f"{THINK_OPEN}\n\n{THINK_CLOSE}\n\n"
    return f"{START}assistant\n{block}"

  def tidy(self, text: str) -> str:
    return text.strip()

  def read(self, message: Message) -> Message:
    content, thinking = message.content.strip(), message.thinking
    if message.role == "assistant" and thinking is None and THINK_CLOSE in content:
      # Thinking written inside the text; between several blocks the template drops text.
      before, after = content.split(THINK_CLOSE)[0], content.split(THINK_CLOSE)[-1]
      thinking = before.rstrip("\n").split(THINK_OPEN)[-1].lstrip("\n")
      content = after.lstrip("\n")
    return dataclasses.replace(
      message, content=content, thinking=None if thinking is None else thinking.strip()
    )

  def calls(self, content: str, calls: Sequence[ToolCall]) -> list[Part]:
    parts: list[Part] = []
    for i, call in enumerate(calls):
      lead = ("\n\n" if content.strip() else "") if i == 0 else "\n"
      name = checked_name(call.name, "tool")
      parts.append(markup(f"{lead}{CALL_OPEN}\n<function={name}>\n"))
      for key, value in call.arguments.items():
        text = as_json(value) if isinstance(value, (dict, list, tuple)) else str(value)
        parts += [markup(f"<parameter={checked_name(key, 'parameter')}>\n"), Part(text)]
        parts.append(markup("\n</parameter>\n"))
      parts.append(markup(f"</function>\n{CALL_CLOSE}"))
    return parts

  def read_call(self, body: str, schemas: Mapping[str, Mapping]) -> ToolCall | str:
    function = _FUNCTION.match(body)
    closed = body.rstrip()
    if not function or not closed.endswith("</function>"):
      return "Error: a call needs <function=name>."
    name, inside = function.group(1).strip(), closed[function.end():-len("</function>")]
    schema = schemas.get(name)
    if schema is None:
      return f"Error: no tool {name[:40]}."
    properties = schema.get("parameters", {}).get("properties", {})
    arguments: dict[str, Any] = {}
    at, end = 0, len(inside.rstrip())
    while at < end:
      parameter = _PARAMETER.match(inside, at)
      if not parameter:
        return "Error: a parameter is not closed."
      key, value = parameter.group(1).strip(), parameter.group(2)
      if key not in properties:
        return f"Error: no parameter {key[:40]}."
      if key in arguments:
        return f"Error: {key} is given twice."
      try:
        arguments[key] = cast(value, properties[key])
      except ValueError as error:
        return f"Error: {key} {error}."
      at = parameter.end()
    missing = missing_argument(arguments, schema)
    return f"Error: no {missing} given." if missing else ToolCall(name, arguments)
