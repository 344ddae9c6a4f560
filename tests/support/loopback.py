"""HTTP servers on loopback for tests, and programs that run until the end of a block."""

import contextlib
import signal
import socket
import socketserver
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any, TypeVar

from paths import ROOT
from waiting import CEILING_SECONDS, wait_for


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


def hangs(handler: Any) -> None:
    """Says nothing until its server is released."""
    handler.server.released.wait(CEILING_SECONDS)
    handler.close_connection = True


def give(
    handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, kind: str = "application/json", **headers: str
) -> None:
    """An answer; `length` is announced in place of the body's. Underscores in names of headers are hyphens."""
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", headers.pop("length", str(len(body))))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


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
    """A program on loopback. Its address and its data stay the same when it is started again; a log is continued."""

    def __init__(self, words: Sequence[str | Path], url: str, ready: str = "", log: Path = Path("/dev/null")) -> None:
        self.url, self.log = url, log
        self._words, self._ready = words, f"{url}{ready}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Return when it answers, with whatever but an error of its own."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._words, cwd=ROOT, stdout=log, stderr=log)
        assert wait_for(lambda: self._answers() or not self.is_alive), f"{self._ready} did not answer"
        assert self.is_alive, f"{self._words[0]} ended at once; see {self.log}"

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self._ready, timeout=CEILING_SECONDS):
                return True
        except OSError:
            return False

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """End it. Return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(by)
        return process.wait(CEILING_SECONDS)

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


@contextmanager
def answering(said: list[bytes], path: str = "") -> Iterator[str]:
    """Serve `said[0]`, over TCP or over the socket file `path`. Yield the address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.settimeout(CEILING_SECONDS)
                self.request.recv(65_536)
                self.request.sendall(said[0])
                self.request.shutdown(socket.SHUT_WR)
                # Unread bytes would reset the connection and lose the answer.
                while self.request.recv(65_536):
                    pass

    with (
        socketserver.ThreadingUnixStreamServer(path, Handler) if path else _Server(("127.0.0.1", 0), Handler) as server
    ):
        server.daemon_threads, server.block_on_close = True, False
        with served(server):
            yield path or f"http://127.0.0.1:{server.server_address[1]}"


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
