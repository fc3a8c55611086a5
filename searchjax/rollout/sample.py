"""The engine's two device steps: feed given tokens, decode new ones.  PURE.

Every conversation keeps one pending token: the last one known and not yet in its state. A decode
step feeds the pending token at its position, samples the next from the logits there, and records
log softmax(logits / temperature) of the sample: the sampling distribution's own log-probability.
Sampling keys are folded from (rollout key, position), so neither the lane nor the step matters.
A token can be forced instead of sampled: the same program then scores a known turn.

Letters  B lanes, b rows of one feed, C tokens of one feed, J steps of one decode loop, L layers,
         X experts per token.
"""

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from searchjax.model import cache as caches
from searchjax.model import forward, heads, serving
from searchjax.model.config import ModelConfig
from searchjax.model.params import unstack_layers


@dataclasses.dataclass(frozen=True)
class Steps:
  """The model's functions that the two steps call, whole or divided over a mesh.

  Attributes:
    prefill, decode: as in `model.forward`; decode takes the layers that `layers` made of the
      parameters, once outside its loop.
    choose: (parameters, config, hidden, pick, rows …) to pick(logits, rows …).
    open_buffer, close_buffer: as in `model.cache`.
    length: positions of a lane of a cache.
    anyone: whether a lane of any device does it.
  """

  prefill: Callable
  layers: Callable
  decode: Callable
  choose: Callable
  open_buffer: Callable
  close_buffer: Callable
  length: Callable
  anyone: Callable


WHOLE = Steps(
  prefill=forward.prefill, layers=unstack_layers, decode=forward.decode,
  choose=lambda params, config, hidden, pick, *rows: pick(
    heads.logits(params, config, hidden), *rows
  ),
  open_buffer=caches.open_buffer, close_buffer=caches.close_buffer,
  length=lambda cache: cache.keys[0].shape[-1], anyone=lambda x: x,
)


def divided_steps(parts: serving.Serving) -> Steps:
  """The functions inside `jax.shard_map` over a mesh in the decode layout."""
  return Steps(
    prefill=lambda params, config, *rest: serving.prefill(params, config, parts, *rest),
    layers=lambda params, config: None,
    decode=lambda params, layers, config, *rest: serving.decode(params, config, parts, *rest),
    choose=lambda params, config, *rest: serving.choose(params, config, parts, *rest),
    open_buffer=serving.open_buffer,
    close_buffer=lambda *rest: serving.close_buffer(parts, *rest),
    length=lambda cache: cache.keys.shape[3] * parts.expert,
    anyone=parts.anyone,
  )


@flax.struct.dataclass
class Lanes:
  """Attributes:
    token: the pending token of each lane.
    position: its position, i.e. the number of tokens in the lane's state.
    generating: True where the lane decodes.
    left: new tokens the lane may still sample in this turn.
    key: rollout key data, uint32 [B 2].
  """

  token: Array
  position: Array
  generating: Array
  left: Array
  key: Array


def empty_lanes(lanes: int) -> Lanes:
  """Lanes with nothing in them."""
  # Four arrays, not one four times: they are donated.
  zeros = lambda dtype=jnp.int32: jnp.zeros((lanes,), dtype)
  return Lanes(zeros(), zeros(), zeros(bool), zeros(), jnp.zeros((lanes, 2), jnp.uint32))


def feed(
  params: dict,
  config: ModelConfig,
  cache: caches.Cache,
  lanes: Lanes,
  slots: Int[Array, "b"],
  tokens: Int[Array, "b C"],
  length: Int[Array, "b"],
  start: Int[Array, "b"],
  pending: Int[Array, "b"],
  generate: Bool[Array, "b"],
  left: Int[Array, "b"],
  key: Array,
  *,
  steps: Steps = WHOLE,
) -> tuple[caches.Cache, Lanes, Int[Array, "L b C X"]]:
  """Continues conversations by given tokens and says which then decode.

  Args:
    slots, tokens, length, start: as in `model.forward.prefill`; rows of length 0 are ignored.
    pending: the token after the fed ones.
    generate: True where the turn's last piece has been fed.
    left: token budget of the turn.
    key: rollout key data, uint32 [b 2].
    steps: where the model is computed.

  Returns:
    Cache, lanes, and the experts every layer chose for the given tokens.
  """
  cache, experts = steps.prefill(params, config, cache, slots, tokens, length, start)
  rows = jnp.where(length > 0, slots, lanes.token.shape[0])
  put = lambda old, new: old.at[rows].set(new, mode="drop")
  return cache, Lanes(
    token=put(lanes.token, pending),
    position=put(lanes.position, start + length),
    generating=put(lanes.generating, generate),
    left=put(lanes.left, left),
    key=put(lanes.key, key),
  ), experts


def sample_token(
  key: Array, logits: Float[Array, "V"], temperature: Float[Array, ""], top_k: int, top_p: float
) -> Int[Array, ""]:
  """One id from softmax(logits / temperature), restricted to top-k and top-p; temperature 0 is
  greedy.

  Args:
    top_k: 0 is off.
    top_p: 1.0 is off.
  """
  scaled = logits / jnp.maximum(temperature, 1e-6)
  if top_k:
    kth = jax.lax.top_k(scaled, top_k)[0][-1]
    scaled = jnp.where(scaled >= kth, scaled, -jnp.inf)
  if top_p < 1.0:
    order = jnp.sort(scaled, descending=True)
    mass = jnp.cumsum(jax.nn.softmax(order))
    # The smallest set whose mass reaches top_p: keep every id before the crossing and the crossing
    # one.
    last = jnp.sum(mass < top_p)
    scaled = jnp.where(scaled >= order[jnp.minimum(last, order.size - 1)], scaled, -jnp.inf)
  noise = jax.random.gumbel(key, scaled.shape, jnp.float32)
  return jnp.argmax(jnp.where(temperature > 0, scaled + noise, logits)).astype(jnp.int32)


def decode(
  params: dict,
  config: ModelConfig,
  cache: caches.Cache,
  lanes: Lanes,
  temperature: Float[Array, ""],
  forced: Int[Array, "B J"],
  *,
  stop_ids: tuple[int, ...],
  top_k: int = 0,
  top_p: float = 1.0,
  steps: Steps = WHOLE,
) -> tuple[caches.Cache, Lanes, dict]:
  """Decodes up to J tokens in every generating lane; ends early when none generates.

  Args:
    temperature: of the sampler; 0 is greedy, and the recorded log-prob is then the model's at 1.
    forced: ids taken instead of samples, by lane and step; negative ones are sampled. J is the
      most steps this call makes.
    stop_ids: a lane stops after sampling one of these, or when its turn's budget is spent.
    steps: where the model is computed.

  Returns:
    Cache and lanes, and per lane: "tokens" and "logp" [B J], of which the first "count" are new,
    and "experts" [B J L X], chosen for the token fed at each step.
  """
  B, J = forced.shape
  length = steps.length(cache)
  layers = steps.layers(params, config)
  start = lanes.position
  stops = jnp.asarray(stop_ids, jnp.int32)
  score_at = jnp.where(temperature > 0, temperature, 1.0)

  def pick(out, keys, forced):
    token = jax.vmap(lambda k, l: sample_token(k, l, temperature, top_k, top_p))(keys, out)
    token = jnp.where(forced >= 0, forced, token)
    scaled = out / score_at
    logp = jnp.take_along_axis(scaled, token[:, None], axis=-1)[:, 0]
    return token, logp - jax.nn.logsumexp(scaled, axis=-1)

  def body(carry):
    step, lanes, buffer, tokens, logps, experts, count, _ = carry
    hidden, buffer, chosen = steps.decode(
      params, layers, config, cache, buffer, lanes.token, start + step, step, lanes.generating
    )
    experts = experts.at[:, step].set(jnp.swapaxes(chosen, 0, 1))
    # The sampled token's own position, not the one it is sampled from.
    keys = jax.vmap(jax.random.fold_in)(
      jax.random.wrap_key_data(lanes.key), lanes.position + 1
    )
    token, logp = steps.choose(params, config, hidden, pick, keys, forced[:, step])
    on = lanes.generating
    tokens = tokens.at[:, step].set(jnp.where(on, token, 0))
    logps = logps.at[:, step].set(jnp.where(on, logp, 0.0))
    one = on.astype(jnp.int32)
    position, left = lanes.position + one, lanes.left - one
    stop = jnp.any(token[:, None] == stops[None, :], axis=-1)
    going = on & ~stop & (left > 0) & (position + 1 < length)
    lanes = lanes.replace(
      token=jnp.where(on, token, lanes.token), position=position, left=left, generating=going
    )
    alive = steps.anyone(jnp.any(going))
    return step + 1, lanes, buffer, tokens, logps, experts, count + one, alive

  carry = (
    jnp.int32(0),
    lanes,
    steps.open_buffer(cache, J),
    jnp.zeros((B, J), jnp.int32),
    jnp.zeros((B, J), jnp.float32),
    jnp.zeros((B, J, config.num_layers, config.experts_per_token), jnp.int32),
    jnp.zeros((B,), jnp.int32),
    steps.anyone(jnp.any(lanes.generating)),
  )
  goes_on = lambda carry: (carry[0] < J) & carry[-1]
  _, lanes, buffer, tokens, logps, experts, count, _ = jax.lax.while_loop(goes_on, body, carry)
  cache = steps.close_buffer(cache, buffer, start, count)
  return cache, lanes, {"tokens": tokens, "logp": logps, "experts": experts, "count": count}
