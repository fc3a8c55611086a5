"""Tiny Hugging Face folders of every kind, written from our parameters by plain loops."""

import json
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from searchjax.model.config import ModelConfig
from searchjax.model.params import ParamSpec, param_specs

QWEN35 = ModelConfig(
  name="tiny qwen3.5", hidden_size=29, num_layers=6, full_attention_interval=3, num_query_heads=6,
  num_kv_heads=2, head_size=14, rotary_dims=6, rope_theta=1e4, num_experts=5, experts_per_token=2,
  expert_size=13, shared_expert_size=11, vocab_size=101, real_vocab_size=101, delta_key_heads=3,
  delta_value_heads=6, delta_key_size=7, delta_value_size=17, param_dtype="bfloat16",
)  # fmt: skip
QWEN3 = ModelConfig(
  name="tiny qwen3", hidden_size=29, num_layers=3, full_attention_interval=1, num_query_heads=6,
  num_kv_heads=2, head_size=14, rotary_dims=14, rope_theta=1e4, num_experts=5, experts_per_token=2,
  expert_size=13, shared_expert_size=0, vocab_size=101, real_vocab_size=101,
  zero_centred_norm=False, attention_gate=False, param_dtype="bfloat16",
)  # fmt: skip
# Neither divides a size above: the blocks at the edges are smaller.
BLOCK = (5, 11)

QUANTISED = ("q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj",
             "gate_proj", "up_proj", "down_proj")


def random_params(config: ModelConfig, seed: int = 0) -> dict:
  """Random NumPy parameters, norms included; the float32 ones fit no bfloat16."""
  rng = np.random.default_rng(seed)

  def draw(spec):
    return rng.standard_normal(spec.shape).astype(np.dtype(spec.dtype))

  def build(tree):
    return draw(tree) if isinstance(tree, ParamSpec) else {k: build(v) for k, v in tree.items()}

  return build(param_specs(config))


def hf_tensors(
  params: dict, config: ModelConfig, *, prefix: str, fused: bool
) -> dict[str, np.ndarray]:
  """The tensors that hold these parameters: an independent account of the published layout."""
  out = {f"{prefix}embed_tokens.weight": params["embed"],
         f"{prefix}norm.weight": params["final_norm"]}  # fmt: skip
  if "head" in params:
    out["lm_head.weight"] = params["head"].T
  if "value_head" in params:
    out["score.weight"] = params["value_head"][None]
  flat = lambda a: a.reshape(a.shape[0], -1).T  # [D, heads, size] to [outputs, D]
  for layer in range(config.num_layers):
    group, inner = divmod(layer, config.full_attention_interval)
    here = f"{prefix}layers.{layer}."
    if inner == config.full_attention_interval - 1:
      a = {name: value[group] for name, value in params["attention"].items()}
      out |= {
        f"{here}input_layernorm.weight": a["norm"],
        f"{here}self_attn.q_proj.weight": flat(a["query"]),
        f"{here}self_attn.k_proj.weight": flat(a["key"]),
        f"{here}self_attn.v_proj.weight": flat(a["value"]),
        f"{here}self_attn.o_proj.weight": a["out"].reshape(-1, config.hidden_size).T,
        f"{here}self_attn.q_norm.weight": a["query_norm"],
        f"{here}self_attn.k_norm.weight": a["key_norm"],
      }
    else:
      d = {name: value[group, inner] for name, value in params["delta"].items()}
      taps = lambda part: d[f"conv_{part}"].reshape(config.conv_kernel, -1)
      conv = [taps("query"), taps("key"), taps("value")]
      out |= {
        f"{here}input_layernorm.weight": d["norm"],
        f"{here}linear_attn.in_proj_qkv.weight": np.concatenate(
          [flat(d["query"]), flat(d["key"]), flat(d["value"])]
        ),
        f"{here}linear_attn.in_proj_z.weight": flat(d["gate"]),
        f"{here}linear_attn.in_proj_b.weight": d["write"].T,
        f"{here}linear_attn.in_proj_a.weight": d["decay"].T,
        f"{here}linear_attn.conv1d.weight": np.concatenate(conv, axis=1).T[:, None, :],
        f"{here}linear_attn.A_log": d["A_log"],
        f"{here}linear_attn.dt_bias": d["dt_bias"],
        f"{here}linear_attn.norm.weight": d["out_norm"],
        f"{here}linear_attn.out_proj.weight": d["out"].reshape(-1, config.hidden_size).T,
      }
    m = {name: value[group, inner] for name, value in params["moe"].items()}
    F, S = config.expert_size, config.shared_expert_size
    out |= {
      f"{here}post_attention_layernorm.weight": m["norm"], f"{here}mlp.gate.weight": m["router"].T
    }
    if fused:
      out[f"{here}mlp.experts.gate_up_proj"] = m["gate_up"].swapaxes(1, 2)
      out[f"{here}mlp.experts.down_proj"] = m["down"].swapaxes(1, 2)
    for e in range(0 if fused else config.num_experts):
      out[f"{here}mlp.experts.{e}.gate_proj.weight"] = m["gate_up"][e, :, :F].T
      out[f"{here}mlp.experts.{e}.up_proj.weight"] = m["gate_up"][e, :, F:].T
      out[f"{here}mlp.experts.{e}.down_proj.weight"] = m["down"][e].T
    if S:
      out |= {
        f"{here}mlp.shared_expert.gate_proj.weight": m["shared_gate_up"][:, :S].T,
        f"{here}mlp.shared_expert.up_proj.weight": m["shared_gate_up"][:, S:].T,
        f"{here}mlp.shared_expert.down_proj.weight": m["shared_down"].T,
        f"{here}mlp.shared_expert_gate.weight": m["shared_gate"][None],
      }
  return {name: np.ascontiguousarray(value) for name, value in out.items()}


def quantise(
  tensors: dict[str, np.ndarray], scale_dtype: Any, block: tuple[int, int] = BLOCK
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """FP8 weights with block scales, as published, and the float32 numbers they stand for."""
  stored, exact = {}, {}
  for name, value in tensors.items():
    if value.ndim != 2 or name.split(".")[-2] not in QUANTISED:
      stored[name], exact[name] = value, value
      continue
    rows, columns = value.shape
    scale = np.empty((-(-rows // block[0]), -(-columns // block[1])), scale_dtype)
    small = np.empty(value.shape, ml_dtypes.float8_e4m3fn)
    whole = np.empty(value.shape, np.float32)
    for i in range(scale.shape[0]):
      for j in range(scale.shape[1]):
        at = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
        part = value[at].astype(np.float32)
        scale[i, j] = np.abs(part).max() / 448
        small[at] = (part / np.float32(scale[i, j])).astype(small.dtype)
        whole[at] = small[at].astype(np.float32) * np.float32(scale[i, j])
    stored[name], stored[name + "_scale_inv"], exact[name] = small, scale, whole
  return stored, exact


def write_folder(
  folder: pathlib.Path, tensors: dict[str, np.ndarray], config: dict, *, files: int = 1
) -> pathlib.Path:
  """Writes with the safetensors library: one file, or several with an index."""
  folder.mkdir(parents=True)
  (folder / "config.json").write_text(json.dumps(config))
  if files == 1:
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder
  weight_map = {}
  for number in range(files):
    file = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
    names = list(tensors)[number::files]
    safetensors.numpy.save_file({n: tensors[n] for n in names}, folder / file, {"format": "pt"})
    weight_map |= dict.fromkeys(names, file)
  (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
  return folder
