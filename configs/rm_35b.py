"""The preference model on Qwen3.5-35B-A3B: both answers in one sequence, trained symmetrically.

Shows      L_sym on the SFT policy's backbone with a scalar head.
Hardware   64 v5p chips (topology v5p:4x4x4); 64 pairs of 4,096 tokens, each in both orders, a step.
Expect     Compiled: the run holds at most 11.0 of 102.8 GB a chip; a step takes at least
           0.4 seconds, 500 steps at least 4 chip-hours (derived from FLOPs and bytes). Not run.
Command    python -m searchjax.compile --config configs/rm_35b.py --topology v5p:4x4x4
           python -m searchjax.train_rm --config configs/rm_35b.py --workdir runs/35b/rm
Needs      runs/35b/sft (configs/sft_35b.py).
"""

from ml_collections import ConfigDict


def get_config(variant: str = "") -> ConfigDict:
  if variant:
    raise ValueError(f'variant must be absent, got "{variant}"')
  c = ConfigDict()
  c.seed = 0
  c.steps = 500
  c.rows = 64
  c.pair_length = 4096
  c.holdout_every = 50
  c.tokenizer = "runs/35b/start"
  c.corpus = ""
  c.model = ConfigDict(dict(preset="qwen3.5-35b-a3b"))
  c.mesh = ConfigDict(dict(fsdp=8, expert=8, context=1, layout="zero3"))
  # A process a host of 4 chips; the run is refused unless so many come together.
  c.distributed = ConfigDict(
    dict(
      coordinator="auto", processes=16, process=-1, form_limit_s=600.0, silence_limit_s=60.0,
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
      kind="adamw", peak=1e-5, warmup=20, decay="cosine", b2=0.95, weight_decay=0.1, clip_norm=1.0
    )
  )
  c.data = ConfigDict(
    dict(
      questions=20000, chats=4000, hops=(1, 2, 3),
      pairs=ConfigDict(dict(per_question=3, noise=0.0, annotators=3, agreement=1.0)),
    )
  )
  return c
