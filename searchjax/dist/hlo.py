"""FLOPs, HBM bytes, collective bytes and memory of a compiled TPU program, from XLA's dumps.  PURE.

XLA's own cost analysis counts every loop body once and is off by an order of magnitude for a model
that scans its layers. Here the optimised HLO text is read: the cost of a loop is its trip count
times the cost of its body.

  FLOPs        2 · M · N · K of every dot; a convolution (TPU's form of a batched matmul) counts
               only kernel positions that meet data; a Pallas kernel counts what its cost estimate
               says. Elementwise work is not counted.
  HBM bytes    what every operation outside fusions reads and writes in HBM, tile padding included;
               a slice of a buffer counts as the slice; buffers in on-chip memory count nothing.
  sent bytes   what a device sends in a collective over n devices: (n−1)/n of the gathered,
               scattered or exchanged array, twice that for an all-reduce, the array for a permute.

Letters  none.
Source   XLA's HLO text format; the dumps that --xla_dump_to writes after optimisation.
"""

import collections
import dataclasses
import functools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

HBM, HOST = 0, 5  # XLA's numbers of memory spaces: `S(1)` in a layout is on-chip memory.
BITS = {
  "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32,
  "s64": 64, "u64": 64, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
  "token": 0,
}  # fmt: skip
ELEMENTWISE_VIEWS = ("bitcast", "reshape", "copy", "convert", "transpose", "get-tuple-element")
SLICES = ("slice", "dynamic-slice", "gather")
FREE = frozenset(
  ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while",
   "conditional", "call", "partition-id", "replica-id", "opt-barrier", "optimization-barrier",
   "copy-done", "async-update", "async-done", "all-gather-done", "all-reduce-done", "domain",
   "collective-permute-done", "send-done", "recv-done", "add-dependency")
)  # fmt: skip
FREE_TARGETS = ("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast")
COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute",
               "ragged-all-to-all", "collective-broadcast")  # fmt: skip
KERNEL_TARGET = "tpu_custom_call"
ASYNC_START = 'custom_call_target="AsyncCollectiveStart"'
ASYNC_DONE = 'custom_call_target="AsyncCollectiveDone"'


@dataclasses.dataclass(frozen=True)
class Array:
  """One array's shape and place."""

  dtype: str
  dims: tuple[int, ...]
  minor_to_major: tuple[int, ...]
  tile: tuple[int, ...]
  space: int

  @property
  def size(self) -> int:
    return math.prod(self.dims)

  @property
  def logical_bytes(self) -> float:
    return self.size * _bits(self.dtype) / 8

  @property
  def padded_bytes(self) -> float:
    """Bytes it takes in memory: minor dimensions rounded up to the layout's first tile."""
    if not self.tile or not self.minor_to_major:
      tile = math.prod(self.tile) if self.tile else 1
      return -(-self.size // tile) * tile * _bits(self.dtype) / 8
    sides = [self.dims[axis] for axis in self.minor_to_major]
    for i, side in enumerate(reversed(self.tile)):
      if i < len(sides):
        sides[i] = -(-sides[i] // side) * side
    return math.prod(sides) * _bits(self.dtype) / 8

  @property
  def hbm_bytes(self) -> float:
    return self.padded_bytes if self.space == HBM else 0.0


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation; `arrays` are the leaves of its result."""

  name: str
  op: str
  arrays: tuple[Array, ...]
  operands: tuple[str, ...]
  attributes: str
  literal: str


@dataclasses.dataclass(frozen=True)
class Computation:
  """Instructions by name, in order; `root` is the last word."""

  name: str
  instructions: Mapping[str, Instruction]
  parameters: Mapping[int, str]
  root: str


@dataclasses.dataclass
class Costs:
  """What one call costs a device.

  Attributes:
    flops: by source: "dot", "convolution", or a kernel's name.
    hbm: bytes read and written in HBM.
    sent: bytes by (kind of collective, mesh axes joined by "+").
    counts: how many such collectives.
    kernels: calls of every Pallas kernel.
    uncosted: of those, the ones without a cost: they add no FLOPs.
    open_loops: loops whose trip count is not in the text, counted once.
  """

  flops: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  hbm: float = 0.0
  sent: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  counts: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  kernels: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  uncosted: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  open_loops: collections.Counter = dataclasses.field(default_factory=collections.Counter)

  def add(self, other: "Costs", times: float = 1) -> None:
    self.hbm += times * other.hbm
    for name in ("flops", "sent", "counts", "kernels", "uncosted", "open_loops"):
      mine = getattr(self, name)
      for key, value in getattr(other, name).items():
        mine[key] += times * value

  @property
  def total_flops(self) -> float:
    return float(sum(self.flops.values()))

  def sent_by_axis(self) -> dict[str, float]:
    """Bytes a device sends, by mesh axes."""
    by_axis = collections.Counter()
    for (_, axes), value in self.sent.items():
      by_axis[axes] += value
    return dict(by_axis)


def program_costs(
  text: str,
  mesh: Mapping[str, int],
  kernel_costs: Mapping[str, tuple[float, float]] | None = None,
) -> Costs:
  """Costs of one call of a program, a device.

  Args:
    text: the optimised HLO module.
    mesh: size of every mesh axis, major to minor; device i of the program stands at position i.
    kernel_costs: (FLOPs, HBM bytes) of one call by kernel name; they go before the estimate in
      the HLO.

  Raises:
    ValueError: the text has no entry computation.
  """
  return _Reader(parse(text), dict(mesh), kernel_costs or {}).entry()


# ---- the text ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Module:
  """The computations of a module by name."""

  computations: Mapping[str, Computation]
  entry: str


HEADER = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .* \{$")
FOOTER = re.compile(r"^\}(, execution_thread=\S+)?$")
BEGINNING = re.compile(r"^\s+(?:ROOT )?%?[^\s=]+ = ")
ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^}]*)\})?")


def parse(text: str) -> Module:
  """Reads a module's text.

  Raises:
    ValueError: no entry computation.
  """
  computations, entry, name, lines = {}, None, None, []
  for line in text.splitlines():
    if name is None:
      header = HEADER.match(line)
      if header:
        name, lines = header[2], []
        entry = name if header[1] else entry
    elif FOOTER.match(line):
      computations[name] = _parse_computation(name, lines)
      name = None
    elif BEGINNING.match(line) or not lines:
      lines.append(line)
    else:  # Metadata of a kernel may hold line ends.
      lines[-1] += line
  if entry is None:
    raise ValueError("expected the text of an HLO module, got one without an ENTRY computation")
  return Module(computations, entry)


def _parse_computation(name: str, lines: Sequence[str]) -> Computation:
  instructions, parameters, root = {}, {}, ""
  for line in lines:
    is_root, instruction = _parse_line(line)
    instructions[instruction.name] = instruction
    if instruction.op == "parameter":
      parameters[int(instruction.literal)] = instruction.name
    if is_root:
      root = instruction.name
  return Computation(name, instructions, parameters, root)


def _parse_line(line: str) -> tuple[bool, Instruction]:
  left, right = line.strip().split(" = ", 1)
  is_root = left.startswith("ROOT ")
  name = left.removeprefix("ROOT ").lstrip("%")
  shape_end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
  rest = right[shape_end:].lstrip()
  opening = rest.index("(")
  closing = _closing(rest, opening)
  inside = rest[opening + 1 : closing]
  operands = tuple(re.findall(r"%([^\s,()]+)", inside))
  arrays = tuple(parse_array(*found) for found in ARRAY.findall(right[:shape_end]))
  attributes = rest[closing + 1 :]
  return is_root, Instruction(name, rest[:opening], arrays, operands, attributes, inside)


def _closing(text: str, opening: int) -> int:
  depth = 0
  for i in range(opening, len(text)):
    if text[i] == "(":
      depth += 1
    elif text[i] == ")":
      depth -= 1
      if depth == 0:
        return i
  raise ValueError(f"unbalanced brackets in the HLO line: {text[:120]}")


@functools.lru_cache(maxsize=100_000)
def parse_array(dtype: str, dims: str, layout: str) -> Array:
  """Reads `bf16`, `6,256`, `1,0:T(8,128)(2,1)S(1)`."""
  sides = tuple(int(re.sub(r"[<=]", "", side)) for side in dims.split(",") if side.strip())
  order, _, rest = layout.partition(":")
  minor = tuple(int(axis) for axis in order.split(",") if axis)
  tile = re.search(r"T\(([\d,*]+)\)", rest)
  tiles = tuple(int(side) for side in tile[1].split(",")) if tile and "*" not in tile[1] else ()
  space = re.search(r"S\((\d+)\)", rest)
  return Array(dtype, sides, minor, tiles, int(space[1]) if space else HBM)


def _bits(dtype: str) -> int:
  if dtype in BITS:
    return BITS[dtype]
  if dtype.startswith("f8"):
    return 8
  if dtype.startswith("f4"):
    return 4
  raise ValueError(f"unknown element type {dtype} in the HLO text")


# ---- costs ---------------------------------------------------------------------------------------


class _Reader:
  """Walks the computations from the entry; every one is costed once and multiplied."""

  def __init__(self, module: Module, mesh: dict[str, int], kernel_costs):
    self.module, self.mesh, self.kernel_costs = module, mesh, kernel_costs
    self.known: dict[tuple[str, bool], Costs] = {}
    self.started = {
      chain for computation in module.computations.values() if _starts(computation)
      for it in computation.instructions.values() if (chain := _chain(it))
    }

  def entry(self) -> Costs:
    return self.computation(self.module.entry, False)

  def computation(self, name: str, fused: bool) -> Costs:
    if (name, fused) not in self.known:
      total = Costs()
      computation = self.module.computations[name]
      for instruction in computation.instructions.values():
        self.instruction(computation, instruction, total, fused)
      self.known[name, fused] = total
    return self.known[name, fused]

  def instruction(self, inside: Computation, it: Instruction, total: Costs, fused: bool) -> None:
    op, called = it.op, _called(it)
    if op == "while":
      body, condition = called["body"], called["condition"]
      trips = trip_count(self.module, inside, it)
      if trips is None:
        total.open_loops[it.name] += 1
      total.add(self.computation(body, fused), 1 if trips is None else trips)
      total.add(self.computation(condition, fused), 1 if trips is None else trips + 1)
    elif op == "conditional":
      branches = [self.computation(name, fused) for name in called["branches"]]
      total.add(max(branches, key=lambda costs: (costs.total_flops, costs.hbm)))
    elif op == "fusion" and called["calls"].startswith("all-reduce-scatter"):
      # How TPUs lower a reduce-scatter: an all-reduce inside, of which only a slice is sent on.
      summed = self.computation(called["calls"], True)
      for (_, axes), value in summed.sent.items():
        total.sent["reduce-scatter", axes] += value / 2
        total.counts["reduce-scatter", axes] += 1
      if not fused:
        total.hbm += self.traffic(inside, it)
    elif op == "fusion":
      total.add(self.computation(called["calls"], True))
      if not fused:
        total.hbm += self.traffic(inside, it)
    elif op in ("call", "async-start"):
      total.add(self.computation(called.get("calls") or called["to_apply"], fused))
    elif op == "custom-call":
      self.custom_call(inside, it, total, fused)
    else:
      if op == "dot":
        total.flops["dot"] += dot_flops(inside, it)
      elif op == "convolution":
        total.flops["convolution"] += convolution_flops(inside, it)
      elif op.removesuffix("-start") in COLLECTIVES and not self.carries_on(inside, it):
        kind = op.removesuffix("-start")
        sent, axes = sent_bytes(inside, it, self.mesh)
        total.sent[kind, axes] += sent
        total.counts[kind, axes] += 1
      if not fused:
        total.hbm += self.traffic(inside, it)

  def custom_call(self, inside: Computation, it: Instruction, total: Costs, fused: bool) -> None:
    target = re.search(r'custom_call_target="([^"]*)"', it.attributes)
    if target and target[1] in FREE_TARGETS:
      return
    offloaded = re.search(r"called_computations=\{([^}]*)\}", it.attributes)
    if offloaded:  # tpu7x: copies and collectives that its SparseCores do.
      for name in offloaded[1].split(","):
        total.add(self.computation(name.strip().lstrip("%"), fused))
      return
    moved = 0.0 if fused else self.traffic(inside, it)
    if target and target[1] == KERNEL_TARGET:
      name = kernel_name(it)
      total.kernels[name] += 1
      cost = self.kernel_costs.get(name) or estimated_cost(it)
      if cost is None:
        total.uncosted[name] += 1
      else:
        total.flops[name] += cost[0]
        moved = cost[1] or moved
    total.hbm += moved

  def carries_on(self, inside: Computation, it: Instruction) -> bool:
    """Whether it repeats a collective that another computation has started.

    XLA for v5e splits one over fusions that compute meanwhile: AsyncCollectiveStart, any number of
    them, AsyncCollectiveDone, each with the collective in it.
    """
    return _chain(it) in self.started and not _starts(inside)

  # -- HBM ---

  def carried(self, fused: Computation) -> set[str]:
    """Of a fusion, what only passes through on behalf of a collective that it carries on."""
    found = {it.name for it in fused.instructions.values() if self.carries_on(fused, it)}
    if not found:
      return found
    found |= {
      it.name for it in fused.instructions.values() if ASYNC_DONE in it.attributes
    }
    for name in fused.parameters.values():
      users = _users(fused).get(name, ())
      if all(u.name in found or (u.name == fused.root and u.op == "tuple") for u in users):
        found.add(name)
    return found

  def traffic(self, inside: Computation, it: Instruction) -> float:
    """Bytes that an operation outside fusions reads from and writes to HBM."""
    if it.op in FREE:
      return 0.0
    operands = [inside.instructions[name] for name in it.operands]
    if it.op == "fusion":
      fused = self.module.computations[_called(it)["calls"]]
      carried = self.carried(fused)
      read = sum(
        self.read_bytes(fused, position, operand) for position, operand in enumerate(operands)
        if fused.parameters[position] not in carried
      )
      return read + self.written_bytes(fused, it.arrays, carried)
    if it.op in ("copy-start", "all-gather-start", "all-reduce-start", "collective-permute-start"):
      # The result is (destination, source, …) or (source, destination, …): each once.
      read = sum(_hbm(operand) for operand in operands)
      own = it.arrays[: 2 * len(operands)]
      return read + max(sum(a.hbm_bytes for a in own) - read, 0.0)
    written = _hbm(it)
    if it.op in SLICES:
      touched = sum(a.padded_bytes for a in it.arrays)
      return written + (touched if _in_hbm(operands[0]) else 0.0)
    if it.op in ("dynamic-update-slice", "scatter"):
      update = sum(a.padded_bytes for a in operands[-1 if it.op == "scatter" else 1].arrays)
      reads = sum(_hbm(operand) for operand in operands[1:])
      return reads + (update if written else 0.0)
    return written + sum(_hbm(operand) for operand in operands)

  def read_bytes(self, fused: Computation, position: int, operand: Instruction) -> float:
    """What a fusion reads of one operand: all of it, or only the slices it takes."""
    full = _hbm(operand)
    if not full:
      return 0.0
    return min(full, self._uses(fused, fused.parameters[position], full))

  def _uses(self, fused: Computation, name: str, full: float) -> float:
    total = 0.0
    for user in _users(fused).get(name, ()):
      place = user.operands.index(name)
      if user.op in ELEMENTWISE_VIEWS and user.name != fused.root:
        total += self._uses(fused, user.name, full)
      elif user.op in SLICES and place == 0:
        total += sum(a.padded_bytes for a in user.arrays)
      elif user.op == "dynamic-update-slice" and place == 0:
        continue  # Updated in place: what is not overwritten is not read.
      elif user.op == "fusion":
        inner = self.module.computations[_called(user)["calls"]]
        inner_name = inner.parameters[place]
        if inner_name == inner.root or _is_view_chain(inner, inner_name):
          total += self._uses(fused, user.name, full)
        else:
          total += self._uses(inner, inner_name, full)
      else:
        return full
      if total >= full:
        return full
    return total

  def written_bytes(
    self, fused: Computation, arrays: Sequence[Array], carried: Collection[str]
  ) -> float:
    """What a fusion writes: its results, or only the slice it updates in place."""
    root = fused.instructions[fused.root]
    roots = (
      [fused.instructions[name] for name in root.operands] if root.op == "tuple" else [root]
    )
    if len(roots) != len(arrays):
      return sum(a.hbm_bytes for a in arrays)
    return sum(
      min(array.hbm_bytes, self._written(fused, each, array.padded_bytes))
      for each, array in zip(roots, arrays, strict=True) if each.name not in carried
    )

  def _written(self, fused: Computation, it: Instruction, full: float) -> float:
    while it.op in ELEMENTWISE_VIEWS and it.op != "get-tuple-element":
      it = fused.instructions[it.operands[0]]
    if it.op == "dynamic-update-slice":
      return sum(a.padded_bytes for a in fused.instructions[it.operands[1]].arrays)
    if it.op == "scatter":
      return sum(a.padded_bytes for a in fused.instructions[it.operands[-1]].arrays)
    if it.op == "fusion" and len(it.arrays) == 1:
      inner = self.module.computations[_called(it)["calls"]]
      return self._written(inner, inner.instructions[inner.root], full)
    return full


def _starts(computation: Computation) -> bool:
  return any(ASYNC_START in it.attributes for it in computation.instructions.values())


def _chain(it: Instruction) -> tuple[str, str] | None:
  """What a collective that is split over fusions has in common with its other parts."""
  channel = re.search(r"\bchannel_id=(\d+)", it.attributes)
  chain = re.search(r'\bchain_id="([^"]*)"', it.attributes)
  return (channel[1], chain[1]) if channel and chain else None


def _hbm(it: Instruction) -> float:
  return sum(a.hbm_bytes for a in it.arrays)


def _in_hbm(it: Instruction) -> bool:
  return any(a.space == HBM for a in it.arrays)


def _users(computation: Computation) -> dict[str, list[Instruction]]:
  users = computation.__dict__.get("users")
  if users is None:
    users = collections.defaultdict(list)
    for it in computation.instructions.values():
      for operand in dict.fromkeys(it.operands):
        users[operand].append(it)
    object.__setattr__(computation, "users", users)
  return users


def _is_view_chain(computation: Computation, name: str) -> bool:
  """Whether a computation only gives its parameter another shape."""
  while name != computation.root:
    users = _users(computation).get(name, ())
    if len(users) != 1 or users[0].op not in ELEMENTWISE_VIEWS:
      return False
    name = users[0].name
  return True


def _called(it: Instruction) -> dict:
  """Names of the computations an instruction calls, by role."""
  found = dict(re.findall(r"\b(calls|body|condition|to_apply)=%?([^\s,}]+)", it.attributes))
  branches = re.search(r"branch_computations=\{([^}]*)\}", it.attributes)
  if branches:
    found["branches"] = [name.strip().lstrip("%") for name in branches[1].split(",")]
  elif it.op == "conditional":
    found["branches"] = re.findall(r"\b(?:true|false)_computation=%?([^\s,}]+)", it.attributes)
  return found


# ---- matmuls -------------------------------------------------------------------------------------


def dot_flops(inside: Computation, it: Instruction) -> float:
  """2 · |result| · |contracted|."""
  left = inside.instructions[it.operands[0]].arrays[0]
  contracted = re.search(r"lhs_contracting_dims=\{([^}]*)\}", it.attributes)
  axes = [int(axis) for axis in contracted[1].split(",") if axis] if contracted else []
  return 2.0 * it.arrays[0].size * math.prod(left.dims[axis] for axis in axes)


def convolution_flops(inside: Computation, it: Instruction) -> float:
  """2 · batch · features in · features out · positions where kernel and data meet.

  TPU writes a batched matmul as a convolution over the batch, with input dilated or padded so that
  every output position meets one kernel position: the others do no work.
  """
  data, kernel = (inside.instructions[name].arrays[0] for name in it.operands[:2])
  result = it.arrays[0]
  labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", it.attributes)
  data_labels, kernel_labels, result_labels = labels[1], labels[2], labels[3]
  spatial = [label for label in data_labels if label.isdigit()]
  window = _window(it.attributes, len(spatial))
  positions = 1
  for i, label in enumerate(spatial):
    positions *= _valid_positions(
      data.dims[data_labels.index(label)],
      kernel.dims[kernel_labels.index(label)],
      result.dims[result_labels.index(label)],
      *window[i],
    )
  groups = re.search(r"batch_group_count=(\d+)", it.attributes)
  batch = data.dims[data_labels.index("b")] // (int(groups[1]) if groups else 1)
  # The kernel's input features are already those of one feature group.
  features_in = kernel.dims[kernel_labels.index("i")]
  features_out = kernel.dims[kernel_labels.index("o")]
  return 2.0 * batch * features_in * features_out * positions


def _window(attributes: str, dims: int) -> list[tuple[int, int, int, int]]:
  """(stride, low padding, dilation of the data, dilation of the kernel) by spatial dimension."""
  found = re.search(r"window=\{([^}]*)\}", attributes)
  fields = dict(part.split("=") for part in found[1].split()) if found else {}
  read = lambda name, default: (
    [value for value in fields[name].split("x")] if name in fields else [default] * dims
  )
  return [
    (int(stride), int(pad.split("_")[0]), int(data), int(kernel))
    for stride, pad, data, kernel in zip(
      read("stride", "1"), read("pad", "0_0"), read("lhs_dilate", "1"), read("rhs_dilate", "1"),
      strict=True,
    )
  ]


@functools.lru_cache(maxsize=4096)
def _valid_positions(
  data: int, kernel: int, result: int, stride: int, pad: int, data_dilate: int, kernel_dilate: int
) -> int:
  """Pairs (result position, kernel position) that meet an element of the data."""
  starts = np.arange(result, dtype=np.int64) * stride - pad
  last = (data - 1) * data_dilate
  total = 0
  for position in range(kernel):
    at = starts + position * kernel_dilate
    total += int(((at >= 0) & (at <= last) & (at % data_dilate == 0)).sum())
  return total


# ---- kernels -------------------------------------------------------------------------------------


def kernel_name(it: Instruction) -> str:
  """A Pallas kernel's name: the last word of its scope, or of the jitted function around it."""
  scope = re.search(r'op_name="([^"]*)"', it.attributes)
  words = [word for word in scope[1].split("/") if word != "pallas_call"] if scope else []
  if not words:
    return it.name.split(".")[0]
  jitted = re.fullmatch(r"jit\((.+)\)", words[-1])
  return jitted[1] if jitted else words[-1]


def estimated_cost(it: Instruction) -> tuple[float, float] | None:
  """(FLOPs, bytes) of a kernel's cost estimate; None where it has none or counts no FLOPs."""
  found = re.search(r'"cost_estimate":(\{[^}]*\})', it.attributes)
  if not found:
    return None
  estimate = json.loads(found[1])
  flops = float(estimate.get("flops", 0))
  return (flops, float(estimate.get("bytes_accessed", 0))) if flops else None


# ---- collectives ---------------------------------------------------------------------------------


def sent_bytes(
  inside: Computation, it: Instruction, mesh: Mapping[str, int]
) -> tuple[float, str]:
  """Bytes a device sends in one collective, and the mesh axes it runs along."""
  kind = it.op.removesuffix("-start")
  operands = [inside.instructions[name] for name in it.operands]
  given = sum(a.logical_bytes for operand in operands for a in operand.arrays)
  if kind == "collective-permute":
    pairs = _pairs(it.attributes)
    return (given if pairs else 0.0), axes_of(pairs, mesh)
  groups = replica_groups(it.attributes, math.prod(mesh.values()))
  size = len(groups[0])
  share = (size - 1) / size
  if kind == "all-gather":
    return given * (size - 1), axes_of(groups, mesh)
  if kind == "all-reduce":
    return 2 * given * share, axes_of(groups, mesh)
  if kind == "ragged-all-to-all":  # Operands: what is sent, what is received, offsets and sizes.
    given = sum(a.logical_bytes for a in operands[0].arrays)
  return given * share, axes_of(groups, mesh)


def replica_groups(attributes: str, devices: int) -> list[tuple[int, ...]]:
  """Reads `{{0,2},{1,3}}`, `[2,2]<=[4]` and `[2,2]<=[2,2]T(1,0)`; none means all devices."""
  iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
  numbers = lambda text: tuple(int(number) for number in text.split(","))
  if iota:
    ids = np.arange(devices).reshape(numbers(iota[2]))
    if iota[3]:
      ids = ids.transpose(numbers(iota[3]))
    groups = ids.reshape(numbers(iota[1]))
    return [tuple(int(i) for i in group) for group in groups.reshape(groups.shape[0], -1)]
  listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", attributes)
  groups = [numbers(group) for group in re.findall(r"\{([\d,]+)\}", listed[1])] if listed else []
  return groups or [tuple(range(devices))]


def _pairs(attributes: str) -> list[tuple[int, ...]]:
  listed = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
  pairs = re.findall(r"\{(\d+),(\d+)\}", listed[1]) if listed else []
  return [(int(a), int(b)) for a, b in pairs if a != b]


def axes_of(groups: Sequence[tuple[int, ...]], mesh: Mapping[str, int]) -> str:
  """The mesh axes along which members of a group differ, joined by "+"; "none" if they do not."""
  members = [list(group) for group in groups if len(group) > 1]
  if not members:
    return "none"
  varies = np.zeros(len(mesh), bool)
  for group in members:
    positions = np.stack(np.unravel_index(group, tuple(mesh.values())))
    varies |= (positions != positions[:, :1]).any(axis=1)
  return "+".join(axis for axis, moved in zip(mesh, varies, strict=True) if moved)


# ---- trip counts ---------------------------------------------------------------------------------


def trip_count(module: Module, inside: Computation, loop: Instruction) -> int | None:
  """How often a loop's body runs: XLA's own note, or counter, bound and step of its condition.

  A condition that is an `and` with something that data decide gives the bound: at most that often.
  None where nothing can be read.
  """
  known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
  if known:
    return int(known[1])
  called = _called(loop)
  condition = module.computations[called["condition"]]
  body = module.computations[called["body"]]
  operand = inside.instructions[loop.operands[0]]
  bounds = _comparisons(module, condition, condition.instructions[condition.root])
  trips = []
  for index, direction, limit in bounds:
    if isinstance(limit, tuple):
      limit = _initial(inside, operand, limit[1])
    start = _initial(inside, operand, index)
    if limit is None or start is None:
      continue
    step = _step(body, index)
    last = {"LT": limit, "LE": limit + 1, "NE": limit, "GT": limit, "GE": limit - 1}[direction]
    trips.append(max(math.ceil((last - start) / step), 0))
  return min(trips) if trips else None


FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def _comparisons(module: Module, where: Computation, it: Instruction, given=None) -> list:
  """A condition's comparisons: (counter's tuple index, direction, constant or ("tuple", index))."""
  given = given or {}
  if it.op == "and":
    return [
      found
      for name in it.operands
      for found in _comparisons(module, where, where.instructions[name], given)
    ]
  if it.op == "fusion":
    inner = module.computations[_called(it)["calls"]]
    values = {
      inner.parameters[i]: _value(where, name, given) for i, name in enumerate(it.operands)
    }
    return _comparisons(module, inner, inner.instructions[inner.root], values)
  if it.op != "compare":
    return []
  direction = re.search(r"direction=(\w+)", it.attributes)[1]
  left, right = (_value(where, name, given) for name in it.operands)
  if isinstance(right, tuple) and not isinstance(left, tuple):
    left, right, direction = right, left, FLIPPED.get(direction, direction)
  if not isinstance(left, tuple) or right is None or direction not in FLIPPED:
    return []
  return [(left[1], direction, right)]


def _value(where: Computation, name: str, given: Mapping) -> int | tuple | None:
  """An integer constant, ("tuple", i) for element i of the loop's state, or None."""
  if name in given:
    return given[name]
  it = where.instructions[name]
  if it.op == "constant":
    return int(it.literal) if re.fullmatch(r"-?\d+", it.literal) else None
  if it.op in ("copy", "bitcast", "convert", "reshape"):
    return _value(where, it.operands[0], given)
  if it.op == "get-tuple-element":
    return ("tuple", int(re.search(r"index=(\d+)", it.attributes)[1]))
  return None


def _initial(inside: Computation, operand: Instruction, index: int) -> int | None:
  """The constant that an element of a loop's state starts with."""
  if operand.op != "tuple":
    return None
  value = _value(inside, operand.operands[index], {})
  return value if isinstance(value, int) else None


def _step(body: Computation, index: int) -> int:
  """What a loop's body adds to its counter; 1 where it is not a plain addition."""
  root = body.instructions[body.root]
  if root.op != "tuple":
    return 1
  it = body.instructions[root.operands[index]]
  while it.op in ("copy", "bitcast"):
    it = body.instructions[it.operands[0]]
  if it.op != "add":
    return 1
  steps = [_value(body, name, {}) for name in it.operands]
  return next((step for step in steps if isinstance(step, int) and step), 1)


# ---- memory --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Buffer:
  """A buffer in HBM: bytes, shape, what it is (argument, temporary, output) and what made it."""

  size: int
  shape: str
  kind: str
  made_by: str


@dataclasses.dataclass(frozen=True)
class Memory:
  """HBM of one program on a device, in bytes, as XLA assigned it.

  Attributes:
    arguments: all arguments, donated ones included.
    outputs: results that do not take a donated argument's place.
    temporaries: everything else that is alive only while the program runs.
    donated: arguments whose memory the results take.
    host: bytes in the host's memory.
    largest: the largest buffers, arguments and temporaries mixed.
  """

  arguments: int
  outputs: int
  temporaries: int
  donated: int
  host: int
  largest: tuple[Buffer, ...]

  @property
  def total(self) -> int:
    return self.arguments + self.outputs + self.temporaries


ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(.*)$")
VALUE = re.compile(r"^ value: <\d+ (.+?) @\d+> \(size=(\d+),offset=(\d+)\): (.*)$")


def program_memory(assignment: str, text: str, largest: int = 8) -> Memory:
  """Reads the buffer-assignment dump.

  Args:
    assignment: the file *after_optimizations-buffer-assignment.txt.
    text: the optimised HLO module, for the names of operations.
    largest: how many buffers to name.

  Raises:
    ValueError: no allocation in the text.
  """
  lines = assignment.splitlines()
  if not any(ALLOCATION.match(line) for line in lines):
    raise ValueError("expected a buffer-assignment dump of XLA, got a text without allocations")
  scopes = {
    it.name: scope[1]
    for computation in parse(text).computations.values()
    for it in computation.instructions.values()
    if (scope := re.search(r'\bop_name="([^"]*)"', it.attributes))
  }
  sums, buffers, kind, seen = collections.Counter(), [], None, set()
  for line in lines:
    allocation = ALLOCATION.match(line)
    if allocation:
      flags = allocation[2]
      color = re.search(r"color (\d+)", flags)
      space = int(color[1]) if color else HBM
      size, kind, seen = int(allocation[1]), None, set()
      if space == HOST:
        sums["host"] += size
      # What a called computation holds by itself lies in its caller's buffers: XLA's own sums
      # leave it out too.
      if space != HBM or "thread-local" in flags:
        continue
      live_out = "maybe-live-out" in flags
      kind = (
        "argument" if "parameter " in flags else "output" if live_out else "temporary"
      )
      sums[kind] += size
      if kind == "argument" and live_out:
        sums["donated"] += size
      continue
    value = VALUE.match(line)
    if value and kind:
      name, size, offset, shape = value[1], int(value[2]), value[3], value[4]
      if (offset, size) in seen or shape.startswith("("):
        continue
      seen.add((offset, size))
      instruction = re.sub(r"\{.*?\}|\s*\(phi\)", "", name).strip()
      buffers.append(Buffer(size, shape.split("{")[0], kind, scopes.get(instruction, instruction)))
  buffers.sort(key=lambda buffer: -buffer.size)
  return Memory(
    arguments=sums["argument"], outputs=sums["output"], temporaries=sums["temporary"],
    donated=sums["donated"], host=sums["host"], largest=tuple(buffers[:largest]),
  )
