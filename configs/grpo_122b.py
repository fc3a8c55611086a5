"""GRPO on Qwen3.5-122B-A10B: a web-search agent on a v5p slice.

Shows      the recipe of configs/grpo_397b.py on a smaller model.
Hardware   128 v5p chips (topology v5p:4x4x8); 16,384 tokens a chip and batch.
Expect     Compiled: the run holds at most 36.2 of 102.8 GB a chip; a step takes at least
           13 seconds, 200 steps at least 96 chip-hours, rollouts not counted (derived from FLOPs
           and bytes). Not run.
Command    python -m searchjax.compile --config configs/grpo_122b.py --topology v5p:4x4x8
           python -m searchjax.train_grpo --config configs/grpo_122b.py --workdir runs/122b/grpo
Needs      runs/122b/sft (configs/sft_122b.py) and runs/122b/rm (configs/rm_35b.py).
Variants   configs/grpo_122b.py:4k (256 v5e chips, 4,096 tokens, bfloat16 moments, topology
           v5e:16x16): at most 13.0 of 16.9 GB, a micro-batch takes at least 1.7 seconds
"""

from ml_collections import ConfigDict

from searchjax import recipes


def get_config(variant: str = "") -> ConfigDict:
  fsdp = 32 if variant == "4k" else 16
  c = recipes.grpo("122b", "qwen3.5-122b-a10b", fsdp=fsdp, expert=8)
  if variant == "4k":
    c.lengths, c.limits.tokens, c.limits.turn_tokens = (4096,), 4096, 2048
    c.compute.moe_dispatch, c.moment_dtype = "capacity", "bfloat16"
  elif variant:
    raise ValueError(f'variant must be "4k" or absent, got "{variant}"')
  return c
