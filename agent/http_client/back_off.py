"""Delays after failures: a doubling delay in seconds, and skipped cycles of a failing target."""

from __future__ import annotations

from dataclasses import dataclass

_SKIPPED_CYCLES = (0, 0, 1)


def retry_delay(failures: int, first: float, longest: float) -> float:
    """Return the delay after `failures` (1 or more) in a row: `first`, doubled with each failure up to `longest`."""
    return min(longest, first * 2.0 ** min(failures - 1, 16))


@dataclass(frozen=True, slots=True)
class Backoff:
    """Skipped cycles of a failing target: none after the first two failures, then one after each.

    Every other cycle is thus spared a timeout, and a recovered target is read within two cycles. `now` is the start of
    a cycle in seconds of any clock; `interval` is the time between cycles.
    """

    failures: int = 0
    skip_until: float = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self.skip_until

    def record_failure(self, now: float, interval: float) -> Backoff:
        skipped = _SKIPPED_CYCLES[min(self.failures, len(_SKIPPED_CYCLES) - 1)]
        # Half a cycle of tolerance: a cycle may start a little early or late.
        return Backoff(self.failures + 1, now + (skipped + 0.5) * interval)
