"""AdamW with warm-up and decay.  PURE.

  m, v: moments of the clipped gradient;  θ ← θ − η_t (m̂ / (√v̂ + ε) + λ θ)

Norm weights, biases and decay rates carry no weight decay.

Source   arXiv:1711.05101, through optax.
"""

import jax
import optax

NO_DECAY = ("norm", "out_norm", "query_norm", "key_norm", "final_norm", "A_log", "dt_bias")


def learning_rate(step, *, peak: float, warmup: int, total: int, decay: str):
  """Step size: linear warm-up, then "cosine" to a tenth of the peak, "linear" to 0, or "constant"."""
  if decay not in ("cosine", "linear", "constant"):
    raise ValueError(f'optimizer.decay must be "cosine", "linear" or "constant", got "{decay}"')
  rise = optax.linear_schedule(peak / max(warmup, 1), peak, max(warmup - 1, 1))
  left = max(total - warmup, 1)
  fall = {
    "cosine": optax.cosine_decay_schedule(peak, left, alpha=0.1),
    "linear": optax.linear_schedule(peak, 0.0, left),
    "constant": optax.constant_schedule(peak),
  }[decay]
  return optax.join_schedules([rise, fall], [warmup])(step)


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
  """The optimiser of every stage.

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


def _decays(params):
  return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in NO_DECAY, params)
