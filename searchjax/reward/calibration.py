"""Which rubric chats are worth training on: pass@4 calibration.  HOST.

Of several answers to a chat each is judged on all rubrics; a chat that none or all pass is dropped:
every group would have equal rewards. Section: SPEC 1.3.
"""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float


def calibrate(
  rewards: Float[np.ndarray, "n samples"], *, unscored_share: float = 0.2
) -> tuple[list[int], dict[str, Any]]:
  """The chats to keep, and an account of the rest.

  An answer without a verdict leaves its chat's count and is no failure (FAULTS J1); a chat with
  fewer than two verdicts is dropped as unscored.

  Args:
    rewards: 1 where an answer passes every rubric, 0 where not, NaN where there is no verdict.
    unscored_share: of all answers, above which there is no report at all.

  Returns:
    the indices of kept chats, and a report: "chats", "kept", "none_pass", "all_pass", "unscored",
    "unscored_answers", "pass_rate" of scored answers, "passes": how many chats had so many passes.

  Raises:
    ValueError: no chats, or more answers without a verdict than are borne.
  """
  if not rewards.size:
    raise ValueError("no rubric chats to calibrate")
  scored = ~np.isnan(rewards)
  missing = 1.0 - float(scored.mean())
  if missing > unscored_share:
    raise ValueError(
      f"{missing:.0%} of the answers have no verdict, above {unscored_share:.0%}; mend the judge "
      f"and give the same command again")
  passes = np.nansum(rewards, axis=1).astype(int)
  fates = [
    "unscored" if n < 2 else "none_pass" if k == 0 else "all_pass" if k == n else "kept"
    for k, n in zip(passes, scored.sum(axis=1), strict=True)
  ]
  counts = collections.Counter(fates)
  report = {"chats": len(fates)} | {
    name: counts[name] for name in ("kept", "none_pass", "all_pass", "unscored")
  } | {
    "unscored_answers": int((~scored).sum()), "pass_rate": float(np.nanmean(rewards)),
    "passes": {str(k): int(n) for k, n in sorted(collections.Counter(passes.tolist()).items())},
  }
  return [i for i, fate in enumerate(fates) if fate == "kept"], report
