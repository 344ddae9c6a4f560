"""Sums over time for one GPU: busy, throttled, joules, each with the seconds it covers; and counts of errors.

Owns the arithmetic alone (no NVML, no clock): samples of the driver, totals of the driver, and plain polls are all
added to the same counters. A value stands for the time since the one before it, but never for longer than it can; what
is not covered is left out of every counter, so their ratio stays true.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

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


@dataclass(slots=True, kw_only=True)
class ThrottleSum:
    """Seconds in which the clocks were held down, by cause. ``at`` is the reader's own clock in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By cause, also of those that the last addition did not know."""
    covered_seconds: float = 0.0
    known: frozenset[str] = frozenset()
    """Causes that the last addition knew."""
    last_totals: Mapping[str, int] = field(default_factory=dict)
    until: float | None = None

    def add(self, totals: Mapping[str, int], active: Mapping[str, bool], at: float) -> None:
        """Add the increase of the driver's totals (nanoseconds by cause) and the polled causes (acting or not).

        All causes share the covered seconds: a stretch for which one of them cannot be told (a total that fell, a poll
        that would have to stand for an outage, another set of causes than before) is covered for none.
        """
        seconds = _stands_for(at - self.until, LONGEST_POLL_SECONDS) if self.until is not None else 0.0
        known = frozenset({*totals, *active})
        goes_on = totals.keys() == self.last_totals.keys() and known == self.known
        if seconds and goes_on and all(total >= self.last_totals[cause] for cause, total in totals.items()):
            for cause, total in totals.items():
                # The driver steps in tenths of a second: an increase may reach into the turn before.
                self.seconds[cause] += min((total - self.last_totals[cause]) / 1e9, seconds)
            for cause in (cause for cause, acting in active.items() if acting):
                self.seconds[cause] += seconds
            self.covered_seconds += seconds
        self.seconds.update({cause: 0.0 for cause in known if cause not in self.seconds})
        self.known, self.last_totals, self.until = known, dict(totals), at

    def interrupt(self) -> None:
        """The GPU was out of reach: begin anew."""
        self.until = None


@dataclass(slots=True, kw_only=True)
class CountSum:
    """Errors of one GPU since the reader began, from a total of the driver that may be set back."""

    count: int = 0
    last_total: int | None = None
    source: str = ""

    def add_total(self, total: int, source: str) -> None:
        """Add the increase. A total that fell began anew from zero; another source's total is only a new beginning.

        Time without the GPU does not matter: what the total gained meanwhile are errors all the same.
        """
        if self.last_total is not None and source == self.source:
            self.count += total - self.last_total if total >= self.last_total else total
        self.last_total, self.source = total, source


@dataclass(slots=True, kw_only=True)
class FaultSum:
    """Faults that the driver reported since the reader began, in all and by code."""

    by_code: dict[int, int] = field(default_factory=dict)

    def add(self, codes: Collection[int]) -> None:
        """Add what was reported, each code as often as it was."""
        for code in codes:
            self.by_code[code] = self.by_code.get(code, 0) + 1

    @property
    def count(self) -> int:
        """All of them."""
        return sum(self.by_code.values())
