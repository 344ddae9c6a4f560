"""Windows: changes in (start, end], which add up over time and over replicas.

Any grouping of the same windows gives the same readings. First, last and slope need an ordered sequence of windows and
are not part of one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from rules.telemetry import histograms
from rules.telemetry.families import MOST, stem
from rules.telemetry.gauges import IN_SYSTEM, STEP_FAMILY, GaugeSum, sum_gauges, tells_in_system
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import GAP_ORDER, Gap
from rules.telemetry.snapshots import Snapshot

EVERYTHING = "*"
"""Family name for a gap of the whole window."""

NET_CHANGE = "in_system_change"
"""Change of the requests in the system. With the finished requests it gives arrivals. It adds up."""

UNKNOWN_BETWEEN_SCRAPES = frozenset({Gap.NOT_SCRAPED, Gap.CONTRADICTORY})
"""Gaps of a gauge that both pages have but that is unknown between them. Adjacent instants give no mean."""

STARTS = ("restarts", "cold_starts", "cold_start_seconds")
"""Families about starts. Node agents print them, engines do not."""

RESTART_TOLERANCE_SECONDS = 1.0
"""Tolerance in seconds for start times of one process. prometheus_client prints milliseconds or finer."""

MINUTE_SECONDS = 60.0

Item = TypeVar("Item")
Key = TypeVar("Key")


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key; groups and items keep their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Changes of one replica or several in (start, end] (unix seconds, both scrape instants).

    `covered_seconds` of `expected_seconds` replica-seconds were observed. `short_seconds` holds, by family, the covered
    seconds without that family. `gaps` holds reasons for missing data, `*` for the whole window.
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
    def middle(self) -> float:
        """Return the time by which a window is of a minute or an hour: scrapes lie beside the clock's ends."""
        return (self.start + self.end) / 2

    @property
    def due_seconds(self) -> float:
        """Return the replica-seconds of full coverage. Counters booked late (`rules.replicas.state`) reach back before
        the `start` of the windows that expected them. The span may therefore be longer than the expected time."""
        return max(self.expected_seconds, self.span)

    @property
    def coverage(self) -> float:
        return min(1.0, self.covered_seconds / self.due_seconds) if self.due_seconds > 0 else 0.0

    def seconds_of(self, family: str) -> float:
        """Return the replica-seconds in which this counter or histogram family was observed."""
        return self.covered_seconds - self.short_seconds.get(family, 0.0)

    def gauge(self, family: str) -> GaugeSum | None:
        """Return a gauge's sum, None if it is absent or distant scrapes left most of the time unknown."""
        gauge_sum = self.gauges.get(family)
        if gauge_sum is None or gauge_sum.seconds <= 0:
            return None
        untold = self.gaps.get(family) in UNKNOWN_BETWEEN_SCRAPES and gauge_sum.seconds < self.covered_seconds / 2
        return None if untold else gauge_sum

    def explain_missing(self, family: str) -> Gap:
        """Return the gap of an absent family. Pages that lack it take precedence over failed pages."""
        named = self.gaps.get(family)
        if named is not None:
            return named
        return Gap.NOT_EXPOSED if self.covered_seconds > 0 else self.gaps.get(EVERYTHING, Gap.NOT_EXPOSED)


def gap_window(start: float, end: float, reason: Gap) -> Window:
    """Return a window in which an expected replica was not observed."""
    return Window(start=start, end=end, expected_seconds=end - start, covered_seconds=0.0, gaps={EVERYTHING: reason})


def minute_of(window: Window) -> float:
    """Return the start (unix seconds) of the minute that contains the middle of the window."""
    return window.middle // MINUTE_SECONDS * MINUTE_SECONDS


def diff_snapshots(earlier: Snapshot, later: Snapshot) -> Window:
    """Return the window of one process between two scrapes, or a gap `restarted` for another process.

    A family missing from the earlier page is a gap, not an increase from zero. A broken family and a new one look the
    same. Raise ValueError if time does not advance.
    """
    dt = later.t - earlier.t
    if dt <= 0:
        raise ValueError(f"scrapes out of order: {later.t} after {earlier.t}")
    if is_restart(earlier, later):
        restart = gap_window(earlier.t, later.t, Gap.RESTARTED)
        return replace(restart, counters={"restarts": 1.0, **cold_start(later)})
    if later.counters.get("restarts", 0.0) > earlier.counters.get("restarts", 0.0):
        return _told_restart(earlier, later)
    counters = {f: v - earlier.counters[f] for f, v in later.counters.items() if v >= earlier.counters.get(f, math.inf)}
    parts = _histogram_increases(earlier, later)
    impossible = _drop_impossible(counters, parts, dt)
    gauges, untold = sum_gauges(earlier, later, counters, parts)
    gaps = {**_absences(earlier, later, (counters, parts, gauges, untold), impossible), **untold}
    short = {family: dt for family in gaps if family not in later.gauges and family not in earlier.gauges}
    if tells_in_system(earlier) and tells_in_system(later):
        counters[NET_CHANGE] = math.fsum([later.gauges[name] - earlier.gauges[name] for name in IN_SYSTEM])
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
    """Return whether the later page is from another process.

    Different start times decide if both pages have one, in either order: a service address may lead to two replicas.
    Otherwise the engine's steps must have fallen, or more counters fell than grew. A single fallen counter is broken.
    """
    if earlier.engine != later.engine:
        return True
    if earlier.started_at is not None and later.started_at is not None:
        return abs(later.started_at - earlier.started_at) > RESTART_TOLERANCE_SECONDS
    before, after = earlier.counters, later.counters
    # Hot path: no counter fell in most windows.
    if all(map(operator.le, map(before.get, after, after.values()), after.values())):
        return False
    fell = [family for family, now in after.items() if now < before.get(family, now)]
    return STEP_FAMILY in fell or len(fell) > sum(1 for family, now in after.items() if now > before.get(family, now))


def _told_restart(earlier: Snapshot, later: Snapshot) -> Window:
    """Return the increase of restart counters on a page that counts its engine's restarts, as a node agent's does. Its
    sums continued, its engine did not."""
    mapping = {f: later.counters.get(f, 0.0) - earlier.counters.get(f, 0.0) for f in STARTS}
    grown = {family: value for family, value in mapping.items() if value > 0}
    return replace(gap_window(earlier.t, later.t, Gap.RESTARTED), counters=grown)


def cold_start(page: Snapshot) -> dict[str, float]:
    """Return the start of the page's process as counters. Return none if the duration is unknown."""
    if page.started_at is None or page.ready_at is None or page.ready_at <= page.started_at:
        return {}
    return {"cold_starts": 1.0, "cold_start_seconds": page.ready_at - page.started_at}


def _histogram_increases(earlier: Snapshot, later: Snapshot) -> dict[str, tuple[Histogram, ...]]:
    parts: dict[str, tuple[Histogram, ...]] = {}
    for family, now in later.histograms.items():
        before = earlier.histograms.get(family)
        if before is not None:
            # Changed edges or falling buckets: the family was reset and is absent from this window.
            with suppress(histograms.BrokenHistogramError):
                parts[family] = (histograms.increase(before, now),)
    return parts


def _drop_impossible(counters: dict[str, float], parts: dict[str, tuple[Histogram, ...]], dt: float) -> frozenset[str]:
    """Drop the increases above what an engine can reach in `dt` seconds. Return their families."""
    seconds = max(dt, 1.0)
    requests = MOST["requests_finished"] * seconds
    # No limit is below that of requests. Hot path: few counters are above it.
    texts = {f for f, value in counters.items() if value > requests and value > MOST.get(stem(f), math.inf) * seconds}
    texts |= {f for f, rows in parts.items() for part in rows if part.n > requests}
    for family in texts:
        counters.pop(family, None)
        parts.pop(family, None)
    return frozenset(texts)


def _absences(
    earlier: Snapshot, later: Snapshot, present: Iterable[Iterable[str]], too_many: frozenset[str]
) -> dict[str, Gap]:
    """Return the gaps of families on either page that are not in the window between them."""
    broken, contradictory = earlier.broken | later.broken, earlier.contradictory | later.contradictory
    impossible = earlier.impossible | later.impossible | too_many
    before = {*earlier.counters, *earlier.histograms, *earlier.gauges}
    now = {*later.counters, *later.histograms, *later.gauges}
    gaps: dict[str, Gap] = {}
    for family in sorted(before.union(now, broken, contradictory, impossible).difference(*present)):
        if family in impossible:
            gaps[family] = Gap.IMPOSSIBLE
        elif family in contradictory:
            gaps[family] = Gap.CONTRADICTORY
        elif family in broken or family not in now:
            gaps[family] = Gap.SCRAPE_FAILED
        elif family not in before:
            gaps[family] = Gap.NOT_EXPOSED
        else:
            gaps[family] = Gap.RESTARTED
    return gaps


def sum_families(windows: Iterable[Window], families: Collection[str]) -> Window:
    """Return the sum for some families; a family in parts (`family/part`) has all parts. Raise ValueError for no
    windows. Most rules read two of forty families, and a sum of all costs more than the evaluation."""
    return _sum(tuple(windows), families)


def sum_windows(windows: Iterable[Window]) -> Window:
    """Return the sum of windows, over time or over replicas. Raise ValueError for no windows."""
    return _sum(tuple(windows), None)


def _sum(windows: tuple[Window, ...], families: Collection[str] | None) -> Window:
    """Return the sum for some families, None for all. A single window is returned whole."""
    if len(windows) == 1:
        return windows[0]
    if not windows:
        raise ValueError("no windows to add")
    counters = _collect([w.counters for w in windows], families, in_parts=True)
    parts = _collect([w.histograms for w in windows], families)
    gauges = _collect([w.gauges for w in windows], families)
    return Window(
        start=min([w.start for w in windows]),
        end=max([w.end for w in windows]),
        expected_seconds=math.fsum([w.expected_seconds for w in windows]),
        covered_seconds=math.fsum([w.covered_seconds for w in windows]),
        counters={f: math.fsum(values) for f, values in counters.items()},
        histograms={f: histograms.sum_histograms(chain.from_iterable(rows)) for f, rows in parts.items()},
        gauges={f: _sum_gauge(sums) for f, sums in gauges.items()},
        short_seconds=_sum_short(windows, {**counters, **parts}, families),
        gaps=_worst_gaps([w.gaps for w in windows]),
        sampled=frozenset().union(*[w.sampled for w in windows]),
    )


def _collect(
    mappings: list[Mapping[str, Item]], families: Collection[str] | None, in_parts: bool = False
) -> dict[str, list[Item]]:
    """Return the values of each name that belongs to these families, by name in its order."""
    names: set[str] = set().union(*mappings)
    if families is not None:
        names = {name for name in names if name in families or (in_parts and stem(name) in families)}
    return {name: [mapping[name] for mapping in mappings if name in mapping] for name in sorted(names)}


def _sum_short(
    windows: tuple[Window, ...], present: Mapping[str, Sequence[object]], families: Collection[str] | None
) -> dict[str, float]:
    """Return the covered seconds without each family. A window that never had the family counts in full.

    `present` are the values of each family, of as many windows as have it.
    """
    short: set[str] = set().union(*[w.short_seconds for w in windows])
    if families is not None:
        short.intersection_update(families)
    result = {}
    for name in sorted(short.union(present)):
        if name not in short and len(present[name]) == len(windows):
            continue
        seconds = math.fsum([_short_in(w, name, name in short) for w in windows])
        if seconds > 0:
            result[name] = seconds
    return result


def _short_in(window: Window, family: str, is_told: bool) -> float:
    if is_told and family in window.short_seconds:
        return window.short_seconds[family]
    return 0.0 if family in window.counters or family in window.histograms else window.covered_seconds


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
            known = worst.get(family)
            if known is not reason and (known is None or GAP_ORDER[reason] > GAP_ORDER[known]):
                worst[family] = reason
    return worst


HOUR_SECONDS = 3600.0
DAY_SECONDS = 86_400.0
