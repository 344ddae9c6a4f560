"""Windows of a hold, and what rules ask of them: sums, periods, seen time, distance of scrapes.

Sums of windows are most of an evaluation's CPU, and many rules ask for the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms, windows
from rules.telemetry.gauges import BURST_SECONDS, GAUGE_HOLD_SECONDS, STEP_GAUGES
from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import Window


class HeldWindows(tuple[BinnedWindow, ...]):
    """Windows of a hold, with what every rule asks of them. Some forty rules share a hold of many thousand windows."""

    @cached_property
    def span_seconds(self) -> float:
        """Return the time from the first start to the last end."""
        return max((s.window.end for s in self), default=0.0) - min((s.window.start for s in self), default=0.0)

    @cached_property
    def watched_seconds(self) -> float:
        return watched_seconds(self)

    @cached_property
    def is_seldom_scraped(self) -> bool:
        return seldom_scraped(self)

    @cached_property
    def is_scraped_by_the_minute(self) -> bool:
        return _mostly(self, _is_of_one_scrape)

    @cached_property
    def by_replica(self) -> Mapping[str | None, tuple[BinnedWindow, ...]]:
        """Return the windows of each replica, in their order."""
        return {name: tuple(group) for name, group in windows.group_by(self, lambda one: one.replica).items()}

    @cached_property
    def on_curve(self) -> HeldWindows:
        """Return the windows with a load bin, in their order."""
        return HeldWindows(one for one in self if one.bin is not None)

    @cached_property
    def _growing(self) -> dict[float, dict[str | None, str]]:
        return {}

    @cached_property
    def _periods(self) -> dict[float, dict[float, HeldWindows]]:
        return {}

    @cached_property
    def _late(self) -> dict[tuple[float, float, float], HeldWindows]:
        return {}

    @cached_property
    def _sums(self) -> dict[frozenset[str], Window]:
        return {}

    @cached_property
    def _parts(self) -> dict[str, tuple[Histogram, ...]]:
        return {}

    def find_growing_queues(self, now: float) -> Mapping[str | None, str]:
        """Return the replicas whose queue grew over the whole hold up to `now` (unix seconds), with the numbers."""
        if now not in self._growing:
            found = {name: load_bins.describe_growth(group, now) for name, group in self.by_replica.items()}
            self._growing[now] = {name: text for name, text in found.items() if text and name is not None}
        return self._growing[now]

    def periods(self, seconds: float) -> Mapping[float, HeldWindows]:
        """Return the windows of each minute (hour) of `seconds`, by its number, oldest first."""
        if seconds not in self._periods:
            groups = windows.group_by(self, lambda one: one.window.middle // seconds)
            self._periods[seconds] = {number: HeldWindows(groups[number]) for number in sorted(groups)}
        return self._periods[seconds]

    def since(self, begin: float, newest: float, seconds: float) -> HeldWindows:
        """Return the windows that start at `begin` (unix seconds) or later, and those of the period `newest`."""
        key = begin, newest, seconds
        if key not in self._late:
            late = (s for s in self if s.window.start >= begin or s.window.middle // seconds == newest)
            self._late[key] = HeldWindows(late)
        return self._late[key]

    def sum_families(self, families: Collection[str]) -> Window:
        """Return the sum for some families. Raise ValueError for no windows."""
        wanted = frozenset(families)
        if wanted not in self._sums:
            self._sums[wanted] = windows.sum_families([one.window for one in self], wanted)
        return self._sums[wanted]

    def sum_parts(self, family: str) -> tuple[Histogram, ...]:
        """Return the histogram of a family, a part for each bucket grid."""
        if family not in self._parts:
            found = (one.window.histograms.get(family, ()) for one in self)
            self._parts[family] = histograms.sum_histograms(part for parts in found for part in parts)
        return self._parts[family]


def hold(binned: Iterable[BinnedWindow]) -> HeldWindows:
    """Return the windows with what was already asked of them."""
    return binned if isinstance(binned, HeldWindows) else HeldWindows(binned)


def seldom_scraped(binned: Sequence[BinnedWindow]) -> bool:
    """Return whether most seen time lies in steps so long that no gauge holds in them."""
    return _mostly(binned, _is_coarse)


def scraped_by_the_minute(binned: Sequence[BinnedWindow]) -> bool:
    """Return whether most minutes rest on one or two scrapes: an event of one minute is complete only in the next.

    The engine's gauges decide: those of GPUs have an interval of their own.
    """
    return hold(binned).is_scraped_by_the_minute


def _is_of_one_scrape(window: Window) -> bool:
    return _is_coarse(window) or any(
        one.seconds > BURST_SECONDS * one.samples for family, one in window.gauges.items() if family in STEP_GAUGES
    )


def _is_coarse(window: Window) -> bool:
    return window.span > GAUGE_HOLD_SECONDS


def _mostly(binned: Sequence[BinnedWindow], so: Callable[[Window], bool]) -> bool:
    part = whole = 0.0
    for one in binned:
        seconds = one.window.covered_seconds
        if seconds > 0:
            whole += seconds
            part += seconds if so(one.window) else 0.0
    return part > whole / 2


def watched_seconds(binned: Iterable[BinnedWindow]) -> float:
    """Return the seconds in which any replica was seen, at most.

    A sum over replicas counts as span x coverage; overlapping windows count once.
    """
    stretches: list[tuple[float, float, float]] = []
    for window in sorted((one.window for one in binned if one.window.covered_seconds > 0), key=lambda w: w.start):
        begin, end, seen = window.start, window.end, window.span * window.coverage
        if stretches and begin <= stretches[-1][1]:
            before = stretches.pop()
            begin, end, seen = before[0], max(before[1], end), before[2] + seen
        stretches.append((begin, end, seen))
    return math.fsum(min(seen, end - begin) for begin, end, seen in stretches)
