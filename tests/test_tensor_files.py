"""Safetensors files against the safetensors library, slice by slice, and every broken form."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from searchjax.dist.tensor_files import create_tensors, open_tensors


def _tensors():
  rng = np.random.default_rng(0)
  draw = lambda shape, dtype: rng.standard_normal(shape).astype(dtype)
  return {
    "a": draw((3, 5, 7), ml_dtypes.bfloat16),
    "b": draw((11, 13), ml_dtypes.float8_e4m3fn),
    "c": draw((), np.float32),
    "d": draw((17,), np.float16),
    "e": np.arange(6).reshape(2, 3),
  }


def _write(folder, number, tensors):
  safetensors.numpy.save_file(tensors, folder / number)


def test_the_librarys_files_are_read(tmp_path):
  tensors = _tensors()
  _write(tmp_path, "model.safetensors", tensors)
  found = open_tensors(tmp_path)
  assert found.keys() == tensors.keys()
  for name, value in tensors.items():
    mapped = found[name].map()
    assert mapped.dtype == value.dtype and mapped.shape == value.shape
    assert mapped.tobytes() == value.tobytes()
  assert np.array_equal(found["a"].map()[1:3, ::2, 4], tensors["a"][1:3, ::2, 4])
  with pytest.raises(ValueError, match="read-only"):
    found["a"].map()[0] = 0


def test_the_library_reads_our_files(tmp_path):
  tensors = {name: value for name, value in _tensors().items() if name != "b"}  # It reads no FP8.
  layout = {name: (value.shape, value.dtype) for name, value in tensors.items()}
  for name, stored in create_tensors(tmp_path, layout).items():
    stored.map("r+")[...] = tensors[name]
  with safetensors.safe_open(tmp_path / "model.safetensors", framework="np") as file:
    assert file.metadata() == {"format": "pt"}
    for name, value in tensors.items():
      assert file.get_tensor(name).tobytes() == value.tobytes()


def test_files_are_closed_before_they_outgrow_the_limit(tmp_path):
  sizes = {"a": 2, "b": 3, "c": 11, "d": 1}
  layout = {name: ((size,), np.dtype("float32")) for name, size in sizes.items()}
  stored = create_tensors(tmp_path, layout, file_bytes=20)
  assert [t.file.name[6:11] for t in stored.values()] == ["00001", "00001", "00002", "00003"]
  stored["c"].map("r+")[:] = 5
  index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
  assert index["metadata"] == {"total_size": 68}
  assert index["weight_map"]["d"] == "model-00003-of-00003.safetensors"
  assert open_tensors(tmp_path) == stored
  assert open_tensors(tmp_path)["c"].map().sum() == 55 and open_tensors(tmp_path)["d"].map()[0] == 0


def test_one_file_of_another_name_is_enough(tmp_path):
  _write(tmp_path, "weights.safetensors", {"a": np.zeros(3)})
  assert open_tensors(tmp_path)["a"].shape == (3,)
  _write(tmp_path, "more.safetensors", {"b": np.zeros(3)})
  with pytest.raises(ValueError, match="2 safetensors files and no model.safetensors.index.json"):
    open_tensors(tmp_path)
  with pytest.raises(ValueError, match="0 safetensors files"):
    open_tensors(tmp_path / "none")


def _header(text: bytes, data: bytes = b"") -> bytes:
  return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"abc", "cut short or no safetensors file"),
    (_header(b"{}")[:9], "cut short or no safetensors file"),
    (_header(b"{oops"), "broken header"),
    (_header(b"[1]"), "broken header"),
    (_header(b'{"w":{"dtype":"F32"}}'), "broken entry for tensor w"),
    (_header(b'{"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', b"a"), "w in .* is F4"),
    (_header(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"abcd"), "8 bytes, but"),
    (_header(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"abcd"), "cut short"),
  ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path, content, message):
  (tmp_path / "model.safetensors").write_bytes(content)
  with pytest.raises(ValueError, match=message):
    open_tensors(tmp_path)


@pytest.mark.parametrize(
  ("weight_map", "message"),
  [
    ({"a": "1.safetensors", "b": "2.safetensors"}, "no file 2.safetensors in"),
    ({"a": "1.safetensors"}, "tensor b lies in 1.safetensors, but .* has it in no file"),
    ({"a": "1.safetensors", "b": "1.safetensors", "c": "1.safetensors"}, "tensor c is not in"),
    (None, "no index of safetensors files"),
    ("a", "no index of safetensors files"),
  ],
)
def test_an_index_that_does_not_fit_names_the_tensor(tmp_path, weight_map, message):
  _write(tmp_path, "1.safetensors", {"a": np.zeros(3), "b": np.zeros(3)})
  index = {} if weight_map is None else {"weight_map": weight_map}
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
  with pytest.raises(ValueError, match=message):
    open_tensors(tmp_path)
