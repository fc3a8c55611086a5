"""The policy: a Qwen3.5-style mixture of experts as plain functions over a parameter tree."""
