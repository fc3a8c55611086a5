"""Every turn is trained once, behind the ids it was sampled from; FAULTS T2, T3, T4, T9, T10, T14."""

import pytest

from searchjax.data.chat import ChatFormat
from searchjax.data.messages import ToolCall
from searchjax.data.segments import training_examples, training_segments
from searchjax.data.tokenizer import load_tokenizer
from searchjax.search.tool import SEARCH_WEB


def user(text):
  return {"role": "user", "content": text}


def tool(text):
  return {"role": "tool", "content": text}


def says(text, *queries, thinking=None, train=True):
  calls = [ToolCall("search_web", {"query": query}) for query in queries]
  return {"role": "assistant", "content": text, "calls": calls, "thinking": thinking,
          "train": train}


LOOP = [
  {"role": "system", "content": "s"}, user("Who?"), says("", "a", thinking="t1"), tool("A"),
  says("Hm.", "b", "c", thinking="t2"), tool("B"), tool("C"), says("C.", thinking="t3"),
]
LATER = [*LOOP, user("And?"), says("", "d", thinking="t4"), tool("D"), says("D.", thinking="t5"),
         user("Thanks."), user("Bye."), says("Bye.", thinking="t6")]


@pytest.fixture(scope="module")
def tokenizer():
  return load_tokenizer()


@pytest.fixture(scope="module")
def published(tokenizer):
  return ChatFormat(tokenizer, thinking=True, preserve_thinking=False)


def trained(chat, segment):
  return chat.decode([i for i, m in zip(*segment) if m])


def slow_segments(chat, messages, tools):
  """Every turn's own (prompt, written), rendered anew; joined where one text begins the next."""
  segments = []
  for i, message in enumerate(messages):
    if message["role"] != "assistant":
      continue
    prompt = chat.decode(chat.encode_prompt(messages[:i], tools=tools))
    thinking = (message.get("thinking") or "") if chat.thinking else None
    written = chat.decode(chat.encode_assistant(message["content"], message["calls"], thinking))
    if segments and prompt.startswith(segments[-1][0]):
      segments[-1] = (prompt + written, segments[-1][1] + written)
    else:
      segments.append((prompt + written, written))
  return segments


def test_t3_a_tool_loop_with_thinking_is_one_example(published):
  segments = training_segments(published, LOOP, [SEARCH_WEB])
  assert len(segments) == 1
  call = ("<tool_call>\n<function=search_web>\n<parameter=query>\n{}\n</parameter>\n"
          "</function>\n</tool_call>")
  assert trained(published, segments[0]) == (
    "t1\n</think>\n\n" + call.format("a") + "<|im_end|>t2\n</think>\n\nHm.\n\n" + call.format("b")
    + "\n" + call.format("c") + "<|im_end|>t3\n</think>\n\nC.<|im_end|>")


def test_t4_a_new_query_begins_a_segment_whose_past_has_no_thinking(published):
  segments = training_segments(published, LATER, [SEARCH_WEB])
  assert len(segments) == 3
  first, second, third = (published.decode(ids) for ids, _ in segments)
  assert second.count("<think>") == 2 and "t1" not in second and "t3" not in second
  assert "<|im_start|>assistant\nC.<|im_end|>" in second and "t4\n</think>" in second
  assert third.count("<think>") == 1 and "t4" not in third
  # One row of appended turns would train t4 behind a past that nobody samples from.
  assert not second.startswith(first) and not third.startswith(second)
  for segment, thoughts in zip(segments, (("t1", "t2", "t3"), ("t4", "t5"), ("t6",))):
    text = trained(published, segment)
    assert [t for t in ("t1", "t2", "t3", "t4", "t5", "t6") if t in text] == list(thoughts)  # T9


@pytest.mark.parametrize("settings", [
  {"thinking": True, "preserve_thinking": False}, {"thinking": False, "preserve_thinking": False},
  {"thinking": True}, {"thinking": False}, {"style": "qwen3_instruct"},
])
def test_t2_segments_are_the_turns_joined_where_one_begins_the_next(tokenizer, settings):
  chat = ChatFormat(tokenizer, **settings)
  wrapped = user("<tool_response>\nW\n</tool_response>")
  turns = [*LATER, user("4"), says("", "e", thinking="t7"), wrapped, says("5", thinking="t8")]
  if not settings.get("thinking"):
    turns = [{**m, "thinking": None} for m in turns]
  for stop in (i + 1 for i, m in enumerate(turns) if m["role"] == "assistant"):
    segments = training_segments(chat, turns[:stop], [SEARCH_WEB])
    expected = slow_segments(chat, turns[:stop], [SEARCH_WEB])
    assert [(chat.decode(ids), trained(chat, (ids, mask))) for ids, mask in segments] == expected
  assert len(segments) == (1 if chat.only_grows else 4)


def test_the_empty_thinking_block_that_disappears_begins_a_segment_too(tokenizer):
  chat = ChatFormat(tokenizer, preserve_thinking=False)
  segments = training_segments(chat, [user("1"), says("a"), user("2"), says("b")])
  empty = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
  assert [chat.decode(ids) for ids, _ in segments] == [
    "<|im_start|>user\n1<|im_end|>\n" + empty + "a<|im_end|>",
    "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    "<|im_start|>user\n2<|im_end|>\n" + empty + "b<|im_end|>"]
  assert [trained(chat, s) for s in segments] == ["a<|im_end|>", "b<|im_end|>"]


def test_a_format_that_only_grows_needs_one_segment_and_gives_the_conversation(tokenizer):
  for chat in (ChatFormat(tokenizer), ChatFormat(tokenizer, style="qwen3_instruct")):
    turns = [{**m, "thinking": None} for m in LATER]
    assert training_segments(chat, turns, [SEARCH_WEB]) == [
      chat.encode_conversation(turns, [SEARCH_WEB])]


def test_turns_out_of_the_mask_stay_in_the_text(published):
  turns = [{**m, "train": False} if m.get("thinking") in ("t1", "t6") else m for m in LATER]
  segments = training_segments(published, turns)
  assert len(segments) == 2  # the third has nothing to train
  assert "t1" in published.decode(segments[0][0]) and "t1" not in trained(published, segments[0])
  greeting = [says("Hello!", train=False), *LOOP[1:]]
  assert published.decode(training_segments(published, greeting)[0][0]).startswith(
    "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nWho?")


def test_t14_the_work_of_a_tool_loop_is_linear(published, monkeypatch):
  counted = []
  original = ChatFormat.encode_text
  monkeypatch.setattr(
    ChatFormat, "encode_text", lambda self, text: counted.append(len(text)) or original(self, text))

  def characters(turns):
    counted.clear()
    training_segments(published, LOOP[:2] + turns * LOOP[2:4] + LOOP[-1:], [SEARCH_WEB])
    return sum(counted)

  one, two, nine = characters(1), characters(2), characters(9)
  assert nine - one == 8 * (two - one) > 0


def test_t10_a_bad_row_is_named(published):
  bad = {"role": "assistant", "content": "", "tool_calls": [
    {"function": {"name": "search_web", "arguments": "{'query': 1}"}}]}
  with pytest.raises(ValueError, match="row 2, message 1: the arguments of the call to search_web "
                                       "are not JSON"):
    training_examples(published, [LOOP, LATER, [user("q"), bad]])
  with pytest.raises(ValueError, match="row 0, a conversation must end with an assistant"):
    training_examples(published, [LOOP[:2]])
  with pytest.raises(ValueError, match="row 1, message 0: no user query precedes this turn"):
    training_examples(published, [LOOP, [says("Hello!"), *LOOP[1:]]])
  assert len(training_examples(published, [LOOP, LATER])) == 4
