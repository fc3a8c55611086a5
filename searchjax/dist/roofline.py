"""From counted work to the shortest possible time, and what a whole run holds and costs.  PURE.

  compute  FLOPs / peak            HBM  bytes / bandwidth
  ICI      max over sets S of mesh axes of (bytes sent along axes of S only) / Σ_{a in S} rate_a
  floor    the largest of the three: everything overlaps everything, every unit is always busy.
  MFU      at most model FLOPs / (peak · floor)

A floor is no forecast of a measured time; a real step is slower.

Letters  S, a set of mesh axes.
Source   the roofline model; constants and their sources stand in `searchjax.dist.topology`.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from searchjax.dist.topology import Chip


@dataclasses.dataclass(frozen=True)
class Floor:
  """Seconds that one call takes at least, by what it waits for."""

  compute: float
  hbm: float
  ici: float

  @property
  def seconds(self) -> float:
    return max(self.compute, self.hbm, self.ici)

  @property
  def bound(self) -> str:
    """What the floor is set by."""
    return max(("compute", "hbm", "ici"), key=lambda name: getattr(self, name))


def time_floor(
  chip: Chip, flops: float, hbm: float, sent: Mapping[str, float], rates: Mapping[str, float]
) -> Floor:
  """The floor of one call on one device.

  Args:
    flops: executed FLOPs.
    hbm: bytes moved in HBM.
    sent: bytes sent, by mesh axes joined with "+"; axes of unknown rate are left out.
    rates: B/s by mesh axis.
  """
  ici = 0.0
  for count in range(1, len(rates) + 1):
    for axes in itertools.combinations(rates, count):
      inside = sum(value for names, value in sent.items() if set(names.split("+")) <= set(axes))
      ici = max(ici, inside / sum(rates[axis] for axis in axes))
  return Floor(flops / chip.flops, hbm / chip.hbm_rate, ici)


def mfu_ceiling(chip: Chip, model_flops: float, floor: Floor) -> float:
  """The highest model-FLOPs utilisation the floor allows; NaN for a program without model FLOPs."""
  if not model_flops or not floor.seconds:
    return math.nan
  return model_flops / (chip.flops * floor.seconds)


def held_bytes(own: float, resident: Mapping[str, float]) -> float:
  """What a device holds while a program runs: the program's own memory and what stays beside it."""
  return own + sum(resident.values())


def chip_hours(seconds: Sequence[float], calls: Sequence[float], chips: int) -> float:
  """Chip-hours of one step whose programs take `seconds` and are called `calls` times."""
  return sum(s * c for s, c in zip(seconds, calls, strict=True)) * chips / 3600
