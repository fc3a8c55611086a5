"""The supervised loss: which tokens it counts, and that parts add up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.objective.sft import masked_nll, next_token_logp

next_token_logp = jax.jit(next_token_logp, static_argnames="temperature")
masked_nll = jax.jit(masked_nll)
V = 5


def test_M2_the_first_response_token_is_trained():
  # Prompt of 3, response of 2: the mask marks targets 3 and 4, predicted at positions 2 and 3.
  logits = np.random.default_rng(0).normal(size=(1, 5, V)).astype(np.float32)
  tokens = np.asarray([[0, 1, 2, 3, 4]], np.int32)
  mask = np.asarray([[0, 0, 0, 1, 1]], bool)
  total, count = masked_nll(next_token_logp(logits, tokens), mask)
  log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  np.testing.assert_allclose(total, -(log_softmax[0, 2, 3] + log_softmax[0, 3, 4]), rtol=1e-5)
  assert count == 2
  assert abs(float(total) + log_softmax[0, 3, 3] + log_softmax[0, 4, 4]) > 1e-3      # not shifted
  touched = jax.grad(lambda x: masked_nll(next_token_logp(x, tokens), mask)[0])(jnp.asarray(logits))
  assert np.asarray(touched).any(-1).tolist() == [[False, False, True, True, False]]


def test_M4_end_of_answer_is_kept_though_padding_shares_its_id():
  EOS = 2
  tokens = np.asarray([[3, 4, EOS, EOS]], np.int32)
  attention = np.asarray([[1, 1, 1, 0]], bool)
  logits = np.random.default_rng(1).normal(size=(1, 4, V)).astype(np.float32)
  logp = next_token_logp(logits, tokens)
  total, count = masked_nll(logp, attention & (np.arange(4) > 1))
  np.testing.assert_allclose(total, -logp[0, 2], rtol=1e-6)
  assert count == 1
  assert masked_nll(logp, tokens != EOS)[1] == 2          # by id instead: the real EOS is lost


def test_M8_all_masked_rows():
  logp = np.asarray([[-1.0, -2.0], [np.nan, -np.inf]], np.float32)
  mask = np.asarray([[True, True], [False, False]])
  (total, count), gradient = jax.value_and_grad(masked_nll, has_aux=True)(jnp.asarray(logp), mask)
  assert total == 3 and count == 2
  assert gradient.tolist() == [[-1, -1], [0, 0]]
  total, count = masked_nll(logp, np.zeros((2, 2), bool))
  assert total == 0 and count == 0


def test_L1_tokens_weigh_equally():
  # Lengths 1 and 3, losses 1 and 0: the token mean .25 here, where GRPO's mean of row means is .5.
  logp = np.asarray([[-1, 0, 0], [0, 0, 0]], np.float32)
  total, count = masked_nll(logp, np.asarray([[1, 0, 0], [1, 1, 1]], bool))
  assert float(total) / int(count) == 0.25


def test_L3_parts_add_up_to_the_whole():
  rng = np.random.default_rng(2)
  logp, mask = -rng.random((8, 3)).astype(np.float32), rng.random((8, 3)) < 0.5
  total, count = masked_nll(logp, mask)
  for size in (1, 2, 4):
    parts = [masked_nll(logp[i:i + size], mask[i:i + size]) for i in range(0, 8, size)]
    np.testing.assert_allclose(sum(s for s, _ in parts), total, rtol=1e-6)
    assert sum(n for _, n in parts) == count


def test_temperature():
  logits = np.zeros((1, 2, V), np.float32)
  logits[0, 0, 3] = 1.4
  got = next_token_logp(logits, np.asarray([[0, 3]], np.int32), temperature=0.7)
  np.testing.assert_allclose(got, [[0.0, 2 - np.log(np.exp(2) + V - 1)]], rtol=1e-6)
  with pytest.raises(ValueError, match="temperature: expected a number above 0; got 0"):
    next_token_logp(logits, np.asarray([[0, 3]], np.int32), temperature=0.0)
