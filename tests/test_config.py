"""Presets and the errors of impossible sizes."""

import pytest

from searchjax.model.config import PRESETS, model_config


@pytest.mark.parametrize("name, attention, delta", [
  ("qwen3.5-397b-a17b", 15, 45),
  ("qwen3.5-122b-a10b", 12, 36),
  ("qwen3.5-35b-a3b", 10, 30),
  ("qwen3-30b-a3b", 48, 0),
  ("tiny", 1, 3),
])
def test_layer_pattern_of_the_presets(name, attention, delta):
  config = model_config(name)
  assert config.num_groups == attention
  assert config.num_groups * config.deltas_per_group == delta
  assert config.num_layers == attention + delta


@pytest.mark.parametrize("name", [n for n in PRESETS if n != "tiny"])
def test_conversation_memory_of_the_presets(name):
  """Bytes of keys and values a token in bfloat16, and of DeltaNet state a layer, as published."""
  c = model_config(name)
  cache = 2 * 2 * c.num_groups * c.num_kv_heads * c.head_size
  state = 4 * c.delta_value_heads * c.delta_key_size * c.delta_value_size
  assert (cache, state) == {
    "qwen3.5-397b-a17b": (30_720, 4_194_304), "qwen3.5-122b-a10b": (24_576, 4_194_304),
    "qwen3.5-35b-a3b": (20_480, 2_097_152), "qwen3-30b-a3b": (98_304, 0),
  }[name]  # fmt: skip


def test_bad_sizes_say_what_to_mend():
  with pytest.raises(ValueError, match='did you mean "qwen3.5-35b-a3b"'):
    model_config("qwen3.5-35b")
  with pytest.raises(ValueError, match='field "hiden_size"; did you mean "hidden_size"'):
    model_config("tiny", hiden_size=3)
  with pytest.raises(ValueError, match="multiple of full_attention_interval"):
    model_config("tiny", num_layers=5)
  with pytest.raises(ValueError, match="raise model.vocab_size"):
    model_config("tiny", real_vocab_size=9999)
  with pytest.raises(ValueError, match="multiple of num_kv_heads, got 3 and 2"):
    model_config("tiny", num_query_heads=3)
  with pytest.raises(ValueError, match="multiple of delta_key_heads, got 4 and 3"):
    model_config("tiny", delta_value_heads=4)
  with pytest.raises(ValueError, match="at most num_experts, got 9 of 8"):
    model_config("tiny", experts_per_token=9)
  with pytest.raises(ValueError, match='implementation must be one of reference, .*"flash"'):
    model_config("tiny", attention_implementation="flash")
