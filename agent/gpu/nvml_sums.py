"""Sums over time for one GPU: busy, throttled and joules with the covered seconds, and counts of errors.

A value counts for the time since the previous one, up to a limit. Time that is not covered is left out of every counter,
so that ratios stay correct. ``at`` is the reader's clock in seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LONGEST_SAMPLE_SECONDS = 2.0
"""Limit of a driver sample: twice the longest. It covers 1/6 to 1 s by product (NVML reference, nvmlUtilization_t)."""

LONGEST_POLL_SECONDS = 60.0
"""Limit of a polled value: a missed or slow cycle, not an outage."""


def _covered_seconds(since: float | None, at: float, longest: float = LONGEST_POLL_SECONDS) -> float:
    return at - since if since is not None and 0.0 < at - since <= longest else 0.0


@dataclass(kw_only=True)
class TimeSum:
    """Sum over time, and the seconds that it covers."""

    total: float = 0.0
    covered_seconds: float = 0.0
    until: float | None = None
    """End of the covered time."""
    polled: bool = False
    """True if the last addition was a poll."""

    def add_poll(self, rate: float, at: float) -> None:
        """Add a polled rate per second for the time since the last addition."""
        self._add(rate, _covered_seconds(self.until, at))
        self.until, self.polled = at, True

    def _add(self, rate: float, seconds: float) -> None:
        self.total += rate * seconds
        self.covered_seconds += seconds

    def interrupt(self) -> None:
        """Start again: the time until the next addition is not covered."""
        self.until = None


@dataclass(kw_only=True)
class BusySum(TimeSum):
    """Busy seconds of one GPU. Driver samples keep their place over an interruption: it is visible in their times."""

    last_sample: int | None = None
    """Newest sample in microseconds of the driver's clock, which counts from boot or from 1970."""

    def add_samples(self, samples: Iterable[tuple[int, float]], at: float) -> None:
        """Add one or more driver samples (microseconds, ratio 0-1), all newer than ``last_sample``.

        A sample counts for the time since the previous one. A late or invalid sample is only the start of the next.
        """
        rows = sorted(samples)
        start = self.last_sample
        if self.polled and self.until is not None:
            # The polled time is covered. The clocks have no common zero: take the newest sample as now.
            fence = rows[-1][0] - round((at - self.until) * 1e6)
            start = fence if start is None else max(fence, start)
        for stamp, ratio in rows:
            if start is not None and 0.0 <= ratio <= 1.0:
                self._add(ratio, _covered_seconds(0.0, (stamp - start) / 1e6, LONGEST_SAMPLE_SECONDS))
            start = stamp if start is None else max(start, stamp)
        self.last_sample, self.until, self.polled = rows[-1][0], at, False


@dataclass(kw_only=True)
class EnergySum(TimeSum):
    """Joules of one GPU."""

    last_total: int = 0
    """Driver's last total: millijoules since the driver was loaded."""

    def add_total(self, millijoules: int, at: float) -> None:
        """Add the increase of the driver's total. Time after a poll or a total that fell, a restart, is not covered."""
        if self.until is not None and not self.polled and millijoules >= self.last_total:
            self.total += (millijoules - self.last_total) / 1e3
            self.covered_seconds += at - self.until
        self.last_total, self.until, self.polled = millijoules, at, False


@dataclass(kw_only=True)
class ThrottleSum:
    """Throttled seconds by cause."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by cause, also of those that the last addition lacked."""
    covered_seconds: float = 0.0
    known: frozenset[str] = frozenset()
    """Causes of the last addition."""
    last_totals: Mapping[str, int] = field(default_factory=dict)
    until: float | None = None

    def add(self, totals: Mapping[str, int], active: Mapping[str, bool], at: float) -> None:
        """Add the increase of the driver's totals (nanoseconds by cause) and the polled causes (acting or not).

        All causes share the covered seconds. A total that fell, an outage or another set of causes covers no time.
        """
        seconds = _covered_seconds(self.until, at)
        known = frozenset({*totals, *active})
        goes_on = totals.keys() == self.last_totals.keys() and known == self.known
        if seconds and goes_on and all(total >= self.last_totals[cause] for cause, total in totals.items()):
            for cause, total in totals.items():
                # The driver counts in tenths of a second: an increase may include a part of the previous cycle.
                self.seconds[cause] += min((total - self.last_totals[cause]) / 1e9, seconds)
            for cause, is_acting in active.items():
                self.seconds[cause] += seconds if is_acting else 0.0
            self.covered_seconds += seconds
        self.seconds = dict.fromkeys(known, 0.0) | self.seconds
        self.known, self.last_totals, self.until = known, dict(totals), at


@dataclass(kw_only=True)
class CountSum:
    """Errors of one GPU since the start of the reader, from a driver's total that may be reset."""

    count: int = 0
    last_total: int | None = None
    source: str = ""

    def add_total(self, total: int, source: str) -> None:
        """Add the increase, also over an outage. A total that fell was reset to zero; a new source adds nothing."""
        if self.last_total is not None and source == self.source:
            self.count += total - self.last_total if total >= self.last_total else total
        self.last_total, self.source = total, source
