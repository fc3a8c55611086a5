"""One description per parameter, from which everything about it is derived.  PURE.

`param_specs` gives a tree of ParamSpec (shape, dtype, logical axes, initialiser) for a config;
`init_params`, counts, shardings and checkpoint templates are read off that tree. Layers are
stacked: leading axes are [groups] for attention, [groups, deltas] for DeltaNet,
[groups, layers of the group] for the expert layers.

Letters  D model width, N/K/H query heads, key-value heads, head size, M/A DeltaNet value and key
heads,
         P/R DeltaNet key and value size, E experts, F expert width, V vocabulary.
"""

import dataclasses
import math

import flax.struct
import jax
import jax.numpy as jnp

from searchjax.model.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class ParamSpec:
  """Attributes:
    shape: stacked shape.
    axes: one logical axis name a dimension; None is never divided (see dist.sharding).
    init: "normal" (std fan_in ** -0.5), "embed" (std 0.02), "zeros", "ones" or "decay"
      (log of U(0.01, 16), the DeltaNet's A_log).
    fan_in: inputs summed per output, for "normal".
    dtype: the dtype it is stored and trained in.
  """

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  init: str
  fan_in: int
  dtype: str


def param_specs(config: ModelConfig, *, value_head: bool = False) -> dict:
  """The tree of ParamSpec for a config.

  Args:
    value_head: with the preference model's scalar head.

  A_log, dt_bias and the gated norm stay float32 whatever `param_dtype` is: rounding A_log to
  bfloat16 changes the decay by up to 0.7 %.
  """
  c = config
  D, N, K, H = c.hidden_size, c.num_query_heads, c.num_kv_heads, c.head_size
  M, A, P, R = c.delta_value_heads, c.delta_key_heads, c.delta_key_size, c.delta_value_size
  E, F, S, V = c.num_experts, c.expert_size, c.shared_expert_size, c.vocab_size
  norm = "zeros" if c.zero_centred_norm else "ones"
  query_size = 2 * H if c.attention_gate else H

  def stacked(lead, names):
    def spec(shape, axes, init="normal", fan_in=1, dtype=c.param_dtype):
      return ParamSpec(lead + shape, names + axes, init, fan_in, dtype)
    return spec

  spec = stacked((c.num_groups,), ("groups",))
  attention = {
    "norm": spec((D,), (None,), norm),
    "query": spec((D, N, query_size), ("embed", "heads", None), fan_in=D),
    "key": spec((D, K, H), ("embed", "kv_heads", None), fan_in=D),
    "value": spec((D, K, H), ("embed", "kv_heads", None), fan_in=D),
    "query_norm": spec((H,), (None,), norm),
    "key_norm": spec((H,), (None,), norm),
    "out": spec((N, H, D), ("out_heads", "out_size", None), fan_in=N * H),
  }
  spec = stacked((c.num_groups, c.full_attention_interval), ("groups", "layers"))
  moe = {
    "norm": spec((D,), (None,), norm),
    "router": spec((D, E), ("embed", None), fan_in=D),
    "gate_up": spec((E, D, 2 * F), ("experts", "expert_embed", None), fan_in=D),
    "down": spec((E, F, D), ("experts", "expert_width", None), fan_in=F),
  }
  if S:
    moe |= {
      "shared_gate_up": spec((D, 2 * S), ("embed", "shared_halves"), fan_in=D),
      "shared_down": spec((S, D), ("shared_width", None), fan_in=S),
      "shared_gate": spec((D,), (None,), fan_in=D),
    }
  top = stacked((), ())
  tree = {
    "embed": top((V, D), ("vocab", "vocab_embed"), "embed"),
    "attention": attention,
    "moe": moe,
    "final_norm": top((D,), (None,), norm),
  }
  if c.deltas_per_group:
    spec = stacked((c.num_groups, c.deltas_per_group), ("groups", "layers"))
    tree["delta"] = {
      "norm": spec((D,), (None,), norm),
      "query": spec((D, A, P), ("embed", "delta_heads", None), fan_in=D),
      "key": spec((D, A, P), ("embed", "delta_heads", None), fan_in=D),
      "value": spec((D, M, R), ("embed", "delta_heads", None), fan_in=D),
      "gate": spec((D, M, R), ("embed", "delta_heads", None), fan_in=D),
      "write": spec((D, M), ("embed", "delta_heads"), fan_in=D),
      "decay": spec((D, M), ("embed", "delta_heads"), fan_in=D),
      "conv_query": spec((c.conv_kernel, A, P), (None, "delta_heads", None), fan_in=c.conv_kernel),
      "conv_key": spec((c.conv_kernel, A, P), (None, "delta_heads", None), fan_in=c.conv_kernel),
      "conv_value": spec((c.conv_kernel, M, R), (None, "delta_heads", None), fan_in=c.conv_kernel),
      "A_log": spec((M,), ("delta_heads",), "decay", dtype="float32"),
      "dt_bias": spec((M,), ("delta_heads",), "ones", dtype="float32"),
      "out_norm": spec((R,), (None,), "ones", dtype="float32"),
      "out": spec((M, R, D), ("out_heads", "out_size", None), fan_in=M * R),
    }
  if not c.tie_embeddings:
    tree["head"] = top((D, V), ("vocab_embed", "vocab"), fan_in=D)
  if value_head:
    tree["value_head"] = top((D,), (None,), "zeros", dtype="float32")
  return tree


def init_params(key: jax.Array, config: ModelConfig) -> dict:
  """Draws every parameter of `param_specs(config)`, each from its own fold of `key`."""
  specs, treedef = jax.tree.flatten(param_specs(config), is_leaf=lambda x: isinstance(x, ParamSpec))
  return treedef.unflatten([_draw(jax.random.fold_in(key, i), s) for i, s in enumerate(specs)])


def _draw(key, spec):
  if spec.init == "zeros":
    return jnp.zeros(spec.shape, spec.dtype)
  if spec.init == "ones":
    return jnp.ones(spec.shape, spec.dtype)
  if spec.init == "decay":
    return jnp.log(jax.random.uniform(key, spec.shape, jnp.float32, 0.01, 16.0))
  std = 0.02 if spec.init == "embed" else spec.fan_in**-0.5
  return (std * jax.random.truncated_normal(key, -3.0, 3.0, spec.shape)).astype(spec.dtype)


def param_count(config: ModelConfig) -> int:
  """Number of parameters, padding rows of the vocabulary included."""
  specs = jax.tree.leaves(param_specs(config), is_leaf=lambda x: isinstance(x, ParamSpec))
  return sum(math.prod(s.shape) for s in specs)


def active_param_count(config: ModelConfig, *, embedding: bool = True) -> int:
  """Number of parameters that one token uses: those of its experts, not of all.

  Args:
    embedding: False leaves the input embedding out, as some model cards do; where it is also the
      head it stays.
  """
  c = config
  expert = 3 * c.hidden_size * c.expert_size
  count = param_count(c) - c.num_layers * (c.num_experts - c.experts_per_token) * expert
  if not embedding and not c.tie_embeddings:
    count -= c.vocab_size * c.hidden_size
  return count


@flax.struct.dataclass
class Layer:
  """Attributes:
    kind: "delta" or "attention".
    mixer, moe: the layer's own parameters of that kind, and of its experts.
  """

  kind: str = flax.struct.field(pytree_node=False)
  mixer: dict
  moe: dict


def unstack_layers(params: dict, config: ModelConfig) -> dict:
  """The parameters with "layers", a `Layer` each in their order, instead of the stacks.

  Used where layers are unrolled (small models, rollouts on one device).
  """
  layers = []
  for group in range(config.num_groups):
    for inner in range(config.full_attention_interval):
      last = inner == config.full_attention_interval - 1
      index = (group,) if last else (group, inner)
      kind = "attention" if last else "delta"
      mixer = jax.tree.map(lambda a, index=index: a[index], params[kind])
      moe = jax.tree.map(lambda a, g=group, i=inner: a[g, i], params["moe"])
      layers.append(Layer(kind, mixer, moe))
  stacks = ("attention", "delta", "moe")
  return {name: a for name, a in params.items() if name not in stacks} | {"layers": layers}
