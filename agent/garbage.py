"""The garbage collector and records: a fleet and a report have millions of them, without cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def collect_rarely() -> None:
    """Let the garbage collector look at 50,000 new objects at a time. Records have no cycles.

    By default it took a seventh of a report's time, and a tenth of a turn of role fleet.
    """
    gc.set_threshold(50_000, 20, 100)


@contextmanager
def collector_resting() -> Iterator[None]:
    """Disable the garbage collector. It would search a million new objects without cycles, at half of the CPU."""
    working = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if working:
            gc.enable()
