"""pass@4: what none or all pass is dropped, what has no verdict is no failure."""

import numpy as np
import pytest

from searchjax.reward.calibration import calibrate

NAN = np.nan


def test_worked_report():
  rewards = np.array([
    [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [1, NAN, 0, 0], [NAN, 1, 1, 1], [NAN, NAN, NAN, 1],
    [0, 1, 1, 1],
  ], np.float32)
  kept, report = calibrate(rewards, unscored_share=0.2)
  assert kept == [0, 3, 6]
  assert report == {
    "chats": 7, "kept": 3, "none_pass": 1, "all_pass": 2, "unscored": 1, "unscored_answers": 5,
    "pass_rate": pytest.approx(14 / 23), "passes": {"0": 1, "1": 2, "2": 1, "3": 2, "4": 1},
  }


def test_J1_no_report_where_the_judge_mostly_failed():
  with pytest.raises(ValueError, match="50% of the answers have no verdict, above 20%"):
    calibrate(np.array([[1, NAN]], np.float32))
  with pytest.raises(ValueError, match="no rubric chats"):
    calibrate(np.zeros((0, 4), np.float32))
