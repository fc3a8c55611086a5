"""SFT of Qwen3.5-122B-A10B: demonstrations of searching, from the published weights.

Shows      the warm-up at scale; guard-rails and the tool-call format before RL.
Hardware   128 v5p chips (topology v5p:4x4x8); 16,384 tokens a chip and step.
Expect     Compiled: the run holds at most 30.3 of 102.8 GB a chip; a step takes at least
           3.2 seconds (derived from FLOPs and bytes). Not run.
Command    python -m searchjax.model.convert --from-hf Qwen3.5-122B-A10B --to runs/122b/start
           python -m searchjax.compile --config configs/sft_122b.py --topology v5p:4x4x8
           python -m searchjax.train_sft --config configs/sft_122b.py --workdir runs/122b/sft
Needs      runs/122b/start, the converted checkpoint.
"""

from ml_collections import ConfigDict

from searchjax import recipes


def get_config(variant: str = "") -> ConfigDict:
  if variant:
    raise ValueError(f'variant must be absent, got "{variant}"')
  return recipes.sft("122b", "qwen3.5-122b-a10b", fsdp=16, expert=8)
