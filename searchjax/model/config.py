"""Sizes of a Qwen3.5-MoE or Qwen3-MoE decoder.  PURE.

Presets hold the published hyper-parameters; `tiny` is the same architecture, small enough to be
trained from scratch on a laptop.

Source   config.json of Qwen/Qwen3.5-{397B-A17B,122B-A10B,35B-A3B} and Qwen3-30B-A3B-Instruct-2507.
"""

import dataclasses
import difflib


CHOICES = {
  "moe_dispatch": ("dense", "tiles", "ragged", "gmm", "gmm_interpret", "capacity"),
  "moe_exchange": ("gather", "all_to_all"),
  "attention_implementation": ("reference", "splash", "splash_interpret"),
  "deltanet_implementation": ("reference", "pallas", "pallas_interpret"),
  "remat": ("none", "layer", "parts"),
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """One decoder's sizes. Layer i is gated attention when (i + 1) % full_attention_interval == 0.

  Attributes:
    vocab_size: rows of the embedding, padding rows included.
    real_vocab_size: ids the tokenizer can produce; the rows above are masked in sampler and loss.
    full_attention_interval: 4 is Qwen3.5's pattern [3 DeltaNet + 1 attention]; 2 alternates;
      1 is attention only (Qwen3).
    rotary_dims: leading head dimensions that are rotated; the rest pass through.
    shared_expert_size: 0 leaves the shared expert out (Qwen3).
    zero_centred_norm: True multiplies by (1 + w) (Qwen3.5), False by w (Qwen3).
    attention_gate: True doubles the query projection into [query | gate] per head (Qwen3.5).
    moe_dispatch: "dense" computes every expert for every token; "tiles", which "dense" is in
      rollouts, gives each expert small blocks of its own tokens, the fastest on CPUs; "ragged"
      sorts tokens by expert, "gmm" too, by a TPU kernel ("gmm_interpret": the same, interpreted,
      for any device); these leave nothing out on one device. "capacity" gives every expert a buffer
      of fixed size. What a buffer, or on a mesh a device's sorted rows, cannot hold is counted, and
      only in training: prefill and decode stay dropless.
    capacity_factor: size of those buffers over a perfectly even load.
    moe_exchange: how tokens reach experts on other devices: "gather" brings all tokens of an expert
      group to each of its devices, "all_to_all" sends a token where one of its experts is.
    exchange_factor: tokens one device may send another, over those of a random routing; those
      beyond are counted as overflow.
    router_aux_loss_coef: weight of the balance loss in training; 0 is off.
    attention_implementation: of training rows: "reference", "splash" (the TPU kernel) or
      "splash_interpret" (the same kernel, interpreted, for any device).
    remat: what the backward pass keeps: "none" everything, "layer" only what enters a layer,
      "parts" also what enters its expert layer; the rest is computed again, a layer or a part at a
      time.
    moe_chunk: tokens of a device that the expert layer computes at a time; 0 is all. Smaller
      buffers, and capacity is counted per chunk.
    logprob_chunk: tokens whose logits are held at a time.
    deltanet_implementation: of training rows and prefill: "reference", "pallas" (a TPU kernel) or
      "pallas_interpret" (the same kernel, interpreted, for any device).
    chunk_length: tokens per chunk of the DeltaNet chunk form.
    delta_block: tokens of a row whose chunks are computed at a time in training, each block again
      in the backward pass; 0 is all, in the kernel four chunks. A multiple of chunk_length.
  """

  name: str
  hidden_size: int
  num_layers: int
  full_attention_interval: int
  num_query_heads: int
  num_kv_heads: int
  head_size: int
  rotary_dims: int
  rope_theta: float
  num_experts: int
  experts_per_token: int
  expert_size: int
  shared_expert_size: int
  vocab_size: int
  real_vocab_size: int
  delta_key_heads: int = 0
  delta_value_heads: int = 0
  delta_key_size: int = 0
  delta_value_size: int = 0
  conv_kernel: int = 4
  norm_eps: float = 1e-6
  zero_centred_norm: bool = True
  attention_gate: bool = True
  tie_embeddings: bool = False
  moe_dispatch: str = "ragged"
  capacity_factor: float = 1.25
  moe_exchange: str = "gather"
  exchange_factor: float = 1.25
  router_aux_loss_coef: float = 0.0
  attention_implementation: str = "reference"
  deltanet_implementation: str = "reference"
  remat: str = "none"
  moe_chunk: int = 0
  logprob_chunk: int = 2048
  chunk_length: int = 64
  delta_block: int = 0
  scan_layers: bool = True
  param_dtype: str = "bfloat16"

  def __post_init__(self):
    if self.num_layers % self.full_attention_interval:
      raise ValueError(
        f"num_layers must be a multiple of full_attention_interval, got {self.num_layers} layers "
        f"with interval {self.full_attention_interval}"
      )
    if self.num_query_heads % self.num_kv_heads:
      raise ValueError(
        f"num_query_heads must be a multiple of num_kv_heads, got {self.num_query_heads} and "
        f"{self.num_kv_heads}"
      )
    if self.deltas_per_group and self.delta_value_heads % self.delta_key_heads:
      raise ValueError(
        f"delta_value_heads must be a multiple of delta_key_heads, got {self.delta_value_heads} "
        f"and {self.delta_key_heads}"
      )
    if self.experts_per_token > self.num_experts:
      raise ValueError(
        f"experts_per_token must be at most num_experts, got {self.experts_per_token} of "
        f"{self.num_experts}"
      )
    for field, choices in CHOICES.items():
      if getattr(self, field) not in choices:
        raise ValueError(
          f'{field} must be one of {", ".join(choices)}, got "{getattr(self, field)}"'
        )
    if self.delta_block % self.chunk_length:
      raise ValueError(
        f"delta_block must be a multiple of chunk_length, got {self.delta_block} and "
        f"{self.chunk_length}"
      )
    if min(self.capacity_factor, self.exchange_factor) <= 0 or self.router_aux_loss_coef < 0:
      raise ValueError(
        f"capacity_factor and exchange_factor must be above 0 and router_aux_loss_coef at least 0, "
        f"got {self.capacity_factor}, {self.exchange_factor} and {self.router_aux_loss_coef}"
      )
    if self.real_vocab_size > self.vocab_size:
      raise ValueError(
        f"the tokenizer has {self.real_vocab_size} ids but the embedding only {self.vocab_size} "
        f"rows; raise model.vocab_size"
      )

  @property
  def num_groups(self) -> int:
    return self.num_layers // self.full_attention_interval

  @property
  def deltas_per_group(self) -> int:
    return self.full_attention_interval - 1


_QWEN35 = dict(
  full_attention_interval=4,
  num_kv_heads=2,
  head_size=256,
  rotary_dims=64,
  rope_theta=1e7,
  vocab_size=248320,
  real_vocab_size=248077,
  delta_key_heads=16,
  delta_key_size=128,
  delta_value_size=128,
)

PRESETS = {
  "qwen3.5-397b-a17b": dict(
    _QWEN35, hidden_size=4096, num_layers=60, num_query_heads=32, delta_value_heads=64,
    num_experts=512, experts_per_token=10, expert_size=1024, shared_expert_size=1024,
  ),
  "qwen3.5-122b-a10b": dict(
    _QWEN35, hidden_size=3072, num_layers=48, num_query_heads=32, delta_value_heads=64,
    num_experts=256, experts_per_token=8, expert_size=1024, shared_expert_size=1024,
  ),
  "qwen3.5-35b-a3b": dict(
    _QWEN35, hidden_size=2048, num_layers=40, num_query_heads=16, delta_value_heads=32,
    num_experts=256, experts_per_token=8, expert_size=512, shared_expert_size=512,
  ),
  "qwen3-30b-a3b": dict(
    hidden_size=2048, num_layers=48, full_attention_interval=1, num_query_heads=32, num_kv_heads=4,
    head_size=128, rotary_dims=128, rope_theta=1e7, num_experts=128, experts_per_token=8,
    expert_size=768, shared_expert_size=0, vocab_size=151936, real_vocab_size=151669,
    zero_centred_norm=False, attention_gate=False,
  ),
  "tiny": dict(
    hidden_size=96, num_layers=4, full_attention_interval=4, num_query_heads=2, num_kv_heads=2,
    head_size=64, rotary_dims=16, rope_theta=1e4, num_experts=8, experts_per_token=2,
    expert_size=32, shared_expert_size=32, vocab_size=704, real_vocab_size=704,
    delta_key_heads=3, delta_value_heads=3, delta_key_size=32, delta_value_size=32,
    tie_embeddings=True, moe_dispatch="dense", chunk_length=32, scan_layers=False,
    param_dtype="float32",
  ),
}


def model_config(preset: str, **overrides) -> ModelConfig:
  """Looks a preset up and replaces fields.

  Args:
    preset: a key of PRESETS.
    **overrides: fields of ModelConfig.

  Raises:
    ValueError: an unknown preset or field, with the nearest name.
  """
  if preset not in PRESETS:
    raise ValueError(f'unknown model preset "{preset}"{_nearest(preset, PRESETS)}')
  fields = {f.name for f in dataclasses.fields(ModelConfig)}
  for key in overrides:
    if key not in fields:
      raise ValueError(f'unknown model field "{key}"{_nearest(key, fields)}')
  return ModelConfig(**{"name": preset, **PRESETS[preset], **overrides})


def _nearest(word, names):
  found = difflib.get_close_matches(word, list(names), n=1, cutoff=0.0)
  return f'; did you mean "{found[0]}"?' if found else ""
