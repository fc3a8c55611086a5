"""Optimiser and update step."""
