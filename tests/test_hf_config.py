"""Hugging Face config.json to ModelConfig and back."""

import dataclasses

import pytest

from searchjax.model.config import PRESETS, model_config
from searchjax.model.hf_config import config_from_hf, hf_config

# Keys of the published Qwen3.5-397B-A17B and Qwen3-30B-A3B-Instruct-2507 files that matter here.
TEXT_397B = dict(
  model_type="qwen3_5_moe_text", attention_bias=False, attention_dropout=0.0, attn_output_gate=True,
  dtype="bfloat16", full_attention_interval=4, head_dim=256, hidden_act="silu", hidden_size=4096,
  layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 15, linear_conv_kernel_dim=4,
  linear_key_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=64,
  linear_value_head_dim=128, mamba_ssm_dtype="float32", max_position_embeddings=262144,
  moe_intermediate_size=1024, mtp_num_hidden_layers=1, num_attention_heads=32, num_experts=512,
  num_experts_per_tok=10, num_hidden_layers=60, num_key_value_heads=2, rms_norm_eps=1e-6,
  router_aux_loss_coef=0.001, shared_expert_intermediate_size=1024, vocab_size=248320,
  eos_token_id=248044, tie_word_embeddings=False,
  rope_parameters=dict(
    mrope_interleaved=True, mrope_section=[11, 11, 10], rope_type="default", rope_theta=10000000,
    partial_rotary_factor=0.25,
  ),
)  # fmt: skip
HF_397B = dict(
  architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe",
  text_config=TEXT_397B, tie_word_embeddings=False, vision_config=dict(depth=27),
)  # fmt: skip
HF_30B = dict(
  architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", attention_bias=False,
  attention_dropout=0.0, decoder_sparse_step=1, eos_token_id=151645, head_dim=128,
  hidden_act="silu", hidden_size=2048, intermediate_size=6144, max_position_embeddings=262144,
  mlp_only_layers=[], moe_intermediate_size=768, norm_topk_prob=True, num_attention_heads=32,
  num_experts=128, num_experts_per_tok=8, num_hidden_layers=48, num_key_value_heads=4,
  rms_norm_eps=1e-6, rope_scaling=None, rope_theta=10000000, sliding_window=None,
  tie_word_embeddings=False, torch_dtype="bfloat16", use_sliding_window=False, vocab_size=151936,
)  # fmt: skip


def test_published_files_give_the_presets():
  got = config_from_hf(HF_397B, name="qwen3.5-397b-a17b", real_vocab_size=248077)
  assert got == model_config("qwen3.5-397b-a17b")
  got = config_from_hf(HF_30B, name="qwen3-30b-a3b", real_vocab_size=151669)
  assert got == model_config("qwen3-30b-a3b")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_survives_the_way_to_hf_and_back(preset):
  config = model_config(preset)
  kept = ("name", "real_vocab_size", "moe_dispatch", "chunk_length", "scan_layers")
  back = config_from_hf(hf_config(config), **{k: getattr(config, k) for k in kept})
  assert back == config


def test_the_published_section_is_written():
  rope = hf_config(model_config("qwen3.5-35b-a3b"))["rope_parameters"]
  assert rope["mrope_section"] == [11, 11, 10] and rope["partial_rotary_factor"] == 0.25


def test_flat_rotary_settings_and_missing_layer_types_mean_the_same():
  flat = {k: v for k, v in TEXT_397B.items() if k not in ("rope_parameters", "layer_types")}
  flat |= dict(rope_theta=10000000, partial_rotary_factor=0.25)
  assert config_from_hf(flat) == config_from_hf(TEXT_397B)
  del flat["partial_rotary_factor"], flat["full_attention_interval"]
  assert config_from_hf(flat) == config_from_hf(TEXT_397B)


def test_sizes_are_read_not_assumed():
  hf = dict(TEXT_397B, num_hidden_layers=6, layer_types=["linear_attention", "full_attention"] * 3)
  hf |= dict(full_attention_interval=2, vocab_size=101, linear_num_key_heads=8, dtype="float32")
  config = config_from_hf(hf)
  assert dataclasses.asdict(config).items() >= dict(
    num_layers=6, full_attention_interval=2, vocab_size=101, real_vocab_size=101, delta_key_heads=8,
    param_dtype="float32", name="qwen3_5_moe_text",
  ).items()
  assert config_from_hf(hf, param_dtype="bfloat16", chunk_length=16).chunk_length == 16


@pytest.mark.parametrize("change, message", [
  (dict(model_type="llama"), "model_type must be one of qwen3_5_moe, .*, got 'llama'"),
  (dict(hidden_act="gelu"), "hidden_act must be 'silu', got 'gelu'"),
  (dict(attention_bias=True), "attention_bias must be False, got True"),
  (dict(attn_output_gate=False), "attn_output_gate must be True"),
  (dict(norm_topk_prob=False), "norm_topk_prob must be True, got False"),
  (dict(mamba_ssm_dtype="bfloat16"), "mamba_ssm_dtype must be 'float32'"),
  (dict(layer_types=["full_attention", "linear_attention"] * 30), "layer 1 is 'linear_attention'"),
  (dict(layer_types=["full_attention"]), "must name num_hidden_layers = 60 layers, got 1"),
  (dict(layer_types=["linear_attention"] * 60), "must contain full_attention"),
  (dict(full_attention_interval=3), "every 4 layers, but full_attention_interval is 3"),
  (dict(hidden_size=None), "hidden_size must be a positive integer, got None"),
  (dict(num_experts=0), "num_experts must be a positive integer, got 0"),
  (dict(rope_parameters=dict(rope_type="yarn", rope_theta=1e7)), 'must be "default", got "yarn"'),
  (dict(rope_parameters=dict(rope_type="default")), "rope_theta must be a number .*, got None"),
  (dict(rope_parameters=dict(rope_theta=1e7, mrope_section=[11, 11, 11])),
   "must sum to half of the 64 rotated dimensions, got 33"),
  (dict(rope_parameters=dict(rope_theta=1e7, partial_rotary_factor=0.02)), "even number"),
  (dict(dtype="float16"), "dtype must be one of bfloat16, float32, got 'float16'"),
  (dict(num_hidden_layers=58, layer_types=None), "multiple of full_attention_interval"),
])  # fmt: skip
def test_what_is_not_computed_is_an_error(change, message):
  with pytest.raises(ValueError, match=message):
    config_from_hf({**TEXT_397B, **change})


@pytest.mark.parametrize("change, message", [
  (dict(norm_topk_prob=False), "norm_topk_prob must be True, got False"),
  (dict(decoder_sparse_step=2), "decoder_sparse_step must be 1"),
  (dict(mlp_only_layers=[0]), "mlp_only_layers must be empty"),
  (dict(use_sliding_window=True), "use_sliding_window must be False"),
  (dict(rope_scaling=dict(type="yarn", factor=4.0)), 'must be "default", got "yarn"'),
])
def test_what_qwen3_does_not_compute_is_an_error(change, message):
  with pytest.raises(ValueError, match=message):
    config_from_hf({**HF_30B, **change})
  with pytest.raises(ValueError, match="default when the key is missing"):
    config_from_hf({k: v for k, v in HF_30B.items() if k != "norm_topk_prob"})


def test_disagreeing_levels_are_an_error():
  with pytest.raises(ValueError, match="tie_word_embeddings differs"):
    config_from_hf({**HF_397B, "tie_word_embeddings": True})
  with pytest.raises(ValueError, match="needs a text_config object"):
    config_from_hf(dict(model_type="qwen3_5_moe"))


def test_mixtures_without_a_class_are_not_written():
  with pytest.raises(ValueError, match="transformers has no class"):
    hf_config(model_config("tiny", attention_gate=False))
  with pytest.raises(ValueError, match="expected rotary_dims 128, got 64"):
    hf_config(model_config("qwen3-30b-a3b", rotary_dims=64))
