"""Bootstrap means and paired differences."""

import math

import numpy as np
import pytest

from searchjax.evals.statistics import bootstrap_mean, paired_difference


def test_interval_has_the_textbook_width():
  hits = np.asarray([1] * 60 + [0] * 40, float)
  got = bootstrap_mean(hits, seed=1)
  half = 1.96 * math.sqrt(0.6 * 0.4 / 100)
  assert got.mean == 0.6
  np.testing.assert_allclose([got.low, got.high], [0.6 - half, 0.6 + half], atol=0.015)


def test_same_seed_same_interval_and_order_does_not_matter_to_the_mean():
  values = np.random.default_rng(0).normal(size=31)
  assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
  assert math.isclose(bootstrap_mean(values[::-1]).mean, bootstrap_mean(values).mean)


def test_degenerate_samples():
  assert bootstrap_mean([1, 1, 1]) == bootstrap_mean([1.0] * 3)
  assert (bootstrap_mean([1, 1, 1]).low, bootstrap_mean([0.3]).high) == (1.0, 0.3)
  none = bootstrap_mean([])
  assert math.isnan(none.mean) and math.isnan(none.low)


def test_unmeasured_items_leave_the_mean():
  mean, _, _ = bootstrap_mean([1, math.nan, 0, math.nan])
  assert mean == 0.5                                      # counted as zeros: 0.25


def test_pairing_is_narrower_than_two_intervals():
  rng = np.random.default_rng(0)
  hard = rng.normal(size=200)
  first, second = hard + 0.2 + 0.1 * rng.normal(size=200), hard
  got = paired_difference(first, second)
  assert got.low > 0.15 and got.high < 0.25
  assert bootstrap_mean(first).low < bootstrap_mean(second).high     # side by side they overlap
  dropped = paired_difference([1, math.nan, 1], [0, 0, math.nan])
  assert dropped.mean == 1.0


def test_errors():
  with pytest.raises(ValueError, match="expected as many of both; got 2 and 1"):
    paired_difference([1, 2], [1])
  with pytest.raises(ValueError, match="confidence: expected a number between 0 and 1; got 95"):
    bootstrap_mean([1, 0], confidence=95)
  with pytest.raises(ValueError, match="resamples: expected at least 2; got 1"):
    bootstrap_mean([1, 0], resamples=1)
