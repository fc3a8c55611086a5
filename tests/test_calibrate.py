"""The calibration command, end to end, at endpoints on loopback."""

import json

import pytest
from loopback import served
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from searchjax import calibrate
from searchjax.dist import settings

WRITTEN = {
  "even": [{"source": "requirement", "kind": "starts_with", "arguments": {"text": "A"}}],
  "easy": [{"source": "content", "kind": "judged", "arguments": {"text": "It says hello."}}],
  "hard": [{"source": "requirement", "kind": "contains", "arguments": {"text": "B"}}],
}


def test_conversations_become_calibrated_chats(tmp_path, repository):
  asked = []

  async def complete(request):
    prompt = (await request.json())["messages"][0]["content"]
    asked.append(prompt)
    name = next((name for name in WRITTEN if name in prompt), "")
    if prompt.startswith("Write a reference"):
      text = json.dumps({"reference": "A B hello", "rubrics": WRITTEN.get(name, "none")})
    elif prompt.startswith("You decide"):
      text = "It does.\nVerdict: MET"
    else:
      text = "A" if len(asked) % 2 else "C"
    return JSONResponse({"choices": [{"message": {"content": text}}]})

  rows = [{"id": name, "messages": [{"role": "user", "content": f"{name} one"}]}
          for name in (*WRITTEN, "odd")] + [{"id": "none", "messages": []}]
  (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
  app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
  with served(app) as url:
    ends = [f"--config.{end}.{key}={value}" for end in ("writer", "policy", "judge")
            for key, value in (("url", url), ("model", "m"))]
    # One request at a time: the policy's answers alternate.
    ends += [f"--config.{end}.connections=1" for end in ("writer", "policy")]
    config = settings.load_config(
      str(repository / "configs/calibrate.py"), [*ends, f"--config.conversations={tmp_path}/in.jsonl"])
    calibrate.main(config, tmp_path / "out")
    first, asked[:] = (tmp_path / "out/report.json").read_text(), []
    (tmp_path / "out/report.json").unlink()
    calibrate.main(config, tmp_path / "out")
    # Again: every reply is known, and every verdict that could be read.
    assert asked == [] and (tmp_path / "out/report.json").read_text() == first
  report = json.loads((tmp_path / "out/report.json").read_text())
  (chat,) = map(json.loads, (tmp_path / "out/chats.jsonl").read_text().splitlines())
  assert chat == {"id": "even", "text": "even one", "reference": "A B hello",
                  "rubrics": [{"kind": "starts_with", "arguments": {"text": "A"}}]}
  assert {key: report[key] for key in ("chats", "kept", "none_pass", "all_pass", "unscored")} == {
    "chats": 3, "kept": 1, "none_pass": 1, "all_pass": 1, "unscored": 0}
  assert report["passes"] == {"0": 1, "2": 1, "4": 1} and report["judge"]["asked"] == 2
  assert report["refused"] == {"reply: not the JSON object that was asked for": 1}
  assert len(report["malformed"]) == 1 and ":5: messages" in report["malformed"][0]


def test_without_an_endpoint_it_says_so(tmp_path, repository):
  (tmp_path / "in.jsonl").write_text('{"id": "a", "messages": [{"role": "user", "content": "Hi"}]}')
  config = settings.load_config(
    str(repository / "configs/calibrate.py"), [f"--config.conversations={tmp_path}/in.jsonl"])
  with pytest.raises(ValueError, match="url must be http"):
    calibrate.main(config, tmp_path / "out")
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text, told", [
  ("", "none to write rubrics for, 0 rows, 0 kept, 0 malformed$"),
  ('{"id": "a", "messages": []}', r"1 malformed: .*in.jsonl:1: messages: expected \[")])
def test_without_a_conversation_it_says_so(tmp_path, repository, text, told):
  (tmp_path / "in.jsonl").write_text(text)
  config = settings.load_config(
    str(repository / "configs/calibrate.py"), [f"--config.conversations={tmp_path}/in.jsonl"])
  with pytest.raises(ValueError, match=told):
    calibrate.main(config, tmp_path / "out")
  assert not (tmp_path / "out").exists()
