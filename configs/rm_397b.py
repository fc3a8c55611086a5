"""The preference model on Qwen3.5-397B-A17B: both answers in one sequence, trained symmetrically.

Shows      L_sym on the SFT policy's backbone with a scalar head.
Hardware   256 v5p chips (topology v5p:4x8x8); 256 pairs of 4,096 tokens, each in both orders, a
           step.
Expect     Compiled: the run holds at most 32.3 of 102.8 GB a chip; a step takes at least
           2.2 seconds, 500 steps at least 78 chip-hours (derived from FLOPs and bytes). Not run.
Command    python -m searchjax.compile --config configs/rm_397b.py --topology v5p:4x8x8
           python -m searchjax.train_rm --config configs/rm_397b.py --workdir runs/397b/rm
Needs      runs/397b/sft (configs/sft_397b.py). The GRPO cards score with the 35B model; this one
           is for a policy's own size.
"""

from ml_collections import ConfigDict

from searchjax import recipes


def get_config(variant: str = "") -> ConfigDict:
  if variant:
    raise ValueError(f'variant must be absent, got "{variant}"')
  c = recipes.preference("397b", "qwen3.5-397b-a17b", fsdp=16, expert=16)
  c.compute.capacity_factor = 1.2
  c.compute.moe_exchange, c.compute.exchange_factor = "all_to_all", 1.1
  return c
