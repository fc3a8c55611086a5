"""Hugging Face folders to policies and back: bit for bit, whole or not at all, by owned slices."""

import copy
import dataclasses
import functools
import json
import socket
import subprocess
import sys
import textwrap

import hf_folders
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from searchjax.dist import checkpoint, tensor_files
from searchjax.dist.run_log import find_stage
from searchjax.model import convert
from searchjax.model.config import ModelConfig
from searchjax.model.hf_config import hf_config
from searchjax.model.params import ParamSpec, param_specs
from searchjax.rollout.agent import save_policy

MODELS = {"qwen3_5_moe": hf_folders.QWEN35, "qwen3_moe": hf_folders.QWEN3}
# Kind of folder: prefix, fused experts, number of files.
KINDS = {
  "vision-language": ("model.language_model.", True, 3),
  "fused": ("model.", True, 1),
  "separate": ("model.", False, 2),
}
SKIPPED = {
  "model.visual.blocks.0.attn.qkv.weight": np.ones((3, 5), ml_dtypes.bfloat16),
  "model.visual.pos_embed.weight": np.ones((7,), ml_dtypes.bfloat16),
  "mtp.layers.0.mlp.experts.0.gate_proj.weight": np.ones((3, 5), ml_dtypes.bfloat16),
}


def _vision_language(config: dict) -> dict:
  """The config.json of the published repositories: the text model's inside."""
  outer = {"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"]}
  return outer | {"text_config": config | {"eos_token_id": 5}, "vision_config": {"depth": 3}}


def _folder(path, model_type, kind, *, value_head=False, change=None):
  """Writes a folder of a kind; `change(tensors, config)` may spoil it. Gives model and params."""
  model = MODELS[model_type]
  prefix, fused, files = KINDS[kind]
  params = hf_folders.random_params(model)
  if value_head:
    params["value_head"] = np.linspace(-1, 1, model.hidden_size, dtype=np.float32)
  tensors = hf_folders.hf_tensors(params, model, prefix=prefix, fused=fused)
  config = hf_config(model)
  if kind == "vision-language":
    tensors |= SKIPPED
    config = _vision_language(config)
  if change:
    change(tensors, config)
  hf_folders.write_folder(path, tensors, config, files=files)
  return model, params, tensors


def _load(stage, *, value_head=False):
  """Parameters and sizes, as the stages load a policy: a template from the sizes beside it."""
  model = ModelConfig(**checkpoint.read_meta(stage / "policy")["model"])
  template = jax.tree.map(
    lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), param_specs(model),
    is_leaf=lambda x: isinstance(x, ParamSpec),
  )  # fmt: skip
  if value_head:
    template["value_head"] = jax.ShapeDtypeStruct((model.hidden_size,), "float32")
  return checkpoint.restore(stage / "policy", template)[0], model


def _equal(found, expected):
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for path, value in jax.tree_util.tree_leaves_with_path(expected):
    got = found
    for part in path:
      got = got[part.key]
    assert got.dtype == value.dtype, path
    assert np.asarray(got).tobytes() == value.tobytes(), path


def _read_folder(path):
  return {name: stored.map() for name, stored in tensor_files.open_tensors(path).items()}


@pytest.mark.parametrize(
  ("model_type", "kind"),
  [("qwen3_5_moe", kind) for kind in KINDS] + [("qwen3_moe", "fused"), ("qwen3_moe", "separate")],
)
def test_g3_round_trips_are_bit_equal(tmp_path, model_type, kind):
  """FAULTS G3: no (1 + w) is added or taken on the way, and load∘save∘load does not drift."""
  model, params, tensors = _folder(tmp_path / "hf", model_type, kind)
  lines = []
  found = convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=lines.append)
  assert found == dataclasses.replace(model, name="hf")
  loaded, sizes = _load(tmp_path / "policy")
  assert sizes == found
  # It can stand where a stage would: `policy` in the place of `sft`.
  assert find_stage(tmp_path / "grpo", "policy") == tmp_path / "policy"
  _equal(loaded, params)
  skips = ["skipped 1 MTP tensors (mtp.*)", "skipped 2 vision tensors (model.visual.*)"]
  assert lines == (skips if kind == "vision-language" else [])
  convert.to_hf(tmp_path / "policy", tmp_path / "back", report=lines.append)
  back = _read_folder(tmp_path / "back")
  # Published layout: fused for Qwen3.5, one by one for Qwen3.
  fused = model_type == "qwen3_5_moe"
  expected = hf_folders.hf_tensors(params, model, prefix="model.", fused=fused)
  assert back.keys() == expected.keys()
  for name, value in back.items():
    assert value.dtype == expected[name].dtype and value.tobytes() == expected[name].tobytes(), name
  convert.from_hf(tmp_path / "back", tmp_path / "again", report=lines.append)
  _equal(_load(tmp_path / "again")[0], params)


def _fp8(path, scale_dtype):
  """A folder as the FP8 repositories have them, and the numbers its weights stand for."""
  exact = {}

  def change(tensors, config):
    small, meaning = hf_folders.quantise(tensors, scale_dtype)
    exact.update(meaning)
    tensors.clear()
    tensors.update(small)
    block = list(hf_folders.BLOCK)
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": block}

  model, params, _ = _folder(path, "qwen3_5_moe", "separate", change=change)
  return model, params, exact


@pytest.mark.parametrize("scale_dtype", [ml_dtypes.bfloat16, np.float32], ids=["bf16", "f32"])
def test_fp8_weights_are_dequantised(tmp_path, scale_dtype):
  _, params, exact = _fp8(tmp_path / "hf", scale_dtype)
  lines = []
  convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=lines.append)
  assert lines == ["dequantising FP8 weights, one scale per [5, 11] block"]
  convert.to_hf(tmp_path / "policy", tmp_path / "back", report=lines.append)
  loaded = _load(tmp_path / "policy")[0]
  for name, value in _read_folder(tmp_path / "back").items():
    if ".experts." not in name:
      wanted = exact[name].astype(value.dtype)
      assert value.tobytes() == wanted.tobytes(), name
  for e in range(5):
    gate = exact[f"model.layers.4.mlp.experts.{e}.gate_proj.weight"].astype(ml_dtypes.bfloat16)
    assert np.array_equal(np.asarray(loaded["moe"]["gate_up"])[1, 1, e, :, :13], gate.T)
  # Close to what was quantised; without scales it would be hundreds of times as large.
  query = params["delta"]["query"].astype(np.float32)
  error = np.abs(np.asarray(loaded["delta"]["query"], np.float32) - query)
  assert 0 < error.max() < 0.15
  # In float32 the products are exact.
  convert.from_hf(tmp_path / "hf", tmp_path / "wide", dtype="float32", report=lines.append)
  wide = np.asarray(_load(tmp_path / "wide")[0]["attention"]["out"])[1]
  o_proj = exact["model.layers.5.self_attn.o_proj.weight"]
  assert np.array_equal(wide.reshape(-1, 29).T, o_proj)


def test_small_blocks_make_the_same_policy(tmp_path, monkeypatch):
  """Every array here fits one block; cut to pieces, FP8 blocks included, nothing changes."""
  _fp8(tmp_path / "hf", np.float32)
  convert.from_hf(tmp_path / "hf", tmp_path / "whole", report=str)
  blocks = []
  small = functools.partial(checkpoint.save_blocks, file_bytes=1500, chunk_bytes=200)
  monkeypatch.setattr(checkpoint, "save_blocks", small)
  read = convert.HfFolder.read

  def recorded(self, name, box):
    blocks.append(read(self, name, box))
    return blocks[-1]

  monkeypatch.setattr(convert.HfFolder, "read", recorded)
  convert.from_hf(tmp_path / "hf", tmp_path / "pieces", report=str)
  assert len(blocks) > 100 and max(block.nbytes for block in blocks) <= 1500
  whole = jax.tree.map(np.asarray, _load(tmp_path / "whole")[0])
  _equal(_load(tmp_path / "pieces")[0], whole)
  convert.to_hf(tmp_path / "whole", tmp_path / "one", report=str)
  convert.to_hf(tmp_path / "pieces", tmp_path / "two", report=str)
  one, two = tmp_path / "one/model.safetensors", tmp_path / "two/model.safetensors"
  assert one.read_bytes() == two.read_bytes()


def test_float32_parameters_stay_float32_at_any_dtype(tmp_path):
  """A_log in bfloat16 changes the decay by up to 0.7 %."""
  model, params, _ = _folder(tmp_path / "hf", "qwen3_5_moe", "fused")
  rounded = params["delta"]["A_log"].astype(ml_dtypes.bfloat16).astype(np.float32)
  assert not np.array_equal(params["delta"]["A_log"], rounded)
  convert.from_hf(tmp_path / "hf", tmp_path / "wide", dtype="float32", report=str)
  wide = _load(tmp_path / "wide")[0]
  assert wide["embed"].dtype == np.float32
  assert np.array_equal(np.asarray(wide["embed"]), params["embed"].astype(np.float32))
  convert.to_hf(tmp_path / "wide", tmp_path / "back", dtype="bfloat16", report=str)
  back = _read_folder(tmp_path / "back")
  for name, ours in (("A_log", "A_log"), ("norm.weight", "out_norm"), ("dt_bias", "dt_bias")):
    found = back[f"model.layers.3.linear_attn.{name}"]
    assert found.dtype == np.float32 and np.array_equal(found, params["delta"][ours][1, 0])
  assert back["model.embed_tokens.weight"].dtype == ml_dtypes.bfloat16
  assert json.loads((tmp_path / "back/config.json").read_text())["dtype"] == "bfloat16"


def test_wider_tensors_are_rounded_and_counted(tmp_path):
  def change(tensors, config):
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
      tensors[name] = tensors[name].astype(np.float32) + np.float32(2**-12)

  _, params, tensors = _folder(tmp_path / "hf", "qwen3_moe", "fused", change=change)
  lines = []
  convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=lines.append)
  assert lines == ["rounding 2 tensors to bfloat16"]
  embed = np.asarray(_load(tmp_path / "policy")[0]["embed"])
  assert np.array_equal(embed, tensors["model.embed_tokens.weight"].astype(ml_dtypes.bfloat16))


def test_a_file_wholly_in_bfloat16_gives_float32_decays(tmp_path):
  """Qwen3.6 stores A_log so; nothing is lost and nothing is reported."""

  def change(tensors, config):
    for name in tensors:
      tensors[name] = tensors[name].astype(ml_dtypes.bfloat16)

  _, _, tensors = _folder(tmp_path / "hf", "qwen3_5_moe", "fused", change=change)
  lines = []
  convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=lines.append)
  A_log = _load(tmp_path / "policy")[0]["delta"]["A_log"]
  stored = tensors["model.layers.4.linear_attn.A_log"].astype(np.float32)
  assert A_log.dtype == np.float32 and np.array_equal(A_log[1, 1], stored) and lines == []


@pytest.mark.parametrize("model_type", MODELS)
def test_preference_models_go_out_and_come_back(tmp_path, model_type):
  model, params, _ = _folder(tmp_path / "hf", model_type, "fused", value_head=True)
  lines = []
  convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=lines.append)
  _equal(_load(tmp_path / "policy", value_head=True)[0], params)
  convert.to_hf(tmp_path / "policy", tmp_path / "back", report=lines.append)
  assert lines == ["the value head is score.weight"]
  score = _read_folder(tmp_path / "back")["score.weight"]
  assert score.dtype == np.float32 and np.array_equal(score[0], params["value_head"])
  assert json.loads((tmp_path / "back/config.json").read_text())["num_labels"] == 1
  convert.from_hf(tmp_path / "back", tmp_path / "again", report=lines.append)
  _equal(_load(tmp_path / "again", value_head=True)[0], params)


def test_a_stages_policy_with_tied_embeddings_goes_out(tmp_path):
  """As trained: saved by `save_policy`, tied, float32; the tokenizer lies beside it."""
  model = dataclasses.replace(
    hf_folders.QWEN35, tie_embeddings=True, param_dtype="float32", real_vocab_size=97
  )
  params = jax.tree.map(jnp.asarray, hf_folders.random_params(model))
  save_policy(tmp_path / "stage", 7, params, model)
  tokens = {"model": {"vocab": {"a": 0, "b": 95}}, "added_tokens": [{"id": 96, "content": "c"}]}
  (tmp_path / "stage/tokenizer.json").write_text(json.dumps(tokens))
  (tmp_path / "stage/config.json").write_text(json.dumps(_vision_language({"pad_token_id": 3})))
  convert.to_hf(tmp_path / "stage", tmp_path / "hf", file_bytes=100_000, report=str)
  files = sorted(path.name for path in (tmp_path / "hf").iterdir())
  assert files[:2] == ["config.json", "model-00001-of-00005.safetensors"]
  assert files[-2:] == ["model.safetensors.index.json", "tokenizer.json"]
  assert "lm_head.weight" not in tensor_files.open_tensors(tmp_path / "hf")
  config = json.loads((tmp_path / "hf/config.json").read_text())
  assert (config["eos_token_id"], config["pad_token_id"]) == (5, 3)
  # The rows above the tokenizer's 97 ids are padding.
  found = convert.from_hf(tmp_path / "hf", tmp_path / "again", report=str)
  assert found.real_vocab_size == 97 and found.vocab_size == 101
  assert (tmp_path / "again/tokenizer.json").read_text() == json.dumps(tokens)
  _equal(_load(tmp_path / "again")[0], jax.tree.map(np.asarray, params))


def _drop(name):
  return lambda tensors, config: tensors.pop(name)


def _put(name, value):
  return lambda tensors, config: tensors.update({name: value})


def _half_experts(tensors, config):
  tensors["model.layers.1.mlp.experts.0.gate_proj.weight"] = np.zeros((13, 29), ml_dtypes.bfloat16)


def _quantised(change):
  def spoil(tensors, config):
    block = list(hf_folders.BLOCK)
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": block}
    tensors[UP] = tensors[UP].astype(ml_dtypes.float8_e4m3fn)
    tensors[UP + "_scale_inv"] = np.ones((3, 3), np.float32)
    change(tensors, config)

  return spoil


UP = "model.layers.1.mlp.shared_expert.up_proj.weight"


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (_drop("model.layers.1.linear_attn.A_log"), "missing tensor model.layers.1.linear_attn.A_log"),
    (_drop("lm_head.weight"), "missing tensor lm_head.weight in"),
    (_drop("model.embed_tokens.weight"), "no tensor model.language_model.embed_tokens.weight or"),
    (
      _put("model.layers.0.mlp.gate.e_score_correction_bias", np.zeros(5, np.float32)),
      "unknown tensor model.layers.0.mlp.gate.e_score_correction_bias in",
    ),
    (_put("visual.pos_embed", np.zeros(5, np.float32)), "unknown tensor visual.pos_embed in"),
    (_half_experts, "unknown tensor model.layers.1.mlp.experts.0.gate_proj.weight in"),
    (
      lambda t, c: c.update(num_hidden_layers=3, layer_types=None),
      r"unknown tensor .*layers.3.* \(and",
    ),
    (
      _put("model.layers.2.self_attn.q_proj.weight", np.zeros((84, 29), ml_dtypes.bfloat16)),
      r"model.layers.2.self_attn.q_proj.weight in .* is \[84, 29\], expected \[168, 29\]",
    ),
    (_put("model.norm.weight", np.zeros(29, np.int32)), "model.norm.weight in .* is int32; exp"),
    (_put("model.norm.weight", np.zeros(29)), "model.norm.weight in .* is float64; expected"),
    (
      _put("model.norm.weight", np.zeros(29, ml_dtypes.float8_e4m3fn)),
      "is float8_e4m3fn; expected .* with a quantization_config",
    ),
    (_quantised(_drop(UP + "_scale_inv")), f"missing tensor {UP}_scale_inv"),
    (_quantised(_put(UP, np.zeros((11, 29), np.float32))), f"unknown tensor {UP}_scale_inv"),
    (
      _quantised(_put(UP + "_scale_inv", np.ones((1, 1), np.float32))),
      r"weight_scale_inv in .* is float32\[1, 1\], expected a float of \[3, 3\]: one per block",
    ),
    (
      _quantised(lambda t, c: c["quantization_config"].update(quant_method="awq")),
      'quantization "awq" .* is not read; expected "fp8"',
    ),
    (lambda t, c: c.update(model_type="llama"), "model_type must be one of .* got 'llama'"),
  ],
)
def test_whatever_does_not_fit_is_named_and_nothing_is_written(tmp_path, change, message):
  _folder(tmp_path / "hf", "qwen3_5_moe", "fused", change=change)
  with pytest.raises(ValueError, match=message):
    convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=str)
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_conversion_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
  _folder(tmp_path / "hf", "qwen3_moe", "fused")
  read = convert.HfFolder.read

  def broken(self, name, box):
    if name == "moe.down":
      raise OSError("the disk is gone")
    return read(self, name, box)

  with monkeypatch.context() as patch:
    patch.setattr(convert.HfFolder, "read", broken)
    with pytest.raises(OSError, match="disk is gone"):
      convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=str)
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]
  # An empty folder of that name may be there.
  (tmp_path / "policy").mkdir()
  convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=str)
  with pytest.raises(ValueError, match="policy is there already; remove it or give another folder"):
    convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=str)
  with pytest.raises(ValueError, match="no complete checkpoint in"):
    convert.to_hf(tmp_path / "hf", tmp_path / "back", report=str)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "policy"]


def test_a_policy_that_does_not_fit_its_sizes_is_named(tmp_path):
  model = hf_folders.QWEN3
  params = jax.tree.map(np.asarray, hf_folders.random_params(model))
  record = {"model": dataclasses.asdict(dataclasses.replace(model, vocab_size=103))}
  checkpoint.save(tmp_path / "stage/policy", 0, params, record, keep=1)
  message = r"parameter embed in .* is \(101, 29\), expected \(103, 29\)"
  with pytest.raises(ValueError, match=message):
    convert.to_hf(tmp_path / "stage", tmp_path / "hf", report=str)
  assert not (tmp_path / "hf").exists()


def test_the_command_line(tmp_path, capsys):
  _folder(tmp_path / "hf", "qwen3_moe", "separate")
  hf, policy = str(tmp_path / "hf"), str(tmp_path / "policy")
  for wrong, message in (
    ([], "one of the arguments --from-hf --from is required"),
    (["--from-hf", hf], "give --from-hf DIR --to DIR, or --from DIR --to-hf DIR"),
    (["--from-hf", hf, "--to-hf", policy], "give --from-hf DIR --to DIR"),
    (["--from", policy, "--to-hf", str(tmp_path / "x")], "no complete checkpoint in"),
    (["--from-hf", policy, "--to", str(tmp_path / "x")], "give a Hugging Face folder with config"),
    (["--from-hf", hf, "--to", policy, "--dtype", "int8"], "invalid choice: 'int8'"),
    (["--from-hf", hf, "--to", policy, "--fast"], "unrecognized arguments: --fast"),
    (["--from-hf", hf, "--to", "gs://b/x"], "converted on a local disk, got gs://b/x; copy it"),
    (["--from", "gs://b/x", "--to-hf", policy], "converted on a local disk, got gs://b/x; copy it"),
  ):
    assert convert.main(wrong) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error
  assert not (tmp_path / "x").exists()
  assert convert.main(["--from-hf", hf, "--to", policy]) == 0
  out = capsys.readouterr().out
  assert out.startswith("hf: wrote ") and out.count("\n") == 1
  back = ["--to-hf", str(tmp_path / "back"), "--dtype", "float32"]
  assert convert.main(["--from", policy, *back]) == 0
  with pytest.raises(SystemExit) as left:
    convert.main(["--help"])
  assert left.value.code == 0 and "--from-hf DIR" in capsys.readouterr().out


def test_one_process_of_several_does_not_write_a_hugging_face_folder(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  with pytest.raises(ValueError, match="written by one process, this run has 3; when it has ended"):
    convert.to_hf(tmp_path / "policy", tmp_path / "hf")
  assert not list(tmp_path.iterdir())


def test_progress_lines_are_few(tmp_path, monkeypatch):
  _folder(tmp_path / "hf", "qwen3_moe", "separate")
  monkeypatch.setattr(convert, "SECONDS_BETWEEN_LINES", 0.0)
  lines = []
  convert.from_hf(tmp_path / "hf", tmp_path / "policy", report=lines.append)
  assert len(lines) == len(jax.tree.leaves(hf_folders.random_params(hf_folders.QWEN3)))
  assert lines[-1].split(" after ")[0] == "moe.router: 0.0 of 0.0 GB"


def _shardings(model: ModelConfig, mesh):
  """Experts over both axes' devices where they divide, width over x, the rest whole."""

  def of(spec):
    parts = [None] * len(spec.shape)
    for axis, size in enumerate(spec.shape):
      if spec.axes[axis] == "experts" and size % 4 == 0:
        parts[axis] = ("x", "y")
      elif spec.axes[axis] in ("delta_heads", "heads") and size % 2 == 0:
        parts[axis] = "x"
    return NamedSharding(mesh, PartitionSpec(*parts))

  return jax.tree.map(of, param_specs(model), is_leaf=lambda x: isinstance(x, ParamSpec))


def test_devices_are_filled_with_the_slices_they_own(tmp_path, monkeypatch):
  model, params, _ = _folder(tmp_path / "hf", "qwen3_5_moe", "fused")
  hf = convert.open_hf(tmp_path / "hf")
  mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  shardings = _shardings(model, mesh)
  asked = []
  read = convert.HfFolder.read
  monkeypatch.setattr(
    convert.HfFolder, "read",
    lambda self, name, box: asked.append((name, box)) or read(self, name, box),
  )  # fmt: skip
  loaded = convert.load_params(hf, shardings)
  _equal(loaded, params)
  for path, sharding in jax.tree_util.tree_leaves_with_path(shardings):
    name = ".".join(part.key for part in path)
    shape = hf.names.leaves[name].spec.shape
    owned = {
      tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
      for index in sharding.addressable_devices_indices_map(shape).values()
    }
    assert {tuple((s.start, s.stop) for s in box) for of, box in asked if of == name} == owned
  query = [box for name, box in asked if name == "attention.query"]
  assert {(box[2].start, box[2].stop) for box in query} == {(0, 3), (3, 6)}
  whole = convert.load_params(hf, NamedSharding(mesh, PartitionSpec()))
  _equal(whole, params)


def test_a_slice_maps_only_the_tensors_it_needs(tmp_path, monkeypatch):
  _folder(tmp_path / "hf", "qwen3_moe", "separate")
  hf = convert.open_hf(tmp_path / "hf")
  mapped = []
  whole = tensor_files.StoredTensor.map
  stored_name = {(t.file, t.offset): name for name, t in hf.stored.items()}
  monkeypatch.setattr(
    tensor_files.StoredTensor, "map",
    lambda self, mode="r": mapped.append(stored_name[self.file, self.offset]) or whole(self, mode),
  )  # fmt: skip
  hf.read("moe.down", (slice(1, 2), slice(0, 1), slice(2, 4), slice(0, 13), slice(3, 5)))
  assert mapped == [f"model.layers.1.mlp.experts.{e}.down_proj.weight" for e in (2, 3)]


TWO_PROCESSES = textwrap.dedent(
  """
  import sys
  import jax
  rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(f"localhost:{port}", 2, rank)
  import numpy as np
  from jax.sharding import NamedSharding, PartitionSpec
  from searchjax.dist import checkpoint
  from searchjax.model import convert

  read, asked = convert.HfFolder.read, []
  def recorded(self, name, box):
    asked.append((name, box))
    return read(self, name, box)
  convert.HfFolder.read = recorded
  assert jax.device_count() == 8 and jax.local_device_count() == 4
  convert.from_hf(f"{folder}/hf", f"{folder}/policy", report=str)
  blocks = len(asked)
  asked.clear()
  mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
  hf = convert.open_hf(f"{folder}/hf")
  of = lambda spec: NamedSharding(mesh, PartitionSpec(*[
    "x" if axis == "experts" and size % 8 == 0 else None
    for axis, size in zip(spec.axes, spec.shape)]))
  names = convert.flat_specs(hf.model)
  shardings = convert._nest({name: of(spec) for name, spec in names.items()})
  params = convert.load_params(hf, shardings)
  experts = sorted({box[2].start for name, box in asked if name == "moe.gate_up"})
  restored, _ = checkpoint.restore(f"{folder}/policy/policy", params)
  same = all(
    np.array_equal(x.data, y.data)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(restored))
    for x, y in zip(a.addressable_shards, b.addressable_shards))
  print(f"RESULT {blocks} {experts} {same}", flush=True)
  """
)


def test_two_processes_share_the_blocks_and_read_what_they_own(
  tmp_path, plain_environment, monkeypatch
):
  """Two processes of four virtual devices each: experts over all eight."""
  eight = dataclasses.replace(hf_folders.QWEN3, num_experts=8)
  monkeypatch.setitem(MODELS, "qwen3_moe", eight)
  _, params, _ = _folder(tmp_path / "hf", "qwen3_moe", "separate")
  with socket.socket() as probe:
    probe.bind(("localhost", 0))
    port = probe.getsockname()[1]
  environment = plain_environment | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
  children = [
    subprocess.Popen(
      [sys.executable, "-W", "ignore", "-c", TWO_PROCESSES, str(rank), str(port), str(tmp_path)],
      env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    for rank in (0, 1)
  ]  # fmt: skip
  outputs = [child.communicate(timeout=120) for child in children]
  assert [child.returncode for child in children] == [0, 0], outputs
  lines = [out.splitlines() for out, _ in outputs]
  results = [next(line for line in out if line.startswith("RESULT")) for out in lines]
  leaves = len(jax.tree.leaves(params))
  shares = [int(result.split()[1]) for result in results]
  assert sum(shares) == leaves and abs(shares[0] - shares[1]) <= 1
  assert results[0].endswith("[0, 1, 2, 3] True") and results[1].endswith("[4, 5, 6, 7] True")
  _equal(_load(tmp_path / "policy")[0], params)


@pytest.mark.parametrize("model_type", MODELS)
def test_transformers_loads_what_we_write_with_identical_logits(tmp_path, model_type):
  torch = pytest.importorskip("torch", reason="PyTorch is not installed; it is only an oracle")
  transformers = pytest.importorskip("transformers")
  transformers.logging.disable_progress_bar()
  # PyTorch multiplies experts only in rows of 16 bytes.
  model = dataclasses.replace(
    MODELS[model_type], param_dtype="float32", hidden_size=28, expert_size=12
  )
  params = jax.tree.map(lambda a: 0.3 * a, hf_folders.random_params(model))
  params["value_head"] = np.linspace(-1, 1, model.hidden_size, dtype=np.float32)
  tokens = torch.tensor([[3, 97, 41, 5, 89, 2, 61, 17, 11]])

  def logits(folder, cls=transformers.AutoModelForCausalLM):
    loaded, info = cls.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    # Copied out of the mapped file: kernels sum in an order that depends on the weights' address.
    loaded = copy.deepcopy(loaded).eval()
    with torch.no_grad():
      return loaded(tokens).logits, info["unexpected_keys"], loaded.state_dict()

  # A folder that transformers itself wrote, from the same numbers.
  config = hf_config(model)
  hf_folders.write_folder(
    tmp_path / "source", hf_folders.hf_tensors(params, model, prefix="model.", fused=True), config
  )
  first, info = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / "source", dtype=torch.float32, output_loading_info=True
  )
  assert not info["missing_keys"]
  first.save_pretrained(tmp_path / "saved")
  expected, _, weights = logits(tmp_path / "source")
  convert.from_hf(tmp_path / "saved", tmp_path / "policy", report=str)
  convert.to_hf(tmp_path / "policy", tmp_path / "back", report=str)
  found, unexpected, again = logits(tmp_path / "back")
  assert again.keys() == weights.keys() and not unexpected
  assert all(torch.equal(again[name], weights[name]) for name in weights)
  assert torch.equal(found, expected)
  # A preference model: transformers scores with it where it has a class for that.
  convert.from_hf(tmp_path / "source", tmp_path / "preference", report=str)
  convert.to_hf(tmp_path / "preference", tmp_path / "scores", report=str)
  if model_type == "qwen3_moe":
    cls = transformers.Qwen3MoeForSequenceClassification
    found, unexpected, _ = logits(tmp_path / "scores", cls)
    with torch.no_grad():
      hidden = first.eval().model(tokens).last_hidden_state
    wanted = hidden[:, -1] @ torch.tensor(params["value_head"])
    assert torch.allclose(found[:, 0], wanted, rtol=1e-6, atol=1e-6)
    assert set(unexpected) == {"lm_head.weight"}
  else:
    found, unexpected, _ = logits(tmp_path / "scores")
    assert torch.equal(found, expected) and set(unexpected) == {"score.weight"}
