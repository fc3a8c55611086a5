"""GRPO on Qwen3.5-35B-A3B: a web-search agent on a v5p slice.

Shows      the recipe of configs/grpo_397b.py on a smaller model.
Hardware   64 v5p chips (topology v5p:4x4x4), 16,384 tokens a chip and batch; or 64 v5e chips
           with :4k.
Expect     Compiled: the run holds at most 21.0 of 102.8 GB a chip; a step takes at least
           5 seconds, 200 steps at least 18 chip-hours, rollouts not counted (derived from FLOPs
           and bytes). Not run.
Command    python -m searchjax.compile --config configs/grpo_35b.py --topology v5p:4x4x4
           python -m searchjax.train_grpo --config configs/grpo_35b.py --workdir runs/35b/grpo
Needs      runs/35b/sft (configs/sft_35b.py) and runs/35b/rm (configs/rm_35b.py).
Variants   configs/grpo_35b.py:4k (64 v5e chips, 4,096 tokens, bfloat16 moments, topology
           v5e:8x8): at most 11.1 of 16.9 GB, a micro-batch takes at least 0.6 seconds
"""

from ml_collections import ConfigDict

from searchjax import recipes


def get_config(variant: str = "") -> ConfigDict:
  c = recipes.grpo("35b", "qwen3.5-35b-a3b", fsdp=8, expert=8)
  if variant == "4k":
    c.lengths, c.limits.tokens, c.limits.turn_tokens = (4096,), 4096, 2048
    c.compute.moe_dispatch, c.moment_dtype = "capacity", "bfloat16"
  elif variant:
    raise ValueError(f'variant must be "4k" or absent, got "{variant}"')
  return c
