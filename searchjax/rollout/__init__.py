"""Conversations between the policy and its tool, sampled in lanes."""
