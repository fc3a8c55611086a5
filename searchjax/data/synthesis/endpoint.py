"""One question, one text, at an OpenAI-compatible chat endpoint.  HOST.

Source   httpx, tenacity.
"""

import concurrent.futures
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import httpx
import tenacity

from searchjax.dist.checks import check_url
from searchjax.search.reply import Reply, refusal

KEY_VARIABLE = "INFERENCE_API_KEY"
MAX_WAIT_S = 60.0


class EndpointFailure(Exception):
  """The endpoint gave no text; `again` where another attempt may help, `lasting` where none."""

  def __init__(
    self, reason: str, *, again: bool = False, lasting: bool = False, wait_s: float | None = None
  ):
    super().__init__(reason)
    self.reason, self.again, self.lasting, self.wait_s = reason, again, lasting, wait_s


def first_object(reply: str, *fields: str) -> dict[str, Any] | None:
  """The first JSON object of a reply that has the fields; models write around it, or in a fence."""
  decoder, at = json.JSONDecoder(), reply.find("{")
  while at >= 0:
    try:
      value, _ = decoder.raw_decode(reply, at)
    except RecursionError:
      return None
    except ValueError:
      value = None
    if isinstance(value, dict) and value.keys() >= set(fields):
      return value
    at = reply.find("{", at + 1)
  return None


class Endpoint:
  """A chat endpoint; a key that the environment holds is sent as a bearer token.

  Args:
    url: with or without a final /v1.
    model: as the server calls it.
    connections: requests under way at once.
    timeout_s: of one attempt.
    retries: attempts after the first.
    backoff_s: wait before the first retry; it doubles, and Retry-After overrules it.
    key_variable: where the environment holds the key.
    temperature: of sampling; 0 is greedy.

  Raises:
    ValueError: not an http(s) URL.
  """

  def __init__(
    self, url: str, *, model: str, connections: int = 16, timeout_s: float = 600.0,
    retries: int = 4, backoff_s: float = 0.5, key_variable: str = KEY_VARIABLE,
    temperature: float = 0.0,
  ):
    check_url("inference.url", url)
    self.url, self.model = url.rstrip("/").removesuffix("/v1"), model
    self.temperature = temperature
    self.connections, self.retries, self.backoff_s = connections, retries, backoff_s
    key = os.environ.get(key_variable, "").strip()
    self._client = httpx.Client(
      timeout=timeout_s, trust_env=False,
      headers={"authorization": f"Bearer {key}"} if key else {},
      limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
    )

  def ask_all(self, prompts: Sequence[str]) -> list[str | EndpointFailure]:
    """The replies in the order of the prompts; a failure stands where a reply would."""
    with concurrent.futures.ThreadPoolExecutor(self.connections) as pool:
      return list(pool.map(self._ask_or_failure, prompts))

  def _ask_or_failure(self, prompt: str) -> str | EndpointFailure:
    try:
      return self.ask(prompt)
    except EndpointFailure as failure:
      return failure

  def ask(self, prompt: str) -> str:
    """The reply's text, after as many attempts as are allowed and may help.

    Raises:
      EndpointFailure: none came.
    """
    attempts = tenacity.Retrying(
      stop=tenacity.stop_after_attempt(1 + self.retries), wait=self._pause, reraise=True,
      retry=tenacity.retry_if_exception(lambda e: isinstance(e, EndpointFailure) and e.again),
    )
    return attempts(self._attempt, prompt)

  def _pause(self, state: tenacity.RetryCallState) -> float:
    told = state.outcome.exception().wait_s
    backoff = self.backoff_s * 2 ** (state.attempt_number - 1)
    return min(MAX_WAIT_S, backoff if told is None else told)

  def _attempt(self, prompt: str) -> str:
    body = {
      "model": self.model, "temperature": self.temperature,
      "messages": [{"role": "user", "content": prompt}],
    }
    try:
      reply = self._client.post(f"{self.url}/v1/chat/completions", json=body)
    except httpx.HTTPError as error:
      raise EndpointFailure(f"no reply ({type(error).__name__})", again=True) from error
    if reply.status_code != 200:
      read = Reply(reply.status_code, reply.headers, reply.content, time.time())
      why = refusal(read, keyed=True)
      raise EndpointFailure(why.reason, again=why.again, lasting=why.lasting, wait_s=why.wait_s)
    try:
      choice = reply.json()["choices"][0]
      text, ended = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
      raise EndpointFailure(f"an unreadable reply ({type(error).__name__})", again=True) from error
    if not isinstance(text, str) or not text.strip():
      raise EndpointFailure("an empty reply", again=True)
    if ended == "length":
      raise EndpointFailure("a reply that the endpoint's limit of tokens cut off")
    return text

  def close(self) -> None:
    """Closes the connections. Twice is harmless."""
    self._client.close()

  def __enter__(self) -> "Endpoint":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()
