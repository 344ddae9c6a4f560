"""The garbage collector and records: a fleet and a report have millions of them, without cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def collect_rarely() -> None:
    """Let the collector look at 20,000 new objects at a time, hardly ever at older ones: it saves CPU."""
    gc.set_threshold(20_000, 1_000, 100)


@contextmanager
def collector_resting() -> Iterator[None]:
    """Disable the garbage collector: it would search a million objects without cycles, at half of the CPU."""
    working = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if working:
            gc.enable()
