"""An ASGI application on a loopback socket, in a thread of this process."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn


@contextlib.contextmanager
def served(app: Any, lifespan: str = "off") -> Iterator[str]:
  """Gives the base URL; the server ends with the block."""
  with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    # uvicorn's own log_config closes every handler there is: absl's with pytest's captured stderr.
    server = uvicorn.Server(
      uvicorn.Config(
        app, log_config=None, log_level="critical", access_log=False, lifespan=lifespan
      )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
      time.sleep(0.005)
    try:
      yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
      server.should_exit = True
      thread.join(10)
