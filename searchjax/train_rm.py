"""The preference model: the SFT policy's backbone with a scalar head, trained symmetrically.  HOST.

  L_sym = ½ ℓ_BT(x, y_a, y_b, r) + ½ ℓ_BT(x, y_b, y_a, 1 − r)                            (SPEC 2.1)

python -m searchjax.train_rm --config configs/rm_tiny.py --workdir runs/tiny/rm
"""

import os

import jax.numpy as jnp
import numpy as np

from searchjax.data import preferences
from searchjax.data.pairs import PairSet, make_pairs
from searchjax.data.rubrics import rubric_chats
from searchjax.dist import checkpoint
from searchjax.dist.checks import check_config
from searchjax.dist.distributed import Run, join
from searchjax.dist.mesh import fetch, place, place_rows
from searchjax.dist.profiling import Profile
from searchjax.dist.run_log import find_stage, is_finished, open_log
from searchjax.dist.settings import run_main
from searchjax.model.parallel import LOCAL, make_row_function
from searchjax.objective.bradley_terry import preference_probability, symmetric_loss
from searchjax.optim.optimizer import make_optimizer
from searchjax.optim.update import init_state, make_gradient, make_update, state_specs
from searchjax.reward.preference import pair_deltas, pair_rows
from searchjax.rollout.agent import load_chat, load_policy, new_division, save_policy
from searchjax.search.atlas import load_atlas
from searchjax.train_sft import load_questions


def rm_loss(model, parallel=LOCAL):
  """The summed L_sym of one batch, for `make_gradient`."""

  def loss(params, batch):
    ab, ba = pair_deltas(params, model, batch, parallel)
    valid, label = batch["valid"], batch["label"]
    losses = jnp.where(valid, symmetric_loss(ab, ba, label), 0.0)
    counted = valid & (label != 0.5)
    right = counted & ((ab - ba > 0) == (label > 0.5))
    return losses.sum(), {
      "count": valid.sum(), "right": right.sum(), "decided": counted.sum()
    }

  return loss


def main(config, workdir: os.PathLike) -> None:
  check_config(config)
  with join(config) as run:
    train(config, workdir, run)


def train(config, workdir: os.PathLike, run: Run) -> None:
  """All of it, by one process of several; what one does, all do, in the same order (FAULTS Y6)."""
  done = checkpoint.latest_step(workdir / "policy")
  if is_finished(workdir, config, done=done, total_steps=config.steps, title="rm"):
    return
  # ---- data and the backbone -------------------------------------------------------------------
  chat = load_chat(config.tokenizer, **config.get("chat", {}))
  params, model, _ = load_policy(
    find_stage(workdir, "sft"), config.mesh, compute=config.compute
  )
  pairs, lines = load_pairs(config, chat)
  if run.first:
    print(*lines, f"preference pairs: {pairs.counts}", sep="\n", flush=True)
  held = pair_rows(chat, pairs.holdout, rows=config.rows, length=config.pair_length)

  # ---- state -----------------------------------------------------------------------------------
  optimizer = make_optimizer(model=model, total=config.steps, **config.optimizer)
  params["value_head"] = jnp.zeros((model.hidden_size,), jnp.float32)
  division = new_division(config.mesh, model, value_head=True)
  mesh = division.mesh
  state = init_state(params, optimizer, moment_dtype=config.moment_dtype)
  state = place(state, mesh, state_specs(state, division))
  directory = workdir / "checkpoints"
  log = open_log(
    workdir, config, run, total_steps=config.steps,
    resume_step=checkpoint.latest_step(directory) or 0, title="rm",
  )
  if checkpoint.latest_step(directory) is not None:
    state, _ = checkpoint.restore(directory, state)
  gradient = make_gradient(rm_loss(model, division.parallel), division)
  update = make_update(optimizer)
  deltas = make_row_function(
    lambda params, batch: pair_deltas(params, model, batch, division.parallel), division
  )

  # ---- the loop --------------------------------------------------------------------------------
  with log, Profile(config.profile, workdir) as profile:
    for step in range(int(state.step), config.steps):
      profile.at(step)
      run.phase(f"step {step}")
      draw = np.random.default_rng((config.seed, step))
      chosen = draw.integers(0, len(pairs.train), config.rows)
      (batch,) = pair_rows(
        chat, [pairs.train[i] for i in chosen], rows=config.rows, length=config.pair_length
      )
      grads, sums = gradient(state.params, place_rows(batch, mesh, whole=True))
      state, grad_norm = update(state, grads, sums["count"])
      metrics = {
        "loss": float(sums["loss"] / sums["count"]),
        "pair_accuracy": float(sums["right"] / max(sums["decided"], 1)),
        "grad_norm": float(grad_norm),
      }
      done = step + 1
      if done % config.holdout_every == 0 or done == config.steps:
        run.phase(f"the held-out pairs of step {done}")
        metrics |= holdout(deltas, state.params, held, mesh)
      log.write(step, metrics)
      if done == config.steps:
        checkpoint.save(directory, done, state, {}, keep=1)
  save_policy(workdir, config.steps, state.params, model)


def load_pairs(config, chat) -> tuple[PairSet, list[str]]:
  """The pairs of `data.files` where the config names some, else generated ones; and a report."""
  options = config.data.pairs
  if files := config.data.get("files", ()):
    return preferences.load_pairs(
      [files] if isinstance(files, str) else files, chat, length=config.pair_length,
      seed=config.seed, agreement=options.agreement, holdout=options.get("holdout", 0.15),
    )
  atlas = load_atlas(config.corpus or None, for_questions=True)
  questions = load_questions(atlas, config.data, "sft", config.seed + 7, config.data.questions)
  chats = rubric_chats(config.seed + 7, config.data.chats, names=atlas.names_bank)
  return make_pairs(atlas, questions, seed=config.seed, chats=chats, **options), []


def holdout(deltas, params, batches, mesh) -> dict[str, float]:
  """Accuracy, accuracy from the swapped order alone, and calibration error on held-out prompts."""
  rows = []
  for batch in batches:
    ab, ba = map(fetch, deltas(params, place_rows(batch, mesh, whole=True)))
    p = np.asarray(preference_probability(ab, ba))
    use = batch["valid"] & (batch["label"] != 0.5)
    rows.append(np.stack([p[use], ba[use], batch["label"][use]]))
  p, ba, label = np.concatenate(rows, axis=1)
  bins = np.clip((p * 10).astype(int), 0, 9)
  gaps = [abs(p[bins == b].sum() - label[bins == b].sum()) for b in range(10)]
  return {
    "holdout_accuracy": float(np.mean((p > 0.5) == (label > 0.5))),
    "holdout_swapped_accuracy": float(np.mean((ba < 0) == (label > 0.5))),
    "holdout_calibration_error": float(np.sum(gaps) / len(p)),
  }


if __name__ == "__main__":
  run_main(main, __doc__.splitlines()[0])
