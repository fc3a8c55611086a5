"""SFT warm-up of a 0.6M-parameter Qwen3.5-MoE on demonstrations of searching the atlas.

Shows      a policy that searches, copies names from results and answers, but searches too much.
Hardware   two CPU cores, about 7 minutes.
Expect     greedy held-out accuracy about .6 with twice the calls needed (.64, 4.49 of 2.00).
Command    python -m searchjax.train_sft --config configs/sft_tiny.py --workdir runs/tiny/sft
Variants   configs/sft_tiny.py:smoke runs in about a minute and learns nothing.
"""

from ml_collections import ConfigDict

from searchjax.data.demonstrations import RATES
from searchjax.search.options import SEARCH


def get_config(variant: str = "") -> ConfigDict:
  c = ConfigDict()
  c.seed = 0
  c.steps = 1600
  c.keep_checkpoints = 1
  c.checkpoint_every = 400
  c.tokenizer = ""
  c.init = ""  # a policy's folder to start from; "" draws new parameters
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
  # Qwen3.5's pattern, three DeltaNet layers to one of attention; 2 alternates, 1 is attention only.
  c.model = ConfigDict(dict(preset="tiny", full_attention_interval=4))
  c.batch = ConfigDict(dict(rows=6, length=256))
  c.optimizer = ConfigDict(
    dict(
      kind="muon", peak=0.03, adam_peak=6e-3, warmup=80, decay="cosine", b2=0.98,
      weight_decay=0.1, clip_norm=1.0,
    )
  )
  c.data = ConfigDict(
    dict(
      questions=9000, chats=3000, hops=(1, 2, 3),
      # Chats are short: three in ten conversations are one token in eleven.
      weights=ConfigDict(dict(tool_use=0.7, preference=0.3)),
      # How often the scripted experts err; --config.data.rates.verify=0.3 sets one.
      rates=ConfigDict(RATES),
    )
  )
  c.gate = ConfigDict(dict(every=400, questions=48))
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
    c.steps, c.checkpoint_every = 12, 12
    c.data.questions, c.data.chats = 60, 20
    c.gate.every, c.gate.questions = 12, 6
    c.engine.lanes, c.engine.pool, c.engine.feed_rows = 16, 32, 8
  elif variant:
    raise ValueError(f'variant must be "smoke" or absent, got "{variant}"')
  return c
