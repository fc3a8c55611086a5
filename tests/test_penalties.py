"""The anchored penalties: hand values, loop oracles, gradients, and what the vectors leave out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from searchjax.reward.penalties import (
    charged_calls, length_penalty, no_penalty, sample_anchor, tool_anchor_range, tool_penalty,
    unconditional_length_penalty, unconditional_tool_penalty)

length_penalty, tool_penalty, tool_anchor_range, sample_anchor = (
    jax.jit(f) for f in (length_penalty, tool_penalty, tool_anchor_range, sample_anchor))
i32 = lambda *rows: np.asarray(rows, np.int32)
f32 = lambda *rows: np.asarray(rows, np.float32)
flags = lambda *rows: np.asarray(rows, bool)
WEIGHTS = dict(alpha_win=0.5, alpha_lose=0.7, beta_lose=0.1)
OFF = f32(np.inf).reshape(1)
p = lambda excess: 1 - np.exp(-max(0.0, excess))


# --- tool calls ---


def oracle_range(calls, failures, winner, valid):
  charged = [int(c) - int(e) for c, e, w, v in zip(calls, failures, winner, valid) if w and v]
  if not charged:
    return 0, 0
  return min(charged), sum(charged) // len(charged) + (sum(charged) % len(charged) > 0)


def oracle_tool(calls, failures, winner, valid, anchor, alpha_win, alpha_lose, beta_lose):
  out = []
  for c, e, w, v in zip(calls, failures, winner, valid):
    excess = p(int(c) - int(e) - int(anchor)) if (winner & valid).any() else 0.0
    out.append(0.0 if not v else alpha_win * excess if w else alpha_lose * excess + beta_lose)
  return out


counts = hnp.arrays(np.int32, (2, 5), elements=st.integers(0, 7))
marks = hnp.arrays(bool, (2, 5))


@settings(max_examples=25, deadline=None)
@given(counts, counts, marks, marks, st.integers(-1, 6), st.permutations(range(5)))
def test_tool_penalty_against_a_loop_in_any_order(calls, failures, winner, valid, b, order):
  failures = np.minimum(calls, failures)
  low, high = tool_anchor_range(calls, failures, winner, valid)
  rows = list(zip(calls, failures, winner, valid))
  assert list(zip(low.tolist(), high.tolist())) == [oracle_range(*row) for row in rows]
  anchor = i32(b, b)
  got = np.asarray(tool_penalty(calls, failures, winner, valid, anchor, **WEIGHTS))
  np.testing.assert_allclose(got, [oracle_tool(*row, b, **WEIGHTS) for row in rows], atol=1e-6)
  moved = tool_penalty(*(x[:, order] for x in (calls, failures, winner, valid)), anchor, **WEIGHTS)
  np.testing.assert_array_equal(moved, got[:, order])
  # Whatever an invalid rollout did, nothing changes.
  garbage = lambda x: np.where(valid, x, np.int32(-77))
  np.testing.assert_array_equal(
      tool_penalty(garbage(calls), garbage(failures), winner, valid, anchor, **WEIGHTS), got)


def test_tool_penalty_by_hand():
  # Winners charged 2 and 5 - 1 = 4: anchor between 2 and 3. Losers: 6 and 0.
  calls, failures = i32([2, 5, 6, 0]), i32([0, 1, 0, 0])
  winner, valid = flags([1, 1, 0, 0]), flags([1, 1, 1, 1])
  assert [int(x[0]) for x in tool_anchor_range(calls, failures, winner, valid)] == [2, 3]
  got = tool_penalty(calls, failures, winner, valid, i32(3), **WEIGHTS)
  np.testing.assert_allclose(got, [[0, 0.5 * p(1), 0.7 * p(3) + 0.1, 0.1]], rtol=1e-6)
  forgiven = 0.5 * p(5 - 3)
  assert abs(float(got[0, 1]) - forgiven) > 0.1         # the mistake: failed executions charged


def test_anchor_ceiling_is_integer():
  for n, c in [(3, 1), (7, 3), (49, 5), (5, 0)]:        # e.g. 49 * (1/49) is not 1 in float32
    calls = np.full((1, n), c, np.int32)
    low, high = tool_anchor_range(calls, 0 * calls, calls >= 0, calls >= 0)
    assert (int(low[0]), int(high[0])) == (c, c)
  low, high = tool_anchor_range(i32([1, 1, 2]), i32([0, 0, 0]), flags([1] * 3), flags([1] * 3))
  assert (int(low[0]), int(high[0])) == (1, 2)          # floor or rounding of 4/3 would give 1


def test_no_winner_ignores_the_anchor():
  calls = i32([0, 4, 9])
  none, valid = flags([0, 0, 0]), flags([1, 1, 1])
  assert [int(x[0]) for x in tool_anchor_range(calls, 0 * calls, none, valid)] == [0, 0]
  for anchor in (-50, 0, 3):
    got = tool_penalty(calls, 0 * calls, none, valid, i32(anchor), **WEIGHTS)
    np.testing.assert_allclose(got, [[0.1, 0.1, 0.1]])
  # An invalid winner is no winner either.
  got = tool_penalty(calls, 0 * calls, flags([1, 0, 0]), flags([0, 1, 1]), i32(0), **WEIGHTS)
  np.testing.assert_allclose(got, [[0, 0.1, 0.1]])


def test_A9_nothing_below_the_anchor_is_charged():
  calls = i32([1, 2, 3])
  all_right = flags([1, 1, 1])
  got = tool_penalty(calls, 0 * calls, all_right, all_right, i32(3), **WEIGHTS)
  assert got.tolist() == [[0, 0, 0]]                    # centred efficiency would punish the third


def test_A11_timeouts_leave_the_anchor():
  # The invalid "winner" made no call; counted, it would pull the minimum down to 0.
  calls = i32([0, 3, 4])
  low, high = tool_anchor_range(calls, 0 * calls, flags([1, 1, 1]), flags([0, 1, 1]))
  assert (int(low[0]), int(high[0])) == (3, 4)


def test_A1_nan_in_an_invalid_row_enters_nothing():
  calls = f32([np.nan, 3, 4])
  got = tool_penalty(calls, calls * 0, flags([1, 1, 0]), flags([0, 1, 1]), i32(3), **WEIGHTS)
  np.testing.assert_allclose(got, [[0, 0, 0.7 * p(1) + 0.1]], rtol=1e-6)
  assert charged_calls(calls, calls * 0, flags([0, 1, 1])).tolist() == [[0, 3, 4]]


def test_gradients_with_respect_to_the_weights():
  calls, winner, valid = i32([2, 5, 6]), flags([1, 1, 0]), flags([1, 1, 1])
  total = lambda w: jnp.sum(tool_penalty(calls, 0 * calls, winner, valid, i32(2), **w))
  slope = jax.jit(jax.grad(total))({k: jnp.float32(x) for k, x in WEIGHTS.items()})
  np.testing.assert_allclose([slope[k] for k in WEIGHTS], [p(3), p(4), 1], rtol=1e-6)


def test_anchor_draws_include_both_ends_uniformly():
  low, high = np.full(6000, 2, np.int32), np.full(6000, 4, np.int32)
  draws = np.asarray(sample_anchor(jax.random.key(0), low, high))
  assert draws.dtype == np.int32
  shares = [(draws == b).mean() for b in (2, 3, 4)]
  np.testing.assert_allclose(shares, 1 / 3, atol=0.02)
  assert (draws >= 2).all() and (draws <= 4).all()


def test_anchor_is_fixed_by_its_key():
  low, high = i32(0, 3, 5), i32(9, 3, 8)
  keys = jax.vmap(lambda q: jax.random.fold_in(jax.random.key(7), q))(jnp.arange(3))
  drawn = sample_anchor(keys, low, high)
  assert drawn.tolist() == sample_anchor(keys, low, high).tolist() and drawn[1] == 3
  # One key a group: a group draws the same whichever groups stand beside it.
  assert drawn[::-1].tolist() == sample_anchor(keys[::-1], low[::-1], high[::-1]).tolist()
  old_style = jax.random.PRNGKey(7)
  assert sample_anchor(old_style, low, high).tolist() == sample_anchor(
      jax.random.key(7), low, high).tolist()


# --- length ---


def oracle_length(length, ref_length, winner, preference, valid, cap):
  n = len(length)
  has = [bool(valid[i]) and float(ref_length[i]) >= 0 for i in range(n)]
  good = [bool(valid[i]) and bool(winner[i]) and float(preference[i]) >= 0.5 for i in range(n)]
  mean = lambda js: sum(max(float(ref_length[j]), 1) for j in js) / len(js) if js else None
  b_win = mean([j for j in range(n) if has[j] and good[j]])
  b_lose = mean([j for j in range(n) if has[j] and not good[j]])
  out = []
  for i in range(n):
    L = float(length[i])
    if not valid[i] or not any(has):
      out.append(0.0)
    elif L > cap:
      out.append(1.0)
    elif good[i]:
      out.append(0.0 if b_win is None else p(L / b_win - 1))
    else:
      out.append(1.0 if L == 0 else 0.0 if b_lose is None else p(b_lose / L - 1))
  return out


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.int32, (2, 5), elements=st.integers(0, 60)),
       hnp.arrays(np.int32, (2, 5), elements=st.integers(-1, 40)), marks,
       hnp.arrays(np.float32, (2, 5), elements=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])),
       marks, st.sampled_from([0.0, 13.0, 40.0, np.inf]), st.permutations(range(5)))
def test_length_penalty_against_a_loop_in_any_order(
    length, ref_length, winner, preference, valid, cap, order):
  rows, cap = (length, ref_length, winner, preference, valid), f32(cap, cap)
  got = np.asarray(length_penalty(*rows, cap=cap))
  np.testing.assert_allclose(got, [oracle_length(*row, cap[0]) for row in zip(*rows)], atol=1e-6)
  moved = length_penalty(*(x[:, order] for x in rows), cap=cap)
  np.testing.assert_allclose(moved, got[:, order], atol=1e-6)
  spoilt = [np.where(valid, x.astype(np.float32), np.float32(np.nan)) for x in rows[:2]]
  spoilt += [winner, np.where(valid, preference, np.float32(np.nan)), valid]
  np.testing.assert_array_equal(length_penalty(*spoilt, cap=cap), got)


def test_length_penalty_by_hand():
  # W^ = {0}: b_win = 20. The rest, a disliked winner and two losers: b_lose = (10 + 30 + 50) / 3.
  length, ref_length = i32([30, 60, 15, 61]), i32([20, 10, 30, 50])
  winner, s = flags([1, 1, 0, 0]), f32([0.5, 0.4, 0.9, 0.1])
  got = length_penalty(length, ref_length, winner, s, flags([1] * 4), cap=f32(60).reshape(1))
  np.testing.assert_allclose(got, [[p(0.5), 0, p(1), 1]], rtol=1e-6)
  # The common mistake: "loser" read as "wrong answer" moves the disliked winner across.
  assert abs(float(got[0, 1]) - p(60 / 15 - 1)) > 0.9


def test_a_zero_length_loser_pays_one_and_a_zero_length_winner_nothing():
  got = length_penalty(i32([0, 0]), i32([5, 5]), flags([0, 1]), f32([1, 1]), flags([1, 1]), cap=OFF)
  assert got.tolist() == [[1, 0]]


def test_references_count_as_at_least_one_token():
  got = length_penalty(i32([3]), i32([0]), flags([1]), f32([1]), flags([1]), cap=OFF)
  np.testing.assert_allclose(got, [[p(2)]], rtol=1e-6)


@pytest.mark.parametrize("missing", [-1.0, np.nan])
def test_no_valid_reference_no_penalty_and_no_cap(missing):
  got = length_penalty(f32([9, 0]), f32([missing] * 2), flags([1, 0]), f32([1, 1]), flags([1, 1]),
                       cap=f32(1).reshape(1))
  assert got.tolist() == [[0, 0]]
  # One reference left: the other set has nothing to average, and pays for the cap alone.
  got = length_penalty(f32([9, 9, 50]), f32([missing, 4, missing]), flags([1, 0, 1]),
                       f32([1, 1, 1]), flags([1] * 3), cap=f32(40).reshape(1))
  np.testing.assert_allclose(got, [[0, 0, 1]])


def test_caps():
  rows = (i32([10, 11, 12]), i32([11, 11, 11]), flags([0, 0, 0]), f32([0, 0, 0]), flags([1, 1, 1]))
  assert length_penalty(*rows, cap=f32(11).reshape(1))[0, 1:].tolist() == [0, 1]     # above, not at
  assert length_penalty(*rows, cap=OFF)[0, 2] == 0
  assert length_penalty(*rows, cap=f32(3).reshape(1)).tolist() == [[1, 1, 1]]


def test_one_invalid_member_leaves_both_means():
  rows = [i32([30, 30, 7]), i32([20, 1000, 9]), flags([1, 1, 0]), f32([1, 1, 1])]
  got = length_penalty(*rows, flags([1, 0, 1]), cap=OFF)
  np.testing.assert_allclose(got, [[p(0.5), 0, p(9 / 7 - 1)]], rtol=1e-6)


def test_length_gradients():
  length, ref_length = jnp.asarray([[30.0, 8.0, 0.0, np.nan, 5.0]]), f32([20, 16, 16, 9, 4])
  winner, s, valid = flags([1, 0, 0, 1, 1]), f32([1, 1, 1, 1, 1]), flags([1, 1, 1, 0, 1])
  total = lambda L: jnp.sum(length_penalty(L, ref_length, winner, s, valid, cap=OFF))
  slope = np.asarray(jax.jit(jax.grad(total))(length))
  b_win, b_lose = 12.0, 16.0
  np.testing.assert_allclose(slope, [[np.exp(-1.5) / b_win, -np.exp(-1) * b_lose / 64, 0, 0, 0]],
                             rtol=1e-5)
  # With respect to the references: through the means, and never through a hole.
  slope = np.asarray(jax.jit(jax.grad(lambda r: jnp.sum(length_penalty(
      f32([30, 8]), r, flags([1, 0]), f32([1, 1]), flags([1, 1]), cap=OFF))))(f32([20, np.nan])))
  np.testing.assert_allclose(slope, [[-np.exp(-0.5) * 30 / 400, 0]], rtol=1e-5)


# --- ablations ---


def test_unconditional_penalties_are_linear_and_blind():
  valid = flags([1, 1, 0])
  got = unconditional_tool_penalty(i32([3, 2, 9]), i32([1, 0, 0]), valid, per_call=0.4)
  np.testing.assert_allclose(got, [[0.8, 0.8, 0]], rtol=1e-6)
  got = unconditional_length_penalty(f32([100, 50, np.nan]), valid, per_token=0.01)
  np.testing.assert_allclose(got, [[1, 0.5, 0]], rtol=1e-6)
  assert no_penalty(valid).tolist() == [[0, 0, 0]]


def test_under_jit():
  rows = (i32([2, 5, 6, 0]), i32([0, 1, 0, 0]), flags([1, 1, 0, 0]), flags([1, 1, 1, 1]))
  both = jax.jit(lambda key, *rows: tool_penalty(
      *rows, sample_anchor(key, *tool_anchor_range(*rows)), **WEIGHTS))
  assert both(jax.random.key(0), *rows).shape == (1, 4)
