"""The real daemon with a clock that runs faster, as a process of its own: under attack for `chaos`, for a week for `soak`.

    python benchmarks/fast_daemon.py CONFIG SPEED BEGIN ORIGIN
    python benchmarks/fast_daemon.py FOLDER

Under attack its clock is `chaos_servers.Clock`. Posts, the look at mounted files and the time for which a store is left alone
come sooner by the same factor. Timeouts stay seconds of the machine. For `soak` the clock is 15 s further with each cycle,
cycles come as fast as they can be made, forecasts every ten seconds of the machine, and two hours of findings stay in memory.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import common  # noqa: F401 - finds the project
from chaos_servers import Clock
from soak import CYCLE_SECONDS, WEEK_CYCLES
from waiting import StandingClock

import agent.daemon.daemon as daemon_module
from agent.alerting import delivery, service
from agent.config.load import load
from agent.config.store import StoreConfig
from agent.daemon import jobs
from agent.daemon.assembly import assemble
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.daemon.logs import set_up
from agent.pipeline import runtime_state
from agent.prometheus.api import StoreApi
from agent.sources import store

SHORTEST_LOOK_SECONDS = 0.2
SOAK_SPEED = 5_000.0
"""A cycle is due every 3 ms: as soon as the one before it is over."""

FORECAST_SECONDS, UPKEEP_SECONDS = 10.0, 2.5
"""Of the machine; upkeep comes after some hours of the daemon's clock."""

REMEMBERED_SECONDS = 7_200.0
LOOK_CYCLES = 60
"""Cycles between two counts of Python's blocks. A generation of pods is a multiple of it."""


def build_daemon(path: Path, clock: Clock) -> Daemon:
    """Return the daemon of a configuration on this clock."""
    speed, real = clock.speed, delivery.AlertDelivery
    daemon_module.CLOCK_SECONDS = max(SHORTEST_LOOK_SECONDS, 5.0 / speed)
    delivery.FIRST_RETRY_SECONDS = 1.0 / speed

    class FastStoreApi(StoreApi):
        def __init__(self, config: StoreConfig, *, cycle_seconds: float) -> None:
            super().__init__(config, lambda: time.monotonic() * speed, cycle_seconds=cycle_seconds)

    # The daemon makes its objects by these names from now on.
    vars(service)["AlertDelivery"] = lambda client, seconds, clock: real(client, seconds / speed, clock)
    vars(store)["StoreApi"] = FastStoreApi
    return _assemble(path, clock, speed, lambda _: None)


def _assemble(path: Path, clock: Callable[[], float], speed: float, on_cycle: Callable[[Daemon], None]) -> Daemon:
    loaded = load(path)
    set_up(loaded.config.logging)
    parts = partial(assemble, clock=clock)
    return Daemon(loaded, DaemonOptions(assemble=parts, clock=clock, speed=speed, on_cycle=on_cycle))


class CycleClock(StandingClock):
    """Unix seconds that go on with each cycle, so that a week ends now. Writes Python's blocks to a file now and then."""

    def __init__(self, blocks: Path) -> None:
        super().__init__(time.time() - WEEK_CYCLES * CYCLE_SECONDS)
        self._blocks = blocks

    def go_on(self, daemon: Daemon) -> None:
        self.now += CYCLE_SECONDS
        if daemon.counts.cycles % LOOK_CYCLES == 0:
            gc.collect()
            fresh = self._blocks.with_suffix(".new")
            fresh.write_text(f"{daemon.counts.cycles} {sys.getallocatedblocks()}")
            fresh.replace(self._blocks)


def soak(folder: Path) -> None:
    """Run the daemon of the soak until it is ended."""
    clock = CycleClock(folder / "blocks")
    runtime_state.DAY_SECONDS = REMEMBERED_SECONDS
    jobs.SECONDS |= {jobs.FORECAST: FORECAST_SECONDS * SOAK_SPEED, jobs.UPKEEP: UPKEEP_SECONDS * SOAK_SPEED}
    daemon = _assemble(folder / "sizewatch.yaml", clock, SOAK_SPEED, clock.go_on)
    # Cycles are due sooner than they can be over, on purpose, and each that is left out would be a line.
    logging.getLogger("agent.daemon.daemon").addFilter(lambda record: "left out" not in record.getMessage())
    daemon.run()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        soak(Path(sys.argv[1]))
    else:
        build_daemon(Path(sys.argv[1]), Clock(*map(float, sys.argv[2:]))).run()
