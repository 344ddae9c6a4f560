"""Recorded demo: its recordings, tiers and faster clock. The history is temporary."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent.demo.engines import Player, track
from agent.sources.recording import load

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
    """Return the server of every tier's recording."""
    recorded = ((part, load(HERE / "recordings" / part.recording)[0]) for part in CAST)
    return Player(tuple(track(pages, part.tier, part.begin) for part, pages in recorded), clock)
