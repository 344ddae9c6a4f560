"""The daemon of the soak: the real one on a clock that is 15 s further with each cycle. `soak.py` begins it.

What differs from `sizewatch run`: the clock, cycles as fast as they can be made, forecasts every ten seconds of the machine's
time (each takes seconds, whatever the clock says), and two hours of findings in memory instead of a day.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from functools import partial
from pathlib import Path

import common  # noqa: F401 - finds the project
from soak import CYCLE_SECONDS, WEEK_CYCLES

from agent.config.load import load
from agent.daemon import jobs
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.daemon.factory import assemble
from agent.daemon.logs import set_up
from agent.pipeline import runtime_state

SPEED = 5_000.0
"""A cycle is due every 3 ms: as soon as the one before it is over."""

FORECAST_SECONDS, UPKEEP_SECONDS = 10.0, 2.5
"""Of the machine; upkeep comes after some hours of the daemon's clock."""

REMEMBERED_SECONDS = 7_200.0
LOOK_CYCLES = 60
"""Cycles between two counts of Python's blocks. A generation of pods is a multiple of it."""


class Clock:
    """Unix seconds that go on with each cycle, so that a week ends now. Writes Python's blocks to a file now and then."""

    def __init__(self, blocks: Path) -> None:
        self.now = time.time() - WEEK_CYCLES * CYCLE_SECONDS
        self._blocks = blocks

    def __call__(self) -> float:
        return self.now

    def go_on(self, daemon: Daemon) -> None:
        self.now += CYCLE_SECONDS
        if daemon.counts.cycles % LOOK_CYCLES == 0:
            gc.collect()
            fresh = self._blocks.with_suffix(".new")
            fresh.write_text(f"{daemon.counts.cycles} {sys.getallocatedblocks()}")
            fresh.replace(self._blocks)


def main(folder: Path) -> None:
    clock = Clock(folder / "blocks")
    runtime_state.DAY_SECONDS = REMEMBERED_SECONDS
    jobs.SECONDS |= {jobs.FORECAST: FORECAST_SECONDS * SPEED, jobs.UPKEEP: UPKEEP_SECONDS * SPEED}
    loaded = load(folder / "sizewatch.yaml")
    set_up(loaded.config.logging)
    # Cycles are due sooner than they can be over, on purpose, and each that is left out would be a line.
    logging.getLogger("agent.daemon.daemon").addFilter(lambda record: "left out" not in record.getMessage())
    options = DaemonOptions(
        assemble=partial(assemble, clock=clock), clock=clock, speed=SPEED, on_cycle=clock.go_on
    )  # fmt: skip
    Daemon(loaded, options).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
