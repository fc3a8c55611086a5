"""One SFT step against transformers' on the same batch.

`PYTHONPATH=. python tests/benchmarks/training.py`

The tiny policy with random weights: forward, backward and AdamW, float32 on this machine's cores,
each in turn, several times; the best of each counts. Two batches:

conversations  as the SFT stage draws them, agent's tokens trained: here packed into rows, there one
               a row, filled up to the longest
full rows      12 of 256 random tokens that are all trained: nothing to pack, nothing filled up

Tokens are those of the conversations. Both must find the same loss. Needs torch
(`pip install -e .[parity]`).
"""

import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import numpy as np
from engine import MODEL, load_transformers

from configs.sft_tiny import get_config
from searchjax.data.demonstrations import make_demonstrations, style_demonstrations
from searchjax.data.loader import sft_batches
from searchjax.data.segments import training_examples
from searchjax.dist.mesh import make_mesh, place, place_rows
from searchjax.model.params import init_params, param_specs
from searchjax.model.parallel import divide
from searchjax.optim.optimizer import make_optimizer
from searchjax.optim.update import init_state, make_gradient, make_update, state_specs
from searchjax.rollout.agent import load_chat, open_agent
from searchjax.search.atlas import load_atlas
from searchjax.train_sft import load_questions, sft_loss

ROWS, LENGTH, TIMES = 12, 256, 5


def full_rows():
  """A batch without padding: tokens, segment_ids, positions, loss_mask [ROWS LENGTH]."""
  tokens = np.random.default_rng(0).integers(1, MODEL.vocab_size, (ROWS, LENGTH)).astype(np.int32)
  positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape)
  return {
    "tokens": tokens, "segment_ids": np.ones_like(tokens), "positions": positions,
    "loss_mask": positions > 0,
  }


def conversations():
  """A batch as the SFT stage's loader packs it."""
  config = get_config()
  atlas, chat = load_atlas(None, for_questions=True), load_chat("")
  with open_agent(config, MODEL, chat) as agent:
    questions = load_questions(atlas, config.data, "sft", 0, 120)
    found = make_demonstrations(
      questions, agent.tool, atlas=atlas, seed=0, rates=config.data.rates, max_calls=5
    )
    examples = {
      "tool_use": training_examples(chat, [d.messages for d in found], agent.tools),
      "preference": training_examples(
        chat, [d.messages for d in style_demonstrations(0, 60, atlas.names_bank)]
      ),
    }
  batches = sft_batches(
    examples, weights=dict(config.data.weights), seed=0, pad_id=chat.pad_id, process_index=0,
    process_count=1, rows=ROWS, length=LENGTH,
  )
  batch = next(batches)
  batches.close()
  return {name: batch[name] for name in full_rows()}


def our_step(params, batch):
  """A function that takes one step and gives its loss when it is done."""
  division = divide(make_mesh(0, 1, 1), "replicated", param_specs(MODEL))
  optimizer = make_optimizer(
    model=MODEL, total=100, kind="adamw", peak=1e-3, warmup=0, decay="constant", b2=0.98,
    weight_decay=0.0, clip_norm=1.0,
  )
  state = init_state(params, optimizer)
  state = place(state, division.mesh, state_specs(state, division))
  gradient = make_gradient(sft_loss(MODEL, division.parallel), division)
  update = make_update(optimizer)
  batch = place_rows(batch, division.mesh)

  def step():
    nonlocal state
    grads, sums = gradient(state.params, batch)
    state, norm = update(state, grads, sums["count"])
    jax.block_until_ready(norm)
    return float(sums["loss"]) / float(sums["count"])

  return step


def unpacked(batch):
  """The batch's conversations, one a row: ids, which are there, and labels with -100 elsewhere."""
  parts = [
    (batch["tokens"][row, at], batch["loss_mask"][row, at])
    for row, segments in enumerate(batch["segment_ids"])
    for at in (segments == i for i in range(1, segments.max() + 1))
  ]
  shape = len(parts), max(len(ids) for ids, _ in parts)
  ids, there = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
  labels = np.full(shape, -100, np.int64)
  for i, (tokens, trained) in enumerate(parts):
    ids[i, : len(tokens)], there[i, : len(tokens)] = tokens, 1
    labels[i, : len(tokens)] = np.where(trained, tokens, -100)
  return ids, there, labels


def their_step(params, batch):
  import torch

  model = load_transformers(params, MODEL).train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
  ids, there, labels = map(torch.tensor, unpacked(batch))

  def step():
    optimizer.zero_grad()
    loss = model(input_ids=ids, attention_mask=there, labels=labels, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())

  return step


def main() -> None:
  params = jax.tree.map(np.asarray, init_params(jax.random.key(0), MODEL))
  print(f"{'trained tokens/s':44s} {'searchjax':>9s} {'transformers':>13s} {'ratio':>6s}")
  for name, batch in (("conversations", conversations()), ("full rows", full_rows())):
    steps = {"searchjax": our_step(params, batch), "transformers": their_step(params, batch)}
    best = dict.fromkeys(steps, float("inf"))
    for i in range(1 + TIMES):
      losses = []
      for which, step in steps.items():
        begun = time.perf_counter()
        losses.append(step())
        if i:  # The first one compiles.
          best[which] = min(best[which], time.perf_counter() - begun)
      if not i:
        np.testing.assert_allclose(*losses, rtol=1e-4)
    count, (rows, longest) = int((batch["segment_ids"] > 0).sum()), unpacked(batch)[0].shape
    mine, other = count / best["searchjax"], count / best["transformers"]
    what = f"{name}: {count} tokens in {ROWS} × {LENGTH}, {rows} × {longest}"
    print(f"{what:44s} {mine:9.0f} {other:13.0f} {mine / other:6.1f}", flush=True)


if __name__ == "__main__":
  main()
