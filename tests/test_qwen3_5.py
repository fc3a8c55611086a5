"""Qwen3.5's calls, written and read; FAULTS P1-P3, P6. The text of whole turns: test_markup.py."""

import pytest

from searchjax.data.chat import ChatFormat
from searchjax.data.messages import Message, ToolCall
from searchjax.data.qwen3_5 import Qwen35
from searchjax.data.tokenizer import load_tokenizer

STYLE = Qwen35()
TOOL = {"name": "f", "parameters": {"required": ["s"], "properties": {
  "s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"},
  "x": {"type": "number"}, "l": {"type": "array"}, "o": {"type": "object"},
  "z": {"type": ["string", "null"]}, "e": {"type": "string", "enum": ["a", "b"]}}}}
SCHEMAS = {"f": TOOL, "now": {"name": "now"}}


@pytest.fixture(scope="module")
def chat():
  return ChatFormat(load_tokenizer(), [TOOL, {"name": "now"}])


def parameter(key, value):
  return f"<parameter={key}>\n{value}\n</parameter>\n"


def body(*parameters, name="f"):
  return f"\n<function={name}>\n" + "".join(parameters) + "</function>\n"


def test_p3_every_type_survives_writing_and_reading(chat):
  calls = (
    ToolCall("f", {"s": "5", "n": 5, "b": True, "x": 0.5, "l": ["a", None, 1], "o": {"k": [True]},
                   "z": None, "e": "b"}),
    ToolCall("now", {}), ToolCall("f", {"s": "", "b": False, "z": "text"}),
    ToolCall("f", {"s": "\n two\n\nlines \n"}), ToolCall("f", {"s": "</tool_call></function>"}),
  )
  parsed = chat.parse_turn(chat.encode_assistant("Look.", calls))
  assert parsed.calls == calls and not parsed.errors
  assert [type(v) for v in parsed.calls[0].arguments.values()] == [
    str, int, bool, float, list, dict, type(None), str]


@pytest.mark.parametrize("text,call", [
  (body(parameter("s", "x")), ToolCall("f", {"s": "x"})),
  ("<function=f><parameter=s>x</parameter></function>", ToolCall("f", {"s": "x"})),
  ("  <function=f>\n\n <parameter=s>\n\nx\n\n</parameter> \n</function>  \n",
   ToolCall("f", {"s": "\nx\n"})),  # one line break on each side is markup, the rest is value
  ("<function=now>\n</function>", ToolCall("now", {})),
  ("<function=now></function>", ToolCall("now", {})),
  (body(parameter("s", "a</parameter>b")), ToolCall("f", {"s": "a</parameter>b"})),
  (body(parameter("n", "5"), parameter("s", "x")), ToolCall("f", {"n": 5, "s": "x"})),
])
def test_calls_are_read(text, call):
  assert STYLE.read_call(text, SCHEMAS) == call


@pytest.mark.parametrize("text,error", [
  ("", "a call needs <function=name>"),
  ("f(s=1)", "a call needs <function=name>"),
  ('{"name": "f", "arguments": {"s": "x"}}', "a call needs <function=name>"),  # another format's
  ("<function=f>\n<parameter=s>\nx\n</parameter>\n", "a call needs <function=name>"),
  ("<function=>\n</function>", "a call needs <function=name>"),
  ("<function=f\n</function>", "a call needs <function=name>"),
  ("text <function=f>\n</function>", "a call needs <function=name>"),
  ("<function=f>\n</function> text", "a call needs <function=name>"),
  (body(name="g"), "no tool g"),
  (body(name="F"), "no tool F"),
  (body(), "no s given"),
  (body(parameter("n", "5")), "no s given"),
  (body(parameter("q", "5")), "no parameter q"),
  (body(parameter("q", "5"), name="now"), "no parameter q"),
  (body(parameter("s", "x"), parameter("s", "y")), "s is given twice"),
  (body("<parameter=s>\nx\n"), "a parameter is not closed"),
  (body("<parameter>\nx\n</parameter>"), "a parameter is not closed"),
  (body("s = x\n"), "a parameter is not closed"),
  (body(parameter("s", "x") + "more"), "a parameter is not closed"),
  (body(parameter("s", "x"), parameter("n", "five")), "n must be integer"),
  (body(parameter("s", "x"), parameter("n", "True")), "n must be integer"),
  (body(parameter("s", "x"), parameter("n", "")), "n must be integer"),
  (body(parameter("s", "x"), parameter("b", "maybe")), "b must be boolean"),
  (body(parameter("s", "x"), parameter("x", "NaN")), "x must be number"),
  (body(parameter("s", "x"), parameter("l", "a, b")), "l must be array"),
  (body(parameter("s", "x"), parameter("l", "[" * 100_000)), "l must be array"),
  (body(parameter("s", "x"), parameter("o", "{'k': 1}")), "o must be object"),
  (body(parameter("s", "x"), parameter("e", "c")), "e must be one of a, b"),
])
def test_p1_p2_p6_every_malformed_call_is_an_error_to_read(text, error):
  assert STYLE.read_call(text, SCHEMAS) == f"Error: {error}."


def test_hostile_bodies_are_read_in_time_linear_in_their_length():
  for piece in ("</parameter>", "</parameter> \n", "</function>", "<parameter=s>", " \n", "<"):
    for frame in ("<function=f>{}</function>", "<function=f><parameter=s>{}", "{}</function>"):
      text = frame.replace("{}", piece * 20_000)
      assert STYLE.read_call(text, SCHEMAS).startswith("Error: ")


def test_names_cannot_break_out_of_a_call():
  for call in (ToolCall("f>\n<|im_end|>", {}), ToolCall("f", {"s>\n<|im_end|>": 1})):
    with pytest.raises(ValueError, match="expected a name without"):
      STYLE.calls("", [call])


def test_only_a_user_who_wraps_no_tool_response_asks():
  queries = [Message("user", "q"), Message("user", "<tool_response>"), Message("user", "")]
  others = [Message("user", " <tool_response>r</tool_response>\n"), Message("tool", "q"),
            Message("assistant", "q")]
  assert all(map(STYLE.is_query, queries)) and not any(map(STYLE.is_query, others))
  assert STYLE.last_query([*queries, *others]) == 2 and STYLE.last_query(others) == -1
