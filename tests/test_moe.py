"""Routing, replay of recorded experts, dispatches and the balance loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.model import moe
from searchjax.model.config import model_config

T, D, E, X = 7, 5, 11, 3


def routed(seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(D, E)).astype(np.float32), rng.normal(size=(T, D)).astype(np.float32)


def test_R4_replayed_experts_are_weighted_by_live_logits():
  """FAULTS R4: an expert outside the live top-X keeps its weight, and the router its gradient."""
  router, x = routed()
  logits = x.astype(np.float64) @ router
  replay = np.argsort(logits, axis=-1)[:, :X].astype(np.int32)  # the three least likely
  replay[2] = -1
  w, experts = moe.route(jnp.asarray(router), jnp.asarray(x), X, jnp.asarray(replay))
  live_w, live = moe.route(jnp.asarray(router), jnp.asarray(x), X)
  np.testing.assert_array_equal(experts[2], live[2])
  np.testing.assert_array_equal(w[2], live_w[2])
  for t in set(range(T)) - {2}:
    np.testing.assert_array_equal(experts[t], replay[t])
    e = np.exp(logits[t, replay[t]])
    np.testing.assert_allclose(w[t], e / e.sum(), rtol=1e-5)
    # The mistake: weights gathered from live top-X probabilities, zero elsewhere.
    assert not set(replay[t]) & set(np.asarray(live[t])) and np.asarray(w[t]).min() > 0
  value = lambda r: moe.route(r, jnp.asarray(x), X, jnp.asarray(replay))[0][0, 0]
  gradient = np.asarray(jax.grad(value)(jnp.asarray(router)))
  assert np.all(np.abs(gradient[:, replay[0]]).max(0) > 1e-3)
  assert np.all(gradient[:, np.setdiff1d(np.arange(E), replay[0])] == 0)


def test_R4_replay_of_the_live_choice_changes_nothing():
  router, x = (jnp.asarray(a) for a in routed(1))
  w, experts = moe.route(router, x, X)
  again, same = moe.route(router, x, X, experts)
  np.testing.assert_array_equal(experts, same)
  np.testing.assert_array_equal(w, again)


def test_R6_routers_that_disagree_are_counted():
  """FAULTS R6: by set, not by order; tokens without a record, and padding, are not compared."""
  logits = jnp.array([[3.0, 2, 1, 0], [3, 2, 1, 0], [0, 1, 2, 3], [3, 2, 1, 0], [3, 2, 1, 0]])
  replay = jnp.array([[0, 1], [1, 0], [3, 1], [-1, -1], [2, 3]], jnp.int32)
  valid = jnp.array([True, True, True, True, False])
  replayed, disagree = moe.disagreement(logits, replay, valid)
  assert (int(replayed), int(disagree)) == (3, 1)
  assert [int(n) for n in moe.disagreement(logits, None, valid)] == [0, 0]


@pytest.mark.parametrize("expert", [0, 255, 256, 300, 511])
def test_R1_expert_ids_are_wide_enough(expert):
  """FAULTS R1: in uint8, expert 300 becomes 44."""
  router = jnp.zeros((2, 512)).at[:, expert].set(1.0)
  _, experts = moe.route(router, jnp.ones((1, 2)), 10)
  assert experts.dtype == jnp.int32 and experts[0, 0] == expert
  _, replayed = moe.route(router, jnp.ones((1, 2)), 10, experts)
  np.testing.assert_array_equal(replayed, experts)


SIZES = dict(
  hidden_size=D, num_experts=E, experts_per_token=X, expert_size=13, shared_expert_size=17,
  vocab_size=53, real_vocab_size=53,
)
DISPATCHES = ("dense", "tiles", "ragged", "gmm_interpret", "capacity")


@pytest.fixture(scope="module")
def weights():
  rng = np.random.default_rng(2)
  shapes = dict(
    router=(D, E), gate_up=(E, D, 26), down=(E, 13, D), shared_gate_up=(D, 34),
    shared_down=(17, D), shared_gate=(D,),
  )
  return {n: jnp.asarray(rng.normal(size=s) * 0.5, jnp.float32) for n, s in shapes.items()}


def config(**fields):
  return model_config("tiny", **SIZES, **fields)


layer = jax.jit(moe.moe, static_argnums=1)


def draw(B, T, seed=5):
  return jnp.asarray(np.random.default_rng(seed).normal(size=(B, T, D)), jnp.float32)


def oracle(weights, x, kept=None):
  """A loop over tokens in float64; `kept` [T X] drops (token, choice) pairs."""
  w = {n: np.asarray(a, np.float64) for n, a in weights.items()}
  silu = lambda a: a / (1 + np.exp(-a))
  out = np.zeros(x.shape)
  for t, token in enumerate(np.asarray(x, np.float64)):
    logits = token @ w["router"]
    chosen = np.argsort(-logits, kind="stable")[:X]
    p = np.exp(logits[chosen] - logits[chosen].max())
    for j, e in enumerate(chosen):
      if kept is None or kept[t, j]:
        h = token @ w["gate_up"][e]
        out[t] += p[j] / p.sum() * ((silu(h[:13]) * h[13:]) @ w["down"][e])
    h = token @ w["shared_gate_up"]
    out[t] += (silu(h[:17]) * h[17:]) @ w["shared_down"] / (1 + np.exp(-token @ w["shared_gate"]))
  return out


# One shape for all: compiling is what takes time.
ROWS, LENGTH = 2, 19
ALL = np.ones((ROWS, LENGTH), bool)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_every_dispatch_equals_a_loop_over_tokens_whatever_the_batch_mates(weights, dispatch):
  c = config(moe_dispatch=dispatch, capacity_factor=4.0)
  x = draw(ROWS, LENGTH)
  y, routing = layer(weights, c, x, ALL)
  np.testing.assert_allclose(y.reshape(-1, D), oracle(weights, x.reshape(-1, D)), atol=1e-5)
  assert routing.experts.dtype == jnp.int32 and routing.experts.shape == (ROWS, LENGTH, X)
  assert routing.overflow == 0
  z, other = layer(weights, c, x.at[1].set(draw(1, LENGTH, seed=9)[0]), ALL)
  np.testing.assert_array_equal(routing.experts[0], other.experts[0])
  np.testing.assert_allclose(y[0], z[0], atol=1e-6)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_R7_padding_takes_no_capacity_and_no_part_in_the_balance(weights, dispatch):
  """FAULTS R7: 60 % padding, all of which would go where the first token goes, changes nothing."""
  real = 15
  c = config(moe_dispatch=dispatch, capacity_factor=1.25)
  # ceil(1.25 · 38 · 3 / 11): holds the assignments of 15 tokens, not those of 38.
  assert moe.capacity(c, ROWS * LENGTH) == 13
  flat = draw(1, real)[0]
  want = oracle(weights, flat)
  padding = jnp.repeat(flat[:1], ROWS * LENGTH - real, axis=0)
  x, valid = jnp.concatenate([flat, padding]), np.arange(ROWS * LENGTH) < real
  logits = np.asarray(flat) @ np.asarray(weights["router"])
  chosen = jnp.asarray(np.argsort(-logits)[:, :X], jnp.int32)
  own = moe.balance(jnp.asarray(logits), chosen, jnp.ones(real, bool))
  rows = lambda a: a.reshape(ROWS, LENGTH, *a.shape[1:])
  for order in (np.arange(ROWS * LENGTH), np.random.default_rng(8).permutation(ROWS * LENGTH)):
    y, routing = layer(weights, c, rows(x[order]), rows(valid[order]))
    y = np.asarray(y.reshape(-1, D))[np.argsort(order)]
    np.testing.assert_allclose(y[:real], want, atol=1e-5)
    assert routing.overflow == 0
    np.testing.assert_allclose(routing.balance, own, rtol=1e-5)
  _, counted = layer(weights, c, rows(x), ALL)
  assert abs(counted.balance - own) > 0.1
  assert (counted.overflow > 0) == (dispatch == "capacity")


# All on every expert; in seats; in tiles; in more seats than a tile's rows, where tiles would copy
# more of the weights than is allowed.
@pytest.mark.parametrize(
  ("tokens", "copies"), [(5, moe.COPIES), (38, moe.COPIES), (150, moe.COPIES), (150, 10_000)]
)
def test_small_blocks_leave_nothing_out_and_no_token_sees_another(
  weights, tokens, copies, monkeypatch
):
  """However uneven the load; a token gets the same bits whatever the others choose, wherever it
  stands, and so in whichever seat and round."""
  monkeypatch.setattr(moe, "COPIES", copies)
  own = {name: weights[name] for name in ("gate_up", "down")}
  rng = np.random.default_rng(tokens)
  x = jnp.asarray(rng.normal(size=(tokens, D)), jnp.float32)
  w = jnp.asarray(rng.random((tokens, X)), jnp.float32)
  mixed = np.argsort(rng.random((tokens, E + 2)), axis=1)[:, :X]  # E and E + 1 are elsewhere.
  uneven = np.tile([3, 0, E], (tokens, 1))
  for experts in (mixed, uneven):
    experts = jnp.asarray(experts, jnp.int32)
    both = [jax.jit(f)(own, x, w, experts) for f in (moe.tiled_experts, moe.dense_experts)]
    np.testing.assert_allclose(*both, atol=1e-5)
    slope = lambda f: jax.jit(jax.grad(lambda own, x, w: jnp.sum(jnp.sin(f(own, x, w, experts)))))
    got, want = (slope(f)(own, x, w) for f in (moe.tiled_experts, moe.dense_experts))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want)
  run = jax.jit(moe.tiled_experts)
  want = run(own, x, w, jnp.asarray(mixed, jnp.int32))
  for trial in range(4):
    kept = rng.permutation(tokens)[: tokens // 4 + 1]
    others = uneven if trial % 2 else rng.permutation(mixed)
    chosen, mates = others.copy(), rng.normal(size=x.shape).astype(np.float32)
    chosen[kept], mates[kept] = mixed[kept], np.asarray(x)[kept]
    order = rng.permutation(tokens)
    got = run(own, mates[order], np.asarray(w)[order], chosen[order].astype(np.int32))
    np.testing.assert_array_equal(got[np.argsort(order)][kept], want[kept])


def test_a_sorted_buffer_has_rows_that_the_kernel_takes():
  """1.2 · 2048 · 16 tokens · 8 of 256 experts over 16 devices: 19,661 rows would be multiplied by
  all 16 experts of a device on v5p, 1.32e12 FLOPs instead of 8.2e10."""
  c = model_config("qwen3.5-35b-a3b", capacity_factor=1.2)
  assert moe.sorted_rows(c, 2048 * 16, 16) == 19664
  assert moe.sorted_rows(model_config("qwen3.5-397b-a17b", capacity_factor=1.2), 2048, 1) == 24576


def test_what_finds_no_seat_is_counted_and_first_choices_go_first(weights):
  T = ROWS * LENGTH
  x = draw(ROWS, LENGTH)
  c = config(moe_dispatch="capacity", capacity_factor=0.7)
  rows = moe.capacity(c, T)
  assert rows == 8  # 0.7 · 38 · 3 / 11 = 7.3
  y, routing = layer(weights, c, x, ALL)
  chosen = np.asarray(routing.experts).reshape(T, X)
  kept, load = np.zeros((T, X), bool), np.zeros(E, int)
  for j in range(X):
    for t in range(T):
      kept[t, j] = load[chosen[t, j]] < rows
      load[chosen[t, j]] += 1
  assert routing.overflow == np.sum(~kept) > 0
  x, y = x.reshape(T, D), np.asarray(y).reshape(T, D)
  np.testing.assert_allclose(y, oracle(weights, x, kept), atol=1e-5)
  assert np.abs(y - oracle(weights, x)).max() > 0.01


def test_capacity_never_exceeds_the_batch():
  assert moe.capacity(config(capacity_factor=100.0), 7) == 7


def test_R8_routing_weights_are_renormalised():
  """FAULTS R8: probabilities .5, .3 give weights .625, .375."""
  router = jnp.log(jnp.array([[0.5, 0.3, 0.2], [0, 0, 0.1], [0, 0, 0.1]]) + 1e-9)
  w, experts = moe.route(router, jnp.eye(3)[:1], 2)
  np.testing.assert_allclose(w, [[0.625, 0.375]], atol=1e-6)
  assert experts.tolist() == [[0, 1]]


def test_router_ties_go_to_the_lowest_expert():
  _, experts = moe.route(jnp.ones((3, 5)), jnp.ones((2, 3)), 2)
  assert experts.tolist() == [[0, 1], [0, 1]]


def test_the_router_is_float32_where_bfloat16_would_tie():
  """Logits 1 and 1 + 2⁻⁹ are one bfloat16 number; the larger has the higher id."""
  router = jnp.array([[1.0, 1.0], [0.0, 2.0**-9]], jnp.bfloat16)
  w, experts = moe.route(router, jnp.ones((1, 2), jnp.bfloat16), 1)
  assert experts.tolist() == [[1]] and w.dtype == jnp.float32
  assert moe.router_logits(router, jnp.ones((1, 2), jnp.bfloat16)).dtype == jnp.float32


def test_balance_by_hand():
  """Two experts, one choice: loads (3/4, 1/4), mean probabilities (0.6, 0.4): 2 · 0.55 = 1.1."""
  p = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8], [0.01, 0.99]])
  logits = jnp.asarray(np.log(p), jnp.float32)
  experts = jnp.argmax(logits, -1).astype(jnp.int32)[:, None]
  valid = jnp.array([True, True, True, True, False])
  np.testing.assert_allclose(moe.balance(logits, experts, valid), 1.1, rtol=1e-6)
  np.testing.assert_allclose(moe.balance(0 * logits, experts, valid), 1.0, rtol=1e-6)
  assert moe.balance(logits, experts, 0 * experts[:, 0] > 0) == 0.0
  gradient = jax.grad(moe.balance)(logits, experts, valid)
  np.testing.assert_array_equal(gradient[4], 0.0)
  # Pushing the fuller expert's logit up raises the term: E/N · (f_0 − f_1) p_0 p_1.
  np.testing.assert_allclose(gradient[0, 0], 2 / 4 * (0.75 - 0.25) * 0.9 * 0.1, rtol=1e-4)
  none = jnp.int32(0)
  routing = moe.Routing(experts, none, jnp.array([1.0, 3.0]), none, none)
  np.testing.assert_allclose(
    moe.balance_loss(config(router_aux_loss_coef=0.01), routing), 0.02, rtol=1e-6
  )


def test_gradients_of_the_dispatches_are_those_of_the_dense_one(weights):
  x = draw(ROWS, LENGTH)
  loss = lambda w, c: jnp.sum(jnp.sin(moe.moe(w, c, x, jnp.asarray(ALL))[0]))
  gradient = jax.jit(jax.grad(loss), static_argnums=1)
  # The library's kernel relies on promotion.
  with jax.numpy_dtype_promotion("standard"):
    want, *others = (
      gradient(weights, config(moe_dispatch=d, capacity_factor=4.0)) for d in DISPATCHES
    )
  for got in others:
    for name in weights:
      np.testing.assert_allclose(got[name], want[name], atol=2e-5, err_msg=name)


def test_tokens_go_where_one_of_their_experts_is_once():
  """By hand: 3 devices, room for 2. Token 0 has both experts on device 1, token 3 is padding."""
  homes = jnp.array([[1, 1], [0, 1], [2, 1], [3, 3], [0, 2]])
  tokens, lost = moe.choose_tokens(homes, 3, 2)
  # Device 1 wants tokens 0, 1 and 2; there is no room for token 2, one pair.
  assert tokens.tolist() == [1, 4, 0, 1, 2, 4] and lost == 1
  tokens, lost = moe.choose_tokens(homes, 3, 4)
  assert tokens.tolist() == [1, 4, 5, 5, 0, 1, 2, 5, 2, 4, 5, 5] and lost == 0


def test_room_is_the_share_of_tokens_with_an_expert_there():
  """E 11 on 11 devices, X 3: a device is chosen by 3/11; drawing with replacement it were .249."""
  assert moe.exchange_room(config(exchange_factor=1.0), 1100, 11) == 300
  c = model_config("qwen3.5-397b-a17b", exchange_factor=1.0)
  rng = np.random.default_rng(0)
  drawn = np.argsort(rng.random((4000, 512)), axis=1)[:, :10] < 32
  assert moe.exchange_room(c, 100_000, 16) == pytest.approx(
    100_000 * drawn.any(1).mean(), rel=0.03
  )


def test_bad_fields_say_what_to_mend():
  choices = "dense, tiles, ragged, gmm, gmm_interpret, capacity"
  with pytest.raises(ValueError, match=f'must be one of {choices}, got "x"'):
    config(moe_dispatch="x")
  with pytest.raises(ValueError, match="exchange_factor must be above 0"):
    config(capacity_factor=0.0)


def test_R6_the_metric_is_a_share_of_the_records_and_absent_without_any():
  from searchjax.train_grpo import router_disagreement

  sums = [{"replayed": 30, "disagree": 3}, {"replayed": 10, "disagree": 1}]
  assert router_disagreement(sums) == {"router_disagree": 0.1}
  assert router_disagreement([{"replayed": 0, "disagree": 0}]) == {}
