"""Addresses that daemons ask and that can misbehave: engines, Alertmanagers, and the way to a real VictoriaMetrics.

A new way to misbehave is a function of the handler and a row of `ENGINE_ACTS` or `STORE_ACTS`.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

import common
import recorded
from prometheus_server import Victoria

from agent.demo.engines import Player, track
from agent.sources.recording import load

JSON = "application/json"
ENDLESS_CHUNK = b"# a comment that never ends\n" * 4096
CHUNKS = 4096
HELD_SECONDS = 60.0
SLOW_SECONDS = 0.25
STORE_SECONDS = 5.0
HOUR_SECONDS = 3600.0

Act = Callable[["Handler"], None]


class Clock:
    """Unix seconds from `begin` on, `speed` times faster; `origin` (monotonic seconds) lets another process share it."""

    def __init__(self, speed: float, begin: float, origin: float | None = None) -> None:
        self.speed, self.begin = speed, begin
        self.origin = time.monotonic() if origin is None else origin

    def __call__(self) -> float:
        return self.begin + (time.monotonic() - self.origin) * self.speed


class Address:
    """Server that answers by `well`, or by `act` where there is one. It keeps its port while it is dead."""

    def __init__(self, well: Act) -> None:
        self.well = well
        self.act: Act | None = None
        self.requests = 0
        self.released = threading.Event()
        self._port = 0
        self._server: _Server | None = None
        self.revive()

    @property
    def place(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def revive(self) -> None:
        if self._server is None:
            self._server = _Server(self, self._port)
            self._port = int(self._server.server_address[1])

    def die(self) -> None:
        """Close the port and every connection to it."""
        server, self._server = self._server, None
        if server is not None:
            server.dead = True
            server.shutdown()
            server.server_close()

    def behave(self) -> None:
        """End whatever was done to it."""
        self.act = None
        self.released.set()
        self.released = threading.Event()
        self.revive()


class _Server(common.Server):
    dead = False

    def __init__(self, address: Address, port: int) -> None:
        self.address = address
        super().__init__(lambda path, body: None, port, Handler)


class Handler(common.Handler):
    """Handler of one connection; `body` is that of the request."""

    server: _Server
    body = b""

    def reply(self, body: bytes) -> None:
        if self.server.dead:
            self.close_connection = True
            return
        self.body = body
        address = self.server.address
        address.requests += 1
        (address.act or address.well)(self)


# ---- what any server can do wrong; `answer` is its right body ----


def hang(handler: Handler) -> None:
    handler.server.address.released.wait(HELD_SECONDS)
    handler.close_connection = True


def send_endless(handler: Handler) -> None:
    handler.give(b"", length=str(len(ENDLESS_CHUNK) * CHUNKS))
    for _ in range(CHUNKS):
        handler.wfile.write(ENDLESS_CHUNK)


def always(body: bytes, status: int = 200, **headers: str) -> Act:
    """Return an act that always gives the same response."""
    return lambda handler: handler.give(body, status, **headers)


def hang_inside(handler: Handler, answer: bytes) -> None:
    handler.give(answer[: len(answer) // 2], length=str(len(answer)))
    hang(handler)


def hang_up_inside(handler: Handler, answer: bytes) -> None:
    handler.give(answer[: len(answer) // 2], length=str(len(answer)))
    handler.close_connection = True


def give_half(handler: Handler, answer: bytes) -> None:
    """Announce half of the answer, and end as if it were whole."""
    handler.give(answer[: len(answer) // 2].rstrip(b"\n"))


def trickle(handler: Handler, answer: bytes) -> None:
    """Send a few bytes now and then: a client that counts from the last byte never gives up."""
    released = handler.server.address.released
    handler.give(b"", length=str(len(answer)))
    for start in range(0, len(answer), 64):
        if released.wait(0.05):
            break
        handler.wfile.write(answer[start : start + 64])
    handler.close_connection = True


def flap(handler: Handler) -> None:
    address = handler.server.address
    if address.requests % 2:
        handler.give(b"overloaded\n", status=503)
    else:
        address.well(handler)


OF_ANY_SERVER: Mapping[str, Act] = {
    "hangs": hang,
    "endless": send_endless,
    "garbage": always(bytes(range(256)) * 64 + b"\n"),
    "html": always(b"<html>login</html>\n", kind="text/html"),
    "empty": always(b""),
    "500": always(b"boom\n", 500),
    "redirect": always(b"", 302, Location="file:///etc/passwd"),
    "flaps": flap,
}

OF_AN_ANSWER: Mapping[str, Callable[[Handler, bytes], None]] = {
    "hangs_inside": hang_inside,
    "hangs_up_inside": hang_up_inside,
    "half": give_half,
    "trickles": trickle,
}


def spoil_answers(find: Callable[[Handler], bytes]) -> dict[str, Act]:
    """Return what is done with a right answer, by name."""
    return {name: lambda handler, act=act: act(handler, find(handler)) for name, act in OF_AN_ANSWER.items()}  # type: ignore[misc]


# ---- engines ----


class Engine(Address):
    """One engine that plays a recording; `begin` is its place in it (seconds) at the clock's first second."""

    def __init__(self, clock: Clock, begin: float) -> None:
        recording, problems = load(recorded.folder("steady"))
        assert problems == ()
        self._clock = clock
        self._at: float | None = None
        self.track = track(recording, "engine", begin)
        self._player = Player((self.track,), self._now)
        super().__init__(lambda handler: handler.give(self.page()))

    @property
    def url(self) -> str:
        return f"{self.place}/metrics"

    def page(self, t: float | None = None) -> bytes:
        """Return the page of now, or of `t` (unix seconds). The recording begins at the first that is asked for."""
        self._at = t
        try:
            return self._player.page("engine") or b""
        finally:
            self._at = None

    def _now(self) -> float:
        return self._clock() if self._at is None else self._at


def _engine(handler: Handler) -> Engine:
    engine = handler.server.address
    assert isinstance(engine, Engine)
    return engine


def _changed(change: Callable[[bytes], bytes]) -> Act:
    return lambda handler: handler.give(change(_engine(handler).page()))


def _with_new_series(handler: Handler) -> None:
    engine = _engine(handler)
    series = (b'vllm:num_requests_running{engine="%d-%d"} 1.0\n' % (engine.requests, n) for n in range(10_001))
    handler.give(engine.page() + b"".join(series))


ENGINE_ACTS: Mapping[str, Act] = {
    **OF_ANY_SERVER,
    **spoil_answers(lambda handler: _engine(handler).page()),
    "another_page": always(b"# TYPE node_load1 gauge\nnode_load1 0.5\n"),
    "every_series_twice": _changed(lambda page: page * 2),
    "long_label": _changed(lambda page: page.replace(b'model_name="', b'model_name="' + b"m" * 70_000)),
    "blank_lines": _changed(lambda page: page + b"\n" * 1_000_000),
    "comment_lines": _changed(lambda page: page + b"# a comment\n" * 150_000),
    "new_series": _with_new_series,
}


# ---- Alertmanagers ----


class Manager(Address):
    """Alertmanager that only remembers what was posted: name, severity and begin (unix seconds) of each alert."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str, float]] = []
        super().__init__(self._take)

    def _take(self, handler: Handler) -> None:
        for alert in json.loads(handler.body):
            labels, starts = alert["labels"], datetime.fromisoformat(alert["startsAt"]).timestamp()
            self.posted.append((labels["alertname"], labels["severity"], starts))
        handler.give(b"")


# ---- the store ----


class Store(Victoria):
    """VictoriaMetrics that answers any request."""

    def ask(self, path: str, body: bytes, seconds: float = STORE_SECONDS) -> tuple[int, bytes]:
        """Return status and body of a POST. Raise OSError where nothing comes."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data=body), timeout=seconds) as result:
                return result.status, result.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


class StoreDoor(Address):
    """Address at which role fleet asks: the store, while it behaves."""

    def __init__(self, store: Store) -> None:
        self.store = store
        super().__init__(pass_through)


def _answer(handler: Handler, form: bytes | None = None) -> tuple[int, bytes]:
    door = handler.server.address
    assert isinstance(door, StoreDoor)
    return door.store.ask(handler.path, handler.body if form is None else form)


def pass_through(handler: Handler) -> None:
    try:
        status, body = _answer(handler)
    except OSError:
        # A store that is away or hangs is so for the client here.
        handler.close_connection = True
        return
    handler.give(body, status, kind=JSON)


def _edited(edit: Callable[[dict[str, Any]], object]) -> Act:
    """Return an act that answers what the store does, changed."""

    def act(handler: Handler) -> None:
        answer = json.loads(_answer(handler)[1])
        edit(answer)
        handler.give(json.dumps(answer).encode(), kind=JSON)

    return act


def _take_half(answer: dict[str, Any]) -> None:
    answer["data"]["result"] = answer["data"]["result"][::2]
    answer["isPartial"] = True


def _answer_an_hour_old(handler: Handler) -> None:
    """Answer as a forgotten cache does: true once, of an hour ago."""
    form = dict(parse_qsl(handler.body.decode()))
    for name in ("time", "start", "end"):
        if name in form:
            form[name] = f"{float(form[name]) - HOUR_SECONDS:.3f}"
    status, body = _answer(handler, urlencode(form).encode())
    handler.give(body, status, kind=JSON)


def _answer_slowly(handler: Handler) -> None:
    handler.server.address.released.wait(SLOW_SECONDS)
    pass_through(handler)


def _fail(text: str) -> Act:
    body = json.dumps({"status": "error", "errorType": "execution", "error": text}).encode()
    return always(body, 422, kind=JSON)


STORE_ACTS: Mapping[str, Act] = {
    **OF_ANY_SERVER,
    **spoil_answers(lambda handler: _answer(handler)[1]),
    "503": always(b"boom\n", 503),
    "401": always(b"boom\n", 401),
    "status_error": _fail("the query cannot be executed"),
    "too_many_samples": _fail("query processing would load too many samples into memory"),
    "warns": _edited(lambda answer: answer.update(warnings=["a store of the fleet did not answer"])),
    "partial": _edited(_take_half),
    "nothing_found": _edited(lambda answer: answer["data"].update(result=[])),
    "an_hour_ago": _answer_an_hour_old,
    "slow": _answer_slowly,
}
