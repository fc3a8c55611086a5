"""What a search service replied: results, or why there are none.  PURE.

A reply is an answer (an empty list is one) or a ServiceFailure of one of three kinds: worth another
attempt, not worth one, or such that every further call would fail alike.

Spec     3 (three outcomes).
Source   RFC 9110 10.2.3 (Retry-After), 5.6.7 (dates).
"""

import dataclasses
import datetime
import email.utils
import html
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
PASSING = frozenset({408, 425, 429})  # and every 5xx but the two below
LASTING = frozenset({501, 505})


@dataclasses.dataclass(frozen=True)
class Result:
  """One search result."""

  title: str
  url: str
  snippet: str


class Answer(NamedTuple):
  """Results, a tuple for each query of the request, and what the request cost in dollars."""

  found: list[tuple[Result, ...]]
  dollars: float


class Reply(NamedTuple):
  """An HTTP reply; `received` is its time in seconds since 1970."""

  status: int
  headers: Mapping[str, str]
  body: bytes
  received: float


class ServiceFailure(Exception):
  """The service did not give a usable answer.

  Attributes:
    reason: a few words of our own; never text from the reply, which may hold a key.
    again: True if another attempt may succeed.
    wait_s: what the service said to wait, if it did.
    lasting: True if no further call can succeed: a bad key, a quota used up.
  """

  def __init__(self, reason: str, *, again: bool = False, wait_s: float | None = None,
               lasting: bool = False):
    super().__init__(reason)
    self.reason, self.again, self.wait_s, self.lasting = reason, again, wait_s, lasting


def refusal(reply: Reply, *, keyed: bool) -> ServiceFailure:
  """What a status other than 200 means where the service has no meaning of its own for it.

  Args:
    keyed: whether the service takes a key, which may be what it refused.
  """
  status, reason = reply.status, f"HTTP {reply.status}"
  if keyed and status in (401, 403):
    return ServiceFailure(f"the key was refused ({reason})", lasting=True)
  if keyed and status == 402:
    return ServiceFailure(f"the credits are used up ({reason})", lasting=True)
  again = status in PASSING or (500 <= status <= 599 and status not in LASTING)
  return ServiceFailure(reason, again=again, wait_s=retry_after(reply))


def retry_after(reply: Reply) -> float | None:
  """Seconds that Retry-After says to wait, as a number or as a date; None without a valid one.

  A date counts from the reply's own, where it has one: the clocks may differ.
  """
  text = reply.headers.get("retry-after", "").strip()
  if re.fullmatch(r"\d+(\.\d*)?", text):
    return float(text)
  until, now = _seconds_of(text), _seconds_of(reply.headers.get("date", ""))
  return None if until is None else max(0.0, until - (reply.received if now is None else now))


def _seconds_of(date: str) -> float | None:
  """A date of HTTP, in any of its three forms, in seconds since 1970; None for no date."""
  try:
    read = email.utils.parsedate_to_datetime(date)
    # asctime's form names no zone; HTTP's dates are all in UTC.
    return (read if read.tzinfo else read.replace(tzinfo=datetime.UTC)).timestamp()
  except (ValueError, OverflowError):
    return None


def read_json(reply: Reply) -> Any:
  """The body as JSON, or None where it is none."""
  try:
    return json.loads(reply.body)
  except (ValueError, RecursionError):
    return None


def read_results(body: Any, read: Callable[[Any], Sequence[Sequence[Result]]], *, queries: int,
                 limit: int) -> list[tuple[Result, ...]]:
  """Results of a reply with status 200.

  Args:
    body: its JSON; None where it is none.
    read: maps the JSON to results, a sequence a query; an error it raises marks another shape.
    queries: how many the request held.
    limit: most results kept of a query.

  Raises:
    ServiceFailure: the body is not what the service promises.
  """
  try:
    found = read(body)
    if len(found) != queries:
      raise ValueError("not one list a query")
    return [tuple(results[:limit]) for results in found]
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ServiceFailure("unreadable reply", again=True) from error


def rows_of(value: Any) -> list:
  """The value, which must be a list."""
  if not isinstance(value, list):
    raise TypeError(f"expected a list, got {type(value).__name__}")
  return value


def amount_of(value: Any) -> float | None:
  """The value, if it is a number that can be an amount."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    return None
  return float(value) if 0 <= value <= sys.float_info.max else None


def make_result(title: Any, url: Any, snippet: Any) -> Result:
  """One result from a reply's fields; a page without a title goes by its address."""
  url = one_line(url)
  return Result(one_line(title) if title else url, url, one_line(snippet or ""))


def one_line(value: Any) -> str:
  """Text with single spaces; half a surrogate pair, which no UTF-8 can hold, becomes U+FFFD."""
  if not isinstance(value, str):
    raise TypeError(f"expected text, got {type(value).__name__}")
  return LONE_SURROGATE.sub("\ufffd", " ".join(value.split()))


def without_markup(value: Any) -> Any:
  """Text without HTML tags and entities; anything else as it is."""
  return html.unescape(TAG.sub("", value)) if isinstance(value, str) else value
