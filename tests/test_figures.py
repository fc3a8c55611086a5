"""Figures and tables from a run folder's files."""

import csv
import json
import re
import shutil

import fake_run
import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text

from searchjax import figures, report
from searchjax.dist import run_log, settings


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  return fake_run.build(tmp_path_factory.mktemp("figures") / "W", steps=20)


def test_a_finished_run_gives_every_figure_and_table(run, capsys):
  figures.main(run)
  written = {path.name for path in (run / "figures").iterdir()}
  names = [part.name for part in figures.PARTS]
  assert {f"{name}.{kind}" for name in names for kind in ("png", "svg")} <= written
  assert {"table2.md", "table2.csv", "ablation.md"} <= written
  assert "not drawn" not in capsys.readouterr().out
  assert set(json.loads((run / "ablation/results.json").read_text())["arms"]) == {
    "anchored",
    "unconditional",
  }


def test_the_lines_are_the_files_numbers(run):
  axes = figures.draw(figures.PARTS[0], run).axes
  rows = [json.loads(line) for line in (run / "grpo/metrics.jsonl").read_text().splitlines()]
  drawn = axes[0].lines[0].get_ydata()
  assert np.allclose(drawn, [row["base_reward"] for row in rows])
  assert np.allclose(axes[1].lines[0].get_ydata(), [row["preference"] for row in rows])


def test_published_numbers_are_labelled_as_published(run):
  by_name = {part.name: part for part in figures.PARTS}
  labels = [
    text.get_text() for text in figures.draw(by_name["figure5"], run).legends[0].get_texts()
  ]
  assert "Large (published, FRAMES)" in labels and "SFT + RL" in labels
  axis = figures.draw(by_name["figure6"], run).axes[1]
  assert axis.get_title("left") == "Published: FRAMES, b = 4"
  points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axis.lines]
  assert points == [(2.0, 0.739), (8.5, 0.678), (15.3, 0.624)]


def test_references_are_named_in_a_legend_below_where_no_curve_runs_over_them(run):
  expected = {
    "figure2": "0.5: as good as the reference",
    "figure3": "calls of a perfect agent, held-out questions",
    "figure4": "published, large model: about 1e-3",
    "figure5": "published: flattens near 7",
    "ablation": "anchored, mean of 3 seeds",
  }
  for part in figures.PARTS:
    figure = figures.draw(part, run)
    with matplotlib.rc_context(figures.STYLE):
      figure.draw_without_rendering()
    written = [text for text in figure.findobj(Text) if text.get_text()]
    assert min(text.get_fontsize() for text in written) >= 8
    assert all(axis.get_legend() is None for axis in figure.axes)
    (legend,) = figure.legends
    assert expected.get(part.name, "SFT, greedy") in [text.get_text() for text in legend.get_texts()]
    below = legend.get_window_extent().y1
    assert all(axis.get_tightbbox().y0 >= below for axis in figure.axes)


def test_steps_are_whole_numbers_on_the_axis_of_a_short_run(tmp_path):
  path = tmp_path / "grpo/metrics.jsonl"
  rows = [{"step": step, "base_reward": 0.5, "preference": 0.5} for step in range(3)]
  run_log.write_jsonl(path, rows)
  ticks = figures.draw(figures.PARTS[0], tmp_path).axes[0].get_xticks()
  assert set(ticks) >= {0, 1, 2} and all(tick == round(tick) for tick in ticks)


def test_the_same_run_gives_the_same_svg(run):
  part = figures.PARTS[2]
  assert figures.svg(figures.draw(part, run)) == figures.svg(figures.draw(part, run))


def test_table2_has_a_row_a_policy_and_decoding(run, monkeypatch):
  rows = figures.table2(run)
  assert [(row["policy"], row["decoding"]) for row in rows] == [
    (policy, mode) for policy in ("Base", "SFT", "SFT + RL") for mode in ("greedy", "T = 1")
  ]
  assert rows[4]["accuracy"] == "0.930 [0.880, 0.980]" and rows[4]["calls"] == "2.10 [1.90, 2.30]"
  assert rows[0]["preference"] == "-" and rows[4]["2 hops"] == "0.870"
  monkeypatch.setattr(figures, "PARTS", ())
  figures.main(run)
  with (run / "figures/table2.csv").open() as file:
    assert list(csv.DictReader(file)) == rows


def test_w5_the_table_says_provider_date_and_judge(run):
  text = " ".join(figures.table2_notes(run))
  assert "search provider: atlas; date: 2026-05-01; judge: rule-based answer matcher" in text
  assert "temperature 1.0" in text


def test_missing_parts_are_said_and_the_rest_is_drawn(run, tmp_path, capsys):
  partial = tmp_path / "partial"
  shutil.copytree(run / "grpo", partial / "grpo")
  figures.main(partial)
  output = capsys.readouterr().out
  assert "figure2, figure3, figure4" in output
  for names in ("figure5, figure6, table2", "ablation"):
    assert f"not drawn: {names}: " in output
  assert "results.json is missing; run searchjax.evaluate" in output


def test_an_absent_or_empty_folder_is_bad_input(tmp_path, capsys):
  with pytest.raises(ValueError, match="no run folder"):
    figures.main(tmp_path / "none")
  with pytest.raises(ValueError, match="nothing to draw"):
    figures.main(tmp_path)
  assert list(tmp_path.iterdir()) == []
  with pytest.raises(SystemExit) as left:
    settings.run_main(figures.main, "x", argv=["--workdir", str(tmp_path)], needs_config=False)
  printed = capsys.readouterr()
  assert left.value.code == 2 and printed.out == "" and printed.err.count("\n") == 1
  assert len(printed.err) - 2 * len(str(tmp_path)) < 200 and "launch/quickstart.sh" in printed.err


def test_a_figure_that_can_no_longer_be_drawn_does_not_stay(run, tmp_path, monkeypatch):
  monkeypatch.setattr(figures, "PARTS", [figures.PARTS[0], figures.PARTS[3]])
  for name in ("grpo", "eval"):
    shutil.copytree(run / name, tmp_path / name)
  figures.main(tmp_path)
  (tmp_path / "figures/mine.png").touch()
  (tmp_path / "eval/results.json").unlink()
  figures.main(tmp_path)
  left = sorted(path.name for path in (tmp_path / "figures").iterdir())
  assert left == ["figure2.png", "figure2.svg", "mine.png"]


def test_a_broken_file_is_named_with_its_line(run, tmp_path):
  (tmp_path / "grpo").mkdir()
  (tmp_path / "grpo/metrics.jsonl").write_text(
    '{"step": 0, "base_reward": 1}\nnot json\n{"step": 2}\n'
  )
  with pytest.raises(ValueError, match="metrics.jsonl, line 2 is not JSON"):
    figures.draw(figures.PARTS[0], tmp_path)


@pytest.mark.parametrize(
  ("line", "words"),
  [
    ("[1]", "line 2: expected an object, got list"),
    ("3", "line 2: expected an object, got int"),
    ('{"base_reward": 1}', 'line 2: no "step"'),
    ('{"step": 1, "base_reward": "high"}', 'line 2: expected "base_reward" as a number or null'),
    ("[" * 100000, "line 2 is nested too deeply"),
    ("\udcff", "metrics.jsonl is not UTF-8 at byte 30"),
  ],
)
def test_a_line_of_metrics_that_is_no_step_is_named(tmp_path, line, words):
  path = tmp_path / "metrics.jsonl"
  text = f'{{"step": 0, "base_reward": 1}}\n{line}\n'
  path.write_bytes(text.encode("utf-8", "surrogateescape"))
  words = words.replace("byte 30", f"byte {text.index(line) + 1}")
  with pytest.raises(ValueError, match=re.escape(words)) as caught:
    figures.read_metrics(path)
  assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def _with(results, place, value):
  """The results with one field replaced, or left out where the value is None."""
  copy = json.loads(json.dumps(results))
  *way, last = place
  inner = copy
  for key in way:
    inner = inner[key]
  if value is None:
    del inner[last]
  else:
    inner[last] = value
  return copy


@pytest.mark.parametrize(
  ("place", "value", "words"),
  [
    (["policies"], None, 'results.json: no "policies"'),
    (["policies"], [], 'expected "policies" as an object, got a list'),
    (["policies", "rl"], "x", 'policies: expected "rl" as an object, got text'),
    (["policies", "rl", "greedy"], 1, "policies.rl.greedy: expected an object"),
    (["policies", "rl", "greedy", "accuracy"], None, 'policies.rl.greedy: no "accuracy"'),
    (["policies", "rl", "greedy", "by_hop"], None, 'policies.rl.greedy: no "by_hop"'),
    (["policies", "rl", "greedy", "calls_low"], "x", '"calls_low" as a number or null, got text'),
    (["budget"], [], 'expected "budget" as an object'),
    (["budget", "rl", 0, "low"], None, 'budget.rl[0]: no "low"'),
    (["perfect_calls"], "two", 'expected "perfect_calls" as a number or null, got text'),
  ],
)
def test_a_field_missing_or_wrong_in_the_results_is_named(run, tmp_path, place, value, words):
  results = _with(json.loads((run / "eval/results.json").read_text()), place, value)
  run_log.write_json(tmp_path / "eval/results.json", results)
  for read in (figures.figure5, figures.figure6, figures.table2, figures.table2_notes):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
      read(tmp_path)
    assert "results.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"policies": 3}'])
def test_malformed_results_are_one_line_and_exit_code_2(tmp_path, capsys, text):
  (tmp_path / "eval").mkdir()
  (tmp_path / "eval/results.json").write_text(text)
  for module in (figures, report):
    with pytest.raises(SystemExit) as left:
      settings.run_main(module.main, "x", argv=["--workdir", str(tmp_path)], needs_config=False)
    printed = capsys.readouterr()
    assert left.value.code == 2 and printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert "results.json" in printed.err
  assert [path.name for path in tmp_path.iterdir()] == ["eval"]


def test_results_without_policies_are_a_missing_part(tmp_path):
  run_log.write_json(tmp_path / "eval/results.json", {"policies": {}})
  with pytest.raises(figures.MissingPartError, match="no policies"):
    figures.table2(tmp_path)


@pytest.mark.parametrize(
  ("place", "value", "words"),
  [
    (["arms"], None, 'no "arms"'),
    (["arms"], {}, '"arms" is empty'),
    (["arms", "anchored", "curves"], [], "a curve and a final record for each of its seeds"),
    (["arms", "anchored", "final", 1, "calls"], None, 'arms.anchored.final[1]: no "calls"'),
    (["arms", "anchored", "curves", 0, 0, "step"], None, 'arms.anchored.curves[0]: no "step"'),
  ],
)
def test_malformed_results_of_an_ablation(run, tmp_path, place, value, words):
  results = json.loads(json.dumps(figures.collect_ablation(run)))
  run_log.write_json(tmp_path / "ablation/results.json", _with(results, place, value))
  with pytest.raises(ValueError, match=re.escape(words)):
    figures.ablation_table(tmp_path)


def test_figures_in_the_way_are_left_alone(run, tmp_path, monkeypatch):
  monkeypatch.setattr(figures, "PARTS", figures.PARTS[:1])
  shutil.copytree(run / "grpo", tmp_path / "grpo")
  (tmp_path / "figures").write_text("mine")
  with pytest.raises(ValueError, match="figures is a file; move it away"):
    figures.main(tmp_path)
  assert (tmp_path / "figures").read_text() == "mine"
  (tmp_path / "figures").unlink()
  (tmp_path / "figures/figure2.svg").mkdir(parents=True)
  with pytest.raises(ValueError, match="cannot write .*figure2.svg: Is a directory"):
    figures.main(tmp_path)


def test_one_step_and_values_that_are_not_finite_can_be_drawn(tmp_path):
  (tmp_path / "grpo").mkdir()
  path = tmp_path / "grpo/metrics.jsonl"
  row = {
    "step": 0,
    "base_reward": None,
    "preference": 0.5,
    "grad_norm": 1.0,
    "kl_k1": 0.0,
    "kl_k3": 0.0,
  }
  path.write_text(json.dumps(row) + "\n")
  for part in (figures.PARTS[0], figures.PARTS[2]):
    figures.svg(figures.draw(part, tmp_path))


def test_the_ablations_final_numbers_are_means_of_the_last_steps(run):
  record = figures.collect_ablation(run)["arms"]["anchored"]
  assert record["seeds"] == [0, 1, 2] and len(record["curves"]) == len(record["final"]) == 3
  last = record["curves"][1][-1]  # Ten steps: the last tenth is one step.
  assert record["final"][1] == {"accuracy": last["base_reward"], "calls": last["tool_calls"]}


def test_an_ablation_can_be_read_from_its_results_alone(run, tmp_path):
  run_log.write_json(tmp_path / "ablation/results.json", figures.collect_ablation(run))
  assert figures.collect_ablation(tmp_path) == figures.collect_ablation(run)


def test_a_running_mean_keeps_length_and_constants():
  values = np.full(47, 0.25)
  assert np.allclose(figures._smooth(values), values)
  ramp = np.arange(60.0)
  assert np.allclose(figures._smooth(ramp), ramp)  # Symmetric windows do not bend a straight line.
  assert len(figures._smooth(np.asarray([np.nan]))) == 1
