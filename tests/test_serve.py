"""The HTTP interface: OpenAI's shapes, streams, cancellation, and the engine's own numbers."""

import json
import logging
import signal
import subprocess
import sys
import threading
import time
import types

import httpx
import jax
import numpy as np
import pytest

from loopback import served
from searchjax import serve
from searchjax.data.chat import ToolCall
from searchjax.dist.run_log import write_json
from searchjax.model.config import model_config
from searchjax.model.params import init_params
from searchjax.rollout.agent import load_chat, save_policy
from searchjax.rollout.engine import EngineGroup
from searchjax.rollout.episode import Episode, Limits
from searchjax.rollout.remote import RemoteEngine
from searchjax.search.tool import SEARCH_WEB

LENGTH, SHORT = 1024, 64
QUESTION = types.SimpleNamespace(id="q", text="Which city does ABC serve?", world=None)


@pytest.fixture(scope="module")
def chat():
  return load_chat("")


class Scripted:
  """An engine whose turns are written beforehand; it gives two tokens at a look.

  Attributes:
    turn: ids that every choice is answered with.
    gate: the engine goes on with each look while it is set.
    left: whether the last choice was ended by its reader.
  """

  def __init__(self, stop_id):
    self.stop_id = stop_id
    self.turn, self.gate, self.left = [], threading.Event(), False
    self.keys, self.sampling = [], None
    self.gate.set()

  def serve(self, params, arrivals):
    while (choice := arrivals.get()) is not None:
      self.keys.append(tuple(choice.key))
      self.sampling = choice.sampling
      tokens, goes_on = self.turn[: choice.turn_budget()], True
      for end in range(2, len(tokens) + 2, 2):
        self.gate.wait()
        so_far = tokens[:end]
        goes_on = choice.heard(so_far, [-0.25 * (i + 1) for i in range(len(so_far))])
        if not goes_on:
          break
      self.left = choice.cancelled
      choice.end_turn(so_far, [0.0] * len(so_far), so_far[-1] == self.stop_id)


@pytest.fixture(scope="module")
def engine(chat):
  return Scripted(chat.stop_ids[0])


@pytest.fixture(scope="module")
def service(chat, engine):
  with serve.Service(engine, None, chat, length=LENGTH, name="tiny", version="7-abc") as service:
    yield service


@pytest.fixture(scope="module")
def client(service):
  with served(serve.make_app(service)) as url, (
    httpx.Client(base_url=url, trust_env=False, timeout=20)) as client:
    yield client


@pytest.fixture(autouse=True)
def fresh(engine, chat):
  engine.gate.set()
  engine.turn = chat.encode_assistant("It is Foo, näch Bar.")
  engine.keys.clear()


def events(client, path, body):
  """The parts of a streamed reply."""
  with client.stream("POST", path, json=body | {"stream": True}) as reply:
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.iter_lines() if line]
  assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
  return [json.loads(line[6:]) for line in lines[:-1]]


def test_what_is_served(client):
  (card,) = client.get("/v1/models").json()["data"]
  assert (card["id"], card["owned_by"], card["max_model_len"]) == ("tiny", "searchjax", LENGTH)
  assert client.get("/health").json() == {"status": "ok"}
  assert client.get("/version").json()["weight_version"] == "7-abc"


def test_a_completion_of_text_and_of_ids(client, engine, chat):
  prompt = chat.encode_text("Say it.")
  replies = [
    client.post("/v1/completions", json={
      "model": "tiny", "prompt": p, "max_tokens": 60, "logprobs": 0, "return_token_ids": True}).json()
    for p in ("Say it.", prompt)
  ]
  for reply in replies:
    (choice,) = reply["choices"]
    assert choice["text"] == "It is Foo, näch Bar." and choice["finish_reason"] == "stop"
    assert choice["token_ids"] == engine.turn and choice["prompt_token_ids"] == prompt
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"] == [-0.25 * (i + 1) for i in range(len(engine.turn))]
    assert logprobs["tokens"][-1] == "<|im_end|>" and logprobs["text_offset"][:2] == [
      0, len(logprobs["tokens"][0])]
    assert reply["object"] == "text_completion" and reply["metadata"] == {"weight_version": "7-abc"}
    assert reply["usage"] == {
      "prompt_tokens": len(prompt), "completion_tokens": len(engine.turn),
      "total_tokens": len(prompt) + len(engine.turn),
    }


def test_a_completion_is_cut_at_max_tokens(client, engine):
  reply = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "return_token_ids": True})
  (choice,) = reply.json()["choices"]
  assert choice["finish_reason"] == "length" and choice["token_ids"] == engine.turn[:3]


def test_several_prompts_and_choices_have_keys_of_their_own(client, engine):
  """FAULTS C6: one seed is not one answer n times; the same seed is the same keys."""
  body = {"prompt": ["a", "b"], "n": 2, "seed": 2**40 + 5, "temperature": 0.5, "top_p": 0.9, "top_k": -1}
  reply = client.post("/v1/completions", json=body).json()
  assert [c["index"] for c in reply["choices"]] == [0, 1, 2, 3]
  first, engine.keys = engine.keys, []
  assert first[0] == (2**8, 5) and len(set(first)) == 4
  client.post("/v1/completions", json=body)
  assert engine.keys == first
  assert (engine.sampling.temperature, engine.sampling.top_p, engine.sampling.top_k) == (0.5, 0.9, 0)
  client.post("/v1/completions", json={"prompt": "a", "seed": -1})
  assert engine.keys[-1] == (2**32 - 1, 2**32 - 1)


def test_a_stream_is_the_whole_reply_in_parts(client, engine):
  body = {"prompt": "a", "max_tokens": 60, "logprobs": 0, "return_token_ids": True}
  (whole,) = client.post("/v1/completions", json=body).json()["choices"]
  parts = events(client, "/v1/completions", body | {"stream_options": {"include_usage": True}})
  last, parts = parts[-1], [part["choices"][0] for part in parts[:-1]]
  assert last["choices"] == [] and last["usage"]["completion_tokens"] == len(engine.turn)
  assert "".join(p["text"] for p in parts) == whole["text"] and len(parts) > 3
  assert all("\ufffd" not in p["text"] for p in parts)  # ä is two bytes
  assert [t for p in parts for t in p["token_ids"]] == whole["token_ids"]
  logps = [x for p in parts if p["logprobs"] for x in p["logprobs"]["token_logprobs"]]
  assert logps == whole["logprobs"]["token_logprobs"]
  assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"]
  assert [p["finish_reason"] for p in parts[-2:]] == [None, "stop"]


@pytest.mark.parametrize("stop, text", [("Foo", "It is "), (["zz", "s Fo"], "It i"), ("oo, n", "It is F")])
def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(client, stop, text):
  body = {"prompt": "a", "max_tokens": 60, "stop": stop}
  (choice,) = client.post("/v1/completions", json=body).json()["choices"]
  assert (choice["text"], choice["finish_reason"]) == (text, "stop")
  parts = [part["choices"][0]["text"] for part in events(client, "/v1/completions", body)]
  assert "".join(parts) == text


def test_a_stop_id_of_the_request_ends_the_answer(client, engine, chat):
  third = engine.turn[2]
  body = {"prompt": "a", "max_tokens": 60, "stop_token_ids": [third], "return_token_ids": True}
  (choice,) = client.post("/v1/completions", json=body).json()["choices"]
  assert choice["token_ids"] == engine.turn[:3] and choice["finish_reason"] == "stop"
  assert choice["text"] == chat.decode(engine.turn[:2])


# ---- chat ------------------------------------------------------------------------------------------


def ask(client, **fields):
  body = {"messages": [{"role": "user", "content": "Which city?"}], "tools": [SEARCH_WEB]} | fields
  return client.post("/v1/chat/completions", json=body).json()


def test_a_chat_with_a_tool_call(client, engine, chat):
  engine.turn = chat.encode_assistant("Wait.", [ToolCall("search_web", {"query": "ABC city"})])
  reply = ask(client, return_token_ids=True, logprobs=True)
  (choice,) = reply["choices"]
  message = choice["message"]
  assert (message["role"], message["content"], choice["finish_reason"]) == (
    "assistant", "Wait.", "tool_calls")
  (call,) = message["tool_calls"]
  assert call["type"] == "function" and call["function"]["name"] == "search_web"
  assert json.loads(call["function"]["arguments"]) == {"query": "ABC city"}
  assert reply["prompt_token_ids"] == chat.encode_prompt(
    [{"role": "user", "content": "Which city?"}], tools=[SEARCH_WEB])
  assert choice["token_ids"] == engine.turn
  content = choice["logprobs"]["content"]
  assert [c["logprob"] for c in content] == [-0.25 * (i + 1) for i in range(len(engine.turn))]
  assert bytes(content[0]["bytes"]).decode() == content[0]["token"]
  # The call goes back in, with what the tool said, and is written as it was sampled.
  history = [{"role": "user", "content": "Which city?"}, message,
             {"role": "tool", "tool_call_id": call["id"], "content": "It is Foo."}]
  prompt = chat.encode_prompt(
    [{"role": "user", "content": "Which city?"}], tools=[SEARCH_WEB]) + engine.turn + (
    chat.encode_tool_delta(["It is Foo."]))
  assert ask(client, messages=history, return_token_ids=True)["prompt_token_ids"] == prompt


def test_an_agent_may_call_what_it_was_trained_to_call(client, engine, chat):
  """Trained without tools in its prompt, it searches though the request lists no tool."""
  engine.turn = chat.encode_assistant("", [ToolCall("search_web", {"query": "ABC"})])
  (choice,) = ask(client, tools=None)["choices"]
  assert choice["message"]["tool_calls"][0]["function"]["name"] == "search_web"
  (choice,) = ask(client, tools=None, tool_choice="none")["choices"]
  assert "<tool_call>" in choice["message"]["content"] and choice["finish_reason"] == "stop"


def test_a_chat_streams_text_then_whole_calls(client, engine, chat):
  engine.turn = chat.encode_assistant("Wait a bit.", [ToolCall("search_web", {"query": "ABC"})])
  body = {"messages": [{"role": "user", "content": "Q"}], "tools": [SEARCH_WEB]}
  parts = [p["choices"][0] for p in events(client, "/v1/chat/completions", body)]
  assert parts[0]["delta"] == {"role": "assistant", "content": ""}
  assert "".join(p["delta"].get("content", "") for p in parts) == "Wait a bit."
  (calls,) = [p["delta"]["tool_calls"] for p in parts if "tool_calls" in p["delta"]]
  assert calls[0]["index"] == 0 and json.loads(calls[0]["function"]["arguments"]) == {"query": "ABC"}
  assert parts[-1]["finish_reason"] == "tool_calls"


def test_a_malformed_call_is_text(client, engine, chat):
  engine.turn = [
    *chat.encode_text("Hm. "), *chat.encode_written("<tool_call>{}</tool_call>"), chat.stop_ids[0]]
  (choice,) = ask(client)["choices"]
  assert choice["message"]["content"] == "Hm. <tool_call>{}</tool_call>"
  assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
  body = {"messages": [{"role": "user", "content": "Q"}]}
  parts = events(client, "/v1/chat/completions", body)
  assert "".join(p["choices"][0]["delta"].get("content", "") for p in parts) == (
    "Hm. <tool_call>{}</tool_call>")


def test_thinking_comes_apart(client, engine, chat):
  engine.turn = chat.encode_assistant("Foo.", thinking="It must be Foo.")
  body = {"messages": [{"role": "user", "content": "Q"}],
          "chat_template_kwargs": {"enable_thinking": True}}
  (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
  assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == (
    "Foo.", "It must be Foo.")
  parts = [p["choices"][0]["delta"] for p in events(client, "/v1/chat/completions", body)]
  for name in ("content", "reasoning_content"):
    assert "".join(p.get(name, "") for p in parts) == choice["message"][name]
  cut = client.post("/v1/chat/completions", json=body | {"max_tokens": 3}).json()["choices"][0]
  assert cut["finish_reason"] == "length" and cut["message"]["content"] == ""


def test_a_chat_may_fill_the_context(client, engine, chat):
  engine.turn = [9] * LENGTH
  reply = ask(client, tools=None)
  assert reply["usage"]["total_tokens"] == LENGTH
  assert reply["choices"][0]["finish_reason"] == "length"


# ---- what cannot be served -------------------------------------------------------------------------


COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Q"}]


@pytest.mark.parametrize("path, body, param", [
  (COMPLETION, {}, "prompt"), (COMPLETION, {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
  (CHAT, {"messages": "hi"}, "messages"), (CHAT, {"messages": USER, "tools": [{}]}, "tools"),
])
def test_a_bad_request_is_openais_error(client, path, body, param):
  reply = client.post(path, json=body)
  error = reply.json()["error"]
  assert reply.status_code == 400 and error["param"] == param
  assert error["type"] == "invalid_request_error" and "\n" not in error["message"]


def test_another_path_or_method_is_openais_error_too(client):
  for reply, status in ((client.get("/v1/engines"), 404), (client.get(CHAT), 405)):
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (status, "invalid_request_error")
    assert error["code"] is None


def test_half_a_surrogate_pair_is_quoted_in_an_error(client):
  call = {"function": {"name": "\ud800", "arguments": "x"}}
  body = json.dumps({"messages": [*USER, {"role": "assistant", "tool_calls": [call]}]})
  reply = client.post(CHAT, content=body.encode())
  assert reply.status_code == 400 and "are not JSON" in reply.json()["error"]["message"]


def test_another_model_and_no_json(client):
  reply = client.post(COMPLETION, json={"model": "gpt", "prompt": "a"})
  assert reply.status_code == 404 and reply.json()["error"]["code"] == "model_not_found"
  assert client.post(COMPLETION, content=b"{").status_code == 400
  assert client.post(COMPLETION, content=b"[]").status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_lane(client, engine, service, stream):
  engine.gate.clear()
  with pytest.raises(httpx.ReadTimeout):
    body = {"prompt": "a", "max_tokens": 60, "stream": stream}
    with client.stream("POST", COMPLETION, json=body, timeout=0.3) as reply:
      reply.read()
  deadline = time.monotonic() + 10
  while service.running and time.monotonic() < deadline:
    time.sleep(0.01)
  assert not service.running
  engine.gate.set()
  client.post(COMPLETION, json={"prompt": "a", "max_tokens": 1})  # The engine is free again.
  assert engine.keys and len(engine.keys) == 2


def test_while_it_stops_it_finishes_and_takes_nothing_new(client, engine, service):
  engine.gate.clear()
  replies = []
  body = {"prompt": "a", "max_tokens": 60}
  thread = threading.Thread(target=lambda: replies.append(client.post(COMPLETION, json=body)))
  thread.start()
  while not service.running:
    time.sleep(0.005)
  service.draining = True
  try:
    refused = client.post(COMPLETION, json=body)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert client.get("/health").status_code == 503
  finally:
    service.draining = False
    engine.gate.set()
    thread.join()
  assert replies[0].status_code == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_H7_an_engine_that_dies_is_an_error_and_no_text(chat):
  class Dying:
    def serve(self, params, arrivals):
      arrivals.get()
      raise ZeroDivisionError

  with serve.Service(Dying(), None, chat, length=LENGTH, name="tiny", version="1") as service:
    with served(serve.make_app(service)) as url:
      reply = httpx.post(f"{url}{COMPLETION}", json={"prompt": "a"}, trust_env=False)
      assert reply.status_code == 500 and "the engine has stopped" in reply.json()["error"]["message"]
      assert httpx.get(f"{url}/health", trust_env=False).status_code == 503
      assert httpx.post(f"{url}{COMPLETION}", json={"prompt": "a"}, trust_env=False).status_code == 503


def test_a_server_leaves_the_log_handlers_of_others_alone(service, monkeypatch):
  handler, closed = logging.StreamHandler(), []
  monkeypatch.setattr(handler, "close", lambda: closed.append(handler))
  serve.Server(service)
  with served(serve.make_app(service)):
    assert not closed


# ---- a real engine ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(chat):
  return model_config(
    "tiny", full_attention_interval=2, num_layers=2, hidden_size=24, num_query_heads=2, num_kv_heads=1,
    head_size=8, rotary_dims=4, num_experts=5, expert_size=7, shared_expert_size=11,
    real_vocab_size=chat.vocab_size,
    delta_key_heads=1, delta_value_heads=2, delta_key_size=5, delta_value_size=6, chunk_length=8,
  )


@pytest.fixture(scope="module")
def params(model):
  tree = init_params(jax.random.key(0), model)
  return tree | {"embed": tree["embed"] * 5}


@pytest.fixture(scope="module")
def group(model, chat):
  return EngineGroup(
    model, devices=jax.local_devices()[:1], lanes=4, pool=6, length=SHORT, feed_rows=2, feed_tokens=8,
    decode_steps=3, stop_ids=chat.stop_ids,
  )


def episodes(chat, count):
  limits = Limits(calls=2, turn_tokens=9, tokens=SHORT)
  return [
    Episode(
      QUESTION, [{"role": "user", "content": f"{QUESTION.text} {i}"}], index=i,
      key=np.array([2**31 + i, i], np.uint32), chat=chat, tool=None, limits=limits, tools=None,
    )
    for i in range(count)
  ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_rollout_over_http_is_the_rollout_in_process(chat, group, params, temperature):
  """Greedy and sampled: the same ids, and log-probs to 1e-5."""
  here, there = episodes(chat, 7), episodes(chat, 7)
  group.run(params, here, temperature=temperature)
  service = serve.Service(group, params, chat, length=SHORT, name="tiny", version="7-abc")
  with service, served(serve.make_app(service)) as url:
    with RemoteEngine(url, chat=chat, length=SHORT, training=True) as remote:
      assert remote.abilities.ours and remote.abilities.logprobs == "scaled"
      remote.run(None, there, temperature=temperature)
  for a, b in zip(here, there, strict=True):
    assert b.valid and (b.tokens, b.mask, b.stop) == (a.tokens, a.mask, a.stop)
    np.testing.assert_allclose(b.logps, a.logps, atol=1e-5)
    assert b.policy_version == "7-abc" and a.generated == 9
  assert len({tuple(e.tokens) for e in there}) == 7


def test_a_run_folder_is_loaded_with_its_tokenizer_and_version(chat, model, params, tmp_path):
  write_json(tmp_path / "sft/config.json", {"tokenizer": "", "chat": {"thinking": True}})
  save_policy(tmp_path / "sft", 7, params, model)
  loaded = serve.load(tmp_path / "sft")
  assert loaded.chat.thinking and loaded.model == model and loaded.division is None
  assert loaded.version == serve.load(tmp_path / "sft").version and loaded.version.startswith("7-")
  save_policy(tmp_path / "sft", 8, params | {"embed": params["embed"] * 2}, model)
  assert serve.load(tmp_path / "sft").version.startswith("8-")
  other = params | {"embed": params["embed"] * 3}
  write_json(tmp_path / "rl/config.json", {"tokenizer": ""})
  save_policy(tmp_path / "rl", 7, other, model)
  assert serve.load(tmp_path / "rl").version != loaded.version


@pytest.mark.parametrize("arguments, message", [
  (["--checkpoint", "no/such"], "holds no finished stage"),
  (["--checkpoint", "x", "--port", "99999"], "port"),
  (["--checkpoint", "x", "--mesh", "2,2"], "three numbers"), ([], "--checkpoint"),
])
def test_a_bad_start_is_one_line(capsys, arguments, message):
  with pytest.raises(SystemExit) as stopped:
    serve.main([*arguments, *([] if "--port" in arguments else ["--port", "0"])])
  printed = capsys.readouterr()
  assert stopped.value.code == 2 and printed.out == "" and printed.err.count("\n") == 1
  assert message in printed.err


@pytest.mark.slow
def test_as_a_user_would_start_it_and_stop_it(model, params, tmp_path, plain_environment):
  write_json(tmp_path / "sft/config.json", {"tokenizer": ""})
  save_policy(tmp_path / "sft", 7, params, model)
  process = subprocess.Popen(
    [sys.executable, "-m", "searchjax.serve", "--checkpoint", str(tmp_path / "sft"), "--port", "0",
     "--length", "64", "--lanes", "2"],
    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plain_environment)
  try:
    name, version, _, url = process.stdout.readline().split()
    assert name == "sft" and version.startswith("7-")
    body = {"prompt": "Foo", "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    (choice,) = httpx.post(f"{url}/completions", json=body, trust_env=False, timeout=60).json()["choices"]
    assert 1 <= len(choice["token_ids"]) <= 5
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0 and "Traceback" not in err, err
  finally:
    process.kill()
    process.wait()
