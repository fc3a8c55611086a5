"""Rubric chats made of conversations and calibrated by pass@4, for the rubric part of RL data.

Shows      rubrics that a model writes, checked, and only chats that some of four answers pass.
Hardware   any; an OpenAI-compatible endpoint each for the writer, the policy and the judge.
Expect     about a minute for 100 conversations at 16 connections; it depends on the endpoints.
Command    python -m searchjax.calibrate --config configs/calibrate.py --workdir runs/rubrics/seed
           --config.conversations=FILE.jsonl --config.writer.url=… --config.policy.url=…
           --config.judge.url=…, each with its model
"""

from ml_collections import ConfigDict

from searchjax.reward.judge import JUDGE


def get_config(variant: str = "") -> ConfigDict:
  if variant:
    raise ValueError(f'this config has no variants, got "{variant}"')
  c = ConfigDict()
  c.seed = 0
  c.conversations = ""
  endpoint = dict(url="", model="", connections=16, timeout_s=600.0, retries=4)
  c.writer, c.policy, c.judge = ConfigDict(endpoint), ConfigDict(endpoint), ConfigDict(JUDGE)
  c.samples = 4
  c.temperature = 1.0
  c.unscored_share = 0.2
  return c
