"""Recorded engines over HTTP, and stand-in GPUs whose load follows them.

A recording that ends begins again as a restarted engine, with moved start times.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent.http_server.server import ThreadedServer
from agent.sources.recording import Recording, Scrape, scrapes
from rules.telemetry.snapshots import GpuReadout


class PageServer:
    """Server of `/NAME/metrics` on loopback. `page` is called in several threads; None is 503, an unknown name is 404."""

    def __init__(self, names: Container[str], page: Callable[[str], bytes | None], port: int = 0) -> None:
        self._names, self._page = names, page
        self._server = ThreadedServer()
        self._port = self._server.bind(Starlette(routes=[Route("/{name}/metrics", self._respond)]), ("127.0.0.1", port))

    def start(self) -> None:
        self._server.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._port}/{name}/metrics"

    def stop(self) -> None:
        """Close the port, also if the server was never started."""
        self._server.stop()

    def _respond(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._names:
            return Response(status_code=404)
        body = self._page(name)
        headers = {"Content-Type": "text/plain; version=0.0.4"}
        return Response(status_code=503) if body is None else Response(body, headers=headers)


_START_TIMES = re.compile(rb"^(process_start_time_seconds|vllm:prompt_tokens_created\{[^}]*\}) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrack:
    """One recorded target: its scrapes in order, and where in it the demo begins (seconds after its first scrape)."""

    name: str
    scrapes: tuple[Scrape, ...]
    begin: float

    def round(self, elapsed: float) -> int:
        """Return how often the recording has begun anew by then."""
        return int((self.begin + elapsed) // (self.scrapes[-1].t - self.scrapes[0].t))

    def scrape_at(self, elapsed: float) -> tuple[Scrape, float]:
        """The scrape that stood at `elapsed` seconds of the demo, and by how much its times have moved."""
        first, last = self.scrapes[0].t, self.scrapes[-1].t
        length = last - first
        moved = self.round(elapsed) * length
        place = first + self.begin + elapsed - moved
        return self.scrapes[bisect_right(self.scrapes, place, key=lambda scrape: scrape.t) - 1], moved


def track(recording: Recording, name: str, begin: float) -> RecordedTrack:
    """The first target of a recording as a track. The demo's recordings are whole: a broken one raises ValueError."""
    problems: list[str] = []
    found = tuple(s for s in scrapes(recording, problems) if s.target == 0)
    if problems or len(found) < 2:
        raise ValueError(f"{recording.folder} is not a whole recording: {problems}")
    return RecordedTrack(name=name, scrapes=found, begin=begin)


class Player(PageServer):
    """Serves `/NAME/metrics` of each track at the demo's time, which begins with the first page that is asked for."""

    def __init__(self, tracks: tuple[RecordedTrack, ...], clock: Callable[[], float]) -> None:
        self._tracks = {t.name: t for t in tracks}
        self._clock = clock
        self._begin: float | None = None
        super().__init__(self._tracks, self.page)

    def rounds(self) -> dict[str, int]:
        """Return how often each recording has begun anew."""
        elapsed = self._elapsed()
        return {name: track.round(elapsed) for name, track in self._tracks.items()}

    def page(self, name: str) -> bytes | None:
        """The page at this moment; None where the recording holds a failed scrape."""
        scrape, moved = self._tracks[name].scrape_at(self._elapsed())
        if scrape.body is None or not moved:
            return scrape.body
        return _START_TIMES.sub(lambda found: found[1] + b" %r" % (float(found[2]) + moved), scrape.body)

    def _elapsed(self) -> float:
        now = self._clock()
        self._begin = now if self._begin is None else self._begin
        return now - self._begin


PRODUCT = "stand-in GPU (simulated)"
MEMORY_BYTES = 80e9
IDLE_WATTS, FULL_WATTS = 90.0, 650.0
GPU_SUMS = ("gpu_busy_seconds", "gpu_busy_covered_seconds", "gpu_energy_joules", "gpu_energy_covered_seconds")


class StandInGpus:
    """GPUs by name, of a tier each in the recorded demo. `busy` tells how busy each one's engine is now, 0 to 1; `products`
    what they say they are, where that is not PRODUCT.
    """

    def __init__(self, busy: Mapping[str, Callable[[], float]], products: Mapping[str, str] | None = None) -> None:
        self._busy = busy
        self._products = products or {}
        self._last: float | None = None
        self._sums = {name: dict.fromkeys(GPU_SUMS, 0.0) for name in busy}

    def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
        """Readouts at `now` (unix seconds)."""
        dt = 0.0 if self._last is None else max(0.0, now - self._last)
        self._last = now
        return tuple(self._readout(i, name, now, dt) for i, name in enumerate(self._busy)), ()

    def _readout(self, index: int, name: str, now: float, dt: float) -> GpuReadout:
        share, sums = self._busy[name](), self._sums[name]
        sums["gpu_busy_seconds"] += share * dt
        sums["gpu_energy_joules"] += (IDLE_WATTS + share * (FULL_WATTS - IDLE_WATTS)) * dt
        for covered in ("gpu_busy_covered_seconds", "gpu_energy_covered_seconds"):
            sums[covered] += dt
        gauges = {
            "gpu_memory_used_bytes": 0.88 * MEMORY_BYTES,
            "gpu_memory_total_bytes": MEMORY_BYTES,
            "gpu_temperature_celsius": 35 + 35 * share,
            "gpu_power_limit_watts": 700.0,
        }
        return GpuReadout(
            t=now,
            gpu=f"stand-in-{name}",
            index=index,
            product=self._products.get(name, PRODUCT),
            counters=dict(sums),
            gauges=gauges,
        )

    def close(self) -> None:
        """Nothing is held."""
