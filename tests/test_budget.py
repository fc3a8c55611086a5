"""Summary of a sweep over tool budgets."""

import math

import pytest

from searchjax.evals.budget import budget_summary, saturation_budget


def sweep(shares, n=40, calls=1.0):
  return [{"budget": b, "correct": float(i < share * n), "calls": min(b, calls), "cents": 0.5 * b}
          for b, share in shares.items() for i in range(n)]


def test_rows_by_hand():
  rows = budget_summary(sweep({2: 0.75, 0: 0.25, 1: 0.5}))
  assert [row["budget"] for row in rows] == [0, 1, 2]
  assert [row["accuracy"] for row in rows] == [0.25, 0.5, 0.75]
  assert [row["calls"] for row in rows] == [0, 1, 1]
  assert [row["cents_per_query"] for row in rows] == [0, 0.5, 1.0]
  for row in rows:
    assert row["low"] < row["accuracy"] < row["high"] and row["n"] == 40 and row["invalid"] == 0


def test_invalid_rollouts_are_counted_not_zero():
  outcomes = [(1, 1), (1, 3), (math.nan, 9), (None, 9)]
  rows = budget_summary([{"budget": 1, "correct": c, "calls": n} for c, n in outcomes])
  assert (rows[0]["accuracy"], rows[0]["calls"], rows[0]["n"], rows[0]["invalid"]) == (1, 2, 2, 2)
  assert math.isnan(rows[0]["cents_per_query"])


def test_saturation():
  assert saturation_budget(budget_summary(sweep({0: 0, 1: 0.3, 2: 0.9, 3: 0.95, 4: 0.9}))) == 2
  assert saturation_budget([]) is None


def test_errors():
  with pytest.raises(ValueError, match="record 0: expected the fields .*; calls missing"):
    budget_summary([{"budget": 1, "correct": 1}])
  with pytest.raises(ValueError, match="record 0: expected a budget of at least 0; got -1"):
    budget_summary([{"budget": -1, "correct": 1, "calls": 0}])
