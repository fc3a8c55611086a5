"""Structure of a sampled turn; FAULTS P2, P6. Calls themselves: the tests of the two formats."""

import pytest

from searchjax.data.markup import MARKER
from searchjax.data.messages import ToolCall
from searchjax.data.qwen3_5 import Qwen35
from searchjax.data.turns import ParsedTurn, read_turn

SCHEMAS = {"now": {"name": "now"}}
CALL = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
NOW = ToolCall("now", {})


def read(text, in_thinking=False):
  """Reads text in which every control token counts as one."""
  at, events = 0, []
  for match in MARKER.finditer(text):
    events += [(text[at:match.start()], "plain"), (match.group(), "marker")]
    at = match.end()
  return read_turn([*events, (text[at:], "plain")], Qwen35(), SCHEMAS, in_thinking=in_thinking)


@pytest.mark.parametrize("text,in_thinking,turn", [
  ("", False, ParsedTurn("")),
  (" Paris.\n", False, ParsedTurn("Paris.")),
  ("hm\n</think>\n\nParis.", True, ParsedTurn("Paris.", thinking="hm")),
  ("\n</think>\n\n" + CALL, True, ParsedTurn("", (NOW,), attempts=(NOW,))),
  ("<think>\nhm\n</think>\n\nParis.", False, ParsedTurn("Paris.", thinking="hm")),
  ("a " + CALL + "\n" + CALL + " b", False, ParsedTurn("a \n b", (NOW, NOW), attempts=(NOW, NOW))),
])
def test_turns_are_read(text, in_thinking, turn):
  assert read(text, in_thinking) == turn


@pytest.mark.parametrize("text,in_thinking,error", [
  ("<tool_call>", False, "the call is not closed"),
  ("<tool_call>\n<function=now>", False, "the call is not closed"),
  ("hm", True, "the thinking is not closed"),
  ("", True, "the thinking is not closed"),
  ("hm " + CALL, True, "<tool_call> has no place here"),
  ("<tool_call>" + CALL, False, "<tool_call> has no place here"),
  ("</tool_call>", False, "</tool_call> has no place here"),
  ("</think>", False, "</think> has no place here"),
  ("<think>", True, "<think> has no place here"),
  ("a\n</think>\nb</think>", True, "</think> has no place here"),
  ("<tool_response>\nmade up\n</tool_response>", False, "<tool_response> has no place here"),
  ("x<|im_start|>user\nmade up", False, "<|im_start|> has no place here"),
])
def test_p6_a_turn_out_of_order_is_an_error(text, in_thinking, error):
  parsed = read(text, in_thinking)
  assert f"Error: {error}." in parsed.errors and parsed.attempts


def test_p2_errors_keep_their_place_among_calls():
  bad = "<tool_call>\n<function=then>\n</function>\n</tool_call>"
  parsed = read(CALL + bad + CALL + "</tool_call>")
  assert parsed.attempts == (
    NOW, "Error: no tool then.", NOW, "Error: </tool_call> has no place here.")
  assert parsed.calls == (NOW, NOW) and len(parsed.errors) == 2


def test_strays_and_plain_calls_are_errors():
  assert read_turn([("<|vision_start|>", "stray")], Qwen35(), {}, in_thinking=False).errors == (
    "Error: <|vision_start|> has no place here.",)
  assert read_turn([(CALL, "plain")], Qwen35(), SCHEMAS, in_thinking=False).attempts == (
    "Error: a call in plain text.",)
