"""Strict JAX, four virtual CPU devices, and annotations that are executed."""

import os

# Before jax is imported: its back end reads these once. Nearly all of a test's time is compilation,
# which costs a third less at this level.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
for flag in ("--xla_force_host_platform_device_count=4", "--xla_backend_optimization_level=1"):
  if flag.split("=")[0] not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " " + flag).strip()

import pathlib  # noqa: E402
import sys  # noqa: E402

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# Every annotation in searchjax is checked at every call, shapes and dtypes included.
# SEARCHJAX_TYPECHECK=0 turns it off, to see whether a failure comes from the check itself.
if os.environ.get("SEARCHJAX_TYPECHECK", "1") != "0":
  # An int is a float here, as it is for type checkers.
  tower = "beartype.BeartypeConf(is_pep484_tower=True)"
  jaxtyping.install_import_hook("searchjax", f"beartype.beartype(conf={tower})")


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
  """The repository's root."""
  return ROOT


@pytest.fixture(scope="session")
def plain_environment() -> dict[str, str]:
  """The environment of a subprocess that runs an entry point as a user would: one CPU device."""
  environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  environment["PYTHONPATH"] = str(ROOT)
  environment["JAX_PLATFORMS"] = "cpu"
  return environment


@pytest.fixture(scope="session")
def shared(repository: pathlib.Path) -> pathlib.Path:
  """The folder of reference material beside the repository; tests that need it skip without."""
  folder = repository.parent / "shared"
  if not folder.is_dir():
    pytest.skip("no ../shared folder with reference material beside this repository")
  return folder
