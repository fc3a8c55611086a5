"""A call's arguments against the tool's JSON schema.  PURE.

Reads the part of JSON schema that tools use: type (one or several), enum, anyOf/oneOf of types,
required, and no properties but those listed. Values inside objects and arrays are not looked into.
"""

import json
from collections.abc import Mapping
from typing import Any

_KINDS = {
  "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict,
  "array": list, "null": type(None),
}
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def load_json(text: str) -> Any:
  """The value of JSON text.

  Raises:
    ValueError: not JSON, a key given twice, NaN or an infinity, nested too deeply, or text with
      half a surrogate pair, which no service could be sent.
  """

  def once(pairs):
    value = {}
    for key, item in pairs:
      if key in value:
        raise ValueError(f"{key[:40]} is given twice")
      value[key] = item
    return value

  def refuse(constant):
    raise ValueError(f"{constant} is no JSON")

  try:
    value = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
  except RecursionError as error:
    raise ValueError("nested too deeply") from error
  return value


def cast(text: str, schema: Mapping) -> Any:
  """The value that a parameter's text stands for.

  Text that may be a string stays as it is unless it reads as another type the schema allows. Other
  types are read as JSON, with Python's True, False and None as well.

  Raises:
    ValueError: no allowed type fits; the message ends the sentence "the value ...".
  """
  kinds = _kinds(schema) or ("string",)
  if kinds != ("string",):
    stripped = text.strip()
    try:
      value = load_json(_PYTHON.get(stripped, stripped))
    except ValueError:
      value = text
    if not isinstance(value, str) and _fits(value, kinds):
      return _allowed(value, schema)
  if "string" in kinds:
    return _allowed(text, schema)
  raise ValueError(f"must be {' or '.join(kinds)}")


def check(value: Any, schema: Mapping) -> Any:
  """The value itself, if the schema allows it.

  Raises:
    ValueError: it does not; the message ends the sentence "the value ...".
  """
  kinds = _kinds(schema)
  if kinds and not _fits(value, kinds):
    raise ValueError(f"must be {' or '.join(kinds)}")
  return _allowed(value, schema)


def missing_argument(arguments: Mapping, schema: Mapping) -> str | None:
  """The first required parameter that is not given, if any."""
  required = schema.get("parameters", {}).get("required", ())
  return next((key for key in required if key not in arguments), None)


def _kinds(schema: Mapping) -> tuple[str, ...]:
  """Allowed types; () if the schema does not say."""
  if "type" in schema:
    kinds = schema["type"]
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)
  choices = schema.get("anyOf") or schema.get("oneOf") or ()
  found = [_kinds(choice) for choice in choices]
  return tuple(dict.fromkeys(k for kinds in found for k in kinds)) if all(found) else ()


def _fits(value: Any, kinds: tuple[str, ...]) -> bool:
  if isinstance(value, bool):
    return "boolean" in kinds
  return any(isinstance(value, _KINDS.get(kind, object)) for kind in kinds if kind != "boolean")


def _allowed(value: Any, schema: Mapping) -> Any:
  choices = schema.get("enum")
  if choices is not None and not any(value == c and type(value) is type(c) for c in choices):
    raise ValueError(f"must be one of {', '.join(map(str, choices))}")
  return value
