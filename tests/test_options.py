"""A config's search section: what contradicts itself or lacks a key is one clear line."""

import pytest

from searchjax.dist.checks import CHOICES
from searchjax.search.options import SEARCH, check_search, read_keys
from searchjax.search.providers import PROVIDERS

KEY = "sekret-4711"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
  for kind in PROVIDERS.values():
    for name in (kind.key_name, *kind.variables):
      if name:
        monkeypatch.delenv(name, raising=False)


def test_the_defaults_are_those_of_a_local_server():
  check_search(SEARCH)


def test_providers_named_in_configs_are_those_there_are():
  assert set(CHOICES["search.provider"]) == set(PROVIDERS)


@pytest.mark.parametrize("name", [n for n, kind in PROVIDERS.items() if kind.key_name])
def test_a_missing_key_is_one_line_that_names_the_variable(name, monkeypatch):
  kind = PROVIDERS[name]
  section = SEARCH | {"provider": name}
  for variable in (*kind.variables, kind.key_name):
    with pytest.raises(ValueError) as caught:
      check_search(section)
    assert str(caught.value) == (
      f"search.provider={name} needs the environment variable {variable}; it is not set")
    monkeypatch.setenv(variable, f"  {KEY}\n")
  check_search(section)
  assert read_keys(kind, False)[0].value == KEY
  monkeypatch.delenv(kind.key_name)
  check_search(section | {"replay": True, "cache": "somewhere"})  # a recording needs no key


@pytest.mark.parametrize("spoilt", ["seк ret", "a b", "a\nb", "a\x00b"])
def test_a_key_that_no_header_may_hold_is_not_printed(spoilt, monkeypatch):
  monkeypatch.setattr("os.environ", {"SERPER_API_KEY": spoilt})
  with pytest.raises(ValueError, match="SERPER_API_KEY: expected printable ASCII") as caught:
    check_search(SEARCH | {"provider": "serper"})
  assert spoilt not in str(caught.value)


@pytest.mark.parametrize("changes, message", [
  (dict(url="localhost:8000"), 'search.url must be http:// or https://, got "localhost:8000"'),
  (dict(url="http://[::1"), 'search.url must be http:// or https://, got "http://[::1"'),
  (dict(url="http://a.example:99999"), "search.url must be http"),
  (dict(url="https:///search"), "search.url must be http"),
  (dict(provider="searxng"), "search.provider=searxng needs search.url"),
  (dict(provider="brave", max_results=21), "search.max_results must be at most 20 for brave, got 21"),
  (dict(max_results=101), "search.max_results must be at most 100 for local"),
  (dict(provider="serper", url="http://proxy.example"), "a key is sent over https only"),
  (dict(replay=True), "search.replay needs search.cache"),
  (dict(cache="gs://b/c"), "search.cache must be a local folder"),
  (dict(faults="429=2"), "search faults: expected"),
  (dict(faults="any=0.1", url="http://127.0.0.1:1"), "search.faults are those of the server that a run"),
  (dict(faults="any=0.1", provider="searxng", url="http://127.0.0.1:1"), "search.faults are those"),
  (dict(blocked_domains=("https://a.example",)), "search.blocked_domains: expected sites"),
])
def test_what_no_run_can_use_is_refused_in_one_line(changes, message):
  with pytest.raises(ValueError) as caught:
    check_search(SEARCH | changes)
  assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("url", [f"https://me:{KEY}@a.example", f"https://{KEY}@a.example/x",
                                 f"https://me:{KEY}@[::1"])
def test_a_password_in_an_address_is_refused_and_not_printed(url):
  with pytest.raises(ValueError, match="search.url must be without user") as caught:
    check_search(SEARCH | {"provider": "searxng", "url": url})
  assert KEY not in str(caught.value)


def test_a_key_may_go_to_a_proxy_on_this_machine(monkeypatch):
  monkeypatch.setenv("SERPER_API_KEY", KEY)
  check_search(SEARCH | {"provider": "serper", "url": "http://127.0.0.1:8000"})
