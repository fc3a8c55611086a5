"""A call's arguments against the tool's JSON schema.  PURE.

Reads the part of JSON schema that tools use: type (one or several), enum, anyOf/oneOf of types,
required, and no properties but those listed. Values inside objects and arrays are not looked into.
A part that is null is one that is not there. `schema_fault` says of a tool's parameters what the
other functions could not read; they take it that there is no such fault.
"""

import ast
import json
from collections.abc import Mapping
from typing import Any

_KINDS = {
  "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict,
  "array": list, "null": type(None),
}
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_NESTED = 32  # choices inside choices


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
    return sendable(json.loads(text, object_pairs_hook=once, parse_constant=refuse))
  except RecursionError as error:
    raise ValueError("nested too deeply") from error


def load_literal(text: str) -> Any:
  """The value of a Python literal, if JSON has it too.

  Raises:
    ValueError: no literal, or a value that is not `sendable`.
  """
  try:
    value = ast.literal_eval(text.strip())
  except (RecursionError, MemoryError) as error:  # how the parser says so
    raise ValueError("nested too deeply") from error
  except (TypeError, SyntaxError) as error:  # as of {[]: 1}
    raise ValueError(f"no Python literal: {getattr(error, 'msg', error)}") from error
  except ValueError as error:  # its message holds an address
    raise ValueError("no Python literal: more than a value is written") from error
  return sendable(value)


def sendable(value: Any) -> Any:
  """The value itself, if a service could be sent it as JSON.

  Raises:
    ValueError: of a type that JSON does not have, NaN, an infinity, nested too deeply, or text with
      half a surrogate pair.
  """
  try:
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
  except UnicodeEncodeError as error:
    raise ValueError(f"text with half a surrogate pair: {error.reason}") from error
  except TypeError as error:
    raise ValueError(f"no JSON: {error}") from error
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
  required = schema.get("parameters", {}).get("required") or ()
  return next((key for key in required if key not in arguments), None)


def schema_fault(parameters: Mapping) -> tuple[str, str] | None:
  """Where in a tool's parameters something is no JSON schema, and what was expected; or None."""
  properties = parameters.get("properties")
  if properties is not None and not isinstance(properties, Mapping):
    return "properties", f"expected an object, got {type(properties).__name__}"
  required = parameters.get("required")
  if required is not None and not _are_texts(required):
    return "required", f"expected a list of names, got {required!r:.60}"
  faults = (_fault(one, f"properties.{key}") for key, one in (properties or {}).items())
  return next(filter(None, faults), None)


def _fault(schema: Any, path: str, depth: int = 0) -> tuple[str, str] | None:
  """`schema_fault` of one property, or of one choice of a property."""
  if not isinstance(schema, Mapping):
    return path, f"expected a JSON schema, got {type(schema).__name__}"
  if depth > _NESTED:
    return path, f"over {_NESTED} choices inside each other"
  kinds, enum = schema.get("type"), schema.get("enum")
  if not (kinds is None or isinstance(kinds, str) or kinds and _are_texts(kinds)):
    return f"{path}.type", f"expected a type or a list of types, got {kinds!r:.60}"
  if not isinstance(enum, list | None):
    return f"{path}.enum", f"expected a list, got {type(enum).__name__}"
  for name in ("anyOf", "oneOf"):
    choices = schema.get(name)
    if not isinstance(choices, list | None):
      return f"{path}.{name}", f"expected a list of JSON schemas, got {type(choices).__name__}"
    for i, choice in enumerate(choices or ()):
      fault = _fault(choice, f"{path}.{name}.{i}", depth + 1)
      if fault:
        return fault
  return None


def _are_texts(value: Any) -> bool:
  return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _kinds(schema: Mapping) -> tuple[str, ...]:
  """Allowed types; () if the schema does not say."""
  kinds = schema.get("type")
  if kinds is not None:
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
