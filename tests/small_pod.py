"""A run in small for the compiler's tests: its config, and the programs it would jit."""

import os
import signal

import jax
import jax.numpy as jnp
import ml_collections
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding, PartitionSpec

from searchjax.dist.compiling import Program
from searchjax.model.config import model_config
from searchjax.model.parallel import divide
from searchjax.model.params import param_specs
from searchjax.rollout.engine import ROWS as LANES
from searchjax.rollout.engine import divided_lanes, divided_state, make_divided_steps

LAYERS, WIDTH, ROWS = 3, 256, 1024  # Rows and widths of whole tiles: sizes can be counted by hand.
HUGE = 1 << 19  # A matrix of HUGE² bytes fits no chip.


def get_config(variant: str = "") -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.steps = 7
  c.mesh = ml_collections.ConfigDict(dict(fsdp=0, expert=2, context=1))
  c.variant = variant
  return c


def programs(config, mesh):
  """A scanned training step, a pass with a batched matmul and two kernels, the engine's decode loop;
  or what does not fit."""
  spec = lambda shape, *axes, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(
    shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes))
  )
  if config.variant == "bad":
    raise ValueError("blocks.w: its axis embed of 257 does not divide over fsdp 2")
  rows = ("fsdp", "expert")
  if config.variant == "huge":
    return [Program("scores", scores(), (spec((HUGE, 128)),), advice="write no scores")]
  if config.variant == "dying":
    return [Program("dying", jax.jit(die), (spec((128, 128)),))]
  weights = spec((LAYERS, WIDTH, WIDTH), None, "fsdp", None)
  return [
    Program(
      "step", train_step(mesh), (weights, spec((ROWS, WIDTH), rows, None)),
      model_flops=6.0 * LAYERS * WIDTH * WIDTH * ROWS / mesh.devices.size,
      resident={"preference model": 1e9}, calls_per_step=2,
    ),
    Program(
      "unrolled", train_step(mesh, unroll=LAYERS), (weights, spec((ROWS, WIDTH), rows, None))
    ),
    Program(
      "kernels", kernels(mesh), (spec((5, 256, 128)), spec((5, 128, 256)), spec((256, 128))),
      calls_per_step=0.5, kernel_costs={"given": (1e6, 2e6)},
    ),
    decode(mesh),
  ]


def decode(mesh):
  """The engine's decode loop for a small model: 8 lanes of 256 positions, 8 tokens a call."""
  model = model_config(
    "tiny", hidden_size=256, num_layers=4, full_attention_interval=2, num_query_heads=4,
    num_kv_heads=2, head_size=128, rotary_dims=64, num_experts=8, experts_per_token=2,
    expert_size=128, shared_expert_size=128, vocab_size=512, real_vocab_size=512,
    delta_key_heads=2, delta_value_heads=4, delta_key_size=128, delta_value_size=128,
    moe_dispatch="ragged", tie_embeddings=False, scan_layers=True, param_dtype="bfloat16",
  )
  specs = param_specs(model)
  division = divide(mesh, "decode", specs)
  params = jax.tree.map(
    lambda spec, part: jax.ShapeDtypeStruct(
      spec.shape, spec.dtype, sharding=NamedSharding(mesh, part)
    ),
    specs, division.specs, is_leaf=lambda x: hasattr(x, "axes"),
  )
  steps = make_divided_steps(
    model, division, pool=8, length=256, record_routing=False, stop_ids=(7,), restricted=False
  )
  return Program(
    "decode", steps.decode,
    (params, divided_state(model, mesh, 8, 256), divided_lanes(mesh, 8, 8)),
    calls_per_step=0.0, most_calls=3,
  )


def train_step(mesh, unroll: int = 1):
  """Gathers each weight over fsdp, scatters each product over expert; loss, gradients, update."""
  rows = ("fsdp", "expert")

  def layer(x, w):
    w = jax.lax.all_gather(w, "fsdp", axis=0, tiled=True)
    y = jax.lax.psum_scatter(jnp.tanh(x @ w), "expert", scatter_dimension=1, tiled=True)
    return jax.lax.all_gather(y, "expert", axis=1, tiled=True), None

  def step(w, x):
    def loss(w, x):
      y, _ = jax.lax.scan(layer, x, w, unroll=unroll)
      return jnp.square(y.astype(jnp.float32)).sum()

    value, (of_w, of_x) = jax.value_and_grad(loss, argnums=(0, 1))(w, x)
    return w - of_w * jnp.bfloat16(0.01), of_x, jax.lax.psum(value, rows)

  split, by_row = PartitionSpec(None, "fsdp", None), PartitionSpec(rows, None)
  mapped = jax.shard_map(
    step, mesh=mesh, in_specs=(split, by_row), out_specs=(split, by_row, PartitionSpec()),
    check_vma=False,
  )
  return jax.jit(mapped, donate_argnums=0)


def kernels(mesh):
  """A batched matmul, which TPUs run as a convolution, and three kernels in a loop."""

  def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

  def call(x, name, cost=None):
    block = pl.BlockSpec((128, 128), lambda i: (i, 0))
    return pl.pallas_call(
      double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(2,), in_specs=[block],
      out_specs=block, cost_estimate=cost, name=name,
    )(x)

  estimate = pl.CostEstimate(flops=1000, bytes_accessed=2000, transcendentals=0)

  def body(x, _):
    x = call(x, "estimated", estimate)
    return call(call(x, "given"), "silent"), None

  def both(a, b, x):
    return jnp.einsum("btk,bks->bts", a, b), jax.lax.scan(body, x, length=11)[0]

  whole = PartitionSpec()
  mapped = jax.shard_map(
    both, mesh=mesh, in_specs=(whole,) * 3, out_specs=(whole, whole), check_vma=False
  )
  return jax.jit(mapped)


def scores():
  """Attention scores that are written out."""

  def weights(x):
    with jax.named_scope("scores"):
      s = jnp.einsum("td,sd->ts", x, x)
    return jnp.einsum("ts,sd->td", jax.nn.softmax(s, axis=-1), x)

  return jax.jit(weights)


def die(x):
  """Ends its process while it is traced, as a fault of the compiler does while it compiles."""
  os.kill(os.getpid(), signal.SIGSEGV)
  return x
