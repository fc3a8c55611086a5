"""Profiler traces: of the steps a config names, whole, and only of them."""

import jax
import jax.numpy as jnp
import pytest

from searchjax.dist.profiling import Profile


def run(section, workdir, steps=4, fail_at=None):
  double = jax.jit(lambda x: x + x)
  with Profile(section, workdir) as profile:
    for step in range(steps):
      profile.at(step)
      if step == fail_at:
        raise RuntimeError("broke off")
      double(jnp.ones(3)).block_until_ready()


def test_one_step_is_traced_into_a_file_of_this_process(tmp_path):
  run({"first_step": 1, "steps": 1}, tmp_path)
  folder = tmp_path / "profile/plugins/profile/steps_000001_000001"
  assert {path.name for path in folder.iterdir()} >= {"process_000.xplane.pb"}
  assert (folder / "process_000.xplane.pb").stat().st_size > 100


@pytest.mark.parametrize("section", [{"first_step": 0, "steps": 0}, {"first_step": 9, "steps": 2}])
def test_nothing_is_written_where_no_step_is_traced(tmp_path, section):
  run(section, tmp_path)
  assert list(tmp_path.iterdir()) == []


def test_a_run_that_ends_or_fails_amid_the_trace_leaves_it_and_the_next_can_trace(tmp_path):
  run({"first_step": 3, "steps": 5}, tmp_path / "ends")
  with pytest.raises(RuntimeError, match="broke off"):
    run({"first_step": 0, "steps": 9}, tmp_path / "fails", fail_at=2)
  for name, steps in (("ends", "steps_000003_000007"), ("fails", "steps_000000_000008")):
    assert (tmp_path / name / f"profile/plugins/profile/{steps}/process_000.xplane.pb").is_file()
