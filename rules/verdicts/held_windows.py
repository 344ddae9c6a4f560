"""Windows of a hold, and what rules ask of them: sums, periods, seen time, distance of scrapes.

Sums of windows are most of an evaluation's CPU, and many rules ask for the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
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


def kept(make: Callable[[HeldWindows, *Arguments], Made]) -> Callable[[HeldWindows, *Arguments], Made]:
    """Return a method whose results the windows keep, by its arguments."""

    def find(held: HeldWindows, *arguments: *Arguments) -> Made:
        return held.once(make, *arguments)

    return find


class HeldWindows(tuple[BinnedWindow, ...]):
    """Windows of a hold, with what every rule asks of them. Some forty rules share a hold of many thousand windows.

    `batches` are the windows that were booked together, in one evaluation of a large tier. A batch stays in memory for as
    long as its minutes, and keeps what was asked of it. So the next evaluation asks it of the newest batch only.
    """

    _batches: tuple[HeldWindows, ...] = ()

    @classmethod
    def of_batches(cls, batches: Iterable[HeldWindows]) -> HeldWindows:
        """Return the windows of these batches, oldest first."""
        held_windows = tuple(filter(None, batches))
        held = cls(chain.from_iterable(held_windows))
        held._batches = held_windows
        return held

    @property
    def batches(self) -> tuple[HeldWindows, ...]:
        return self._batches or (self,)

    def by_batch(self, make: Callable[[HeldWindows, *Arguments], Made], *arguments: *Arguments) -> list[Made]:
        """Return `make` of each batch. Batches keep it, so no argument may depend on the present time."""
        return [batch.once(make, *arguments) for batch in self.batches]

    def select(self, choose: Callable[[HeldWindows], HeldWindows]) -> HeldWindows:
        """Return the windows that `choose` returns of each batch."""
        if not self._batches:
            # Never these windows themselves: what is kept with them must not hold them.
            return HeldWindows(choose(self))
        return HeldWindows.of_batches(map(choose, self._batches))

    @cached_property
    def _made(self) -> dict[tuple[object, ...], Any]:
        """Return the results of `once`, by function and arguments."""
        return {}

    def once(self, make: Callable[[HeldWindows, *Arguments], Made], *arguments: *Arguments) -> Made:
        """Return `make` of these windows. It is called once for equal arguments."""
        key = (make, *arguments)
        if key not in self._made:
            self._made[key] = make(self, *arguments)
        made: Made = self._made[key]
        return made

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Return the first and the last end in unix seconds."""
        ends = list(chain.from_iterable(batch.ends for batch in self._batches)) or [s.window.end for s in self]
        return min(ends, default=math.inf), max(ends, default=-math.inf)

    @cached_property
    def start(self) -> float:
        """Return the first start in unix seconds, inf without windows."""
        starts = [batch.start for batch in self._batches] or [binned.window.start for binned in self]
        return min(starts, default=math.inf)

    @cached_property
    def watched_seconds(self) -> float:
        """Return the seconds in which any replica was seen, at most.

        A sum over replicas counts as span x coverage; overlapping windows count once.
        """
        joined = _join_spans(chain.from_iterable(self.by_batch(_list_stretches)))
        return math.fsum(min(seen, end - begin) for begin, end, seen in joined)

    @cached_property
    def is_seldom_scraped(self) -> bool:
        """Return whether most seen time lies in steps so long that no gauge holds in them."""
        return self._is_mostly(_is_coarse)

    @cached_property
    def is_scraped_by_the_minute(self) -> bool:
        """Return whether most minutes rest on one or two scrapes: an event of one minute is complete only in the next.

        The engine's gauges decide: those of GPUs have an interval of their own.
        """
        return self._is_mostly(_is_of_one_scrape)

    def _is_mostly(self, is_so: Callable[[Window], bool]) -> bool:
        parts, wholes = zip(*self.by_batch(_count_seconds, is_so), strict=True)
        return math.fsum(parts) > math.fsum(wholes) / 2

    @cached_property
    def by_replica(self) -> Mapping[str | None, HeldWindows]:
        """Return the windows of each replica, in their order."""
        groups = windows.group_by(self, lambda binned: binned.replica)
        return {name: HeldWindows(group) for name, group in groups.items()}

    @cached_property
    def on_curve(self) -> HeldWindows:
        """Return the windows with a load bin, in their order."""
        return HeldWindows.of_batches(self.by_batch(_select_on_curve))

    @kept
    def find_growing_queues(self, now: float) -> dict[str | None, str]:
        """Return the replicas whose queue grew over the whole hold up to `now` (unix seconds), with the numbers."""
        # Hot path: most replicas of a fleet have no queue at all. Sums over replicas do not show it.
        texts: dict[str | None, str] = {}
        waiting = frozenset[str | None]().union(*self.by_batch(_find_waiting)) - {None}
        for name, held in self.by_replica.items() if waiting else ():
            text = load_bins.describe_growth(held, now) if name in waiting else None
            if text:
                texts[name] = text
        return texts

    @kept
    def periods(self, seconds: float) -> dict[float, HeldWindows]:
        """Return the windows of each minute (hour) of `seconds`, by its number, oldest first."""
        if not self._batches:
            groups = windows.group_by(self, lambda binned: binned.window.middle // seconds)
            return {number: HeldWindows(groups[number]) for number in sorted(groups)}
        parts: dict[float, list[HeldWindows]] = {}
        for batch in self._batches:
            groups_of_batch = batch.periods(seconds)
            for number, group in groups_of_batch.items():
                # A batch of one period keeps what was asked of it.
                parts.setdefault(number, []).append(batch if len(groups_of_batch) == 1 else group)
        return {number: HeldWindows.of_batches(parts[number]) for number in sorted(parts)}

    @kept
    def since(self, begin: float, newest: float, seconds: float) -> HeldWindows:
        """Return the windows that start at `begin` (unix seconds) or later, and those of the period `newest`."""

        def choose(batch: HeldWindows) -> HeldWindows:
            if batch.start >= begin:
                return batch
            if batch.ends[1] < min(begin, newest * seconds):
                return HeldWindows()
            return HeldWindows(s for s in batch if s.window.start >= begin or s.window.middle // seconds == newest)

        return self.select(choose)

    def by_load_bin(self, curve: Curve) -> dict[int, LoadBin]:
        """Return the windows inside the curve by load bin, in the order of its points."""
        bins = self.once(load_bins.sum_load_bins)
        return {bin: bins[bin] for bin in range(len(curve.points)) if bin in bins}

    def sum_families(self, families: Collection[str]) -> Window:
        """Return the sum for some families. Raise ValueError for no windows."""
        return self._sum_families(frozenset(families))

    @kept
    def _sum_families(self, families: frozenset[str]) -> Window:
        sums = [batch._sum_families(families) for batch in self._batches] or [binned.window for binned in self]
        return sums[0] if len(self._batches) == 1 else windows.sum_families(sums, families)

    @kept
    def sum_parts(self, family: str) -> tuple[Histogram, ...]:
        """Return the histogram of a family, a part for each bucket grid."""
        parts = [batch.sum_parts(family) for batch in self._batches]
        parts = parts or [binned.window.histograms.get(family, ()) for binned in self]
        return histograms.sum_histograms(chain.from_iterable(parts))


def hold(binned: Iterable[BinnedWindow]) -> HeldWindows:
    """Return the windows with what was already asked of them."""
    return binned if isinstance(binned, HeldWindows) else HeldWindows(binned)


def select_ending(batch: HeldWindows, since: float, until: float = math.inf) -> HeldWindows:
    """Return the windows of a batch that end after `since` and not after `until` (unix seconds)."""
    first, last = batch.ends
    if since < first and last <= until:
        return batch
    if last <= since or until < first:
        return HeldWindows()
    return HeldWindows(binned for binned in batch if since < binned.window.end <= until)


def _find_waiting(batch: HeldWindows) -> frozenset[str | None]:
    """Return the replicas at which a request waited."""
    return frozenset(
        binned.replica
        for binned in batch
        for family in load_bins.WAITING
        if family in binned.window.gauges and binned.window.gauges[family].maximum > 0
    )


def _select_on_curve(batch: HeldWindows) -> HeldWindows:
    return HeldWindows(binned for binned in batch if binned.bin is not None)


def _is_of_one_scrape(window: Window) -> bool:
    gauges = (gauge for family, gauge in window.gauges.items() if family in STEP_GAUGES)
    return _is_coarse(window) or any(gauge.seconds > BURST_SECONDS * gauge.samples for gauge in gauges)


def _is_coarse(window: Window) -> bool:
    return window.span > GAUGE_HOLD_SECONDS


def _count_seconds(batch: HeldWindows, is_so: Callable[[Window], bool]) -> tuple[float, float]:
    """Return the seen replica-seconds in windows that are so, and in all."""
    seen = [binned.window for binned in batch if binned.window.covered_seconds > 0]
    parts = (window.covered_seconds for window in seen if is_so(window))
    return math.fsum(parts), math.fsum(window.covered_seconds for window in seen)


Span = tuple[float, float, float]
"""Begin and end in unix seconds, and the seconds seen between them by all windows together."""


def _list_stretches(batch: HeldWindows) -> list[Span]:
    """Return the times that windows cover without a hole between them."""
    # Hot path: an hour of a large tier has many thousand windows, so properties of a window are written out.
    spans = []
    for binned in batch:
        window = binned.window
        if window.covered_seconds > 0:
            span = window.end - window.start
            due = max(window.expected_seconds, span)
            seen = span * min(1.0, window.covered_seconds / due) if due > 0 else 0.0
            spans.append((window.start, window.end, seen))
    return _join_spans(spans)


def _join_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order of their begin, with those that touch as one."""
    joined: list[Span] = []
    for begin, end, seen in sorted(spans, key=itemgetter(0)):
        if joined and begin <= joined[-1][1]:
            first, last, before = joined[-1]
            joined[-1] = first, max(last, end), before + seen
        else:
            joined.append((begin, end, seen))
    return joined
