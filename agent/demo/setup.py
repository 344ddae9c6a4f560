"""Recorded demo: its recordings, tiers and faster clock. The history is temporary."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from agent.demo.engines import Player, StandInGpus, track
from agent.sources.recording import load

HERE = Path(__file__).parent
PLAN = HERE / "plan.yaml"


class DemoTier(NamedTuple):
    """One tier of the demo: the recording that plays it, the second of it that comes first, and what happens in it."""

    tier: str
    recording: str
    begin: float
    says: str


CAST = (
    DemoTier("quiet", "steady_quiet", 0.0, "steady load on a quiet machine"),
    DemoTier("noisy", "diurnal", 30.0, "load comes and goes on a machine that others use too"),
    DemoTier("cascade", "kv_cascade", 46.0, "requests grow longer until the KV cache is full"),
)

FULL_AT_RUNNING = 12.0
"""Running requests at which a stand-in GPU is taken as fully busy."""

_RUNNING = re.compile(rb"^vllm:num_requests_running\{.*\} (\S+)$", re.MULTILINE)


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
        recorded = ((part, load(HERE / "recordings" / part.recording)[0]) for part in CAST)
        self.player = Player(tuple(track(pages, part.tier, part.begin) for part, pages in recorded), clock)
        self.gpus = StandInGpus({part.tier: partial(self._busy, part.tier) for part in CAST})

    def _busy(self, tier: str) -> float:
        running = _RUNNING.search(self.player.page(tier) or b"")
        return min(1.0, float(running[1]) / FULL_AT_RUNNING) if running else 0.0
