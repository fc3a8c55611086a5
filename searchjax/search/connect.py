"""A config's `search` section made into a search tool.  HOST: starts the local server."""

import contextlib
import hashlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from searchjax.search.atlas import ASSETS
from searchjax.search.options import check_search, read_keys
from searchjax.search.providers import PROVIDERS, Provider
from searchjax.search.recording import Recording
from searchjax.search.screening import Screening
from searchjax.search.server import start_server
from searchjax.search.tool import SearchTool

PASSED_ON = ("max_results", "timeout_s", "deadline_s", "retries", "connections", "per_second",
             "titles", "snippet_chars")


@contextlib.contextmanager
def open_search(section: Any) -> Iterator[SearchTool]:
  """The tool that a `search` section describes; a local server of its own ends with the block.

  Args:
    section: a mapping with SEARCH's keys.

  Raises:
    ValueError: see `check_search`; the service cannot be reached, or the recording is empty.
  """
  check_search(section)
  with contextlib.ExitStack() as stack:
    recording = _open_recording(section)
    provider = _open_provider(section, stack)
    tool = stack.enter_context(SearchTool(
      provider, recording=recording, replay=section["replay"],
      screening=Screening(section["blocked_domains"], section["leak_ngram"]),
      batch=1 if section["faults"] else provider.batch,
      **{name: section[name] for name in PASSED_ON}))
    if not section["replay"]:
      tool.check()
    yield tool


def describe(section: Any) -> str:
  """What answered the searches, in a few words, for results."""
  name = section["provider"]
  if name == "local":
    name = section["url"] or "local atlas server"
  return f"{name}, replayed from {section['cache']}" if section["replay"] else name


def _open_recording(section) -> Recording | None:
  if not section["cache"]:
    return None
  recording = Recording(section["cache"])
  if recording.unfinished:
    print(f"search.cache {section['cache']}: {recording.unfinished} unfinished lines ignored",
          file=sys.stderr)
  if section["replay"] and not len(recording):
    raise ValueError(f"search.replay: no answers are recorded in {section['cache']}; run once "
                     "without search.replay")
  return recording


def _open_provider(section, stack: contextlib.ExitStack) -> Provider:
  kind, url = PROVIDERS[section["provider"]], section["url"]
  key, variables = read_keys(kind, section["replay"])
  source = ""
  if kind.name == "local":
    source = url
    if not url and section["cache"]:
      corpus = pathlib.Path(section["corpus"] or ASSETS / "atlas.jsonl.gz")
      if not corpus.is_file():
        raise ValueError(f"corpus {corpus}: no such file")
      source = f"{hashlib.sha256(corpus.read_bytes()).hexdigest()[:16]} {section['faults']}".strip()
    if not url and not section["replay"]:
      url = stack.enter_context(start_server(section["corpus"] or None, faults=section["faults"]))
  price = section["dollars_per_1000"]
  return kind(url, key=key, variables=variables, source=source, price=price if price >= 0 else None)
