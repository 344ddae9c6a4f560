"""Durations: parser and formatter (500ms, 15s, 5m, 1h, 7d, 13w), and delays after failures."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

UNITS_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604_800.0}
PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,6})?(ms|s|m|h|d|w)$"
EXPECTED = "a number with its unit, such as 500ms, 15s, 5m, 1h, 7d or 13w"


def parse_duration(text: str) -> float:
    """Return the duration in seconds. Raise ValueError for anything but a number with one unit."""
    duration = re.fullmatch(PATTERN.strip("^$"), text, re.ASCII)
    if duration is None:
        raise ValueError(f"must be {EXPECTED}, not {text[:40]!a}")
    return round(float(text.removesuffix(duration[2])) * UNITS_SECONDS[duration[2]], 6)


def duration_text(seconds: float) -> str:
    """Format seconds in the largest unit up to days without a fraction, and below one second in milliseconds."""
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % UNITS_SECONDS[unit] == 0:
            return f"{seconds / UNITS_SECONDS[unit]:.0f}{unit}"
    return f"{seconds * 1000:g}ms"


def retry_delay(failures: int, first: float, longest: float) -> float:
    """Return the delay after `failures` (1 or more) in a row: `first`, doubled with each failure up to `longest`."""
    return min(longest, first * 2.0 ** min(failures - 1, 16))


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures in a row, and the time before which no attempt is made, of any clock.

    The default is in cycles: after the first two failures every other cycle is skipped, so a recovered target is read
    within two cycles. A cycle may start half an interval early.
    """

    first: float = 0.45
    longest: float = 1.5
    failures: int = 0
    skip_until: float = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self.skip_until

    def record_failure(self, now: float) -> Backoff:
        delay = retry_delay(self.failures + 1, self.first, self.longest)
        return replace(self, failures=self.failures + 1, skip_until=now + delay)

    def record_success(self) -> Backoff:
        return Backoff(self.first, self.longest)
