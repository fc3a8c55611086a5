"""Which box of which Hugging Face tensor holds which box of which parameter of ours.  PURE.

One line of the table below says it per parameter: the tensor's name inside a layer, and how its
axes become ours, e.g. "(N H) D -> D N H" for a projection that PyTorch stores as [outputs, inputs]
with the outputs' heads flattened. Sizes come from `param_specs`, so the table holds for any config.

* Parameters of one tensor (in_proj_qkv, conv1d) lie one after the other along its first axis, in
  the table's order: the flat [Q | K | V] of Qwen3.5 (not Qwen3-Next's groups per key head).
* Several tensors of one parameter (gate and up) lie one after the other along our last axis.
* A query projection with a gate is [query | gate] within each head on both sides: H is then 2H.
* The convolution's last tap multiplies the current token on both sides.

Letters  as in params.py; j taps of the convolution, F an expert's width (2F where gate and up are
         fused).
Source   transformers 5.24 modeling_qwen3_5_moe.py, modeling_qwen3_moe.py and conversion_mapping.py.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import jax
import numpy as np

from searchjax.model.config import ModelConfig
from searchjax.model.params import ParamSpec, param_specs

PREFIXES = ("model.language_model.", "model.")
# The vision tower and the multi-token-prediction layer, which a text policy does not have.
SKIPPED = {"vision": "model.visual.", "MTP": "mtp."}
VALUE_HEAD = "value_head"
FUSED_EXPERTS = ".mlp.experts.gate_up_proj"

_OUTSIDE_PREFIX = ("head", VALUE_HEAD)

_TABLE = {
  "embed": ("embed_tokens.weight", "V D -> V D"),
  "final_norm": ("norm.weight", "D -> D"),
  "head": ("lm_head.weight", "V D -> D V"),
  VALUE_HEAD: ("score.weight", "1 D -> D"),
  "attention.norm": ("input_layernorm.weight", "D -> D"),
  "attention.query": ("self_attn.q_proj.weight", "(N H) D -> D N H"),
  "attention.key": ("self_attn.k_proj.weight", "(K H) D -> D K H"),
  "attention.value": ("self_attn.v_proj.weight", "(K H) D -> D K H"),
  "attention.query_norm": ("self_attn.q_norm.weight", "H -> H"),
  "attention.key_norm": ("self_attn.k_norm.weight", "H -> H"),
  "attention.out": ("self_attn.o_proj.weight", "D (N H) -> N H D"),
  "delta.norm": ("input_layernorm.weight", "D -> D"),
  "delta.query": ("linear_attn.in_proj_qkv.weight", "(A P) D -> D A P"),
  "delta.key": ("linear_attn.in_proj_qkv.weight", "(A P) D -> D A P"),
  "delta.value": ("linear_attn.in_proj_qkv.weight", "(M R) D -> D M R"),
  "delta.gate": ("linear_attn.in_proj_z.weight", "(M R) D -> D M R"),
  "delta.write": ("linear_attn.in_proj_b.weight", "M D -> D M"),
  "delta.decay": ("linear_attn.in_proj_a.weight", "M D -> D M"),
  "delta.conv_query": ("linear_attn.conv1d.weight", "(A P) 1 j -> j A P"),
  "delta.conv_key": ("linear_attn.conv1d.weight", "(A P) 1 j -> j A P"),
  "delta.conv_value": ("linear_attn.conv1d.weight", "(M R) 1 j -> j M R"),
  "delta.A_log": ("linear_attn.A_log", "M -> M"),
  "delta.dt_bias": ("linear_attn.dt_bias", "M -> M"),
  "delta.out_norm": ("linear_attn.norm.weight", "R -> R"),
  "delta.out": ("linear_attn.out_proj.weight", "D (M R) -> M R D"),
  "moe.norm": ("post_attention_layernorm.weight", "D -> D"),
  "moe.router": ("mlp.gate.weight", "E D -> D E"),
  "moe.gate_up": ("mlp.experts.gate_up_proj", "E F D -> E D F"),
  "moe.down": ("mlp.experts.down_proj", "E D F -> E F D"),
  "moe.shared_gate_up": (
    "mlp.shared_expert.gate_proj.weight mlp.shared_expert.up_proj.weight", "F D -> D F"
  ),
  "moe.shared_down": ("mlp.shared_expert.down_proj.weight", "D F -> F D"),
  "moe.shared_gate": ("mlp.shared_expert_gate.weight", "1 D -> D"),
}
_PER_EXPERT = {
  "moe.gate_up": (
    "mlp.experts.{expert}.gate_proj.weight mlp.experts.{expert}.up_proj.weight", "F D -> D F"
  ),
  "moe.down": ("mlp.experts.{expert}.down_proj.weight", "D F -> F D"),
}

Box = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class TensorSpec:
  """Attributes:
    shape: sizes.
    dtype: NumPy name of the dtype in which we keep its numbers.
  """

  shape: tuple[int, ...]
  dtype: str


@dataclasses.dataclass(frozen=True)
class Link:
  """A run of one tensor's first axis, seen in our layout.

  Attributes:
    tensor: its full name.
    first: the first index of the run on the tensor's axis 0.
    split: for each axis of the tensor, the sizes it divides into; () for an axis of length 1.
    order: the divided axes in our order.
  """

  tensor: str
  first: int
  split: tuple[tuple[int, ...], ...]
  order: tuple[int, ...]

  def view(self, tensor: np.ndarray) -> np.ndarray:
    """The run as a view in our layout: slicing it touches nothing else."""
    run = tensor[self.first : self.first + math.prod(self.split[0])]
    return run.reshape([size for axis in self.split for size in axis]).transpose(self.order)

  def block_scale(self, scale: np.ndarray, block: tuple[int, int], box: Box) -> np.ndarray:
    """The float32 factor of every element of `view(tensor)[box]`.

    Args:
      scale: one factor per block of the tensor's last two axes, per index of the axes before.
      block: rows and columns of a block; the blocks at the edges are smaller.
      box: in our layout.
    """
    per_axis = (1,) * (len(self.split) - 2) + block
    numbers, indices = itertools.count(), []
    for axis, (sizes, width) in enumerate(zip(self.split, per_axis, strict=True)):
      start = self.first if axis == 0 else 0
      index = ((start + np.arange(math.prod(sizes))) // width).reshape(sizes)
      # Where this axis's parts stand with us; never swapped among themselves: heads, then size.
      places = [self.order.index(next(numbers)) for _ in sizes]
      chosen = index[tuple(box[place] for place in places)]
      shape = [1] * len(self.order)
      for place, size in zip(places, chosen.shape, strict=True):
        shape[place] = size
      indices.append(chosen.reshape(shape))
    return scale[tuple(indices)].astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Leaf:
  """Attributes:
    spec: shape and dtype of the parameter.
    lead: how many leading axes choose the tensors (groups, layers, experts).
    names: tensors side by side along our last axis; fields {layer} and {expert}.
    first: where on the tensor's axis 0 it begins.
    split, order: as in Link.
  """

  spec: ParamSpec
  lead: int
  names: tuple[str, ...]
  first: int
  split: tuple[tuple[int, ...], ...]
  order: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class NameMap:
  """Attributes:
    leaves: per parameter ("moe.gate_up"), where it lies.
    tensors: shape and dtype of every tensor, in the order of layers.
    interval: layers per group.
  """

  leaves: dict[str, Leaf]
  tensors: dict[str, TensorSpec]
  interval: int

  def links(self, name: str, box: Box) -> Iterator[tuple[Link, Box, tuple[int | slice, ...]]]:
    """Every link that meets a box of parameter `name`.

    Args:
      box: slices with start and stop, one an axis.

    Returns:
      For each: the link, the box within `link.view(...)`, and its place within the given box.
    """
    leaf = self.leaves[name]
    lead, rest = box[: leaf.lead], box[leaf.lead :]
    width = leaf.spec.shape[-1] // len(leaf.names)
    for index in itertools.product(*(range(s.start, s.stop) for s in lead)):
      at = tuple(i - s.start for i, s in zip(index, lead, strict=True))
      for number, template in enumerate(leaf.names):
        link = Link(_fill(template, leaf, index, self.interval), leaf.first, leaf.split, leaf.order)
        if len(leaf.names) == 1:
          yield link, rest, (*at, *(slice(0, s.stop - s.start) for s in rest))
          continue
        begin = number * width
        low, high = max(rest[-1].start, begin), min(rest[-1].stop, begin + width)
        if low < high:
          inside = (*rest[:-1], slice(low - begin, high - begin))
          whole = tuple(slice(0, s.stop - s.start) for s in rest[:-1])
          yield link, inside, (*at, *whole, slice(low - rest[-1].start, high - rest[-1].start))


def name_map(
  config: ModelConfig, *, prefix: str, fused: bool, value_head: bool = False
) -> NameMap:
  """Where every parameter of a config lies in a Hugging Face checkpoint.

  Args:
    prefix: what stands before "layers.0."; one of PREFIXES.
    fused: experts of a layer in one tensor, else one tensor an expert.
    value_head: with the preference model's scalar head, "score.weight" [1, D].
  """
  leaves: dict[str, Leaf] = {}
  # Length of axis 0 so far, by block ("delta") and first tensor: blocks reuse names.
  rows: dict[tuple[str, str], int] = {}
  for name, spec in flat_specs(config, value_head).items():
    names, pattern = _entry(name, prefix, fused)
    key = (name.split(".")[0], names[0])
    leaves[name] = leaf = _leaf(spec, names, pattern, first=rows.get(key, 0))
    rows[key] = leaf.first + math.prod(leaf.split[0])
  return NameMap(leaves, _tensors(leaves, rows, config), config.full_attention_interval)


def flat_specs(config: ModelConfig, value_head: bool = False) -> dict[str, ParamSpec]:
  """`param_specs` as {"moe.gate_up": ParamSpec}, in the table's order."""
  leaves = jax.tree_util.tree_leaves_with_path(
    param_specs(config), is_leaf=lambda x: isinstance(x, ParamSpec)
  )
  specs = {".".join(part.key for part in path): spec for path, spec in leaves}
  if value_head:
    specs[VALUE_HEAD] = ParamSpec((config.hidden_size,), ("embed",), "zeros", 1, "float32")
  for name in specs:
    if name not in _TABLE:
      raise ValueError(f"parameter {name} has no name in a Hugging Face checkpoint; add it here")
  return {name: specs[name] for name in _TABLE if name in specs}


def _entry(name: str, prefix: str, fused: bool) -> tuple[tuple[str, ...], str]:
  words, pattern = _TABLE[name] if fused else _PER_EXPERT.get(name, _TABLE[name])
  if name in _OUTSIDE_PREFIX:
    return (words,), pattern
  inner = "layers.{layer}." if "." in name else ""
  return tuple(f"{prefix}{inner}{word}" for word in words.split()), pattern


def _leaf(spec: ParamSpec, names: tuple[str, ...], pattern: str, first: int) -> Leaf:
  lead = sum(axis in ("groups", "layers") for axis in spec.axes) + ("{expert}" in names[0])
  shape = spec.shape[lead:]
  split, order = _read_pattern(pattern, (*shape[:-1], shape[-1] // len(names)))
  return Leaf(spec, lead, names, first, split, order)


def _read_pattern(
  pattern: str, shape: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
  """("(N H) D -> D N H", [D, N, H]) gives ((N, H), (D,)) and (2, 0, 1)."""
  theirs, ours = (side.split() for side in pattern.split(" -> "))
  sizes = dict(zip(ours, shape, strict=True))
  axes: list[list[str]] = []
  inside = False
  for word in theirs:
    if not inside:
      axes.append([])
    inside = (inside or word.startswith("(")) and not word.endswith(")")
    axes[-1].append(word.strip("()"))
  letters = [letter for axis in axes for letter in axis if letter != "1"]
  split = tuple(tuple(sizes[letter] for letter in axis if letter != "1") for axis in axes)
  return split, tuple(letters.index(letter) for letter in ours)


def _tensors(
  leaves: dict[str, Leaf], rows: dict[tuple[str, str], int], config: ModelConfig
) -> dict[str, TensorSpec]:
  interval = config.full_attention_interval
  found: dict[str, tuple[int, TensorSpec]] = {}
  for name, leaf in leaves.items():
    rest = tuple(math.prod(sizes) for sizes in leaf.split[1:])
    shape = (rows[name.split(".")[0], leaf.names[0]], *rest)
    spec = TensorSpec(shape, leaf.spec.dtype)
    for index in itertools.product(*map(range, leaf.spec.shape[: leaf.lead])):
      layer = _layer(leaf, index, interval) if leaf.lead else config.num_layers
      for template in leaf.names:
        found[_fill(template, leaf, index, interval)] = (-1 if name == "embed" else layer, spec)
  return {name: spec for name, (_, spec) in sorted(found.items(), key=lambda item: item[1][0])}


def _layer(leaf: Leaf, index: tuple[int, ...], interval: int) -> int:
  inner = index[1] if "layers" in leaf.spec.axes else interval - 1
  return index[0] * interval + inner


def _fill(template: str, leaf: Leaf, index: tuple[int, ...], interval: int) -> str:
  if not leaf.lead:
    return template
  return template.format(layer=_layer(leaf, index, interval), expert=index[-1])
