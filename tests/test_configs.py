"""Every config is a recipe card that loads, and a mistyped key is caught."""

import ast
import json
import pathlib
import re

import pytest

from searchjax.dist import settings

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))
CARD = ("shows", "hardware", "expect", "command")
TINY = ("sft_tiny", "rm_tiny", "grpo_tiny", "evaluate_tiny")


def _card(path: pathlib.Path) -> str:
  return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def test_the_quickstarts_configs_are_there():
  names = {path.stem for path in CONFIGS}
  missing = [name for name in TINY if name not in names]
  assert not missing, f"launch/quickstart.sh needs configs/{missing}"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_loads_and_resolves_to_json(path):
  config = settings.load_config(str(path))
  assert json.loads(json.dumps(config.to_dict())) is not None
  assert "seed" in config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_a_recipe_card(path):
  card = _card(path)
  assert len(card.splitlines()[0]) > 20, "the first line says what it shows"
  for word in CARD:
    assert re.search(rf"^\s*{word}\b", card, re.IGNORECASE | re.MULTILINE), f'no line "{word}"'
  assert re.search(r"\d+ (seconds|minutes|hours)|minute", card), "no time"
  assert f"configs/{path.name}" in card, "the command names the file"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_mistyped_key_names_the_nearest(path):
  keys = settings.flatten(settings.load_config(str(path)))
  for key in list(keys)[::7]:
    head, _, leaf = key.rpartition(".")
    mistyped = f"{head}.{leaf}x" if head else f"{leaf}x"
    if mistyped in keys:
      continue
    with pytest.raises(ValueError, match=f'unknown config key "{re.escape(mistyped)}"; nearest: '):
      settings.load_config(str(path), [f"--config.{mistyped}=1"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_value_of_another_type_is_refused(path):
  for key, value in settings.flatten(settings.load_config(str(path))).items():
    if isinstance(value, bool | int | float):
      with pytest.raises(ValueError, match=f'config key "{re.escape(key)}" expects'):
        settings.load_config(str(path), [f"--config.{key}=nothing"])


@pytest.mark.parametrize("name", TINY)
def test_the_tiny_configs_have_a_smoke_variant_that_is_smaller(name):
  path = ROOT / f"configs/{name}.py"
  whole, smoke = settings.load_config(str(path)), settings.load_config(f"{path}:smoke")
  assert settings.flatten(whole).keys() == settings.flatten(smoke).keys()
  assert whole != smoke
  with pytest.raises(ValueError, match="variant"):
    settings.load_config(f"{path}:no_such_variant")


def test_every_switch_of_the_ablations_is_a_config_value():
  path = ROOT / "configs/grpo_tiny.py"
  keys = settings.flatten(settings.load_config(str(path)))
  assert keys["reward.tool_penalty"] == "anchored"
  for value in ("anchored", "unconditional", "off"):
    settings.load_config(str(path), [f"--config.reward.tool_penalty={value}"])
