"""The engine's decode loop.  PURE.

Every conversation has one pending token: the last one known and not yet in its state. A decode step
feeds the pending token at its position, samples the next from the logits there, and records
log softmax(logits / temperature) of the sample: the sampling distribution's own log-probability.
Sampling keys are folded from (rollout key, position), so neither the lane nor the step matters.
A token can be forced instead of sampled: the same program then scores a known turn.

Letters  B lanes, J steps of one decode loop, L layers, X experts per token, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from searchjax.model import cache as caches
from searchjax.model import forward, heads, serving
from searchjax.model.config import ModelConfig
from searchjax.model.params import unstack_layers


@dataclasses.dataclass(frozen=True)
class Steps:
  """The model's functions that an engine calls, whole or divided over a mesh.

  Attributes:
    prepare: (parameters, config) to what the others take as parameters, once for many calls.
    prefill, decode: as in `model.forward`.
    choose: (parameters, config, hidden, pick, rows …) to pick(logits, rows …).
    noise: (keys [B], V, temperature [B]) to standard Gumbel [B V]; whatever, if all are greedy.
    open_buffer, close_buffer, fork: as in `model.cache`.
    length: positions of a lane of a cache.
    rows: of a cache that lies whole on the device; 0 of a divided one.
    anyone: whether a lane of any device does it.
  """

  prepare: Callable
  prefill: Callable
  decode: Callable
  choose: Callable
  noise: Callable
  open_buffer: Callable
  close_buffer: Callable
  fork: Callable
  length: Callable
  rows: Callable
  anyone: Callable


def gumbel(keys: Array, V: int) -> Float[Array, "B V"]:
  """Each row from its own key."""
  return jax.vmap(lambda key: jax.random.gumbel(key, (V,), jnp.float32))(keys)


WHOLE = Steps(
  prepare=unstack_layers, prefill=forward.prefill, decode=forward.decode,
  choose=lambda params, config, hidden, pick, *rows: pick(
    heads.logits(params, config, hidden), *rows
  ),
  noise=lambda keys, V, temperature: jax.lax.cond(
    jnp.any(temperature > 0), lambda: gumbel(keys, V),
    lambda: jnp.zeros((keys.shape[0], V), jnp.float32),
  ),
  open_buffer=caches.open_buffer, close_buffer=caches.close_buffer, fork=caches.fork,
  length=lambda cache: cache.keys[0].shape[2], rows=lambda cache: cache.keys[0].shape[0],
  anyone=lambda x: x,
)


def divided_steps(parts: serving.Serving) -> Steps:
  """The functions inside `jax.shard_map` over a mesh in the decode layout."""
  return Steps(
    prepare=lambda params, config: params,
    prefill=lambda params, config, *rest, **rows: serving.prefill(
      params, config, parts, *rest, **rows
    ),
    decode=lambda params, config, *rest: serving.decode(params, config, parts, *rest),
    choose=lambda params, config, *rest: serving.choose(params, config, parts, *rest),
    # Drawn always: a branch costs a slice temporaries.
    noise=lambda keys, V, temperature: gumbel(keys, V),
    open_buffer=serving.open_buffer,
    close_buffer=lambda *rest: serving.close_buffer(parts, *rest),
    fork=functools.partial(caches.fork, stacked=True),
    length=lambda cache: cache.keys.shape[3] * parts.expert,
    rows=lambda cache: 0,
    anyone=parts.anyone,
  )


@flax.struct.dataclass
class Lanes:
  """What decodes, a lane each.

  Attributes:
    slot: int32 [B], pool row, each once; lanes with nothing to decode have one too. In a whole pool
      of B rows it is 0 … B − 1, and nothing is read by index.
    token: int32 [B], the pending token.
    position: int32 [B], its position, i.e. the number of tokens in the row's state.
    left: int32 [B], tokens the lane may take; none decodes nothing.
    key: uint32 [B 2], rollout key data.
    forced: int32 [B J], ids taken instead of samples, by step; negative ones are sampled. J is the
      most steps.
    temperature: float32 [B], of the sampler; 0 is greedy, and the recorded log-prob is then the
      model's at 1.
    top_k, top_p: int32 and float32 [B], of the sampler; 0 and 1.0 are off.
  """

  slot: Any
  token: Any
  position: Any
  left: Any
  key: Any
  forced: Any
  temperature: Any
  top_k: Any
  top_p: Any


def sample_token(
  noise: Float[Array, "V"],
  logits: Float[Array, "V"],
  temperature: Float[Array, ""],
  top_k: Int[Array, ""],
  top_p: Float[Array, ""],
  *,
  restricted: bool,
) -> Int[Array, ""]:
  """One id from softmax(logits / temperature), restricted to top-k and top-p; temperature 0 is
  greedy.

  Args:
    noise: standard Gumbel; greedy reads none.
    top_k: 0 is off.
    top_p: 1.0 is off; it applies to what top-k leaves.
    restricted: whether either may be on.
  """
  scaled = logits / jnp.maximum(temperature, 1e-6)
  if restricted:
    V = scaled.size
    order = jnp.sort(scaled, descending=True)
    kept = jnp.where(top_k > 0, jnp.minimum(top_k, V), V)
    mass = jnp.cumsum(jax.nn.softmax(jnp.where(jnp.arange(V) < kept, order, -jnp.inf)))
    # The smallest set whose mass reaches top_p: every id before the crossing, and the crossing one.
    crossing = jnp.where(top_p < 1.0, jnp.sum(mass < top_p), V)
    scaled = jnp.where(scaled >= order[jnp.minimum(crossing, kept - 1)], scaled, -jnp.inf)
  noisy = jnp.where(temperature > 0, scaled + noise, logits)
  # Two plain reductions are several times faster on CPUs than argmax's.
  ids = jnp.arange(noisy.size, dtype=jnp.int32)
  return jnp.min(jnp.where(noisy == jnp.max(noisy), ids, noisy.size - 1))


def decode(
  params: dict,
  config: ModelConfig,
  cache: caches.Cache,
  lanes: Lanes,
  *,
  stop_ids: tuple[int, ...],
  restricted: bool = False,
  steps: Steps = WHOLE,
) -> tuple[caches.Cache, dict]:
  """Decodes up to J tokens in every lane; ends early when none has more to decode.

  Args:
    params: as `steps.prepare` makes them.
    stop_ids: a lane stops after sampling one of these, or when its turn's budget is spent.
    restricted: whether a lane may set top_k or top_p.
    steps: where the model is computed.

  Returns:
    The pool, and per lane: "tokens" and "logp" [B J], of which the first "count" are new, whether
    the turn goes on ("going"), and "experts" [B J L X], chosen for the token fed at each step.
  """
  B, J = lanes.forced.shape
  length = steps.length(cache)
  start = lanes.position
  slots = None if steps.rows(cache) == B else lanes.slot
  stops = jnp.asarray(stop_ids, jnp.int32)

  def pick(out, keys, forced, temperature, top_k, top_p):
    noise = steps.noise(keys, out.shape[1], temperature)
    one = functools.partial(sample_token, restricted=restricted)
    token = jax.vmap(one)(noise, out, temperature, top_k, top_p)
    token = jnp.where(forced >= 0, forced, token)
    scaled = out / jnp.where(temperature > 0, temperature, 1.0)[:, None]
    logp = jnp.take_along_axis(scaled, token[:, None], axis=-1)[:, 0]
    return token, logp - jax.nn.logsumexp(scaled, axis=-1)

  def body(carry):
    step, token, count, going, buffer, out, _ = carry
    hidden, buffer, chosen = steps.decode(
      params, config, cache, buffer, slots, token, start + step, step, going
    )
    # The sampled token's own position, not the one it is sampled from.
    keys = jax.vmap(jax.random.fold_in)(
      jax.random.wrap_key_data(lanes.key), start + count + 1
    )
    new, logp = steps.choose(
      params, config, hidden, pick, keys, lanes.forced[:, step], lanes.temperature, lanes.top_k,
      lanes.top_p,
    )
    out = {
      "tokens": out["tokens"].at[:, step].set(jnp.where(going, new, 0)),
      "logp": out["logp"].at[:, step].set(jnp.where(going, logp, 0.0)),
      "experts": out["experts"].at[:, step].set(jnp.swapaxes(chosen, 0, 1)),
    }
    token, count = jnp.where(going, new, token), count + going.astype(jnp.int32)
    stop = jnp.any(new[:, None] == stops[None, :], axis=-1)
    going = going & ~stop & (count < lanes.left) & (start + count + 1 < length)
    return step + 1, token, count, going, buffer, out, steps.anyone(jnp.any(going))

  going = lanes.left > 0
  out = {
    "tokens": jnp.zeros((B, J), jnp.int32), "logp": jnp.zeros((B, J), jnp.float32),
    "experts": jnp.zeros((B, J, config.num_layers, config.experts_per_token), jnp.int32),
  }
  carry = (
    jnp.int32(0), lanes.token, jnp.zeros((B,), jnp.int32), going,
    steps.open_buffer(cache, B, J), out, steps.anyone(jnp.any(going)),
  )
  goes_on = lambda carry: (carry[0] < J) & carry[-1]
  _, _, count, going, buffer, out, _ = jax.lax.while_loop(goes_on, body, carry)
  cache = steps.close_buffer(cache, buffer, lanes.slot, start, count)
  return cache, out | {"count": count, "going": going}
