"""Log-probabilities over real ids, and where the preference score is read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.model import heads
from searchjax.model.config import model_config

V, REAL, D, B, T = 53, 47, 7, 2, 11


def sliced(config, tokens):
  """The config with the logits of so many tokens held at a time."""
  return dataclasses.replace(config, logprob_chunk=tokens)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def policy(request):
  config = model_config(
    "tiny", hidden_size=D, vocab_size=V, real_vocab_size=REAL, tie_embeddings=request.param
  )
  table = jnp.asarray(np.random.default_rng(0).normal(size=(V, D)), jnp.float32)
  params = {"embed": table} if request.param else {"head": table.T}
  return config, params, np.asarray(table, np.float64)


def test_token_logprobs_equal_the_full_softmax_and_mask_padding_ids(policy):
  config, params, table = policy
  rng = np.random.default_rng(1)
  hidden = rng.normal(size=(B, T, D)).astype(np.float32)
  tokens = rng.integers(0, REAL, (B, T)).astype(np.int32)
  logits = (hidden @ table.T)[:, :-1, :REAL] / 0.7
  want = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  want = np.take_along_axis(want, tokens[:, 1:, None], -1)[..., 0]
  score = lambda p, h, t: heads.token_logprobs(p, sliced(config, 5), h, t, temperature=0.7)
  got, best = jax.jit(score)(params, hidden, tokens)
  np.testing.assert_allclose(got[:, 1:], want, atol=2e-5)
  assert np.all(got[:, 0] == 0) and best.dtype == jnp.int32
  np.testing.assert_array_equal(best[:, 1:], logits.argmax(-1))
  out = heads.logits(params, config, jnp.asarray(hidden))
  assert out.dtype == jnp.float32 and np.all(out[..., REAL:] < -1e29)
  # The common mistake: padding rows of the vocabulary in the denominator.
  full = hidden @ table.T / 0.7
  wrong = np.take_along_axis(full[:, :-1], tokens[:, 1:, None], -1)[..., 0]
  wrong -= np.log(np.exp(full[:, :-1]).sum(-1))
  assert np.abs(np.asarray(got[:, 1:]) - wrong).max() > 0.01


def test_gradient_of_the_logprobs_equals_that_of_the_plain_softmax(policy):
  config, params, _ = policy
  rng = np.random.default_rng(2)
  hidden = jnp.asarray(rng.normal(size=(B, T, D)), jnp.float32)
  tokens = jnp.asarray(rng.integers(0, REAL, (B, T)), jnp.int32)

  def plain(h):
    logp = jax.nn.log_softmax(heads.logits(params, config, h)[:, :-1])
    return jnp.sum(jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1))

  chunked = lambda h: jnp.sum(heads.token_logprobs(params, sliced(config, 3), h, tokens)[0])
  want, got = jax.jit(jax.grad(plain))(hidden), jax.jit(jax.grad(chunked))(hidden)
  np.testing.assert_allclose(got, want, atol=1e-5)
  assert np.all(got[:, -1] == 0), "nothing follows the last token"


def test_Y1_the_logits_of_all_tokens_are_never_held():
  """FAULTS Y1: forward and backward, by the compiled program's own account of its memory."""
  config = model_config(
    "tiny", hidden_size=D, vocab_size=4099, real_vocab_size=4099, tie_embeddings=True
  )
  arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (
    ((4099, D), jnp.float32), ((B, 257, D), jnp.float32), ((B, 257), jnp.int32))]

  def held(chunk):
    loss = lambda table, h, t: jnp.sum(
      heads.token_logprobs({"embed": table}, sliced(config, chunk), h, t)[0]
    )
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arguments).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  logits = B * 257 * 4099 * 4
  assert held(B * 257) > logits, "what the common mistake holds"
  assert held(17) < logits / 5


def test_W1_the_score_is_read_at_the_given_position():
  """FAULTS W1: [5, 6, EOS, EOS as padding], attention [1, 1, 1, 0]: index 2, not 3, where two
  different answers would score alike."""
  hidden = jnp.asarray(np.random.default_rng(3).normal(size=(2, 4, D)), jnp.bfloat16)
  hidden = hidden.at[1].set(hidden[0]).at[1, 2].set(hidden[0, 1])  # same padding, other end
  params = {"value_head": jnp.arange(1.0, D + 1)}
  attended = jnp.array([[1, 1, 1, 0], [1, 1, 1, 0]])
  ends = jnp.sum(attended, axis=1, keepdims=True) - 1
  got = heads.scores(params, hidden, ends)
  wide = np.asarray(hidden.astype(jnp.float32), np.float64)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got[:, 0], wide[:, 2] @ np.arange(1, D + 1), rtol=1e-5)
  at_padding = heads.scores(params, hidden, jnp.full((2, 1), 3))
  assert at_padding[0, 0] == at_padding[1, 0] and got[0, 0] != got[1, 0]
