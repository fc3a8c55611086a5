"""The preference model at work: s(τ) = P̄(x, y, y_ref), both orders, each pair scored once.  HOST.

  Δ̄ = ½ [Δ(x, y_a, y_b) − Δ(x, y_b, y_a)],   P̄ = σ(Δ̄)                              (SPEC 2.1)

The model reads prompt and both answers in one sequence, as a user reads them (final answers, no
thinking, no tool traffic); its scalars at the end of each answer give Δ in that order.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from searchjax.data.chat import ChatFormat
from searchjax.data.pairs import Pair, encode_pair
from searchjax.dist.mesh import fetch, place_rows
from searchjax.model import forward, heads
from searchjax.model.config import ModelConfig
from searchjax.model.parallel import LOCAL, Division, Parallel, make_row_function
from searchjax.objective.bradley_terry import preference_probability


def pair_deltas(params, model: ModelConfig, batch: dict, parallel: Parallel = LOCAL):
  """Δ(x, y_a, y_b) and Δ(x, y_b, y_a) of the pairs of a batch from `pair_rows`.

  Returns:
    Two float32 [pairs].
  """
  tokens = batch["tokens"]
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
  hidden, _ = forward.forward(
    params, model, tokens, batch["segment_ids"], positions, parallel=parallel
  )
  s = heads.scores(params, hidden, batch["ends"], parallel=parallel)
  # encode_pair always subtracts second from first; the equation's second term is turned round.
  first_minus_second = (s[:, 0] - s[:, 1]).reshape(-1, 2)
  return first_minus_second[:, 0], -first_minus_second[:, 1]


def pair_rows(
  chat: ChatFormat, pairs: Sequence[Pair], *, rows: int, length: int
) -> list[dict[str, np.ndarray]]:
  """Batches of `rows` pairs in both orders.

  Returns:
    Per batch: "tokens", "segment_ids" [2 rows, T] (a pair's two rows beside each other, the given
    order first), "ends" [2 rows, 2], "label" and "valid" [rows]; the last batch is filled with
    invalid rows.

  Raises:
    ValueError: a pair longer than `length`.
  """
  batches = []
  for start in range(0, len(pairs), rows):
    chunk = pairs[start : start + rows]
    tokens = np.full((rows, 2, length), chat.pad_id, np.int32)
    segments, ends = np.zeros((rows, 2, length), np.int32), np.zeros((rows, 2, 2), np.int32)
    label, valid = np.full(rows, 0.5, np.float32), np.zeros(rows, bool)
    for i, pair in enumerate(chunk):
      label[i], valid[i] = pair.label, True
      for order in (0, 1):
        ids, first, second = encode_pair(chat, pair, swapped=bool(order))
        if len(ids) > length:
          raise ValueError(
            f"a pair of {len(ids)} tokens does not fit the preference model's {length}; raise "
            f"pair_length or lower limits.turn_tokens"
          )
        tokens[i, order, : len(ids)], segments[i, order, : len(ids)] = ids, 1
        ends[i, order] = first, second
    batches.append(
      {
        "tokens": tokens.reshape(-1, length), "segment_ids": segments.reshape(-1, length),
        "ends": ends.reshape(-1, 2), "label": label, "valid": valid,
      }
    )
  return batches


def pair_has_room(chat: ChatFormat, prompt: str, answer_tokens: int, length: int) -> bool:
  """Whether two answers of so many tokens each fit beside a prompt in a row of `length` tokens."""
  ids, _, _ = encode_pair(chat, Pair(prompt, "", "", 0.5))
  return len(ids) + 2 * answer_tokens <= length


class PreferenceScorer:
  """P̄ of answers against references, remembering every pair it has scored.

  Args:
    params, model, division: as from `load_policy`.
    rows: pairs of a batch.
    length: tokens of a row.

  Attributes:
    cut: of the pairs last scored, those whose answers did not fit a row and were read in part.
  """

  def __init__(
    self, params, model: ModelConfig, division: Division, chat: ChatFormat, *, rows: int,
    length: int,
  ):
    self._params, self._mesh = params, division.mesh
    self._chat, self._rows, self._length = chat, rows, length
    self._known: dict[tuple[str, str, str], float] = {}
    self._partly_read: set[tuple[str, str, str]] = set()
    self.cut = 0
    self._probability = make_row_function(
      lambda params, batch: preference_probability(
        *pair_deltas(params, model, batch, division.parallel)
      ),
      division,
    )

  def has_room(self, prompt: str, answer_tokens: int) -> bool:
    """See `pair_has_room`."""
    return pair_has_room(self._chat, prompt, answer_tokens, self._length)

  def _fitting(self, texts: tuple[str, str, str]) -> Pair:
    """A prompt and two answers as a pair that fits a row; each answer has half of the room."""
    prompt, *answers = texts
    pair = Pair(*texts, 0.5)
    size = lambda pair: len(encode_pair(self._chat, pair)[0])
    room = (self._length - size(Pair(prompt, "", "", 0.5))) // 2
    while size(pair) > self._length and room >= 0:
      cut = (self._chat.decode(self._chat.encode_text(text)[:room]) for text in answers)
      pair = Pair(prompt, *cut, 0.5)
      room -= 1  # a character that was cut in two may take more tokens than it did
    return pair

  def score(self, pairs: Sequence[tuple[str, str, str]]) -> np.ndarray:
    """P̄ of each (prompt, answer, reference): the probability that answer is preferred; float32.

    Equal texts are ½ by symmetry and are not computed. Of answers that do not fit a row together
    only the beginnings are read, which `cut` counts.
    """
    new = sorted({p for p in pairs if p not in self._known and p[1] != p[2]})
    fitting = [self._fitting(p) for p in new]
    self._partly_read.update(
      p for p, read in zip(new, fitting, strict=True) if p[1:] != (read.first, read.second)
    )
    self.cut = sum(p in self._partly_read for p in pairs)
    for batch, start in zip(
      pair_rows(self._chat, fitting, rows=self._rows, length=self._length),
      range(0, len(new), self._rows),
      strict=True,
    ):
      p = fetch(self._probability(self._params, place_rows(batch, self._mesh, whole=True)))
      self._known.update(
        {key: float(p[i]) for i, key in enumerate(new[start : start + self._rows])}
      )
    return np.array([0.5 if a == b else self._known[x, a, b] for x, a, b in pairs], np.float32)
