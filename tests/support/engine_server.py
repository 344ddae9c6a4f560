"""Engines for tests: a real HTTP server on loopback whose pages move as a real vLLM's did, and which can misbehave.

The pages are those of the recording `steady`, one further each time one is asked for. What an engine does instead is a
function of its `Handler`: set `act` to one of those below.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler

import loopback
import recorded
from loopback import LoopbackServer, Quiet, served

from agent.sources.recording import load, scrapes

METRICS = "text/plain; version=0.0.4"

Act = Callable[["Handler"], None]


@functools.cache
def pages(name: str = "steady") -> tuple[bytes, ...]:
    recording, problems = load(recorded.folder(name))
    assert problems == ()
    return tuple(s.body for s in scrapes(recording, []) if s.body is not None)


def born(body: bytes, started: float, ready_after: float = 40.0) -> bytes:
    """The page of a process that started at this time and was ready so many seconds later."""
    lines = []
    for printed in body.decode().splitlines():
        name, _, value = printed.rpartition(" ")
        if name.startswith("process_start_time_seconds"):
            value = repr(started)
        elif name.partition("{")[0].endswith("_created"):
            value = repr(started + ready_after)
        lines.append(printed if printed.startswith("#") else f"{name} {value}")
    return "\n".join(lines).encode() + b"\n"


class Engine(LoopbackServer):
    """One engine. `asked` are the times (`time.time`) at which a page was asked for, `headers` those of the last.

    It tells its `release` at /version, 404 without one; `release_asked` counts the questions.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(Handler, port)
        self.pages = pages()
        self.act: Act | None = None
        self.release = b""
        self.release_asked = 0
        self.asked: list[float] = []
        self.headers: dict[str, str] = {}
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"{super().url}/metrics"


class Handler(Quiet, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def do_GET(self) -> None:
        if self.path == "/version":
            self.server.release_asked += 1
            give(self, self.server.release, 200 if self.server.release else 404, kind="application/json")
            return
        self.server.asked.append(time.time())
        self.server.headers = dict(self.headers.items())
        if self.server.act is not None:
            self.server.act(self)
        else:
            give(self, self.server.pages[min(len(self.server.asked), len(self.server.pages)) - 1])


give = functools.partial(loopback.give, kind=METRICS)
hangs = loopback.hangs


def answers_500(handler: Handler) -> None:
    give(handler, b"boom\n", status=500)


def redirects(handler: Handler) -> None:
    give(handler, b"", status=302, Location="http://127.0.0.1:1/metrics")


def cuts_off(handler: Handler) -> None:
    """A page that ends inside a number, as long as announced."""
    give(handler, handler.server.pages[0][:-3])


def is_strange(handler: Handler) -> None:
    """A page of metrics of something that is no engine."""
    give(handler, b"# TYPE node_load1 gauge\nnode_load1 0.5\n")


def is_html(handler: Handler) -> None:
    give(handler, b"<html>login</html>\n", kind="text/html")


@contextmanager
def engines(count: int = 1, port: int = 0) -> Iterator[list[Engine]]:
    """Engines that answer until the end of the block."""
    made = [Engine(port) for _ in range(count)]
    with ExitStack() as stack:
        for engine in made:
            stack.enter_context(served(engine))
            stack.callback(engine.released.set)
        yield made
