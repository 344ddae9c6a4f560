"""The daemon under attack: `sizewatch run` with a clock that runs faster, as a process of its own.

    python benchmarks/chaos_daemon.py CONFIG SPEED ORIGIN BEGIN

Everything is the real daemon's. Its time is that of `benchmarks/chaos_engine.py`, which is so many times faster from BEGIN (unix
seconds) on, which was at ORIGIN of the time since the machine's start; what the machine's own clock jumps, it jumps as well.
What is due hourly, the look at the clock, posts and the time for which a store is left alone come as much sooner; what is
waited for an answer does not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import agent.daemon.daemon as daemon_module
from agent.alerting import delivery, service
from agent.alerting.delivery import AlertmanagerClient
from agent.config.load import load
from agent.config.store import StoreConfig
from agent.daemon import jobs
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.daemon.factory import assemble
from agent.daemon.logs import set_up
from agent.prometheus.api import StoreApi
from agent.sources import store

SHORTEST_LOOK_SECONDS = 0.2

REPLACED = ((service, "AlertDelivery"), (store, "StoreApi"))
"""Names of which the daemon makes something that waits: a module and its global."""


class Clock:
    """Unix seconds, `speed` times faster than the machine's; jumps as that does."""

    def __init__(self, speed: float, origin: float, begin: float) -> None:
        self._speed, self._origin, self._begin = speed, origin, begin
        self._offset = jobs.clock_offset()

    def __call__(self) -> float:
        jumped = jobs.clock_offset() - self._offset
        return self._begin + (time.monotonic() - self._origin) * self._speed + jumped


def made(path: Path, clock: Clock, speed: float) -> Daemon:
    """The daemon of a configuration; what is due by the hour is due by the sped hour."""
    daemon_module.CLOCK_SECONDS = max(SHORTEST_LOOK_SECONDS, 5.0 / speed)
    delivery.FIRST_RETRY_SECONDS = 1.0 / speed
    _speed_up(speed)
    loaded = load(path)
    set_up(loaded.config.logging)
    return Daemon(loaded, DaemonOptions(assemble=partial(assemble, clock=clock), clock=clock, speed=speed))


def _speed_up(speed: float) -> None:
    class SpedDelivery(delivery.AlertDelivery):
        def __init__(self, poster: AlertmanagerClient, resend_seconds: float, clock: Callable[[], float]) -> None:
            super().__init__(poster, resend_seconds / speed, clock)

    class SpedStoreApi(StoreApi):
        def __init__(self, store: StoreConfig, *, cycle_seconds: float) -> None:
            super().__init__(store, lambda: time.monotonic() * speed, cycle_seconds=cycle_seconds)

    # What the daemon makes of these names from now on.
    for (module, name), sped in zip(REPLACED, (SpedDelivery, SpedStoreApi), strict=True):
        vars(module)[name] = sped


if __name__ == "__main__":
    speed, origin, begin = map(float, sys.argv[2:])
    made(Path(sys.argv[1]), Clock(speed, origin, begin), speed).run()
