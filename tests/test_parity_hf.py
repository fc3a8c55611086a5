"""The decoder against transformers: stored results, live where PyTorch is installed, mistakes made.

tests/parity/make_fixtures.py wrote the stored results; docs/parity.md is the table measured here.
"""

import importlib.util
import math
import re

import jax
import numpy as np
import pytest
from parity import cases, measure, mistakes

from searchjax.model import moe
from searchjax.model.params import ParamSpec, param_specs

RESULTS = {}


@pytest.fixture(scope="module", params=cases.CASES)
def measured(request):
  """The rows of one case, measured once for all tests."""
  case = request.param
  if case not in RESULTS:
    RESULTS[case] = measure.compare(case)
  return case, RESULTS[case]


def test_values_and_gradients_equal_transformers(measured):
  """Every layer, hidden states, logits, experts, loss; every gradient of every layer."""
  _, rows = measured
  for what, error, tolerance in rows:
    assert error <= tolerance, what


def test_the_page_is_what_was_measured(measured, repository):
  """docs/parity.md has every row, and its numbers are within a factor of ten of this run's."""
  case, rows = measured
  page = (repository / "docs/parity.md").read_text(encoding="utf-8")
  for what, error, tolerance in rows:
    # Which gradient is worst may differ between machines; how many there are may not.
    start = re.escape(what.partition(" worst ")[0])
    limit = re.escape(measure.number(tolerance))
    found = re.search(rf"\| {case} \| {start}.*? \| (\S+) \| {limit} \|", page)
    assert found, what
    logarithm = lambda value: math.log10(max(value, 1e-7))
    assert abs(logarithm(error) - logarithm(float(found[1]))) <= 1, what


@pytest.mark.parametrize("case", cases.CASES)
def test_the_weights_fill_the_whole_tree(case):
  specs = param_specs(measure.config(case))
  want = jax.tree.map(lambda s: s.shape, specs, is_leaf=lambda x: isinstance(x, ParamSpec))
  assert jax.tree.map(lambda a: a.shape, measure.params(case)) == want


@pytest.fixture(scope="module")
def qwen35():
  case = "qwen3_5_moe"
  return measure.config(case), measure.params(case), measure.load(case)


@pytest.mark.parametrize("mistake", mistakes.MISTAKES)
def test_each_mistake_is_caught(mistake, qwen35):
  """One thing wrong moves one layer's output by hundreds of times the tolerance."""
  assert mistakes.error(mistake, *qwen35) > 100 * measure.VALUE_TOLERANCE


@pytest.mark.parametrize("case", cases.CASES)
def test_the_balance_term_is_that_of_transformers(case):
  """transformers pools all layers before it multiplies; so do these logits."""
  stored, X = measure.load(case), cases.CASES[case]["num_experts_per_tok"]
  logits = stored["router"].reshape(-1, 7)
  experts = np.argsort(-logits, axis=-1)[:, :X].astype(np.int32)
  got = jax.jit(moe.balance)(logits, experts, np.ones(logits.shape[0], bool))
  np.testing.assert_allclose(got, stored["balance"], rtol=1e-5)


@pytest.mark.parametrize("case", cases.CASES)
def test_transformers_still_computes_what_is_stored(case):
  """Live, in float32: the stored float64 results are those of the installed transformers."""
  for package in ("torch", "transformers"):
    if importlib.util.find_spec(package) is None:
      pytest.skip(f"{package} is not installed: compared with the stored results only")
  from parity import oracle

  live, stored = oracle.run(case, double=False), measure.load(case)
  for name in ("hidden", "last", "logits"):
    assert measure.value_error(live[name], stored[name]) <= measure.VALUE_TOLERANCE, name
  live_gradients = cases.policy_tree(cases.CASES[case], live["gradients"])
  for what, error in measure.gradient_errors(case, live_gradients, stored["gradients"]):
    assert error <= measure.GRADIENT_TOLERANCE, what
