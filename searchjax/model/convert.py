"""Hugging Face folders to the policy checkpoints of searchjax, and back.  HOST.

    python -m searchjax.model.convert --from-hf DIR --to DIR      read: DIR/policy, as a stage's
    python -m searchjax.model.convert --from DIR --to-hf DIR      write: what transformers loads

Reading takes the prefixes `model.` and `model.language_model.`, experts fused or one by one, and
FP8 weights with block scales (w = fp8 · scale[row // 128, column // 128], rounded once); vision
and MTP tensors are skipped and counted; any other difference is an error that names the tensor.
Both directions go through our arrays block by block, so memory holds a few blocks whatever the
model; on a pod each process makes its share of the blocks. `load_params` puts a folder straight
onto devices, each process reading only the slices that its devices hold.

A preference model's value head is the tensor `score.weight` [1, D], as in transformers'
Qwen3MoeForSequenceClassification (there is no such class for Qwen3.5); a folder that has one gives
a policy with a value head, for `load_policy(..., value_head=True)`.

Letters  none.
Source   safetensors; transformers 5.24 conversion_mapping.py; DeepSeek-V3's FP8 layout.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import pathlib
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import rich.console
import rich.progress
from absl import logging

from searchjax.dist import checkpoint, tensor_files
from searchjax.dist.checkpoint import Box
from searchjax.dist.storage import is_remote
from searchjax.model.config import ModelConfig
from searchjax.model.hf_config import config_from_hf, hf_config
from searchjax.model.hf_names import (
  FUSED_EXPERTS,
  PREFIXES,
  SKIPPED,
  VALUE_HEAD,
  NameMap,
  flat_specs,
  name_map,
)

DTYPES = ("bfloat16", "float32")
SCALE = "_scale_inv"
SECONDS_BETWEEN_LINES = 10.0
TOKENIZER_FILES = (
  "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json",
  "special_tokens_map.json", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

_FLOATS = tuple(tensor_files.DTYPES[name] for name in ("BF16", "F16", "F32"))
_FP8 = tensor_files.DTYPES["F8_E4M3"]


@dataclasses.dataclass(frozen=True)
class HfFolder:
  """A Hugging Face folder, checked against its config.json.

  Attributes:
    folder: where it is.
    model: its sizes; `param_dtype` is what the parameters become.
    names: where each parameter lies.
    stored: every tensor that is used, scales included.
    scale_block: rows and columns that share a scale, or None without FP8 weights.
    skipped: number of tensors left out, by kind.
  """

  folder: pathlib.Path
  model: ModelConfig
  names: NameMap
  stored: dict[str, tensor_files.StoredTensor]
  scale_block: tuple[int, int] | None
  skipped: dict[str, int]

  @property
  def value_head(self) -> bool:
    return VALUE_HEAD in self.names.leaves

  def read(self, name: str, box: Box) -> np.ndarray:
    """A box of the parameter `name` ("moe.gate_up"); touches only the bytes it needs.

    Args:
      box: slices with start and stop, one an axis.

    Returns:
      The values in the parameter's dtype.
    """
    dtype = np.dtype(self.names.leaves[name].spec.dtype)
    block = np.empty([part.stop - part.start for part in box], dtype)
    for link, inside, place in self.names.links(name, box):
      stored = self.stored[link.tensor]
      values = link.view(stored.map())[inside]
      if stored.dtype == _FP8:
        assert self.scale_block is not None
        scale = self.stored[link.tensor + SCALE].map()
        values = values.astype(np.float32) * link.block_scale(scale, self.scale_block, inside)
      _copy(block, place, values)
    return block

  def rounded(self) -> int:
    """How many tensors lose digits on the way: wider in the file than here."""
    return sum(
      self.stored[name].dtype != _FP8
      and np.dtype(spec.dtype) not in (self.stored[name].dtype, np.dtype(np.float32))
      for name, spec in self.names.tensors.items()
    )


def open_hf(folder: str | pathlib.Path, dtype: str | None = None) -> HfFolder:
  """Opens a folder and checks every name, shape and dtype; reads no weights.

  Args:
    folder: with config.json and safetensors.
    dtype: of the parameters; None takes the one config.json names. A_log, dt_bias, the
      gated norm and the value head are float32 whatever it is.

  Raises:
    ValueError: a tensor is unknown, missing or does not fit, or the folder is not of a known kind.
  """
  folder = pathlib.Path(folder)
  config = _read_json(folder / "config.json")
  scale_block = _scale_block(config)
  model = config_from_hf(
    config, name=folder.resolve().name, real_vocab_size=_real_vocab(folder),
    **({"param_dtype": dtype} if dtype else {}),
  )  # fmt: skip
  stored = tensor_files.open_tensors(folder)
  skipped: Counter[str] = Counter()
  used = {}
  for name, tensor in stored.items():
    kind = next((kind for kind, prefix in SKIPPED.items() if name.startswith(prefix)), None)
    if kind is None:
      used[name] = tensor
    else:
      skipped[kind] += 1
  prefix = next((p for p in PREFIXES if f"{p}embed_tokens.weight" in used), None)
  if prefix is None:
    expected = " or ".join(f"{p}embed_tokens.weight" for p in PREFIXES)
    raise ValueError(f"no tensor {expected} in {folder}; it holds no Qwen text model")
  fused = any(name.endswith(FUSED_EXPERTS) for name in used)
  names = name_map(model, prefix=prefix, fused=fused, value_head="score.weight" in used)
  _check_tensors(folder, names, used, scale_block)
  return HfFolder(folder, model, names, used, scale_block, dict(skipped))


def load_params(hf: HfFolder, shardings: Any) -> dict:
  """Puts a folder onto devices; each process reads only the slices its own devices hold.

  Args:
    shardings: the parameter tree's shardings, or one sharding for every parameter.

  Returns:
    The parameter tree.
  """
  specs = flat_specs(hf.model, hf.value_head)
  if isinstance(shardings, jax.sharding.Sharding):
    of = dict.fromkeys(specs, shardings)
  else:
    of = _flat(shardings)
  arrays = {}
  for name, spec in specs.items():
    read = lambda index, name=name, shape=spec.shape: hf.read(name, _whole_slices(index, shape))
    arrays[name] = jax.make_array_from_callback(spec.shape, of[name], read)
  return _nest(arrays)


def from_hf(
  source: str | pathlib.Path,
  target: str | pathlib.Path,
  *,
  dtype: str | None = None,
  report: Callable[[str], None] = print,
) -> ModelConfig:
  """Converts a Hugging Face folder into a stage's folder: policy/, tokenizer files, config.json.

  Args:
    source: folder with config.json and safetensors.
    target: not there yet, or empty; complete or absent afterwards.
    dtype: as in `open_hf`.
    report: called with a line of text now and then.

  Returns:
    The policy's sizes.

  Raises:
    ValueError: as `open_hf`, or `target` is in use, or one of the two lies in a bucket.
  """
  source = _local(source)
  with _whole_folder(target) as partial:
    hf = open_hf(source, dtype)
    for kind, number in sorted(hf.skipped.items()):
      report(f"skipped {number} {kind} tensors ({SKIPPED[kind]}*)")
    if hf.rounded():
      report(f"rounding {hf.rounded()} tensors to {hf.model.param_dtype}")
    if hf.scale_block:
      report(f"dequantising FP8 weights, one scale per {list(hf.scale_block)} block")
    specs = flat_specs(hf.model, hf.value_head)
    shapes = {name: jax.ShapeDtypeStruct(spec.shape, spec.dtype) for name, spec in specs.items()}
    with _progress(shapes, report) as advance:

      def read(name: str, box: Box) -> np.ndarray:
        block = hf.read(name, box)
        advance(name, block.nbytes)
        return block

      meta = {"model": dataclasses.asdict(hf.model)}
      checkpoint.save_blocks(partial / "policy", 0, _nest(shapes), read, meta)
    if jax.process_index() == 0:
      _copy_files(source, partial, (*TOKENIZER_FILES, "config.json"))
  return hf.model


def to_hf(
  source: str | pathlib.Path,
  target: str | pathlib.Path,
  *,
  dtype: str | None = None,
  file_bytes: int = 5_000_000_000,
  report: Callable[[str], None] = print,
) -> ModelConfig:
  """Converts a stage's policy, or preference model, into a folder that transformers loads.

  Names are those of the published repositories: prefix `model.`; experts fused for Qwen3.5, one by
  one for Qwen3. A_log, dt_bias, the gated norm and the value head stay float32. One process.

  Args:
    source: folder with policy/; tokenizer files beside it are copied.
    target: not there yet, or empty; complete or absent afterwards.
    dtype: of the other tensors; None leaves them as they are.
    file_bytes: size of a safetensors file.
    report: called with a line of text now and then.

  Returns:
    The policy's sizes.

  Raises:
    ValueError: no finished policy in `source`, or `target` is in use, one of the two lies in a
      bucket, or this is one process of several.
  """
  if jax.process_count() > 1:
    raise ValueError(
      f"a Hugging Face folder is written by one process, this run has {jax.process_count()}; when "
      f"it has ended: python -m searchjax.model.convert --from {source} --to-hf {target}"
    )
  source = _local(source)
  policy = source / "policy"
  with _whole_folder(target) as partial:
    shapes = checkpoint.saved_shapes(policy)
    model = ModelConfig(**checkpoint.read_meta(policy)["model"])
    value_head = VALUE_HEAD in shapes
    _check_policy(policy, shapes, flat_specs(model, value_head))
    model = dataclasses.replace(model, param_dtype=dtype or model.param_dtype)
    config = hf_config(model)
    fused = config["model_type"] != "qwen3_moe"
    names = name_map(model, prefix="model.", fused=fused, value_head=value_head)
    layout = {name: (spec.shape, np.dtype(spec.dtype)) for name, spec in names.tensors.items()}
    stored = tensor_files.create_tensors(partial, layout, file_bytes=file_bytes)
    with _progress(shapes, report) as advance:
      for name, box, block in checkpoint.saved_blocks(policy):
        for link, inside, place in names.links(name, box):
          _copy(link.view(stored[link.tensor].map("r+")), inside, block[place])
        advance(name, block.nbytes)
    config |= _token_ids(source)
    if value_head:
      config |= {"num_labels": 1}
      if not fused:
        config |= {"architectures": ["Qwen3MoeForSequenceClassification"]}
      report("the value head is score.weight")
    text = json.dumps(config, indent=2) + "\n"
    (partial / "config.json").write_text(text, encoding="utf-8")
    _copy_files(source, partial, TOKENIZER_FILES)
  return model


def main(arguments: Sequence[str] | None = None) -> int:
  """Converts; 2 for bad input, after one line on standard error."""
  parser = _Parser(
    prog="python -m searchjax.model.convert",
    allow_abbrev=False,
    description=(
      "Converts a Hugging Face folder (config.json, safetensors; types qwen3_5_moe and qwen3_moe) "
      "into a stage's folder with policy/, or such a folder into a Hugging Face folder. Memory "
      "holds a few hundred megabytes whatever the model. Nothing is written unless all of it is."
    ),
    epilog=(
      "example: --from-hf Qwen3.5-35B-A3B --to runs/base, train, then --from runs/base --to-hf out"
    ),
  )
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument("--from-hf", metavar="DIR", help="Hugging Face folder to read; needs --to")
  source.add_argument(
    "--from", metavar="DIR", dest="from_policy",
    help="stage's folder to read (the one with policy/ in it); needs --to-hf",
  )  # fmt: skip
  parser.add_argument("--to", metavar="DIR", help="stage's folder to write; must not exist")
  parser.add_argument("--to-hf", metavar="DIR", help="Hugging Face folder to write; must not exist")
  parser.add_argument(
    "--dtype", choices=DTYPES,
    help="of the weights (default: what config.json or the policy says); A_log, dt_bias, the gated "
    "norm and a value head stay float32",
  )  # fmt: skip
  # Orbax warns of every record it does not need.
  logging.set_verbosity(logging.ERROR)
  begun = time.monotonic()
  try:
    given = parser.parse_args(arguments)
    if (given.from_hf is None) != (given.to is None) or (given.to is None) == (given.to_hf is None):
      raise ValueError("give --from-hf DIR --to DIR, or --from DIR --to-hf DIR (--help says more)")
    if given.from_hf is not None:
      model, target = from_hf(given.from_hf, given.to, dtype=given.dtype), given.to
    else:
      model, target = to_hf(given.from_policy, given.to_hf, dtype=given.dtype), given.to_hf
  except ValueError as error:
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    return 2
  print(f"{model.name}: wrote {target} in {time.monotonic() - begun:.0f} s")
  return 0


class _Parser(argparse.ArgumentParser):
  """Bad arguments are errors like all others."""

  def error(self, message: str) -> None:
    raise ValueError(f"{message} (--help shows the arguments)")


def _copy(target: np.ndarray, place: Any, values: np.ndarray) -> None:
  """target[place] = values, rounded where the dtypes differ."""
  if target.dtype == values.dtype and target.dtype.itemsize == 2:
    # NumPy moves its own integers several times faster than bfloat16.
    target.view(np.uint16)[place] = values.view(np.uint16)
  else:
    target[place] = values.astype(target.dtype)


def _read_json(path: pathlib.Path) -> dict:
  if not path.is_file():
    raise ValueError(f"no file {path}; give a Hugging Face folder with config.json")
  try:
    record = json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ValueError(f"{path} is not JSON: {error}") from error
  if not isinstance(record, dict):
    raise ValueError(f"{path} holds a {type(record).__name__}, expected an object")
  return record


def _scale_block(config: dict) -> tuple[int, int] | None:
  quantization = config.get("quantization_config")
  if quantization is None:
    return None
  method, block = quantization.get("quant_method"), quantization.get("weight_block_size")
  if method != "fp8" or not isinstance(block, list) or len(block) != 2:
    raise ValueError(
      f'quantization "{method}" with weight_block_size {block} is not read; expected "fp8" with '
      "[rows, columns], or a repository in bfloat16"
    )
  return block[0], block[1]


def _real_vocab(folder: pathlib.Path) -> int | None:
  """Number of ids the folder's tokenizer can produce; None where it has no tokenizer.json."""
  path = folder / "tokenizer.json"
  if not path.is_file():
    return None
  record = _read_json(path)
  vocabulary = record.get("model", {}).get("vocab", {})
  # Unigram models list their tokens; the others map them to ids.
  ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
  return 1 + max([*ids, *(token["id"] for token in record.get("added_tokens", []))], default=-1)


def _check_tensors(
  folder: pathlib.Path,
  names: NameMap,
  stored: dict[str, tensor_files.StoredTensor],
  scale_block: tuple[int, int] | None,
) -> None:
  scales = {
    name + SCALE
    for name in names.tensors
    if scale_block and name in stored and stored[name].dtype == _FP8
  }
  expected = names.tensors.keys() | scales
  for kind, odd in (("unknown", stored.keys() - expected), ("missing", expected - stored.keys())):
    if odd:
      more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
      raise ValueError(
        f"{kind} tensor {min(odd)}{more} in {folder}; config.json describes {len(expected)} tensors"
      )
  for name, spec in names.tensors.items():
    found = stored[name]
    if found.shape != spec.shape:
      raise ValueError(
        f"tensor {name} in {folder} is {list(found.shape)}, expected {list(spec.shape)} by "
        "config.json"
      )
    if found.dtype not in (*_FLOATS, _FP8) or (found.dtype == _FP8 and not scale_block):
      raise ValueError(
        f"tensor {name} in {folder} is {found.dtype}; expected bfloat16, float16, float32, or "
        f"float8_e4m3fn with a quantization_config in config.json"
      )
  for name in sorted(scales):
    assert scale_block is not None
    whole = names.tensors[name.removesuffix(SCALE)].shape
    blocks = (1,) * (len(whole) - 2) + scale_block
    wanted = tuple(math.ceil(size / part) for size, part in zip(whole, blocks, strict=True))
    if stored[name].shape != wanted or stored[name].dtype not in _FLOATS:
      raise ValueError(
        f"tensor {name} in {folder} is {stored[name].dtype}{list(stored[name].shape)}, expected "
        f"a float of {list(wanted)}: one per block of {list(scale_block)}"
      )


def _token_ids(source: pathlib.Path) -> dict[str, Any]:
  """What the config.json that the policy came with says of the tokenizer."""
  if not (source / "config.json").is_file():
    return {}
  config = _read_json(source / "config.json")
  found = config | config.get("text_config", {})
  return {key: found[key] for key in TOKEN_IDS if key in found}


def _check_policy(policy: pathlib.Path, shapes: dict[str, Any], specs: dict[str, Any]) -> None:
  for name in sorted(shapes.keys() | specs.keys()):
    there = tuple(shapes[name].shape) if name in shapes else "absent"
    wanted = specs[name].shape if name in specs else "absent"
    if there != wanted:
      raise ValueError(
        f"parameter {name} in {policy} is {there}, expected {wanted} by the sizes beside it"
      )


@contextlib.contextmanager
def _whole_folder(target: str | pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder to write into that takes the name `target` when the block ends well."""
  target = _local(target).absolute()
  if target.exists() and (not target.is_dir() or any(target.iterdir())):
    raise ValueError(f"{target} is there already; remove it or give another folder")
  partial = target.with_name(target.name + ".partial")
  first = jax.process_index() == 0
  if first:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
  try:
    yield partial
  except BaseException:
    if first:
      shutil.rmtree(partial, ignore_errors=True)
    raise
  if first:
    if target.is_dir():
      target.rmdir()
    partial.rename(target)
  checkpoint.barrier("folder has its name")


def _local(folder: str | pathlib.Path) -> pathlib.Path:
  if is_remote(folder):
    raise ValueError(
      f"folders are converted on a local disk, got {folder}; copy it from or to there with "
      f"gcloud storage cp -r"
    )
  return pathlib.Path(folder)


def _copy_files(source: pathlib.Path, target: pathlib.Path, names: Sequence[str]) -> None:
  for name in names:
    if (source / name).is_file():
      shutil.copyfile(source / name, target / name)


@contextlib.contextmanager
def _progress(
  shapes: dict[str, Any], report: Callable[[str], None]
) -> Iterator[Callable[[str, int], None]]:
  """Gives a function to call with (parameter, bytes done): a bar on a terminal, else some lines."""
  total = sum(
    math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in shapes.values()
  )
  console = rich.console.Console(file=sys.stdout)
  if console.is_terminal:
    columns = (
      rich.progress.TextColumn("{task.description:24}"),
      rich.progress.BarColumn(bar_width=24),
      rich.progress.DownloadColumn(),
      rich.progress.TransferSpeedColumn(),
      rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console) as bar:
      task = bar.add_task("", total=total)
      yield lambda name, done: bar.update(task, description=name, advance=done)
    return
  begun = last = time.monotonic()
  sofar = 0

  def advance(name: str, done: int) -> None:
    nonlocal sofar, last
    sofar += done
    now = time.monotonic()
    if now - last >= SECONDS_BETWEEN_LINES:
      last = now
      report(f"{name}: {sofar / 1e9:.1f} of {total / 1e9:.1f} GB after {now - begun:.0f} s")

  yield advance


def _whole_slices(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
  bounds = (part.indices(size) for part, size in zip(index, shape, strict=True))
  return tuple(slice(start, stop) for start, stop, _ in bounds)


def _flat(tree: dict) -> dict[str, Any]:
  return {
    ".".join(part.key for part in path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def _nest(leaves: dict[str, Any]) -> dict:
  tree: dict[str, Any] = {}
  for name, leaf in leaves.items():
    *blocks, last = name.split(".")
    node = tree
    for block in blocks:
      node = node.setdefault(block, {})
    node[last] = leaf
  return tree


if __name__ == "__main__":
  sys.exit(main())
