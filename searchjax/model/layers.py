"""Norms and rotary positions.  PURE.

  norm(x) = x / sqrt(mean x² + eps) · (1 + w)    zero-centred, Qwen3.5;  · w, Qwen3
  rotary: the first `rotary_dims` of a head are rotated in pairs (i, i + rotary_dims/2) by
  position · theta^(-2i / rotary_dims); the rest pass through.

Letters  B rows, T tokens, N heads, H head size.
Source   transformers modeling_qwen3_5_moe; RoPE arXiv:2104.09864; RMSNorm arXiv:1910.07467.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def rms_norm(
  x: Float[Array, "*axes D"], weight: Float[Array, "D"], *, eps: float, zero_centred: bool
) -> Float[Array, "*axes D"]:
  """RMSNorm, float32 inside, one cast at the end.

  Args:
    weight: the learned scale; zero-centred weights multiply by (1 + weight).
  """
  y = x.astype(jnp.float32)
  y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
  w = weight.astype(jnp.float32)
  w = w + 1.0 if zero_centred else w
  return (y * w.reshape((1,) * (y.ndim - 1) + w.shape)).astype(x.dtype)


def rotate(
  x: Float[Array, "B T N H"], positions: Int[Array, "B T"], *, rotary_dims: int, theta: float
) -> Float[Array, "B T N H"]:
  """Rotary position embedding on the leading `rotary_dims` of each head; angles in float32."""
  half = rotary_dims // 2
  frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angle = positions.astype(jnp.float32)[:, :, None, None] * frequency[None, None, None, :]
  cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
  first, second, rest = jnp.split(x, [half, rotary_dims], axis=-1)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
