"""The search server: its replies, its bad starts and its end."""

import json
import socket
import subprocess
import sys
import time

import httpx
import pytest

from searchjax.search.faults import parse_faults
from searchjax.search.server import check_search, main, start_server
from searchjax.search.worlds import World
from small_web import small_atlas, small_corpus


@pytest.fixture(scope="module")
def corpus():
  return small_corpus()


@pytest.fixture(scope="module")
def base_url(corpus):
  with start_server(corpus) as url:
    yield url


@pytest.fixture(scope="module")
def client():
  with httpx.Client(trust_env=False, timeout=30) as client:
    yield client


def airport_of(atlas):
  return next(e for e in atlas.entities.values() if e.kind == "airport")


def test_health_says_how_many_pages(base_url, client):
  reply = client.get(f"{base_url}/health")
  assert reply.json() == {"status": "ok", "pages": len(small_atlas().pages)}


def test_a_search_brings_title_url_and_one_sentence(base_url, client):
  atlas = small_atlas()
  code = airport_of(atlas)
  city = atlas.tail_name(atlas.statements(code.id, "city")[0])
  reply = client.post(f"{base_url}/search", json={"query": f"{code.name} city", "num_results": 3})
  results = reply.json()["results"]
  assert results[0] == {"title": code.name, "url": f"https://atlas.example/{code.id}",
                        "snippet": f"{code.name} serves the city of {city}."}
  assert 1 <= len(results) <= 3


def test_a_renamed_world_is_asked_and_answers_under_its_own_names(base_url, client):
  atlas = small_atlas()
  code, world = airport_of(atlas), World(atlas, 19)
  city = atlas.statements(code.id, "city")[0].object
  reply = client.post(f"{base_url}/search", json={
    "query": f"{world.name(code.id)} city", "num_results": 1, "world": 19})
  (result,) = reply.json()["results"]
  assert result["snippet"] == f"{world.name(code.id)} serves the city of {world.name(city)}."
  assert code.name not in json.dumps(result)


def test_several_searches_in_one_request(base_url, client):
  name = airport_of(small_atlas()).name
  searches = [{"query": f"{name} city", "num_results": 1}, {"query": "zzzz", "world": 3}]
  together = client.post(f"{base_url}/search", json={"searches": searches}).json()["answers"]
  alone = [client.post(f"{base_url}/search", json=search).json() for search in searches]
  assert together == alone and together[1] == {"results": []}


@pytest.mark.parametrize("body, message", [
  (b"{oops", "not JSON"), (b"[1]", "expected a JSON object"), (b"{}", "query"),
  (b'{"query": "  "}', "non-empty"), (b'{"query": 5}', "non-empty string, got 5"),
  (b'{"query": "a", "num_results": 0}', "from 1 to 100, got 0"),
  (b'{"query": "a", "num_results": true}', "num_results"),
  (b'{"query": "a", "world": "x"}', "integer or null"),
  (b'{"searches": {}}', "as a list"), (b'{"searches": [{"query": ""}]}', "non-empty"),
  (b'{"searches": [5]}', "JSON object"), (b"\xff", "not JSON")])
def test_a_bad_request_is_refused_in_one_line(base_url, client, body, message):
  reply = client.post(f"{base_url}/search", content=body)
  assert reply.status_code == 400
  assert message in reply.json()["error"] and "\n" not in reply.json()["error"]


def test_a_corpus_without_free_names_has_no_renamed_worlds():
  with pytest.raises(ValueError, match="no renamed worlds"):
    check_search({"query": "a", "world": 1}, renameable=False)


def test_with_faults_the_header_says_which_attempt_it_is_else_the_server_counts(corpus, client):
  text = "429=0.3,500=0.3,empty=0.2,seed=5"
  plan = parse_faults(text)
  statuses = {"429": 429, "500": 500, "empty": 200, None: 200}
  with start_server(corpus, faults=text) as url:
    post = lambda query, **headers: client.post(f"{url}/search", json={"query": query}, headers=headers)
    for query in ("tea", "milk", "bread"):
      counted = [post(query).status_code for _ in range(7)]
      assert counted == [statuses[plan.of(query, n)] for n in range(1, 8)]
      assert [post(query, **{"x-attempt": "3"}).status_code for _ in range(3)] == [counted[2]] * 3
    assert post("").status_code == 400
    batch = client.post(f"{url}/search", json={"searches": [{"query": "tea"}]})
    assert batch.status_code == 400 and "one search a request" in batch.json()["error"]


# ---- bad starts: one clear line, exit code 2, nothing half-written


def bad_start(capsys, *arguments: str) -> str:
  assert main(list(arguments)) == 2
  printed = capsys.readouterr()
  assert printed.out == "" and printed.err.count("\n") == 1
  assert printed.err.startswith("error: ")
  return printed.err


def test_missing_corpus(capsys, tmp_path):
  ready = tmp_path / "ready"
  error = bad_start(capsys, "--corpus", str(tmp_path / "no.jsonl"), "--ready-file", str(ready))
  assert "no such file" in error and list(tmp_path.iterdir()) == []


def test_malformed_corpus_names_the_line(capsys, tmp_path):
  path = tmp_path / "corpus.jsonl"
  path.write_text('{"title": "A", "text": "x"}\n{"title": "B", "text"}\n')
  assert "line 2" in bad_start(capsys, "--corpus", str(path))


def test_port_taken(capsys, corpus):
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    assert f"port {port} " in bad_start(capsys, "--port", str(port), "--corpus", str(corpus))
    with pytest.raises(ValueError, match=f"port {port} of 127.0.0.1 cannot be had"):
      with start_server(corpus, port=port):
        pass


@pytest.mark.parametrize("arguments", [["--port", "x"], ["--prot", "1"], ["--port", "99999"]])
def test_a_bad_command_line(capsys, arguments):
  assert "search server" in bad_start(capsys, *arguments)


def test_faults_that_cannot_be_read(capsys):
  assert "got '429=2'" in bad_start(capsys, "--faults", "hang=0.1,429=2")


def test_a_page_without_words_is_no_corpus(capsys, tmp_path):
  path = tmp_path / "corpus.jsonl"
  path.write_text('{"title": "?", "text": "!"}\n')
  assert f"corpus {path}: no page has a word" in bad_start(capsys, "--corpus", str(path))


def test_pages_without_a_title_say_what_to_write(capsys, tmp_path):
  path = tmp_path / "corpus.jsonl"
  path.write_text('{"title": "A", "text": "x"}\n{"name": "B", "text": "y"}\n')
  assert bad_start(capsys, "--corpus", str(path)) == (
    f'error: corpus {path}, line 2: expected a non-empty string "title", the page\'s name, which the '
    'line lacks: it has name, text; write the page like {"title": "...", "text": "..."}\n')


@pytest.mark.parametrize("ready", ["", "no/such/folder/ready", "."])
def test_a_ready_file_that_cannot_be_written(capsys, tmp_path, ready):
  path = tmp_path / "corpus.jsonl"
  path.write_text('{"title": "A", "text": "x"}\n')
  error = bad_start(capsys, "--corpus", str(path), "--ready-file", str(tmp_path / ready))
  assert "cannot write --ready-file" in error and list(tmp_path.iterdir()) == [path]
  assert not tmp_path.with_name(tmp_path.name + ".draft").exists()


def test_ones_own_plain_pages_as_a_user_would_start_it(tmp_path, plain_environment, client):
  path, ready = tmp_path / "corpus.jsonl", tmp_path / "ready"
  path.write_text('{"title": "Tea", "text": "Tea is hot. It is made of leaves.", '
                  '"url": "https://tea.example/1"}\n')
  process = subprocess.Popen(
    [sys.executable, "-m", "searchjax.search.server", "--corpus", str(path), "--ready-file",
     str(ready)], stdout=subprocess.PIPE, text=True, env=plain_environment)
  try:
    line = process.stdout.readline()
    while not ready.exists():
      time.sleep(0.01)
    base_url = ready.read_text().strip()
    assert line == f"1 pages at {base_url}\n"
    reply = client.post(f"{base_url}/search", json={"query": "leaves of tea"}).json()
    assert reply == {"results": [{"title": "Tea", "url": "https://tea.example/1",
                                  "snippet": "It is made of leaves."}]}
    refused = client.post(f"{base_url}/search", json={"query": "tea", "world": 1})
    assert refused.status_code == 400 and "names_bank" in refused.json()["error"]
  finally:
    process.terminate()
    process.wait()
    process.stdout.close()


def test_it_ends_with_the_block(corpus, client):
  with start_server(corpus) as url:
    assert client.get(f"{url}/health").status_code == 200
  with pytest.raises(httpx.ConnectError):
    client.get(f"{url}/health")
