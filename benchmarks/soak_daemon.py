"""The daemon of the soak: the real one on a clock that is 15 s further with each turn. `soak.py` begins it.

What differs from `sizewatch run`: the clock, turns as fast as they can be made, forecasts every ten seconds of the machine's time
(each takes seconds, whatever the clock says), and two hours of episodes in memory instead of a day.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
import tracemalloc
from pathlib import Path
from threading import Thread

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import soak_memory
from soak import TURN_SECONDS, WEEK_TURNS

from agent.config.load import load
from agent.daemon import jobs
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.daemon.factory import assemble
from agent.daemon.logs import set_up
from agent.pipeline import runtime_state

SPEED = 5_000.0
"""A turn is due every 3 ms: as soon as the one before it is over."""

FORECAST_EVERY_SECONDS = 10.0
UPKEEP_EVERY_SECONDS = 2.5
"""Some hours of the daemon's clock."""

REMEMBERED_SECONDS = 7_200.0
"""Instead of the day of episodes and events that is in memory: growing is over when that is."""

TURNS_A_LOOK = 60
"""A generation of pods is a multiple of it."""

FRAMES = 8
TOLD = 15


class Clock:
    """Unix seconds that go on with each turn, so that a week ends now; what is held in memory is told now and then."""

    def __init__(self, held: Path) -> None:
        self.now = time.time() - WEEK_TURNS * TURN_SECONDS
        self._held = held

    def __call__(self) -> float:
        return self.now

    def on(self, daemon: Daemon) -> None:
        self.now += TURN_SECONDS
        if daemon.counts.cycles % TURNS_A_LOOK == 0:
            gc.collect()
            soak_memory.write(self._held, daemon.counts.cycles)


def main() -> int:
    folder = Path(sys.argv[1])
    clock = Clock(folder / "held")
    runtime_state.DAY_SECONDS = REMEMBERED_SECONDS
    jobs.SECONDS |= {jobs.FORECAST: FORECAST_EVERY_SECONDS * SPEED, jobs.UPKEEP: UPKEEP_EVERY_SECONDS * SPEED}
    if "--trace" in sys.argv:
        tracemalloc.start(FRAMES)
    loaded = load(folder / "sizewatch.yaml")
    set_up(loaded.config.logging)
    # Turns are due sooner than they can be over, on purpose, and each that is left out would be a line.
    logging.getLogger("agent.daemon.daemon").addFilter(lambda record: "left out" not in record.getMessage())
    surroundings = DaemonOptions(
        assemble=lambda loaded, before: assemble(loaded, before, clock=clock),
        clock=clock,
        speed=SPEED,
        on_cycle=clock.on,
    )
    daemon = Daemon(loaded, surroundings)
    if "--trace" in sys.argv:
        Thread(target=trace, args=(daemon, folder / "trace"), daemon=True).start()
    daemon.run()
    return 0


def trace(daemon: Daemon, into: Path) -> None:
    """What grew between two looks, the second as many turns after the first as that was after the start; then again."""
    at, before = 1_500, None
    while True:
        while daemon.counts.cycles < at:
            time.sleep(0.2)
        now = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(False, tracemalloc.__file__),))
        if before is not None:
            grown = now.compare_to(before, "lineno")
            whole = sum(one.size_diff for one in grown)
            lines = [f"turns {at // 2} to {at}: {whole / 1e6:+.2f} MB of traced memory; most of it:"]
            lines += [f"  {one.size_diff / 1e3:+9.1f} kB  {one.traceback}" for one in grown[:TOLD]]
            into.write_text("\n".join(lines))
        at, before = 2 * at, now


if __name__ == "__main__":
    raise SystemExit(main())
