"""The DeltaNet layer with and without its kernel, compiled for TPUs: what it moves and needs.

  python tests/benchmarks/deltanet.py                           four slices, HLO stage
  python tests/benchmarks/deltanet.py --stage full --topology v6e:2x2

One layer of Qwen3.5-397B (64 value heads, 16 key heads, size 128), one bfloat16 row of 16,384
tokens a device; its forward, and its gradient with the forward computed again, as a training step does.
Compiled by libtpu for slices that need not be there. FLOPs and bytes are counted in the optimised
program (`searchjax.dist.hlo`), the kernels by their own estimates; nothing is timed. Stage "full"
goes on to machine code, which is where a kernel that a TPU cannot run is refused.

jax 0.10.2, libtpu 0.0.52, GB = 1e9 bytes a device; the reference goes by blocks of 256 tokens:

  slice        program   HBM bytes            temporaries         FLOPs
                         reference  pallas    reference  pallas   reference  pallas
  v5p:2x2x1    forward     47.87     4.37       2.56      0.96    4.057e12   4.097e12
  v5p:2x2x1    gradient   161.41    17.51       6.72      2.60    1.122e13   1.129e13
  v6e:2x2      forward     13.78     4.20       2.42      0.81    4.057e12   4.097e12
  v6e:2x2      gradient   105.78    18.13       5.26      2.99    1.122e13   1.129e13
  tpu7x:2x2x1  forward     20.99     4.38       4.83      0.85    4.057e12   4.097e12
  tpu7x:2x2x1  gradient   143.35    19.30       7.14      3.74    1.122e13   1.129e13
  v5e:2x2      forward     12.42     4.45       2.69      0.96    4.057e12   4.097e12
  v5e:2x2      gradient    59.99    17.19       6.72      2.60    1.122e13   1.129e13
"""

import argparse
import os
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from searchjax.dist.compiling import Job, Program, compile_program
from searchjax.dist.topology import missing_compiler
from searchjax.model import deltanet
from searchjax.model.config import model_config
from searchjax.model.params import param_specs

HERE = pathlib.Path(__file__).resolve()
TOPOLOGIES = ("v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1", "v5e:2x2")
IMPLEMENTATIONS = ("reference", "pallas")
PROGRAMS = ("forward", "gradient")
LIMIT = 1800.0


def get_config(variant: str = "") -> ConfigDict:
  c = ConfigDict()
  c.mesh = ConfigDict(dict(fsdp=0, expert=1, context=1))
  c.length = 16384
  c.model = ConfigDict(
    dict(
      preset="qwen3.5-397b-a17b", delta_key_heads=16, delta_value_heads=64, hidden_size=4096,
      deltanet_implementation="reference", delta_block=256,
    )
  )
  return c


def programs(config, mesh) -> list[Program]:
  """The layer's forward and gradient, a row a device."""
  fields = dict(config.model)
  model = model_config(fields.pop("preset"), **fields)
  whole, rows = PartitionSpec(), PartitionSpec("fsdp")
  spec = lambda part, *shape, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(
    shape, dtype, sharding=NamedSharding(mesh, part)
  )
  weights = {
    name: spec(whole, *one.shape[2:], dtype=one.dtype)
    for name, one in param_specs(model)["delta"].items()
  }
  n, T = mesh.devices.size, config.length
  x = spec(rows, n, T, model.hidden_size)
  segments = spec(rows, n, T, dtype=jnp.int32)

  def forward(weights, x, segments):
    return x + deltanet.deltanet(weights, model, x, segments)

  def gradient(weights, x, segments, of_out):
    again = jax.checkpoint(lambda weights, x: forward(weights, x, segments))
    return jax.vjp(again, weights, x)[1](of_out)

  divided = lambda function, given, out: jax.jit(
    jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=out, check_vma=False)
  )
  given = (whole, rows, rows)
  return [
    Program("forward", divided(forward, given, rows), (weights, x, segments)),
    Program(
      "gradient", divided(gradient, (*given, rows), (whole, rows)), (weights, x, segments, x)
    ),
  ]


def measure(topology: str, implementation: str, program: str, stage: str, *overrides: str):
  """Compiles one program in a process of its own; see `searchjax.dist.compiling.Outcome`."""
  path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
  if str(HERE.parent) not in path:  # Where the compiling process finds `programs`.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE.parents[2]), *path])
  overrides = (f"model.deltanet_implementation={implementation}", *overrides)
  with tempfile.TemporaryDirectory() as folder:
    job = Job(str(HERE), overrides, topology, f"{HERE.stem}:programs", program, folder)
    return compile_program(job, stage, LIMIT, {"fsdp": 0, "expert": 1, "context": 1}, {})


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--topology", nargs="+", default=TOPOLOGIES)
  parser.add_argument("--stage", choices=("hlo", "full"), default="hlo")
  parser.add_argument("--implementation", nargs="+", default=IMPLEMENTATIONS)
  options = parser.parse_args()
  if missing_compiler():
    parser.error(missing_compiler())
  print("topology     program   form       HBM bytes  temporaries      FLOPs  kernels' FLOPs  ended")
  bad = 0
  for topology in options.topology:
    for program in PROGRAMS:
      for implementation in options.implementation:
        outcome = measure(topology, implementation, program, options.stage)
        bad += outcome.status not in ("compiled", "optimised")
        line = f"{topology:12} {program:9} {implementation:9} "
        if outcome.costs is not None:
          costs = outcome.costs
          kernels = sum(costs.flops[name] for name in costs.kernels)
          line += (
            f"{costs.hbm / 1e9:8.2f} GB  {outcome.memory.temporaries / 1e9:8.2f} GB  "
            f"{costs.total_flops:9.3e}  {kernels:14.3e}  "
          )
        print(f"{line}{outcome.status} in {outcome.seconds:.0f} s {outcome.message}", flush=True)
  return 1 if bad else 0


if __name__ == "__main__":
  sys.exit(main())
