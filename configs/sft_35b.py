"""SFT of Qwen3.5-35B-A3B: demonstrations of searching, from the published weights.

Shows      the warm-up at scale; guard-rails and the tool-call format before RL.
Hardware   64 v5p chips (topology v5p:4x4x4); 16,384 tokens a chip and step.
Expect     Compiled: the run holds at most 17.1 of 102.8 GB a chip; a step takes at least
           1.1 seconds (derived from FLOPs and bytes). Not run.
Command    python -m searchjax.model.convert --from-hf Qwen3.5-35B-A3B --to runs/35b/start
           python -m searchjax.compile --config configs/sft_35b.py --topology v5p:4x4x4
           python -m searchjax.train_sft --config configs/sft_35b.py --workdir runs/35b/sft
Needs      runs/35b/start, the converted checkpoint.
"""

from ml_collections import ConfigDict

from searchjax import recipes


def get_config(variant: str = "") -> ConfigDict:
  if variant:
    raise ValueError(f'variant must be absent, got "{variant}"')
  return recipes.sft("35b", "qwen3.5-35b-a3b", fsdp=8, expert=8)
