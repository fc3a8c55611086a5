"""Checkpoints: whole or not at all, and usable after restore."""

import shutil
import subprocess
import sys
import textwrap

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from searchjax.dist import checkpoint


@flax.struct.dataclass
class State:
  params: dict
  optimizer: tuple
  step: jax.Array


def _state(value: float = 1.0) -> State:
  params = {"a": jnp.full((3, 5), value), "b": [jnp.arange(7), jnp.zeros((), jnp.bfloat16)]}
  return State(params, optax.adamw(1e-3).init({"a": params["a"]}), jnp.int32(3))


def test_a_tree_and_its_record_come_back_equal(tmp_path):
  state = _state(0.1)
  meta = {"data": {"position": [1, 2]}, "config": {"seed": 0}}
  checkpoint.save(tmp_path / "c", 4, state, meta, keep=2)
  restored, found = checkpoint.restore(tmp_path / "c", state)
  assert found == meta and checkpoint.read_meta(tmp_path / "c") == meta
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
    assert a.dtype == b.dtype and np.array_equal(np.asarray(a), np.asarray(b))


def test_an_abstract_template_is_enough(tmp_path):
  checkpoint.save(tmp_path, 0, _state(), {}, keep=1)
  template = jax.eval_shape(_state)
  restored, _ = checkpoint.restore(tmp_path, template)
  assert restored.params["a"].shape == (3, 5)


def test_the_newest_are_kept_and_any_of_them_can_be_read(tmp_path):
  for step in (1, 2, 3):
    checkpoint.save(tmp_path, step, _state(float(step)), {"step": step}, keep=2)
  assert checkpoint.latest_step(tmp_path) == 3
  restored, meta = checkpoint.restore(tmp_path, _state(), step=2)
  assert meta == {"step": 2} and float(restored.params["a"][0, 0]) == 2.0
  with pytest.raises(ValueError, match=r"no checkpoint of step 1 .*there are \[2, 3\]"):
    checkpoint.restore(tmp_path, _state(), step=1)


def test_an_empty_or_absent_folder_has_no_latest_step(tmp_path):
  assert checkpoint.latest_step(tmp_path / "none") is None
  assert not (tmp_path / "none").exists()
  assert checkpoint.latest_step(tmp_path) is None
  with pytest.raises(ValueError, match="no complete checkpoint in"):
    checkpoint.restore(tmp_path, _state())


def test_a_saved_step_is_not_overwritten(tmp_path):
  checkpoint.save(tmp_path, 1, _state(), {}, keep=1)
  with pytest.raises(ValueError, match="step 1 is already saved"):
    checkpoint.save(tmp_path, 1, _state(), {}, keep=1)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda s: s.replace(step=jnp.float32(0)), r"step is int32\[\] there, expected float32\[\]"),
    (
      lambda s: s.replace(params=s.params | {"a": jnp.zeros((5, 3))}),
      r"params.a is float32\[3, 5\] there, expected float32\[5, 3\]",
    ),
    (
      lambda s: s.replace(params=s.params | {"c": jnp.zeros(2)}),
      r"params.c is absent there, expected float32\[2\]",
    ),
  ],
)
def test_a_checkpoint_that_does_not_fit_names_the_leaf(tmp_path, change, message):
  checkpoint.save(tmp_path, 1, _state(), {}, keep=1)
  with pytest.raises(ValueError, match=message):
    checkpoint.restore(tmp_path, change(_state()))


def test_c5_restored_arrays_can_be_donated(tmp_path):
  checkpoint.save(tmp_path, 1, _state(), {}, keep=1)
  restored, _ = checkpoint.restore(tmp_path, _state())
  step = jax.jit(lambda state: jax.tree.map(lambda x: x + x, state), donate_argnums=0)
  step(restored)
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(restored.params))


def test_a_restored_array_takes_the_templates_sharding(tmp_path):
  checkpoint.save(tmp_path, 1, {"w": jnp.arange(8.0)}, {}, keep=1)
  mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  template = {"w": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)}
  restored, _ = checkpoint.restore(tmp_path, template)
  assert restored["w"].sharding == sharding and float(restored["w"].sum()) == 28.0


@pytest.mark.parametrize(
  ("name", "length", "cause"),
  [
    ("tree/d/*", 40, "OUT_OF_RANGE"),
    ("tree/d/*", None, "NOT_FOUND"),
    ("tree/_METADATA", 40, "line 1 column"),
    ("tree/_METADATA", None, "No such file .*tree/_METADATA"),
    ("tree", None, "Unknown key: tree"),
    ("meta", None, '"meta" was not found'),
    ("meta/metadata", 5, "line 1 column"),
    ("meta/metadata", None, "not found"),
  ],
)
def test_a_damaged_checkpoint_is_named_in_one_line(tmp_path, name, length, cause):
  checkpoint.save(tmp_path, 3, _state(), {"step": 3}, keep=1)
  for path in list((tmp_path / "3").glob(name)):
    if length is not None:
      path.write_bytes(path.read_bytes()[:length])
    elif path.is_dir():
      shutil.rmtree(path)
    else:
      path.unlink()
  reads = {"restore": lambda: checkpoint.restore(tmp_path, _state())}
  if name.startswith("meta"):
    reads["read_meta"] = lambda: checkpoint.read_meta(tmp_path)
  else:
    reads["saved_blocks"] = lambda: list(checkpoint.saved_blocks(tmp_path))
  for read in reads.values():
    with pytest.raises(ValueError, match=f"step 3 is damaged .*{cause}.*; delete .*/3 and run") as e:
      read()
    assert "\n" not in str(e.value) and len(str(e.value)) < 500 and e.value.__cause__ is not None


def test_a_mesh_that_does_not_divide_an_array_is_not_called_damage(tmp_path):
  checkpoint.save(tmp_path, 1, {"w": jnp.arange(7.0)}, {}, keep=1)
  mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  with pytest.raises(ValueError, match="divi") as e:
    template = {"w": jax.ShapeDtypeStruct((7,), jnp.float32, sharding=sharding)}
    checkpoint.restore(tmp_path, template)
  assert "damaged" not in str(e.value)


def test_a_step_that_is_not_there_has_no_record(tmp_path):
  checkpoint.save(tmp_path, 1, {"w": jnp.zeros(2)}, {}, keep=1)
  for read in (checkpoint.read_meta, checkpoint.saved_shapes):
    with pytest.raises(ValueError, match=r"no checkpoint of step 2 .*there are \[1\]"):
      read(tmp_path, 2)


KILLED_SAVES = textwrap.dedent(
  """
  import os, sys, signal
  import jax.numpy as jnp
  from searchjax.dist import checkpoint

  def save_twice(folder, changes_before_kill):
    checkpoint.save(folder, 1, {"w": jnp.full((64, 64), 1.0)}, {"step": 1}, keep=2)
    seen = 0

    def watch(event, arguments):
      nonlocal seen
      writes = event == "open" and isinstance(arguments[1], str) and arguments[1][:1] in "wxa"
      if writes or event in ("os.mkdir", "os.rename"):
        seen += 1
        if seen > changes_before_kill:
          os.kill(os.getpid(), signal.SIGKILL)

    # Dies at the n-th file-system change of the second save, whichever it is.
    sys.addaudithook(watch)
    checkpoint.save(folder, 2, {"w": jnp.full((64, 64), 2.0)}, {"step": 2}, keep=2)
    os._exit(0)

  # A child each, made before JAX starts its threads.
  for n in map(int, sys.argv[2:]):
    child = os.fork()
    if child == 0:
      save_twice(f"{sys.argv[1]}/{n}", n)
    os.waitpid(child, 0)
  """
)


def test_c4_a_save_killed_at_any_point_leaves_the_previous_one_latest(tmp_path, plain_environment):
  points = (0, 1, 2, 3, 5, 8, 13)
  command = [sys.executable, "-W", "ignore", "-c", KILLED_SAVES, str(tmp_path), *map(str, points)]
  subprocess.run(command, env=plain_environment, timeout=120, check=True)
  unfinished = 0
  for n in points:
    folder = tmp_path / str(n)
    latest = checkpoint.latest_step(folder)
    assert latest in (1, 2), f"killed after {n} changes"
    restored, meta = checkpoint.restore(folder, {"w": jnp.zeros((64, 64))})
    assert meta == {"step": latest} and float(restored["w"][0, 0]) == float(latest)
    if latest == 1:
      unfinished += 1
      # The run goes on from step 1 and saves the step again.
      checkpoint.save(folder, 2, {"w": jnp.full((64, 64), 3.0)}, {"step": 2}, keep=2)
      assert checkpoint.latest_step(folder) == 2
  assert unfinished >= 3, "no save was killed before it was complete: the test shows nothing"


def _blocks(fail_at: int | None = None):
  """Nested arrays, their template, and a `read` that records what it is asked for."""
  rng = np.random.default_rng(0)
  arrays = {
    "a": rng.standard_normal((4, 5, 7, 8)).astype(jnp.bfloat16),
    "b": {"c": rng.standard_normal((13,)).astype(np.float32), "d": np.ones((1, 17), np.float32)},
  }
  flat = {"a": arrays["a"], "b.c": arrays["b"]["c"], "b.d": arrays["b"]["d"]}
  asked = []

  def read(name, box):
    if len(asked) == fail_at:
      raise ValueError("the source broke off")
    asked.append((name, box))
    return flat[name][box]

  template = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arrays)
  return arrays, flat, template, read, asked


def test_blocks_make_a_checkpoint_that_any_sharding_restores(tmp_path):
  arrays, flat, template, read, asked = _blocks()
  checkpoint.save_blocks(
    tmp_path / "c", 3, template, read, {"of": "blocks"}, file_bytes=1000, chunk_bytes=100
  )
  mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  spec = lambda a: jax.sharding.PartitionSpec("y", *[None] * (len(a.shape) - 2), "x")
  sharded = jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(
      a.shape, a.dtype,
      sharding=jax.sharding.NamedSharding(
        mesh, spec(a) if a.shape[0] == 4 else jax.sharding.PartitionSpec()
      ),
    ),
    template,
  )  # fmt: skip
  for wanted in (template, sharded):
    restored, meta = checkpoint.restore(tmp_path / "c", wanted)
    assert meta == {"of": "blocks"} and checkpoint.latest_step(tmp_path / "c") == 3
    for got, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(arrays), strict=True):
      assert np.asarray(got).tobytes() == expected.tobytes()
  assert restored["a"].sharding == sharded["a"].sharding
  # Each element was asked for once, in blocks of at most 1000 bytes.
  for name, array in flat.items():
    seen = np.zeros(array.shape, np.int32)
    for of, box in asked:
      if of == name:
        seen[box] += 1
        assert array[box].nbytes <= 1000
    assert (seen == 1).all()


@pytest.mark.parametrize("blockwise", [True, False], ids=["save_blocks", "save"])
def test_a_checkpoint_is_read_back_in_the_blocks_it_was_written_in(tmp_path, blockwise):
  arrays, flat, template, read, asked = _blocks()
  if blockwise:
    checkpoint.save_blocks(tmp_path / "c", 0, template, read, {}, file_bytes=300, chunk_bytes=100)
  else:
    checkpoint.save(tmp_path / "c", 0, jax.tree.map(jnp.asarray, arrays), {}, keep=1)
  shapes = checkpoint.saved_shapes(tmp_path / "c")
  assert {name: (s.shape, s.dtype) for name, s in shapes.items()} == {
    name: (a.shape, a.dtype) for name, a in flat.items()
  }
  found = list(checkpoint.saved_blocks(tmp_path / "c"))
  assert len(found) == (len(asked) if blockwise else 3)
  for name, box, values in found:
    assert values.tobytes() == flat[name][box].tobytes()


def test_blocks_that_break_off_leave_no_checkpoint(tmp_path):
  _, _, template, read, asked = _blocks(fail_at=2)
  with pytest.raises(ValueError, match="broke off"):
    checkpoint.save_blocks(tmp_path / "c", 0, template, read, {}, file_bytes=300, chunk_bytes=100)
  assert checkpoint.latest_step(tmp_path / "c") is None and len(asked) == 2
  with pytest.raises(ValueError, match="no complete checkpoint"):
    checkpoint.saved_shapes(tmp_path / "c")
  # What is left is in nobody's way.
  _, _, template, read, _ = _blocks()
  checkpoint.save_blocks(tmp_path / "c", 0, template, read, {})
  with pytest.raises(ValueError, match="is there already"):
    checkpoint.save_blocks(tmp_path / "c", 1, template, read, {})


@pytest.mark.parametrize(
  ("shape", "file", "chunk"),
  [
    # gate_up of the 397B model: an expert is 16 MB, a chunk half of one, a file eight experts.
    ((15, 4, 512, 4096, 2048), (1, 1, 8, 4096, 2048), (1, 1, 1, 2048, 2048)),
    ((248320, 4096), (16384, 4096), (1024, 4096)),
    ((15, 4096), (15, 4096), (15, 4096)),
    ((7, 3), (7, 3), (7, 3)),
  ],
)
def test_blocks_are_runs_of_memory_of_a_bounded_size(shape, file, chunk):
  assert checkpoint._plan(shape, 2, 2**27, 2**23) == (file, chunk)


def test_C5_training_goes_on_while_a_checkpoint_is_written_and_may_donate_at_once(tmp_path):
  """What is saved are the values at the time of the call, whatever becomes of the buffers."""
  w = jnp.zeros((1 << 21,), jnp.int32)
  add = jax.jit(lambda x: x + 1, donate_argnums=0)
  with checkpoint.Saver(tmp_path, keep=2) as saver:
    for step in (3, 6, 9):
      for _ in range(3):
        w = add(w)
      saver.save(step, {"w": w}, {"step": step})
      w = add(w)
      w = w - 1
  assert checkpoint.latest_step(tmp_path) == 9
  for step in (6, 9):
    restored, meta = checkpoint.restore(tmp_path, {"w": w}, step)
    assert meta == {"step": step} and set(np.unique(restored["w"]).tolist()) == {step}
  with pytest.raises(ValueError, match=r"no checkpoint of step 3 .*there are \[6, 9\]"):
    checkpoint.read_meta(tmp_path, 3)


def test_a_save_that_failed_in_the_background_is_raised_by_the_next_or_at_the_end(tmp_path):
  saver = checkpoint.Saver(tmp_path, keep=2)
  big = {"w": jnp.zeros((1 << 25,), jnp.int32)}
  saver.save(1, big, {})
  # A folder with something in it, where the finished checkpoint is to go.
  (tmp_path / "1/x").mkdir(parents=True)
  with pytest.raises((OSError, ValueError)):
    saver.close()
