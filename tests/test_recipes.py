"""What pod cards share: every key that a trainer reads, and sizes that belong together."""

import math

import pytest

from searchjax import recipes
from searchjax.dist.settings import flatten, load_config

STAGES = {"sft": recipes.sft, "rm": recipes.preference, "grpo": recipes.grpo}
# What only small models or optimisers of matrices have.
TINY_ONLY = {"model.full_attention_interval", "optimizer.adam_peak"}


@pytest.mark.parametrize("stage", STAGES)
def test_a_pods_run_has_every_key_of_the_tiny_one_in_its_type(repository, stage):
  """The tiny runs are what the tests train: a key they read and a card lacks ends a pod's run."""
  tiny = flatten(load_config(str(repository / f"configs/{stage}_tiny.py")))
  pod = flatten(STAGES[stage]("7b", "tiny", fsdp=8, expert=4))
  assert tiny.keys() - pod.keys() <= TINY_ONLY
  for key in tiny.keys() & pod.keys():
    assert type(tiny[key]) is type(pod[key]), key


def test_rows_lanes_and_processes_follow_the_mesh():
  """A process for each host of four chips, a row and a conversation for each chip."""
  c = recipes.grpo("7b", "tiny", fsdp=8, expert=4)
  chips = math.prod((c.mesh.fsdp, c.mesh.expert, c.mesh.context))
  assert c.rows == c.scorer.rows == c.engine.lanes == chips == 32
  assert c.distributed.processes == 8 and c.questions_per_step == 8
  assert c.tokenizer == "runs/7b/start"
  c = recipes.sft("7b", "tiny", fsdp=3, expert=4)
  assert c.batch.rows == c.engine.lanes == 12 and c.distributed.processes == 3
  assert c.init == c.tokenizer
