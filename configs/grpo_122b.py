"""GRPO on Qwen3.5-122B-A10B: a web-search agent on a v5p slice.

Shows      the recipe of configs/grpo_397b.py on a smaller model.
Hardware   128 v5p chips (topology v5p:4x4x8); 16,384 tokens a chip and batch.
Expect     Compiled: the run holds at most 35.7 of 102.8 GB a chip; a step takes at least
           13 seconds, 200 steps at least 96 chip-hours, rollouts not counted (derived from FLOPs
           and bytes). Not run: a divided engine takes one process yet (README, Limits).
Command    python -m searchjax.compile --config configs/grpo_122b.py --topology v5p:4x4x8
           python -m searchjax.train_grpo --config configs/grpo_122b.py --workdir runs/122b/grpo
Needs      runs/122b/sft (configs/sft_122b.py) and runs/122b/rm (configs/rm_35b.py).
Variants   configs/grpo_122b.py:4k (4,096 tokens, for chips of 16 GB; not compiled yet)
"""

from ml_collections import ConfigDict


def get_config(variant: str = "") -> ConfigDict:
  c = ConfigDict()
  c.seed = 0
  c.steps = 200
  c.questions_per_step = 32
  c.group_size = 16
  c.references = 4
  c.temperature = 1.0
  c.mismatch = "token_is"
  c.truncate_at = 0.0
  c.invalid_share = 0.2
  c.rows = 128
  c.lengths = (16384,)
  c.keep_checkpoints = 2
  c.checkpoint_every = 10
  c.tokenizer = "runs/122b/start"
  c.model = ConfigDict(dict(preset="qwen3.5-122b-a10b"))
  c.preference = ConfigDict(dict(preset="qwen3.5-35b-a3b"))
  c.mesh = ConfigDict(dict(fsdp=16, expert=8, context=1, layout="zero3"))
  # A process a host of 4 chips; the run is refused unless so many come together.
  c.distributed = ConfigDict(
    dict(
      coordinator="auto", processes=32, process=-1, form_limit_s=600.0, silence_limit_s=60.0,
      stall_limit_s=3600.0, local_folder="runs",
    )
  )
  c.profile = ConfigDict(dict(first_step=0, steps=0))  # steps above 0: traces in WORKDIR/profile
  c.compute = ConfigDict(
    dict(
      moe_dispatch="ragged", capacity_factor=1.25, attention_implementation="splash",
      deltanet_implementation="pallas",
      moe_chunk=2048, delta_block=256, remat="parts", logprob_chunk=128,
    )
  )
  c.moment_dtype = "float32"
  c.optimizer = ConfigDict(
    dict(
      kind="adamw", peak=1e-6, warmup=5, decay="constant", b2=0.95, weight_decay=0.0, clip_norm=1.0
    )
  )
  c.advantage = ConfigDict(dict(divide_by_std=True, eps=1e-6))
  c.reward = ConfigDict(
    dict(
      aggregation="gated", tool_penalty="anchored", length_penalty="anchored",
      alpha_win=1.0, alpha_lose=0.5, beta_lose=0.1, lambda_tool=0.3, lambda_len=0.2,
      per_call=1.0, per_token=0.001,
    )
  )
  c.scorer = ConfigDict(dict(rows=128, length=4096))
  c.data = ConfigDict(dict(questions=12800, chats=1280, hops=(1, 2, 3), rubric_share=0.1))
  c.search = ConfigDict(
    dict(url="", corpus="", max_results=10, timeout_s=20.0, retries=4, titles=True,
         tools_in_prompt=True)
  )
  c.limits = ConfigDict(dict(calls=5, turn_tokens=8192, tokens=16384))
  c.engine = ConfigDict(
    dict(layout="decode", lanes=128, feed_rows=32, feed_tokens=512, decode_steps=32)
  )
  if variant == "4k":
    c.lengths, c.limits.tokens, c.limits.turn_tokens = (4096,), 4096, 2048
    c.compute.moe_dispatch, c.moment_dtype = "capacity", "bfloat16"
  elif variant:
    raise ValueError(f'variant must be "4k" or absent, got "{variant}"')
  return c
