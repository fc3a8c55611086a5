"""Cents a query, from token and call counts and a file of list prices.  HOST: reads the price file.

  cents = 100 (prompt tokens * p_in + completion tokens * p_out) / 10^6
        + 100 (search calls * p_search) / 10^3                                           (SPEC 4)

p_in and p_out in dollars a million tokens, p_search in dollars a thousand calls.

Source   SPEC 4 (Figure 6). The packaged file holds example prices, not a quotation: put your own.
"""

import dataclasses
import importlib.resources
import json
import math
import pathlib


@dataclasses.dataclass(frozen=True)
class Prices:
  """List prices of a model and of the search service it calls, in dollars."""
  name: str
  prompt_per_million: float
  completion_per_million: float
  search_per_thousand: float
  as_of: str


_NUMBERS = ("prompt_per_million", "completion_per_million", "search_per_thousand")


def load_prices(path: str | pathlib.Path | None = None) -> Prices:
  """Reads a price file.

  Args:
    path: JSON with name, as_of, prompt_per_million, completion_per_million and
      search_per_thousand; None reads the packaged example.

  Returns:
    the prices.

  Raises:
    ValueError: no such file, not JSON, a field missing or unknown, or a price that is no number
      at or above 0.
  """
  if path is None:
    source = importlib.resources.files("searchjax.evals") / "assets" / "prices.json"
  else:
    source = pathlib.Path(path)
    if not source.is_file():
      raise ValueError(f"price file: expected a JSON file; {source} is not there")
  try:
    fields = json.loads(source.read_text(encoding="utf-8"))
  except json.JSONDecodeError as error:
    where = f"price file {source}: expected JSON; line {error.lineno}"
    raise ValueError(f"{where}: {error.msg}") from None
  expected = {field.name for field in dataclasses.fields(Prices)}
  if not isinstance(fields, dict) or set(fields) != expected:
    got = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
    raise ValueError(f"price file {source}: expected the fields {sorted(expected)}; got {got}")
  for name in _NUMBERS:
    value = fields[name]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
      raise ValueError(
          f"price file {source}: {name}: expected dollars, at least 0; got {value!r}")
  return Prices(**fields)


def cents_per_query(
    prompt_tokens: float, completion_tokens: float, search_calls: float, prices: Prices
) -> float:
  """Price of one query, in US cents.

  Args:
    prompt_tokens: tokens read, tool responses included, each as often as it is billed.
    completion_tokens: tokens generated, thinking and tool calls included.
    search_calls: calls the service executed. Means over queries give the mean cost.
    prices: from `load_prices`.

  Returns:
    cents, at least 0.
  """
  tokens = (prompt_tokens * prices.prompt_per_million
            + completion_tokens * prices.completion_per_million) / 1e6
  return 100 * (tokens + search_calls * prices.search_per_thousand / 1e3)
