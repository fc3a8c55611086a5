"""Parity with transformers: models, the PyTorch oracle, its stored results, our measurements."""
