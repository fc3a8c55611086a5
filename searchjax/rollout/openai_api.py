"""OpenAI's completion and chat requests and replies, with vLLM's fields for token ids.  PURE.

Log-probs are those of the distribution sampled from before top-k and top-p: log softmax(logits /
temperature), at temperature 0 those of temperature 1. Alternatives to the sampled token are not
given. What a request asks for and this server cannot do is refused by name, never passed over.

Source   OpenAI's API reference; vLLM's entrypoints/openai for token_ids, prompt_token_ids,
         stop_token_ids and chat_template_kwargs; sglang for metadata.weight_version.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from searchjax.data.chat import ChatFormat
from searchjax.data.markup import CALL_OPEN, THINK_CLOSE
from searchjax.rollout.schedule import Sampling

MOST_CHOICES = 128
DEFAULT_TOKENS = 16  # OpenAI's, of a completion; a chat may fill the context.
# Fields that would change what is sampled or answered, and the values at which they do not.
NEUTRAL = {
  "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,), "min_p": (0,),
  "logit_bias": ({},), "best_of": (1,), "echo": (False,), "suffix": ("",), "min_tokens": (0,),
  "response_format": ({"type": "text"},), "top_logprobs": (0,), "use_beam_search": (False,),
  "functions": ([],), "parallel_tool_calls": (True,), "prompt_logprobs": (0,),
  "function_call": (None,), "modalities": (["text"],), "web_search_options": (None,),
  "typical_p": (1,), "length_penalty": (1,), "bad_words": ([],), "allowed_token_ids": (None,),
  "structured_outputs": (None,), "guided_json": (None,), "guided_regex": (None,),
  "guided_choice": (None,), "guided_grammar": (None,), "chat_template": (None,),
  "add_generation_prompt": (True,), "continue_final_message": (False,),
  "include_stop_str_in_output": (False,), "truncate_prompt_tokens": (None,),
}
LEAST_TEMPERATURE = 1e-6  # the sampler's; 0 is greedy


class BadRequest(ValueError):
  """A request that cannot be served; one line, with the field and HTTP's status."""

  def __init__(self, message: str, param: str | None = None, *, status: int = 400):
    super().__init__(message)
    self.param, self.status = param, status


@dataclasses.dataclass(frozen=True)
class Wanted:
  """A request, read.

  Attributes:
    chat: the format its turns are read in.
    is_chat: of /v1/chat/completions.
    prompts: token ids; several only of a completion.
    n: choices a prompt.
    max_tokens: of each choice.
    seed: 64 bits; None lets the server choose.
    stop, stop_ids: texts and ids that end a choice, besides the format's own.
    logprobs: give them.
    token_ids: give ids beside the text.
    tokens_as_ids: name tokens "token_id:N" among the log-probs.
    thinks: the prompt leaves the thinking block open.
    stream, stream_usage: as events, with a last one that counts.
  """

  chat: ChatFormat
  is_chat: bool
  prompts: list[list[int]]
  n: int
  max_tokens: list[int]
  sampling: Sampling
  seed: int | None
  stop: tuple[str, ...]
  stop_ids: frozenset[int]
  logprobs: bool
  token_ids: bool
  tokens_as_ids: bool
  thinks: bool
  stream: bool
  stream_usage: bool


def read_completion(body: Mapping, chat: ChatFormat, *, length: int) -> Wanted:
  """A request of /v1/completions.

  Args:
    length: most tokens of prompt and answer together.

  Raises:
    BadRequest: the first thing that is wrong.
  """
  logprobs = _number(body, "logprobs", None, int, 0, None)
  if logprobs:
    raise BadRequest(
      "logprobs: 0 gives those of the sampled tokens; this server gives no alternatives", "logprobs"
    )
  return _wanted(
    body, chat, _prompts(body.get("prompt"), chat), length=length, is_chat=False, thinks=False,
    logprobs=logprobs is not None, default_tokens=DEFAULT_TOKENS,
  )


def read_chat(
  body: Mapping, format_of: Callable[[tuple[str, ...] | None], ChatFormat], *, length: int
) -> Wanted:
  """A request of /v1/chat/completions.

  Args:
    format_of: the chat format that reads calls of these tools, each given as JSON; None is the
      agent's own, which it may call though the request lists none.

  Raises:
    BadRequest: the first thing that is wrong.
  """
  tools = _tools(body)
  chat = format_of(None if tools is None else tuple(json.dumps(tool) for tool in tools))
  messages = body.get("messages")
  if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
    raise BadRequest("messages: expected a list of objects", "messages")
  template = body.get("chat_template_kwargs") or {}
  if not isinstance(template, dict) or template.keys() - {"enable_thinking"}:
    raise BadRequest("chat_template_kwargs: only enable_thinking is known", "chat_template_kwargs")
  thinks = _flag(template, "enable_thinking", chat.thinking)
  try:
    prompt = chat.encode_prompt(messages, tools=tools or None, enable_thinking=thinks)
  except ValueError as error:
    raise BadRequest(str(error), "messages") from error
  if body.get("max_completion_tokens") is not None:
    body = {**body, "max_tokens": body["max_completion_tokens"]}
  return _wanted(
    body, chat, [prompt], length=length, is_chat=True, thinks=thinks,
    logprobs=_flag(body, "logprobs", False), default_tokens=None,
  )


def _wanted(
  body, chat, prompts, *, length, is_chat, thinks, logprobs, default_tokens
) -> Wanted:
  for name, allowed in NEUTRAL.items():
    if body.get(name) is not None and body[name] not in allowed:
      raise BadRequest(f"{name}: this server has none but {json.dumps(allowed[0])}", name)
  asked = _number(body, "max_tokens", None, int, 1, None)
  most = []
  for prompt in prompts:
    room = length - len(prompt)
    wanted = asked if asked is not None else min(room, default_tokens or room)
    if room < 2 or wanted > room:
      raise BadRequest(
        f"the context has {length} tokens: {len(prompt)} of the prompt and {max(wanted, 1)} to be "
        f"sampled do not fit", "messages" if is_chat else "prompt",
      )
    most.append(wanted)
  stops = body.get("stop") or []
  stops = [stops] if isinstance(stops, str) else stops
  if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
    raise BadRequest("stop: expected text or a list of texts", "stop")
  stop_ids = body.get("stop_token_ids") or []
  if not isinstance(stop_ids, list) or not all(_is_id(i, chat) for i in stop_ids):
    raise BadRequest("stop_token_ids: expected a list of token ids", "stop_token_ids")
  if _flag(body, "ignore_eos", False) and not set(chat.stop_ids) <= set(stop_ids):
    raise BadRequest(
      f"ignore_eos: this server stops at {list(chat.stop_ids)} whatever is asked", "ignore_eos"
    )
  top_k = _number(body, "top_k", 0, int, -1, None)
  temperature = _number(body, "temperature", 1.0, float, 0.0, 100.0)
  options = body.get("stream_options") or {}
  if not isinstance(options, dict):
    raise BadRequest("stream_options: expected an object", "stream_options")
  return Wanted(
    chat=chat, is_chat=is_chat, prompts=prompts, max_tokens=most, thinks=thinks, logprobs=logprobs,
    n=_number(body, "n", 1, int, 1, MOST_CHOICES),
    sampling=Sampling(
      max(temperature, LEAST_TEMPERATURE) if temperature else 0.0,
      min(max(top_k, 0), chat.vocab_size),  # all ids are no restriction
      _number(body, "top_p", 1.0, float, 0.0, 1.0, above=True),
    ),
    seed=_number(body, "seed", None, int, -(2**63), 2**64 - 1),
    stop=tuple(stops), stop_ids=frozenset(stop_ids),
    token_ids=_flag(body, "return_token_ids", False),
    tokens_as_ids=_flag(body, "return_tokens_as_token_ids", False),
    stream=_flag(body, "stream", False), stream_usage=_flag(options, "include_usage", False),
  )


def _prompts(prompt: Any, chat: ChatFormat) -> list[list[int]]:
  """One prompt or several, each text or ids. Control tokens in text are real, as elsewhere."""
  if isinstance(prompt, str) or (isinstance(prompt, list) and _is_id(next(iter(prompt), ""), chat)):
    prompt = [prompt]
  if not isinstance(prompt, list) or not prompt:
    raise BadRequest("prompt: expected text, token ids, or a list of either", "prompt")
  read = []
  for one in prompt:
    ids = chat.encode_written(one) if isinstance(one, str) else one
    if not isinstance(ids, list) or not ids or not all(_is_id(i, chat) for i in ids):
      raise BadRequest(
        f"prompt: expected text or ids from 0 to {chat.vocab_size - 1}, at least one", "prompt"
      )
    read.append(ids)
  return read


def _tools(body: Mapping) -> list[dict] | None:
  """Tools to be written and read; None where the request says nothing of tools."""
  tools, choice = body.get("tools") or [], body.get("tool_choice")
  if choice not in (None, "auto", "none"):
    raise BadRequest('tool_choice: "auto" and "none" are known', "tool_choice")
  if not tools and choice != "none":
    return None
  functions = [t.get("function") if isinstance(t, dict) else None for t in tools] if (
    isinstance(tools, list)) else [None]
  for function in functions:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
      raise BadRequest('tools: expected a list of {"type": "function", "function": …}', "tools")
    parameters = function.get("parameters", {})
    if not isinstance(parameters, dict) or not isinstance(parameters.get("properties", {}), dict):
      raise BadRequest(f"tools: the parameters of {function['name']} are no schema", "tools")
  return [] if choice == "none" else tools


def _is_id(value: Any, chat: ChatFormat) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < chat.vocab_size


def _flag(body: Mapping, name: str, default: bool) -> bool:
  value = body.get(name)
  if not isinstance(value, bool | None):
    raise BadRequest(f"{name}: expected true or false, got {_short(value)}", name)
  return default if value is None else value


def _number(
  body: Mapping, name: str, default: Any, kind: type, low: float, high: float | None, *,
  above: bool = False,
) -> Any:
  """A number of the body.

  Args:
    above: `low` itself is not allowed.
  """
  value = body.get(name)
  if value is None:
    return default
  fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
  if not fits or not low <= value <= (math.inf if high is None else high) or (
    (above and value == low) or value == math.inf):
    bounds = f"{'above' if above else 'from'} {low}" + (f" to {high}" if high is not None else "")
    raise BadRequest(f"{name}: expected {kind.__name__} {bounds}, got {_short(value)}", name)
  return kind(value)


def _short(value: Any) -> str:
  return json.dumps(value)[:60]


# ---- replies -------------------------------------------------------------------------------------


def error_body(message: str, *, status: int, param: str | None = None) -> dict:
  """OpenAI's error object."""
  message = message.encode("utf-8", "replace").decode()  # it may quote half a surrogate pair
  kind = "invalid_request_error" if status < 500 else "server_error"
  code = "model_not_found" if status == 404 and param == "model" else None
  return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def usage(wanted: Wanted, sampled: int) -> dict:
  """Token counts of a request."""
  prompt = sum(map(len, wanted.prompts))
  return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def completion_logprobs(
  wanted: Wanted, tokens: Sequence[int], logps: Sequence[float], offset: int
) -> dict:
  """Of /v1/completions; `offset` is where the first token's text begins."""
  names = [token_name(wanted, token) for token in tokens]
  offsets = []
  for token in tokens:
    offsets.append(offset)
    offset += len(wanted.chat.decode([token]))
  return {
    "tokens": names, "token_logprobs": list(logps), "top_logprobs": None, "text_offset": offsets
  }


def chat_logprobs(wanted: Wanted, tokens: Sequence[int], logps: Sequence[float]) -> dict:
  """Of /v1/chat/completions."""
  return {
    "content": [
      {"token": (name := token_name(wanted, token)), "logprob": logp,
       "bytes": list(name.encode()), "top_logprobs": []}
      for token, logp in zip(tokens, logps, strict=True)
    ]
  }


def token_name(wanted: Wanted, token: int) -> str:
  return f"token_id:{token}" if wanted.tokens_as_ids else wanted.chat.decode([token])


def assistant_message(wanted: Wanted, tokens: Sequence[int], names: Callable[[int], str]) -> dict:
  """The turn as a message.

  A turn that is out of order, for one by a malformed call, is all text: the caller sees what was
  written. One that ends while the agent still thinks has no text.

  Args:
    tokens: a whole turn.
    names: the id of the call of this index.
  """
  parsed = wanted.chat.parse_turn(tokens, in_thinking=wanted.thinks)
  content, calls = parsed.content, parsed.calls
  if parsed.errors:
    content, calls = _after_thinking(wanted, written(wanted, tokens)), ()
  message: dict[str, Any] = {"role": "assistant", "content": until_stop(wanted, content)}
  if wanted.thinks:
    message["reasoning_content"] = parsed.thinking
  if calls:
    message["content"] = message["content"] or None
    message["tool_calls"] = [
      {
        "id": names(i), "type": "function",
        "function": {
          "name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)
        },
      }
      for i, call in enumerate(calls)
    ]
  return message


def written(wanted: Wanted, tokens: Sequence[int]) -> str:
  """The text of a turn, without the stop id that ended it."""
  ended = bool(tokens) and tokens[-1] in (*wanted.chat.stop_ids, *wanted.stop_ids)
  return wanted.chat.decode(tokens[:-1] if ended else tokens)


def until_stop(wanted: Wanted, text: str) -> str:
  """Text before the first of the request's stop texts."""
  ends = [at for stop in wanted.stop if (at := text.find(stop)) >= 0]
  return text[: min(ends)] if ends else text


def streamable(wanted: Wanted, text: str) -> str:
  """What of a completion's text may be sent: not what may become a stop text."""
  whole = until_stop(wanted, text)
  if whole != text:
    return whole
  longest = max((len(stop) - 1 for stop in wanted.stop), default=0)
  for n in range(min(longest, len(text)), 0, -1):
    if any(stop.startswith(text[-n:]) for stop in wanted.stop):
      return text[:-n]
  return text


def streamable_message(wanted: Wanted, text: str) -> tuple[str, str]:
  """What of a chat's turn may be sent: (text, reasoning).

  Calls are sent whole, at the end; white space may turn out to be the end, and waits.
  """
  thinking, body = "", text
  if wanted.thinks:
    thinking, closed, body = text.partition(THINK_CLOSE)
    body = body if closed else ""
  content = streamable(wanted, body.partition(CALL_OPEN)[0].lstrip())
  return content.rstrip(), thinking.strip()


def _after_thinking(wanted: Wanted, text: str) -> str:
  return (text.partition(THINK_CLOSE)[2] if wanted.thinks else text).strip()
