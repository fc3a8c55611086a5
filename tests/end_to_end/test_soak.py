"""A few of the soak's rollouts (tests/benchmarks/soak.py): every outcome counted, none lost."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = dict(
  full_attention_interval=2, hidden_size=24, num_query_heads=2, num_kv_heads=1, head_size=8,
  rotary_dims=4, num_experts=5, expert_size=7, shared_expert_size=11, delta_key_heads=1,
  delta_value_heads=2, delta_key_size=5, delta_value_size=6, chunk_length=8,
)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found():
  sys.path.insert(0, str(ROOT / "tests/benchmarks"))
  import soak

  return soak.soak(
    96, 48, "any=0.4,503=1@^[a-h],seconds=0.016", say=lambda _: None, model=SMALL,
    engine=dict(lanes=16, pool=32, feed_rows=8),
  )


def test_every_rollout_ends_in_a_way_that_is_counted(found):
  assert found.ends.total() == 96 and found.violations == []
  assert {"answer", "budget", "turn_length"} <= set(found.ends)
  assert any(reason.startswith("search: ") for reason in found.ends)  # invalid, with its reason


def test_every_call_has_one_of_three_outcomes(found):
  assert min(found.calls[outcome] for outcome in ("ok", "infra_failure", "model_failure")) > 0
  assert sum(counts.retries for counts in found.searches) > 0
