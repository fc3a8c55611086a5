"""Peak memory and speed of model/convert.py: `python tests/benchmarks/convert.py [--gigabytes 3]`.

Makes a random checkpoint of that size in a temporary folder, converts it to a policy and back in a
fresh process each, prints what memory grew by next to the largest tensor, and checks that every
byte came back.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

from searchjax.dist import tensor_files
from searchjax.model import convert
from searchjax.model.config import ModelConfig, model_config
from searchjax.model.hf_config import hf_config
from searchjax.model.hf_names import name_map

# A layer of this model, of which the experts are one tensor of 0.27 and one of 0.13 GB.
LAYER_GIGABYTES = 0.47


def peak_memory() -> int:
  """Largest resident set of this process so far, in bytes; pages of mapped files count."""
  status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
  return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


def random_folder(folder: pathlib.Path, gigabytes: float) -> ModelConfig:
  """A bfloat16 qwen3_5_moe folder in files of at most 1 GB, fused experts."""
  layers = 4 * max(1, math.ceil(gigabytes / LAYER_GIGABYTES / 4))
  model = model_config(
    "qwen3.5-35b-a3b", num_layers=layers, num_experts=64, vocab_size=16384, real_vocab_size=16384
  )
  names = name_map(model, prefix="model.", fused=True)
  layout = {name: (spec.shape, np.dtype(spec.dtype)) for name, spec in names.tensors.items()}
  stored = tensor_files.create_tensors(folder, layout, file_bytes=1_000_000_000)
  rng = np.random.default_rng(0)
  for tensor in stored.values():
    flat = tensor.map("r+").reshape(-1)
    for start in range(0, flat.size, 1 << 24):
      part = flat[start : start + (1 << 24)]
      part[:] = rng.standard_normal(part.size, np.float32).astype(part.dtype)
  (folder / "config.json").write_text(json.dumps(hf_config(model)), encoding="utf-8")
  return model


def measure(direction: str, source: pathlib.Path, target: pathlib.Path) -> tuple[float, float]:
  """Gigabytes that memory grew by, and seconds, in a process of its own."""
  command = [sys.executable, __file__, "--child", direction, str(source), str(target)]
  output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
  grown, seconds = output.split()[-2:]
  return int(grown) / 1e9, float(seconds)


def child(direction: str, source: str, target: str) -> None:
  """Prints the growth of peak memory over one conversion, and its seconds."""
  tiny = pathlib.Path(target).parent / f"warm-{direction}"
  tiny.mkdir()
  # What importing and starting JAX and Orbax takes belongs to no model.
  small = model_config("tiny", tie_embeddings=False)
  names = name_map(small, prefix="model.", fused=True)
  layout = {name: (spec.shape, np.dtype(spec.dtype)) for name, spec in names.tensors.items()}
  tensor_files.create_tensors(tiny, layout)
  (tiny / "config.json").write_text(json.dumps(hf_config(small)), encoding="utf-8")
  quiet = lambda text: None
  convert.from_hf(tiny, tiny / "policy", report=quiet)
  convert.to_hf(tiny / "policy", tiny / "back", report=quiet)
  before, begun = peak_memory(), time.perf_counter()
  {"from-hf": convert.from_hf, "to-hf": convert.to_hf}[direction](source, target, report=quiet)
  print(peak_memory() - before, time.perf_counter() - begun)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--gigabytes", type=float, default=3.0)
  parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.child:
    child(*options.child)
    return
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    (folder / "hf").mkdir()
    model = random_folder(folder / "hf", options.gigabytes)
    tensors = tensor_files.open_tensors(folder / "hf")
    largest = max(tensor.nbytes for tensor in tensors.values())
    total = sum(tensor.nbytes for tensor in tensors.values())
    print(f"checkpoint {total / 1e9:.2f} GB, {model.num_layers} layers, {len(tensors)} tensors, "
          f"largest {largest / 1e9:.2f} GB")
    print("direction  memory grew by  seconds   MB/s")
    for direction, source, target in (("from-hf", "hf", "policy"), ("to-hf", "policy", "back")):
      grown, seconds = measure(direction, folder / source, folder / target)
      print(f"{direction:9s}  {grown:11.2f} GB  {seconds:7.1f}  {total / 1e6 / seconds:5.0f}")
    back = tensor_files.open_tensors(folder / "back")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
      assert tensor.dtype == back[name].dtype
      assert np.array_equal(tensor.map().view(np.uint8), back[name].map().view(np.uint8)), name
    print("every byte came back")


if __name__ == "__main__":
  main()
