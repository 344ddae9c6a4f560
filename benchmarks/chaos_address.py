"""An address that others ask and that can misbehave: the port it keeps while it is dead, and what any server can do wrong.

Owns the server and the acts that need to know nothing of what is served. What an engine can do wrong besides is
`chaos_engine`'s, what a store can `chaos_store`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METRICS = "text/plain; version=0.0.4"
ENDLESS_CHUNK = b"# a comment that never ends\n" * 4096
CHUNKS = 4096
HELD_SECONDS = 60.0

Act = Callable[["Handler"], None]


class Address:
    """Answers by `well`, or by `act` where there is one."""

    def __init__(self, well: Act) -> None:
        self.well = well
        self.act: Act | None = None
        self.asked = 0
        self.released = threading.Event()
        self._port = 0
        self._server: Server | None = None
        self.revive()

    @property
    def place(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def revive(self) -> None:
        if self._server is None:
            self._server = Server(self, self._port)
            self._port = int(self._server.server_address[1])
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def die(self) -> None:
        """Its port is closed, and every connection to it."""
        server, self._server = self._server, None
        if server is not None:
            server.dead = True
            server.shutdown()
            server.server_close()

    def behave(self) -> None:
        self.act = None
        self.released.set()
        self.released = threading.Event()
        self.revive()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    dead = False

    def __init__(self, address: Address, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.address = address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up on it all the time."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    body = b""
    """Of the request."""

    def do_GET(self) -> None:
        if self.server.dead:
            self.close_connection = True
            return
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        address = self.server.address
        address.asked += 1
        (address.act or address.well)(self)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def give(self, body: bytes, status: int = 200, kind: str = METRICS, length: int | None = None, **more: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def hangs(handler: Handler) -> None:
    handler.server.address.released.wait(HELD_SECONDS)
    handler.close_connection = True


def garbage(handler: Handler) -> None:
    handler.give(bytes(range(256)) * 64 + b"\n")


def html(handler: Handler) -> None:
    handler.give(b"<html>login</html>\n", kind="text/html")


def redirects(handler: Handler) -> None:
    handler.give(b"", status=302, Location="file:///etc/passwd")


def huge(handler: Handler) -> None:
    handler.give(b"", length=len(ENDLESS_CHUNK) * CHUNKS)
    for _ in range(CHUNKS):
        handler.wfile.write(ENDLESS_CHUNK)


def empty(handler: Handler) -> None:
    handler.give(b"")


def says(status: int, body: bytes = b"boom\n", kind: str = METRICS) -> Act:
    """Always the same answer."""
    return lambda handler: handler.give(body, status=status, kind=kind)


def hangs_mid(handler: Handler, body: bytes, kind: str = METRICS) -> None:
    handler.give(body[: len(body) // 2], kind=kind, length=len(body))
    hangs(handler)


def hangs_up(handler: Handler, body: bytes, kind: str = METRICS) -> None:
    handler.give(body[: len(body) // 2], kind=kind, length=len(body))
    handler.close_connection = True


def trickles(handler: Handler, body: bytes, kind: str = METRICS) -> None:
    """A few bytes now and then: never late for who counts from the last byte."""
    released = handler.server.address.released
    handler.give(b"", kind=kind, length=len(body))
    for start in range(0, len(body), 64):
        if released.wait(0.05):
            break
        handler.wfile.write(body[start : start + 64])
    handler.close_connection = True
