"""Means with bootstrap intervals, of one policy and of a difference between two.  HOST.

  interval of the mean: percentiles of means of resampled items                         (SPEC 4)
  paired difference:    the same, of a_i - b_i over the questions both policies answered

Nothing is read or written; randomness comes from an explicit seed.

Source   Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; scipy.stats.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Estimate(NamedTuple):
  """A mean and the two ends of its interval; NaN where there is no item."""
  mean: float
  low: float
  high: float


def bootstrap_mean(
    values: Sequence[float] | np.ndarray, *, confidence: float = 0.95, resamples: int = 2000,
    seed: int = 0
) -> Estimate:
  """Mean of independent items with a percentile bootstrap interval.

  Args:
    values: one number an item (a question, not a rollout: average the rollouts of a question
      first, they are not independent). Ones that are not finite were not measured and are left out.
    confidence: coverage, between 0 and 1.
    resamples: bootstrap samples.
    seed: makes the interval reproducible.

  Returns:
    mean and interval. One item, or items that are all equal, give an interval of no width: the
    bootstrap cannot see beyond its sample. No item gives NaN.

  Raises:
    ValueError: confidence outside (0, 1), or fewer than two resamples.
  """
  if not 0 < confidence < 1:
    raise ValueError(f"confidence: expected a number between 0 and 1; got {confidence}")
  if resamples < 2:
    raise ValueError(f"resamples: expected at least 2; got {resamples}")
  values = np.asarray(values, np.float64).ravel()
  values = values[np.isfinite(values)]
  if not len(values):
    return Estimate(math.nan, math.nan, math.nan)
  mean = float(values.mean())
  if len(values) == 1 or np.ptp(values) == 0:
    return Estimate(mean, mean, mean)
  interval = stats.bootstrap(
      (values,), np.mean, confidence_level=confidence, n_resamples=resamples, method="percentile",
      rng=np.random.default_rng(seed)).confidence_interval
  return Estimate(mean, float(interval.low), float(interval.high))


def paired_difference(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray, *,
    confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Estimate:
  """Mean of first - second over the same items; far narrower than two intervals side by side.

  Args:
    first, second: one number an item, in the same order. An item that either did not measure
      (not finite) is left out of both.
    confidence, resamples, seed: as in `bootstrap_mean`.

  Returns:
    mean difference and interval; it excludes 0 where the two differ beyond chance.

  Raises:
    ValueError: different numbers of items.
  """
  first, second = np.asarray(first, np.float64).ravel(), np.asarray(second, np.float64).ravel()
  if first.shape != second.shape:
    raise ValueError(
        f"paired items: expected as many of both; got {len(first)} and {len(second)}")
  return bootstrap_mean(first - second, confidence=confidence, resamples=resamples, seed=seed)
