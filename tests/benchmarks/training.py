"""One SFT step against transformers' on the same batch: `python tests/benchmarks/training.py`.

The tiny policy with random weights: forward, backward and AdamW, 12 rows of 256 tokens that are all
trained, float32 on this machine's cores. Each in turn, several times; the best of each counts.
Needs torch (`pip install -e .[parity]`).
"""

import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import numpy as np
from engine import MODEL, load_transformers

from searchjax.dist.mesh import make_mesh, place, place_rows
from searchjax.model.params import init_params, param_specs
from searchjax.model.parallel import divide
from searchjax.optim.optimizer import make_optimizer
from searchjax.optim.update import init_state, make_gradient, make_update, state_specs
from searchjax.train_sft import sft_loss

ROWS, LENGTH, TIMES = 12, 256, 5


def our_step(params, tokens):
  """A function that takes one step and returns when it is done."""
  division = divide(make_mesh(0, 1, 1), "replicated", param_specs(MODEL))
  optimizer = make_optimizer(
    model=MODEL, total=100, kind="adamw", peak=1e-3, warmup=0, decay="constant", b2=0.98,
    weight_decay=0.0, clip_norm=1.0,
  )
  state = init_state(params, optimizer)
  state = place(state, division.mesh, state_specs(state, division))
  gradient = make_gradient(sft_loss(MODEL, division.parallel), division)
  update = make_update(optimizer)
  rows = {
    "tokens": tokens, "segment_ids": np.ones_like(tokens),
    "positions": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape),
    "loss_mask": np.arange(LENGTH)[None] > np.zeros((ROWS, 1)),
  }
  batch = place_rows(rows, division.mesh)

  def step():
    nonlocal state
    grads, sums = gradient(state.params, batch)
    state, norm = update(state, grads, sums["count"])
    jax.block_until_ready(norm)

  return step


def their_step(params, tokens):
  import torch

  model = load_transformers(params).train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
  ids = torch.tensor(tokens, dtype=torch.long)

  def step():
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

  return step


def main() -> None:
  params = jax.tree.map(np.asarray, init_params(jax.random.key(0), MODEL))
  rng = np.random.default_rng(0)
  tokens = rng.integers(1, MODEL.vocab_size, (ROWS, LENGTH)).astype(np.int32)
  steps = {"searchjax": our_step(params, tokens), "transformers": their_step(params, tokens)}
  best = dict.fromkeys(steps, float("inf"))
  for i in range(1 + TIMES):
    for name, step in steps.items():
      begun = time.perf_counter()
      step()
      if i:  # The first one compiles.
        best[name] = min(best[name], time.perf_counter() - begun)
  speed = {name: ROWS * LENGTH / seconds for name, seconds in best.items()}
  print(f"trained tokens/s: searchjax {speed['searchjax']:.0f}, transformers "
        f"{speed['transformers']:.0f}; ratio {speed['searchjax'] / speed['transformers']:.1f}")


if __name__ == "__main__":
  main()
