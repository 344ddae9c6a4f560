"""HTTP servers on loopback for tests, and programs that run until the end of a block."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any

from waiting import CEILING_SECONDS, wait_until_answered


class Quiet:
    """Part of a handler that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class LoopbackServer(ThreadingHTTPServer):
    """Server on a port of loopback, by default a free one."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up hangs up; that is what is tested."""


@contextmanager
def served(server: BaseServer) -> Iterator[None]:
    """Serve requests until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def program(words: Sequence[str | Path], url: str) -> Iterator[None]:
    """Run a program that answers at `url`, until the end of the block."""
    started = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_answered(url)
        yield
    finally:
        started.terminate()
        started.wait(CEILING_SECONDS)
