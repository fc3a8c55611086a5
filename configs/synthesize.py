"""Questions made from the atlas, or from any pages by a language model, and verified.

Shows      name-free questions whose answer is the seed, over every relation pattern there is.
Hardware   one CPU core, about 10 minutes for 20,000 questions.
Expect     20,000 questions over 419 patterns; docs/synthesis.md has what it printed.
Command    python -m searchjax.synthesize --config configs/synthesize.py --workdir runs/synthetic
Variants   configs/synthesize.py:forward (50,000 that name the start), :tiny (forward ones for
           configs/grpo_tiny.py: split rl, over the relations that its SFT policy has met), :smoke,
           and :llm, which needs --config.inference.url and --config.search.corpus or
           --config.llm.queries
"""

from ml_collections import ConfigDict

from searchjax.search.options import SEARCH


def get_config(variant: str = "") -> ConfigDict:
  c = ConfigDict()
  c.seed = 0
  c.extractor = "atlas"
  c.direction = "seed"  # the answer is the seed; "forward": the question names the start
  c.count = 20000
  c.hops = (2, 3, 4)
  c.split = ""  # "sft", "rl" or "heldout" alone; "": all, each question with its own
  c.relations = ()  # that chains may have, "^" before one walked backward; (): all
  c.seed_pages = 2  # that confirm a fact of a seed
  c.format_share = 0.25  # of the questions, asked again with a format instruction
  c.batch = 256  # questions verified at once
  c.tokenizer = ""
  c.search = ConfigDict(SEARCH)
  # For extractor=llm: the endpoint, which reads pages and whose rollouts verify.
  c.inference = ConfigDict(dict(url="", model="", connections=64, timeout_s=600.0, retries=4))
  c.limits = ConfigDict(
    dict(calls=10, turn_tokens=4096, tokens=32768, answer_tokens=1024, invalid_share=0.5)
  )
  c.llm = ConfigDict(
    dict(
      queries="",  # a text file of seed queries, where there is no corpus
      rounds=2,  # of searches for the entities that were found
      most_pages=1000, solvers=3, temperature=0.7,
    )
  )
  if variant == "forward":
    c.direction, c.count = "forward", 50000
  elif variant == "tiny":
    c.direction, c.split, c.count, c.format_share = "forward", "rl", 600, 0.0
    c.relations = (
      "city", "country", "region", "capital", "currency", "continent", "calling_code", "language",
    )
  elif variant == "smoke":
    c.count = 60
  elif variant == "llm":
    c.extractor, c.count, c.search.snippet_chars = "llm", 1000, 2000
  elif variant:
    known = '"forward", "tiny", "smoke", "llm"'
    raise ValueError(f'variant must be {known} or absent, got "{variant}"')
  return c
