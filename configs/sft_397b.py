"""SFT of Qwen3.5-397B-A17B: demonstrations of searching, from the published weights.

Shows      the warm-up at scale; guard-rails and the tool-call format before RL.
Hardware   256 v5p chips (topology v5p:4x8x8); 16,384 tokens a chip and step.
Expect     Compiled: the run holds at most 44.3 of 102.8 GB a chip; a step takes at least
           5.5 seconds, 400 steps at least 156 chip-hours (derived from FLOPs and bytes). Not run.
Command    python -m searchjax.model.convert --from-hf Qwen3.5-397B-A17B --to runs/397b/start
           python -m searchjax.compile --config configs/sft_397b.py --topology v5p:4x8x8
           python -m searchjax.train_sft --config configs/sft_397b.py --workdir runs/397b/sft
Needs      runs/397b/start, the converted checkpoint.
"""

from ml_collections import ConfigDict

from searchjax.data.demonstrations import RATES


def get_config(variant: str = "") -> ConfigDict:
  if variant:
    raise ValueError(f'variant must be absent, got "{variant}"')
  c = ConfigDict()
  c.seed = 0
  c.steps = 400
  c.keep_checkpoints = 2
  c.checkpoint_every = 50
  c.init = "runs/397b/start"
  c.tokenizer = "runs/397b/start"
  c.model = ConfigDict(dict(preset="qwen3.5-397b-a17b"))
  c.mesh = ConfigDict(dict(fsdp=16, expert=16, context=1, layout="zero3"))
  # A process a host of 4 chips; the run is refused unless so many come together.
  c.distributed = ConfigDict(
    dict(
      coordinator="auto", processes=64, process=-1, form_limit_s=600.0, silence_limit_s=60.0,
      stall_limit_s=3600.0, local_folder="runs",
    )
  )
  c.profile = ConfigDict(dict(first_step=0, steps=0))  # steps above 0: traces in WORKDIR/profile
  c.compute = ConfigDict(
    dict(
      moe_dispatch="ragged", capacity_factor=1.2, moe_exchange="all_to_all",
      exchange_factor=1.1, attention_implementation="splash",
      deltanet_implementation="pallas",
      moe_chunk=2048, delta_block=256, remat="parts", logprob_chunk=128,
    )
  )
  c.moment_dtype = "float32"
  c.batch = ConfigDict(dict(rows=256, length=16384))
  c.optimizer = ConfigDict(
    dict(
      kind="adamw", peak=1e-5, warmup=20, decay="cosine", b2=0.95, weight_decay=0.1, clip_norm=1.0
    )
  )
  c.data = ConfigDict(
    dict(
      questions=20000, chats=8000, hops=(1, 2, 3),
      weights=ConfigDict(dict(tool_use=0.7, preference=0.3)), rates=ConfigDict(RATES),
    )
  )
  c.gate = ConfigDict(dict(every=50, questions=64))
  c.search = ConfigDict(
    dict(url="", corpus="", max_results=10, timeout_s=20.0, retries=4, titles=True,
         tools_in_prompt=True)
  )
  c.limits = ConfigDict(dict(calls=5, turn_tokens=8192, tokens=16384))
  c.engine = ConfigDict(
    dict(layout="decode", lanes=256, feed_rows=32, feed_tokens=512, decode_steps=32)
  )
  return c
