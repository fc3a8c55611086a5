"""On-policy GRPO with anchored penalties and a reward gated on correctness.  HOST.

  J(θ) = 1/G Σ_i 1/|o_i| Σ_t r_{i,t}(θ) Â_i,  r = π_train / μ_infer,  one update a batch  (SPEC 1.2)
  R(τ) = r_base · s − λ_tool pen_tool − λ_len pen_len                                       (SPEC 2)

python -m searchjax.train_grpo --config configs/grpo_tiny.py --workdir runs/tiny/grpo
"""

import dataclasses
import math
import os
import time

import grain
import jax
import jax.numpy as jnp
import numpy as np

from searchjax.data.loader import rollout_batches
from searchjax.data.question_file import file_questions
from searchjax.data.rubrics import rubric_chats
from searchjax.dist import checkpoint
from searchjax.dist.checks import check_config
from searchjax.dist.distributed import Run, join
from searchjax.dist.mesh import place, place_rows
from searchjax.dist.profiling import Profile
from searchjax.dist.run_log import find_stage, is_finished, open_log
from searchjax.dist.settings import run_main
from searchjax.model import forward, heads
from searchjax.model.moe import summed_balance_loss
from searchjax.model.parallel import LOCAL
from searchjax.objective.advantage import group_advantage, group_composition
from searchjax.objective.mismatch import kl_estimates, largest_ratio
from searchjax.objective.policy import grpo_objective_sum, with_value
from searchjax.optim.optimizer import make_optimizer
from searchjax.optim.update import init_state, make_gradient, make_update, state_specs
from searchjax.reward.judge import open_judge
from searchjax.reward.preference import PreferenceScorer
from searchjax.reward.total import require_valid, total_reward
from searchjax.rollout.agent import (
  load_chat, load_policy, make_engine_params, open_agent, prompt_has_room, save_policy,
)
from searchjax.rollout.audit import routing_summary
from searchjax.rollout.group import group_array, question_hash, search_metrics, take_counts
from searchjax.rollout.rescore import rescore
from searchjax.search.atlas import load_atlas
from searchjax.search.options import check_search
from searchjax.train_sft import load_questions

REDRAWS = 2  # Of references whose search or engine failed.


def grpo_loss(
  model, parallel=LOCAL, *, temperature: float, strategy: str, truncate_at: float | None
):
  """−(sum over rows) of J for one micro-batch from `rollout_batches`, for `make_gradient`."""

  def loss(params, batch):
    tokens, mask = batch["tokens"], batch["mask"]
    T = tokens.shape[1]
    steps = jnp.arange(T, dtype=jnp.int32)
    segment_ids = (steps[None, :] < batch["lengths"][:, None]).astype(jnp.int32)
    positions = jnp.broadcast_to(steps, tokens.shape)
    replay = None
    if strategy == "routing_replay":
      replay = jnp.moveaxis(batch["experts"], 2, 0)
    hidden, routing = forward.forward(
      params, model, tokens, segment_ids, positions, replay=replay, parallel=parallel
    )
    logp, _ = heads.token_logprobs(
      params, model, hidden, tokens, temperature=temperature, parallel=parallel
    )
    if strategy == "bitwise":
      logp = with_value(logp, batch["logp_engine"])
    total, count = grpo_objective_sum(
      logp, batch["logp"], mask, batch["advantage"], batch["valid"], strategy=strategy,
      truncate_at=truncate_at,
    )
    kl = kl_estimates(logp, batch["logp"], mask)
    sums = {
      "count": mask.sum(), "k1": kl["k1"] * mask.sum(), "k3": kl["k3"] * mask.sum(),
      "ratio_max": largest_ratio(logp, batch["logp"], mask),
      "overflow": parallel.over_context(routing.overflow.sum()),
      "replayed": parallel.over_context(routing.replayed.sum()),
      "disagree": parallel.over_context(routing.disagree.sum()),
    }
    return summed_balance_loss(model, routing, count, parallel) - total, sums

  return loss


def question_stream(atlas, config, qa):
  """Endless batches of questions: verifiable ones and rubric chats in fixed proportions.

  Args:
    qa: the verifiable questions; [] makes them.
  """
  qa = qa or load_questions(atlas, config.data, "rl", config.seed + 3, config.data.questions)
  chats = rubric_chats(config.seed + 3, config.data.chats, names=atlas.names_bank)
  sources = [
    grain.MapDataset.source(s).seed(config.seed + i).shuffle().repeat()
    for i, s in enumerate((qa, chats))
  ]
  mixed = grain.MapDataset.mix(sources, [1.0 - config.data.rubric_share, config.data.rubric_share])
  one_thread = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  return iter(mixed.to_iter_dataset(one_thread).batch(config.questions_per_step, batch_fn=list))


def main(config, workdir: os.PathLike) -> None:
  check_config(config)
  check_search(config.search)
  with join(config) as run:
    train(config, workdir, run)


def train(config, workdir: os.PathLike, run: Run) -> None:
  """All of it, by one process of several; what one does, all do, in the same order (FAULTS Y6)."""
  done = checkpoint.latest_step(workdir / "policy")
  if is_finished(workdir, config, done=done, total_steps=config.steps, title="grpo"):
    return
  # ---- policy, reference, preference model -----------------------------------------------------
  atlas = load_atlas(config.search.corpus or None, for_questions=True)
  chat = load_chat(config.tokenizer, **config.get("chat", {}))
  reference, model, division = load_policy(
    find_stage(workdir, "sft"), config.mesh, compute=config.compute
  )
  preference = load_policy(
    find_stage(workdir, "rm"), config.mesh, compute=config.compute, value_head=True
  )
  scorer = PreferenceScorer(*preference, chat, **config.scorer)
  optimizer = make_optimizer(model=model, total=config.steps, **config.optimizer)
  state = init_state(
    jax.tree.map(jnp.copy, reference), optimizer, moment_dtype=config.moment_dtype
  )
  state = place(state, division.mesh, state_specs(state, division))
  whole = make_engine_params(config, model, division)
  reference = whole(reference)
  room = lambda text: prompt_has_room(config, chat, text) and scorer.has_room(
    text, config.limits.answer_tokens
  )
  from_file, line = file_questions(config.data, "rl", config.seed + 3, room)
  if line and run.first:
    print(line, flush=True)
  stream = question_stream(atlas, config, from_file)
  directory = workdir / "checkpoints"
  if checkpoint.latest_step(directory) is not None:
    state, meta = checkpoint.restore(directory, state)
    stream.set_state(meta["questions"])
  gradient = make_gradient(
    grpo_loss(
      model, division.parallel, temperature=config.temperature, strategy=config.mismatch,
      truncate_at=config.truncate_at or None,
    ),
    division,
  )
  update = make_update(optimizer)
  log = open_log(
    workdir, config, run, total_steps=config.steps, resume_step=int(state.step), title="grpo"
  )
  anchor_key = jax.random.fold_in(jax.random.key(config.seed), 17)

  replays = config.mismatch == "routing_replay"
  with (
    log, open_agent(config, model, chat, record_routing=replays) as agent,
    checkpoint.Saver(directory, keep=config.keep_checkpoints) as saver,
    open_judge(config.reward.get("judge")) as judge,
    Profile(config.profile, workdir) as profile,
  ):
    for step in range(int(state.step), config.steps):
      profile.at(step)
      # ---- rollouts: the policy's and the frozen reference's -----------------------------------
      run.phase(f"the rollouts of step {step}")
      questions = next(stream)
      policy = whole(state.params)
      agent.engine.take_counts()
      begun = time.monotonic()
      sample = dict(temperature=config.temperature, seed=config.seed)
      groups = agent.collect(
        questions, policy, group_size=config.group_size, purpose="rollout", step=step,
        **sample,
      )
      counts = take_counts(agent.engine)
      rollout_seconds, begun = time.monotonic() - begun, time.monotonic()
      references = draw_references(agent, questions, reference, config.references, **sample)

      # ---- reward and advantage ------------------------------------------------------------------
      run.phase(f"the rewards of step {step}")
      step_key = jax.random.fold_in(anchor_key, step)
      hashes = np.array([question_hash(q.id) for q in questions], np.uint32)
      keys = jax.vmap(lambda h, key=step_key: jax.random.fold_in(key, h))(hashes)
      parts = total_reward(groups, references, scorer, keys, config.reward, judge)
      advantage = np.asarray(
        group_advantage(parts["reward"], parts["valid"], **config.advantage)
      )
      reasons = parts["invalid_reason"].ravel().tolist()
      require_valid(reasons, config.invalid_share, f"step {step}")
      score_seconds, begun = time.monotonic() - begun, time.monotonic()

      # ---- one update ----------------------------------------------------------------------------
      run.phase(f"the update of step {step}")
      episodes = [e for group in groups for e in group]
      records = [
        {
          "tokens": e.tokens, "mask": e.mask, "logp": e.logps, "advantage": float(a),
          "valid": bool(v),
        }
        for e, a, v in zip(episodes, advantage.ravel(), parts["valid"].ravel(), strict=True)
      ]
      if config.mismatch == "routing_replay":
        for record, e in zip(records, episodes, strict=True):
          record["experts"] = np.concatenate(e.routing)
      elif config.mismatch == "bitwise":
        again = rescore(agent.engine, policy, episodes, temperature=config.temperature)
        for record, logp in zip(records, again, strict=True):
          record["logp_engine"] = logp
      del policy  # The update has room for its own arrays.
      # A row of advantage 0 has gradient 0; it counts in the denominator only.
      used = [r for r in records if r["valid"] and r["advantage"] != 0.0]
      grads, sums = jax.tree.map(jnp.zeros_like, state.params), []
      for batch in rollout_batches(
        used, rows=config.rows, lengths=config.lengths, pad_id=chat.pad_id,
        process_index=run.index, process_count=run.count,
      ):
        grads, s = gradient(state.params, place_rows(batch, division.mesh), grads)
        sums.append(jax.device_get(s))
      valid_rows = int(parts["valid"].sum())
      state, grad_norm = update(state, grads, valid_rows)
      update_seconds = time.monotonic() - begun

      # ---- what happened -------------------------------------------------------------------------
      metrics = step_metrics(groups, parts)
      tokens = max(sum(int(s["count"]) for s in sums), 1)
      metrics |= {
        "objective": -sum(float(s["loss"]) for s in sums) / max(valid_rows, 1),
        "grad_norm": float(grad_norm),
        "kl_k1": sum(float(s["k1"]) for s in sums) / tokens,
        "kl_k3": sum(float(s["k3"]) for s in sums) / tokens,
        "ratio_max": max((float(s["ratio_max"]) for s in sums), default=1.0),
        "expert_overflow": sum(int(s["overflow"]) for s in sums),
        **router_disagreement(sums),
        "skipped_rows": len(records) - len(used),
        "cut_pairs": scorer.cut,
        "prefill_tokens": counts.prefill_tokens,
        "decode_tokens": counts.decode_tokens,
        "forked_tokens": counts.forked_tokens,
        "lane_use": counts.lane_use,
        "rollout_seconds": rollout_seconds,
        "score_seconds": score_seconds,
        "update_seconds": update_seconds,
        **search_metrics(agent.tool),
      }
      log.rollouts(step, rollout_records(step, groups, parts, advantage, model.num_experts))
      log.write(step, metrics)
      if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
        run.phase(f"the checkpoint of step {step + 1}")
        saver.save(step + 1, state, {"questions": stream.get_state()})
        log.sync()
  save_policy(workdir, config.steps, state.params, model)


def draw_references(agent, questions, params, count: int, **sample) -> list[list]:
  """The reference policy's rollouts; those that failed are drawn again, with other keys (SPEC 2).

  Their keys depend on the question alone, so they are the same whenever it comes.
  """
  collect = lambda some, step: agent.collect(
    some, params, group_size=count, purpose="reference", step=step, **sample
  )
  drawn = collect(questions, 0)
  for again in range(1, REDRAWS + 1):
    lacking = [q for q, group in enumerate(drawn) if not all(e.valid for e in group)]
    if not lacking:
      break
    for q, fresh in zip(lacking, collect([questions[q] for q in lacking], again), strict=True):
      drawn[q] = [old if old.valid else new for old, new in zip(drawn[q], fresh, strict=True)]
  return drawn


def router_disagreement(sums) -> dict[str, float]:
  """Share of (token, layer) with recorded experts that live would be others; {} without records."""
  replayed = sum(int(s["replayed"]) for s in sums)
  if not replayed:
    return {}
  return {"router_disagree": sum(int(s["disagree"]) for s in sums) / replayed}


def step_metrics(groups, parts) -> dict[str, float]:
  """Means over valid rollouts and shares of groups; see the metric table."""
  valid = parts["valid"]
  mean = lambda a: float(np.asarray(a, np.float64)[valid].mean()) if valid.any() else float("nan")
  get = lambda name: group_array(groups, name, np.float64)
  kinds = {
    k: float(np.mean(np.asarray(v)))
    for k, v in group_composition(parts["base"], parts["reward"], valid).items()
  }
  stops = group_array(groups, "stop", object)
  is_search = np.array([[not hasattr(e.question, "rubrics") for e in g] for g in groups])
  calls = get("tool_calls")
  limit = np.array([[e.limits.calls for e in group] for group in groups])
  guessed = (parts["base"] > 0.5) & (calls == 0) & is_search & valid
  return {
    "reward": mean(parts["reward"]),
    "base_reward": mean(parts["base"]),
    "preference": mean(parts["preference"]),
    "tool_calls": mean(parts["tool_calls"]),
    "tool_failures": mean(parts["tool_failures"]),
    "generated_length": mean(get("generated")),
    "tool_penalty": mean(parts["tool_penalty"]),
    "length_penalty": mean(parts["length_penalty"]),
    "penalty": mean(parts["penalty"]),
    "groups_all_wrong": kinds["all_wrong"],
    "groups_all_right": kinds["all_right"],
    "groups_mixed": kinds["mixed"],
    "groups_inverted": kinds["inverted"],
    "zero_std_groups": kinds["equal"],
    "singleton_groups": kinds["singleton"],
    "invalid_share": 1.0 - float(valid.mean()),
    "truncated_share": float(np.isin(stops, ("turn_length", "context")).mean()),
    "forced_share": float(get("forced").mean()),
    "over_budget_share": float(np.maximum(calls - limit, 0).sum() / max(calls.sum(), 1)),
    "failed_search_share": float(get("tool_failures").sum() / max(get("searches").sum(), 1)),
    "malformed_call_share": float(get("malformed_calls").sum() / max(calls.sum(), 1)),
    "answer_without_search": float(guessed.sum() / max((is_search & valid).sum(), 1)),
  }


def rollout_records(step, groups, parts, advantage, experts: int) -> list[dict]:
  """One record a rollout, for rollouts/step_*.jsonl; `searchjax.check` reads them.

  Args:
    experts: the model's.
  """
  number = lambda x: float(x) if math.isfinite(x) else None  # JSON has no NaN.
  records = []
  for q, group in enumerate(groups):
    for g, e in enumerate(group):
      part = lambda name, q=q, g=g: number(parts[name][q, g])
      records.append(
        {
          "step": step, "question_id": e.question.id, "rollout": g,
          "kind": "rubric" if hasattr(e.question, "rubrics") else "qa",
          "question": e.question.text, "gold": getattr(e.question, "answer", None),
          "hops": getattr(e.question, "hops", 0), "world": getattr(e.question, "world", None),
          "turns": e.turns, "tokens": e.tokens, "mask": [int(m) for m in e.mask],
          "logp": [round(x, 6) for x in e.logps], "final_answer": e.final_answer, "stop": e.stop,
          "valid": bool(parts["valid"][q, g]), "policy_version": step,
          "tool_calls": e.tool_calls, "tool_failures": e.tool_failures, "searches": e.searches,
          "malformed_calls": e.malformed_calls, "forced": e.forced, "length": e.final_length,
          "prompt_length": len(e.prompt), "limits": dataclasses.asdict(e.limits),
          "invalid_reason": parts["invalid_reason"][q, g],
          "routing": routing_summary(e.routing, experts),
          "reward": {
            "base": part("base"), "preference": part("preference"),
            "tool_penalty": part("tool_penalty"), "length_penalty": part("length_penalty"),
            "penalty": part("penalty"), "total": part("reward"),
          },
          "advantage": float(advantage[q, g]),
        }
      )
  return records


if __name__ == "__main__":
  run_main(main, __doc__.splitlines()[0])
