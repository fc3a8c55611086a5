"""Packing: every token once, targets where they belong; FAULTS M2, M4."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchjax.data.packing import pack, target_mask


def test_m2_the_first_response_token_is_a_target():
  packed = pack([([7, 8, 9, 10, 11], [False] * 3 + [True] * 2)], 8)
  assert packed.loss_mask[0].nonzero()[0].tolist() == [3, 4]  # tokens 4 and 5: predicted from 3, 4
  assert packed.loss_mask[0].nonzero()[0].tolist() != [4, 5]


def test_m4_an_end_token_that_is_also_the_pad_token_stays_a_target():
  end = 2
  packed = pack([([5, 6, end], [False, True, True])], 4, pad_id=end)
  assert packed.tokens[0].tolist() == [5, 6, end, end]
  assert packed.loss_mask[0].tolist() == [False, True, True, False]
  assert packed.segment_ids[0].tolist() == [1, 1, 1, 0]


def test_a_segments_first_token_is_never_a_target():
  packed = pack([([5, 6], [True, True]), ([7, 8, 9], [True] * 3)], 5)
  assert packed.tokens.tolist() == [[5, 6, 7, 8, 9]]
  assert packed.loss_mask.tolist() == [[False, True, False, True, True]]
  assert packed.segment_ids.tolist() == [[1, 1, 2, 2, 2]]
  assert packed.positions.tolist() == [[0, 1, 0, 1, 2]]
  assert target_mask([]).shape == (0,)


def test_too_long_examples_are_counted():
  packed = pack([([1] * 6, [True] * 6), ([2], [True])], 5)
  assert packed.dropped == 1 and packed.tokens.shape == (1, 5)
  assert pack([], 5).tokens.shape == (0, 5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 11), max_size=23))
def test_every_example_stands_whole_in_one_row(sizes):
  examples = [([100 * n + i for i in range(size)], [i % 2 == 1 for i in range(size)])
              for n, size in enumerate(sizes)]
  packed = pack(examples, 11, pad_id=-1)
  found = []
  for row in range(len(packed.tokens)):
    for segment in range(1, packed.segment_ids[row].max() + 1):
      at = packed.segment_ids[row] == segment
      assert np.array_equal(packed.positions[row][at], np.arange(at.sum()))
      found.append((packed.tokens[row][at].tolist(), packed.loss_mask[row][at].tolist()))
  assert sorted(found) == sorted(examples)
  assert (packed.tokens[packed.segment_ids == 0] == -1).all()


def test_bad_examples_are_named():
  with pytest.raises(ValueError, match="example 1: expected ids and a mask of the same length"):
    pack([([1], [True]), ([1, 2], [True])], 4)
  with pytest.raises(ValueError, match="at least 2 positions, got length 1"):
    pack([], 1)
