"""GRPO on the tiny SFT policy: gated reward, anchored penalties, token-level importance ratios.

Shows      accuracy rises while calls fall to what the questions need; both penalties fall.
Hardware   two CPU cores, about 6 minutes.
Expect     greedy held-out accuracy about .80 with 2.0 calls (a perfect agent makes 2.00).
Command    python -m searchjax.train_grpo --config configs/grpo_tiny.py --workdir runs/tiny/grpo
Needs      the SFT and preference runs beside it (runs/tiny/sft, runs/tiny/rm).
Variants   configs/grpo_tiny.py:smoke, :ablation (20 steps); ablations on the command line:
           --config.reward.tool_penalty=unconditional|off  --config.reward.length_penalty=…
           --config.reward.aggregation=linear
           --config.mismatch=none|sequence_is|routing_replay|bitwise
"""

from ml_collections import ConfigDict

from searchjax.search.options import SEARCH


def get_config(variant: str = "") -> ConfigDict:
  c = ConfigDict()
  c.seed = 0
  c.steps = 36
  c.questions_per_step = 16
  c.group_size = 8
  c.references = 2
  c.temperature = 1.0
  c.mismatch = "token_is"
  c.truncate_at = 0.0
  c.invalid_share = 0.2
  c.rows = 32
  c.lengths = (128, 256)
  c.keep_checkpoints = 1
  c.checkpoint_every = 12
  c.tokenizer = ""
  # Rows over all devices, parameters whole on each.
  c.mesh = ConfigDict(dict(fsdp=0, expert=1, context=1, layout="replicated"))
  # One process. Of several: coordinator=HOST:PORT, each with its process; on a TPU slice auto, -1.
  c.distributed = ConfigDict(
    dict(
      coordinator="", processes=1, process=-1, form_limit_s=300.0, silence_limit_s=60.0,
      stall_limit_s=1800.0, local_folder="runs",
    )
  )
  c.profile = ConfigDict(dict(first_step=0, steps=0))  # steps above 0: traces in WORKDIR/profile
  c.compute = ConfigDict(dict(remat="none"))
  c.moment_dtype = "float32"
  c.optimizer = ConfigDict(
    dict(
      kind="adamw", peak=5e-4, warmup=3, decay="constant", b2=0.98, weight_decay=0.0, clip_norm=1.0
    )
  )
  c.advantage = ConfigDict(dict(divide_by_std=True, eps=0.05))
  c.reward = ConfigDict(
    dict(
      aggregation="gated", tool_penalty="anchored", length_penalty="anchored",
      alpha_win=1.0, alpha_lose=0.5, beta_lose=0.1, lambda_tool=0.3, lambda_len=0.2,
      per_call=1.0, per_token=0.02,
    )
  )
  c.scorer = ConfigDict(dict(rows=32, length=160))
  # questions_file: JSONL in place of the questions made here (docs/synthesis.md); "" is none.
  c.data = ConfigDict(
    dict(questions=1200, chats=120, hops=(1, 2, 3), rubric_share=0.1, questions_file="")
  )
  c.search = ConfigDict(
    SEARCH | dict(max_results=1, timeout_s=10.0, retries=3, titles=False, tools_in_prompt=False)
  )
  c.limits = ConfigDict(
    dict(calls=5, turn_tokens=48, tokens=256, answer_tokens=32, invalid_share=0.5)
  )
  c.engine = ConfigDict(
    dict(
      layout="replicated", lanes=64, pool=128, feed_rows=16, feed_tokens=32, decode_steps=8,
      top_k=0, top_p=1.0,
    )
  )
  if variant == "smoke":
    c.steps, c.questions_per_step, c.group_size, c.rows = 3, 4, 4, 8
    c.data.questions, c.data.chats = 60, 10
    c.engine.lanes, c.engine.pool, c.engine.feed_rows, c.scorer.rows = 16, 32, 8, 8
    c.checkpoint_every = 3
  elif variant == "ablation":
    c.steps, c.checkpoint_every = 20, 20
  elif variant:
    raise ValueError(f'variant must be "smoke", "ablation" or absent, got "{variant}"')
  return c
