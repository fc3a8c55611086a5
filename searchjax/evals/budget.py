"""Budget-forced evaluation: accuracy against the number of calls a policy may make.  HOST.

For every stated cap b = 0, 1, ... the mean accuracy with its interval, the calls made, the cost
(SPEC 4, Figure 5). Nothing is read or written.

Source   SPEC 4.
"""

import math
import statistics
from collections.abc import Iterable, Mapping

from searchjax.evals.statistics import bootstrap_mean


def budget_summary(
    records: Iterable[Mapping], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> list[dict]:
  """One row a budget, in rising order.

  Args:
    records: one mapping a question and budget: "budget" (cap, int), "correct" (0 or 1, or a mean
      over rollouts; NaN or None: the rollout was invalid), "calls" (made), and optionally "cents".
    confidence, resamples, seed: of the bootstrap, as in `bootstrap_mean`.

  Returns:
    [{"budget", "accuracy", "low", "high", "calls", "cents_per_query", "n", "invalid"}, ...].
    Invalid rollouts leave every mean and are counted; cents_per_query is NaN without cents.

  Raises:
    ValueError: a record lacks a field, or a budget is negative.
  """
  rows: dict[int, list[Mapping]] = {}
  for number, record in enumerate(records):
    missing = [name for name in ("budget", "correct", "calls") if name not in record]
    if missing:
      raise ValueError(f"budget record {number}: expected the fields budget, correct and calls; "
                       f"{', '.join(missing)} missing")
    if record["budget"] < 0:
      raise ValueError(
          f"budget record {number}: expected a budget of at least 0; got {record['budget']}")
    rows.setdefault(int(record["budget"]), []).append(record)
  summary = []
  for budget, group in sorted(rows.items()):
    known = [r for r in group if r["correct"] is not None and math.isfinite(r["correct"])]
    accuracy = bootstrap_mean([r["correct"] for r in known], confidence=confidence,
                              resamples=resamples, seed=seed)
    values = lambda name: [r[name] for r in known if name in r]
    mean = lambda name: statistics.fmean(values(name)) if values(name) else math.nan
    summary.append({
        "budget": budget, "accuracy": accuracy.mean, "low": accuracy.low, "high": accuracy.high,
        "calls": mean("calls"), "cents_per_query": mean("cents"), "n": len(known),
        "invalid": len(group) - len(known)})
  return summary


def saturation_budget(summary: list[dict]) -> int | None:
  """Smallest budget whose accuracy lies within the best budget's interval; None without rows.

  Args:
    summary: from `budget_summary`.

  Returns:
    the budget beyond which more calls bring nothing that the data can show.
  """
  rows = [row for row in summary if math.isfinite(row["accuracy"])]
  if not rows:
    return None
  best = max(rows, key=lambda row: row["accuracy"])
  return next(row["budget"] for row in rows if row["accuracy"] >= best["low"])
