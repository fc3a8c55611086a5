"""Search-augmented language models: SFT, a preference model, GRPO and evaluation, in JAX."""

__version__ = "0.1.0"
