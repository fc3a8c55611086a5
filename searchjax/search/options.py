"""What a config's `search` section may say, its defaults, and what contradicts itself.  HOST.

Ranges of single values are in dist/checks.py. Keys come from the environment alone.
"""

import os
from typing import Any

from searchjax.dist.checks import check_url
from searchjax.search.faults import parse_faults
from searchjax.search.providers import PROVIDERS, Provider, Secret, is_loopback
from searchjax.search.screening import Screening

# docs/search.md says what each is for.
SEARCH = {
  "provider": "local",  # or searxng, serper, brave, tavily, exa, perplexity, google
  "url": "",  # of the service; "" is its published address, or a local server the run starts itself
  "corpus": "",  # JSONL pages of the local server; "" is the packaged atlas
  "max_results": 10, "titles": True, "tools_in_prompt": True,
  "snippet_chars": 0,  # 0: whole
  "timeout_s": 20.0,  # of an attempt
  "deadline_s": 60.0,  # of a search with all its attempts
  "retries": 4, "connections": 8,
  "per_second": 0.0,  # requests; 0: no limit
  "cache": "", "replay": False,  # a folder of answers; replay: nothing else answers
  "blocked_domains": ("benchmarks",), "leak_ngram": 10,
  "faults": "",  # of the local server
  "dollars_per_1000": -1.0,  # -1: as published
}


def check_search(section: Any) -> None:
  """Refuses a `search` section that no run can use.

  Args:
    section: a mapping with SEARCH's keys.

  Raises:
    ValueError: what is missing or contradicts itself, and how to mend it. It never holds a key.
  """
  kind = PROVIDERS[section["provider"]]
  url = section["url"]
  if url:
    check_url("search.url", url)
  if kind.key_name and url and not (url.startswith("https://") or is_loopback(url)):
    raise ValueError(f'search.url: a key is sent over https only, got "{url}"')
  if kind.name == "searxng" and not url:
    raise ValueError("search.provider=searxng needs search.url, the address of your instance")
  if section["max_results"] > kind.most_results:
    raise ValueError(f"search.max_results must be at most {kind.most_results} for {kind.name}, got "
                     f"{section['max_results']}")
  if section["replay"] and not section["cache"]:
    raise ValueError("search.replay needs search.cache, the folder of the recording")
  if section["cache"].startswith("gs://"):
    raise ValueError(f"search.cache must be a local folder, got {section['cache']}")
  if parse_faults(section["faults"]) and (kind.name != "local" or url):
    raise ValueError("search.faults are those of the server that a run starts: they need "
                     "search.provider=local and no search.url")
  Screening(section["blocked_domains"], section["leak_ngram"])
  read_keys(kind, section["replay"])


def read_keys(kind: type[Provider], replay: bool) -> tuple[Secret, dict[str, str]]:
  """The key of a provider and its other variables from the environment.

  Args:
    replay: then no key is needed.

  Raises:
    ValueError: one is missing, or holds what no header may.
  """
  needed = [*kind.variables, *([kind.key_name] if kind.key_name and not replay else [])]
  values = {name: os.environ.get(name, "").strip() for name in needed}
  for name, value in values.items():
    if not value:
      raise ValueError(f"search.provider={kind.name} needs the environment variable {name}; it is "
                       "not set")
    if not (value.isascii() and value.isprintable()) or " " in value:
      raise ValueError(f"environment variable {name}: expected printable ASCII without spaces")
  return Secret(values.pop(kind.key_name, "")), values
