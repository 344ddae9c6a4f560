"""Waiting for conditions, never for time: how long tests wait at most, and ports that nobody else is given.

A limit of time in a test says only when something hangs: `CEILING_SECONDS` everywhere, far above what the slowest machine
needs, since nobody waits for it while all is well.
"""

import itertools
import os
import socket
import time
from collections.abc import Callable
from typing import Any

CEILING_SECONDS = 120.0
"""So long is waited for what has to come."""

PORTS = range(10_000, 32_000)
"""Below those that systems give to outgoing connections (Linux from 32768, others from 49152)."""

_reserved: list[socket.socket] = []
_next = itertools.count(os.getpid() * 7919)


class StandingClock:
    """Seconds that stand until a test moves them."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def wait_for(what: Callable[[], Any], seconds: float = CEILING_SECONDS, every: float = 0.01) -> Any:
    """What the function gives as soon as that is true, or at the end of so many seconds; asked `every` so many."""
    deadline = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(every)
    return found


def free_port() -> int:
    """A port of loopback that nobody listens on and that no other test is given while this process lives.

    The same number is kept as a UDP port, which stands in the way of nobody but others who look for a free one here.
    """
    for number in _next:
        port = PORTS[number % len(PORTS)]
        kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            kept.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                _reserved.append(kept)
                return port
        except OSError:
            kept.close()
    raise AssertionError("there is always a next number")
