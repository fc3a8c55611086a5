"""A small part of the packaged atlas, and a search service that misbehaves, for tests."""

import atexit
import collections
import contextlib
import functools
import gzip
import http.server
import json
import pathlib
import shutil
import tempfile
import threading
import time
import urllib.parse

from searchjax.search.atlas import ASSETS, Atlas, fold, load_atlas, split_of_country


@functools.lru_cache(maxsize=1)
def packaged_atlas() -> Atlas:
  return load_atlas()


@functools.lru_cache(maxsize=1)
def small_corpus(countries_per_split: int = 3) -> pathlib.Path:
  """A file of the countries of each split that have most pages under 150, and what all share."""
  folder = pathlib.Path(tempfile.mkdtemp())
  atexit.register(shutil.rmtree, folder)
  path = folder / "corpus.jsonl"
  rows = [json.loads(line) for line in gzip.open(ASSETS / "atlas.jsonl.gz", "rt")]
  bank = rows.pop(0)["names_bank"]
  sizes = collections.Counter(row.get("country") for row in rows)
  kept = set()
  for split in ("sft", "rl", "heldout"):
    codes = [code for code, size in sizes.most_common()
             if code and size < 150 and split_of_country(code) == split]
    kept |= set(codes[:countries_per_split])
  shared = ("continent", "currency", "language")
  rows = [row for row in rows if row.get("country") in kept
          or ("country" not in row and row["id"].split("/")[0] in shared)]
  lines = [{"names_bank": bank[:3000]}, *rows]
  path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
  return path


@functools.lru_cache(maxsize=1)
def small_atlas() -> Atlas:
  return load_atlas(small_corpus())


def names(atlas: Atlas, split: str) -> set[str]:
  return {fold(e.name) for e in atlas.entities.values() if atlas.split_of(e.id) == split}


class Reply:
  """What the faulty service answers: status, body bytes, headers, and how it misbehaves."""

  def __init__(self, status=200, body=b'{"results": []}', headers=None, *, wait_s=0.0,
               promise=None):
    self.status, self.body, self.headers = status, body, headers or {}
    self.wait_s, self.promise = wait_s, promise


@contextlib.contextmanager
def faulty_service(answer):
  """Serves `answer(number, request) -> Reply`; gives (base URL, list of (time, request), load).

  A request is its JSON, or of a GET its parameters; load["headers"] has the headers of each.
  """
  seen, lock = [], threading.Lock()
  load = {"now": 0, "most": 0, "headers": []}

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
      self.reply(dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query)))

    def do_POST(self):
      self.reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def reply(self, body):
      with lock:
        load["headers"].append(dict(self.headers.items()))
        number = len(seen)
        seen.append((time.monotonic(), body))
        load["now"] += 1
        load["most"] = max(load["most"], load["now"])
      reply = answer(number, body)
      time.sleep(reply.wait_s)
      with lock:
        load["now"] -= 1
      with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        self.send_response(reply.status)
        for key, value in reply.headers.items():
          self.send_header(key, value)
        self.send_header("content-length", str(reply.promise or len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)
      self.close_connection = reply.promise is not None

    def log_message(self, *_):
      pass

  class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

  server = Server(("127.0.0.1", 0), Handler)
  thread = threading.Thread(target=functools.partial(server.serve_forever, 0.02), daemon=True)
  thread.start()
  try:
    yield f"http://127.0.0.1:{server.server_address[1]}", seen, load
  finally:
    server.shutdown()
    server.server_close()
    thread.join()
