"""Windows of a hold, and what rules ask of them: sums, periods, seen time, distance of scrapes.

Sums of windows are most of an evaluation's CPU, and many rules ask for the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar, TypeVarTuple

from rules.plan import load_bins
from rules.plan.curve import Curve
from rules.plan.load_bins import BinnedWindow, LoadBin
from rules.telemetry import histograms, windows
from rules.telemetry.gauges import BURST_SECONDS, GAUGE_HOLD_SECONDS, STEP_GAUGES
from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import Window

Arguments = TypeVarTuple("Arguments")
Made = TypeVar("Made")


class HeldWindows(tuple[BinnedWindow, ...]):
    """Windows of a hold, with what every rule asks of them. Some forty rules share a hold of many thousand windows."""

    @cached_property
    def span_seconds(self) -> float:
        """Return the time from the first start to the last end."""
        return max((s.window.end for s in self), default=0.0) - min((s.window.start for s in self), default=0.0)

    @cached_property
    def start(self) -> float:
        """Return the first start in unix seconds, inf without windows."""
        return min((s.window.start for s in self), default=math.inf)

    @cached_property
    def watched_seconds(self) -> float:
        return _watched_seconds(self)

    @cached_property
    def is_seldom_scraped(self) -> bool:
        return seldom_scraped(self)

    @cached_property
    def is_scraped_by_the_minute(self) -> bool:
        return _mostly(self, _is_of_one_scrape)

    @cached_property
    def by_replica(self) -> Mapping[str | None, HeldWindows]:
        """Return the windows of each replica, in their order."""
        return {name: HeldWindows(group) for name, group in windows.group_by(self, lambda one: one.replica).items()}

    @cached_property
    def on_curve(self) -> HeldWindows:
        """Return the windows with a load bin, in their order."""
        return HeldWindows(one for one in self if one.bin is not None)

    @cached_property
    def _made(self) -> dict[tuple[object, ...], Any]:
        """Return the results of `once`, by function and arguments."""
        return {}

    def once(self, make: Callable[[HeldWindows, *Arguments], Made], *arguments: *Arguments) -> Made:
        """Return `make` of these windows. It is called once for equal arguments."""
        key = (make, *arguments)
        if key not in self._made:
            self._made[key] = make(self, *arguments)
        found: Made = self._made[key]
        return found

    def find_growing_queues(self, now: float) -> Mapping[str | None, str]:
        """Return what is known of replicas whose queue grew over the whole hold up to `now` (unix seconds).

        The name is None for windows of several replicas.
        """
        return self.once(_find_growing_queues, now)

    def periods(self, seconds: float) -> Mapping[float, HeldWindows]:
        """Return the windows of each minute (hour) of `seconds`, by its number, oldest first."""
        return self.once(_group_by_period, seconds)

    def since(self, begin: float, newest: float, seconds: float) -> HeldWindows:
        """Return the windows that start at `begin` (unix seconds) or later, and those of the period `newest`."""
        return self.once(_select_since, begin, newest, seconds)

    def by_load_bin(self, curve: Curve) -> dict[int, LoadBin]:
        """Return the windows inside the curve by load bin, in the order of its points."""
        bins = self.once(load_bins.sum_load_bins)
        return {bin: bins[bin] for bin in range(len(curve.points)) if bin in bins}

    def sum_families(self, families: Collection[str]) -> Window:
        """Return the sum for some families. Raise ValueError for no windows."""
        return self.once(_sum_families, frozenset(families))

    def sum_parts(self, family: str) -> tuple[Histogram, ...]:
        """Return the histogram of a family, a part for each bucket grid."""
        return self.once(_sum_parts, family)


def hold(binned: Iterable[BinnedWindow]) -> HeldWindows:
    """Return the windows with what was already asked of them."""
    return binned if isinstance(binned, HeldWindows) else HeldWindows(binned)


def _find_growing_queues(held: HeldWindows, now: float) -> dict[str | None, str]:
    found = {name: load_bins.describe_growth(group, now) for name, group in held.by_replica.items()}
    return {name: text for name, text in found.items() if text}


def _group_by_period(held: HeldWindows, seconds: float) -> dict[float, HeldWindows]:
    groups = windows.group_by(held, lambda one: one.window.middle // seconds)
    return {number: HeldWindows(groups[number]) for number in sorted(groups)}


def _select_since(held: HeldWindows, begin: float, newest: float, seconds: float) -> HeldWindows:
    return HeldWindows(s for s in held if s.window.start >= begin or s.window.middle // seconds == newest)


def _sum_families(held: HeldWindows, families: frozenset[str]) -> Window:
    return windows.sum_families([one.window for one in held], families)


def _sum_parts(held: HeldWindows, family: str) -> tuple[Histogram, ...]:
    found = [one.window.histograms[family] for one in held if family in one.window.histograms]
    return histograms.sum_histograms(chain.from_iterable(found))


def seldom_scraped(binned: Sequence[BinnedWindow]) -> bool:
    """Return whether most seen time lies in steps so long that no gauge holds in them."""
    return _mostly(binned, _is_coarse)


def scraped_by_the_minute(binned: Sequence[BinnedWindow]) -> bool:
    """Return whether most minutes rest on one or two scrapes: an event of one minute is complete only in the next.

    The engine's gauges decide: those of GPUs have an interval of their own.
    """
    return hold(binned).is_scraped_by_the_minute


def _is_of_one_scrape(window: Window) -> bool:
    if _is_coarse(window):
        return True
    for family, one in window.gauges.items():  # noqa: SIM110 - a generator for each of many thousand windows costs more
        if one.seconds > BURST_SECONDS * one.samples and family in STEP_GAUGES:
            return True
    return False


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
    return hold(binned).watched_seconds


def _watched_seconds(binned: Iterable[BinnedWindow]) -> float:
    # Hot path: an hour of a large tier has many thousand windows, so properties of a window are written out.
    seen_windows = (s.window for s in binned if s.window.covered_seconds > 0)
    spans = sorted(((w.start, w.end, w.covered_seconds, w.expected_seconds) for w in seen_windows), key=itemgetter(0))
    stretches: list[float] = []
    begin = end = seen = 0.0
    for start, stop, covered, expected in spans:
        span = stop - start
        due = max(expected, span)
        part = span * min(1.0, covered / due) if due > 0 else 0.0
        if start <= end:
            end, seen = max(end, stop), seen + part
        else:
            stretches.append(min(seen, end - begin))
            begin, end, seen = start, stop, part
    return math.fsum((*stretches, min(seen, end - begin)))
