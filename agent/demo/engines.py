"""Recorded engines over HTTP, for the demo: recordings, tiers, clock. One that ends begins again, as restarted."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent.http_server.server import ThreadedServer
from agent.sources.recording import Recording, Scrape, load, scrapes

_START_TIMES = re.compile(rb"^(process_start_time_seconds|vllm:prompt_tokens_created\{[^}]*\}) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrack:
    """One recorded target: its scrapes in order, and where in it the demo begins (seconds after its first scrape)."""

    name: str
    scrapes: tuple[Scrape, ...]
    begin: float

    def scrape_at(self, elapsed: float) -> tuple[Scrape, float]:
        """The scrape that stood at `elapsed` seconds of the demo, and by how much its times have moved."""
        first, last = self.scrapes[0].t, self.scrapes[-1].t
        rounds, place = divmod(self.begin + elapsed, last - first)
        scrape = self.scrapes[bisect_right(self.scrapes, first + place, key=lambda scrape: scrape.t) - 1]
        return scrape, rounds * (last - first)


def track(recording: Recording, name: str, begin: float) -> RecordedTrack:
    return RecordedTrack(name=name, scrapes=tuple(s for s in scrapes(recording, []) if s.target == 0), begin=begin)


class Player:
    """Server of `/NAME/metrics` on loopback, each track at the demo's time, which begins with the first page asked for."""

    def __init__(self, tracks: tuple[RecordedTrack, ...], clock: Callable[[], float]) -> None:
        self._tracks = {t.name: t for t in tracks}
        self._clock = clock
        self._begin: float | None = None
        routes = [Route(f"/{name}/metrics", partial(self._respond, name)) for name in self._tracks]
        self._server = ThreadedServer(Starlette(routes=routes), "127.0.0.1:0")

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.port}/{name}/metrics"

    def stop(self) -> None:
        self._server.stop()

    def _respond(self, name: str, _: Request) -> Response:
        body = self.page(name)
        return Response(status_code=503) if body is None else Response(body, media_type="text/plain; version=0.0.4")

    def page(self, name: str) -> bytes | None:
        """The page at this moment; None where the recording holds a failed scrape."""
        now = self._clock()
        self._begin = now if self._begin is None else self._begin
        scrape, moved = self._tracks[name].scrape_at(now - self._begin)
        if scrape.body is None or not moved:
            return scrape.body
        return _START_TIMES.sub(lambda match: match[1] + b" %r" % (float(match[2]) + moved), scrape.body)


HERE = Path(__file__).parent
PLAN = HERE / "plan.yaml"


class DemoTier(NamedTuple):
    """Tier of the demo: its recording, the second of it that comes first, and what happens in it."""

    tier: str
    recording: str
    begin: float
    says: str


CAST = (
    DemoTier("quiet", "steady_quiet", 0.0, "steady load on a quiet machine"),
    DemoTier("noisy", "diurnal", 30.0, "load comes and goes on a machine that others use too"),
    DemoTier("cascade", "kv_cascade", 46.0, "requests grow longer until the KV cache is full"),
)


class Clock:
    """Unix seconds that run `speed` times faster from the moment of its making, which is now or `begin`."""

    def __init__(self, speed: float, begin: float | None = None) -> None:
        self._speed = speed
        self._real, self._begin = time.monotonic(), time.time() if begin is None else begin

    def __call__(self) -> float:
        return self._begin + (time.monotonic() - self._real) * self._speed


def build_player(clock: Callable[[], float]) -> Player:
    recorded = ((part, load(HERE / "recordings" / part.recording)[0]) for part in CAST)
    return Player(tuple(track(pages, part.tier, part.begin) for part, pages in recorded), clock)
