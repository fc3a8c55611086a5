"""Embedding, token log-probabilities and the preference model's scalar score.  PURE.

  log π(v | x) = log_softmax(head(x) / temperature)_v, over real ids only; float32

The [B T V] logits are never kept: rows are scored in slices and recomputed in the backward pass. On
a mesh the vocabulary is divided over the expert group: each device scores the group's slice of rows
against its own ids.

Letters  B rows, T tokens, D model width, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from searchjax.model.attention import MASKED
from searchjax.model.config import ModelConfig
from searchjax.model.parallel import LOCAL, Parallel
from searchjax.model.params import param_specs


def embed(
  params: dict,
  config: ModelConfig,
  tokens: Int[Array, "B T"],
  *,
  parallel: Parallel = LOCAL,
) -> Float[Array, "B T D"]:
  """Rows of the embedding; in slices where the vocabulary is divided."""
  table = parallel.gather(params["embed"], param_specs(config)["embed"].axes)
  if not parallel.divided("vocab"):
    return table[tokens]
  flat = tokens.reshape(-1)
  chunk = min(config.logprob_chunk, flat.shape[0])
  slices = jnp.pad(flat, (0, -flat.shape[0] % chunk)).reshape(-1, chunk)

  def look_up(ids):
    at = parallel.share(ids) - parallel.first("vocab", table.shape[0])
    mine = (at >= 0) & (at < table.shape[0])
    return parallel.unshare(jnp.where(mine[:, None], table[jnp.where(mine, at, 0)], 0))

  # Again in the backward pass: a mask of all slices' rows would be kept otherwise.
  rows = jax.lax.map(jax.checkpoint(look_up), slices).reshape(-1, table.shape[1])
  return rows[: flat.shape[0]].reshape(*tokens.shape, -1)


def logits(
  params: dict, config: ModelConfig, hidden: Float[Array, "*axes D"], *, first: Array | int = 0
) -> Float[Array, "*axes V"]:
  """float32 logits; padding rows of the vocabulary are masked, so they are never sampled.

  Args:
    first: id of the first row of the head, where a device holds only some of the vocabulary.
  """
  head = params["embed"].T if config.tie_embeddings else params["head"]
  out = jnp.matmul(hidden, head, preferred_element_type=jnp.float32)
  if config.real_vocab_size < config.vocab_size:
    real = first + jnp.arange(head.shape[1]) < config.real_vocab_size
    out = jnp.where(real.reshape((1,) * (out.ndim - 1) + real.shape), out, MASKED)
  return out


def token_logprobs(
  params: dict,
  config: ModelConfig,
  hidden: Float[Array, "B t D"],
  tokens: Int[Array, "B T"],
  *,
  temperature: float = 1.0,
  parallel: Parallel = LOCAL,
) -> tuple[Float[Array, "B T"], Int[Array, "B T"]]:
  """Log-probability of each token given those before it.

  Args:
    hidden: of the device's stretch of the sequence, which is all of it off a mesh.
    tokens: the whole rows; position t is scored from hidden[t - 1].
    temperature: divides the logits, as in the sampler.

  Returns:
    log π [B T] with 0 at t = 0, and the most probable id at each position (0 at t = 0).
  """
  B, t, D = hidden.shape
  flat = hidden.reshape(-1, D)
  targets = parallel.next_tokens(tokens).reshape(-1)
  n = flat.shape[0]
  chunk = min(config.logprob_chunk, n)
  pad = -n % chunk
  flat = jnp.pad(flat, ((0, pad), (0, 0))).reshape(-1, chunk, D)
  targets = jnp.pad(targets, (0, pad)).reshape(-1, chunk)
  score_slice = _divided_scores if parallel.divided("vocab") else _scores
  head = "embed" if config.tie_embeddings else "head"
  params = {head: parallel.gather(params[head], param_specs(config)[head].axes)}

  @jax.checkpoint
  def score(args):
    return score_slice(params, config, *args, temperature, parallel)

  logp, best = jax.lax.map(score, (flat, targets))

  def rows(a):
    """Whole rows, each value moved from the position it is scored from to its token's."""
    a = parallel.sequence(a.reshape(-1)[:n].reshape(B, t))
    return jnp.pad(a[:, :-1], ((0, 0), (1, 0)))

  return rows(logp), rows(best).astype(jnp.int32)


def _scores(params, config, hidden, target, temperature, parallel):
  out = logits(params, config, hidden) / temperature
  picked = jnp.take_along_axis(out, target[:, None], axis=-1)[:, 0]
  return picked - jax.nn.logsumexp(out, axis=-1), jnp.argmax(out, axis=-1)


def _divided_scores(params, config, hidden, target, temperature, parallel):
  """`_scores` of a slice, over the ids of all the expert group's devices."""
  held = (params["embed"] if config.tie_embeddings else params["head"].T).shape[0]
  first = parallel.first("vocab", held)
  out = logits(params, config, parallel.share(hidden), first=first) / temperature
  at = parallel.share(target) - first
  mine = (at >= 0) & (at < held)
  picked = jnp.take_along_axis(out, jnp.where(mine, at, 0)[:, None], axis=-1)[:, 0]
  own_best, own_argmax = jnp.max(out, axis=-1), jnp.argmax(out, axis=-1)
  best = jax.lax.pmax(jax.lax.stop_gradient(own_best), "expert")
  mass = jnp.sum(jnp.exp(out - best[:, None]), axis=-1)
  picked, mass = jax.lax.psum((jnp.where(mine, picked, 0.0), mass), "expert")
  # Ties go to the lowest id, as argmax does.
  argmax = jax.lax.pmin(
    jnp.where(own_best == best, first + own_argmax, config.vocab_size), "expert"
  )
  own = lambda a: jax.lax.dynamic_slice_in_dim(
    a, jax.lax.axis_index("expert") * target.shape[0], target.shape[0]
  )
  return own(picked - best - jnp.log(mass)), own(argmax)


def scores(
  params: dict,
  hidden: Float[Array, "B t D"],
  ends: Int[Array, "B n"],
  *,
  parallel: Parallel = LOCAL,
) -> Float[Array, "B n"]:
  """The value head's float32 scalar at the given positions of the whole row."""
  if parallel.context > 1:
    ends = ends - jax.lax.axis_index("context") * hidden.shape[1]
  mine = (ends >= 0) & (ends < hidden.shape[1])
  at = jnp.take_along_axis(hidden, jnp.where(mine, ends, 0)[:, :, None], axis=1)
  value = jnp.einsum("BnD,D->Bn", at.astype(jnp.float32), params["value_head"].astype(jnp.float32))
  if parallel.context > 1:
    value = jax.lax.psum(jnp.where(mine, value, 0.0), "context")
  return value
