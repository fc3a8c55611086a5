"""Question sets in their publishers' layouts: fixtures of each shape, filters, duplicates, overlap."""

import base64
import csv
import hashlib
import json

import pytest

from searchjax.data.public_qa import (
  LAYOUTS, QAExample, Quality, decrypt, evaluation_of, layout_of, read_questions)
from searchjax.data.rows import Account

Q, A = "Which river runs through the town of Oldbridge?", "the Wend"


def encrypted(text, password):
  data = text.encode()
  key = hashlib.sha256(password.encode()).digest()
  return base64.b64encode(bytes(b ^ key[i % 32] for i, b in enumerate(data))).decode()


# One row in every publisher's layout, and what must become of it beyond Q and A.
ROWS = {
  "browsecomp": [({"problem": encrypted(Q, "guid-1"), "answer": encrypted(A, "guid-1"),
                   "canary": "guid-1", "problem_topic": "Geography"}, {})],
  "simpleqa": [({"metadata": "{'topic': 'Geography', 'answer_type': 'Place', 'urls': ['u']}",
                 "problem": Q, "answer": A}, {"hops": 1})],
  "facts_search": [({"problem": Q, "gold answer": A}, {})],
  "frames": [({"index": "7", "Prompt": Q, "Answer": A, "wiki_link_1": "u",
               "reasoning_types": "Multiple constraints", "wiki_links": "['u', 'v']"}, {"id": "7"})],
  "triviaqa": [
    ({"question": Q, "question_id": "tc_1", "answer": {"value": A, "aliases": ["Wend", A]}},
     {"id": "tc_1", "hops": 1, "aliases": ("Wend",)}),
    ({"Question": Q, "QuestionId": "tc_1", "Answer": {"Value": A, "Aliases": ["Wend"]}},
     {"id": "tc_1", "hops": 1, "aliases": ("Wend",)})],
  "bamboogle": [({"Question": Q, "Answer": A}, {"hops": 2})],
  "sealqa": [({"id": 3, "Question": Q, "answer": A, "urls": [], "freshness": "fast-changing",
               "question_types": [], "effective_year": "2024", "search_results": "conflicting",
               "topic": "Geography", "canary": "sealqa:1"}, {"id": "3"}),
             ({"question": Q, "answer": A, "freshness": "never-changing"}, {})],
  "webwalkerqa": [({"Question": Q, "answer": A, "root_url": "u", "lang": "en"}, {}),
                  ({"question": Q, "answer": A, "root_url": "u", "info": {"lang": "en"}}, {})],
  "webshaper": [({"id": "w1", "question": f'"{Q}"', "answer": A, "formalization": [["V@X", "r", "?"]],
                  "urls": ["u"]}, {"id": "w1"})],
  "popqa": [({"id": 5, "subj": "Oldbridge", "prop": "river", "obj": A, "s_pop": 3, "question": Q,
              "possible_answers": '["the Wend", "Wend"]'}, {"id": "5", "hops": 1, "aliases": ("Wend",)})],
  "musique": [({"id": "3hop1__1_2_3", "question": Q, "answer": A, "answer_aliases": ["Wend"],
                "question_decomposition": [{}, {}, {}], "paragraphs": [], "answerable": True},
               {"id": "3hop1__1_2_3", "hops": 3, "aliases": ("Wend",)})],
  "2wiki": [({"_id": "x", "question": Q, "answer": A, "type": "compositional", "supporting_facts": [],
              "context": [], "evidences": [["a", "r", "b"], ["b", "r", "c"]]}, {"id": "x", "hops": 2})],
  "deepdive": [({"id": 11, "question": Q, "answer": A, "conversations": []}, {"id": "11"})],
  "webdancer": [({"question": Q, "answer": A, "tag": "e2hqa"}, {})],
  "hotpotqa": [({"_id": "5a", "question": Q, "answer": A, "type": "bridge", "level": "hard",
                 "supporting_facts": [], "context": []}, {"id": "5a", "hops": 2})],
  "verl": [({"data_source": "musique", "prompt": [{"role": "user", "content": Q}], "ability": "qa",
             "reward_model": {"ground_truth": f"{A}<|answer_split|>Wend", "style": "rule"},
             "extra_info": {"index": "musique_4hop2__1", "split": "dev"}},
            {"source": "musique", "id": "musique_4hop2__1", "hops": 4, "aliases": ("Wend",)}),
           ({"data_source": "nq", "prompt": [{"role": "user", "content": Q}],
             "reward_model": {"ground_truth": {"target": [A]}}, "extra_info": {"index": 0}},
            {"source": "nq", "id": "0"})],
  "bfcl_web_search": [],
  "questions": [({"id": "rl/1", "text": Q, "answer": A, "aliases": ["Wend"], "hops": 2, "source": "musique"},
                 {"id": "rl/1", "hops": 2, "aliases": ("Wend",), "source": "musique"}),
                ({"id": "rl/1", "text": Q, "answer": A}, {"id": "rl/1"})],
  "flashrag": [({"id": "t1", "question": Q, "golden_answers": [A, "Wend"], "data_source": "nq"},
                {"source": "nq", "id": "t1", "aliases": ("Wend",)})],
  "nq": [({"question": Q, "answer": [A, "Wend"]}, {"hops": 1, "aliases": ("Wend",)})],
  "qa": [({"question": Q, "answer": A}, {}),
         ({"id": "a", "question": Q, "answer": A, "aliases": ["Wend"], "hops": 3},
          {"id": "a", "hops": 3, "aliases": ("Wend",)})],
}


def lines(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def read(*paths, **options):
  account = Account()
  return read_questions(paths, account, **options), account


@pytest.mark.parametrize("name", sorted({layout.name for layout in LAYOUTS}))
def test_every_layout_is_told_by_its_fields_and_read(tmp_path, name):
  for fields, expected in ROWS[name]:
    assert layout_of(fields).name == name
    (example,), account = read(lines(tmp_path / "rows.jsonl", [fields]))
    expected = {"source": name, "id": "rows.jsonl:1", "hops": None, "aliases": ()} | expected
    assert (example.question, example.answer) == (Q, A) and account.kept == 1
    assert {key: getattr(example, key) for key in expected} == expected
    assert read(tmp_path / "rows.jsonl", layout=name)[0] == [example]


def test_metadata_is_read_from_literals_and_kept():
  from searchjax.data.public_qa import _read
  from searchjax.data.rows import Row
  fields = ROWS["simpleqa"][0][0]
  assert _read(Row("f", 1, fields), layout_of(fields)).metadata == {
    "topic": "Geography", "answer_type": "Place", "urls": ["u"]}
  fields = ROWS["frames"][0][0]
  assert _read(Row("f", 1, fields), layout_of(fields)).metadata["wiki_links"] == ["u", "v"]


def test_bamboogles_own_layout_has_no_header(tmp_path):
  with open(tmp_path / "a.csv", "w", newline="") as file:
    csv.writer(file).writerows([[Q, "", "", "", A, "", ""], ["Where is the Wend?", "", "", "", "", "", ""]])
  (example,), account = read(tmp_path / "a.csv")
  assert (example.question, example.answer, example.hops) == (Q, A, 2)
  assert [str(p) for p in account.problems] == [f"{tmp_path}/a.csv:2: 4: empty"]


def test_bfcls_answers_are_joined_by_id(tmp_path):
  asked = lines(tmp_path / "q.jsonl", [
    {"id": f"web_{i}", "question": [[{"role": "user", "content": Q}]], "involved_classes": []}
    for i in (0, 1)])
  answered = lines(tmp_path / "a.jsonl", [
    {"id": f"web_{i}", "ground_truth": [A, "Wend"], "source": [], "num_hops": 3} for i in (0, 2)])
  (example,), account = read(asked, answered)
  assert (example.id, example.question, example.aliases, example.hops) == ("web_0", Q, ("Wend",), 3)
  assert account.kept == 1 and [(p.file, p.line, p.field) for p in account.problems] == [
    (str(asked), 2, "id"), (str(answered), 2, "id")]


def test_browsecomp_is_decrypted_with_the_rows_own_canary(tmp_path):
  secret = encrypted("a much longer text than one digest of the canary, so that it repeats", "c")
  assert decrypt(secret, "c").endswith("so that it repeats")
  bad = {"problem": encrypted(Q, "one"), "answer": "%%%", "canary": "one"}
  _, account = read(lines(tmp_path / "b.jsonl", [bad, bad | {"canary": ""}]))
  assert [(p.field, p.reason[:29]) for p in account.problems] == [
    ("answer", "cannot be decrypted with the "), ("canary", "empty")]


@pytest.mark.parametrize("fields, field, reason", [
  ({"question": Q, "answer": "", "tag": ""}, "answer", "empty"),
  ({"question": Q, "answer": None, "tag": ""}, "answer", "expected text or a list of texts, got NoneType"),
  ({"question": 3, "answer": A, "tag": ""}, "question", "expected text, got int"),
  ({"question": Q, "question_id": "t", "answer": {"aliases": [A]}}, "answer.value", "missing"),
  ({"question": Q, "possible_answers": "[", "obj": A}, "possible_answers", "cannot be read"),
  ({"text": Q}, "", "no known layout has the fields text"),
])
def test_malformed_rows_are_named_by_field(tmp_path, fields, field, reason):
  examples, account = read(lines(tmp_path / "a.jsonl", [{"question": Q, "answer": A}, fields]))
  (problem,) = account.problems
  assert len(examples) == 1 and account.rows == 2
  assert (problem.line, problem.field) == (2, field) and problem.reason.startswith(reason)


def test_numbers_are_answers(tmp_path):
  (example,), _ = read(lines(tmp_path / "a.jsonl", [{"question": Q, "answer": 1999}]))
  assert example.answer == "1999"


@pytest.mark.parametrize("question, answer, metadata, reason", [
  (Q, A, {}, None),
  ("Who is that?", A, {}, "short question"),
  ("谁是第一任总统？", A, {}, None),
  (Q, "w " * 31, {}, "long answer"),
  (Q, "Oldbridge", {}, "answer in the question"),
  ("Is the Wend or the Aire the longer river?", "the Wend", {}, None),
  ("Is it yes that the river is long?", "yes", {}, None),
  (Q, A, {"answerable": False}, "marked unanswerable"),
  (Q, A, {"freshness": "fast-changing"}, "answer changes over time"),
  (Q, A, {"freshness": "never-changing"}, None)])
def test_quality(question, answer, metadata, reason):
  quality = Quality(changing=False)
  assert quality.objection(QAExample(question, answer, metadata=metadata)) == reason


def test_what_is_left_out_is_counted_by_reason(tmp_path):
  rows = [{"question": q, "answer": a} for q, a in (
    (Q, A), (Q.upper(), "Aire"), (Q + " Say.", A), (Q + " Say.", "Aire"), ("Who is it?", A),
    ("When did the first bridge of the old town of Oldbridge open to carts?", "1702"))]
  held = lines(tmp_path / "held.jsonl", [
    {"problem": "When did the first bridge of the old town of Oldbridge open to carts and people?",
     "gold answer": "1702"}])
  kept, account = read(lines(tmp_path / "a.jsonl", rows), quality=Quality(), similarity=0.7,
                       evaluation=evaluation_of([held]))
  assert [(e.question, e.answer) for e in kept] == [(Q, A), (Q + " Say.", "Aire")]
  assert dict(account.dropped) == {"short question": 1, "overlaps an evaluation set": 1,
                                   "exact duplicate": 1, "near duplicate": 1}
  assert account.kept == 2 and account.rows == 6


def test_an_evaluation_file_without_questions_is_refused(tmp_path):
  with pytest.raises(ValueError, match="no question to compare with; 1 rows, 0 kept, 1 malformed"):
    evaluation_of([lines(tmp_path / "a.jsonl", [{"x": 1}])])
  with pytest.raises(ValueError, match="unknown layout 'hotpot'"):
    read(tmp_path / "a.jsonl", layout="hotpot")


def test_every_public_file_is_read_whole(shared):
  files = sorted(path for path in (shared / "data/qa").rglob("*") if path.is_file())
  assert len(files) > 15
  bfcl = [path for path in files if "bfcl" in str(path)]
  for group in [bfcl, *([path] for path in files if path not in bfcl)]:
    examples, account = read(*group)
    assert account.problems == [] and account.kept == len(examples) > 0, group
    assert all(e.question and e.answer for e in examples)
