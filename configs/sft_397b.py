"""SFT of Qwen3.5-397B-A17B: demonstrations of searching, from the published weights.

Shows      the warm-up at scale; guard-rails and the tool-call format before RL.
Hardware   256 v5p chips (topology v5p:4x8x8); 16,384 tokens a chip and step.
Expect     Compiled: the run holds at most 45.0 of 102.8 GB a chip; a step takes at least
           5.5 seconds, 400 steps at least 156 chip-hours (derived from FLOPs and bytes). Not run.
Command    python -m searchjax.model.convert --from-hf Qwen3.5-397B-A17B --to runs/397b/start
           python -m searchjax.compile --config configs/sft_397b.py --topology v5p:4x8x8
           python -m searchjax.train_sft --config configs/sft_397b.py --workdir runs/397b/sft
Needs      runs/397b/start, the converted checkpoint.
"""

from ml_collections import ConfigDict

from searchjax import recipes


def get_config(variant: str = "") -> ConfigDict:
  if variant:
    raise ValueError(f'variant must be absent, got "{variant}"')
  c = recipes.sft("397b", "qwen3.5-397b-a17b", fsdp=16, expert=16)
  c.compute.capacity_factor = 1.2
  c.compute.moe_exchange, c.compute.exchange_factor = "all_to_all", 1.1
  return c
