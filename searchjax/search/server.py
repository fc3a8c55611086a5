"""The atlas, or one's own pages, served over HTTP on loopback.  HOST.

  python -m searchjax.search.server [--port 0] [--corpus FILE.jsonl] [--ready-file F] [--faults F]

  POST /search {"query": str, "num_results": int, "world": int | null}
       -> {"results": [{"title", "url", "snippet"}]}
  POST /search {"searches": [{"query", "num_results", "world"}, ...]}, several at once
       -> {"answers": [{"results": [...]}, ...]}
  GET  /health -> {"status": "ok", "pages": int}

A world other than null renames every entity (worlds.py): the query is read under that world's
names and the results are written under them. With faults (faults.py) it takes one search a request;
the header x-attempt says which attempt it is, else the server counts.

Spec     3 (search_web).
Source   starlette and uvicorn.
"""

import argparse
import asyncio
import collections
import contextlib
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from searchjax.search.atlas import Atlas, fold, load_atlas
from searchjax.search.faults import Faults, parse_faults
from searchjax.search.index import SearchIndex
from searchjax.search.worlds import World, name_banks

MAX_RESULTS = 100
MAX_SEARCHES = 1024
START_TIMEOUT_S = 120.0


class SearchService:
  """Answers queries over one atlas, under any world's names."""

  def __init__(self, atlas: Atlas):
    self._atlas = atlas
    self._pages = list(atlas.pages.values())
    self._index = SearchIndex([page.title for page in self._pages],
                              [page.sentences for page in self._pages])
    self.world = functools.lru_cache(maxsize=4096)(lambda seed: World(atlas, seed))
    self._found = functools.lru_cache(maxsize=65536)(self._index.search)
    if atlas.names_bank:
      name_banks(atlas)  # built at start, so that the first renamed query is not slow

  @property
  def num_pages(self) -> int:
    return len(self._pages)

  def search(self, query: str, num_results: int, seed: int | None) -> list[dict]:
    """The results a reader of world `seed` sees, best first."""
    world = self.world(seed)
    results = []
    for hit in self._found(world.unrename(query), num_results):
      page = self._pages[hit.page]
      title = world.name(page.id)
      slug = page.id.split("/")[0] + "/" + fold(title).replace(" ", "-")
      results.append({
        "title": title, "url": page.url if seed is None else f"https://atlas.example/{slug}",
        "snippet": world.render(page.sentences[hit.sentence]) if page.sentences else ""})
    return results


def read_body(body: bytes) -> dict:
  """The JSON object that a request's body holds.

  Raises:
    ValueError: it holds none.
  """
  try:
    request = json.loads(body)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"the body is not JSON: {error}") from error
  if not isinstance(request, dict):
    raise ValueError("expected a JSON object with \"query\"")
  return request


def check_search(request: dict, renameable: bool) -> tuple[str, int, int | None]:
  """Checks one search: query, number of results, world.

  Raises:
    ValueError: one clear line about the first thing that is wrong.
  """
  if not isinstance(request, dict):
    raise ValueError("expected a JSON object with \"query\"")
  query, count, world = request.get("query"), request.get("num_results", 10), request.get("world")
  if not isinstance(query, str) or not query.strip():
    raise ValueError(f"expected \"query\" as a non-empty string, got {query!r}")
  if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_RESULTS:
    raise ValueError(f"expected \"num_results\" from 1 to {MAX_RESULTS}, got {count!r}")
  if world is not None and (not isinstance(world, int) or isinstance(world, bool)):
    raise ValueError(f"expected \"world\" as an integer or null, got {world!r}")
  if world is not None and not renameable:
    raise ValueError("this corpus has no \"names_bank\", so it has no renamed worlds")
  return query, count, world


def make_app(service: SearchService, renameable: bool, faults: Faults | None = None) -> Starlette:
  """The ASGI application over one service."""
  asked = collections.Counter()

  async def search(request: Request) -> Response:
    try:
      body = read_body(await request.body())
      if "searches" not in body:
        one = check_search(body, renameable)
        results = service.search(*one)
        if faults is None:
          return _json({"results": results})
        return await faulty(request, one[0], results)
      if faults is not None:
        raise ValueError("with faults, one search a request")
      if not isinstance(body["searches"], list) or len(body["searches"]) > MAX_SEARCHES:
        raise ValueError(f"expected \"searches\" as a list of at most {MAX_SEARCHES}")
      searches = [check_search(one, renameable) for one in body["searches"]]
    except ValueError as error:
      return _json({"error": str(error)}, 400)
    return _json({"answers": [{"results": service.search(*one)} for one in searches]})

  async def faulty(request: Request, query: str, results: list[dict]) -> Response:
    told = request.headers.get("x-attempt", "")
    if not told.isdecimal():
      asked[query] += 1
    attempt = int(told) if told.isdecimal() else asked[query]
    kind = faults.of(query, attempt)
    if kind is None:
      return _json({"results": results})
    reply = faults.reply(kind, query, attempt, results, time.time())
    await asyncio.sleep(reply.wait_s)
    sent = {"status_code": reply.status, "media_type": reply.media,
            "headers": {"retry-after": reply.retry_after} if reply.retry_after else None}
    if reply.drip_s:
      return StreamingResponse(_slowly(reply.body, reply.drip_s), **sent)
    return Response(reply.body, **sent)

  async def health(request: Request) -> Response:
    del request
    return _json({"status": "ok", "pages": service.num_pages})

  return Starlette(routes=[Route("/search", search, methods=["POST"]),
                           Route("/health", health, methods=["GET"])])


def _json(content: dict, status: int = 200) -> Response:
  return Response(json.dumps(content, ensure_ascii=False), status, media_type="application/json")


async def _slowly(body: str, seconds: float) -> AsyncIterator[str]:
  for character in body:
    yield character
    await asyncio.sleep(seconds / len(body))


@contextlib.contextmanager
def start_server(corpus: str | os.PathLike | None = None, port: int = 0, faults: str = ""
                 ) -> Iterator[str]:
  """Runs the server in a process of its own and gives its base URL; it ends with the block.

  Args:
    corpus: a JSONL file of pages; None serves the packaged atlas.
    port: 0 lets the system choose a free one.
    faults: see `parse_faults`; "" for none.

  Raises:
    ValueError: the server could not start; the message is its own one line.
  """
  with tempfile.TemporaryDirectory() as folder:
    ready = pathlib.Path(folder) / "ready"
    command = [sys.executable, "-m", "searchjax.search.server", "--port", str(port),
               "--ready-file", str(ready), "--stop-with-stdin"]
    if corpus is not None:
      command += ["--corpus", str(corpus)]
    if faults:
      command += ["--faults", faults]
    root = str(pathlib.Path(__file__).resolve().parents[2])
    paths = [root] + [p for p in [os.environ.get("PYTHONPATH")] if p]
    with open(pathlib.Path(folder) / "errors", "w+", encoding="utf-8") as errors:
      process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
      try:
        yield _wait_until_ready(process, ready, errors)
      finally:
        process.stdin.close()
        process.terminate()
        try:
          process.wait(timeout=10)
        except subprocess.TimeoutExpired:
          process.kill()
          process.wait()


def _wait_until_ready(process, ready: pathlib.Path, errors) -> str:
  deadline = time.monotonic() + START_TIMEOUT_S
  while time.monotonic() < deadline:
    if process.poll() is not None:
      errors.seek(0)
      lines = errors.read().strip().splitlines()
      raise ValueError(lines[-1].removeprefix("error: ") if lines else
                       f"search server: ended with code {process.returncode} before it was ready")
    if ready.exists():
      base_url = ready.read_text(encoding="utf-8").strip()
      with contextlib.suppress(httpx.TransportError):
        if httpx.get(f"{base_url}/health", timeout=5.0, trust_env=False).status_code == 200:
          return base_url
    time.sleep(0.02)
  raise ValueError(f"search server: not ready after {START_TIMEOUT_S:.0f} s")


class _Parser(argparse.ArgumentParser):
  """A bad command line is one line and exit code 2."""

  def error(self, message: str):
    raise ValueError(f"search server: {message}; see --help")


def _bind(port: int) -> socket.socket:
  listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  try:
    listener.bind(("127.0.0.1", port))
  except (OSError, OverflowError) as error:
    listener.close()
    raise ValueError(f"search server: port {port} of 127.0.0.1 cannot be had ({error}); choose "
                     "another, or --port 0 for any free one") from error
  return listener


def _announce(path: pathlib.Path, base_url: str):
  """Writes the URL so that a reader never sees half of it.

  Raises:
    ValueError: the file cannot be written; nothing is left.
  """
  draft = path.parent / f"{path.name}.draft"
  try:
    draft.write_text(base_url + "\n", encoding="utf-8")
    try:
      draft.replace(path)
    except OSError:
      draft.unlink()
      raise
  except OSError as error:
    raise ValueError(f"search server: cannot write --ready-file {path} ({error.strerror})"
                     ) from error


def _stop_with_stdin(server: uvicorn.Server):
  """Ends the server when whoever started it closes the pipe, or dies."""
  sys.stdin.buffer.read()
  server.should_exit = True


def main(arguments: list[str] | None = None) -> int:
  """Serves until stopped; 2 for a bad start, after one line on standard error."""
  parser = _Parser(prog="python -m searchjax.search.server", description=__doc__.splitlines()[0])
  parser.add_argument("--port", type=int, default=0, help="0: any free port")
  parser.add_argument("--corpus", help="JSONL file of pages; the packaged atlas by default")
  parser.add_argument("--ready-file", type=pathlib.Path, help="receives the base URL when ready")
  parser.add_argument("--faults", default="", metavar="KIND=RATE,...",
                      help="misbehave, e.g. 429=0.1,hang=0.02,poison=1@capital,seed=3")
  parser.add_argument("--stop-with-stdin", action="store_true", help=argparse.SUPPRESS)
  listener = None
  try:
    options = parser.parse_args(arguments)
    faults = parse_faults(options.faults)
    listener = _bind(options.port)
    atlas = load_atlas(options.corpus)
    try:
      service = SearchService(atlas)
    except ValueError as error:
      raise ValueError(f"corpus {options.corpus}: {error}") from error
    listener.listen(1024)
    base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if options.ready_file:
      _announce(options.ready_file, base_url)
  except ValueError as error:
    if listener is not None:
      listener.close()
    print("error:", " ".join(str(error).split()), file=sys.stderr)
    return 2
  app = make_app(service, renameable=bool(atlas.names_bank), faults=faults)
  server = uvicorn.Server(uvicorn.Config(
    app, log_config=None, log_level="warning", access_log=False, lifespan="off",
    timeout_keep_alive=600,
    timeout_graceful_shutdown=1 if faults else None))  # a hang is not waited for
  print(f"{service.num_pages} pages at {base_url}", flush=True)
  if options.stop_with_stdin:
    threading.Thread(target=_stop_with_stdin, args=(server,), daemon=True).start()
  server.run(sockets=[listener])
  return 0


if __name__ == "__main__":
  sys.exit(main())
