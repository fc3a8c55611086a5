"""Conversation states: windows of positions written into stretches of a stacked cache."""

import jax
import numpy as np
import pytest

from searchjax.model.cache import stacked_cache_specs, write_window
from searchjax.model.config import model_config

S, J = 11, 5
write = jax.jit(write_window)


@pytest.mark.parametrize("first", [0, 11, 22])
@pytest.mark.parametrize("start, count", [
  (0, 5), (3, 2), (9, 5), (8, 3), (10, 1), (11, 5), (19, 4), (20, 5), (21, 0), (7, 5),
])
def test_a_window_is_written_where_its_positions_are_held(first, start, count):
  rng = np.random.default_rng(0)
  stack, block = rng.normal(size=(3, 4, 2, S, 6)), rng.normal(size=(3, 1, 2, J, 6))
  stack, block = stack.astype(np.float32), block.astype(np.float32)
  want = stack.copy()
  for j in range(count):
    if 0 <= start + j - first < S:
      want[:, 2, :, start + j - first] = block[:, 0, :, j]
  integer = lambda n: np.int32(n)
  got = write(stack, block, integer(0), integer(2), integer(first), integer(start), integer(count))
  np.testing.assert_array_equal(got, want)
  # Where a plain update-slice would move a window that reaches past the stretch to fit.
  if first == 0 and start == 9:
    assert (got[:, 2, :, 6:9] == stack[:, 2, :, 6:9]).all()


def test_a_window_of_one_group_leaves_the_others():
  stack = np.zeros((3, 2, 1, S, 2), np.float32)
  block = np.ones((1, 1, 1, J, 2), np.float32)
  got = write(stack, block, *(np.int32(n) for n in (1, 0, 0, 4, 5)))
  assert got.sum() == 2 * J and got[1, 0, :, 4:9].sum() == 2 * J


def test_a_model_without_deltanet_has_no_states():
  qwen3 = stacked_cache_specs(model_config("qwen3-30b-a3b"), 5, 7)
  assert qwen3.states is None and qwen3.tails is None
  assert qwen3.keys.shape == (48, 5, 4, 7, 128)
  qwen35 = stacked_cache_specs(model_config("qwen3.5-397b-a17b"), 5, 7)
  assert qwen35.states.shape == (15, 3, 5, 64, 128, 128) and qwen35.states.dtype == "float32"
  assert qwen35.tails["key"].shape == (15, 3, 5, 3, 16, 128)
