"""Cost of a query from a price file."""

import json
import math

import pytest

from searchjax.evals.cost import Prices, cents_per_query, load_prices


def test_by_hand():
  prices = Prices("x", 2.0, 8.0, 5.0, "2026-01")
  # 1,500 * 2 / 1e6 = .003; 250 * 8 / 1e6 = .002; 3 * 5 / 1e3 = .015 dollars: 2.0 cents.
  cents = cents_per_query(1500, 250, 3, prices)
  assert math.isclose(cents, 2.0)
  assert cents_per_query(0, 0, 0, prices) == 0


def test_cost_is_linear_so_means_cost_the_mean():
  prices = load_prices()
  cost = lambda p, c, s: cents_per_query(p, c, s, prices)
  assert math.isclose((cost(100, 10, 1) + cost(300, 50, 4)) / 2, cost(200, 30, 2.5))


GOOD = {"name": "m", "as_of": "2026-01", "prompt_per_million": 1, "completion_per_million": 2.5,
        "search_per_thousand": 0}


def test_file(tmp_path):
  path = tmp_path / "prices.json"
  path.write_text(json.dumps(GOOD))
  assert load_prices(path) == Prices("m", 1, 2.5, 0, "2026-01")
  assert load_prices(str(path)).name == "m"


@pytest.mark.parametrize("text, message", [
    ("{", "expected JSON; line 1"), ("[]", "expected the fields"),
    (json.dumps({**GOOD, "promt": 1}), "got .*promt"),
    (json.dumps({**GOOD, "prompt_per_million": "1"}), "prompt_per_million: expected dollars"),
    (json.dumps({**GOOD, "search_per_thousand": -1}), "at least 0; got -1")], ids=range(5))
def test_bad_files(tmp_path, text, message):
  path = tmp_path / "prices.json"
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    load_prices(path)


def test_missing_file(tmp_path):
  with pytest.raises(ValueError, match="expected a JSON file; .*nowhere.json is not there"):
    load_prices(tmp_path / "nowhere.json")
