"""Rollouts sampled by an inference server over HTTP, in the engine's place.  HOST.

`RemoteEngine` runs the same conversations as `EngineGroup`. Every turn is one request that holds
the conversation so far as token ids, and its reply holds the sampled ids and their log-probs:

  server                           request                             ids  log-probs  version
  searchjax.serve                  /v1/completions, return_token_ids   yes  yes        yes
  vLLM                             /v1/completions, return_token_ids   yes  yes        no
  sglang                           /generate, input_ids                yes  yes        yes
  llama.cpp and other completions  /v1/completions with text           no   no         no
  chat alone (OpenAI and others)   /v1/chat/completions                no   no         no

What a server gives is found out by asking, not by its name. One that gives no exact ids, or no
log-probs of the distribution it samples from, can be evaluated but not trained on: its text is then
encoded by our own tokenizer.

A request that fails for good ends its conversation by `fail`: invalid and counted, never a reward
of zero, never text in the conversation (SPEC 3). A reply that contradicts itself or the request is
such a failure too.

Source   vLLM's entrypoints/openai/completion, sglang's native API, llama.cpp's tools/server; httpx,
         tenacity.
"""

import asyncio
import dataclasses
import json
import math
import os
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import httpx
import tenacity

from searchjax.data.chat import ChatFormat
from searchjax.data.markup import CALL_CLOSE, CALL_OPEN, END
from searchjax.data.messages import read_messages
from searchjax.dist.checks import check_url
from searchjax.rollout.engine import EngineCounts
from searchjax.rollout.schedule import Conversation
from searchjax.search.reply import Reply, refusal

MAX_WAIT_S = 60.0
KEY_VARIABLE = "INFERENCE_API_KEY"
# The probe's temperature is the lowest that vLLM does not round up.
PROBE = "Say anything."
PROBE_TOKENS, PROBE_TEMPERATURE = 8, 0.01
# Natural logarithm units: more than a server's rounding, less than any temperature makes.
SAME_LOGPROB, INFORMATIVE_LOGPROB = 0.02, -0.1
MOST_LOGPROB = 1e-3  # of a probability of 1, rounded


class ServerFailure(Exception):
  """The server gave no usable reply.

  Attributes:
    reason: a few words.
    status: of HTTP; 0 without one.
    again: another try may help.
    wait_s: how long the server asked to wait, if it did.
  """

  def __init__(
    self, reason: str, *, status: int = 0, again: bool = False, wait_s: float | None = None
  ):
    super().__init__(reason)
    self.reason, self.status, self.again, self.wait_s = reason, status, again, wait_s


@dataclasses.dataclass(frozen=True)
class Turn:
  """A sampled turn: ids, log-probs (NaN where the server gives none), whether a stop id ended it,
  and the weights' version where the server says it."""

  tokens: list[int]
  logps: list[float]
  stopped: bool
  version: str | None = None


@dataclasses.dataclass(frozen=True)
class Ask:
  """One turn to be sampled.

  Attributes:
    tokens: the conversation so far.
    messages: the same, readable, where the conversation has it (`Episode.turns`).
    budget: most tokens to sample.
    temperature: 0 is greedy.
    seed: 64 bits, unsigned.
  """

  tokens: Sequence[int]
  messages: Sequence[Mapping]
  budget: int
  temperature: float
  seed: int


@dataclasses.dataclass(frozen=True)
class Abilities:
  """What a server was found to give.

  Attributes:
    form: "completions", "generate", "text" or "chat".
    exact: token ids in and out.
    logprobs: "none"; "scaled", of the sampling distribution at its temperature; "unscaled", of the
      model at temperature 1 whatever the temperature; "unclear".
    version: of the weights, None where the server does not say.
    length: most tokens of a conversation, None where the server does not say.
    ours: the server is searchjax.serve.
  """

  form: str
  exact: bool
  logprobs: str
  version: str | None
  length: int | None
  ours: bool

  def obstacle(self, temperature: float) -> str | None:
    """Why rollouts sampled at this temperature cannot be trained on; None if they can."""
    if not self.exact:
      return "it returns text, not token ids"
    if self.logprobs == "none":
      return "it returns no log-probs of the sampled tokens"
    if self.logprobs != "scaled" and temperature != 1.0:
      return (
        f"its log-probs are not those of sampling at temperature {temperature:g} (they are "
        f"{self.logprobs}); use temperature 1, or vLLM's --logprobs-mode processed_logprobs"
      )
    if self.version is None:
      return "it does not say which weights it runs"
    return None


# ---- what is sent and read, by kind of server ----------------------------------------------------


@runtime_checkable
class Form(Protocol):
  """How one kind of server is asked for a turn."""

  name: str
  path: str
  exact: bool

  def body(self, ask: Ask) -> dict[str, Any]: ...

  def read(self, reply: Any, ask: Ask) -> Turn:
    """Raises ServerFailure, or KeyError, TypeError, ValueError for a reply of another form."""


class Completions:
  """Ids in and out over /v1/completions, as vLLM and searchjax.serve offer it."""

  name, path, exact = "completions", "/v1/completions", True

  def __init__(self, model: str, chat: ChatFormat):
    self._model, self._chat = model, chat

  def body(self, ask: Ask) -> dict[str, Any]:
    # Whatever the model's folder suggests, the whole distribution is sampled (FAULTS X2), and only
    # our own stop ids end a turn.
    return {
      "model": self._model, "prompt": list(ask.tokens), "max_tokens": ask.budget,
      "temperature": ask.temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
      "repetition_penalty": 1.0, "seed": _signed(ask.seed), "logprobs": 0,
      "return_token_ids": True, "stop_token_ids": list(self._chat.stop_ids), "ignore_eos": True,
      "skip_special_tokens": False,
    }

  def read(self, reply: Any, ask: Ask) -> Turn:
    choice = reply["choices"][0]
    tokens = choice["token_ids"]
    if choice.get("prompt_token_ids") not in (None, list(ask.tokens)):
      raise ServerFailure("the server changed the prompt's ids")
    logps = (choice.get("logprobs") or {}).get("token_logprobs") or [math.nan] * len(tokens)
    version = (reply.get("metadata") or {}).get("weight_version")
    return _checked(self._chat, ask, tokens, logps, choice["finish_reason"], version)


class Generate:
  """Ids in and out over sglang's own /generate."""

  name, path, exact = "generate", "/generate", True

  def __init__(self, chat: ChatFormat):
    self._chat = chat

  def body(self, ask: Ask) -> dict[str, Any]:
    return {
      "input_ids": list(ask.tokens), "return_logprob": True, "logprob_start_len": -1,
      "sampling_params": {
        "max_new_tokens": ask.budget, "temperature": ask.temperature, "top_p": 1.0, "top_k": -1,
        "min_p": 0.0, "stop_token_ids": list(self._chat.stop_ids), "skip_special_tokens": False,
      },
    }

  def read(self, reply: Any, ask: Ask) -> Turn:
    meta = reply["meta_info"]
    if meta["prompt_tokens"] != len(ask.tokens):
      raise ServerFailure("the server changed the prompt's ids")
    pairs = meta.get("output_token_logprobs")
    tokens = [pair[1] for pair in pairs] if pairs else reply["output_ids"]
    logps = [pair[0] for pair in pairs] if pairs else [math.nan] * len(tokens)
    finish, version = meta["finish_reason"]["type"], meta.get("weight_version")
    return _checked(self._chat, ask, tokens, logps, finish, version)


class Text:
  """Text in and out over /v1/completions; ids are our tokenizer's.

  Args:
    strict: send nothing that OpenAI's own interface does not have.
  """

  name, path, exact = "text", "/v1/completions", False

  def __init__(self, model: str, chat: ChatFormat, *, strict: bool):
    self._model, self._chat, self._strict = model, chat, strict

  def body(self, ask: Ask) -> dict[str, Any]:
    return {
      "model": self._model, "prompt": self._chat.decode_guarded(ask.tokens), "stop": [END],
      **_text_sampling(ask, self._strict),
    }

  def read(self, reply: Any, ask: Ask) -> Turn:
    choice = reply["choices"][0]
    written = self._chat.encode_written(choice["text"].removesuffix(END))
    return _unscored(self._chat, ask, written, choice["finish_reason"] == "stop")


class Chat:
  """Messages in and out over /v1/chat/completions: template and call parser are the server's.

  Args:
    tools: schemas the server is told of; None tells it none.
    strict: as for `Text`.
  """

  name, path, exact = "chat", "/v1/chat/completions", False

  def __init__(self, model: str, chat: ChatFormat, tools: list[dict] | None, *, strict: bool):
    self._model, self._chat, self._tools, self._strict = model, chat, tools, strict

  def body(self, ask: Ask) -> dict[str, Any]:
    return {
      "model": self._model, "messages": openai_messages(ask.messages),
      **({"tools": self._tools} if self._tools else {}), **_text_sampling(ask, self._strict),
    }

  def read(self, reply: Any, ask: Ask) -> Turn:
    choice = reply["choices"][0]
    message = choice["message"]
    content, thinking = message.get("content") or "", None
    if self._chat.thinking:
      thinking = message.get("reasoning_content") or ""
    calls = message.get("tool_calls") or []
    try:
      (read,) = read_messages([{"role": "assistant", "tool_calls": calls}])
      ids = self._chat.encode_assistant(content, read.calls, thinking)
    except ValueError:  # A call that our format cannot write is a malformed call of the agent's.
      opening, closing = map(self._chat.encode_written, (CALL_OPEN, CALL_CLOSE))
      ids = self._chat.encode_assistant(content, (), thinking)[:-1]
      for call in calls:
        ids += [*opening, *self._chat.encode_text(json.dumps(call["function"])), *closing]
      ids += self._chat.stop_ids[:1]
    return _unscored(self._chat, ask, ids[:-1], choice["finish_reason"] in ("stop", "tool_calls"))


def openai_messages(turns: Sequence[Mapping]) -> list[dict]:
  """`Episode.turns` in OpenAI's form; the calls of a turn are answered in order."""
  messages: list[dict] = []
  waiting: list[str] = []
  for number, turn in enumerate(turns):
    message = {"role": turn["role"], "content": turn.get("raw", turn["text"])}
    if turn["role"] == "assistant" and turn.get("calls") and "raw" not in turn:
      waiting = [f"call_{number}_{i}" for i in range(len(turn["calls"]))]
      message["tool_calls"] = [
        {
          "id": name, "type": "function",
          "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for name, call in zip(waiting, turn["calls"], strict=True)
      ]
    elif turn["role"] == "tool":
      if waiting:
        message["tool_call_id"] = waiting.pop(0)
      else:  # What answers no readable call is not a tool's message to other servers.
        message["role"] = "user"
    messages.append(message)
  return messages


def _text_sampling(ask: Ask, strict: bool) -> dict[str, Any]:
  body = {
    "max_tokens": ask.budget, "temperature": ask.temperature, "top_p": 1.0,
    "seed": ask.seed % 2**31,
  }
  return body if strict else body | {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}


def _unscored(chat: ChatFormat, ask: Ask, ids: list[int], stopped: bool) -> Turn:
  """A turn that came as text: limits count our ids, and the stop id is ours."""
  if stopped:
    ids = [*ids, chat.stop_ids[0]]
  if not ids:
    raise ServerFailure("an empty turn that nothing ended")
  if len(ids) > ask.budget:
    ids, stopped = ids[: ask.budget], False
  return Turn(ids, [math.nan] * len(ids), stopped)


def _checked(
  chat: ChatFormat, ask: Ask, tokens: Any, logps: Any, finish: str, version: Any
) -> Turn:
  """A turn of exact ids, if it is what was asked for."""
  if not tokens or len(tokens) > ask.budget:
    raise ServerFailure(f"{len(tokens)} tokens where 1 to {ask.budget} were asked for")
  if not all(isinstance(t, int) and 0 <= t < chat.vocab_size for t in tokens):
    raise ServerFailure("ids that our tokenizer does not have; does the server run our model?")
  if len(logps) != len(tokens) or not all(isinstance(p, int | float) for p in logps):
    raise ServerFailure(f"{len(logps)} log-probs for {len(tokens)} tokens")
  stopped = tokens[-1] in chat.stop_ids
  if any(t in chat.stop_ids for t in tokens[:-1]):
    raise ServerFailure("tokens after a stop id")
  if not stopped and len(tokens) < ask.budget:
    raise ServerFailure(
      f"the turn ended after {len(tokens)} of {ask.budget} tokens without a stop id ({finish!r})"
    )
  version = None if version is None else str(version)
  return Turn(list(tokens), [float(p) for p in logps], stopped, version)


def _check_trainable(turn: Turn) -> None:
  """Refuses a turn without what the server gave when it was probed."""
  if not all(math.isfinite(p) and p <= MOST_LOGPROB for p in turn.logps):
    raise ServerFailure("a log-prob that is missing or above 0")
  if turn.version is None:
    raise ServerFailure("a reply that does not say which weights it is of")


def _signed(seed: int) -> int:
  return seed - 2**64 if seed >= 2**63 else seed


# ---- the engine ----------------------------------------------------------------------------------


class RemoteEngine:
  """`EngineGroup` at the other end of HTTP: runs conversations on a server's policy.

  Its conversations have `fail(reason)` besides the Conversation protocol, and `policy_version` is
  set on them. `INFERENCE_API_KEY` of the environment is sent as a bearer token where it is set.

  Args:
    url: the server's, with or without a final /v1.
    chat: the text format; a server of exact ids must run a model of this tokenizer.
    model: as the server calls it; "" takes its first.
    length: most tokens of one conversation.
    tools: schemas, for servers that render chats themselves; None tells them none.
    training: refuse what cannot be trained on, and rollouts of mixed weights.
    connections: requests under way at once.
    timeout_s: deadline of one attempt, in seconds, waiting for a connection excluded.
    retries: attempts after the first.
    backoff_s: wait before the first retry; it doubles, and Retry-After overrules it.

  Attributes:
    divided: False, as of an engine that is whole in one process.
    abilities: what the server was found to give.
    versions: every version of the weights that has answered.
    expected_version: the one that training wants; None is the one first seen.

  Raises:
    ValueError: the server cannot be reached, has no such model, does not take `length` tokens, or
      cannot be trained on where `training` asks for it.
  """

  divided = False

  def __init__(
    self,
    url: str,
    *,
    chat: ChatFormat,
    length: int,
    model: str = "",
    tools: list[dict] | None = None,
    training: bool = False,
    connections: int = 64,
    timeout_s: float = 600.0,
    retries: int = 4,
    backoff_s: float = 0.5,
  ):
    check_url("inference.url", url)
    self.url = url.rstrip("/").removesuffix("/v1")
    self.length, self.training = length, training
    self.timeout_s, self.retries, self.backoff_s = timeout_s, retries, backoff_s
    self._chat, self._tools, self._connections = chat, tools, connections
    self._key = _read_key()
    self._counts = EngineCounts()
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="inference")
    self._thread.start()
    try:
      self._wait(self._open())
      self.model, self._form, self.abilities = self._wait(self._probe(model))
    except ServerFailure as failure:
      self.close()
      raise ValueError(f"inference server {self.url}: {failure.reason}") from failure
    except BaseException:
      self.close()
      raise
    self.versions = {self.abilities.version} - {None}
    self.expected_version = self.abilities.version

  def run(self, params: Any, conversations: Iterable[Conversation], *, temperature: float) -> None:
    """Runs every conversation to its end, in place.

    Args:
      params: ignored; the server has its own.

    Raises:
      ValueError: a prompt that leaves no room for an answer, or training at a temperature whose
        log-probs the server does not give.
      RuntimeError: in training, weights of another version than the expected one answered.
    """
    del params
    if self.training and (obstacle := self.abilities.obstacle(temperature)):
      raise ValueError(f"inference server {self.url} cannot be trained on: {obstacle}")
    begun = time.perf_counter()
    conversations = list(conversations)
    for c in conversations:
      if len(c.prompt) + 1 >= self.length:
        raise ValueError(
          f"a prompt of {len(c.prompt)} tokens leaves no room in {self.length}; raise "
          f"limits.tokens or shorten the prompt"
        )
    self._wait(self._run_all(conversations, temperature))
    self._counts.seconds += time.perf_counter() - begun
    seen = {c.policy_version for c in conversations} - {""}
    if self.training and seen - {self.expected_version}:
      raise RuntimeError(
        f"the inference server answered with weights {', '.join(sorted(seen))} where "
        f"{self.expected_version} were expected: these rollouts are not one policy's"
      )

  def describe(self) -> dict[str, Any]:
    """What a result has to say of where it comes from."""
    return {
      "url": self.url, "model": self.model, "form": self.abilities.form,
      "token_ids": "the server's" if self.abilities.exact else "our tokenizer's, of its text",
      "logprobs": self.abilities.logprobs, "versions": sorted(self.versions),
    }

  def take_counts(self) -> EngineCounts:
    """Tokens sent and sampled, and seconds, since the last call."""
    counts, self._counts = self._counts, EngineCounts()
    return counts

  def close(self) -> None:
    """Ends the background thread. Twice is harmless."""
    if self._loop.is_closed():
      return
    if hasattr(self, "_client"):
      self._wait(self._client.aclose())
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()

  def __enter__(self) -> "RemoteEngine":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def _wait(self, coroutine):
    future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
    try:
      return future.result()
    except BaseException:
      future.cancel()
      raise

  async def _open(self) -> None:
    limits = httpx.Limits(
      max_connections=self._connections, max_keepalive_connections=self._connections
    )
    headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
    # The deadline of an attempt bounds all of it, so the client needs none of its own.
    self._client = httpx.AsyncClient(
      base_url=self.url, limits=limits, timeout=None, trust_env=False, headers=headers
    )
    self._places = asyncio.Semaphore(self._connections)

  # ---- conversations -----------------------------------------------------------------------------

  async def _run_all(self, conversations: list[Conversation], temperature: float) -> None:
    tasks = [asyncio.create_task(self._converse(c, temperature)) for c in conversations]
    try:
      await asyncio.gather(*tasks)
    finally:
      for task in tasks:
        task.cancel()

  async def _converse(self, c: Conversation, temperature: float) -> None:
    tokens, c.policy_version = list(c.prompt), ""
    while not c.finished:
      if c.forced_turn():
        raise ValueError("an inference server cannot be made to take given tokens (bitwise)")
      ask = Ask(
        tokens, getattr(c, "turns", ()), min(c.turn_budget(), self.length - len(tokens)),
        temperature, self._seed(c, len(tokens)),
      )
      try:
        turn = await self._sample(self._form, ask)
        if self.training:
          _check_trainable(turn)
      except ServerFailure as failure:
        c.fail(failure.reason)
        return
      self._counts.prefill_tokens += len(tokens)
      self._counts.decode_tokens += len(turn.tokens)
      self._note_version(c, turn.version)
      tokens = tokens + turn.tokens
      c.end_turn(turn.tokens, turn.logps, turn.stopped)
      if not c.finished:
        await asyncio.gather(*map(asyncio.wrap_future, c.waits_for()))
        tokens = tokens + c.next_tokens()

  def _note_version(self, c: Conversation, version: str | None) -> None:
    """Versions are joined by commas where the weights changed between two turns (FAULTS Y3)."""
    if version is None:
      return
    self.versions.add(version)
    seen = [v for v in c.policy_version.split(",") if v]
    if version not in seen:
      c.policy_version = ",".join([*seen, version])

  def _seed(self, c: Conversation, position: int) -> int:
    """Of one turn. Our own server folds the position in itself, others use a seed as it is."""
    key = (int(c.key[0]) << 32) | int(c.key[1])
    if self.abilities.ours:
      return key
    return (zlib.crc32(position.to_bytes(8, "big")) << 32 ^ key) % 2**64

  # ---- requests ----------------------------------------------------------------------------------

  async def _sample(self, form: Form, ask: Ask, *, probing: bool = False) -> Turn:
    reply = await self._request("POST", form.path, form.body(ask), probing=probing)
    try:
      return form.read(reply, ask)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
      raise ServerFailure(f"unreadable reply ({type(error).__name__}: {error})") from error

  async def _request(
    self, method: str, path: str, body: dict | None = None, *, probing: bool = False
  ) -> Any:
    """The JSON of a reply, after as many attempts as are allowed and may help.

    Args:
      probing: 500 is an answer: a form that the server does not know may crash it.
    """
    again = lambda e: isinstance(e, ServerFailure) and e.again and not (probing and e.status == 500)
    async for attempt in tenacity.AsyncRetrying(
      stop=tenacity.stop_after_attempt(1 + self.retries), wait=self._pause, reraise=True,
      retry=tenacity.retry_if_exception(again),
    ):
      with attempt:
        async with self._places:
          return await self._attempt(method, path, body)

  def _pause(self, state: tenacity.RetryCallState) -> float:
    told = state.outcome.exception().wait_s
    backoff = self.backoff_s * 2 ** (state.attempt_number - 1)
    return min(MAX_WAIT_S, backoff if told is None else told)

  async def _attempt(self, method: str, path: str, body: dict | None) -> Any:
    try:
      async with asyncio.timeout(self.timeout_s):
        reply = await self._client.request(method, path, json=body)
    except TimeoutError as error:
      raise ServerFailure("timed out", again=True) from error
    except httpx.TransportError as error:
      raise ServerFailure(f"no connection ({type(error).__name__})", again=True) from error
    except httpx.HTTPError as error:
      raise ServerFailure(f"unreadable reply ({type(error).__name__})", again=True) from error
    if reply.status_code != 200:
      read = Reply(reply.status_code, reply.headers, reply.content, time.time())
      why = refusal(read, keyed=True)
      raise ServerFailure(
        f"{why.reason}{_told(reply, self._key)}", status=reply.status_code, again=why.again,
        wait_s=why.wait_s,
      )
    try:
      return reply.json()
    except ValueError as error:
      raise ServerFailure("a reply that is not JSON", again=True) from error

  # ---- what the server can -----------------------------------------------------------------------

  async def _probe(self, model: str) -> tuple[str, Form, Abilities]:
    """Asks for one token in every form, best first, and takes the first that works."""
    card = await self._model_card(model)
    name = card["id"]
    tokens = self._chat.encode_prompt([{"role": "user", "content": PROBE}])
    messages = [{"role": "user", "text": PROBE}]
    ask = Ask(tokens, messages, 1, 1.0, 0)
    forms: list[Form] = [Completions(name, self._chat), Generate(self._chat)]
    for strict in (False, True):
      forms.append(Text(name, self._chat, strict=strict))
    for strict in (False, True):
      forms.append(Chat(name, self._chat, self._tools, strict=strict))
    refusals = {}
    for form in forms:
      try:
        turn = await self._sample(form, ask, probing=True)
        break
      except ServerFailure as failure:
        if failure.status in (401, 403) or (failure.again and failure.status != 500):
          raise
        refusals[form.name] = failure.reason
    else:
      told = "; ".join(f"{form}: {reason}" for form, reason in refusals.items())
      raise ServerFailure(f"answers in no known form ({told})")
    abilities = Abilities(
      form=form.name, exact=form.exact, logprobs=await self._probe_logprobs(form, ask, turn),
      version=turn.version, length=card.get("max_model_len"),
      ours=card.get("owned_by") == "searchjax",
    )
    if abilities.length is not None and abilities.length < self.length:
      raise ServerFailure(
        f"takes {abilities.length} tokens of a conversation, limits.tokens is {self.length}"
      )
    if self.training and (obstacle := abilities.obstacle(1.0)):
      raise ServerFailure(f"cannot be trained on: {obstacle}")
    return name, form, abilities

  async def _model_card(self, model: str) -> Mapping:
    try:
      cards = (await self._request("GET", "/v1/models"))["data"]
      known = {card["id"]: card for card in cards}
    except (KeyError, TypeError) as error:
      raise ServerFailure("/v1/models holds no list of models") from error
    if not known or (model and model not in known):
      raise ServerFailure(f'has no model "{model}"; it has {", ".join(known) or "none"}')
    return known[model] if model else cards[0]

  async def _probe_logprobs(self, form: Form, ask: Ask, turn: Turn) -> str:
    """Whether log-probs change with the temperature: near 0 a token is certain, or as at 1."""
    if not form.exact or any(map(math.isnan, turn.logps)):
      return "none"
    ask = dataclasses.replace(ask, budget=PROBE_TOKENS)
    greedy = await self._sample(form, dataclasses.replace(ask, temperature=0.0))
    cold = await self._sample(form, dataclasses.replace(ask, temperature=PROBE_TEMPERATURE))
    informative = False
    for i, token in enumerate(greedy.tokens[: len(cold.tokens)]):
      if cold.tokens[i] != token:
        break
      if cold.logps[i] - greedy.logps[i] > SAME_LOGPROB:
        return "scaled"
      informative |= greedy.logps[i] < INFORMATIVE_LOGPROB
    return "unscaled" if informative else "unclear"


def _read_key() -> str:
  """The key that the environment holds; "" for none."""
  key = os.environ.get(KEY_VARIABLE, "").strip()
  if not (key.isascii() and (key.isprintable() or not key)):
    raise ValueError(f"environment variable {KEY_VARIABLE}: expected printable ASCII")
  return key


def _told(reply: httpx.Response, key: str) -> str:
  """The first words of an error's message, where there is one; never the key, though it may be."""
  try:
    error = reply.json()
    error = error.get("error", error)
    message = error["message"] if isinstance(error, dict) else error
  except (ValueError, KeyError, AttributeError):
    return ""
  text = " ".join(str(message).split())
  return f" ({(text.replace(key, '...') if key else text)[:200]})"
