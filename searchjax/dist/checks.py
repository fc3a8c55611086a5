"""What a config's values may be, checked before a run claims its folder.  HOST.

Types are checked where overrides are read (`dist.settings`); here are ranges and choices. Only keys
that a config has are looked at.
"""

import math
import urllib.parse
from typing import Any

from searchjax.dist.settings import flatten

LEAST = {
  "seed": 0, "data_seed": 0, "steps": 1, "rows": 1, "questions_per_step": 1, "group_size": 1,
  "references": 1,
  "checkpoint_every": 1, "keep_checkpoints": 1, "holdout_every": 1, "pair_length": 16,
  "batch.rows": 1, "batch.length": 16, "data.questions": 1, "data.chats": 1, "gate.every": 1,
  "gate.questions": 1, "engine.lanes": 1, "engine.pool": 1, "engine.feed_rows": 1,
  "engine.feed_tokens": 1, "engine.decode_steps": 1, "engine.top_k": 0, "limits.calls": 0,
  "limits.turn_tokens": 1, "limits.tokens": 16, "limits.answer_tokens": 1,
  "limits.invalid_share": 0.0,
  "inference.connections": 1, "inference.retries": 0,
  "scorer.rows": 1, "scorer.length": 16, "search.max_results": 1, "search.retries": 0,
  "mesh.fsdp": 0, "mesh.expert": 1, "mesh.context": 1, "model.full_attention_interval": 1,
  "budget_questions": 1, "budget_temperature": 0.0, "truncate_at": 0.0, "optimizer.warmup": 0,
  "data.rubric_share": 0.0, "invalid_share": 0.0, "advantage.eps": 0.0,
  "distributed.processes": 1, "distributed.process": -1, "profile.first_step": 0,
  "profile.steps": 0, "search.connections": 1, "search.per_second": 0.0, "search.leak_ngram": 0,
  "search.snippet_chars": 0, "search.dollars_per_1000": -1.0,
  "count": 1, "batch": 1, "seed_pages": 1, "format_share": 0.0, "llm.rounds": 0,
  "llm.most_pages": 1, "llm.solvers": 1, "llm.temperature": 0.0,
}
LARGEST_SEED = 2**31 - 1
MOST = {
  "seed": LARGEST_SEED, "data_seed": LARGEST_SEED, "data.rubric_share": 1.0, "invalid_share": 1.0,
  "limits.invalid_share": 1.0, "engine.top_p": 1.0, "format_share": 1.0,
}
ABOVE_ZERO = (
  "temperature", "optimizer.peak", "optimizer.adam_peak", "optimizer.clip_norm", "search.timeout_s",
  "search.deadline_s", "engine.top_p", "inference.timeout_s", "distributed.form_limit_s",
  "distributed.silence_limit_s", "distributed.stall_limit_s",
)
_PENALTIES = ("anchored", "unconditional", "off")
CHOICES = {
  "reward.tool_penalty": _PENALTIES,
  "reward.length_penalty": _PENALTIES,
  "reward.aggregation": ("gated", "linear"),
  "mismatch": ("token_is", "sequence_is", "none", "routing_replay", "bitwise"),
  "optimizer.kind": ("adamw", "muon"),
  "optimizer.decay": ("cosine", "linear", "constant"),
  "mesh.layout": ("replicated", "zero3"),
  "engine.layout": ("replicated", "decode"),
  "moment_dtype": ("float32", "bfloat16"),
  "search.provider": ("local", "searxng", "serper", "brave", "tavily", "exa", "perplexity",
                      "google"),
  "compute.remat": ("none", "layer", "parts"),
  "direction": ("seed", "forward"),
  "extractor": ("atlas", "llm"),
  "split": ("", "sft", "rl", "heldout"),
}
# Sequences: the least and the most an element may be.
ELEMENTS = {"data.hops": (1, 3), "hops": (2, 4), "budgets": (0, 1000), "lengths": (16, 1 << 24)}


def check_config(config: Any) -> None:
  """Refuses values that no run can use.

  Raises:
    ValueError: the first such value, with its key and what it may be.
  """
  values = flatten(config)
  for key, value in values.items():
    if isinstance(value, float) and math.isnan(value):
      _refuse(key, "a number", value)
    if key in CHOICES and value not in CHOICES[key]:
      known = ", ".join(f'"{choice}"' for choice in CHOICES[key])
      _refuse(key, f"one of {known}", f'"{value}"')
    if key in LEAST and value < LEAST[key]:
      _refuse(key, f"at least {LEAST[key]}", value)
    if key in MOST and value > MOST[key]:
      _refuse(key, f"at most {MOST[key]}", value)
    if key in ABOVE_ZERO and value <= 0:
      _refuse(key, "above 0", value)
    if key in ELEMENTS:
      low, high = ELEMENTS[key]
      if not value or not all(low <= element <= high for element in value):
        _refuse(key, f"numbers from {low} to {high}, at least one", tuple(value))
  if values.get("limits.tokens", 0) and values.get("lengths"):
    if values["limits.tokens"] > max(values["lengths"]):
      _refuse("limits.tokens", f"at most the longest of lengths, {max(values['lengths'])}",
              values["limits.tokens"])
  if values.get("engine.pool", 0) and values["engine.pool"] < values["engine.lanes"]:
    _refuse("engine.pool", f"at least engine.lanes = {values['engine.lanes']}",
            values["engine.pool"])
  for key, off in (("engine.top_k", 0), ("engine.top_p", 1.0)):
    if "group_size" in values and values[key] != off:
      _refuse(key, f"{off} where a policy is trained: the recorded log-probs are those of the "
              "whole distribution", values[key])
  if values.get("engine.layout") == "decode":
    _check_engine(values)


def check_url(key: str, url: str) -> None:
  """Refuses an address that no request can be sent to, or that holds a password: it is recorded.

  Raises:
    ValueError: see above, under the key's name; never with the password.
  """
  if "@" in url.partition("//")[2].partition("/")[0]:
    raise ValueError(f"{key} must be without user and password, since it is recorded; let "
                     "a proxy on this machine add them")
  try:
    parts = urllib.parse.urlsplit(url)
    fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
  except ValueError:  # a port or an IPv6 address that is none
    fits = False
  if not fits:
    raise ValueError(f'{key} must be http:// or https://, got "{url}"')


def _check_engine(values):
  """What an engine divided over the mesh needs, as far as the mesh is given."""
  lanes, expert = values["mesh.fsdp"] * values["mesh.context"], values["mesh.expert"]
  for key in ("engine.lanes", "engine.pool", "engine.feed_rows"):
    if lanes and values.get(key, 0) % lanes:
      _refuse(key, f"a multiple of mesh.fsdp × mesh.context = {lanes}", values[key])
  tokens = values["limits.tokens"]
  for key in ("engine.feed_tokens", "engine.decode_steps"):
    if tokens % expert or values[key] > tokens // expert:
      _refuse(key, f"at most limits.tokens / mesh.expert, a whole number: {tokens} / {expert}",
              values[key])


def _refuse(key, expected, got):
  raise ValueError(f'config key "{key}" must be {expected}; got {got}')
