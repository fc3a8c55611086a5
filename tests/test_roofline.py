"""Time floors, MFU ceilings, what is held, chip-hours: by hand."""

import math

import pytest

from searchjax.dist import roofline
from searchjax.dist.topology import CHIPS

CHIP = CHIPS["v5p"]  # 4.59e14 FLOP/s, 2.765e12 B/s.
RATES = {"fsdp": 4e11, "expert": 2e11}


def test_the_floor_is_the_slowest_of_the_three():
  floor = roofline.time_floor(CHIP, 9.18e14, 2.765e12, {"expert": 6e11}, RATES)
  assert (floor.compute, floor.hbm, floor.ici) == pytest.approx((2.0, 1.0, 3.0))
  assert (floor.seconds, floor.bound) == (pytest.approx(3.0), "ici")
  assert roofline.time_floor(CHIP, 9.18e14, 0, {}, {}).bound == "compute"


def test_axes_send_at_the_same_time_and_a_joint_collective_uses_both():
  ici = lambda sent: roofline.time_floor(CHIP, 0, 0, sent, RATES).ici
  assert ici({"fsdp": 4e11, "expert": 2e11}) == pytest.approx(1.0)  # Not 2: they overlap.
  assert ici({"fsdp+expert": 6e11}) == pytest.approx(1.0)
  assert ici({"fsdp": 4e11, "fsdp+expert": 8e11}) == pytest.approx(2.0)  # 12e11 over both.
  assert ici({"none": 1e15}) == 0


def test_the_prototypes_step_stays_under_its_ceiling():
  """1.605e15 model FLOPs, 2.729e15 executed: 59 % at best."""
  floor = roofline.time_floor(CHIP, 2.729e15, 1.12e13, {"fsdp": 3.43e11, "expert": 2.84e11}, RATES)
  assert floor.seconds == pytest.approx(5.95, abs=0.01)
  assert roofline.mfu_ceiling(CHIP, 1.605e15, floor) == pytest.approx(0.588, abs=0.001)
  assert math.isnan(roofline.mfu_ceiling(CHIP, 0.0, floor))


def test_a_run_holds_the_program_and_what_stays_beside_it():
  assert roofline.held_bytes(31e9, {"decode copy": 3e9, "caches": 2e9}) == 36e9


def test_chip_hours_count_calls():
  assert roofline.chip_hours([6.0, 0.5], [1, 24], chips=256) == pytest.approx(18 * 256 / 3600)
