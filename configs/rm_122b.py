"""The preference model on Qwen3.5-122B-A10B: both answers in one sequence, trained symmetrically.

Shows      L_sym on the SFT policy's backbone with a scalar head.
Hardware   128 v5p chips (topology v5p:4x4x8); 128 pairs of 4,096 tokens, each in both orders, a
           step.
Expect     Compiled: the run holds at most 20.3 of 102.8 GB a chip; a step takes at least
           1.2 seconds, 500 steps at least 22 chip-hours (derived from FLOPs and bytes). Not run.
Command    python -m searchjax.compile --config configs/rm_122b.py --topology v5p:4x4x8
           python -m searchjax.train_rm --config configs/rm_122b.py --workdir runs/122b/rm
Needs      runs/122b/sft (configs/sft_122b.py).
"""

from ml_collections import ConfigDict

from searchjax import recipes


def get_config(variant: str = "") -> ConfigDict:
  if variant:
    raise ValueError(f'variant must be absent, got "{variant}"')
  return recipes.preference("122b", "qwen3.5-122b-a10b", fsdp=16, expert=8)
