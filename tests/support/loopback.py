"""HTTP servers on loopback for tests, and programs that run until the end of a block."""

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any, TypeVar

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


class Program:
    """A program on loopback. Its address and its data stay the same when it is started again."""

    def __init__(self, words: Sequence[str | Path], url: str, ready: str = "") -> None:
        self.url = url
        self._words, self._ready = words, f"{url}{ready}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers."""
        self._process = subprocess.Popen(self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until_answered(self._ready)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait(CEILING_SECONDS)
            self._process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


AnyProgram = TypeVar("AnyProgram", bound=Program)


@contextmanager
def running(one: AnyProgram) -> Iterator[AnyProgram]:
    """Run a program until the end of the block."""
    try:
        one.start()
        yield one
    finally:
        one.stop()


def program(words: Sequence[str | Path], url: str, ready: str = "") -> AbstractContextManager[Program]:
    """Run these words until the end of the block."""
    return running(Program(words, url, ready))
