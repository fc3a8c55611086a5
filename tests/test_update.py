"""One optimiser step from micro-batches; the schedule; what decays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.optim.optimizer import adamw, learning_rate, muon
from searchjax.dist.mesh import make_mesh
from searchjax.model.config import model_config
from searchjax.model.parallel import Division, Parallel, divide
from searchjax.model.params import init_params, param_specs
from searchjax.optim.update import (
  init_state, make_gradient, make_update, round_stochastically, state_specs,
)

OPTIONS = dict(peak=0.1, warmup=2, total=10, decay="constant", b2=0.99, weight_decay=0.0, clip_norm=1e9)


@pytest.fixture(autouse=True)
def optax_is_not_strict():
  """optax itself mixes its integer step count with floats."""
  with jax.numpy_dtype_promotion("standard"):
    yield


def loss(params, batch):
  error = batch["x"] @ params["matrix"] - batch["y"]
  return jnp.sum(jnp.square(error)), {"count": jnp.int32(batch["x"].shape[0])}


@pytest.fixture
def problem():
  rng = np.random.default_rng(0)
  params = {"matrix": jnp.asarray(rng.normal(size=(3,)).astype(np.float32)), "norm": jnp.ones((2,))}
  batch = {"x": rng.normal(size=(8, 3)).astype(np.float32), "y": rng.normal(size=8).astype(np.float32)}
  return params, batch


def one_device(params):
  """No division at all: one device, everything whole."""
  tree = lambda leaf: jax.tree.map(lambda _: leaf, params)
  return Division(
    make_mesh(devices=jax.devices()[:1]), Parallel(), tree(()), tree(jax.sharding.PartitionSpec())
  )


def split(batch, sizes):
  start = 0
  for n in sizes:
    yield {k: v[start : start + n] for k, v in batch.items()}
    start += n


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (1,) * 8, (2, 6)])
def test_L3_the_split_into_micro_batches_does_not_change_the_step(problem, sizes):
  params, batch = problem
  gradient = make_gradient(loss, one_device(params))
  update = make_update(adamw(**OPTIONS))
  total, losses = None, 0.0
  for micro in split(batch, sizes):
    total, sums = gradient(params, micro, total)
    losses += float(sums["loss"])
  want_grad = 2 * batch["x"].T @ (batch["x"] @ np.asarray(params["matrix"]) - batch["y"]) / 8
  before = np.asarray(params["matrix"]).copy()
  mean_of_means = np.mean([float(loss(params, m)[0]) / len(m["y"]) for m in split(batch, (2, 6))])
  state, norm = update(init_state(params, adamw(**OPTIONS)), total, 8)
  np.testing.assert_allclose(norm, np.linalg.norm(want_grad), rtol=1e-5)
  # Adam's first step is the sign of the gradient; warm-up halves the peak.
  want = before - 0.05 * np.sign(want_grad)
  np.testing.assert_allclose(state.params["matrix"], want, rtol=1e-4)
  assert int(state.step) == 1
  assert abs(losses / 8 - mean_of_means) > 1e-3


def test_M8_nothing_counted_is_no_step(problem):
  params, batch = problem
  grads, _ = make_gradient(loss, one_device(params))(params, batch)
  before = jax.tree.map(lambda a: np.asarray(a).copy(), params)
  state, norm = make_update(adamw(**OPTIONS))(init_state(params, adamw(**OPTIONS)), grads, 0)
  assert float(norm) == 0
  jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, state.params), before)


def test_schedule_rises_then_falls():
  rate = lambda step, decay: float(learning_rate(step, peak=1.0, warmup=4, total=24, decay=decay))
  np.testing.assert_allclose([rate(s, "constant") for s in (0, 1, 3, 4, 20)], [0.25, 0.5, 1, 1, 1])
  np.testing.assert_allclose(rate(14, "cosine"), 0.55, rtol=1e-5)
  np.testing.assert_allclose(rate(24, "cosine"), 0.1, rtol=1e-5)
  np.testing.assert_allclose(rate(14, "linear"), 0.5, rtol=1e-5)
  with pytest.raises(ValueError, match='optimizer.decay must be'):
    rate(0, "cosin")


def test_weight_decay_spares_norms(problem):
  params, _ = problem
  optimizer = adamw(**(OPTIONS | {"weight_decay": 0.5}))
  zero = jax.tree.map(jnp.zeros_like, params)
  before = jax.tree.map(lambda a: np.asarray(a).copy(), params)
  state, _ = make_update(optimizer)(init_state(params, optimizer), zero, 1)
  np.testing.assert_array_equal(state.params["norm"], before["norm"])
  np.testing.assert_allclose(state.params["matrix"], before["matrix"] * (1 - 0.05 * 0.5), rtol=1e-5)


def test_muon_knows_which_axes_of_every_matrix_are_summed_over():
  from searchjax.model.config import model_config
  from searchjax.optim.optimizer import matrix_axes
  axes = matrix_axes(model_config("tiny"))
  assert axes["embed"] is None and axes["attention"]["norm"] is None and axes["delta"]["A_log"] is None
  assert axes["delta"]["conv_key"] is None and axes["moe"]["shared_gate"] is None
  assert axes["attention"]["query"] == ((1,), (2, 3))        # [group | D | N, H]
  assert axes["attention"]["out"] == ((1, 2), (3,))          # [group | N, H | D]
  assert axes["moe"]["gate_up"] == ((3,), (4,))              # [group, layer, expert | D | F]
  assert axes["delta"]["value"] == ((2,), (3, 4))


def test_moments_may_be_bfloat16_and_parameters_then_move_by_less_than_their_spacing(problem):
  _, batch = problem
  params = {"matrix": jnp.ones((30011,), jnp.bfloat16)}
  optimizer = adamw(**OPTIONS | {"peak": 2e-4, "warmup": 0})
  state = init_state(params, optimizer, moment_dtype="bfloat16")
  assert all(m.dtype == jnp.bfloat16 for m in jax.tree.leaves(state.moments) if m.ndim)
  grads = {"matrix": jnp.ones((30011,), jnp.bfloat16)}
  state, _ = make_update(optimizer)(state, grads, 1)
  moved = np.asarray(state.params["matrix"].astype(jnp.float32))
  assert state.params["matrix"].dtype == jnp.bfloat16
  # One step is 2e-4, the spacing below 1 is 2 ** -8: rounding to nearest would never move.
  assert set(np.unique(moved).tolist()) == {1.0, 1 - 2**-8}
  np.testing.assert_allclose(1 - moved.mean(), 2e-4, rtol=0.15)


def test_stochastic_rounding_is_unbiased_and_keeps_what_is_exact():
  x = jnp.full((40009,), 1.0 + 0.3 * 2**-7)
  rounded = np.asarray(round_stochastically(jax.random.key(0), x).astype(jnp.float32))
  assert set(np.unique(rounded).tolist()) == {1.0, 1 + 2**-7}
  np.testing.assert_allclose(rounded.mean(), float(x[0]), atol=1e-4)
  exact = jnp.array([0.0, -1.5, jnp.inf, jnp.nan])
  np.testing.assert_array_equal(
    np.asarray(round_stochastically(jax.random.key(1), exact).astype(jnp.float32)), exact
  )


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_moments_are_divided_as_their_parameters_are(kind):
  model = model_config("tiny", delta_key_heads=4, delta_value_heads=4)
  options = {k: v for k, v in OPTIONS.items()}
  optimizer = adamw(**options) if kind == "adamw" else muon(model, adam_peak=0.1, **options)
  division = divide(make_mesh(2, 2, 1, devices=jax.devices()[:4]), "zero3", param_specs(model))
  params = init_params(jax.random.key(0), model)
  state = init_state(params, optimizer)
  specs = state_specs(state, division)
  by_shape = {}
  for leaf, spec in zip(jax.tree.leaves(state.params), jax.tree.leaves(specs.params), strict=True):
    by_shape.setdefault(leaf.shape, set()).add(spec)
  divided = 0
  for leaf, spec in zip(jax.tree.leaves(state.moments), jax.tree.leaves(specs.moments), strict=True):
    assert spec in by_shape.get(leaf.shape, {jax.sharding.PartitionSpec()})
    divided += any(spec)
  # Two moments for Adam; one for Muon's matrices, two for the rest.
  tensors = sum(any(spec) for spec in jax.tree.leaves(specs.params))
  assert divided == 2 * tensors if kind == "adamw" else tensors <= divided < 2 * tensors
