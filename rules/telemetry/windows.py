"""Windows: what happened in (start, end]. The one currency of sizewatch; they add up over time and over replicas.

Owns the record, the difference of two snapshots and the sum. Any grouping of the same windows gives the same readings.
First, last and slope are not here: they belong to an ordered sequence of windows.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rules.telemetry import histograms
from rules.telemetry.families import stem
from rules.telemetry.gauges import IN_SYSTEM, STEP_FAMILY, GaugeSum, sum_gauges
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import GAP_ORDER, Gap
from rules.telemetry.snapshots import Snapshot

EVERYTHING = "*"
"""The family name under which a gap of the whole window stands."""

NET_CHANGE = "in_system_change"
"""Requests in the system now less then: with the finished ones it gives arrivals, and it adds up like a counter."""

UNKNOWN_BETWEEN_SCRAPES = frozenset({Gap.NOT_SCRAPED, Gap.CONTRADICTORY})
"""Why a gauge that both pages have is not known between them; the instants next to that are no mean of it."""

STARTS = ("restarts", "cold_starts", "cold_start_seconds")
"""Families that tell of starts; no engine's page has them, a node agent's has."""

RESTART_TOLERANCE_SECONDS = 1.0
"""Start times of one process agree within this; prometheus_client prints them to the millisecond or better."""


MINUTE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What happened to a replica, or to several added up, in (start, end] (unix seconds, both scrape instants).

    `covered_seconds` of `expected_seconds` replica-seconds were seen. `short_seconds` holds, by family, how many of the
    covered seconds that family was absent for. `gaps` says why something is missing, `*` for the whole window.
    """

    start: float
    end: float
    expected_seconds: float
    covered_seconds: float
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, tuple[Histogram, ...]] = field(default_factory=dict)
    gauges: Mapping[str, GaugeSum] = field(default_factory=dict)
    short_seconds: Mapping[str, float] = field(default_factory=dict)
    gaps: Mapping[str, Gap] = field(default_factory=dict)
    sampled: frozenset[str] = frozenset()

    @property
    def span(self) -> float:
        return self.end - self.start

    @property
    def due_seconds(self) -> float:
        """Replica-seconds that full coverage has. Counters booked late (`rules.replicas.track`) reach back before `start` of the
        windows that expected them, so the span may be longer than what is expected."""
        return max(self.expected_seconds, self.span)

    @property
    def coverage(self) -> float:
        return min(1.0, self.covered_seconds / self.due_seconds) if self.due_seconds > 0 else 0.0

    def seconds_of(self, family: str) -> float:
        """Replica-seconds in which this counter or histogram family was seen."""
        return self.covered_seconds - self.short_seconds.get(family, 0.0)

    def gauge(self, family: str) -> GaugeSum | None:
        """A gauge's sum; None where it is not there, or where scrapes too far apart left most of the time unknown."""
        found = self.gauges.get(family)
        if found is None or found.seconds <= 0:
            return None
        untold = self.gaps.get(family) in UNKNOWN_BETWEEN_SCRAPES and found.seconds < self.covered_seconds / 2
        return None if untold else found

    def explain_missing(self, family: str) -> Gap:
        """Of a family that is not in this window. Pages that were read and lack it say more than pages that failed."""
        named = self.gaps.get(family)
        if named is not None:
            return named
        return Gap.NOT_EXPOSED if self.covered_seconds > 0 else self.gaps.get(EVERYTHING, Gap.NOT_EXPOSED)


def gap_window(start: float, end: float, reason: Gap) -> Window:
    """A window in which a replica should have been seen and was not."""
    return Window(start=start, end=end, expected_seconds=end - start, covered_seconds=0.0, gaps={EVERYTHING: reason})


def minute_of(window: Window) -> float:
    """Start of the minute (unix seconds) that a window belongs to: the one its middle lies in."""
    return (window.start + window.end) / 2 // MINUTE_SECONDS * MINUTE_SECONDS


def diff_snapshots(earlier: Snapshot, later: Snapshot) -> Window:
    """What one process did between two scrapes; a gap `restarted` where it is not one process any more.

    A family that the earlier page did not have is a gap for this window, not an increase from zero: one that was broken
    there and one born in the meantime look the same. Raises ValueError where time does not go forward.
    """
    dt = later.t - earlier.t
    if dt <= 0:
        raise ValueError(f"scrapes out of order: {later.t} after {earlier.t}")
    if is_restart(earlier, later):
        return _after_restart(earlier, later)
    if later.counters.get("restarts", 0.0) > earlier.counters.get("restarts", 0.0):
        return _told_restart(earlier, later)
    counters = {f: v - earlier.counters[f] for f, v in later.counters.items() if v >= earlier.counters.get(f, math.inf)}
    parts = _histogram_increases(earlier, later)
    gauges, untold = sum_gauges(earlier, later, counters, parts)
    gaps = {**_absences(earlier, later, {*counters, *parts, *gauges, *untold}), **untold}
    short = {family: dt for family in gaps if family not in later.gauges and family not in earlier.gauges}
    if all(name in page.gauges for name in IN_SYSTEM for page in (earlier, later)):
        counters[NET_CHANGE] = math.fsum(later.gauges[name] - earlier.gauges[name] for name in IN_SYSTEM)
    return Window(
        start=earlier.t,
        end=later.t,
        expected_seconds=dt,
        covered_seconds=dt,
        counters=counters,
        histograms=parts,
        gauges=gauges,
        short_seconds=short,
        gaps=gaps,
        sampled=later.sampled,
    )


def is_restart(earlier: Snapshot, later: Snapshot) -> bool:
    """Return whether the later page is another process's.

    Another start time tells it where both pages have one, whichever is later (a service address may lead to either of
    two replicas). Otherwise the engine's steps fell, or more counters fell than grew (one that fell alone is broken).
    """
    if earlier.engine != later.engine:
        return True
    if earlier.started_at is not None and later.started_at is not None:
        return abs(later.started_at - earlier.started_at) > RESTART_TOLERANCE_SECONDS
    both = {f: (earlier.counters[f], now) for f, now in later.counters.items() if f in earlier.counters}
    steps_before, steps = both.get(STEP_FAMILY, (0.0, 0.0))
    fell = sum(now < before for before, now in both.values())
    grew = sum(now > before for before, now in both.values())
    return steps < steps_before or fell > grew


def _after_restart(earlier: Snapshot, later: Snapshot) -> Window:
    return replace(gap_window(earlier.t, later.t, Gap.RESTARTED), counters={"restarts": 1.0, **cold_start(later)})


def _told_restart(earlier: Snapshot, later: Snapshot) -> Window:
    """A page that counts its engine's restarts itself, as a node agent's does: its sums went on and its engine did not."""
    told = {f: later.counters.get(f, 0.0) - earlier.counters.get(f, 0.0) for f in STARTS}
    grown = {family: value for family, value in told.items() if value > 0}
    return replace(gap_window(earlier.t, later.t, Gap.RESTARTED), counters=grown)


def cold_start(page: Snapshot) -> dict[str, float]:
    """The start of the page's process as counters; none where the page does not tell how long it took."""
    if page.started_at is None or page.ready_at is None or page.ready_at <= page.started_at:
        return {}
    return {"cold_starts": 1.0, "cold_start_seconds": page.ready_at - page.started_at}


def _histogram_increases(earlier: Snapshot, later: Snapshot) -> dict[str, tuple[Histogram, ...]]:
    parts: dict[str, tuple[Histogram, ...]] = {}
    for family, now in later.histograms.items():
        before = earlier.histograms.get(family)
        if before is not None:
            # Changed edges or falling buckets: the family began anew, and is absent from this window.
            with suppress(histograms.BrokenHistogramError):
                parts[family] = (histograms.increase(before, now),)
    return parts


def _absences(earlier: Snapshot, later: Snapshot, present: set[str]) -> dict[str, Gap]:
    """Why a family of either page is not in the window between them."""
    before = earlier.counters.keys() | earlier.histograms.keys() | earlier.gauges.keys()
    now = later.counters.keys() | later.histograms.keys() | later.gauges.keys()
    gaps: dict[str, Gap] = {}
    broken, contradictory = earlier.broken | later.broken, earlier.contradictory | later.contradictory
    for family in sorted((before | now | broken | contradictory) - present):
        if family in contradictory:
            gaps[family] = Gap.CONTRADICTORY
        elif family in broken or family not in now:
            gaps[family] = Gap.SCRAPE_FAILED
        elif family not in before:
            gaps[family] = Gap.NOT_EXPOSED
        else:
            gaps[family] = Gap.RESTARTED
    return gaps


def explain_missing(several: Sequence[Window], family: str) -> Gap:
    """Why a family is not in the sum of windows, without making the sum. Raises ValueError on none."""
    if len(several) < 2:
        return sum_windows(several).explain_missing(family)
    named = max((w.gaps[family] for w in several if family in w.gaps), key=GAP_ORDER.__getitem__, default=None)
    if named is not None:
        return named
    if any(w.covered_seconds > 0 for w in several):
        return Gap.NOT_EXPOSED
    whole = (w.gaps[EVERYTHING] for w in several if EVERYTHING in w.gaps)
    return max(whole, key=GAP_ORDER.__getitem__, default=Gap.NOT_EXPOSED)


def sum_families(windows: Iterable[Window], families: Container[str]) -> Window:
    """The sum as far as some families are concerned (of one in parts, `family/part`, all parts): most rules read two of
    forty, and a sum of all costs more than the judgement. Raises ValueError on none."""
    return sum_windows(select_families(window, families) for window in windows)


def select_families(window: Window, families: Container[str]) -> Window:
    """The window as if nothing but these families had been looked at."""
    return replace(
        window,
        counters={f: v for f, v in window.counters.items() if f in families or stem(f) in families},
        histograms={f: parts for f, parts in window.histograms.items() if f in families},
        gauges={f: gauge for f, gauge in window.gauges.items() if f in families},
        short_seconds={f: seconds for f, seconds in window.short_seconds.items() if f in families},
    )


def sum_windows(windows: Iterable[Window]) -> Window:
    """The sum of windows, of one replica over time or of several replicas. Raises ValueError on none."""
    several = tuple(windows)
    if not several:
        raise ValueError("no windows to add")
    if len(several) == 1:
        return several[0]
    return Window(
        start=min(w.start for w in several),
        end=max(w.end for w in several),
        expected_seconds=math.fsum(w.expected_seconds for w in several),
        covered_seconds=math.fsum(w.covered_seconds for w in several),
        counters=_sum_numbers([w.counters for w in several]),
        histograms=_sum_parts([w.histograms for w in several]),
        gauges=_sum_gauges([w.gauges for w in several]),
        short_seconds=_sum_short(several),
        gaps=_worst_gaps([w.gaps for w in several]),
        sampled=frozenset().union(*(w.sampled for w in several)),
    )


def _sum_numbers(mappings: list[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for mapping in mappings for name in mapping})
    return {name: math.fsum(mapping[name] for mapping in mappings if name in mapping) for name in names}


def _sum_short(several: tuple[Window, ...]) -> dict[str, float]:
    """Covered seconds without a family: what each window says, and all of a window that never had the family."""
    families = sorted({f for w in several for f in (*w.counters, *w.histograms, *w.short_seconds)})
    short = {f: math.fsum(_short_in(w, f) for w in several) for f in families}
    return {f: seconds for f, seconds in short.items() if seconds > 0}


def _short_in(window: Window, family: str) -> float:
    if family in window.short_seconds:
        return window.short_seconds[family]
    return 0.0 if family in window.counters or family in window.histograms else window.covered_seconds


def _sum_parts(mappings: list[Mapping[str, tuple[Histogram, ...]]]) -> dict[str, tuple[Histogram, ...]]:
    names = sorted({name for mapping in mappings for name in mapping})
    return {name: histograms.sum_histograms(part for m in mappings for part in m.get(name, ())) for name in names}


def _sum_gauges(mappings: list[Mapping[str, GaugeSum]]) -> dict[str, GaugeSum]:
    names = sorted({name for mapping in mappings for name in mapping})
    return {name: _sum_gauge([m[name] for m in mappings if name in m]) for name in names}


def _sum_gauge(sums: list[GaugeSum]) -> GaugeSum:
    return GaugeSum(
        integral=math.fsum(s.integral for s in sums),
        seconds=math.fsum(s.seconds for s in sums),
        minimum=min(s.minimum for s in sums),
        maximum=max(s.maximum for s in sums),
        samples=math.fsum(s.samples for s in sums),
    )


def _worst_gaps(mappings: list[Mapping[str, Gap]]) -> dict[str, Gap]:
    worst: dict[str, Gap] = {}
    for mapping in mappings:
        for family, reason in mapping.items():
            if family not in worst or GAP_ORDER[reason] > GAP_ORDER[worst[family]]:
                worst[family] = reason
    return worst


HOUR_SECONDS = 3600.0
