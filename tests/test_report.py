"""The report page: whole, self-contained, and safe to open."""

import html
import html.parser
import json
import re
import shutil

import fake_run
import pytest

from searchjax import figures, report
from searchjax.dist import run_log


class Page(html.parser.HTMLParser):
  """Collects tags, attributes and text, and checks that tags are closed in order."""

  VOID = {"meta", "br", "img", "link", "input", "hr"}

  def __init__(self, text):
    super().__init__()
    self.tags, self.attributes, self.texts, self.open = [], [], [], []
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += [(tag, name, value) for name, value in attrs]
    if tag not in self.VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += [(tag, name, value) for name, value in attrs]

  def handle_endtag(self, tag):
    assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

  def handle_data(self, data):
    self.texts.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  return fake_run.build(tmp_path_factory.mktemp("report") / "W", steps=21)


@pytest.fixture
def one_figure(monkeypatch):
  """Draws only Figure 2, where the test is about something else."""
  monkeypatch.setattr(figures, "PARTS", figures.PARTS[:1])


@pytest.fixture(scope="module")
def text(run):
  return report.build_page(run)


def test_the_page_is_well_formed_and_names_every_part(text):
  page = Page(text)
  assert page.open == []
  words = " ".join(page.texts)
  for part in ("Figure 2", "Figure 3", "Figure 4", "Figure 5", "Figure 6", "Ablation"):
    assert part in words
  for part in ("SFT + RL", "search_web(query: capital Andorra la Vella)", "pen_tool", "advantage"):
    assert part in words
  assert "Not in this run" not in words
  identifiers = [value for _, name, value in page.attributes if name == "id"]
  assert len(identifiers) == len(set(identifiers))


def test_nothing_is_loaded_and_nothing_runs(text):
  page = Page(text)
  assert not {"script", "iframe", "object", "embed", "link", "base", "form", "img"} & set(page.tags)
  for tag, name, value in page.attributes:
    assert not name.startswith("on"), f"<{tag} {name}>"
    if name in ("href", "src", "xlink:href"):
      assert value.startswith("#"), f"<{tag} {name}={value}>"
  assert "url(http" not in text and "@import" not in text
  assert "default-src 'none'" in text


def test_web_text_is_escaped(text):
  assert "<script>alert" not in text
  assert "&lt;script&gt;alert(&#39;snippet&#39;)&lt;/script&gt; &amp; &lt;|im_end|&gt;" in text


def test_a_call_that_cannot_be_read_is_shown_as_written_with_the_error(text):
  written = html.escape(fake_run.MALFORMED)
  assert "<tool_call>" not in text
  at = text.index(f'<pre dir="auto">{written}</pre>')
  assert "cannot be read" in text[at - 200 : at]
  after = text[at : at + 700]
  assert after.index("model_failure") < after.index("Error: the call is not closed.")
  assert '<span class="badge plain">a call that cannot be read</span>' in text


def test_markup_in_any_field_of_a_record_stays_text(tmp_path, one_figure):
  poison = '"><img src=x onerror=alert(1)>{{ 7 * 7 }}</details>'

  def poisoned(value):
    if isinstance(value, str) and value not in ("qa", "rubric"):
      return poison
    if isinstance(value, list):
      return [poisoned(item) for item in value]
    if isinstance(value, dict):
      return {poison if key == "query" else key: poisoned(item) for key, item in value.items()}
    return value

  run = fake_run.build(tmp_path / "W", steps=3)
  for path in [*run.glob("grpo/rollouts/*.jsonl"), *run.glob("eval/rollouts/*.jsonl")]:
    records = [poisoned(json.loads(line)) for line in path.read_text().splitlines()]
    run_log.write_jsonl(path, records)
  results = json.loads((run / "eval/results.json").read_text())
  run_log.write_json(run / "eval/results.json", results | {"judge": poison})
  run_log.write_json(run / "grpo/config.json", {"name": poison})
  page = Page(report.build_page(run))
  assert page.open == [] and "img" not in page.tags
  assert not any(name == "onerror" for _, name, _ in page.attributes)
  assert any("{{ 7 * 7 }}" in data for data in page.texts)  # Text is never a template.


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x85", "\ud800", "\uffff", "\u2028"])
def test_characters_that_no_page_can_hold_are_replaced(character):
  cleaned = report.clean(f"a{character}b\n\tc")
  assert cleaned == "a\ufffdb\n\tc"
  cleaned.encode("utf-8")


def test_a_long_text_says_what_is_left_out():
  assert report.clean("x" * 10, limit=4) == "xxxx … (6 more characters)"


def test_early_and_late_steps_are_shown_with_telling_rollouts(run):
  steps = report._training_steps(run, [])
  assert [step["step"] for step in steps] == [0, 10, 20]
  for step in steps:
    reasons = [item["why"] for item in step["rollouts"]]
    assert len(reasons) == len(set(reasons)) and "rubric chat" in reasons
    records = [id(item["record"]) for item in step["rollouts"]]
    assert len(records) == len(set(records))


def test_questions_where_the_policies_differ_come_first(run):
  questions = report._compared_questions(run, [])
  spread = [
    len({column["record"]["reward"]["base"] for column in question["columns"]})
    for question in questions
  ]
  assert spread == sorted(spread, reverse=True)
  assert [column["policy"] for column in questions[0]["columns"]] == ["Base", "SFT", "SFT + RL"]


def test_a_compared_question_names_whose_outcome_each_is(text):
  summary = text[text.index('id="examples"') :]
  summary = summary[summary.index("<summary>") : summary.index("</summary>")]
  names = re.findall(r'<span class="soft small">([^<]*)</span> <span class="badge (?:good|bad)">', summary)
  assert names == ["Base", "SFT", "SFT + RL"]


def test_missing_parts_are_listed(run, tmp_path, capsys, one_figure):
  partial = tmp_path / "partial"
  shutil.copytree(run / "sft", partial / "sft")
  report.main(partial)
  output = capsys.readouterr().out
  assert "no table: " in output and f"report: {partial.resolve() / 'report.html'}" in output
  text = (partial / "report.html").read_text(encoding="utf-8")
  assert Page(text).open == [] and "Not in this run" in text
  for words in (
    "Preference model: ",
    "GRPO: ",
    "Table 2: ",
    "Training trajectories: ",
    "Figure 2: ",
  ):
    assert words in text


def test_the_command_ends_with_the_table_and_the_path(run, capsys, one_figure):
  report.main(run)
  output = capsys.readouterr().out
  assert "0.930 [0.880, 0.980]" in output and "A perfect agent needs 2.00 calls" in output
  assert output.rstrip().splitlines()[-1] == f"report: {(run / 'report.html').resolve()}"


def test_alarms_and_values_that_are_not_finite_are_shown(tmp_path, one_figure):
  with run_log.RunLog(tmp_path / "W/sft", {"seed": 0}, total_steps=3) as log:
    for step, loss in enumerate((1.0, float("nan"), 2.0)):
      log.write(step, {"loss": loss, "grad_norm": 1e4})
  text = report.build_page(tmp_path / "W")
  assert "1 not finite" in text and "step 0: grad_norm 1e+04" in text
  assert Page(text).open == []


def test_an_absent_or_foreign_folder_is_bad_input(tmp_path):
  with pytest.raises(ValueError, match="no run folder"):
    report.build_page(tmp_path / "none")
  with pytest.raises(ValueError, match="holds no run; expected one of sft/"):
    report.build_page(tmp_path)


@pytest.mark.parametrize(
  ("field", "value", "words"),
  [
    ("valid", None, 'record 2: no "valid"'),
    ("valid", "yes", 'record 2: expected "valid" as a truth value, got text'),
    ("gold", None, 'record 2: no "gold"'),
    ("reward", {}, 'record 2, reward: no "base"'),
    ("reward", {"base": 1.0, "total": []}, '"total" as a number or null, got a list'),
    ("turns", ["x"], "record 2, turns[0]: expected an object, got str"),
    ("turns", [{"role": "user"}], 'record 2, turns[0]: no "text"'),
    (
      "turns",
      [{"role": "assistant", "text": "", "calls": [{"name": "a"}]}],
      'record 2, turns[0], calls: no "arguments"',
    ),
    ("turns", [{"role": "user", "text": "", "raw": 1}], 'expected "raw" as text, got a number'),
    ("turns", [{"role": "tool", "text": "", "status": 1}], 'expected "status" as text or null, got'),
    ("advantage", "much", 'expected "advantage" as a number or null, got text'),
  ],
)
def test_a_field_missing_or_wrong_in_a_rollout_is_named(run, tmp_path, field, value, words):
  path = sorted((run / "grpo/rollouts").glob("*.jsonl"))[0]
  records = [json.loads(line) for line in path.read_text().splitlines()]
  records[1].pop(field)
  if value is not None:
    records[1][field] = value
  for folder, read in (
    ("grpo/rollouts/step_000000.jsonl", report._training_steps),
    ("eval/rollouts/rl_greedy.jsonl", report._compared_questions),
  ):
    run_log.write_jsonl(tmp_path / folder, records)
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
      read(tmp_path, [])
    assert str(tmp_path / folder) in str(caught.value)


def test_a_rollout_that_is_no_object_is_named(tmp_path):
  path = tmp_path / "step_000000.jsonl"
  path.write_text("[]\n")
  with pytest.raises(ValueError, match="record 1: expected an object, got list"):
    report._read_records(path)
  path.write_text("{}\n{\n")
  with pytest.raises(ValueError, match="line 2 is not JSON"):
    report._read_records(path)


def test_a_folder_in_the_reports_place_is_left_alone(run, tmp_path, one_figure):
  shutil.copytree(run / "sft", tmp_path / "sft")
  (tmp_path / "report.html").mkdir()
  with pytest.raises(ValueError, match="report.html is a folder; move it away"):
    report.main(tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "sft"]


def test_the_page_stays_small(text):
  assert len(text.encode()) < 2e6
  assert not re.search(r'"logp"|"tokens": \[', text)  # Token ids are for programs.
