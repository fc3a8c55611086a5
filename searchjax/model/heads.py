"""Token log-probabilities and the preference model's scalar score.  PURE.

  log π(v | x) = log_softmax(head(x) / temperature)_v, over real ids only; float32

The [B T V] logits are never kept: rows are scored in slices and recomputed in the backward pass.

Letters  B rows, T tokens, D model width, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from searchjax.model.attention import MASKED
from searchjax.model.config import ModelConfig


def logits(
  params: dict, config: ModelConfig, hidden: Float[Array, "*axes D"]
) -> Float[Array, "*axes V"]:
  """float32 logits; padding rows of the vocabulary are masked, so they are never sampled."""
  head = params["embed"].T if config.tie_embeddings else params["head"]
  out = jnp.matmul(hidden, head, preferred_element_type=jnp.float32)
  if config.real_vocab_size < config.vocab_size:
    real = jnp.arange(config.vocab_size) < config.real_vocab_size
    out = jnp.where(real.reshape((1,) * (out.ndim - 1) + real.shape), out, MASKED)
  return out


def token_logprobs(
  params: dict,
  config: ModelConfig,
  hidden: Float[Array, "B T D"],
  tokens: Int[Array, "B T"],
  *,
  temperature: float = 1.0,
  chunk: int = 2048,
) -> tuple[Float[Array, "B T"], Int[Array, "B T"]]:
  """Log-probability of each token given those before it.

  Args:
    tokens: the row itself; position t is scored from hidden[t - 1].
    temperature: divides the logits, as in the sampler.
    chunk: positions scored at a time.

  Returns:
    log π [B T] with 0 at t = 0, and the most probable id at each position (0 at t = 0).
  """
  B, T, D = hidden.shape
  flat = hidden[:, :-1].reshape(-1, D)
  targets = tokens[:, 1:].reshape(-1)
  n = flat.shape[0]
  chunk = min(chunk, n)
  pad = -n % chunk
  flat = jnp.pad(flat, ((0, pad), (0, 0))).reshape(-1, chunk, D)
  targets = jnp.pad(targets, (0, pad)).reshape(-1, chunk)

  @jax.checkpoint
  def score(args):
    h, target = args
    out = logits(params, config, h) / temperature
    picked = jnp.take_along_axis(out, target[:, None], axis=-1)[:, 0]
    return picked - jax.nn.logsumexp(out, axis=-1), jnp.argmax(out, axis=-1)

  logp, best = jax.lax.map(score, (flat, targets))
  shape = lambda a: jnp.pad(a.reshape(-1)[:n].reshape(B, T - 1), ((0, 0), (1, 0)))
  return shape(logp), shape(best).astype(jnp.int32)


def scores(
  params: dict, hidden: Float[Array, "B T D"], ends: Int[Array, "B n"]
) -> Float[Array, "B n"]:
  """The value head's float32 scalar at the given positions."""
  at = jnp.take_along_axis(hidden, ends[:, :, None], axis=1).astype(jnp.float32)
  return jnp.einsum("BnD,D->Bn", at, params["value_head"].astype(jnp.float32))
