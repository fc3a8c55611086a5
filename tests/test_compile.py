"""`python -m searchjax.compile` on a small run, compiled by libtpu for four v5e chips."""

import contextlib
import io
import json
import os
import pathlib

import pytest

from searchjax import compile as entry
from searchjax.dist.compiling import Outcome
from searchjax.dist.hlo import Buffer, Costs, Memory
from searchjax.dist.topology import missing_compiler, parse_topology

HERE = pathlib.Path(__file__).parent
CONFIG = "tests/small_pod.py"
needs_compiler = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))


def run(*arguments):
  """(exit code, standard output, standard error) of the entry point."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      code = entry.main(list(arguments), builder="small_pod:programs")
    except SystemExit as end:
      code = end.code
  return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module", autouse=True)
def programs_are_importable():
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("PYTHONPATH", os.pathsep.join((str(HERE), str(HERE.parent))))
    patch.chdir(HERE.parent)
    yield


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
  """One run of everything, checked against the budgets."""
  file = tmp_path_factory.mktemp("compile") / "report.json"
  code, out, err = run(
    "--config", CONFIG, "--topology", "v5e:2x2", "--json", str(file),
    "--check", "tests/budgets.json",
  )
  assert code == 0, out + err
  report = json.loads(file.read_text())
  return report, {program["name"]: program for program in report["programs"]}, out


@needs_compiler
def test_a_scanned_program_costs_what_its_unrolled_twin_costs(compiled):
  _, programs, _ = compiled
  scanned, unrolled = programs["step"], programs["unrolled"]
  assert scanned["flops"] == unrolled["flops"] == 3 * 3 * 2 * 256**3
  assert scanned["instructions"] != unrolled["instructions"]
  # XLA chooses other collectives for the two; those of the scan are the ones written in Python.
  assert scanned["sent_by_axis"]["fsdp"] == 2 * 3 * 256 * 256 * 2 / 2


@needs_compiler
def test_the_report_of_a_program(compiled):
  report, programs, out = compiled
  step = programs["step"]
  assert step["argument_bytes"] == 3 * 128 * 256 * 2 + 256 * 256 * 2
  assert step["donated_bytes"] == 3 * 128 * 256 * 2
  assert step["flops_over_model"] == step["useful_flops_over_model"] == 1.0
  assert step["held_bytes"] == step["memory_bytes"] + 1e9
  assert step["floor_seconds"] == max(
    step["compute_seconds"], step["hbm_seconds"], step["ici_seconds"]
  )
  assert step["mfu_ceiling"] == pytest.approx(step["compute_seconds"] / step["floor_seconds"])
  kernels = programs["kernels"]
  assert kernels["flops"] == 2 * 5 * 256 * 128 * 256 + 11 * 1000 + 11 * 1e6
  assert kernels["kernels_without_cost"] == {"silent": 11}
  assert "FLOPs of kernels without a stated cost: silent × 11" in out
  assert report["mesh"] == {"fsdp": 2, "expert": 2, "context": 1}


@needs_compiler
def test_decoding_moves_no_weight_and_keeps_the_cache_in_place(compiled):
  """Its 1.9 MB of temporaries are 111 tables of asynchronous copies, 512 bytes each, 16 KiB apart."""
  decode = compiled[1]["decode"]
  # Donated: both halves of the cache, the states and the lanes.
  assert decode["donated_bytes"] > 0.9 * 4 * 2 * 2 * 256 * 128 * 2
  by_kind = {(c["kind"], c["axes"]): c for c in decode["collectives"]}
  assert ("all-gather", "expert+fsdp") not in by_kind
  # A layer's tokens go to all experts and back, four lanes' sums over the heads' devices.
  assert decode["sent_bytes"] < 16 * 4 * 4 * 256 * 2 * 8


@needs_compiler
def test_the_run_as_a_whole(compiled):
  report, programs, out = compiled
  assert report["largest_moment"]["program"] == "step"
  assert report["largest_moment"]["resident"] == {"preference model": 1e9}
  calls = {"step": 2, "unrolled": 1, "kernels": 0.5, "decode": 0}
  seconds = sum(programs[name]["floor_seconds"] * n for name, n in calls.items())
  assert report["forecast"]["step_seconds"] == pytest.approx(seconds)
  assert report["forecast"]["run_chip_hours"] == pytest.approx(7 * 4 * seconds / 3600)
  longest = report["forecast"]["longest_rollouts_seconds"]
  assert longest == pytest.approx(3 * programs["decode"]["floor_seconds"])
  assert "if every conversation is sampled to its limit" in out
  assert "everything fits" in out and "OVER" not in out
  assert "optimal" not in out
  for source in ("[XLA]", "[HLO]", "[derived]"):
    assert source in out


@needs_compiler
def test_a_program_that_does_not_fit_names_its_buffers_and_what_to_change():
  code, out, _ = run("--config", CONFIG + ":huge", "--topology", "v5e:2x2")
  assert code == 1
  assert "scores: out of memory" in out and "Ran out of memory on HBM" in out
  assert "549.76 GB bf16[524288,524288] temporary: jit(weights)/scores/td,sd->ts/dot_general" in out
  assert "write no scores" in out
  assert "does not fit or did not compile: scores" in out and "chip-hours" not in out


# ---- without the compiler ------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("--config", CONFIG, "--topology", "v5p-512"), "here the shape is given in chips: v5p:4x8x8"),
    (("--config", "tests/small_pot.py", "--topology", "v5e:2x2"), 'nearest: "tests/small_pod.py"'),
    (("--config", CONFIG), "required: --topology"),
    (("--config", CONFIG, "--topology", "v5e:2x2", "--stage", "half"), "invalid choice"),
    (("--config", CONFIG, "--topology", "v5e:2x2", "--time-limit", "0"), "must be above 0 seconds"),
    (("--config", CONFIG, "--topology", "v5e:2x2", "--json", "no/where"), "there is no folder"),
    (("--config", CONFIG, "--topology", "v5e:2x2", "--config.steps=x"), '"steps" expects int'),
    (("--config", CONFIG, "--topology", "v5e:2x2", "--budget"), 'unknown argument "--budget"'),
    (("--config", CONFIG, "--topology", "v5e:2x2", "--config.steps=0"), 'at least 1; got 0'),
  ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(arguments, message):
  code, out, err = run(*arguments)
  assert (code, out) == (2, "")
  assert message in err and err.count("\n") == 1


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "Expecting"),
    ("{}", "expected a list of budgets, got dict"),
    ('[{"config": "a"}]', "every budget needs topology (str)"),
    ('[{"config": "a", "topology": "v5e:2x2", "program": "p", "limits": {"flop": 1}}]',
     'unknown limit "flop"; nearest: "flops"'),
    ('[{"config": "a", "topology": "v5e:2x2", "program": "p", "limits": {"flops": "1"}}]',
     "limit flops of p must be a number"),
    ('[{"config": "a", "topology": "v5e:2x2", "program": "p", "limits": {"flops": 1}}]',
     "no budget for --config tests/small_pod.py --topology v5e:4x4"),
  ],
)  # fmt: skip
def test_budget_files_are_checked_before_anything_is_compiled(tmp_path, text, message):
  file = tmp_path / "budgets.json"
  file.write_text(text)
  if missing_compiler():
    with pytest.raises(ValueError) as error:
      entry._read_budgets(str(file), CONFIG, "v5e:4x4")
    assert message in str(error.value)
    return
  code, _, err = run("--config", CONFIG, "--topology", "v5e:4x4", "--check", str(file))
  assert code == 2 and message in err and err.count("\n") == 1


def outcome(status="optimised", temporaries=0, flops=0.0):
  costs = Costs()
  costs.flops["dot"] = flops
  buffer = Buffer(10, "f32[2]", "temporary", "f/g")
  return Outcome(status, "", 1.0, costs, Memory(10, 0, temporaries, 0, 0, (buffer,)))


FACTS = {
  "name": "p", "calls_per_step": 1.0, "most_calls": 0.0, "least_hbm": 0.0,
  "model_flops": 4.0, "padded_flops": 1.0, "resident": {},
  "advice": "", "kernel_costs": {},
}  # fmt: skip
V5E = parse_topology("v5e:2x2")
CRASHED = Outcome("crashed", "the compiler died by SIGSEGV", 1.0)


def test_budgets_are_upper_bounds_and_what_is_unknown_is_over():
  record = entry.program_record(FACTS, outcome(flops=6.0), V5E, {})
  assert record["flops_over_model"] == 1.5 and record["useful_flops_over_model"] == 1.25
  check = lambda program, **limits: entry._check_budgets(
    [{"program": program, "limits": limits}], {"programs": [record]}, None
  )
  assert check("p", flops_over_model=1.5) == ["ok    p flops_over_model: 1.5 of 1.5"]
  assert check("p", flops_over_model=1.4)[0].startswith("OVER  p flops_over_model: 1.5 of 1.4")
  with pytest.raises(ValueError, match='the run has no program "q"'):
    check("q", flops=1)
  dead = entry.program_record(FACTS, CRASHED, V5E, {})
  line = entry._check_budgets(
    [{"program": "p", "limits": {"flops": 1}}], {"programs": [dead]}, None
  )[0]
  assert line == "OVER  p flops: not known (crashed), limit 1" and not dead["fits"]


def test_a_program_that_fits_alone_may_not_fit_beside_the_others():
  fits = entry.program_record(FACTS, outcome(temporaries=10**9), V5E, {})
  beside = FACTS | {"resident": {"decode copy": V5E.chip.hbm - 5e8}}
  does_not = entry.program_record(beside, outcome(temporaries=10**9), V5E, {})
  assert fits["fits"] and not does_not["fits"]
  rows = entry.program_rows(does_not, V5E)
  assert any("move it to host memory" in value for _, value, _ in rows)
  assert entry.run_record([does_not], V5E, 1, False)["forecast"] is None
  assert entry.run_record([fits], V5E, 1, True)["forecast"] is None


def test_the_summary_has_a_line_a_program():
  good = entry.program_record(FACTS, outcome(temporaries=10**9, flops=6.0), V5E, {})
  dead = entry.program_record(FACTS | {"name": "q"}, CRASHED, V5E, {})
  table = entry.summary_table({"programs": [good, dead]})
  assert len({line.count("|") for line in table}) == 1
  assert table[2].startswith("| p | 1e-08 + 1.00 + 0 = 1.00 | 1.00 | 6 | 1.500, 1.250 | 0 | 0 |")
  assert table[3] == "| q (crashed)" + " | –" * 9 + " |"


def test_a_dead_compiler_still_gives_a_record():
  record = entry.program_record(FACTS, CRASHED, V5E, {})
  assert [row[1] for row in entry.program_rows(record, V5E)] == ["the compiler died by SIGSEGV"]
  run_ = entry.run_record([record], V5E, 1, False)
  assert run_ == {"largest_moment": None, "forecast": None}
