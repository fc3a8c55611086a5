"""Tool-use conversations of every layout: one form, every turn checked; FAULTS T9, T10, T11, M5."""

import json

import pytest

from searchjax.data.chat import ChatFormat
from searchjax.data.rows import Account
from searchjax.data.segments import training_segments
from searchjax.data.tokenizer import load_tokenizer
from searchjax.data.trajectories import layout_of, read_trajectories, training_rows, training_sources

SEARCH = {"type": "function", "function": {
  "name": "search", "description": "Finds pages.",
  "parameters": {"type": "object", "required": ["query"],
                 "properties": {"query": {"type": "string"}, "top": {"type": "integer"}}}}}
ASKED, FOUND, ANSWER = "Who dug the Wend canal?", "Ada Hill dug it.", "Ada Hill."
CALL = {"name": "search", "arguments": {"query": "Wend canal", "top": 3}}
XML = ("<tool_call>\n<function=search>\n<parameter=query>\nWend canal\n</parameter>\n<parameter=top>\n3\n"
       "</parameter>\n</function>\n</tool_call>")
TOOLS_TEXT = f"<tools>\n{json.dumps(SEARCH)}\n</tools>"


def said(role, content, **more):
  return {"role": role, "content": content} | more


def conversation(call, *, system=None, tool=None, last=ANSWER, **more):
  """Messages with one call, as the assistant wrote it."""
  response = tool or said("user", f"<tool_response>\n{FOUND}\n</tool_response>")
  return {"messages": [*([said("system", system)] if system else []), said("user", ASKED),
                       said("assistant", call), response,
                       said("assistant", f"<think>\nSo it is.\n</think>\n\n{last}")],
          "tools": [SEARCH]} | more


THOUGHT = "<think>\nI search.\n</think>\n\n"
ROWS = {
  "Hermes JSON": conversation(f"{THOUGHT}<tool_call>\n{json.dumps(CALL)}\n</tool_call>"),
  "Hermes dict": conversation(f"{THOUGHT}<tool_call>\n{CALL}\n</tool_call>",
                              tool=said("tool", f"<tool_response>{FOUND}</tool_response>")),
  "Qwen XML": conversation(THOUGHT + XML),
  "Qwen XML, template's thinking": conversation(f"I search.\n</think>\n\n{XML}"),
  "Qwen's system text": conversation(
    THOUGHT + XML, system=f"Be brief.\n\n# Tools\n\nYou may use\n{TOOLS_TEXT}\nand so on.", tools=None),
  "tools in the user's text": {"messages": [
    said("user", f"You have\n{TOOLS_TEXT}\nExample: <answer> x </answer>\n\nUser: {ASKED}"),
    *conversation(THOUGHT + XML, last=f"<answer>\n{ANSWER}\n</answer>")["messages"][1:]]},
  "OpenAI, arguments a string": {"messages": [
    said("user", ASKED),
    said("assistant", None, reasoning_content="I search.", tool_calls=[
      {"id": "c1", "type": "function", "function": CALL | {"arguments": json.dumps(CALL["arguments"])}}]),
    said("tool", FOUND, tool_call_id="c1"),
    said("assistant", ANSWER, reasoning_content="So it is.")], "tools": json.dumps([SEARCH])},
  "ShareGPT": {"conversations": [
    {"from": "human", "value": ASKED}, {"from": "gpt", "value": "<think>I search.</think>"},
    {"from": "function_call", "value": json.dumps(CALL)}, {"from": "observation", "value": FOUND},
    {"from": "gpt", "value": f"<think>So it is.</think>{ANSWER}"}],
    "functions": [{"name_for_model": "search", "description_for_model": "Finds pages.",
                   "parameters": SEARCH["function"]["parameters"]}]},
  "Responses": {"responses_create_params": {"input": ASKED, "tools": [
    {"type": "function", **SEARCH["function"]}]}, "response": {"output": [
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I search."}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "\n\n"}]},
      {"type": "function_call", "call_id": "c1", "name": "search",
       "arguments": json.dumps(CALL["arguments"])},
      {"type": "function_call_output", "call_id": "c1", "output": FOUND},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So it is."}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]}]}},
}
EXPECTED = (
  said("user", ASKED),
  said("assistant", "", thinking="I search.", tool_calls=[{"type": "function", "function": CALL}]),
  said("tool", FOUND), said("assistant", ANSWER, thinking="So it is."))


@pytest.fixture(scope="module")
def chat():
  return ChatFormat(load_tokenizer(), thinking=True)


def read(folder, *rows):
  account = Account()
  path = folder / "rows.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return read_trajectories([path], account), account


def trained(chat, examples):
  """Per segment, the texts of the runs under the mask."""
  runs = []
  for ids, mask in examples:
    starts = [i for i in range(len(ids)) if mask[i] and not mask[i - 1]]
    stops = [next((j for j in range(i, len(ids)) if not mask[j]), len(ids)) for i in starts]
    runs.append([chat.decode(ids[i:j]) for i, j in zip(starts, stops)])
  return runs


@pytest.mark.parametrize("name", ROWS)
def test_t10_every_layout_gives_the_same_messages_and_tools(tmp_path, name):
  (made,), account = read(tmp_path, ROWS[name])
  system = (said("system", "Be brief."),) if "system" in name else ()
  assert made.messages == system + EXPECTED and made.tools == (SEARCH,) and account.kept == 1
  json.dumps(made.messages)


def test_search_r1_tags_are_calls_of_the_search_tool(tmp_path):
  text = (f"<think>I search.</think>\n<search> Wend canal </search>\n\n<information>{FOUND}</information>\n\n"
          f"<think>So it is.</think>\n<answer> {ANSWER} </answer>")
  call = {"type": "function", "function": {"name": "search_web", "arguments": {"query": "Wend canal"}}}
  row = {"prompt": ASKED, "response": text}
  assert layout_of(row) == "search_r1"
  for fields in (row, row | {"prompt": [said("user", ASKED)]}):
    (made,), _ = read(tmp_path, fields)
    assert made.messages == (EXPECTED[0], EXPECTED[1] | {"tool_calls": [call]}, *EXPECTED[2:])
    assert [tool["function"]["name"] for tool in made.tools] == ["search_web"]


def test_t9_m5_every_turn_is_trained_with_its_thinking_behind_a_prompt_with_the_tools(tmp_path, chat):
  (made,), account = read(tmp_path, ROWS["Qwen XML"])
  examples = training_rows(chat, [made], account)
  assert trained(chat, examples) == [[
    f"I search.\n</think>\n\n{XML}<|im_end|>", f"So it is.\n</think>\n\n{ANSWER}<|im_end|>"]]
  ids, mask = examples[0]
  prompt = chat.decode(ids[:mask.index(True)])
  assert json.dumps(SEARCH) in prompt and sum(mask) < len(mask) / 2
  assert FOUND in chat.decode([i for i, m in zip(ids, mask) if not m])


def test_turns_of_several_questions_are_all_trained_or_the_last_alone(tmp_path, chat):
  row = ROWS["Qwen XML"]
  more = [said("user", "And the weir?"), said("assistant", "<think>\nEasy.\n</think>\n\nMilo.")]
  (made,), account = read(tmp_path, row | {"messages": [*row["messages"], *more]})
  runs = sum(trained(chat, training_rows(chat, [made], account)), [])
  assert [run.split("\n")[0] for run in runs] == ["I search.", "So it is.", "Easy."]
  last = training_rows(chat, [made], account, supervise="last")
  assert sum(trained(chat, last), []) == ["Easy.\n</think>\n\nMilo.<|im_end|>"]
  with pytest.raises(ValueError, match="must be one of all, last; got 'first'"):
    training_rows(chat, [made], account, supervise="first")


def test_t11_a_turn_before_the_first_user_message_is_context_and_counted(tmp_path, chat):
  row = {"messages": [said("system", "Be brief."), said("assistant", "Hello!"), said("user", ASKED),
                      said("assistant", ANSWER)]}
  (made,), account = read(tmp_path, row)
  assert made.messages[1] == said("assistant", "Hello!", train=False)
  assert account.noted["with a turn before the first user message, not trained"] == 1
  (run,) = trained(chat, training_rows(chat, [made], account))
  assert len(run) == 1 and run[0].endswith(f"{ANSWER}<|im_end|>") and not account.problems


def test_a_format_without_thinking_leaves_it_out_and_counts(tmp_path):
  plain = ChatFormat(load_tokenizer())
  (made,), account = read(tmp_path, ROWS["Qwen XML"])
  examples = training_rows(plain, [made], account)
  assert trained(plain, examples) == [[f"{XML}<|im_end|>", f"{ANSWER}<|im_end|>"]]
  assert account.noted["turns without their thinking"] == 2
  without = [{k: v for k, v in m.items() if k != "thinking"} for m in made.messages]
  assert examples == training_segments(plain, without, list(made.tools))


def test_parallel_responses_stand_in_the_order_of_their_calls(tmp_path):
  def call(i):
    return {"id": f"c{i}", "function": {"name": "search", "arguments": {"query": f"q{i}"}}}
  row = {"tools": [SEARCH], "messages": [
    said("user", ASKED), said("assistant", "", tool_calls=[call(0), call(1)]),
    said("tool", "r1", tool_call_id="c1"), said("tool", "r0", tool_call_id="c0"), said("assistant", "a")]}
  (made,), _ = read(tmp_path, row)
  assert [m["content"] for m in made.messages] == [ASKED, "", "r0", "r1", "a"]
  both = conversation(XML + "\n" + XML, tool=said(
    "user", "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"))
  (made,), _ = read(tmp_path, both)
  assert [m["content"] for m in made.messages if m["role"] == "tool"] == ["one", "two"]


def changed(*messages):
  return {"tools": [SEARCH], "messages": list(messages)}


USER = said("user", ASKED)


def calls(arguments, name="search"):
  return said("assistant", "", tool_calls=[{"function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize("row, field, reason", [
  (changed(USER, calls('{"query": ')), "messages.1", "are not JSON"),  # T10
  (changed(USER, calls("[1]")), "messages.1", "must be an object"),
  (changed(USER, calls({"query": 3})), "messages.1", "search: query must be string"),
  (changed(USER, calls({"q": "x"})), "messages.1", "search has no parameter 'q'"),
  (changed(USER, calls({"top": 1})), "messages.1", "search needs query"),
  (changed(USER, calls({}, "visit")), "messages.1", "calls 'visit'; the tools are search"),
  (changed(USER, calls({"query": "x"})) | {"tools": None}, "messages.1", "no tools are declared"),
  (conversation("<tool_call>{}</tool_call>"), "messages.1", "needs the tool's name"),
  (conversation("<tool_call>nothing</tool_call>"), "messages.1", "a call is not JSON"),
  (conversation("<tool_call>{"), "messages.1", "<tool_call> without </tool_call>"),
  (conversation(XML.replace("</parameter>", "", 1)), "messages.1", "the parameter query is not closed"),
  (conversation(XML + " and more"), "messages.1", "text after or between calls: 'and more'"),
  (conversation("<think>a" + XML), "messages.1", "one closed thinking block"),
  (conversation("a<think>b</think>" + XML), "messages.1", "one closed thinking block"),
  (conversation("I know."), "messages.2", "no call asked for"),
  (changed(USER, calls({"query": "x"}), said("user", "Well?"), said("assistant", "a")), "messages.2",
   "1 of the calls before this turn are not answered"),
  (changed(USER, said("assistant", "a"), said("assistant", "b")), "messages.2", "two assistant turns"),
  (changed(USER, said("assistant", " ")), "messages.1", "an empty turn"),
  (changed(USER, said("system", "s"), said("assistant", "a")), "messages.1", "must be the first"),
  (changed(said("robot", ASKED)), "messages.0", "unknown role 'robot'"),
  (changed(USER, said("assistant", [{"type": "image"}])), "messages.1", "text only"),
  (changed(USER, "text"), "messages.1", "expected a message"),
  (changed(USER, said("assistant", "a")) | {"tools": "[{"}, "tools", "not JSON"),
  (changed(USER, said("assistant", "a")) | {"tools": [{}]}, "tools.0", "a tool needs a name"),
  ({"input": ASKED, "output": [{"type": "web_search_call"}]}, "output.0", "unknown item"),
  ({"input": ASKED, "output": [{"type": "function_call", "name": "f", "arguments": "{}"},
                               {"type": "message", "role": "assistant", "content": "a"}]},
   "output.1", "follows a call that was not answered"),
  ({"text": "a"}, "", "no known layout has the fields text"),
])
def test_malformed_turns_are_named(tmp_path, row, field, reason):
  made, account = read(tmp_path, ROWS["Qwen XML"], row)
  (problem,) = account.problems
  assert len(made) == 1 and account.rows == 2
  assert (problem.line, problem.field) == (2, field) and reason in problem.reason, problem


def test_conversations_with_nothing_to_train_on_are_counted(tmp_path):
  made, account = read(
    tmp_path, changed(USER), changed(USER, said("assistant", "a"), said("user", "b")),
    changed(USER, calls({"query": "x"})))
  assert len(made) == 1 and account.noted["end with a call"] == 1
  assert dict(account.dropped) == {"no assistant turn": 1, "ends without an answer": 1}


def test_what_the_format_cannot_write_is_a_problem_of_its_row(tmp_path, chat):
  (made,), account = read(tmp_path, changed(USER, calls({"query": "x"})) | {
    "tools": [{"name": "a b", "parameters": {}}, SEARCH]})
  bad = made.messages[1]["tool_calls"][0]["function"]
  bad["name"] = "a b"
  assert training_rows(chat, [made], account) == []
  assert account.problems[0].line == 1 and "'a b'" in account.problems[0].reason


def test_sources_are_read_by_name_and_an_empty_one_is_refused(tmp_path, chat):
  path = tmp_path / "a.jsonl"
  path.write_text(json.dumps(ROWS["Qwen XML"]) + "\n[]\n")
  examples, accounts = training_sources(chat, {"one": str(path), "two": (str(path), str(path))})
  assert [len(examples[name]) for name in ("one", "two")] == [1, 2]
  assert accounts["two"].summary() == "4 rows, 2 kept, 2 malformed"
  assert training_sources(chat, {}) == ({}, {})
  path.write_text("[]\n")
  with pytest.raises(ValueError, match=r"data.files.one holds no .*a.jsonl:1: expected an object, got list"):
    training_sources(chat, {"one": str(path)})
  with pytest.raises(ValueError, match="data.files.tool_use: the name is taken"):
    training_sources(chat, {"tool_use": str(path)})


def test_every_trajectory_file_is_read(shared, chat):
  files = sorted((shared / "data/trajectories").glob("*.jsonl"))
  assert len(files) >= 6
  for path in files:
    account = Account()
    made = read_trajectories([path], account)
    assert account.kept == len(made) and account.rows >= 5
    # One model wrote a text where the schema says integer.
    assert [p.line for p in account.problems] == ([4] if "xlam" in path.name else []), account.problems
    assert sum(map(len, trained(chat, training_rows(chat, made, account)))) == sum(
      m["role"] == "assistant" for one in made for m in one.messages)
