"""Which results a policy may see: none of blocked sites, none that quote its question.  PURE.

A benchmark's questions and answers stand on the web. A result is dropped if its address is on the
block list, or if its title or snippet holds n words of the question in a row.

Spec     4 (evaluation).
Source   FAULTS J8; n-gram overlap as a sign of contamination, arXiv:2005.14165 app. C.
"""

import contextlib
import functools
import posixpath
import re
import urllib.parse
from collections.abc import Sequence
from typing import NamedTuple

from searchjax.search.atlas import fold
from searchjax.search.reply import Result

# Where the public benchmarks of SPEC 4 and 1.3 lie, questions with answers; the word "benchmarks"
# in a block list stands for these.
BENCHMARKS = (
  "huggingface.co/datasets", "hf.co/datasets", "hf-mirror.com/datasets",
  "datasets-server.huggingface.co", "kaggle.com/datasets", "modelscope.cn/datasets",
  "openaipublic.blob.core.windows.net", "github.com/openai/simple-evals",
  "raw.githubusercontent.com/openai/simple-evals",
)
SCHEME = re.compile(r"(?:[a-z][a-z0-9+.-]*:(?!\d))?/*", re.IGNORECASE)
LEAST_WORDS = 6  # a shorter question is too common a phrase to tell a leak


class Screened(NamedTuple):
  """The results kept, in order, and how many were dropped for which reason."""

  kept: tuple[Result, ...]
  blocked: int
  leaked: int


class Screening:
  """A block list and the length of the word sequences that give a leaked question away."""

  def __init__(self, blocked: Sequence[str] = (), leak_ngram: int = 0):
    """Args:
      blocked: sites, each "example.org", which means its subdomains too, or "example.org/path",
        which means every address that begins so; "benchmarks" stands for BENCHMARKS.
      leak_ngram: words in a row; of a shorter question all its words. 0 turns the check off.

    Raises:
      ValueError: an entry is not a site.
    """
    sites = [site for entry in blocked
             for site in (BENCHMARKS if entry == "benchmarks" else (entry,))]
    self._sites = [_site(entry) for entry in sites]
    self._n = leak_ngram

  def screen(self, results: Sequence[Result], question: str) -> Screened:
    """Drops what the policy must not see.

    Args:
      question: what the conversation is about; "" if unknown, then nothing is a leak.
    """
    allowed = [r for r in results if not self._is_blocked(r.url)]
    grams = _grams(question, self._n) if self._n and question else frozenset()
    kept = tuple(r for r in allowed if not grams or not self._is_leak(r, grams))
    return Screened(kept, len(results) - len(allowed), len(allowed) - len(kept))

  def _is_blocked(self, url: str) -> bool:
    host, path = _split(url)
    return any((host == site or host.endswith("." + site))
               and f"{path}/".startswith(f"{below}/") for site, below in self._sites)

  def _is_leak(self, result: Result, grams: frozenset[str]) -> bool:
    n = next(iter(grams)).count(" ") + 1
    return any(not grams.isdisjoint(_runs(text, n)) for text in (result.title, result.snippet))


@functools.lru_cache(maxsize=4096)
def _grams(question: str, n: int) -> frozenset[str]:
  words = fold(question).count(" ") + 1
  return frozenset(_runs(question, min(n, words))) if words >= LEAST_WORDS else frozenset()


def _runs(text: str, n: int) -> list[str]:
  words = fold(text).split()
  return [" ".join(words[i:i + n]) for i in range(len(words) - n + 1)]


def _site(entry: str) -> tuple[str, str]:
  host, path = _split(f"//{entry}")
  if "://" in entry or "." not in host or any(c.isspace() for c in entry):
    raise ValueError(f"search.blocked_domains: expected sites like \"example.org\" or "
                     f"\"example.org/path\", got {entry!r}")
  return host, path


def _split(url: str) -> tuple[str, str]:
  """Host and path in one of the many ways to write them; "" for the host of what is no address."""
  try:
    parts = urllib.parse.urlsplit("//" + url[SCHEME.match(url).end():])
    host = urllib.parse.unquote(parts.hostname or "").rstrip(".")
  except ValueError:
    return "", ""
  with contextlib.suppress(UnicodeError):  # a host that DNS cannot hold stays as it is
    host = host.encode("idna").decode()
  path = urllib.parse.unquote(parts.path).casefold()  # GitHub's, for one, have no case
  return host, posixpath.normpath("/" + path.lstrip("/")).rstrip("/")
