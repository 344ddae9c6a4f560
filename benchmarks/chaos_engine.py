"""Engines that play a recording for as long as they are asked, and everything they can do wrong.

Owns the stand-in engines, the one clock that they and the daemons share, and the table ACTS of what an engine does instead of
answering well. A new way to misbehave is a function of its handler and a row of ACTS. The Alertmanager that only remembers is
here too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agent.demo.player import Player, track
from agent.recording import load

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "tests" / "recordings" / "steady"
OTHER_VERSION = ROOT / "tests" / "pages" / "vllm-0.11.0.prom"
OTHER_ENGINE = ROOT / "tests" / "pages" / "sglang-0.5.10.prom"
METRICS = "text/plain; version=0.0.4"
ENDLESS_CHUNK = b"# a comment that never ends\n" * 4096
CHUNKS = 4096


class Clock:
    """Unix seconds from now on, `speed` times faster; `origin` and `begin` let another process share it."""

    def __init__(self, speed: float) -> None:
        self.speed, self.origin, self.begin = speed, time.monotonic(), time.time()

    def __call__(self) -> float:
        return self.begin + (time.monotonic() - self.origin) * self.speed


Act = Callable[["Handler"], None]


class Engine:
    """One engine at one address, which it keeps while it is dead. `act` is what it does instead, None while it is well."""

    def __init__(self, clock: Clock, begin: float) -> None:
        recording, problems = load(RECORDING)
        assert problems == ()
        self.player = Player((track(recording, "one", begin),), clock)
        self.act: Act | None = None
        self.asked = 0
        self.released = threading.Event()
        self._port = 0
        self._server: Server | None = None
        self.revive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/metrics"

    def page(self) -> bytes:
        return self.player.page("one") or b""

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

    def __init__(self, engine: Engine, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.engine = engine

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up on it all the time."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        engine = self.server.engine
        if self.server.dead:
            self.close_connection = True
            return
        engine.asked += 1
        (engine.act or well)(self)

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


def well(handler: Handler) -> None:
    handler.give(handler.server.engine.page())


def hangs(handler: Handler) -> None:
    handler.server.engine.released.wait(60)
    handler.close_connection = True


def hangs_mid_page(handler: Handler) -> None:
    page = handler.server.engine.page()
    handler.give(page[: len(page) // 2], length=len(page))
    hangs(handler)


def trickles(handler: Handler) -> None:
    """A few bytes now and then: never late for who counts from the last byte."""
    page, released = handler.server.engine.page(), handler.server.engine.released
    handler.give(b"", length=len(page))
    for start in range(0, len(page), 64):
        if released.wait(0.05):
            break
        handler.wfile.write(page[start : start + 64])
    handler.close_connection = True


def half(handler: Handler) -> None:
    """Announced and ended as if it were whole, in the middle of a line."""
    page = handler.server.engine.page()
    handler.give(page[: len(page) // 2].rstrip(b"\n"))


def hangs_up(handler: Handler) -> None:
    page = handler.server.engine.page()
    handler.give(page[: len(page) // 2], length=len(page))
    handler.close_connection = True


def garbage(handler: Handler) -> None:
    handler.give(bytes(range(256)) * 64 + b"\n")


def huge(handler: Handler) -> None:
    handler.give(b"", length=len(ENDLESS_CHUNK) * CHUNKS)
    for _ in range(CHUNKS):
        handler.wfile.write(ENDLESS_CHUNK)


def twice(handler: Handler) -> None:
    """Every series two times, as a page that was rotated while it was written."""
    handler.give(handler.server.engine.page() * 2)


def flaps(handler: Handler) -> None:
    if handler.server.engine.asked % 2:
        handler.give(b"overloaded\n", status=503)
    else:
        well(handler)


def _page(path: Path) -> Act:
    body = path.read_bytes()
    return lambda handler: handler.give(body)


def back_in_time(handler: Handler) -> None:
    """The first page of the recording, whatever was said since: every counter falls."""
    engine = handler.server.engine
    first = engine.player._tracks["one"].scrapes[0].body
    handler.give(first or b"")


ACTS: Mapping[str, Act] = {
    "hangs": hangs,
    "hangs_mid_page": hangs_mid_page,
    "trickles": trickles,
    "half_a_page": half,
    "hangs_up_mid_page": hangs_up,
    "garbage": garbage,
    "html": lambda handler: handler.give(b"<html>login</html>\n", kind="text/html"),
    "another_page": lambda handler: handler.give(b"# TYPE node_load1 gauge\nnode_load1 0.5\n"),
    "empty": lambda handler: handler.give(b""),
    "error_500": lambda handler: handler.give(b"boom\n", status=500),
    "redirect": lambda handler: handler.give(b"", status=302, Location="file:///etc/passwd"),
    "huge": huge,
    "every_series_twice": twice,
    "flaps": flaps,
    "back_in_time": back_in_time,
    "other_version": _page(OTHER_VERSION),
    "other_engine": _page(OTHER_ENGINE),
}


class Manager(ThreadingHTTPServer):
    """An Alertmanager that only remembers what was posted. `mode`: well, 500 or hangs; `posted` are labels and startsAt."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ManagerHandler)
        self.mode = "well"
        self.released = threading.Event()
        self.posted: list[Mapping[str, str]] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """As above."""


class ManagerHandler(BaseHTTPRequestHandler):
    server: Manager

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.mode == "hangs":
            self.server.released.wait(60)
            return
        if self.server.mode == "well":
            self.server.posted += [{**alert["labels"], "startsAt": alert["startsAt"]} for alert in json.loads(body)]
        self.send_response(200 if self.server.mode == "well" else 500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""
