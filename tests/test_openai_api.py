"""OpenAI's requests, read and refused by name; turns as messages; what of a stream may be sent."""

import json

import pytest

from searchjax.data.chat import ToolCall
from searchjax.rollout import openai_api
from searchjax.rollout.agent import load_chat
from searchjax.rollout.openai_api import BadRequest
from searchjax.search.tool import SEARCH_WEB

LENGTH = 1024
USER = [{"role": "user", "content": "Q"}]


@pytest.fixture(scope="module")
def chat():
  return load_chat("")


def completion(chat, **body):
  return openai_api.read_completion({"prompt": "a"} | body, chat, length=LENGTH)


def message(chat, thinking=False, **body):
  body = {"messages": USER, "chat_template_kwargs": {"enable_thinking": thinking}} | body
  return openai_api.read_chat(body, lambda tools: chat, length=LENGTH)


@pytest.mark.parametrize("body, param, words", [
  ({"prompt": None}, "prompt", "expected text, token ids"),
  ({"prompt": [5, -1]}, "prompt", "ids from 0 to"), ({"prompt": [5, True]}, "prompt", "ids from 0 to"),
  ({"prompt": ""}, "prompt", "at least one"), ({"prompt": [[]]}, "prompt", "at least one"),
  ({"prompt": [9] * LENGTH}, "prompt", "the context has 1024 tokens: 1024 of the prompt and 1 to be"),
  ({"prompt": [9] * 1000, "max_tokens": 25}, "prompt", "1000 of the prompt and 25 to be sampled"),
  ({"max_tokens": "5"}, "max_tokens", 'expected int from 1, got "5"'),
  ({"max_tokens": True}, "max_tokens", "got true"), ({"max_tokens": 0}, "max_tokens", "got 0"),
  ({"temperature": -0.1}, "temperature", "from 0.0"), ({"top_p": 0}, "top_p", "above 0.0 to 1.0"),
  ({"temperature": float("nan")}, "temperature", "got NaN"), ({"top_k": -2}, "top_k", "from -1"),
  ({"n": 1000}, "n", "to 128"), ({"logprobs": 5}, "logprobs", "no alternatives"),
  ({"echo": True}, "echo", "none but false"), ({"presence_penalty": 1}, "presence_penalty", "but 0"),
  ({"logit_bias": {"5": 1}}, "logit_bias", "none but {}"), ({"min_p": 0.1}, "min_p", "none but 0"),
  ({"ignore_eos": True}, "ignore_eos", "this server stops at"), ({"stop": [""]}, "stop", "list of texts"),
  ({"stop_token_ids": ["a"]}, "stop_token_ids", "token ids"), ({"stream": 1}, "stream", "true or false"),
  ({"seed": 2**64}, "seed", "got 18446744073709551616"),
  ({"temperature": 10**400}, "temperature", "from 0.0 to 100.0"), ({"n": 10**400}, "n", "to 128"),
  ({"seed": -(10**400)}, "seed", "from -9"), ({"max_tokens": 10**400}, "prompt", "the context has 1024"),
  ({"top_p": float("inf")}, "top_p", "got Infinity"), ({"guided_json": {}}, "guided_json", "but null"),
  ({"allowed_token_ids": [5]}, "allowed_token_ids", "but null"),
])
def test_a_bad_completion_is_named(chat, body, param, words):
  with pytest.raises(BadRequest) as refused:
    completion(chat, **body)
  assert refused.value.param == param and words in str(refused.value)
  assert refused.value.status == 400 and "\n" not in str(refused.value)


@pytest.mark.parametrize("body, param, words", [
  ({"messages": "hi"}, "messages", "a list of objects"),
  ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "unknown role 'robot'"),
  ({"messages": [{"role": "user", "content": 3}]}, "messages", "content must be text"),
  ({"messages": []}, "messages", "must begin with"),
  ({"messages": [*USER, {"role": "assistant", "tool_calls": ["f"]}]}, "messages", "must be an object"),
  ({"tools": [{"name": 3}]}, "tools", "expected a list"), ({"tools": {}}, None, None),
  ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools", "no schema"),
  ({"tool_choice": "required"}, "tool_choice", "are known"),
  ({"response_format": {"type": "json_object"}}, "response_format", "none but"),
  ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", "only enable_thinking"),
  ({"top_logprobs": 3, "logprobs": True}, "top_logprobs", "none but 0"),
  ({"messages": [{"role": "user", "content": "Foo " * 300}]}, "messages", "the context has 1024"),
])
def test_a_bad_chat_is_named(chat, body, param, words):
  if param is None:
    assert message(chat, **body).prompts == message(chat).prompts
    return
  with pytest.raises(BadRequest) as refused:
    message(chat, **body)
  assert refused.value.param == param and words in str(refused.value)


def test_T13_the_context_is_checked_on_the_ids_that_are_fed(chat):
  """FAULTS T13: markup and tools count, and the last token that fits is served."""
  n = len(chat.encode_prompt(USER, tools=[SEARCH_WEB]))
  read = message(chat, tools=[SEARCH_WEB], max_tokens=LENGTH - n)
  assert len(read.prompts[0]) == n and read.max_tokens == [LENGTH - n]
  with pytest.raises(BadRequest, match=f"{n} of the prompt and {LENGTH - n + 1}"):
    message(chat, tools=[SEARCH_WEB], max_tokens=LENGTH - n + 1)
  assert message(chat, tools=[SEARCH_WEB]).max_tokens == [LENGTH - n]
  assert message(chat, max_completion_tokens=5).max_tokens == [5]
  without = message(chat, tools=[SEARCH_WEB], tool_choice="none")
  assert without.prompts == [chat.encode_prompt(USER)]


def test_what_no_sampler_can_hold_is_brought_into_its_range(chat):
  """One request would end the engine for all others: int32 overflows, a log-prob is NaN."""
  assert completion(chat, top_k=2**40).sampling.top_k == chat.vocab_size
  assert completion(chat, temperature=1e-38).sampling.temperature == 1e-6
  assert completion(chat, temperature=0).sampling.temperature == 0.0


def test_what_a_completion_asks_for(chat):
  read = completion(chat, prompt=["a", [3, 4]], n=2, seed=-1, temperature=0.5, top_p=0.9, top_k=-1,
                    stop="x", stop_token_ids=[5], logprobs=0, stream=True,
                    stream_options={"include_usage": True}, return_token_ids=True)
  assert read.prompts == [chat.encode_text("a"), [3, 4]] and read.max_tokens == [16, 16]
  assert (read.sampling.temperature, read.sampling.top_p, read.sampling.top_k) == (0.5, 0.9, 0)
  assert (read.seed, read.stop, read.stop_ids, read.n) == (-1, ("x",), {5}, 2)
  assert read.logprobs and read.stream and read.stream_usage and read.token_ids
  plain = completion(chat)
  assert plain.seed is None and not plain.logprobs and plain.sampling.temperature == 1.0
  # Control tokens in a text prompt are real, as a template writes them.
  assert completion(chat, prompt="<|im_end|>").prompts == [[chat.stop_ids[0]]]


def test_a_turn_as_a_message(chat):
  names = lambda i: f"call{i}"
  calls = [ToolCall("search_web", {"query": q}) for q in ("ä", "b")]
  read = openai_api.assistant_message(message(chat), chat.encode_assistant("Wait.", calls), names)
  assert read["content"] == "Wait." and [c["id"] for c in read["tool_calls"]] == ["call0", "call1"]
  assert read["tool_calls"][0]["function"] == {"name": "search_web", "arguments": '{"query": "ä"}'}
  alone = openai_api.assistant_message(message(chat), chat.encode_assistant("", calls), names)
  assert alone["content"] is None
  # What goes back in is the same turn.
  assert chat.read_messages([read])[0].calls == tuple(calls)
  thought = chat.encode_assistant("Foo.", thinking="Hm.")
  wanted = message(chat, thinking=True)
  assert openai_api.assistant_message(wanted, thought, names) == {
    "role": "assistant", "content": "Foo.", "reasoning_content": "Hm."}
  assert openai_api.assistant_message(wanted, thought[:2], names)["content"] == ""
  stopped = openai_api.assistant_message(message(chat, stop="o"), chat.encode_assistant("Foo."), names)
  assert stopped["content"] == "F"


def test_P6_a_malformed_call_is_text_for_the_caller(chat):
  ids = [*chat.encode_written("A <tool_call>{}</tool_call>"), chat.stop_ids[0]]
  read = openai_api.assistant_message(message(chat), ids, str)
  assert read == {"role": "assistant", "content": "A <tool_call>{}</tool_call>"}


@pytest.mark.parametrize("text, sent", [
  ("abc", "abc"), ("ab E", "ab "), ("ab EN", "ab "), ("ab EX", "ab EX"), ("ab END", "ab "),
  ("ab END more", "ab "), ("aE", "a"), ("E", ""),
])
def test_what_may_become_a_stop_text_waits(chat, text, sent):
  assert openai_api.streamable(completion(chat, stop=["END", "zzzzzz"]), text) == sent


def test_what_of_a_chat_can_be_sent(chat):
  plain, thinking = message(chat), message(chat, thinking=True)
  assert openai_api.streamable_message(plain, "Wait. \n") == ("Wait.", "")
  assert openai_api.streamable_message(plain, "Wait.<tool_call>{") == ("Wait.", "")
  assert openai_api.streamable_message(thinking, "Hm. So") == ("", "Hm. So")
  assert openai_api.streamable_message(thinking, "Hm.\n</think>\n\nFoo") == ("Foo", "Hm.")


def test_errors_and_counts(chat):
  assert openai_api.error_body("x", status=404, param="model") == {
    "error": {"message": "x", "type": "invalid_request_error", "param": "model",
              "code": "model_not_found"}}
  assert openai_api.error_body("x", status=503)["error"]["type"] == "server_error"
  assert openai_api.usage(completion(chat, prompt=[[3, 4], [5]]), 7) == {
    "prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}


def test_log_probs_name_tokens_by_text_or_id(chat):
  ids = chat.encode_assistant("Foo.")
  logps = [-0.5] * len(ids)
  read = openai_api.completion_logprobs(completion(chat, logprobs=0), ids, logps, 3)
  assert "".join(read["tokens"]) == "Foo.<|im_end|>" and read["token_logprobs"] == logps
  assert read["text_offset"][0] == 3 and read["text_offset"][-1] == 3 + len("Foo.")
  named = completion(chat, return_tokens_as_token_ids=True)
  assert openai_api.completion_logprobs(named, ids, logps, 0)["tokens"][-1] == f"token_id:{ids[-1]}"
  content = openai_api.chat_logprobs(message(chat), ids, logps)["content"]
  assert json.dumps(content) and bytes(content[0]["bytes"]).decode() == content[0]["token"]
