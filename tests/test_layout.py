"""The tree: which way imports point, what pure modules may not touch, what must be there."""

import ast
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "searchjax"

# A package imports only packages to its left; entry points stand at the end.
ORDER = ("dist", "model", "objective", "search", "data", "rollout", "reward", "optim", "evals")

PURE = (
  "dist/sharding.py",
  "model/",
  "objective/",
  "optim/",
  "reward/penalties.py",
  "reward/combine.py",
)
HOST_EXCEPTIONS = ("model/convert.py",)
# Modules that mean a clock, a file, the network, a thread or hidden randomness.
IMPURE_MODULES = {
  "asyncio", "concurrent", "datetime", "glob", "httpx", "io", "logging", "multiprocessing", "os",
  "pathlib", "pickle", "queue", "random", "requests", "shutil", "signal", "socket", "starlette",
  "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uvicorn", "orbax",
  "tensorboardX",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}

# Names that say nothing about their content, and words that belong to no published code.
EMPTY_NAMES = re.compile(r"(^|_)(utils?|helpers?|misc|common|stuff|v\d+)$")
BANNED_WORDS = re.compile(
  r"NotImplementedError|\bTODO\b|\bFIXME\b|\bXXX\b|/work/|/tmp/plan|/root/|-----BEGIN|"
  r"pypi\.org/simple|--index-url|--extra-index-url|--find-links"
)
TEXT_SUFFIXES = {".py", ".sh", ".md", ".html", ".ipynb", ".ini", ".cfg", ".toml", ".lock", ""}

SOURCES = sorted(path for path in PACKAGE.rglob("*.py"))


def _name(path: pathlib.Path) -> str:
  return path.relative_to(PACKAGE).as_posix()


def _imports(tree: ast.AST) -> list[str]:
  names = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "relative import: write the whole name"
      names += [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
  return names


def _tracked() -> list[pathlib.Path]:
  listed = subprocess.run(
    ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
  )
  if listed.returncode:
    pytest.skip("not a git checkout")
  return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_imports_point_one_way(path):
  parts = path.relative_to(PACKAGE).parts
  own = ORDER.index(parts[0]) if len(parts) > 1 else len(ORDER)
  for name in _imports(ast.parse(path.read_text(encoding="utf-8"))):
    words = name.split(".")
    if words[0] != "searchjax" or len(words) < 2:
      continue
    if words[1] in ORDER:
      assert ORDER.index(words[1]) <= own, f"{parts[0]} must not import searchjax.{words[1]}"
    elif words[1] != "__version__":
      assert own == len(ORDER), (
        f"{_name(path)} must not import the entry point searchjax.{words[1]}"
      )


def _is_pure(path: pathlib.Path) -> bool:
  name = _name(path)
  return name.startswith(PURE) and name not in HOST_EXCEPTIONS


@pytest.mark.parametrize("path", [path for path in SOURCES if _is_pure(path)], ids=_name)
def test_pure_modules_touch_nothing_outside_their_arguments(path):
  tree = ast.parse(path.read_text(encoding="utf-8"))
  for name in _imports(tree):
    assert name.split(".")[0] not in IMPURE_MODULES, f"pure module imports {name}"
    host = ("searchjax.dist", "searchjax.search", "numpy.random")
    assert not name.startswith(host) or name.startswith("searchjax.dist.sharding"), name
  for node in ast.walk(tree):
    assert not isinstance(node, ast.Global | ast.Nonlocal), f"line {node.lineno}: global state"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
      assert node.func.id not in IMPURE_CALLS, f"line {node.lineno}: {node.func.id}()"
    if isinstance(node, ast.Attribute) and node.attr == "random":
      owner = getattr(node.value, "id", "")
      assert owner not in ("np", "numpy"), f"line {node.lineno}: hidden randomness"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_every_module_says_what_it_is(path):
  docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
  assert docstring, "no docstring"
  if path.name == "__init__.py":
    assert docstring.count("\n") == 0
    return
  kinds = "PURE" if _is_pure(path) else "PURE|HOST"
  first = docstring.split("\n\n")[0]
  assert re.search(rf"\.  ({kinds})\b", first), f"the first sentence is not followed by {kinds}"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_errors_are_not_swallowed(path):
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.ExceptHandler):
      assert node.type is not None, f"line {node.lineno}: bare except"
      only_pass = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
      assert not only_pass, f"line {node.lineno}: except ...: pass"


def test_importing_has_no_effects_beyond_definitions():
  allowed = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign,
    ast.AnnAssign, ast.AugAssign, ast.If, ast.Assert,
  )  # fmt: skip
  for path in SOURCES:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
      is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
      assert isinstance(node, allowed) or is_docstring, f"{_name(path)}, line {node.lineno}"


def test_names_say_something():
  for path in _tracked():
    assert not EMPTY_NAMES.search(path.stem), path.relative_to(ROOT)


def test_the_face_is_there():
  for name in (
    "LICENSE", "README.md", "CHANGELOG.md", "setup.py", "requirements.lock", ".ci/run",
    "launch/quickstart.sh", "launch/tests.sh", "launch/ablate.sh", "notebooks/figures.ipynb",
    "docs/metrics.md", "docs/decisions.md",
  ):  # fmt: skip
    assert (ROOT / name).is_file(), name
  licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
  assert "Apache License" in licence and "END OF TERMS AND CONDITIONS" in licence
  assert 'license="Apache-2.0"' in (ROOT / "setup.py").read_text(encoding="utf-8")


def test_every_package_has_a_place_in_the_order():
  packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
  assert packages == set(ORDER)


def test_no_words_of_unfinished_or_private_work():
  for path in _tracked():
    if path == pathlib.Path(__file__) or path.suffix not in TEXT_SUFFIXES:
      continue
    if path.stat().st_size > 1_000_000:
      continue
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
      found = BANNED_WORDS.search(line)
      assert not found, f"{path.relative_to(ROOT)}, line {number}: {found[0]}"


def test_lines_are_at_most_100_characters():
  for path in _tracked():
    if path.suffix != ".py":
      continue
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
      width = 110 if path.is_relative_to(ROOT / "tests") else 100
      assert len(line) <= width, f"{path.relative_to(ROOT)}, line {number}: {len(line)} characters"
      indent = len(line) - len(line.lstrip(" "))
      assert "\t" not in line[:indent], f"{path.relative_to(ROOT)}, line {number}: tab"


def test_the_readmes_links_lead_somewhere():
  for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
      if not target.startswith(("http://", "https://")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readmes_paths_exist():
  """Files named in the README as `searchjax/...`, `configs/...`, `launch/...` are there."""
  text = (ROOT / "README.md").read_text(encoding="utf-8")
  named = set(
    re.findall(r"\b((?:searchjax|configs|launch|docs|notebooks|tests)/[\w./]+\.\w+)", text)
  )
  assert named
  for name in sorted(named):
    assert (ROOT / name).exists(), f"README.md names {name}"


def test_every_fault_that_is_named_is_explained():
  page = set(re.findall(r"\b[A-Z]\d{1,2}\b", (ROOT / "docs/faults.md").read_text(encoding="utf-8")))
  for path in (*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))):
    named = re.findall(r"(?:\b|_)([TMPXRGAJLBHCYW]\d{1,2})(?=\b|_)", path.read_text(encoding="utf-8"))
    assert set(named) <= page, f"{path.relative_to(ROOT)}: {sorted(set(named) - page)}"
