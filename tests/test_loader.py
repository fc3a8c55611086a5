"""Batches through grain: exact mixtures, resumable position, process shares; FAULTS C1, C2, M4, M3."""

import json
import subprocess
import sys

import numpy as np
import pytest

from searchjax.data.loader import mixture, rollout_batches, sft_batches

SIZES = {"tool_use": 53, "preference": 7}


def examples():
  """Each example holds one number over and over: source * 1000 + index."""
  return {
    name: [([1000 * (s + 1) + i] * (3 + (5 * i) % 17), [False] + [True] * (2 + (5 * i) % 17))
           for i in range(count)]
    for s, (name, count) in enumerate(SIZES.items())
  }


def stream(**changes):
  arguments = dict(weights={"tool_use": 0.75, "preference": 0.25}, rows=4, length=29, seed=3)
  return sft_batches(examples(), **(arguments | changes))


def seen(batches):
  """The example numbers in a list of batches."""
  return [
    int(batch["tokens"][row][batch["segment_ids"][row] == segment][0])
    for batch in batches for row in range(len(batch["tokens"]))
    for segment in range(1, batch["segment_ids"][row].max() + 1)
  ]


def take(source, count):
  return [next(source) for _ in range(count)]


def same(one, two):
  return all(np.array_equal(a[k], b[k]) for a, b in zip(one, two, strict=True) for k in a)


def test_rows_are_whole_examples_in_the_stated_types():
  batch = next(stream())
  assert {k: (v.shape, v.dtype.name) for k, v in batch.items()} == {
    "tokens": ((4, 29), "int32"), "segment_ids": ((4, 29), "int32"),
    "positions": ((4, 29), "int32"), "loss_mask": ((4, 29), "bool")}
  for row in range(4):
    for segment in range(1, batch["segment_ids"][row].max() + 1):
      at = batch["segment_ids"][row] == segment
      assert len(set(batch["tokens"][row][at])) == 1
      assert batch["loss_mask"][row][at].tolist() == [False] + [True] * (at.sum() - 1)


def test_the_mixture_is_exact_whatever_the_sizes():
  numbers = seen(take(stream(prefetch=0), 70))
  share = sum(n >= 2000 for n in numbers) / len(numbers)
  # Only examples still waiting in open rows can tip it.
  assert abs(share - 0.25) < 32 / len(numbers)
  only = seen(take(stream(weights={"tool_use": 1.0, "preference": 0.0}), 9))
  assert max(only) < 2000


def whole_numbers(weights, total):
  return all((w * total / sum(weights)) == int(w * total / sum(weights)) for w in weights)


@pytest.mark.parametrize("weights", [
  (0.9, 0.1), (90, 10), (1, 1), (0.25, 0.5, 0.25), (0.7, 0.2, 0.1), (1 / 3, 2 / 3), (2 ** 0.5, 1.0)])
def test_every_window_of_1000_drawn_examples_holds_the_shares(weights):
  names = [f"source {i}" for i in range(len(weights))]
  # Grain's shuffle of a few examples is slow.
  sources = {name: [([i + 1], [True])] * (3001 + i) for i, name in enumerate(names)}
  drawn, _ = mixture(sources, weights=dict(zip(names, weights)), length=2, seed=0)
  which = np.asarray([drawn[i]["tokens"][0] - 1 for i in range(3001)])
  for source, weight in enumerate(weights):
    counts = np.cumsum(np.concatenate([[0], which == source]))
    windows = counts[1000:] - counts[:-1000]
    share = 1000 * weight / sum(weights)
    if whole_numbers(weights, 1000):
      assert set(windows) == {round(share)}, (source, set(windows))
    else:
      assert abs(windows - share).max() < len(weights)


def test_packing_reorders_the_draws_within_four_batches():
  """So a window of what a trainer reads is off by what four batches at its ends hold, at most."""
  drawn, _ = mixture(examples(), weights={"tool_use": 0.75, "preference": 0.25}, length=29, seed=3)
  batches, start = take(stream(prefetch=0), 24), 0
  for i in range(0, 24, 4):
    numbers = seen(batches[i : i + 4])
    run = [int(drawn[start + j]["tokens"][0]) for j in range(len(numbers))]
    assert sorted(numbers) == sorted(run) and numbers != run
    start += len(numbers)


def test_every_pass_over_a_source_holds_every_example_and_is_shuffled_anew():
  numbers = [n for n in seen(take(stream(prefetch=0), 70)) if n >= 2000]
  counts = np.bincount(np.asarray(numbers) - 2000, minlength=7)
  assert counts.min() > 0 and counts.max() - counts.min() <= 5
  assert numbers[:7] != numbers[7:14]


def test_c1_a_stored_position_gives_the_batches_that_followed():
  source = stream()
  take(source, 5)
  state = json.loads(json.dumps(source.get_state()))
  after = take(source, 6)
  resumed = stream()
  resumed.set_state(state)
  assert same(after, take(resumed, 6))
  other = stream(seed=4)
  assert not same(take(other, 5), take(stream(), 5))


@pytest.mark.parametrize("before, after", [(1, 4), (4, 2)])
def test_c2_a_position_inside_an_epoch_goes_on_with_another_number_of_processes(before, after):
  """Nothing is lost and nothing comes twice, though batches were prepared ahead."""
  def parts(count):
    return [stream(weights={"tool_use": 1.0, "preference": 0.0}, prefetch=3, process_index=p,
                   process_count=count) for p in range(count)]

  def joined(streams, count):
    rows = [[next(one) for one in streams] for _ in range(count)]
    return [{k: np.concatenate([r[k] for r in row]) for k in row[0]} for row in rows]

  whole = take(stream(weights={"tool_use": 1.0, "preference": 0.0}), 11)
  first = parts(before)
  head = joined(first, 3)  # 53 examples are an epoch; three batches hold fewer
  state = json.loads(json.dumps(first[before - 1].get_state()))
  assert len(seen(head)) < 53
  resumed = parts(after)
  for one in resumed:
    one.set_state(state)
  assert same(head + joined(resumed, 8), whole)
  counts = np.bincount(np.asarray(seen(whole)) - 1000, minlength=53)
  # Ahead of the position are only prepared batches, which come again: no example is passed over.
  assert counts.min() >= 1


def test_prefetching_changes_nothing():
  assert same(take(stream(prefetch=3), 5), take(stream(prefetch=0), 5))


@pytest.mark.parametrize("count", [2, 4])
def test_processes_split_the_batches_of_one_process_and_have_one_position(count):
  """So a run may go on with another number of processes."""
  parts = [stream(process_index=p, process_count=count) for p in range(count)]
  for batch in take(stream(), 7):
    rows = [next(part) for part in parts]
    assert {len(r["tokens"]) for r in rows} == {4 // count}
    assert same([batch], [{k: np.concatenate([r[k] for r in rows]) for k in batch}])
  states = [json.dumps(part.get_state()) for part in parts]
  assert len(set(states)) == 1
  fewer = stream()
  fewer.set_state(json.loads(states[0]))
  assert same(take(fewer, 1), [dict(zip(batch, map(np.concatenate, zip(*(next(p).values() for p in parts),
                                                                       strict=True)), strict=True))])


def test_pads_are_told_by_segment_not_by_id():
  batch = next(stream(pad_id=1001))
  assert (batch["tokens"][batch["segment_ids"] == 0] == 1001).all()
  assert not batch["loss_mask"][batch["segment_ids"] == 0].any()


def test_too_long_examples_are_counted_by_source():
  assert stream(length=12).dropped["tool_use"] == sum(3 + (5 * i) % 17 > 12 for i in range(53))


def test_bad_mixtures_are_named():
  with pytest.raises(ValueError, match="only in one: .*'chat'"):
    stream(weights={"chat": 1.0})
  with pytest.raises(ValueError, match="one above it"):
    stream(weights={"tool_use": 0.0, "preference": 0.0})
  with pytest.raises(ValueError, match="none of 7 examples fits a row of 2 tokens, the shortest has 3;"):
    stream(length=2)
  with pytest.raises(ValueError, match="rows must be a multiple"):
    stream(process_count=3)


def record(size, number=0, valid=True):
  return {"tokens": [number + 1] * size, "mask": [True] + [i % 2 == 1 for i in range(1, size)],
          "logp": [-0.5] * size, "advantage": float(number), "valid": valid}


def test_rollouts_fill_buckets_in_order_and_the_rest_with_invalid_rows():
  records = [record(size, n) for n, size in enumerate((5, 11, 3, 7, 13, 2, 5))]
  source = rollout_batches(records, rows=3, lengths=(7, 13), pad_id=9)
  batches = list(source)
  assert [b["tokens"].shape for b in batches] == [(3, 7), (3, 7), (3, 13)]
  assert source.batches == 3 and source.padded_rows == 2
  kept = np.concatenate([b["advantage"][b["valid"]] for b in batches])
  assert sorted(kept.tolist()) == list(range(7))  # nothing dropped
  first = batches[0]
  assert first["lengths"].tolist() == [5, 3, 7]
  assert first["tokens"][1].tolist() == [3, 3, 3, 9, 9, 9, 9]
  assert first["mask"][0].tolist() == [False, True, False, True, False, False, False]
  assert first["logp"][0].tolist() == [0, -0.5, 0, -0.5, 0, 0, 0]
  assert {k: v.dtype.name for k, v in first.items()} == {
    "tokens": "int32", "mask": "bool", "logp": "float32", "advantage": "float32",
    "valid": "bool", "lengths": "int32"}
  filling = batches[2]
  assert filling["valid"].tolist() == [True, True, False] and filling["lengths"][2] == 0
  assert not filling["mask"][2].any()


def test_m3_off_the_mask_no_log_probability_is_carried():
  batch = next(rollout_batches([record(5)], rows=1, lengths=(6,)))
  assert (batch["logp"][~batch["mask"]] == 0).all() and batch["mask"].any()


def test_invalid_rollouts_carry_neither_targets_nor_advantage():
  bad = record(4, 3, valid=False) | {"advantage": float("nan"), "logp": [float("nan")] * 4}
  batch = next(rollout_batches([bad], rows=1, lengths=(5,)))
  assert not batch["valid"][0] and not batch["mask"].any()
  assert batch["advantage"][0] == 0 and (batch["logp"] == 0).all()


def test_processes_split_the_batches_of_a_step():
  records = [record(4, n) for n in range(5)]
  whole = next(rollout_batches(records, rows=6, lengths=(5,)))
  parts = [next(rollout_batches(records, rows=6, lengths=(5,), process_index=p, process_count=3))
           for p in range(3)]
  assert all(np.array_equal(whole[k], np.concatenate([p[k] for p in parts])) for k in whole)
  assert list(rollout_batches([], rows=2, lengths=(5,))) == []


def test_bad_rollouts_are_named():
  with pytest.raises(ValueError, match="record 0: 8 tokens do not fit the longest bucket, 7"):
    rollout_batches([record(8)], rows=1, lengths=(5, 7))
  with pytest.raises(ValueError, match="record 0: tokens, mask and logp differ in length: 4, 4, 5"):
    rollout_batches([record(4) | {"logp": [0.0] * 5}], rows=1, lengths=(7,))


def test_a_program_ends_quietly_while_batches_are_being_prepared(plain_environment):
  program = (
    "from searchjax.data.loader import sft_batches\n"
    "s = sft_batches({'a': [([1, 2, 3], [False, True, True])] * 9}, weights={'a': 1}, rows=2,\n"
    "                length=8, seed=0)\n"
    "next(s)\n"
  )
  done = subprocess.run([sys.executable, "-c", program], env=plain_environment, timeout=60,
                        capture_output=True, text=True)
  assert done.returncode == 0 and "terminate" not in done.stderr and "Traceback" not in done.stderr


def test_recorded_experts_and_engine_logprobs_travel_with_their_rows():
  rng = np.random.default_rng(0)
  records = [
    {"tokens": [5] * n, "mask": [False] + [True] * (n - 1), "logp": [0.0] + [-1.0] * (n - 1),
     "advantage": 1.0, "valid": True, "logp_engine": np.arange(n, dtype=np.float32),
     "experts": rng.integers(0, 300, (n - 1, 3, 2)).astype(np.int32)}
    for n in (4, 7)
  ]
  (batch,) = rollout_batches(records, rows=3, lengths=(11,), prefetch=0)
  assert batch["experts"].shape == (3, 11, 3, 2) and batch["experts"].dtype == np.int32
  for row, n in enumerate((4, 7)):
    np.testing.assert_array_equal(batch["experts"][row, : n - 1], records[row]["experts"])
    assert (batch["experts"][row, n - 1 :] == -1).all()
    np.testing.assert_array_equal(batch["logp_engine"][row], [*range(n), *[0] * (11 - n)])
  assert (batch["experts"][2] == -1).all()
