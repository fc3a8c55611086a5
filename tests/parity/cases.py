"""Two tiny random models of the published architectures, without PyTorch.

Weights carry Hugging Face names and shapes and are drawn from a NumPy seed; norms, A_log and
dt_bias are random too, because their defaults hide mistakes. `policy_tree` places them in
searchjax's parameter tree; it is written from the shapes, not from searchjax/model/convert.py.
"""

import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent
LENGTH = 523  # rope_theta shows itself only after some hundred tokens

_COMMON = dict(
  attention_bias=False, attention_dropout=0.0, hidden_act="silu", num_key_value_heads=2,
  num_experts_per_tok=3, rms_norm_eps=1e-6, tie_word_embeddings=False, vocab_size=97,
  max_position_embeddings=1024, dtype="float32", moe_intermediate_size=17, num_experts=7,
  num_attention_heads=6,
)  # fmt: skip

CASES = {
  "qwen3_5_moe": dict(
    _COMMON, model_type="qwen3_5_moe_text", hidden_size=59, num_hidden_layers=4, head_dim=24,
    full_attention_interval=4, linear_conv_kernel_dim=4, linear_num_key_heads=2,
    linear_num_value_heads=6, linear_key_head_dim=11, linear_value_head_dim=13,
    shared_expert_intermediate_size=19,
    rope_parameters=dict(
      rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[1, 1, 1],
      mrope_interleaved=True,
    ),
  ),
  "qwen3_moe": dict(
    _COMMON, model_type="qwen3_moe", hidden_size=47, num_hidden_layers=2, head_dim=10,
    norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False,
    intermediate_size=23, rope_parameters=dict(rope_type="default", rope_theta=1e7),
  ),
}  # fmt: skip

# Chosen so that float32 errors stay below 1e-4 in transformers itself and no token's last chosen
# and first spurned expert are closer than 1e-4 in logits, where noise would decide between them.
# make_fixtures.py prints both.
SEEDS = {"qwen3_5_moe": 6, "qwen3_moe": 0}


def tokens(case: str) -> np.ndarray:
  """int32 [1 T]."""
  return np.random.default_rng(SEEDS[case] + 1000).integers(0, 97, (1, LENGTH)).astype(np.int32)


def shapes(hf: dict) -> dict[str, tuple[int, ...]]:
  """Hugging Face names and shapes, [out, in] as PyTorch has them."""
  D, N, K, H = (
    hf[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
  )
  E, F, V = hf["num_experts"], hf["moe_intermediate_size"], hf["vocab_size"]
  qwen35 = hf["model_type"] != "qwen3_moe"
  out = {"model.embed_tokens.weight": (V, D), "lm_head.weight": (V, D), "model.norm.weight": (D,)}
  for i in range(hf["num_hidden_layers"]):
    own = {"input_layernorm.weight": (D,), "post_attention_layernorm.weight": (D,)}
    if not qwen35 or (i + 1) % hf["full_attention_interval"] == 0:
      own |= {
        "self_attn.q_proj.weight": (N * H * (2 if qwen35 else 1), D),
        "self_attn.k_proj.weight": (K * H, D), "self_attn.v_proj.weight": (K * H, D),
        "self_attn.o_proj.weight": (D, N * H),
        "self_attn.q_norm.weight": (H,), "self_attn.k_norm.weight": (H,),
      }  # fmt: skip
    else:
      A, M, P, R = (
        hf["linear_" + k]
        for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
      )
      channels = 2 * A * P + M * R
      own |= {
        "linear_attn.in_proj_qkv.weight": (channels, D),
        "linear_attn.in_proj_z.weight": (M * R, D),
        "linear_attn.in_proj_b.weight": (M, D), "linear_attn.in_proj_a.weight": (M, D),
        "linear_attn.conv1d.weight": (channels, 1, hf["linear_conv_kernel_dim"]),
        "linear_attn.A_log": (M,), "linear_attn.dt_bias": (M,), "linear_attn.norm.weight": (R,),
        "linear_attn.out_proj.weight": (D, M * R),
      }  # fmt: skip
    own |= {
      "mlp.gate.weight": (E, D), "mlp.experts.gate_up_proj": (E, 2 * F, D),
      "mlp.experts.down_proj": (E, D, F),
    }  # fmt: skip
    if qwen35:
      S = hf["shared_expert_intermediate_size"]
      own |= {
        "mlp.shared_expert.gate_proj.weight": (S, D), "mlp.shared_expert.up_proj.weight": (S, D),
        "mlp.shared_expert.down_proj.weight": (D, S), "mlp.shared_expert_gate.weight": (1, D),
      }  # fmt: skip
    out |= {f"model.layers.{i}.{name}": shape for name, shape in own.items()}
  return out


def weights(case: str) -> dict[str, np.ndarray]:
  """float32 weights by Hugging Face name."""
  hf, rng = CASES[case], np.random.default_rng(SEEDS[case])
  zero_centred = hf["model_type"] != "qwen3_moe"
  out = {}
  for name, shape in shapes(hf).items():
    noise = rng.normal(size=shape)
    if name.endswith("linear_attn.norm.weight"):
      value = 1 + 0.3 * noise
    elif name.endswith("norm.weight"):
      value = 0.3 * noise + (0 if zero_centred else 1)
    elif name.endswith("A_log"):
      value = np.log(rng.uniform(0.02, 4.0, shape))
    elif name.endswith(("dt_bias", "embed_tokens.weight")):
      value = noise
    elif name.endswith("mlp.gate.weight"):
      value = 2 * noise * shape[-1] ** -0.5
    else:
      value = noise * shape[-1] ** -0.5
    out[name] = value.astype(np.float32)
  return out


def policy_tree(hf: dict, w: dict[str, np.ndarray]) -> dict:
  """searchjax's tree of the same weights; being a re-arrangement, it maps gradients as well."""
  D, N, K, H = (
    hf[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
  )
  qwen35 = hf["model_type"] != "qwen3_moe"
  interval = hf["full_attention_interval"] if qwen35 else 1
  attention, delta, moe = [], [], []
  for i in range(hf["num_hidden_layers"]):
    at = lambda name, i=i: np.asarray(w[f"model.layers.{i}.{name}"])
    rows = lambda name, heads: at(name).reshape(heads, -1, D).transpose(2, 0, 1)  # [D heads size]
    norm = at("input_layernorm.weight")
    if (i + 1) % interval == 0:
      a = "self_attn."
      attention.append({
        "norm": norm,
        "query": rows(a + "q_proj.weight", N), "key": rows(a + "k_proj.weight", K),
        "value": rows(a + "v_proj.weight", K),
        "query_norm": at(a + "q_norm.weight"), "key_norm": at(a + "k_norm.weight"),
        "out": at(a + "o_proj.weight").reshape(D, N, H).transpose(1, 2, 0),
      })  # fmt: skip
    else:
      a = "linear_attn."
      A, M, P, R = (
        hf["linear_" + k]
        for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
      )
      cuts = [A * P, 2 * A * P]
      qkv = np.split(at(a + "in_proj_qkv.weight"), cuts)
      conv = np.split(at(a + "conv1d.weight")[:, 0], cuts)
      heads = dict(query=A, key=A, value=M)
      delta.append({
        "norm": norm,
        **{
          n: m.reshape(heads[n], -1, D).transpose(2, 0, 1)
          for n, m in zip(heads, qkv, strict=True)
        },
        **{
          "conv_" + n: m.reshape(heads[n], -1, m.shape[-1]).transpose(2, 0, 1)
          for n, m in zip(heads, conv, strict=True)
        },
        "gate": rows(a + "in_proj_z.weight", M),
        "write": at(a + "in_proj_b.weight").T, "decay": at(a + "in_proj_a.weight").T,
        "A_log": at(a + "A_log"), "dt_bias": at(a + "dt_bias"), "out_norm": at(a + "norm.weight"),
        "out": at(a + "out_proj.weight").reshape(D, M, R).transpose(1, 2, 0),
      })  # fmt: skip
    expert = {
      "norm": at("post_attention_layernorm.weight"), "router": at("mlp.gate.weight").T,
      "gate_up": at("mlp.experts.gate_up_proj").transpose(0, 2, 1),
      "down": at("mlp.experts.down_proj").transpose(0, 2, 1),
    }  # fmt: skip
    if qwen35:
      s = "mlp.shared_expert."
      expert |= {
        "shared_gate_up": np.concatenate([at(s + "gate_proj.weight"), at(s + "up_proj.weight")]).T,
        "shared_down": at(s + "down_proj.weight").T,
        "shared_gate": at("mlp.shared_expert_gate.weight")[0],
      }
    moe.append(expert)
  groups = hf["num_hidden_layers"] // interval

  def stacked(layers, *lead):
    stack = lambda n: np.stack([x[n] for x in layers]).reshape(*lead, *layers[0][n].shape)
    return {n: stack(n) for n in layers[0]}

  tree = {
    "embed": np.asarray(w["model.embed_tokens.weight"]),
    "head": np.asarray(w["lm_head.weight"]).T,
    "final_norm": np.asarray(w["model.norm.weight"]),
    "attention": stacked(attention, groups),
    "moe": stacked(moe, groups, interval),
  }
  if delta:
    tree["delta"] = stacked(delta, groups, interval - 1)
  return tree
