"""Arguments against a tool's schema; FAULTS P1, P3."""

import pytest

from searchjax.data.arguments import cast, check, load_json, missing_argument

INTEGER = {"type": "integer"}
MAYBE = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize("text,schema,value", [
  ("5", INTEGER, 5), (" 5\n", INTEGER, 5), ("-5", {"type": "number"}, -5),
  ("0.5", {"type": "number"}, 0.5), ("5", {"type": "string"}, "5"), (" 5 ", {}, " 5 "),
  ("True", {"type": "boolean"}, True), ("true", {"type": "boolean"}, True),
  ("False", {"type": "boolean"}, False), ("None", {"type": "null"}, None),
  ("null", {"type": ["string", "null"]}, None), ("nil", {"type": ["string", "null"]}, "nil"),
  ("7", MAYBE, 7), ("None", MAYBE, None), ("True", {"type": "string"}, "True"),
  ('["a", 1]', {"type": "array"}, ["a", 1]), ('{"k": null}', {"type": "object"}, {"k": None}),
  ("b", {"type": "string", "enum": ["a", "b"]}, "b"), ("2", {"type": "integer", "enum": [2]}, 2),
  ('"x"', {"type": ["string", "integer"]}, '"x"'), ("5", {"type": ["string", "integer"]}, 5),
])
def test_p3_text_is_cast_by_the_schema(text, schema, value):
  got = cast(text, schema)
  assert got == value and type(got) is type(value)
  assert check(value, schema) == value


@pytest.mark.parametrize("text,schema,reason", [
  ("five", INTEGER, "must be integer"), ("5.5", INTEGER, "must be integer"),
  ("True", INTEGER, "must be integer"), ("True", {"type": "number"}, "must be number"),
  ("1", {"type": "boolean"}, "must be boolean"), ("yes", {"type": "boolean"}, "must be boolean"),
  ("[1", {"type": "array"}, "must be array"), ("{}", {"type": "array"}, "must be array"),
  ("{'k': 1}", {"type": "object"}, "must be object"), ("", INTEGER, "must be integer"),
  ("x", MAYBE, "must be integer or null"), ("NaN", {"type": "number"}, "must be number"),
  ("Infinity", {"type": "number"}, "must be number"),
  ('{"k": 1, "k": 2}', {"type": "object"}, "must be object"),
  ("[" * 100_000, {"type": "array"}, "must be array"),
  ("9" * 5_000, INTEGER, "must be integer"),
  ("c", {"type": "string", "enum": ["a", "b"]}, "must be one of a, b"),
  ("1", {"type": "number", "enum": [2, 3]}, "must be one of 2, 3"),
])
def test_p1_text_that_fits_no_type_is_refused(text, schema, reason):
  with pytest.raises(ValueError, match=f"^{reason}$"):
    cast(text, schema)


def test_values_are_checked_as_they_are():
  assert check("5", {"type": "string"}) == "5" and check([1], {}) == [1]
  for value, schema in (("5", INTEGER), (True, INTEGER), (None, INTEGER), (5, {"type": "string"}),
                        (1, {"type": "boolean"}), (True, {"enum": [1]})):
    with pytest.raises(ValueError, match="^must be "):
      check(value, schema)


@pytest.mark.parametrize("text,reason", [
  ("", "Expecting"), ("{", "Expecting"), ("[" * 100_000, "nested too deeply"),
  ('{"a": 1, "a": 2}', "a is given twice"), ('{"x": {"a": 1, "a": 1}}', "a is given twice"),
  ("NaN", "NaN is no JSON"), ("-Infinity", "-Infinity is no JSON"),
  ('"\\ud800"', "surrogates not allowed"), ("{} {}", "Extra data"),
])
def test_json_that_no_service_could_be_sent_is_refused(text, reason):
  with pytest.raises(ValueError, match=reason):
    load_json(text)
  assert load_json('{"a": ["\\ud83d\\ude00"]}') == {"a": ["😀"]}


def test_required_parameters():
  schema = {"parameters": {"required": ["a", "b"]}}
  assert missing_argument({"b": 1}, schema) == "a"
  assert missing_argument({"a": 1, "b": 1}, schema) is None
  assert missing_argument({}, {}) is None
