"""ModelConfig from a Hugging Face config.json and back.  PURE.

Three `model_type`s are read: "qwen3_5_moe" (vision and text; only its `text_config` counts),
"qwen3_5_moe_text" and "qwen3_moe". A value that the decoder does not compute is an error, never
ignored. Rotary settings may lie in `rope_parameters`, in `rope_scaling` or at the top level;
`layer_types` may be absent.

Source   transformers configuration_qwen3_5_moe, configuration_qwen3_moe.
"""

import math
from typing import Any

from searchjax.model.config import ModelConfig

QWEN35 = ("qwen3_5_moe", "qwen3_5_moe_text")
MODEL_TYPES = (*QWEN35, "qwen3_moe")
PARAM_DTYPES = ("bfloat16", "float32")


def config_from_hf(
  hf: dict[str, Any], *, name: str = "", real_vocab_size: int | None = None, **overrides: Any
) -> ModelConfig:
  """Reads the dict of a config.json.

  Args:
    hf: the parsed file.
    name: what the model is called in logs; "" takes `_name_or_path` or the model type.
    real_vocab_size: ids the tokenizer can produce; None trusts `vocab_size`, so that padding rows
      can be sampled.
    **overrides: fields of ModelConfig that say how to compute, such as `param_dtype`, whose
      default is the file's own dtype.

  Raises:
    ValueError: another architecture, a missing size, or a value the decoder does not compute; the
      message names the key.
  """
  kind = hf.get("model_type")
  if kind not in MODEL_TYPES:
    raise ValueError(f"model_type must be one of {', '.join(MODEL_TYPES)}, got {kind!r}")
  text = _text_config(hf)
  _check_fixed(text, kind)

  def size(key: str) -> int:
    value = text.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
      raise ValueError(f"config.json: {key} must be a positive integer, got {value!r}")
    return value

  layers, heads, hidden = (
    size("num_hidden_layers"), size("num_attention_heads"), size("hidden_size")
  )  # fmt: skip
  head_size = size("head_dim") if text.get("head_dim") is not None else hidden // heads
  theta, rotary_dims = _rotary(text, kind, head_size)
  vocab = size("vocab_size")
  fields = dict(
    name=name or text.get("_name_or_path") or hf.get("_name_or_path") or kind,
    hidden_size=hidden,
    num_layers=layers,
    full_attention_interval=_interval(text, layers) if kind in QWEN35 else 1,
    num_query_heads=heads,
    num_kv_heads=size("num_key_value_heads"),
    head_size=head_size,
    rotary_dims=rotary_dims,
    rope_theta=theta,
    # transformers saves qwen3_moe under the second name.
    num_experts=size("num_experts" if "num_experts" in text else "num_local_experts"),
    experts_per_token=size("num_experts_per_tok"),
    expert_size=size("moe_intermediate_size"),
    shared_expert_size=0,
    vocab_size=vocab,
    real_vocab_size=vocab if real_vocab_size is None else real_vocab_size,
    norm_eps=float(text.get("rms_norm_eps", 1e-6)),
    zero_centred_norm=kind in QWEN35,
    attention_gate=kind in QWEN35,
    tie_embeddings=_tied(hf, text),
  )
  if kind in QWEN35:
    fields |= dict(
      shared_expert_size=size("shared_expert_intermediate_size"),
      delta_key_heads=size("linear_num_key_heads"),
      delta_value_heads=size("linear_num_value_heads"),
      delta_key_size=size("linear_key_head_dim"),
      delta_value_size=size("linear_value_head_dim"),
      conv_kernel=text.get("linear_conv_kernel_dim", 4),
    )
  if "param_dtype" not in overrides:
    fields["param_dtype"] = _dtype(hf, text)
  return ModelConfig(**{**fields, **overrides})


def hf_config(config: ModelConfig) -> dict[str, Any]:
  """The config.json that transformers needs for this decoder; the inverse of `config_from_hf`.

  Token ids (`eos_token_id`, …) belong to the tokenizer and are left to the caller.

  Raises:
    ValueError: a mixture of Qwen3.5's and Qwen3's parts that transformers has no class for.
  """
  c = config
  qwen35 = (c.zero_centred_norm, c.attention_gate, bool(c.shared_expert_size))
  if len(set(qwen35)) > 1 or (not all(qwen35) and c.deltas_per_group):
    raise ValueError(
      "expected all of Qwen3.5's parts (zero_centred_norm, attention_gate, shared_expert_size) or "
      "none of them with full_attention_interval 1, got "
      f"{c.zero_centred_norm}, {c.attention_gate}, {c.shared_expert_size} with interval "
      f"{c.full_attention_interval}; transformers has no class for this mixture"
    )
  out = dict(
    vocab_size=c.vocab_size,
    hidden_size=c.hidden_size,
    num_hidden_layers=c.num_layers,
    num_attention_heads=c.num_query_heads,
    num_key_value_heads=c.num_kv_heads,
    head_dim=c.head_size,
    num_experts=c.num_experts,
    num_experts_per_tok=c.experts_per_token,
    moe_intermediate_size=c.expert_size,
    rms_norm_eps=c.norm_eps,
    hidden_act="silu",
    attention_bias=False,
    attention_dropout=0.0,
    tie_word_embeddings=c.tie_embeddings,
    max_position_embeddings=262144,
    router_aux_loss_coef=0.001,
    output_router_logits=False,
    dtype=c.param_dtype,
  )
  rope = dict(rope_type="default", rope_theta=c.rope_theta)
  if all(qwen35):
    half = c.rotary_dims // 2
    first = math.ceil(half / 3)
    second = math.ceil((half - first) / 2)
    rope |= dict(
      partial_rotary_factor=c.rotary_dims / c.head_size,
      mrope_section=[first, second, half - first - second],
      mrope_interleaved=True,
    )
    interval = c.full_attention_interval
    out |= dict(
      architectures=["Qwen3_5MoeForCausalLM"],
      model_type="qwen3_5_moe_text",
      shared_expert_intermediate_size=c.shared_expert_size,
      full_attention_interval=interval,
      layer_types=[_layer_type(i, interval) for i in range(c.num_layers)],
      linear_conv_kernel_dim=c.conv_kernel,
      attn_output_gate=True,
      mamba_ssm_dtype="float32",
    )
    if c.deltas_per_group:
      out |= dict(
        linear_num_key_heads=c.delta_key_heads,
        linear_num_value_heads=c.delta_value_heads,
        linear_key_head_dim=c.delta_key_size,
        linear_value_head_dim=c.delta_value_size,
      )
  else:
    if c.rotary_dims != c.head_size:
      raise ValueError(
        f"a qwen3_moe config rotates whole heads: expected rotary_dims {c.head_size}, got "
        f"{c.rotary_dims}"
      )
    out |= dict(
      architectures=["Qwen3MoeForCausalLM"],
      model_type="qwen3_moe",
      norm_topk_prob=True,
      decoder_sparse_step=1,
      mlp_only_layers=[],
      use_sliding_window=False,
      # Of the dense layers, of which there are none.
      intermediate_size=c.expert_size * c.experts_per_token,
    )
  return {**out, "rope_parameters": rope}


def _layer_type(i, interval):
  return "linear_attention" if (i + 1) % interval else "full_attention"


def _text_config(hf):
  if hf["model_type"] != "qwen3_5_moe":
    return hf
  text = hf.get("text_config")
  if not isinstance(text, dict):
    raise ValueError("config.json: model_type qwen3_5_moe needs a text_config object, got none")
  return text


def _check_fixed(text, kind):
  """Values with one implementation: present and different is an error."""
  # A missing key has the value transformers gives it.
  fixed = [
    ("hidden_act", "silu", "silu"),
    ("attention_bias", False, False),
    ("attention_dropout", 0.0, 0.0),
  ]
  if kind in QWEN35:
    fixed += [
      ("attn_output_gate", True, True),
      ("norm_topk_prob", True, True),
      ("mamba_ssm_dtype", "float32", "float32"),
    ]
  else:
    fixed += [
      ("norm_topk_prob", True, False),
      ("decoder_sparse_step", 1, 1),
      ("use_sliding_window", False, False),
    ]
  for key, expected, absent in fixed:
    got = text.get(key, absent)
    if got is None and absent == expected:
      continue
    if got != expected:
      raise ValueError(
        f"config.json: {key} must be {expected!r}, got {got!r}"
        + ("" if key in text else " (the default when the key is missing)")
        + "; this decoder has no other"
      )
  if text.get("mlp_only_layers"):
    raise ValueError(
      f"config.json: mlp_only_layers must be empty, got {text['mlp_only_layers']}; every layer of "
      "this decoder is a mixture of experts"
    )


def _interval(text, layers):
  """Distance between attention layers, from `layer_types` where the file has them."""
  interval = text.get("full_attention_interval")
  types = text.get("layer_types")
  if types is None:
    return 4 if interval is None else interval
  if len(types) != layers:
    raise ValueError(
      f"config.json: layer_types must name num_hidden_layers = {layers} layers, got {len(types)}"
    )
  if "full_attention" not in types:
    raise ValueError("config.json: layer_types must contain full_attention, got none")
  found = types.index("full_attention") + 1
  for i, got in enumerate(types):
    if got != _layer_type(i, found):
      raise ValueError(
        f"config.json: layer_types must repeat {found - 1} linear_attention and one "
        f"full_attention; layer {i} is {got!r}"
      )
  if interval is not None and interval != found:
    raise ValueError(
      f"config.json: layer_types repeat every {found} layers, but full_attention_interval is "
      f"{interval}; delete the wrong one"
    )
  return found


def _rotary(text, kind, head_size):
  """Base and number of rotated dimensions."""
  nested = text.get("rope_parameters") or text.get("rope_scaling") or {}
  kind_of_rope = nested.get("rope_type", nested.get("type", "default"))
  if kind_of_rope not in ("default", "mrope"):
    raise ValueError(
      f'config.json: rope_type must be "default", got "{kind_of_rope}"; positions are not rescaled'
    )
  get = lambda key, absent: nested.get(key, text.get(key, absent))
  theta = get("rope_theta", None)
  if not isinstance(theta, int | float) or theta <= 1:
    raise ValueError(f"config.json: rope_theta must be a number above 1, got {theta!r}")
  factor = get("partial_rotary_factor", 0.25 if kind in QWEN35 else 1.0)
  rotary_dims = int(head_size * factor)
  if rotary_dims < 2 or rotary_dims % 2 or rotary_dims > head_size:
    raise ValueError(
      f"config.json: partial_rotary_factor {factor} of head_dim {head_size} must be an even number "
      f"of dimensions from 2 to {head_size}, got {rotary_dims}"
    )
  section = get("mrope_section", None)
  if section is not None and 2 * sum(section) != rotary_dims:
    raise ValueError(
      f"config.json: mrope_section {list(section)} must sum to half of the {rotary_dims} rotated "
      f"dimensions, got {sum(section)}"
    )
  return float(theta), rotary_dims


def _tied(hf, text):
  found = {d["tie_word_embeddings"] for d in (hf, text) if "tie_word_embeddings" in d}
  if len(found) > 1:
    raise ValueError(
      "config.json: tie_word_embeddings differs between the top level and text_config; "
      "make them equal"
    )
  return bool(found and found.pop())


def _dtype(hf, text):
  found = next(
    (d[key] for d in (text, hf) for key in ("dtype", "torch_dtype") if d.get(key) is not None),
    "bfloat16",
  )
  if found not in PARAM_DTYPES:
    raise ValueError(
      f"config.json: dtype must be one of {', '.join(PARAM_DTYPES)}, got {found!r}; "
      "say param_dtype to convert"
    )
  return found
