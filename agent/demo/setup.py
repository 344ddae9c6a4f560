"""Recorded demo: its recordings, tiers and faster clock. The history is temporary."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.demo.engines import Player, RecordedTrack, StandInGpus, track
from agent.errors import ScrapeError
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load

HERE = Path(__file__).parent
PLAN = HERE / "plan.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTier:
    """One tier of the demo: the recording that plays it, the second of it that comes first, and what happens in it."""

    tier: str
    recording: str
    begin: float
    says: str


CAST = (
    DemoTier(tier="quiet", recording="steady_quiet", begin=0.0, says="steady load on a quiet machine"),
    DemoTier(
        tier="noisy", recording="diurnal", begin=30.0, says="load comes and goes on a machine that others use too"
    ),
    DemoTier(
        tier="cascade", recording="kv_cascade", begin=46.0, says="requests grow longer until the KV cache is full"
    ),
)

FULL_AT_RUNNING = 12.0
"""Running requests at which a stand-in GPU is taken as fully busy."""


class Clock:
    """Unix seconds that run `speed` times faster from the moment of its making, which is now or `begin`."""

    def __init__(self, speed: float, begin: float | None = None) -> None:
        self._speed = speed
        self._real, self._begin = time.monotonic(), time.time() if begin is None else begin

    def __call__(self) -> float:
        return self._begin + (time.monotonic() - self._real) * self._speed


class DemoSetup:
    """The demo's world: a player with every tier, and GPUs that follow it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.player = Player(tuple(_track(part) for part in CAST), clock)
        self.gpus = StandInGpus({part.tier: self._busy(part.tier) for part in CAST})

    def _busy(self, tier: str) -> Callable[[], float]:
        reader = PageReader()

        def share() -> float:
            body = self.player.page(tier)
            try:
                running = reader.read(body, 0.0).gauges.get("requests_running", 0.0) if body else 0.0
            except ScrapeError:
                return 0.0
            return min(1.0, running / FULL_AT_RUNNING)

        return share


def _track(part: DemoTier) -> RecordedTrack:
    recording, problems = load(HERE / "recordings" / part.recording)
    if problems:
        raise ValueError(f"the demo's recording {part.recording} is not whole: {problems}")
    return track(recording, part.tier, part.begin)
