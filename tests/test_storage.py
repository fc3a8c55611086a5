"""Folders in buckets: what each path becomes, and the copy that a run keeps there.

No bucket is reached: where files are copied, a local folder stands for the bucket.
"""

import os
import pathlib

import pytest
from etils import epath

from searchjax.dist import checkpoint, settings
from searchjax.dist.checkpoint import save_blocks
from searchjax.dist.run_log import find_stage, open_log, read_metrics
from searchjax.dist import run_log
from searchjax.dist.distributed import Run
from searchjax.dist.storage import Mirror, as_folder, is_remote, key_value_store, local_part

CONFIG = {"seed": 1, "distributed": {"local_folder": "here"}}


def test_a_buckets_path_is_kept_whole_and_a_local_one_is_absolute():
  remote = as_folder("gs://bucket-7/my runs/grpo")
  # pathlib would make it gs:/bucket-7.
  assert str(remote / "checkpoints") == "gs://bucket-7/my runs/grpo/checkpoints"
  assert isinstance(remote, epath.Path) and remote.parent.name == "my runs"
  assert as_folder("x") == pathlib.Path("x").absolute()
  assert is_remote(remote) and not is_remote("gs/x") and not is_remote(pathlib.Path("/gs"))


def test_tensorstore_is_told_bucket_and_path_apart():
  assert key_value_store(as_folder("gs://bucket-7/a b/c")) == {
    "driver": "gcs", "bucket": "bucket-7", "path": "a b/c/"}
  assert key_value_store(pathlib.Path("/a b")) == {"driver": "file", "path": "/a b/"}


def test_the_local_part_of_a_run_in_a_bucket_lies_in_a_folder_of_its_own():
  assert local_part("gs://bucket-7/a/grpo", "runs") == pathlib.Path("runs/bucket-7/a/grpo")
  assert local_part("runs/x", "elsewhere") == pathlib.Path("runs/x")


def test_a_work_folder_in_a_bucket_reaches_the_entry_point_as_such(tmp_path):
  config = tmp_path / "c.py"
  config.write_text("from ml_collections import ConfigDict\n"
                    "def get_config():\n  return ConfigDict(dict(seed=1))\n")
  got = []
  argv = ["--config", str(config), "--workdir"]
  settings.run_main(lambda config, workdir: got.append(workdir), "x",
                    argv=[*argv, "gs://bucket-7/a b"])
  assert str(got[0] / "policy") == "gs://bucket-7/a b/policy"


@pytest.mark.parametrize("text", ["gs://bucket-7", "gs://", "gs://bucket-7/"])
def test_a_bucket_without_a_folder_is_one_line(text, tmp_path, capsys):
  config = tmp_path / "c.py"
  config.write_text("def get_config(): ...\n")
  with pytest.raises(ValueError, match="must be gs://BUCKET/FOLDER"):
    settings._read_workdir(text)


def test_what_a_bucket_does_not_give_is_not_called_damaged():
  """Nobody is told to delete a checkpoint because the network or a permission failed."""
  with pytest.raises(ValueError, match=r"gs://b/x step 3 cannot be read \(HTTP 403\); is it whole"):
    with checkpoint._naming_damage("gs://b/x", 3):
      raise ValueError("HTTP 403")


def test_blocks_are_written_locally_only():
  with pytest.raises(ValueError, match="into a local folder, got gs://b/x; give one, and copy it"):
    save_blocks("gs://b/x", 0, {}, lambda name, box: None, {})


def test_a_mirror_copies_what_is_new_and_brings_it_back(tmp_path):
  local, bucket = tmp_path / "local", tmp_path / "bucket"
  (local / "rollouts").mkdir(parents=True)
  (local / "config.json").write_text("{}")
  (local / "rollouts/1").write_text("one")
  mirror = Mirror(local, epath.Path(bucket))
  mirror.send()
  assert (bucket / "rollouts/1").read_text() == "one"
  # What has not changed is not sent again; what has, is.
  (bucket / "config.json").unlink()
  (local / "rollouts/1").write_text("two words")
  mirror.send()
  assert not (bucket / "config.json").exists()
  assert (bucket / "rollouts/1").read_text() == "two words"
  other = Mirror(tmp_path / "other machine", epath.Path(bucket / "rollouts"))
  other.fetch("1", "absent")
  assert (tmp_path / "other machine/1").read_text() == "two words"


def test_a_run_in_a_bucket_goes_on_elsewhere_with_its_metrics(tmp_path, monkeypatch):
  """Two machines with disks of their own; a folder stands for the bucket."""
  bucket = tmp_path / "bucket"
  monkeypatch.setattr(run_log, "is_remote", lambda path: True)
  monkeypatch.setattr(run_log, "as_folder", lambda path: epath.Path(path))
  monkeypatch.setattr(
    run_log, "local_part", lambda workdir, folder: tmp_path / folder / "grpo"
  )

  def machine(name, steps, resume_step):
    config = CONFIG | {"distributed": {"local_folder": name}}
    log = open_log(bucket / "grpo", config, Run(), total_steps=9, resume_step=resume_step)
    with log:
      for step in steps:
        log.write(step, {"loss": float(step)})
        log.rollouts(step, [{"step": step}])
      log.sync()
      sent = [row["step"] for row in read_metrics(bucket / "grpo/metrics.jsonl")]
    return sent

  assert machine("first", [0, 1, 2], 0) == [0, 1, 2]
  # The last checkpoint was of step 2, so what came after it is made again.
  assert machine("second", [2, 3], 2) == [0, 1, 2, 3]
  assert sorted(os.listdir(bucket / "grpo/rollouts")) == [f"step_00000{i}.jsonl" for i in range(4)]
  # The place does not make it another run; the seed does.
  with pytest.raises(ValueError, match="another run: its config differs in seed"):
    open_log(bucket / "grpo", CONFIG | {"seed": 2}, Run(), total_steps=9)


def test_stages_beside_a_run_in_a_bucket_are_looked_for_there(monkeypatch):
  looked = []
  monkeypatch.setattr(
    "etils.epath.gpath._GPath.is_file", lambda self: looked.append(str(self)) or len(looked) == 2
  )
  found = find_stage("gs://bucket-7/a/b/grpo", "sft")
  assert looked == ["gs://bucket-7/a/b/sft/config.json", "gs://bucket-7/a/sft/config.json"]
  assert str(found) == "gs://bucket-7/a/sft"
