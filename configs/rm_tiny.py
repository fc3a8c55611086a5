"""Preference model from the tiny SFT policy: a pairwise, symmetrised Bradley-Terry scorer.

Shows      statements preferred to bare, verbose, wrong and foreign answers, in either order.
Hardware   two CPU cores, about 2 minutes.
Expect     held-out pair accuracy .88 to .94, swapped the same; the labels carry 10 % noise before
           the filter.
Command    python -m searchjax.train_rm --config configs/rm_tiny.py --workdir runs/tiny/rm
Needs      the SFT run beside it (runs/tiny/sft).
Variants   configs/rm_tiny.py:smoke
"""

from ml_collections import ConfigDict


def get_config(variant: str = "") -> ConfigDict:
  c = ConfigDict()
  c.seed = 0
  c.steps = 100
  c.rows = 24
  c.pair_length = 128
  c.holdout_every = 25
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
  c.corpus = ""
  c.optimizer = ConfigDict(
    dict(
      kind="adamw", peak=1e-3, warmup=10, decay="cosine", b2=0.98, weight_decay=0.1, clip_norm=1.0
    )
  )
  c.data = ConfigDict(
    dict(
      questions=1200, chats=200, hops=(1, 2, 3),
      pairs=ConfigDict(dict(per_question=3, noise=0.1, annotators=3, agreement=1.0)),
    )
  )
  if variant == "smoke":
    c.steps, c.holdout_every = 4, 4
    c.data.questions, c.data.chats = 60, 10
  elif variant:
    raise ValueError(f'variant must be "smoke" or absent, got "{variant}"')
  return c
