"""No row ends a run: every value of a good row of every layout, replaced or left out, one at a time."""

import copy
import json

import pytest
from test_preferences import ANSWER, USER
from test_preferences import ROWS as PREFERENCES
from test_public_qa import ROWS as QUESTIONS
from test_public_qa import A, Q
from test_trajectories import CALL, SEARCH, said
from test_trajectories import ROWS as TRAJECTORIES

from searchjax.data.arguments import load_literal, schema_fault
from searchjax.data.preferences import read_preferences
from searchjax.data.public_qa import Quality, read_questions
from searchjax.data.rows import Account
from searchjax.data.trajectories import read_trajectories

INF, NAN = float("inf"), float("nan")
VALUES = [None, True, -1, 5, INF, NAN, "", "x", [], [[]], {}, {"a": 1}, [1], 10**400]
# Texts that spell a value or a call.
TEXTS = ["²hop", "{[]: 1}", "{1, 2}", "[" * 500, "-" * 9000 + "1", "[NaN]", "'\\ud800'", '["\\ud800"]',
         '{"query": NaN}', "<tools>[5]</tools>", "<tool_call>{[]: 1}</tool_call>"]
BFCL = [{"id": "w", "question": [[{"role": "user", "content": Q}]], "involved_classes": []},
        {"id": "w", "ground_truth": [A], "source": [], "num_hops": 3}]
KTO = [{"messages": [USER, ANSWER], "label": True},
       {"prompt": [USER], "completion": [ANSWER], "label": False}]
SEARCH_R1 = {"prompt": Q, "response": "<search>w</search><information>f</information><answer>a</answer>"}


def places(value, at=()):
  """The path of every value in a row."""
  keys = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
  for key in keys:
    yield *at, key
    yield from places(value[key], (*at, key))


def mutants(rows, values):
  for row in rows:
    for *way, last in places(row):
      for value in [*values, KeyError]:
        changed = copy.deepcopy(row)
        holder = changed
        for key in way:
          holder = holder[key]
        holder[last] = value
        if value is KeyError:
          del holder[last]
        yield changed


def written(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def good_rows():
  """(name, reader, rows of one layout); each row stands alone but for BFCL's halves."""
  for name, rows in QUESTIONS.items():
    yield name, read_questions, [fields for fields, _ in rows] or BFCL
  for i, (name, fields, _) in enumerate(PREFERENCES):
    yield f"{name} {i}", read_preferences, [fields]
  yield "kto", read_preferences, KTO
  for name, fields in (TRAJECTORIES | {"Search-R1": SEARCH_R1}).items():
    yield name, read_trajectories, [fields]


@pytest.mark.parametrize("read, rows", [one[1:] for one in good_rows()], ids=[one[0] for one in good_rows()])
def test_a_row_with_one_bad_value_is_one_problem_or_is_read(tmp_path, read, rows):
  made = list(mutants(rows, VALUES + TEXTS))
  account = Account()
  got = read([written(tmp_path / "rows.jsonl", made)], account)
  assert account.rows == len(made) == account.kept + len(account.problems) + account.dropped.total()
  assert len({problem.line for problem in account.problems}) == len(account.problems) > 0
  assert all(problem.reason for problem in account.problems)
  if read is read_preferences:
    assert len(got) >= account.kept or rows is KTO  # a row may hold several pairs
  else:
    assert len(got) == account.kept > 0
  if read is read_questions:
    filtered = Account()
    kept = read_questions([tmp_path / "rows.jsonl"], filtered, quality=Quality())
    assert len(kept) == filtered.kept and filtered.problems == account.problems
    json.dumps([one.answer for one in got], ensure_ascii=False).encode()
  if read is read_trajectories:  # all that is kept can be written
    kept = [(one.messages, one.tools) for one in got]
    json.dumps(kept, ensure_ascii=False, allow_nan=False).encode()


def questions(**fields):
  return {"question": Q, "answer": A} | fields


def response(*items, **more):
  return {"input": Q, "output": [*items, {"type": "message", "role": "assistant", "content": "a"}]} | more


def called(**tool):
  """A conversation with a call of a tool with these parameters."""
  return {"messages": [said("user", Q), said("assistant", "", tool_calls=[{"function": CALL}])],
          "tools": [{"name": "search", "parameters": {"type": "object"} | tool}]}


def property_of(value):
  return called(properties={"query": value, "top": {}})


QUERY = "tools.0.parameters.properties.query"
VERL = QUESTIONS["verl"][0][0]


@pytest.mark.parametrize("read, row, field, reason", [
  (read_questions, VERL | {"extra_info": 5}, "extra_info", "expected an object, got int"),
  (read_questions, questions(answer=NAN), "answer", "expected a finite number, got nan"),
  (read_questions, questions(answer=["a", INF]), "answer", "expected a finite number, got inf"),
  (read_questions, {"metadata": "{[]: 1}", "problem": Q, "answer": A}, "metadata",
   "cannot be read (no Python literal: unhashable type: 'list')"),
  (read_questions, QUESTIONS["frames"][0][0] | {"wiki_links": "-" * 9000 + "1"}, "wiki_links",
   "cannot be read (nested too deeply)"),
  (read_questions, QUESTIONS["frames"][0][0] | {"index": [1]}, "index|Unnamed: 0", "or a number, got [1]"),
  (read_questions, questions(id=NAN), "id", "expected text or a number, got nan"),
  (read_questions, QUESTIONS["popqa"][0][0] | {"possible_answers": '["\\ud800"]'}, "possible_answers",
   "cannot be read (text with half a surrogate pair: surrogates not allowed)"),
  (read_preferences, PREFERENCES[0][1] | {"individual_preference": -1}, "individual_preference",
   "expected a list, got int"),
  (read_preferences, PREFERENCES[0][1] | {"overall_preference": True}, "overall_preference",
   "expected a whole number from -3 to 3, got True"),
  (read_preferences, PREFERENCES[7][1] | {"score_chosen": 10**400}, "score_chosen", "number, got 10000"),
  (read_preferences, PREFERENCES[7][1] | {"score_rejected": NAN}, "score_rejected", "number, got nan"),
  (read_preferences, {"instruction": Q, "completions": [{"response": "a", "overall_score": INF}] * 2},
   "completions.0.overall_score", "expected a finite number, got inf"),
  (read_preferences, PREFERENCES[10][1] | {"votes": -1}, "votes", "expected a list, got int"),
  (read_trajectories, {"messages": [said(["user"], Q)]}, "messages.0", "unknown role ['user']"),
  (read_trajectories, {"messages": [said({}, Q)]}, "messages.0", "unknown role {}"),
  (read_trajectories, {"responses_create_params": 5}, "responses_create_params", "an object, got int"),
  (read_trajectories, {"responses_create_params": {"input": -1}}, "responses_create_params.input",
   "expected text or a list, got int"),
  (read_trajectories, {"responses_create_params": {"input": Q, "instructions": 5}},
   "responses_create_params.instructions", "expected text, got int"),
  (read_trajectories, response(response={"output": 5}), "response.output", "expected a list, got int"),
  (read_trajectories, response({"type": "reasoning", "summary": 5}), "output.0", "parts of text, got int"),
  (read_trajectories, response({"type": "message", "role": [], "content": ""}), "output.0", "role []"),
  (read_trajectories, response({"type": "message", "role": "user", "content": 5}), "output.0",
   "expected text or parts of text, got int"),
  (read_trajectories, response({"type": "function_call_output", "output": None}), "output.0", "got none"),
  (read_trajectories, {"messages": [said("user", Q), said("assistant", "<tool_call>{[]: 1}</tool_call>")]},
   "messages.1", "a call is not JSON"),
  (read_trajectories, {"messages": [said("user", Q), said(
    "assistant", '<tool_call>{"name": "search", "name": "visit"}</tool_call>')]}, "messages.1", "twice"),
  (read_trajectories, {"tools": [SEARCH], "messages": [said("user", Q), said(
    "assistant", "<tool_call>{'name': 'search', 'arguments': {'query': {1}}}</tool_call>")]}, "messages.1",
   "a call is not JSON"),
  (read_trajectories, {"tools": [SEARCH], "messages": [said("user", Q), said("assistant", "", tool_calls=[
    {"function": {"name": "search", "arguments": '{"query": "\\ud800"}'}}])]}, "messages.1",
   "search: arguments that cannot be sent (text with half a surrogate pair: surrogates not allowed)"),
  (read_trajectories, called(properties=True), "tools.0.parameters.properties", "an object, got bool"),
  (read_trajectories, called(properties=5), "tools.0.parameters.properties", "an object, got int"),
  (read_trajectories, called(required=[{}]), "tools.0.parameters.required", "a list of names, got [{}]"),
  (read_trajectories, property_of(True), QUERY, "expected a JSON schema, got bool"),
  (read_trajectories, property_of("text"), QUERY, "expected a JSON schema, got str"),
  (read_trajectories, property_of({"type": 5}), f"{QUERY}.type", "a list of types, got 5"),
  (read_trajectories, property_of({"type": {}}), f"{QUERY}.type", "a list of types, got {}"),
  (read_trajectories, property_of({"type": [[]]}), f"{QUERY}.type", "a list of types, got [[]]"),
  (read_trajectories, property_of({"oneOf": ["text"]}), f"{QUERY}.oneOf.0", "a JSON schema, got str"),
  (read_trajectories, property_of({"anyOf": 5}), f"{QUERY}.anyOf", "a list of JSON schemas, got int"),
  (read_trajectories, property_of({"enum": 5}), f"{QUERY}.enum", "expected a list, got int"),
])
def test_malformed_values_are_named(tmp_path, read, row, field, reason):
  good = {read_questions: questions(), read_preferences: PREFERENCES[6][1],
          read_trajectories: TRAJECTORIES["Qwen XML"]}[read]
  account = Account()
  got = read([written(tmp_path / "rows.jsonl", [good, row, good])], account)
  (problem,) = account.problems
  assert len(got) == account.kept == 2
  assert (problem.line, problem.field) == (2, field) and reason in problem.reason, problem


def test_a_number_of_hops_is_digits(tmp_path):
  rows = [VERL | {"extra_info": {"index": f"{hops}hop_1"}} for hops in ("2", "²", "9" * 5000, "")]
  rows.append(VERL | {"extra_info": None})
  got = read_questions([written(tmp_path / "rows.jsonl", rows)], Account())
  assert [one.hops for one in got] == [2, None, None, None, None]


def test_rows_nested_as_deeply_as_can_be_read_are_counted(tmp_path):
  for read, row in ((read_questions, questions(answer=0)), (read_questions, questions(answer=A, id=0)),
                    (read_preferences, PREFERENCES[6][1] | {"id": 0}),
                    (read_trajectories, {"messages": [said(0, Q)]}), (read_trajectories, property_of(0))):
    deep = [json.dumps(row).replace("0", "[" * n + "]" * n) for n in range(5, 1000, 15)]
    (tmp_path / "rows.jsonl").write_text("\n".join(deep))
    account = Account()
    read([tmp_path / "rows.jsonl"], account)
    assert account.rows == len(deep) and account.problems


def test_a_part_of_a_schema_that_is_null_is_not_there(tmp_path):
  query = {"type": None, "enum": None, "anyOf": None, "oneOf": [{"type": "string"}]}
  row = called(properties={"query": query, "top": {"type": ["integer", "null"]}}, required=None)
  (made,) = read_trajectories([written(tmp_path / "rows.jsonl", [row])], Account())
  assert made.messages[1]["tool_calls"][0]["function"] == CALL
  bare = {"messages": [said("user", Q), said("assistant", "a")],
          "tools": [{"name": "now", "parameters": {"properties": None}}]}
  (made,) = read_trajectories([written(tmp_path / "rows.jsonl", [bare])], Account())
  assert made.tools[0]["function"]["parameters"] == {"properties": {}}


def test_choices_inside_choices_are_followed_so_far():
  def nested(depth):
    return {"anyOf": [nested(depth - 1)]} if depth else {"type": "string"}

  assert schema_fault({"properties": {"a": nested(32)}}) is None
  path, reason = schema_fault({"properties": {"a": nested(33)}})
  assert path.endswith(".0") and reason == "over 32 choices inside each other"


def test_literals_are_those_that_json_has():
  assert load_literal(" {'a': [1, None, True]}\n") == {"a": [1, None, True]}
  for text in ("{1}", "b'x'", "...", "1j", "'\\ud800'", "1e999", "x", "[" * 500, "{(1, 2): 3}"):
    with pytest.raises(ValueError):
      load_literal(text)
