"""Messages and calls from the forms that data comes in; FAULTS T10."""

import pytest

from searchjax.data.messages import Message, ToolCall, read_messages


def call(arguments, name="f"):
  return {"role": "assistant", "content": None,
          "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]}


def test_the_forms_of_a_message_mean_the_same():
  wanted = Message("assistant", "a", (ToolCall("f", {"x": 1}),), "t")
  forms = [
    {"role": "assistant", "content": "a", "thinking": "t", "calls": [ToolCall("f", {"x": 1})]},
    {**call({"x": 1}), "content": "a", "reasoning_content": "t"},
    {**call('{"x": 1}'), "content": [{"type": "text", "text": "a"}], "reasoning_content": "t"},
    {"role": "assistant", "content": "a", "thinking": "t",
     "tool_calls": [{"name": "f", "arguments": {"x": 1}}]},
  ]
  assert read_messages(forms) == [wanted] * 4
  assert read_messages([{"role": "user"}, {"role": "tool", "content": None}]) == [
    Message("user"), Message("tool")]
  assert read_messages([call({})])[0].calls == read_messages(
    [{"role": "assistant", "tool_calls": [{"name": "f"}]}])[0].calls == (ToolCall("f", {}),)
  assert read_messages([{"role": "assistant", "thinking": ""}])[0].thinking == ""


@pytest.mark.parametrize("message,reason", [
  ({"content": "x"}, "unknown role None"),
  ({"role": "bot", "content": "x"}, "unknown role 'bot'"),
  ({"role": "user", "content": 5}, "content must be text or a list of texts, got int"),
  ({"role": "user", "content": [{"type": "image", "image": "x"}]}, "may hold text only"),
  ({"role": "user", "content": ["x"]}, "may hold text only"),
  ({"role": "user", "content": "x", "calls": [ToolCall("f", {})]}, "only an assistant calls"),
  ({"role": "tool", "content": "x", "thinking": "t"}, "only an assistant calls"),
  ({"role": "assistant", "thinking": ["t"]}, "thinking must be text, got list"),
  (call({"x": 1}, name=""), "needs the tool's name"),
  (call({"x": 1}, name=None), "needs the tool's name"),
  (call("{'x': 1}"), "the arguments of the call to f are not JSON"),
  (call(""), "the arguments of the call to f are not JSON"),
  (call("[" * 100_000), "the arguments of the call to f are not JSON"),
  (call('"{\\"x\\": 1}"'), "the arguments of the call to f must be an object"),  # encoded twice
  (call("[1]"), "must be an object"),
  (call(None), "must be an object"),
  ({"role": "assistant", "tool_calls": ["f"]}, "a tool call must be an object, got 'f'"),
  ({"role": "assistant", "tool_calls": [{"function": None}]}, "a tool call must be an object, got 'None'"),
  ({"role": "assistant", "tool_calls": 7}, "tool_calls must be a list, got int"),
])
def test_t10_a_bad_message_is_named(message, reason):
  with pytest.raises(ValueError, match=f"message 1: .*{reason}"):
    read_messages([{"role": "user", "content": "q"}, message])
