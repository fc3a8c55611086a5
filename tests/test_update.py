"""One optimiser step from micro-batches; the schedule; what decays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from searchjax.optim.optimizer import adamw, learning_rate
from searchjax.optim.update import init_state, make_gradient, make_update

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


def split(batch, sizes):
  start = 0
  for n in sizes:
    yield {k: v[start : start + n] for k, v in batch.items()}
    start += n


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (1,) * 8, (2, 6)])
def test_L3_the_split_into_micro_batches_does_not_change_the_step(problem, sizes):
  params, batch = problem
  gradient, update = make_gradient(loss), make_update(adamw(**OPTIONS))
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
  grads, _ = make_gradient(loss)(params, batch)
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
