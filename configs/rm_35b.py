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

from searchjax import recipes


def get_config(variant: str = "") -> ConfigDict:
  if variant:
    raise ValueError(f'variant must be absent, got "{variant}"')
  return recipes.preference("35b", "qwen3.5-35b-a3b", fsdp=8, expert=8)
