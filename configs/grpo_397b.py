"""GRPO on Qwen3.5-397B-A17B: a web-search agent on a v5p pod.

Shows      the whole recipe at scale: gated reward, anchored penalties, token-level ratios.
Hardware   256 v5p chips (topology v5p:4x8x8, sold as v5p-512); 16,384 tokens a chip and batch.
Expect     Compiled: the run holds at most 53.1 of 102.8 GB a chip; a step takes at least
           23 seconds, 200 steps at least 322 chip-hours, rollouts not counted (derived from FLOPs
           and bytes). Not run.
Command    python -m searchjax.compile --config configs/grpo_397b.py --topology v5p:4x8x8
           python -m searchjax.train_grpo --config configs/grpo_397b.py --workdir runs/397b/grpo
Needs      runs/397b/sft (configs/sft_397b.py) and runs/397b/rm (configs/rm_35b.py).
Variants   configs/grpo_397b.py:8k (8,192 tokens, bfloat16 moments), :v6e (256 v6e chips, 4,096
           tokens, bfloat16 moments, topology v6e:16x16), :tpu7x (256 chips of two devices, 16,384
           tokens a device, topology tpu7x:4x8x8); they hold at most 30.4 of 102.8, 29.1 of 33.5
           and 40.2 of 101.7 GB a device, a micro-batch takes at least 2.7, 2.2 and 3.8 seconds
"""

from ml_collections import ConfigDict

from searchjax import recipes


def get_config(variant: str = "") -> ConfigDict:
  fsdp = 32 if variant == "tpu7x" else 16
  c = recipes.grpo("397b", "qwen3.5-397b-a17b", fsdp=fsdp, expert=16)
  c.compute.capacity_factor = 1.2
  c.compute.moe_exchange, c.compute.exchange_factor = "all_to_all", 1.1
  if variant == "8k":
    c.lengths, c.limits.tokens, c.moment_dtype = (8192,), 8192, "bfloat16"
    c.compute.remat = "layer"  # "parts": 5 GB more, 3 % fewer FLOPs
  elif variant == "v6e":
    c.lengths, c.limits.tokens, c.limits.turn_tokens = (4096,), 4096, 2048
    c.engine.feed_tokens = 256
    c.compute.moe_dispatch, c.moment_dtype = "gmm", "bfloat16"
  elif variant == "tpu7x":
    # Two devices a chip.
    c.distributed.processes, c.questions_per_step = 64, 64
    c.compute.moe_dispatch = "gmm"
  elif variant:
    raise ValueError(f'variant must be "8k", "v6e", "tpu7x" or absent, got "{variant}"')
  return c
