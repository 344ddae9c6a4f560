"""Engines that play a recording for as long as they are asked, and everything they can do wrong.

Owns the stand-in engines, the one clock that they and the daemons share, and the table ACTS of what an engine does instead of
answering well. A new way to misbehave is a function of its handler and a row of ACTS. The Alertmanager that only remembers is
here too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import chaos_address as address
from chaos_address import Act, Address, Handler

from agent.demo.engines import Player, track
from agent.sources.recording import load

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "tests" / "recordings" / "steady"
OTHER_VERSION = ROOT / "tests" / "pages" / "vllm-0.11.0.prom"
OTHER_ENGINE = ROOT / "tests" / "pages" / "sglang-0.5.10.prom"


class Clock:
    """Unix seconds from `begin` on, `speed` times faster; `origin` and `begin` let another process share it."""

    def __init__(self, speed: float, begin: float | None = None) -> None:
        self.speed, self.origin = speed, time.monotonic()
        self.begin = time.time() if begin is None else begin

    def __call__(self) -> float:
        return self.begin + (time.monotonic() - self.origin) * self.speed


class Engine(Address):
    """One engine at one address. `begin` is where in its recording it is at the clock's first second."""

    def __init__(self, clock: Clock, begin: float) -> None:
        recording, problems = load(RECORDING)
        assert problems == ()
        self._clock = clock
        self._at: float | None = None
        self.player = Player((track(recording, "one", begin),), self._now)
        super().__init__(lambda handler: handler.give(self.page()))

    @property
    def url(self) -> str:
        return f"{self.place}/metrics"

    def page(self) -> bytes:
        return self.player.page("one") or b""

    def page_at(self, t: float) -> bytes:
        """As it was, or will be; the first that is asked for is where the recording begins."""
        self._at = t
        try:
            return self.page()
        finally:
            self._at = None

    def _now(self) -> float:
        return self._clock() if self._at is None else self._at


def _engine(handler: Handler) -> Engine:
    engine = handler.server.address
    assert isinstance(engine, Engine)
    return engine


def half(handler: Handler) -> None:
    """Announced and ended as if it were whole, in the middle of a line."""
    page = _engine(handler).page()
    handler.give(page[: len(page) // 2].rstrip(b"\n"))


def twice(handler: Handler) -> None:
    """Every series two times, as a page that was rotated while it was written."""
    handler.give(_engine(handler).page() * 2)


def flaps(handler: Handler) -> None:
    engine = _engine(handler)
    if engine.asked % 2:
        handler.give(b"overloaded\n", status=503)
    else:
        engine.well(handler)


def back_in_time(handler: Handler) -> None:
    """The first page of the recording, whatever was said since: every counter falls."""
    first = _engine(handler).player._tracks["one"].scrapes[0].body
    handler.give(first or b"")


def _more(lines: Callable[[int], bytes]) -> Act:
    """The page with further lines, by the number of the request."""

    def act(handler: Handler) -> None:
        engine = _engine(handler)
        handler.give(engine.page() + lines(engine.asked))

    return act


def long_label(handler: Handler) -> None:
    handler.give(_engine(handler).page().replace(b'model_name="', b'model_name="' + b"m" * 70_000))


def impossible_numbers(handler: Handler) -> None:
    """A cache that is full a billion times over, and more requests than anybody has sent."""
    page = IMPOSSIBLE_GAUGE.sub(rb"\1 1e9", _engine(handler).page())
    handler.give(IMPOSSIBLE_COUNTER.sub(rb"\1 5e18", page))


IMPOSSIBLE_GAUGE = re.compile(rb"(?m)^(vllm:\w*cache_usage_perc\{.*\}) \S+$")
IMPOSSIBLE_COUNTER = re.compile(rb"(?m)^(vllm:request_success_total\{.*\}) \S+$")

NEW_SERIES = 3_000

ACTS: Mapping[str, Act] = {
    "hangs": address.hangs,
    "hangs_mid_page": lambda handler: address.hangs_mid(handler, _engine(handler).page()),
    "trickles": lambda handler: address.trickles(handler, _engine(handler).page()),
    "half_a_page": half,
    "hangs_up_mid_page": lambda handler: address.hangs_up(handler, _engine(handler).page()),
    "garbage": address.garbage,
    "html": address.html,
    "another_page": address.says(200, b"# TYPE node_load1 gauge\nnode_load1 0.5\n"),
    "empty": address.empty,
    "error_500": address.says(500),
    "redirect": address.redirects,
    "huge": address.huge,
    "every_series_twice": twice,
    "long_label": long_label,
    "blank_lines": _more(lambda asked: b"\n" * 1_000_000),
    "comment_lines": _more(lambda asked: b"# a comment\n" * 150_000),
    "new_series": _more(
        lambda asked: b"".join(
            b'vllm:num_requests_running{engine="%d-%d"} 1.0\n' % (asked, n) for n in range(NEW_SERIES)
        )
    ),
    "impossible_numbers": impossible_numbers,
    "flaps": flaps,
    "back_in_time": back_in_time,
    "other_version": address.says(200, OTHER_VERSION.read_bytes()),
    "other_engine": address.says(200, OTHER_ENGINE.read_bytes()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One alert of one post: its labels, when it began, whether it fired by the clock that all share, and when it came."""

    labels: Mapping[str, str]
    starts: float
    firing: bool
    at: float

    @property
    def name(self) -> str:
        return self.labels["alertname"]


class Manager(Address):
    """An Alertmanager that only remembers what was posted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.posted: list[Post] = []
        super().__init__(self._take)

    def _take(self, handler: Handler) -> None:
        now = self._clock()
        for alert in json.loads(handler.body):
            starts, ends = (datetime.fromisoformat(alert[name]).timestamp() for name in ("startsAt", "endsAt"))
            self.posted.append(Post(labels=alert["labels"], starts=starts, firing=ends > now, at=now))
        handler.give(b"")
