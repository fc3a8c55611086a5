"""Evaluation of the tiny run: base, SFT and RL on held-out entities, and the budget sweep.

Shows      RL above SFT in accuracy with fewer calls; accuracy rises with the budget, then is flat.
Hardware   two CPU cores, about 2 minutes.
Expect     greedy held-out accuracy .51 to .67 for SFT and .80 to .83 for RL over three seeds.
Command    python -m searchjax.evaluate --config configs/evaluate_tiny.py --workdir runs/tiny/eval
Needs      the SFT, preference and GRPO runs beside it.
Variants   configs/evaluate_tiny.py:smoke; --config.inference.url=http://HOST:PORT evaluates what an
           inference server serves (docs/serving.md) and needs no run
"""

from ml_collections import ConfigDict

from searchjax.search.options import SEARCH


def get_config(variant: str = "") -> ConfigDict:
  c = ConfigDict()
  c.seed = 0
  c.data_seed = 1234  # the same questions whatever the seed of the run
  c.tokenizer = ""
  # Rows over all devices, parameters whole on each.
  c.mesh = ConfigDict(dict(fsdp=0, expert=1, context=1, layout="replicated"))
  c.compute = ConfigDict(dict(remat="none"))
  c.prices = ""
  c.budgets = tuple(range(11))
  c.budget_questions = 96
  c.budget_temperature = 0.6
  c.invalid_share = 0.2
  c.scorer = ConfigDict(dict(rows=32, length=160))
  # questions_file: JSONL in place of the questions made here (docs/synthesis.md); "" is none.
  c.data = ConfigDict(dict(questions=192, hops=(1, 2, 3), questions_file=""))
  c.search = ConfigDict(
    SEARCH | dict(max_results=1, timeout_s=10.0, retries=3, titles=False, tools_in_prompt=False)
  )
  c.limits = ConfigDict(
    dict(calls=5, turn_tokens=48, tokens=256, answer_tokens=32, invalid_share=0.5)
  )
  c.engine = ConfigDict(
    dict(
      layout="replicated", lanes=64, pool=128, feed_rows=16, feed_tokens=32, decode_steps=8,
      top_k=0, top_p=1.0,
    )
  )
  # An inference server's policy in place of the runs': its address, and which of its models.
  c.inference = ConfigDict(dict(url="", model="", connections=64, timeout_s=600.0, retries=4))
  if variant == "smoke":
    c.budgets, c.budget_questions, c.data.questions = (0, 2, 5), 6, 9
    c.engine.lanes, c.engine.pool, c.engine.feed_rows, c.scorer.rows = 16, 32, 8, 8
  elif variant:
    raise ValueError(f'variant must be "smoke" or absent, got "{variant}"')
  return c
