"""The notebook runs on a run folder's files alone, and is stored without outputs."""

import os

import fake_run
import nbclient
import nbformat
import pytest


@pytest.fixture
def notebook(repository):
  return nbformat.read(repository / "notebooks/figures.ipynb", as_version=4)


def _execute(notebook, repository, run, monkeypatch):
  monkeypatch.setenv("SEARCHJAX_RUN", str(run))
  paths = [str(repository), os.environ.get("PYTHONPATH", "")]
  monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
  client = nbclient.NotebookClient(
    notebook, timeout=120, kernel_name="python3",
    resources={"metadata": {"path": str(repository / "notebooks")}},
  )  # fmt: skip
  client.execute()
  outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
  kinds = [kind for output in outputs for kind in output.get("data", {})]
  texts = [output.get("text", "") for output in outputs]
  return kinds, "".join(texts)


def test_the_outputs_are_stripped(notebook):
  for cell in notebook.cells:
    if cell.cell_type == "code":
      assert cell.outputs == [] and cell.execution_count is None


def test_it_draws_every_figure_of_a_finished_run(notebook, repository, tmp_path, monkeypatch):
  run = fake_run.build(tmp_path / "W", steps=12)
  kinds, text = _execute(notebook, repository, run, monkeypatch)
  assert kinds.count("image/svg+xml") == 6 and kinds.count("text/markdown") >= 9
  assert "not drawn" not in text and "no table" not in text
  assert "A perfect agent needs 2.00 calls" in text


def test_it_says_what_an_unfinished_run_lacks(notebook, repository, tmp_path, monkeypatch):
  (tmp_path / "W").mkdir()
  kinds, text = _execute(notebook, repository, tmp_path / "W", monkeypatch)
  assert "image/svg+xml" not in kinds
  assert text.count("not drawn: ") == 6 and "no GRPO metrics" in text
