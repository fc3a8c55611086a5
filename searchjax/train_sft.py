"""Supervised warm-up on demonstrations of searching.  HOST.

  minimise  − 1/n Σ_t log π(token_t)  over the tokens the agent wrote                     (SPEC 1.1)

python -m searchjax.train_sft --config configs/sft_tiny.py --workdir runs/tiny/sft
"""

import math
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

from searchjax.data.demonstrations import make_demonstrations, style_demonstrations
from searchjax.data.loader import sft_batches
from searchjax.data.questions import forward_questions
from searchjax.data.segments import training_examples
from searchjax.data.trajectories import training_sources
from searchjax.dist import checkpoint
from searchjax.dist.checks import check_config
from searchjax.dist.distributed import Run, from_first, join
from searchjax.dist.mesh import place, place_rows
from searchjax.dist.profiling import Profile
from searchjax.dist.run_log import is_finished, open_log
from searchjax.dist.settings import run_main
from searchjax.model import forward, heads
from searchjax.model.moe import summed_balance_loss
from searchjax.model.parallel import LOCAL
from searchjax.model.params import init_params
from searchjax.objective.sft import masked_nll
from searchjax.optim.optimizer import learning_rate, make_optimizer
from searchjax.optim.update import init_state, make_gradient, make_update, state_specs
from searchjax.reward.total import base_rewards
from searchjax.rollout.agent import (
  load_chat, load_policy, make_engine_params, new_division, new_model, open_agent, save_policy,
)
from searchjax.search.atlas import load_atlas
from searchjax.search.options import check_search


def sft_loss(model, parallel=LOCAL):
  """The summed loss of one packed batch, for `make_gradient`."""

  def loss(params, batch):
    hidden, routing = forward.forward(
      params, model, batch["tokens"], batch["segment_ids"], batch["positions"],
      parallel=parallel,
    )
    logp, best = heads.token_logprobs(params, model, hidden, batch["tokens"], parallel=parallel)
    total, count = masked_nll(logp, batch["loss_mask"])
    right = jnp.sum((best == batch["tokens"]) & batch["loss_mask"])
    overflow = parallel.over_context(routing.overflow.sum())
    total = total + summed_balance_loss(model, routing, count, parallel)
    return total, {"count": count, "right": right, "overflow": overflow}

  return loss


def load_questions(atlas, section, split: str, seed: int, count: int, world: str = "fresh"):
  """`count` questions, the same number of each hop count, shuffled."""
  each = -(-count // len(section.hops))
  questions = [
    q
    for hops in section.hops
    for q in forward_questions(atlas, split, hops=hops, count=each, seed=seed, world=world)
  ]
  if not questions:
    raise ValueError(
      f"the corpus gives no question of {tuple(section.hops)} hops about its {split} countries; "
      "give it more pages with \"statements\""
    )
  order = np.random.default_rng(seed).permutation(len(questions))
  return [questions[i] for i in order[:count]]


def main(config, workdir: os.PathLike) -> None:
  check_config(config)
  check_search(config.search)
  with join(config) as run:
    train(config, workdir, run)


def train(config, workdir: os.PathLike, run: Run) -> None:
  """All of it, by one process of several; what one does, all do, in the same order (FAULTS Y6)."""
  done = checkpoint.latest_step(workdir / "policy")
  if is_finished(workdir, config, done=done, total_steps=config.steps, title="sft"):
    return
  # ---- data: scripted experts against the live search service ----------------------------------
  atlas = load_atlas(config.search.corpus or None, for_questions=True)
  chat = load_chat(config.tokenizer, **config.get("chat", {}))
  from_files, accounts = training_sources(
    chat, dict(config.data.get("files", {})), supervise=config.data.get("supervise", "all")
  )
  for name, account in accounts.items():
    if run.first:
      print(f"data.files.{name}: {account.summary()}", *account.problems[:5], sep="\n", flush=True)
  if config.init:
    params, model, division = load_policy(config.init, config.mesh, compute=config.compute)
  else:
    model = new_model(config.model, chat, config.compute)
    division = new_division(config.mesh, model)
    params = init_params(jax.random.key(config.seed), model)
  directory = workdir / "checkpoints"
  with (
    open_agent(config, model, chat) as agent,
    open_log(
      workdir, config, run, total_steps=config.steps,
      resume_step=checkpoint.latest_step(directory) or 0, title="sft",
    ) as log,
    checkpoint.Saver(directory, keep=config.keep_checkpoints) as saver,
    Profile(config.profile, workdir) as profile,
  ):
    started = time.monotonic()
    questions = load_questions(atlas, config.data, "sft", config.seed, config.data.questions)
    # Searched by one process: a search that fails on another would give it other batches.
    tool_use = from_first(
      lambda: training_examples(
        chat,
        [
          d.messages for d in make_demonstrations(
            questions, agent.tool, atlas=atlas, seed=config.seed, rates=config.data.rates,
            max_calls=agent.limits.calls,
          )
        ],
        agent.tools,
      )
    )
    chats = style_demonstrations(config.seed, config.data.chats, atlas.names_bank)
    examples = {
      "tool_use": tool_use,
      "preference": training_examples(chat, [d.messages for d in chats]),
      **from_files,
    }
    batches = sft_batches(
      examples, weights=dict(config.data.weights), seed=config.seed, pad_id=chat.pad_id,
      process_index=run.index, process_count=run.count, **config.batch,
    )
    if run.first:
      print(
        f"{len(questions)} demonstrations and {len(chats)} chats in "
        f"{time.monotonic() - started:.0f} s; left out as too long: {batches.dropped}", flush=True,
      )

    # ---- state, or the latest checkpoint ---------------------------------------------------------
    optimizer = make_optimizer(model=model, total=config.steps, **config.optimizer)
    state = init_state(params, optimizer, moment_dtype=config.moment_dtype)
    state = place(state, division.mesh, state_specs(state, division))
    whole = make_engine_params(config, model, division)
    if checkpoint.latest_step(directory) is not None:
      state, meta = checkpoint.restore(directory, state)
      batches.set_state(meta["batches"])
    gradient = make_gradient(sft_loss(model, division.parallel), division)
    update = make_update(optimizer)
    gate_questions = load_questions(
      atlas, config.data, "rl", config.seed + 1, config.gate.questions
    )

    # ---- the loop --------------------------------------------------------------------------------
    for step in range(int(state.step), config.steps):
      profile.at(step)
      run.phase(f"step {step}")
      batch = place_rows(next(batches), division.mesh)
      grads, sums = gradient(state.params, batch)
      state, grad_norm = update(state, grads, sums["count"])
      count = float(sums["count"])
      metrics = {
        "loss": float(sums["loss"]) / max(count, 1),
        "token_accuracy": float(sums["right"]) / max(count, 1),
        "grad_norm": float(grad_norm),
        "tokens": count,
        "learning_rate": float(_rate(step, config)),
        "expert_overflow": int(sums["overflow"]),
        "dropped_rows": sum(batches.dropped.values()),
      }
      done = step + 1
      if done % config.gate.every == 0 or done == config.steps:
        run.phase(f"the gate of step {done}")
        metrics |= gate(agent, whole(state.params), gate_questions, seed=config.seed, step=done)
      log.write(step, metrics)
      if done % config.checkpoint_every == 0 or done == config.steps:
        run.phase(f"the checkpoint of step {done}")
        saver.save(done, state, {"batches": batches.get_state()})
        log.sync()
    batches.close()
  # Once the last checkpoint is on disk: two saves of one step at a time share their barriers.
  save_policy(workdir, config.steps, state.params, model)


def gate(agent, params, questions, *, seed: int, step: int) -> dict[str, float]:
  """Accuracy and calls of valid rollouts at temperature 1: token accuracy alone says little."""
  groups = agent.collect(
    questions, params, group_size=1, temperature=1.0, seed=seed, purpose="gate", step=step
  )
  valid = [(q, e) for q, (e,) in zip(questions, groups, strict=True) if e.valid]
  mean = lambda values: float(np.mean(values, dtype=np.float64)) if len(values) else math.nan
  return {
    "rollout_accuracy": mean(base_rewards([(q, e.final_answer) for q, e in valid])),
    "rollout_tool_calls": mean([e.tool_calls for _, e in valid]),
    "invalid_share": 1.0 - len(valid) / len(groups),
  }


def _rate(step, config):
  o = config.optimizer
  return learning_rate(step, peak=o.peak, warmup=o.warmup, total=config.steps, decay=o.decay)


if __name__ == "__main__":
  run_main(main, __doc__.splitlines()[0])
