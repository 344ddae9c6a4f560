"""Sums over time for one GPU: busy seconds and joules, each with the seconds it covers.

Owns the arithmetic alone (no NVML, no clock): samples of the driver, totals of the driver, and plain polls are all
added to the same two pairs of counters. A value stands for the time since the one before it, but never for longer than
it can; what is not covered is left out of both counters, so their ratio stays true.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LONGEST_SAMPLE_SECONDS = 2.0
"""A driver sample covers 1/6 to 1 s, depending on the product (NVML reference, nvmlUtilization_t); twice the longest.
A wider step means that the ring buffer overflowed, or ran dry on an idle GPU: nobody knows about that time."""

LONGEST_POLL_SECONDS = 60.0
"""A polled value may stand for one missed turn or a slow one, not for an outage."""


def _stands_for(seconds: float, longest: float) -> float:
    return seconds if 0.0 < seconds <= longest else 0.0


@dataclass(slots=True, kw_only=True)
class BusySum:
    """Busy seconds of one GPU. ``at`` is always the reader's own clock in seconds; samples carry the driver's."""

    busy_seconds: float = 0.0
    covered_seconds: float = 0.0
    last_sample: int | None = None
    """Newest sample seen, microseconds on the driver's clock, which may count from boot or from 1970."""
    until: float | None = None
    """Time up to which all is accounted for, on the reader's clock."""
    polled: bool = False
    """Whether the last thing added was a poll."""

    def add_samples(self, samples: Iterable[tuple[int, float]], at: float) -> None:
        """Add driver samples (microseconds, ratio 0-1), all newer than ``last_sample``; at least one.

        A sample stands for the time since the sample before it. One that comes too long after it, or whose value is no
        ratio, is only the start of the next.
        """
        rows = sorted(samples)
        start = self._start(rows[-1][0], at)
        for stamp, ratio in rows:
            if start is not None and stamp > start and 0.0 <= ratio <= 1.0:
                self._add(ratio, _stands_for((stamp - start) / 1e6, LONGEST_SAMPLE_SECONDS))
            start = stamp if start is None else max(start, stamp)
        self.last_sample, self.until, self.polled = rows[-1][0], at, False

    def _start(self, newest: int, at: float) -> int | None:
        if not self.polled or self.until is None:
            return self.last_sample
        # The polled stretch is accounted for. The two clocks share no zero: hold the newest sample to be now.
        fence = newest - round((at - self.until) * 1e6)
        return fence if self.last_sample is None else max(fence, self.last_sample)

    def add_poll(self, ratio: float, at: float) -> None:
        """Add one polled utilisation (ratio 0-1): it stands for the time since the last addition."""
        if self.until is not None:
            self._add(ratio, _stands_for(at - self.until, LONGEST_POLL_SECONDS))
        self.until, self.polled = at, True

    def _add(self, ratio: float, seconds: float) -> None:
        self.busy_seconds += ratio * seconds
        self.covered_seconds += seconds

    def interrupt(self) -> None:
        """The GPU was out of reach: the next poll starts anew. Samples keep their place, their gap shows by itself."""
        self.until, self.polled = None, False


@dataclass(slots=True, kw_only=True)
class EnergySum:
    """Joules of one GPU. ``at`` is the reader's own clock in seconds."""

    joules: float = 0.0
    covered_seconds: float = 0.0
    last_total: int | None = None
    """The driver's total at the last addition, millijoules since the driver was loaded."""
    until: float | None = None

    def add_total(self, millijoules: int, at: float) -> None:
        """Add the increase of the driver's total. A total that fell was restarted: that stretch is not covered."""
        if self.last_total is not None and self.until is not None and millijoules >= self.last_total:
            self.joules += (millijoules - self.last_total) / 1e3
            self.covered_seconds += at - self.until
        self.last_total, self.until = millijoules, at

    def add_poll(self, watts: float, at: float) -> None:
        """Add one polled power: it stands for the time since the last addition."""
        if self.until is not None:
            seconds = _stands_for(at - self.until, LONGEST_POLL_SECONDS)
            self.joules += watts * seconds
            self.covered_seconds += seconds
        self.last_total, self.until = None, at

    def interrupt(self) -> None:
        """The GPU was out of reach and its total may have been restarted unseen: begin anew."""
        self.last_total = self.until = None
