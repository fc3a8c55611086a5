"""Qwen3-Instruct's calls, written and read; FAULTS P1, P2, P6. Whole turns: test_markup.py."""

import json

import pytest

from searchjax.data.chat import ChatFormat
from searchjax.data.messages import ToolCall
from searchjax.data.qwen3_instruct import Qwen3Instruct
from searchjax.data.tokenizer import load_tokenizer

STYLE = Qwen3Instruct()
TOOL = {"name": "f", "parameters": {"required": ["s"], "properties": {
  "s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}, "any": {},
  "l": {"type": "array"}, "z": {"type": ["string", "null"]}}}}
SCHEMAS = {"f": TOOL, "now": {"name": "now"}}


@pytest.fixture(scope="module")
def chat():
  return ChatFormat(load_tokenizer(), [TOOL, {"name": "now"}], style="qwen3_instruct")


def test_every_type_survives_writing_and_reading(chat):
  calls = (
    ToolCall("f", {"s": "5", "n": 5, "b": True, "l": ["a", None, {"k": 0.5}], "z": None}),
    ToolCall("now", {}), ToolCall("f", {"s": "\n two\n\nlines \n", "any": [1]}),
    ToolCall("f", {"s": '</tool_call>\n<|im_end|> "x" \\ ü'}),
  )
  ids = chat.encode_assistant(" Look.\n", calls)
  parsed = chat.parse_turn(ids)
  assert parsed.calls == calls and not parsed.errors and parsed.content == "Look."
  assert chat.decode(ids).startswith(' Look.\n\n<tool_call>\n{"name": "f", "arguments": {"s": "5"')
  opens, closes = (chat.tokenizer.token_to_id(t) for t in ("<tool_call>", "</tool_call>"))
  assert [ids.count(i) for i in (opens, closes, *chat.stop_ids)] == [4, 4, 1, 0]


def call(arguments, **more):
  return json.dumps({"name": "f", "arguments": arguments, **more})


@pytest.mark.parametrize("text,error", [
  ("", "the call is not JSON"),
  ("f(s=1)", "the call is not JSON"),
  ("<function=f>\n<parameter=s>\nx\n</parameter>\n</function>", "the call is not JSON"),
  ("{'name': 'f', 'arguments': {'s': 'x'}}", "the call is not JSON"),
  ('{"name": "f", "arguments": {"s": "x"}', "the call is not JSON"),
  ('{"name": "f", "arguments": {"s": "x"},}', "the call is not JSON"),
  (call({"s": "x"}) + call({"s": "y"}), "the call is not JSON"),
  ("[" * 100_000, "the call is not JSON"),
  ('{"name": "f", "arguments": {"s": "\\ud800"}}', "the call is not JSON"),
  ('{"name": "f", "arguments": {"s": "x", "n": NaN}}', "the call is not JSON"),
  ('{"name": "f", "arguments": {"s": "x", "s": "y"}}', "s is given twice"),
  ('{"name": "f", "name": "f", "arguments": {"s": "x"}}', "name is given twice"),
  ('["f", {"s": "x"}]', "a call must be a JSON object"),
  ('"f"', "a call must be a JSON object"),
  ("null", "a call must be a JSON object"),
  ('{"arguments": {"s": "x"}}', "a call needs a name"),
  ('{"name": ["f"], "arguments": {"s": "x"}}', "a call needs a name"),
  ('{"name": "f"}', "a call needs arguments"),
  ('{"name": "f", "parameters": {"s": "x"}}', "a call holds name and arguments, not parameters"),
  (call({"s": "x"}, id=1), "a call holds name and arguments, not id"),
  ('{"name": "g", "arguments": {"s": "x"}}', "no tool g"),
  (call(None), "arguments must be a JSON object"),
  (call("x"), "arguments must be a JSON object"),
  (call('{"s": "x"}'), "arguments must be a JSON object"),  # encoded twice
  (call(["x"]), "arguments must be a JSON object"),
  (call({}), "no s given"),
  (call({"n": 5}), "no s given"),
  (call({"s": "x", "q": 1}), "no parameter q"),
  (call({"s": 5}), "s must be string"),
  (call({"s": None}), "s must be string"),
  (call({"s": "x", "n": "5"}), "n must be integer"),
  (call({"s": "x", "n": True}), "n must be integer"),
  (call({"s": "x", "b": 1}), "b must be boolean"),
])
def test_p1_p2_p6_every_malformed_call_is_an_error_to_read(chat, text, error):
  assert STYLE.read_call(text, SCHEMAS) == f"Error: {error}."
  ids = [chat.tokenizer.token_to_id("<tool_call>"), *chat.encode_text("\n" + text + "\n"),
         chat.tokenizer.token_to_id("</tool_call>"), chat.stop_ids[0]]
  parsed = chat.parse_turn(ids)
  assert parsed.calls == () and parsed.attempts == (f"Error: {error}.",)


@pytest.mark.parametrize("text", [
  call({"s": "x"}), "\n\n" + call({"s": "x"}) + "\n ", '{"arguments":{"s":"x"},"name":"f"}',
  json.dumps({"name": "f", "arguments": {"s": "x"}}, indent=2),
])
def test_calls_are_read(text):
  assert STYLE.read_call(text, SCHEMAS) == ToolCall("f", {"s": "x"})


def test_there_is_no_thinking_in_a_turn(chat):
  ids = chat.tokenizer.encode("<think>\nhm\n</think>\n\nParis.", add_special_tokens=False).ids
  parsed = chat.parse_turn(ids)
  assert parsed.errors == ("Error: <think> has no place here.",) and not parsed.thinking


def test_nothing_is_trimmed_and_names_cannot_break_out():
  assert STYLE.tidy(" a\n") == " a\n"
  with pytest.raises(ValueError, match="expected a name without"):
    STYLE.calls("", [ToolCall('f", "x": "', {})])
