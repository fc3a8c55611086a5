"""The engine behind an OpenAI-compatible HTTP interface.  HOST.

  POST /v1/completions       text or token ids in, text and token ids out
  POST /v1/chat/completions  messages and tools in, a message with its calls out
  GET  /v1/models, /health, /version

Both kinds stream (server-sent events) and give log-probs; `return_token_ids` gives ids as vLLM
does, so that a rollout over HTTP is the rollout in process: the seed is the rollout's key. Every
reply names the weights (`metadata.weight_version`). A client that leaves frees its lane.

python -m searchjax.serve --checkpoint runs/tiny/grpo --port 8000
"""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import queue
import secrets
import socket
import sys
import threading
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import searchjax
from searchjax.data.chat import ChatFormat
from searchjax.dist import checkpoint
from searchjax.dist.settings import OneLineParser, fail, is_ours
from searchjax.model.config import ModelConfig
from searchjax.model.convert import load_params, open_hf
from searchjax.model.parallel import Division, make_whole
from searchjax.rollout import openai_api
from searchjax.rollout.agent import load_chat, load_policy, new_division
from searchjax.rollout.engine import EngineGroup
from searchjax.rollout.openai_api import BadRequest, Wanted

FEED_ROWS, FEED_TOKENS, DECODE_STEPS = 8, 64, 8
FORMATS = 64  # Chat formats kept, one for each set of tools.
DIGESTED = 65536  # Bytes at both ends of a file that its part of the version is made of.
FINISH_S = 30  # How long answers under way may take once the server is told to stop.


@dataclasses.dataclass(frozen=True)
class Event:
  """What an engine tells of one choice: new tokens, at last why it ended, or why it cannot be."""

  index: int
  tokens: list[int] = dataclasses.field(default_factory=list)
  logps: list[float] = dataclasses.field(default_factory=list)
  finish: str | None = None
  error: str | None = None


class Choice:
  """One answer of a request: a `schedule.Served` conversation of one turn.

  Args:
    tell: called by the engine's thread.

  Attributes:
    cancelled: set by anyone; the turn then ends at the next look.
  """

  def __init__(
    self, wanted: Wanted, index: int, key: np.ndarray, tell: Callable[[Event], None]
  ):
    self.key, self.index = key, index
    self.prompt = wanted.prompts[index // wanted.n]
    self.sampling = wanted.sampling
    self.routing: list[np.ndarray] = []
    self.finished = self.cancelled = False
    self._wanted, self._tell = wanted, tell
    self._sent, self._cut = 0, False

  def turn_budget(self) -> int:
    return 1 if self.cancelled else self._wanted.max_tokens[self.index // self._wanted.n]

  def forced_turn(self) -> list[int]:
    return []

  def heard(self, tokens: list[int], logps: list[float]) -> bool:
    end = self._end(tokens)
    self._cut = end is not None
    new = slice(self._sent, end)
    self._sent = len(tokens) if end is None else end
    self._say(tokens=tokens[new], logps=logps[new])
    return not (self._cut or self.cancelled)

  def end_turn(self, tokens: list[int], logps: list[float], stopped: bool) -> None:
    self.finished = True
    self._say(finish="stop" if stopped or self._cut else "length")

  def waits_for(self) -> list[Future]:
    return []

  def next_tokens(self) -> list[int]:
    return []

  def refuse(self, reason: str) -> None:
    self.finished = True
    self._say(error=reason)

  def _say(self, **event: Any) -> None:
    if not self.cancelled:
      self._tell(Event(self.index, **event))

  def _end(self, tokens: list[int]) -> int | None:
    """How many tokens there are up to a stop text or id of the request; None without one."""
    wanted = self._wanted
    if not wanted.stop and not wanted.stop_ids:
      return None
    # A token has at least one byte, so a stop text lies within as many tokens as it has bytes.
    window = max((len(stop.encode()) for stop in wanted.stop), default=0)
    for i in range(self._sent, len(tokens)):
      if tokens[i] in wanted.stop_ids:
        return i + 1
      text = wanted.chat.decode(tokens[max(0, i + 1 - window) : i + 1]) if window else ""
      if any(stop in text for stop in wanted.stop):
        return i + 1
    return None


@runtime_checkable
class ServingEngine(Protocol):
  """What serves: `EngineGroup`."""

  def serve(self, params: Any, arrivals: queue.SimpleQueue) -> None: ...


class Service:
  """An engine in its own thread, and the requests it works on.  A context manager.

  Args:
    length: most tokens of prompt and answer together.
    name: of the model.
    version: of the weights.

  Attributes:
    draining: requests under way are finished, new ones refused.
    running: choices that the engine has not finished.
  """

  def __init__(
    self, engine: ServingEngine, params: Any, chat: ChatFormat, *, length: int, name: str,
    version: str,
  ):
    self.chat, self.length, self.name, self.version = chat, length, name, version
    self.started, self.draining = int(time.time()), False
    self.running: set[Choice] = set()
    self._stopped = False
    self.format_of = functools.lru_cache(maxsize=FORMATS)(self._make_format)
    self._arrivals: queue.SimpleQueue = queue.SimpleQueue()
    self._thread = threading.Thread(
      target=self._serve, args=(engine, params), name="engine", daemon=True
    )

  def __enter__(self) -> "Service":
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self.draining = True
    for choice in list(self.running):
      choice.cancelled = True
    self._arrivals.put(None)
    self._thread.join()

  @property
  def alive(self) -> bool:
    return self._thread.is_alive() and not self._stopped

  def _serve(self, engine, params):
    try:
      engine.serve(params, self._arrivals)
    finally:
      self._stopped = True
      for choice in list(self.running):
        choice.refuse("the engine has stopped")

  def _make_format(self, tools: tuple[str, ...] | None) -> ChatFormat:
    if tools is None:
      return self.chat
    return ChatFormat(
      self.chat.tokenizer, [json.loads(tool) for tool in tools], style=self.chat.markup.name,
      thinking=self.chat.thinking, preserve_thinking=self.chat.preserve_thinking,
    )

  async def events(self, wanted: Wanted) -> AsyncIterator[Event]:
    """What comes of a request's choices, until all have ended; closing it cancels them.

    Raises:
      RuntimeError: the engine cannot answer.
    """
    told: asyncio.Queue[Event] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    tell = lambda event: loop.call_soon_threadsafe(told.put_nowait, event)
    seed = secrets.randbits(64) if wanted.seed is None else wanted.seed % 2**64
    choices = [
      Choice(wanted, i, choice_key(seed, i), tell) for i in range(len(wanted.prompts) * wanted.n)
    ]
    self.running.update(choices)
    try:
      for choice in choices:
        self._arrivals.put(choice)
      left = len(choices) if self.alive else 0
      if not left:
        raise RuntimeError("the engine has stopped")
      while left:
        event = await told.get()
        if event.error:
          raise RuntimeError(event.error)
        left -= event.finish is not None
        yield event
    finally:
      for choice in choices:
        choice.cancelled = True
      self.running.difference_update(choices)


def choice_key(seed: int, index: int) -> np.ndarray:
  """The sampling key of a request's choice: the first one's is the seed itself (FAULTS C6)."""
  high, low = divmod(seed, 2**32)
  return np.array([high ^ zlib.crc32(index.to_bytes(4, "big")) if index else high, low], np.uint32)


# ---- replies -------------------------------------------------------------------------------------


class Progress:
  """One choice as the reader of events has it."""

  def __init__(self, wanted: Wanted, index: int):
    self.wanted, self.index = wanted, index
    self.tokens: list[int] = []
    self.logps: list[float] = []
    self.finish: str | None = None
    self._text, self._unread = "", []
    self._sent = {"content": "", "reasoning_content": ""}

  def take(self, event: Event) -> None:
    self.tokens += event.tokens
    self.logps += event.logps
    self.finish = event.finish
    # Bytes that are not yet a character wait for the next token.
    self._unread += event.tokens
    piece = openai_api.written(self.wanted, self._unread)
    if not piece.endswith("\ufffd") or event.finish:
      self._text, self._unread = self._text + piece, []

  def text(self) -> str:
    """A completion's text."""
    return openai_api.until_stop(self.wanted, openai_api.written(self.wanted, self.tokens))

  def new_text(self) -> tuple[str, int]:
    """What of a completion's text can be sent now, and where it begins."""
    begin = len(self._sent["content"])
    whole = openai_api.until_stop if self.finish else openai_api.streamable
    self._sent["content"] = whole(self.wanted, self._text)
    return self._sent["content"][begin:], begin

  def new_delta(self) -> dict:
    """What of a chat's message can be sent now; its calls, and what else is left, at the end."""
    if self.finish:
      message = self.message()
      now = {name: message.get(name) or "" for name in self._sent}
    else:
      ready = openai_api.streamable_message(self.wanted, self._text)
      now = dict(zip(self._sent, ready, strict=True))
    delta: dict[str, Any] = {
      name: text.removeprefix(self._sent[name]) for name, text in now.items()
      if len(text) > len(self._sent[name])
    }
    self._sent = now
    if self.finish and "tool_calls" in message:
      delta["tool_calls"] = [{"index": i} | c for i, c in enumerate(message["tool_calls"])]
      self.finish = "tool_calls"
    return delta

  def message(self) -> dict:
    """A chat's whole message."""
    return openai_api.assistant_message(
      self.wanted, self.tokens, lambda i: f"call_{uuid.uuid4().hex[:16]}_{i}"
    )


def frame(service: Service, wanted: Wanted, request_id: str, **fields: Any) -> dict:
  """A reply or a part of one, but for its choices."""
  kind = "chat.completion" if wanted.is_chat else "text_completion"
  if wanted.stream and wanted.is_chat:
    kind = "chat.completion.chunk"
  return {
    "id": request_id, "object": kind, "created": int(time.time()), "model": service.name,
    "system_fingerprint": service.version, "metadata": {"weight_version": service.version},
    **fields,
  }


async def whole_reply(service: Service, wanted: Wanted, request_id: str) -> dict:
  """A reply in one piece."""
  all_of = [Progress(wanted, i) for i in range(len(wanted.prompts) * wanted.n)]
  async with contextlib.aclosing(service.events(wanted)) as events:
    async for event in events:
      all_of[event.index].take(event)
  choices = []
  for p in all_of:
    choice: dict[str, Any] = {"index": p.index, "logprobs": None, "finish_reason": p.finish}
    if wanted.is_chat:
      choice["message"] = p.message()
      if "tool_calls" in choice["message"]:
        choice["finish_reason"] = "tool_calls"
    else:
      choice["text"] = p.text()
    choices.append(choice | _details(wanted, p, p.tokens, p.logps, 0))
    if wanted.token_ids and not wanted.is_chat:
      choices[-1]["prompt_token_ids"] = wanted.prompts[p.index // wanted.n]
  reply = frame(
    service, wanted, request_id, choices=choices,
    usage=openai_api.usage(wanted, sum(len(p.tokens) for p in all_of)),
  )
  if wanted.token_ids and wanted.is_chat:
    reply["prompt_token_ids"] = wanted.prompts[0]
  return reply


async def streamed_reply(service: Service, wanted: Wanted, request_id: str) -> AsyncIterator[str]:
  """A reply as server-sent events."""
  all_of = [Progress(wanted, i) for i in range(len(wanted.prompts) * wanted.n)]
  part = lambda **fields: f"data: {json.dumps(frame(service, wanted, request_id, **fields))}\n\n"
  for p in all_of if wanted.is_chat else ():
    delta = {"role": "assistant", "content": ""}
    first = {"index": p.index, "delta": delta, "logprobs": None, "finish_reason": None}
    ids = {"prompt_token_ids": wanted.prompts[0]} if wanted.token_ids and not p.index else {}
    yield part(choices=[first], **ids)
  try:
    async with contextlib.aclosing(service.events(wanted)) as events:
      async for event in events:
        p = all_of[event.index]
        begun = bool(p.tokens)
        p.take(event)
        choice: dict[str, Any] = {"index": p.index, "logprobs": None}
        if wanted.is_chat:
          choice["delta"], at = p.new_delta(), 0
        else:
          choice["text"], at = p.new_text()
          if wanted.token_ids and not begun:
            choice["prompt_token_ids"] = wanted.prompts[p.index // wanted.n]
        choice["finish_reason"] = p.finish
        yield part(choices=[choice | _details(wanted, p, event.tokens, event.logps, at)])
    if wanted.stream_usage:
      sampled = sum(len(p.tokens) for p in all_of)
      yield part(choices=[], usage=openai_api.usage(wanted, sampled))
  except RuntimeError as error:
    yield f"data: {json.dumps(openai_api.error_body(str(error), status=500))}\n\n"
  yield "data: [DONE]\n\n"


def _details(
  wanted: Wanted, p: Progress, tokens: Sequence[int], logps: Sequence[float], offset: int
) -> dict:
  """Log-probs and ids, where they are wanted."""
  details: dict[str, Any] = {}
  if wanted.logprobs and tokens:
    details["logprobs"] = (
      openai_api.chat_logprobs(wanted, tokens, logps) if wanted.is_chat
      else openai_api.completion_logprobs(wanted, tokens, logps, offset)
    )
  if wanted.token_ids:
    details["token_ids"] = list(tokens)
  return details


# ---- HTTP ----------------------------------------------------------------------------------------


def make_app(service: Service) -> Starlette:
  """The ASGI application over one service."""

  async def answer(request: Request, read: Callable[[dict], Wanted], prefix: str) -> Response:
    try:
      if service.draining or not service.alive:
        raise BadRequest("the server is stopping", status=503)
      try:
        body = await request.json()
      except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
      if not isinstance(body, dict):
        raise BadRequest("expected a JSON object")
      if body.get("model") not in (None, service.name):
        raise BadRequest(
          f"no model {json.dumps(body['model'])[:80]} here; it is {service.name}", "model",
          status=404,
        )
      wanted = read(body)
    except BadRequest as error:
      content = openai_api.error_body(str(error), status=error.status, param=error.param)
      headers = {"retry-after": "1"} if error.status == 503 else None
      return JSONResponse(content, error.status, headers)
    request_id = f"{prefix}-{uuid.uuid4().hex}"
    if wanted.stream:
      return StreamingResponse(
        streamed_reply(service, wanted, request_id), media_type="text/event-stream"
      )
    return await _unless_gone(request, whole_reply(service, wanted, request_id))

  async def completions(request: Request) -> Response:
    read = functools.partial(
      openai_api.read_completion, chat=service.chat, length=service.length
    )
    return await answer(request, read, "cmpl")

  async def chat(request: Request) -> Response:
    read = functools.partial(
      openai_api.read_chat, format_of=service.format_of, length=service.length
    )
    return await answer(request, read, "chatcmpl")

  async def models(request: Request) -> Response:
    del request
    card = {
      "id": service.name, "object": "model", "created": service.started, "owned_by": "searchjax",
      "max_model_len": service.length,
    }
    return JSONResponse({"object": "list", "data": [card]})

  async def health(request: Request) -> Response:
    del request
    well = service.alive and not service.draining
    return JSONResponse({"status": "ok" if well else "stopping"}, 200 if well else 503)

  async def version(request: Request) -> Response:
    del request
    return JSONResponse({"version": searchjax.__version__, "weight_version": service.version})

  async def refused(request: Request, error: HTTPException) -> Response:
    del request
    content = openai_api.error_body(error.detail, status=error.status_code)
    return JSONResponse(content, error.status_code, error.headers)

  return Starlette(exception_handlers={HTTPException: refused}, routes=[
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/v1/models", models), Route("/health", health), Route("/version", version),
  ])


async def _unless_gone(request: Request, work) -> Response:
  """The reply, or nothing once the client has left; its choices are cancelled then."""

  async def gone():
    while (await request.receive())["type"] != "http.disconnect":
      pass

  working, leaving = asyncio.create_task(work), asyncio.create_task(gone())
  try:
    await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
      return Response(status_code=499)  # As nginx has it; nobody reads it.
    return JSONResponse(working.result())
  except RuntimeError as error:
    return JSONResponse(openai_api.error_body(str(error), status=500), 500)
  finally:
    for task in (working, leaving):
      task.cancel()
    await asyncio.gather(working, leaving, return_exceptions=True)


class Server(uvicorn.Server):
  """Refuses new requests as soon as it is told to stop, and finishes those under way."""

  def __init__(self, service: Service, **settings: Any):
    # uvicorn's own log_config closes the handlers, and with them the streams, of other loggers.
    super().__init__(uvicorn.Config(
      make_app(service), log_config=None, log_level="warning", access_log=False, lifespan="off",
      timeout_graceful_shutdown=FINISH_S, **settings,
    ))
    self._service = service

  def handle_exit(self, sig: int, frame: Any) -> None:
    self._service.draining = True
    super().handle_exit(sig, frame)


# ---- start ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A policy, ready to be served.

  Attributes:
    division: over a mesh; None if every device has the whole.
    version: step and digest of the weights.
  """

  params: Any
  model: ModelConfig
  division: Division | None
  chat: ChatFormat
  version: str


def load(
  folder: pathlib.Path, *, tokenizer: str = "", thinking: bool = False, mesh: dict | None = None
) -> Loaded:
  """Opens a run's stage, a folder converted to one, or a Hugging Face folder.

  Args:
    tokenizer: "" is the stage's own, or that in the folder.
    thinking: the agent thinks, unless a request says otherwise.
    mesh: sizes fsdp, expert and context to divide the policy over; None puts it whole on every
      device.

  Raises:
    ValueError: neither of them, or weights that do not fit.
  """
  section = {"fsdp": 0, "expert": 1, "context": 1, **(mesh or {})}
  section["layout"] = "replicated" if mesh is None else "decode"
  style = {"thinking": True} if thinking else {}
  if checkpoint.latest_step(folder / "policy") is not None:
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "architectures" in record or "model_type" in record:  # Made by searchjax.model.convert.
      chat = load_chat(tokenizer or str(folder), **style)
    else:
      chat = load_chat(tokenizer or record.get("tokenizer", ""), **record.get("chat", {}) | style)
    params, model, division = load_policy(folder, section, compute={})
    step = checkpoint.latest_step(folder / "policy")
    version = f"{step}-{digest(folder / 'policy' / str(step))}"
  elif any(folder.glob("*.safetensors")):
    chat = load_chat(tokenizer or str(folder), **style)
    hf = open_hf(folder)
    model = hf.model
    division = new_division(section, model)
    params = load_params(hf, jax.tree.map(
      lambda spec: jax.sharding.NamedSharding(division.mesh, spec), division.specs,
      is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec),
    ))
    version = f"0-{digest(folder)}"
  else:
    raise ValueError(
      f"{folder} holds no finished stage (policy/) and no *.safetensors; give RUN/sft, RUN/grpo or "
      f"a Hugging Face folder"
    )
  if chat.vocab_size > model.real_vocab_size:
    raise ValueError(
      f"the tokenizer has {chat.vocab_size} ids, the policy of {folder} {model.real_vocab_size}; "
      f"give the right --tokenizer"
    )
  if mesh is None:
    return Loaded(make_whole(division)(params), model, None, chat, version)
  return Loaded(params, model, division, chat, version)


def digest(folder: pathlib.Path) -> str:
  """Eight digits from the names and sizes of a folder's files, and how each begins and ends."""
  told = hashlib.sha256()
  for path in sorted(p for p in folder.rglob("*") if p.is_file()):
    size = path.stat().st_size
    told.update(f"{path.relative_to(folder).as_posix()} {size}\n".encode())
    with path.open("rb") as file:
      told.update(file.read(DIGESTED))
      file.seek(max(size - DIGESTED, 0))
      told.update(file.read(DIGESTED))
  return told.hexdigest()[:8]


def warm_up(engine: EngineGroup, loaded: Loaded) -> None:
  """Compiles the engine's steps, by one token of a different prompt for each engine."""
  choices = []
  for i in range(len(engine.engines)):
    body = {"prompt": [i, i], "max_tokens": 1}
    wanted = openai_api.read_completion(body, loaded.chat, length=16)
    choices.append(Choice(wanted, 0, choice_key(0, 0), lambda event: None))
  engine.run(loaded.params, choices, temperature=1.0)


def main(arguments: Sequence[str] | None = None) -> int:
  """Serves until stopped; 2 for a bad start, after one line on standard error."""
  parser = OneLineParser(
    prog="python -m searchjax.serve", description=__doc__.splitlines()[0], allow_abbrev=False
  )
  parser.add_argument(
    "--checkpoint", required=True, type=pathlib.Path, metavar="FOLDER",
    help="a run's stage (RUN/sft, RUN/grpo) or a Hugging Face folder",
  )
  parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in")
  parser.add_argument("--port", type=int, default=8000, help="0: any free port")
  parser.add_argument("--name", default="", help="of the model; the folder's by default")
  parser.add_argument("--tokenizer", default="", help="tokenizer.json or its folder")
  parser.add_argument("--thinking", action="store_true", help="think unless a request says not to")
  parser.add_argument("--length", type=int, default=4096, help="tokens of prompt and answer")
  parser.add_argument("--lanes", type=int, default=16, help="answers decoded at once")
  parser.add_argument("--pool", type=int, default=0, help="answers under way; 0: as many as lanes")
  parser.add_argument(
    "--mesh", default="", metavar="FSDP,EXPERT,CONTEXT",
    help="divide the policy over devices; without it every device has all of it",
  )
  options = parser.parse_args(arguments)
  try:
    mesh = _read_mesh(options.mesh)
    listener = _bind(options.host, options.port)
    with listener:
      loaded = load(
        options.checkpoint, tokenizer=options.tokenizer, thinking=options.thinking, mesh=mesh
      )
      engine = EngineGroup(
        loaded.model, devices=jax.local_devices(), lanes=options.lanes,
        pool=options.pool or options.lanes, length=options.length,
        feed_rows=min(FEED_ROWS, options.lanes), feed_tokens=FEED_TOKENS,
        decode_steps=DECODE_STEPS, stop_ids=loaded.chat.stop_ids, restricted=True,
        division=loaded.division,
      )
      warm_up(engine, loaded)
      return _serve(engine, loaded, options, listener)
  except ValueError as error:
    if not is_ours(error, None):
      raise
    fail(str(error))
  except KeyboardInterrupt:  # Before it served anything.
    return 0


def _serve(engine, loaded, options, listener) -> int:
  name = options.name or options.checkpoint.resolve().name
  listener.listen(1024)
  service = Service(
    engine, loaded.params, loaded.chat, length=options.length, name=name, version=loaded.version
  )
  with service:
    port = listener.getsockname()[1]
    print(f"{name} {loaded.version} at http://{options.host}:{port}/v1", flush=True)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it is done.
      Server(service).run(sockets=[listener])
    failed = not service.alive
  return 1 if failed else 0


def _read_mesh(text: str) -> dict | None:
  if not text:
    return None
  sizes = text.split(",")
  if len(sizes) != 3 or not all(size.strip().isdigit() for size in sizes):
    raise ValueError(f"--mesh must be three numbers, FSDP,EXPERT,CONTEXT; got {text}")
  return dict(zip(("fsdp", "expert", "context"), map(int, sizes), strict=True))


def _bind(host: str, port: int) -> socket.socket:
  listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  try:
    listener.bind((host, port))
  except (OSError, OverflowError) as error:
    listener.close()
    raise ValueError(
      f"port {port} of {host} cannot be had ({error}); choose another, or --port 0 for any free one"
    ) from error
  return listener


if __name__ == "__main__":
  sys.exit(main())
