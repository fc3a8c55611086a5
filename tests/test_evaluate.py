"""What an evaluation's results belong to: made again where a policy changed, and only there."""

import json
import shutil

import good_rollouts
import numpy as np
import pytest

from fake_inference import Server
from loopback import served
from searchjax import evaluate
from searchjax.data.questions import Question
from searchjax.dist import checkpoint, run_log, settings
from searchjax.rollout.agent import load_chat
from searchjax.search.server import start_server
from small_web import small_corpus
from searchjax.evals.cost import load_prices
from searchjax.rollout.agent import load_chat
from small_web import small_corpus

PASSES = 3 * 2 + 2 * 3  # Policies times modes, and a sweep of three budgets for two of them.


class Evaluated(Exception):
  """Raised in the place of the first thing that an evaluation reads."""


@pytest.fixture
def config(repository):
  return settings.load_config(str(repository / "configs/evaluate_tiny.py") + ":smoke")


@pytest.fixture
def run(tmp_path, monkeypatch):
  def stop(*_, **__):
    raise Evaluated

  monkeypatch.setattr(evaluate, "load_atlas", stop)
  for number, stage in enumerate(("sft", "rm", "grpo")):
    run_log.write_json(tmp_path / f"W/{stage}/config.json", {"seed": 0})
    _save(tmp_path / f"W/{stage}", 7, float(number))
  return tmp_path / "W"


def _save(stage, step, value):
  checkpoint.save(stage / "policy", step, {"w": np.full(3, value, np.float32)}, {}, keep=1)


def _finish(run, config):
  """Leaves what an evaluation leaves."""
  inputs = evaluate.evaluation_inputs(config, run / "eval", evaluate.load_prices())
  run_log.write_json(run / "eval/config.json", run_log.as_record(config))
  run_log.write_json(run / "eval/results.json", {"policies": {}, "inputs": inputs})


def test_results_of_this_config_and_these_policies_are_not_made_again(run, config, capsys):
  with pytest.raises(Evaluated):
    evaluate.main(config, run / "eval")
  _finish(run, config)
  before = (run / "eval/results.json").read_bytes()
  capsys.readouterr()
  for folder in (run, run.rename(run.with_name("moved"))):  # A copied run folder is the same run.
    if folder.exists():
      evaluate.main(config, folder / "eval")
  first, second = capsys.readouterr().out.splitlines()
  assert first == f"evaluate: {PASSES} of {PASSES} steps done already ({folder}/eval)"
  assert second == f"of the same config and policies; to evaluate anew, delete {folder}/eval/results.json"
  assert (folder / "eval/results.json").read_bytes() == before


@pytest.mark.parametrize("stage", ["sft", "rm", "grpo"])
def test_a_changed_policy_is_evaluated(run, config, stage):
  _finish(run, config)
  shutil.rmtree(run / stage / "policy")
  _save(run / stage, 7, 9.0)  # The same step, other numbers.
  inputs = evaluate.evaluation_inputs(config, run / "eval", evaluate.load_prices())
  assert evaluate.differing_inputs(run / "eval/results.json", inputs) == [stage]
  with pytest.raises(Evaluated):
    evaluate.main(config, run / "eval")


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"inputs": 3}', '{"policies": {}}'])
def test_results_that_do_not_say_whose_they_are_are_made_again(run, config, text):
  _finish(run, config)
  (run / "eval/results.json").write_text(text)
  with pytest.raises(Evaluated):
    evaluate.main(config, run / "eval")


def test_files_that_a_config_names_count_by_their_content(run, repository, tmp_path):
  corpus, prices = tmp_path / "pages.jsonl", tmp_path / "prices.json"
  corpus.write_text("one")
  fields = {"name": "a", "as_of": "2026", "prompt_per_million": 1.0, "completion_per_million": 1.0,
            "search_per_thousand": 1.0}
  prices.write_text(json.dumps(fields))
  config = settings.load_config(
    str(repository / "configs/evaluate_tiny.py") + ":smoke",
    [f"search.corpus={corpus}", f"prices={prices}"],
  )
  inputs = lambda: evaluate.evaluation_inputs(
    config, run / "eval", evaluate.load_prices(config.prices)
  )
  run_log.write_json(run / "eval/results.json", {"inputs": inputs()})
  differing = lambda: evaluate.differing_inputs(run / "eval/results.json", inputs())
  assert differing() == []
  corpus.write_text("two")
  assert differing() == ["corpus"]
  prices.write_text(json.dumps(fields | {"prompt_per_million": 2.0}))
  assert set(differing()) == {"corpus", "prices"}


def test_another_config_is_refused_before_anything_is_read(run, config, repository):
  _finish(run, config)
  other = settings.load_config(str(repository / "configs/evaluate_tiny.py") + ":smoke", ["seed=1"])
  with pytest.raises(ValueError, match="work folder of another run.*seed"):
    evaluate.main(other, run / "eval")


def test_nothing_of_earlier_results_stays(tmp_path):
  run_log.write_json(tmp_path / "results.json", {})
  run_log.write_jsonl(tmp_path / "rollouts/rl_greedy.jsonl", [{}])
  evaluate.discard_results(tmp_path)
  assert [path.name for path in tmp_path.rglob("*")] == ["rollouts"]


def test_A11_a_failure_of_the_world_is_counted_in_the_table_and_votes_in_no_mean():
  group, others = good_rollouts.groups(load_chat(""))
  row = evaluate.summary(group, load_prices(), seed=0)
  kept = evaluate.summary([e for e in group if e.valid], load_prices(), seed=0)
  assert (row.pop("invalid"), kept.pop("invalid")) == (2, 0) and row == kept
  assert (row["n"], row["accuracy"], row["forced"], row["truncated"]) == (7, 5 / 7, 3, 1)
  # Side by side, a pair with a failed rollout on either side has no preference.
  preference = evaluate.side_by_side(good_rollouts.Scorer(), group, [*others[1:], others[0]])
  assert [i for i, s in enumerate(preference) if s is None] == [6, 7, 8]
  record = evaluate.records(group, preference)[7]
  assert not record["valid"] and record["invalid_reason"] == "search: timed out"
  assert record["reward"]["preference"] is None


@pytest.fixture(scope="module")
def web():
  with start_server(small_corpus()) as url:
    yield url


@pytest.fixture
def asked_of(repository, monkeypatch, web):
  """Evaluates a served policy on three questions that need no atlas."""
  questions = [
    Question(
      f"q{i}", f"Which city does AB{i} serve?", "Foo" if i else "Bar", (), 1, ("city",), ("a", "b"),
      "heldout", None, (("a", "b"),), "It is Foo.",
    )
    for i in range(3)
  ]
  monkeypatch.setattr(evaluate, "load_atlas", lambda *_, **__: None)
  monkeypatch.setattr(evaluate, "load_questions", lambda *_, **__: questions)

  def run(url, workdir, **overrides):
    overrides = {
      "inference.url": url, "search.url": web, "budgets": "0,2", "budget_questions": 2
    } | overrides
    config = settings.load_config(
      str(repository / "configs/evaluate_tiny.py") + ":smoke", [f"{k}={v}" for k, v in overrides.items()]
    )
    evaluate.main(config, workdir)

  return run


@pytest.mark.parametrize("kind, ids", [("ours", "the server's"), ("llama", "our tokenizer's, of its text")])
def test_a_served_policy_is_evaluated_without_any_run(asked_of, tmp_path, kind, ids):
  server = Server(load_chat(""), kind)
  with served(server.app()) as url:
    asked_of(url, tmp_path / "eval")
    asked = len(server.asked)
    if kind == "ours":
      asked_of(url, tmp_path / "eval")  # Its weights may have changed.
      assert len(server.asked) == 2 * asked
  results = json.loads((tmp_path / "eval/results.json").read_text())
  assert list(results["policies"]) == list(results["budget"]) == ["served"]
  row = results["policies"]["served"]["greedy"]
  assert (row["n"], row["invalid"], row["calls"], row["preference"]) == (3, 0, 1.0, None)
  assert row["accuracy"] == pytest.approx(2 / 3)
  told = results["inference"]
  assert told["token_ids"] == ids and told["model"] == "tiny" and told["url"] == url
  assert told["versions"] == (["7"] if kind == "ours" else [])
  lines = (tmp_path / "eval/rollouts/served_sampled.jsonl").read_text().splitlines()
  assert [json.loads(line)["policy_version"] for line in lines] == (told["versions"] or [""]) * 3


def test_Y3_an_evaluation_of_changing_weights_ends_without_results(asked_of, tmp_path):
  """FAULTS Y3."""
  with served(Server(load_chat(""), version=["7"] * 9 + ["8"]).app()) as url:
    with pytest.raises(ValueError, match=r"changed its weights during the evaluation \(7, 8\)"):
      asked_of(url, tmp_path / "eval")
  assert not (tmp_path / "eval/results.json").exists()


def test_H7_a_server_that_fails_is_no_accuracy(asked_of, tmp_path):
  """FAULTS H7: what could not be had is never wrong."""
  server = Server(load_chat(""), last=5)
  with served(server.app()) as url:
    with pytest.raises(ValueError, match="rollouts are invalid .*engine: HTTP 400"):
      asked_of(url, tmp_path / "eval")
  assert not (tmp_path / "eval/results.json").exists()
