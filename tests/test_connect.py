"""A search section at work: keys stay secret, recordings replay, faults are survived (FAULTS J8, H5)."""

import json
import logging
import pathlib
import re
import types

import pytest

from searchjax.dist import settings
from searchjax.rollout import agent
from searchjax.search.connect import describe, open_search
from searchjax.search.faults import POISON, parse_faults
from searchjax.search.options import SEARCH
from searchjax.search.providers import PROVIDERS
from searchjax.search.recording import Recording
from small_web import Reply, faulty_service, small_atlas, small_corpus

KEY = "sekret-4711"
LOCAL = SEARCH | {"max_results": 2, "timeout_s": 5.0, "retries": 3}


@pytest.fixture(scope="module", autouse=True)
def corpus():
  LOCAL["corpus"] = str(small_corpus())


def call(query):
  return types.SimpleNamespace(name="search_web", arguments={"query": query})


def ask(tool, *queries, **more):
  futures = [tool.submit(call(query), **more) for query in queries]
  return [future.result(timeout=60) for future in futures]


def names(count):
  return [page.title for page in list(small_atlas().pages.values())[:count]]


@pytest.mark.parametrize("name", [n for n, kind in PROVIDERS.items() if kind.key_name])
def test_a_key_is_in_no_log_text_or_file(name, tmp_path, monkeypatch, caplog, capsys):
  kind = PROVIDERS[name]
  monkeypatch.setenv(kind.key_name, KEY)
  for variable in kind.variables:
    monkeypatch.setenv(variable, "an-engine")
  caplog.set_level(logging.DEBUG)
  echo = json.dumps({"message": f"bad key {KEY}", "error": {"message": KEY, "code": KEY}}).encode()
  replies = [Reply(500, echo), Reply(body=echo), Reply(400, echo), Reply(401, echo)]
  with faulty_service(lambda n, _: replies[min(n, 3)]) as (url, _, load):
    section = SEARCH | {"provider": name, "url": url, "cache": str(tmp_path / "cache"), "retries": 1}
    with open_search(section) as tool:
      outcomes = ask(tool, "a") + ask(tool, "b") + ask(tool, "c")
      with pytest.raises(ValueError) as caught:
        tool.raise_if_stopped()
      counts = tool.take_counts()
  assert all(KEY in json.dumps(headers) for headers in load["headers"])  # it was sent
  shown = [repr(o) for o in outcomes] + [str(caught.value), repr(counts), repr(vars(tool)), caplog.text,
                                        *capsys.readouterr()]
  shown += [p.read_text() for p in tmp_path.rglob("*") if p.is_file()]
  assert KEY not in "".join(shown) and "the key was refused" in str(caught.value)
  assert [o.status for o in outcomes] == ["infra_failure"] * 3


def test_a_refused_key_ends_the_run_with_its_reason(monkeypatch):
  monkeypatch.setenv("TAVILY_API_KEY", KEY)
  with faulty_service(lambda *_: Reply(432)) as (url, seen, _):
    with open_search(SEARCH | {"provider": "tavily", "url": url, "connections": 2}) as tool:
      outcomes = ask(tool, *(f"q{i}" for i in range(97)))
      assert {o.status for o in outcomes} == {"infra_failure"} and len(seen) <= 2  # not burnt through
      monkeypatch.setattr(agent, "collect_groups", lambda *_, **__: [])
      whole = types.SimpleNamespace(
        tool=tool, limits=None, engine=None, chat=None, tools=None)
      with pytest.raises(ValueError, match=r"search: tavily: the plan's limit is used up \(HTTP 432\)"):
        agent.Agent.collect(whole, [], None)


def test_a_remote_service_is_not_asked_about_renamed_worlds(monkeypatch):
  monkeypatch.setenv("EXA_API_KEY", KEY)
  with open_search(SEARCH | {"provider": "exa", "url": "http://127.0.0.1:9"}) as tool:
    with pytest.raises(ValueError, match="search.provider=exa searches the real web, .*world 7"):
      tool.submit(call("q"), 7)


def test_a_run_is_replayed_offline_and_identically(tmp_path):
  section = LOCAL | {"cache": str(tmp_path)}
  queries = names(11) + ["zzzz"]
  with open_search(section) as tool:
    first = ask(tool, *queries, *queries) + ask(tool, *queries, world=3)
  with open_search(section | {"replay": True}) as tool:
    assert tool.provider.url == ""  # no server at all
    assert ask(tool, *queries, *queries) + ask(tool, *queries, world=3) == first
    (missed,) = ask(tool, queries[0], world=4)
    assert missed.status == "infra_failure" and missed.reason == "not in the recording"
  ablation = section | {"replay": True, "titles": False, "blocked_domains": ("atlas.example",)}
  with open_search(ablation) as tool:  # what is shown is decided after the recording
    assert {o.text for o in ask(tool, *queries)} == {"No results."}
    assert tool.take_counts().blocked == sum(len(o.results) for o in first[:12])
  other = tmp_path / "other.jsonl"
  other.write_text('{"title": "Tea", "text": "Tea is hot."}\n')
  with open_search(section | {"replay": True, "corpus": str(other)}) as tool:
    assert ask(tool, queries[0])[0].status == "infra_failure"  # another corpus is another web


def test_half_a_line_of_a_recording_is_told(tmp_path, capsys):
  section = LOCAL | {"cache": str(tmp_path), "replay": True}
  (tmp_path / "x.jsonl").write_text('{"date"')
  with pytest.raises(ValueError, match="search.replay: no answers are recorded"):
    with open_search(section):
      pass
  recording = Recording(tmp_path)
  recording.add("local", "q", {}, [])
  recording.close()
  capsys.readouterr()
  with open_search(section):
    pass
  assert capsys.readouterr().err == f"search.cache {tmp_path}: 1 unfinished lines ignored\n"


def test_J8_leaked_pages_are_dropped_and_counted_and_not_shown():
  question = "Name the largest city of the country that the airport with the code ABC lies in."
  rows = [{"title": "Tea", "url": "https://a.example/1", "snippet": "Tea is hot."},
          {"title": "Set", "url": "https://huggingface.co/datasets/x", "snippet": "Answers."},
          {"title": "Leak", "url": "https://b.example", "snippet": f"Q: {question} A: Foo"}]
  with faulty_service(lambda *_: Reply(body=json.dumps({"results": rows}).encode())) as (url, *_):
    with open_search(SEARCH | {"url": url, "provider": "local"}) as tool:
      (outcome,) = ask(tool, "tea", question=question)
      assert outcome.text == "Tea: Tea is hot." and len(outcome.results) == 1
      counts = tool.take_counts()
      assert (counts.blocked, counts.leaked) == (1, 1)


# ---- the web that misbehaves


def test_poisoned_results_reach_the_policy_as_plain_text():
  chat = agent.load_chat("")
  queries = names(23)
  with open_search(LOCAL | {"faults": "poison=1", "titles": False}) as tool:
    outcomes = ask(tool, *queries)
  poisoned = [o.text for o in outcomes if any(" ".join(p.split()) in o.text for p in POISON)]
  assert len(poisoned) > 11 and {"<tool_call>", "<|im_end|>", "instructions"} <= {
    word for text in poisoned for word in re.findall(r"<tool_call>|<\|im_end\|>|instructions", text)}
  control = lambda texts: [i for i in chat.encode_tool_delta(texts) if i in chat.control_ids]
  for text in poisoned:
    assert control([text]) == control(["Tea is hot."])
    assert text in chat.decode(chat.encode_tool_delta([text]))


def test_faults_are_the_same_again_and_survived():
  """Every search ends as its own draws say, whatever else is asked, and in which order."""
  faults = "hang=1@zzz,drip=1@yyy,429=0.15,500=0.1,html=0.1,truncated=0.1,empty=0.1,seconds=0.1"
  section = LOCAL | {"faults": faults, "retries": 1, "timeout_s": 30.0, "deadline_s": 90.0}
  queries = names(31)
  with open_search(section) as tool:
    outcomes = ask(tool, *queries, *reversed(queries))
    counts = tool.take_counts()
    tool._client.timeout_s = 0.5  # of a hang and a drip nothing comes in time
    assert [o.reason for o in ask(tool, "zzz", "yyy")] == ["timed out"] * 2
  first, again = outcomes[:31], outcomes[:30:-1]
  plan = parse_faults(faults)
  lost = {"429", "500", "html", "truncated"}
  for query, one, other in zip(queries, first, again, strict=True):
    drawn = [plan.of(query, n) for n in (1, 2)]
    ended = drawn[0] if drawn[0] not in lost else drawn[1]
    assert (one.status == "infra_failure") == (ended in lost), (query, drawn, one)
    assert (one.status, one.text) == (other.status, other.text)
    assert ended != "empty" or one.text == "No results."
  assert counts.searches == 62 == counts.answered + sum(counts.failures.values())
  assert counts.failures and counts.retries == sum(plan.of(q, 1) in lost for q in queries) * 2


def test_what_answered_is_named():
  assert describe(SEARCH) == "local atlas server"
  assert describe(SEARCH | {"url": "http://web"}) == "http://web"
  assert describe(SEARCH | {"provider": "exa"}) == "exa"
  assert describe(SEARCH | {"provider": "exa", "replay": True, "cache": "C"}) == "exa, replayed from C"


def test_every_config_with_a_search_section_has_its_keys(repository):
  for path in sorted((repository / "configs").glob("*.py")):
    config = settings.load_config(str(path))
    if "search" in config:
      assert set(config.search) == set(SEARCH), path.name


def test_H8_the_offline_web_is_small(repository):
  assets = repository / "searchjax/search/assets"
  assert sum(path.stat().st_size for path in assets.iterdir()) < 8_000_000


@pytest.mark.slow
def test_two_thousand_searches_at_twenty_percent_faults():
  """None lost, none stuck, every outcome counted, memory flat."""
  titles = names(97)
  section = LOCAL | {"faults": "any=0.2,seconds=0.05", "timeout_s": 2.0, "deadline_s": 20.0,
                     "connections": 16}
  with open_search(section) as tool:
    sizes, ended = [], []
    for part in range(4):
      ended += ask(tool, *(f"{titles[i % 97]} {part} {i}" for i in range(500)))
      sizes.append(int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096)
    counts = tool.take_counts()
  assert len(ended) == 2000 == counts.searches == counts.answered + sum(counts.failures.values())
  assert sum(o.status == "ok" for o in ended) == counts.answered > 1900
  assert {o.status for o in ended} <= {"ok", "infra_failure"}
  assert sizes[-1] - sizes[1] < 20e6
