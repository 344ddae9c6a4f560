"""Daemon under attack: `sizewatch run` with a clock that runs faster, as a process of its own.

    python benchmarks/chaos_daemon.py CONFIG SPEED BEGIN ORIGIN

Everything is the real daemon's. Its clock is `chaos_servers.Clock`. Hourly work, the look at mounted files, posts and the time
for which a store is left alone come sooner by the same factor. Timeouts stay seconds of the machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import common  # noqa: F401 - finds the project
from chaos_servers import Clock

import agent.daemon.daemon as daemon_module
from agent.alerting import delivery, service
from agent.config.load import load
from agent.config.store import StoreConfig
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.daemon.factory import assemble
from agent.daemon.logs import set_up
from agent.prometheus.api import StoreApi
from agent.sources import store

SHORTEST_LOOK_SECONDS = 0.2


def build_daemon(path: Path, clock: Clock) -> Daemon:
    """Return the daemon of a configuration on this clock."""
    daemon_module.CLOCK_SECONDS = max(SHORTEST_LOOK_SECONDS, 5.0 / clock.speed)
    delivery.FIRST_RETRY_SECONDS = 1.0 / clock.speed
    _speed_up(clock.speed)
    loaded = load(path)
    set_up(loaded.config.logging)
    return Daemon(loaded, DaemonOptions(assemble=partial(assemble, clock=clock), clock=clock, speed=clock.speed))


def _speed_up(speed: float) -> None:
    class FastDelivery(delivery.AlertDelivery):
        def __init__(
            self, poster: delivery.AlertmanagerClient, resend_seconds: float, clock: Callable[[], float]
        ) -> None:
            super().__init__(poster, resend_seconds / speed, clock)

    class FastStoreApi(StoreApi):
        def __init__(self, config: StoreConfig, *, cycle_seconds: float) -> None:
            super().__init__(config, lambda: time.monotonic() * speed, cycle_seconds=cycle_seconds)

    # The daemon makes its objects by these names from now on.
    vars(service)["AlertDelivery"] = FastDelivery
    vars(store)["StoreApi"] = FastStoreApi


if __name__ == "__main__":
    build_daemon(Path(sys.argv[1]), Clock(*map(float, sys.argv[2:]))).run()
