"""Batches for training, through grain: mixed, packed, sharded by process, prefetched.  HOST.

Every process makes the same global batches and hands out its own rows of them.

`sft_batches` never ends and can be resumed at any batch; `rollout_batches` walks once over the
rollouts of one step. Both hand out NumPy arrays of fixed shapes. Nothing is dropped unseen: what
is too long is counted on the stream, and a last batch that is not full is filled with invalid rows.

Spec     1.1 (mixture weights are configuration); DESIGN, "One loop, seven lines".
"""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import numpy as np

from searchjax.data.packing import target_mask

Example = tuple[Sequence[int], Sequence[bool]]


class BatchStream:
  """An iterator of batches whose position can be stored and set again.

  Attributes:
    dropped: examples left out because they are longer than a row, by source.
    padded_rows: rows of no rollout that fill incomplete batches (rollout batches only).
    batches: how many batches there are; None if the stream never ends.
  """

  def __init__(self, iterator, *, dropped: Mapping[str, int], padded_rows: int = 0,
               batches: int | None = None):
    # A thread that still prepares batches when the interpreter ends would abort the process, so
    # the iterator is held where the finaliser can close it and let it go before that.
    self._held = [iterator]
    self._finish = weakref.finalize(self, _let_go, self._held)
    self.dropped = dict(dropped)
    self.padded_rows = padded_rows
    self.batches = batches

  def __iter__(self):
    return self

  def __next__(self) -> dict[str, np.ndarray]:
    return next(self._open())

  def get_state(self) -> dict[str, Any]:
    """The position after the last batch handed out; JSON-able, and free of prefetched batches."""
    return self._open().get_state()

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Goes to a stored position of a stream made with the same arguments."""
    self._open().set_state(dict(state))

  def close(self) -> None:
    """Stops the preparing thread; also done when the stream is let go or the process ends."""
    self._finish()

  def _open(self):
    if not self._held:
      raise ValueError("this stream of batches was closed")
    return self._held[0]


def _let_go(held: list) -> None:
  """Closes the held iterator, if any, and drops it."""
  while held:
    getattr(held.pop(), "close", lambda: None)()


class _Pad(grain.transforms.Map):
  """Names a packed row's fields and sets the pad id where no segment stands."""

  def __init__(self, pad_id: int):
    self._pad_id = pad_id

  def map(self, element):
    segment_ids = np.asarray(element["tokens_segment_ids"], np.int32)
    return {
      "tokens": np.where(segment_ids > 0, element["tokens"], self._pad_id).astype(np.int32),
      "segment_ids": segment_ids,
      "positions": np.asarray(element["tokens_positions"], np.int32),
      "loss_mask": np.asarray(element["loss_mask"], bool) & (segment_ids > 0),
    }


def mixture(
  examples: Mapping[str, Sequence[Example]],
  *,
  weights: Mapping[str, float | int],
  length: int,
  seed: int,
) -> tuple[grain.MapDataset, dict[str, int]]:
  """Examples without end, from several sources in fixed proportions.

  Where the shares of 1,000 are whole numbers, any 1,000 in a row hold exactly those; of other
  shares any 1,000 are off by less than the number of sources.

  Args:
    examples, weights, length, seed: see `sft_batches`.

  Returns:
    {"tokens", "loss_mask": int32 [n]} by index, and examples too long, by source.

  Raises:
    ValueError: see `sft_batches`.
  """
  unknown = sorted(set(weights) ^ set(examples))
  if unknown:
    raise ValueError("sources and mixture weights must have the same names; only in one: "
                     f"{unknown}")
  if min(weights.values(), default=-1) < 0 or sum(weights.values()) <= 0:
    raise ValueError(f"mixture weights must be at least 0 and one above it, got {dict(weights)}")
  sources, shares, dropped = [], [], {}
  for number, name in enumerate(sorted(weights)):
    fitting = [
      {"tokens": np.asarray(ids, np.int32), "loss_mask": target_mask(mask).astype(np.int32)}
      for ids, mask in examples[name] if len(ids) <= length
    ]
    dropped[name] = len(examples[name]) - len(fitting)
    if weights[name] == 0:
      continue
    if not fitting:
      shortest = min((len(ids) for ids, _ in examples[name]), default=0)
      raise ValueError(f"source {name!r}: none of {len(examples[name])} examples fits a row of "
                       f"{length} tokens, the shortest has {shortest}; raise batch.length")
    source = grain.MapDataset.source(fitting).seed(seed * 1009 + number)
    sources.append(source.shuffle().repeat())
    shares.append(float(weights[name]))
  return grain.MapDataset.mix(sources, shares), dropped


def sft_batches(
  examples: Mapping[str, Sequence[Example]],
  *,
  weights: Mapping[str, float | int],
  rows: int,
  length: int,
  seed: int,
  pad_id: int = 0,
  process_index: int = 0,
  process_count: int = 1,
  prefetch: int = 2,
) -> BatchStream:
  """Endless packed batches from several sources in fixed proportions.

  Args:
    examples: by source, (ids, mask) pairs as `ChatFormat.encode_conversation` makes them.
    weights: by source, its share of the examples drawn (any scale; 0 leaves it out). The shares
      hold exactly over what is drawn (`mixture`), whatever the sizes of the sources. Packing fills
      max(4 rows, 16) rows at a time: they hold a run of the draws, in another order.
    rows: rows of the global batch, over all processes.
    length: positions of a row.
    seed: of the shuffles; every pass over a source is shuffled anew.
    pad_id: id written where no segment stands.
    process_index: this process; of every batch it gets its own block of rows / process_count rows.
    process_count: processes that share the batches. Every one packs them all, so that batches and
      positions do not depend on how many there are.
    prefetch: batches prepared ahead by a thread; 0 prepares none.

  Returns:
    A stream of {"tokens", "segment_ids", "positions": int32, "loss_mask": bool} of shape
    [rows / process_count, length]; see packing.py for their meaning.

  Raises:
    ValueError: weights for unknown sources or none above 0, a source with no example that fits,
      rows that do not divide.
  """
  local_rows = _local_rows(rows, process_index, process_count)
  mixed, dropped = mixture(examples, weights=weights, length=length, seed=seed)
  stream = grain.experimental.FirstFitPackIterDataset(
    mixed.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)),
    length_struct={"tokens": length, "loss_mask": length},
    num_packing_bins=max(4 * rows, 16), shuffle_bins=False, seed=seed,
  )
  start = process_index * local_rows
  stream = stream.map(_Pad(pad_id)).batch(rows, drop_remainder=True)
  if process_count > 1:
    stream = stream.map(
      lambda batch: {name: array[start : start + local_rows] for name, array in batch.items()}
    )
  return BatchStream(iter(_prefetched(stream, prefetch)), dropped=dropped)


def rollout_batches(
  records: Sequence[Mapping[str, Any]],
  *,
  rows: int,
  lengths: Sequence[int],
  pad_id: int = 0,
  process_index: int = 0,
  process_count: int = 1,
  prefetch: int = 2,
) -> BatchStream:
  """The rollouts of one step as right-padded rows, in buckets of length.

  Args:
    records: {"tokens", "mask", "logp", "advantage", "valid"} each, in rollout order; mask is True
      on tokens the policy generated, logp their log-probabilities at sampling (0 elsewhere). Where
      all have them, also "experts" [n L X], recorded for the first n tokens, and "logp_engine", as
      logp but computed again by the engine. Every process gives the same list.
    rows: rows of the global batch.
    lengths: bucket lengths; a record goes to the shortest that holds it.
    pad_id: id written after a row's end.
    process_index: this process; of every global batch it gets its own block of rows.
    process_count: processes that share the batches.
    prefetch: batches prepared ahead by a thread; 0 prepares none.

  Returns:
    A finite stream of tokens [B, T] int32, mask [B, T] bool (targets the policy generated), logp
    [B, T] float32 (0 off the mask), advantage [B] float32, valid [B] bool, lengths [B] int32; with
    recorded routing also experts [B, T, L, X] int32 (-1 where nothing was recorded), with rescored
    records logp_engine [B, T]. An invalid row keeps its tokens, with mask all False and advantage
    0; a filling row has length 0.

  Raises:
    ValueError: a record longer than the longest bucket (truncate at sampling, or add a bucket),
      fields of different lengths, rows that do not divide.
  """
  local_rows = _local_rows(rows, process_index, process_count)
  if not lengths:
    raise ValueError("expected at least one bucket length, got none")
  buckets: dict[int, list[int]] = {length: [] for length in sorted(lengths)}
  for number, record in enumerate(records):
    size = len(record["tokens"])
    if not size == len(record["mask"]) == len(record["logp"]):
      raise ValueError(f"record {number}: tokens, mask and logp differ in length: {size}, "
                       f"{len(record['mask'])}, {len(record['logp'])}")
    length = next((length for length in buckets if size <= length), None)
    if length is None:
      raise ValueError(f"record {number}: {size} tokens do not fit the longest bucket, "
                       f"{max(buckets)}")
    buckets[length].append(number)
  plans: list[tuple[int, list[int]]] = []
  padded_rows = 0
  for length, numbers in buckets.items():
    wanted = -(-len(numbers) // rows)
    padded_rows += wanted * rows - len(numbers)
    for batch in range(wanted):
      chosen = numbers[batch * rows:(batch + 1) * rows]
      start = process_index * local_rows
      plans.append((length, chosen[start:start + local_rows]))

  def assemble(plan):
    length, chosen = plan
    tokens = np.full((local_rows, length), pad_id, np.int32)
    mask = np.zeros((local_rows, length), bool)
    logp = np.zeros((local_rows, length), np.float32)
    advantage = np.zeros(local_rows, np.float32)
    valid = np.zeros(local_rows, bool)
    sizes = np.zeros(local_rows, np.int32)
    more = {}
    if "experts" in records[0]:
      layers = np.shape(records[0]["experts"])[1:]
      more["experts"] = np.full((local_rows, length, *layers), -1, np.int32)
    if "logp_engine" in records[0]:
      more["logp_engine"] = np.zeros_like(logp)
    for row, number in enumerate(chosen):
      record = records[number]
      sizes[row] = size = len(record["tokens"])
      tokens[row, :size] = record["tokens"]
      if record["valid"]:
        valid[row] = True
        advantage[row] = record["advantage"]
        mask[row, :size] = target_mask(record["mask"])
        logp[row, :size] = np.where(mask[row, :size], np.asarray(record["logp"], np.float32), 0)
        if "logp_engine" in more:
          more["logp_engine"][row, :size] = np.where(mask[row, :size], record["logp_engine"], 0)
      if "experts" in more:
        more["experts"][row, : len(record["experts"])] = record["experts"]
    return {"tokens": tokens, "mask": mask, "logp": logp, "advantage": advantage, "valid": valid,
            "lengths": sizes} | more

  if not plans:
    return BatchStream(iter(()), dropped={}, batches=0)
  stream = grain.MapDataset.source(plans).map(assemble).to_iter_dataset(
    grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
  return BatchStream(iter(_prefetched(stream, prefetch)), dropped={}, padded_rows=padded_rows,
                     batches=len(plans))


def _local_rows(rows: int, process_index: int, process_count: int) -> int:
  if rows < 1 or rows % process_count or not 0 <= process_index < process_count:
    raise ValueError(f"{rows} rows cannot be shared by process {process_index} of {process_count}; "
                     "rows must be a multiple of the processes")
  return rows // process_count


def _prefetched(stream, batches: int):
  if not batches:
    return stream
  return grain.experimental.ThreadPrefetchIterDataset(stream, prefetch_buffer_size=batches)
