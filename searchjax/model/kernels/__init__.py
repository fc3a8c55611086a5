"""Pallas kernels for TPU, each behind the signature of the plain function it replaces."""
