"""A policy that searches once and then answers, behind the interface of a known inference server."""

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from searchjax.data.chat import ToolCall


class Server:
  """See the module.

  Args:
    kind: "ours", "vllm", "sglang", "llama" (text alone) or "chat" (OpenAI's chat alone).
    logprobs: "scaled" or "unscaled"; None gives none.
    version: of the weights, one for each turn; the last one stays.
    change: (tokens, logps) to what is sent in their place.
    last: requests answered; those after it are refused with 400.

  Attributes:
    faults: statuses, or raw bodies, answered before anything else.
    message: of an error.
  """

  def __init__(
    self, chat, kind="ours", *, logprobs="scaled", version=("7",), change=None, length=512,
    last=10**6,
  ):
    self.chat, self.kind, self.logprobs = chat, kind, logprobs
    self.version, self.change, self.length, self.last = list(version), change, length, last
    self.faults, self.asked, self.headers = [], [], []
    self.message = "no room"
    self.busy = self.most_busy = 0

  def turn(self, text):
    """The ids of a turn, told by how often the policy has searched."""
    if "<tool_response>" in text:
      return self.chat.encode_assistant("It is Foo.")
    return self.chat.encode_assistant("", [ToolCall("search_web", {"query": "ABC city"})])

  def sample(self, text, budget, temperature):
    tokens = self.turn(text)[:budget]
    certain = self.logprobs == "scaled" and temperature and temperature < 0.1
    logps = [-0.001 if certain else -0.5 - i / 64 for i in range(len(tokens))]
    finish = "stop" if tokens[-1] in self.chat.stop_ids else "length"
    if self.change:
      tokens, logps = self.change(tokens, logps)
    version = self.version.pop(0) if len(self.version) > 1 else self.version[0]
    return tokens, logps, finish, version

  def app(self):
    routes = [Route("/v1/models", self.models)]
    if self.kind != "chat":
      routes.append(Route("/v1/completions", self.completions, methods=["POST"]))
    if self.kind == "sglang":
      routes.append(Route("/generate", self.generate, methods=["POST"]))
    if self.kind in ("chat", "llama"):
      routes.append(Route("/v1/chat/completions", self.chats, methods=["POST"]))
    return Starlette(routes=routes)

  async def models(self, request: Request):
    self.headers.append(dict(request.headers))
    owner = "searchjax" if self.kind == "ours" else self.kind
    return JSONResponse({"data": [{"id": "tiny", "owned_by": owner, "max_model_len": self.length}]})

  async def read(self, request):
    body = await request.json()
    self.asked.append(body)
    self.busy += 1
    self.most_busy = max(self.busy, self.most_busy)
    await asyncio.sleep(0.002)
    self.busy -= 1
    if len(self.asked) > self.last:
      self.faults = [400]
    if not self.faults:
      return body, None
    fault = self.faults.pop(0) if len(self.faults) > 1 else self.faults[0]
    if fault == "hang":
      await asyncio.sleep(1.0)
    if isinstance(fault, bytes):
      return body, Response(fault, media_type="application/json")
    status, headers = fault if isinstance(fault, tuple) else (fault, {})
    return body, JSONResponse({"error": {"message": self.message}}, status, headers)

  async def completions(self, request: Request):
    body, fault = await self.read(request)
    if fault:
      return fault
    prompt = body["prompt"]
    text = prompt if isinstance(prompt, str) else self.chat.decode(prompt)
    tokens, logps, finish, version = self.sample(text, body["max_tokens"], body["temperature"])
    written = self.chat.decode(tokens).removesuffix("<|im_end|>")
    choice = {"index": 0, "text": written, "finish_reason": finish, "logprobs": None}
    reply = {"choices": [choice]}
    if self.kind in ("ours", "vllm"):
      choice |= {"token_ids": tokens, "prompt_token_ids": prompt}
      if self.logprobs:
        choice["logprobs"] = {"token_logprobs": logps}
    if self.kind == "ours":
      reply["metadata"] = {"weight_version": version}
    return JSONResponse(reply)

  async def generate(self, request: Request):
    body, fault = await self.read(request)
    if fault:
      return fault
    sampling = body["sampling_params"]
    tokens, logps, finish, version = self.sample(
      self.chat.decode(body["input_ids"]), sampling["max_new_tokens"], sampling["temperature"]
    )
    meta = {
      "prompt_tokens": len(body["input_ids"]), "weight_version": version,
      "finish_reason": {"type": finish},
    }
    if self.logprobs:
      meta["output_token_logprobs"] = [[p, t, None] for p, t in zip(logps, tokens)]
    return JSONResponse({"text": "", "output_ids": tokens, "meta_info": meta})

  async def chats(self, request: Request):
    body, fault = await self.read(request)
    if fault:
      return fault
    if "top_k" in body:
      return JSONResponse({"error": {"message": "Unrecognized argument: top_k"}}, 400)
    if any(m["role"] == "tool" for m in body["messages"]):
      message, finish = {"role": "assistant", "content": "It is Foo."}, "stop"
    else:
      function = {"name": "search_web", "arguments": '{"query": "ABC city"}'}
      call = {"id": "a", "type": "function", "function": function}
      message, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})
