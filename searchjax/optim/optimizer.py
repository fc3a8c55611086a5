"""Optimisers: AdamW, and Muon for matrices trained from scratch.  PURE.

  AdamW   m, v: moments of the clipped gradient;  θ ← θ − η_t (m̂ / (√v̂ + ε) + λ θ)
  Muon    M: momentum of a matrix's gradient;     θ ← θ − η_t (orthogonalised M + λ θ)

Muon treats stacked layers and experts one by one; embeddings, norms, convolutions and decay rates
stay with Adam. Norm weights, biases and decay rates carry no weight decay.

Source   arXiv:1711.05101; Muon, K. Jordan 2024, arXiv:2502.16982; both through optax.
"""

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from searchjax.model.config import ModelConfig
from searchjax.model.params import ParamSpec, param_specs

NO_DECAY = ("norm", "out_norm", "query_norm", "key_norm", "final_norm", "A_log", "dt_bias")
STACKED = ("groups", "layers", "experts")


def learning_rate(step, *, peak: float, warmup: int, total: int, decay: str):
  """Linear warm-up, then "cosine" to a tenth of the peak, "linear" to 0, or "constant"."""
  if decay not in ("cosine", "linear", "constant"):
    raise ValueError(f'optimizer.decay must be "cosine", "linear" or "constant", got "{decay}"')
  rise = optax.linear_schedule(peak / max(warmup, 1), peak, max(warmup - 1, 1))
  left = max(total - warmup, 1)
  fall = {
    "cosine": optax.cosine_decay_schedule(peak, left, alpha=0.1),
    "linear": optax.linear_schedule(peak, 0.0, left),
    "constant": optax.constant_schedule(peak),
  }[decay]
  return optax.join_schedules([rise, fall], [warmup])(jnp.asarray(step).astype(jnp.float32))


def make_optimizer(
  kind: str, model: ModelConfig, *, total: int, **options
) -> optax.GradientTransformation:
  """The optimiser a config names.

  Args:
    kind: "adamw" or "muon".
    total: steps of the run.
    options: of that optimiser, below.

  Raises:
    ValueError: another kind.
  """
  if kind == "adamw":
    return adamw(total=total, **options)
  if kind == "muon":
    return muon(model, total=total, **options)
  raise ValueError(f'optimizer.kind must be "adamw" or "muon", got "{kind}"')


def adamw(
  *,
  peak: float,
  warmup: int,
  total: int,
  decay: str,
  b2: float,
  weight_decay: float,
  clip_norm: float,
) -> optax.GradientTransformation:
  """AdamW.

  Args:
    peak, warmup, total, decay: see `learning_rate`; steps.
    b2: decay of the second moment.
    weight_decay: λ, on matrices only.
    clip_norm: global l2 norm above which a gradient is scaled down.
  """
  schedule = lambda step: learning_rate(step, peak=peak, warmup=warmup, total=total, decay=decay)
  return optax.chain(
    optax.clip_by_global_norm(clip_norm),
    optax.adamw(schedule, b1=0.9, b2=b2, weight_decay=weight_decay, mask=_decays),
  )


def muon(
  model: ModelConfig,
  *,
  peak: float,
  adam_peak: float,
  warmup: int,
  total: int,
  decay: str,
  b2: float,
  weight_decay: float,
  clip_norm: float,
) -> optax.GradientTransformation:
  """Muon for the decoder's matrices, Adam for the rest.

  Args:
    model: says which parameters are matrices, and which of their axes are summed over.
    peak, adam_peak: largest step sizes of the two; the other arguments are as in `adamw`.
  """
  schedule = lambda step, peak: learning_rate(
    step, peak=peak, warmup=warmup, total=total, decay=decay
  )
  return optax.chain(
    optax.clip_by_global_norm(clip_norm),
    optax.contrib.muon(
      lambda step: schedule(step, peak), adam_learning_rate=lambda step: schedule(step, adam_peak),
      adam_b2=b2, weight_decay=weight_decay,
      muon_weight_dimension_numbers=lambda params: matrix_axes(model),
    ),
  )


def matrix_axes(model: ModelConfig) -> dict:
  """Per parameter, the axes a product with it sums over and those it gives; None: not a matrix."""

  def axes(path, spec):
    name = path[-1].key
    lead = sum(axis in STACKED for axis in spec.axes)
    if spec.init != "normal" or name.startswith("conv") or len(spec.shape) - lead < 2:
      return None
    end, summed = lead, 1
    while summed < spec.fan_in:
      summed *= spec.shape[end]
      end += 1
    return optax.contrib.MuonDimensionNumbers(
      tuple(range(lead, end)), tuple(range(end, len(spec.shape)))
    )

  return jax.tree_util.tree_map_with_path(
    axes, param_specs(model), is_leaf=lambda x: isinstance(x, ParamSpec)
  )


def _decays(params):
  return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in NO_DECAY, params)
