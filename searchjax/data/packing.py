"""Packing conversations of different lengths into rows of one length.  PURE.

  loss_mask[row, t] is True where token t is a target: it was written by the agent and is predicted
  from token t - 1 of the same segment (so never at a segment's first token).

Segments are numbered from 1 within a row; 0 is padding. Positions restart at every segment.
Padding is told from text by its segment, never by its id: the end token may be the pad token.

Letters  T positions of a row.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int


@dataclasses.dataclass(frozen=True)
class Packed:
  """Rows of packed segments, and how many examples were too long to pack."""

  tokens: Int[np.ndarray, "rows T"]
  segment_ids: Int[np.ndarray, "rows T"]
  positions: Int[np.ndarray, "rows T"]
  loss_mask: Bool[np.ndarray, "rows T"]
  dropped: int


def target_mask(mask: Sequence[bool]) -> Bool[np.ndarray, "T"]:
  """The agent's tokens as prediction targets: the first token has nothing before it."""
  result = np.asarray(mask, bool).copy()
  result[:1] = False
  return result


def pack(
  examples: Sequence[tuple[Sequence[int], Sequence[bool]]], length: int, *, pad_id: int = 0
) -> Packed:
  """Packs examples first-fit, in order, into as many rows as they need.

  Args:
    examples: (ids, mask) pairs; mask is True on the tokens the agent wrote.
    length: positions of a row.
    pad_id: id written where no segment stands.

  Returns:
    int32 tokens, segment_ids and positions, a bool loss_mask, and the count of examples longer
    than a row, which are left out whole. No example: zero rows.

  Raises:
    ValueError: length below 2, an empty example, or a mask of another length than its ids.
  """
  if length < 2:
    raise ValueError(f"rows must have at least 2 positions, got length {length}")
  used: list[int] = []
  count: list[int] = []
  placed = []
  dropped = 0
  for number, (ids, mask) in enumerate(examples):
    if not len(ids) or len(ids) != len(mask):
      raise ValueError(f"example {number}: expected ids and a mask of the same length above 0, "
                       f"got {len(ids)} and {len(mask)}")
    if len(ids) > length:
      dropped += 1
      continue
    row = next((r for r, full in enumerate(used) if full + len(ids) <= length), len(used))
    if row == len(used):
      used.append(0)
      count.append(0)
    count[row] += 1
    placed.append((row, used[row], count[row], ids, mask))
    used[row] += len(ids)
  shape = (len(used), length)
  tokens = np.full(shape, pad_id, np.int32)
  segment_ids, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
  loss_mask = np.zeros(shape, bool)
  for row, start, segment, ids, mask in placed:
    at = slice(start, start + len(ids))
    tokens[row, at] = ids
    segment_ids[row, at] = segment
    positions[row, at] = np.arange(len(ids))
    loss_mask[row, at] = target_mask(mask)
  return Packed(tokens, segment_ids, positions, loss_mask, dropped)
