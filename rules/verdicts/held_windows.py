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
    """Windows of a hold, with what every rule asks of them. Some forty rules share a hold of many thousand windows.

    `batches` are the windows that were booked together, in one evaluation of a large tier. A batch stays in memory for as
    long as its minutes, and keeps what was asked of it. So the next evaluation asks it of the newest batch only.
    """

    _batches: tuple[HeldWindows, ...] = ()

    @classmethod
    def of_batches(cls, batches: Iterable[HeldWindows]) -> HeldWindows:
        """Return the windows of these batches, oldest first."""
        several = tuple(batch for batch in batches if batch)
        held = cls(chain.from_iterable(several))
        held._batches = several
        return held

    @property
    def batches(self) -> tuple[HeldWindows, ...]:
        return self._batches or (self,)

    @property
    def has_batches(self) -> bool:
        """Return whether these windows are made of batches, of one perhaps, and are none themselves."""
        return bool(self._batches)

    def by_batch(self, make: Callable[[HeldWindows, *Arguments], Made], *arguments: *Arguments) -> list[Made]:
        """Return `make` of each batch. Batches keep it, so no argument may depend on the present time."""
        return [batch.once(make, *arguments) for batch in self.batches]

    @cached_property
    def span_seconds(self) -> float:
        """Return the time from the first start to the last end."""
        return self.ends[1] - self.start if self else 0.0

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Return the first and the last end in unix seconds."""
        if self._batches:
            return min(batch.ends[0] for batch in self._batches), max(batch.ends[1] for batch in self._batches)
        ends = [s.window.end for s in self]
        return min(ends, default=math.inf), max(ends, default=-math.inf)

    @cached_property
    def middles(self) -> tuple[float, float]:
        """Return the first and the last middle in unix seconds."""
        middles = [(s.window.start + s.window.end) / 2 for s in self]
        return min(middles, default=math.inf), max(middles, default=-math.inf)

    @cached_property
    def start(self) -> float:
        """Return the first start in unix seconds, inf without windows."""
        if self._batches:
            return min(batch.start for batch in self._batches)
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

    def select(self, choose: Callable[[HeldWindows], HeldWindows]) -> HeldWindows:
        """Return the windows that `choose` returns of each batch."""
        if not self._batches:
            # Never these windows themselves: what is kept with them must not hold them.
            return HeldWindows(choose(self))
        return HeldWindows.of_batches(map(choose, self._batches))

    @cached_property
    def waiting(self) -> frozenset[str | None]:
        """Return the replicas at which a request waited."""
        return frozenset().union(*self.by_batch(_find_waiting))

    @cached_property
    def by_replica(self) -> Mapping[str | None, HeldWindows]:
        """Return the windows of each replica, in their order."""
        return {name: HeldWindows(group) for name, group in windows.group_by(self, lambda one: one.replica).items()}

    @cached_property
    def on_curve(self) -> HeldWindows:
        """Return the windows with a load bin, in their order."""
        return self.select(lambda batch: batch.once(_select_on_curve))

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


def select_ending(batch: HeldWindows, since: float, until: float = math.inf) -> HeldWindows:
    """Return the windows of a batch that end after `since` and not after `until` (unix seconds)."""
    first, last = batch.ends
    if since < first and last <= until:
        return batch
    if last <= since or until < first:
        return HeldWindows()
    return HeldWindows(one for one in batch if since < one.window.end <= until)


def _select_on_curve(batch: HeldWindows) -> HeldWindows:
    return HeldWindows(one for one in batch if one.bin is not None)


def _find_growing_queues(held: HeldWindows, now: float) -> dict[str | None, str]:
    # Most replicas of a fleet have no queue at all.
    groups = held.by_replica.items() if held.waiting else ()
    found = {name: load_bins.describe_growth(group, now) for name, group in groups if name in held.waiting}
    return {name: text for name, text in found.items() if text}


def _find_waiting(batch: HeldWindows) -> frozenset[str | None]:
    """Return the replicas at which a request waited."""
    return frozenset([one.replica for one in batch if load_bins.has_waited(one.window)])


def _group_by_period(held: HeldWindows, seconds: float) -> dict[float, HeldWindows]:
    if held.has_batches:
        several: dict[float, list[HeldWindows]] = {}
        for batch in held.batches:
            first, last = (middle // seconds for middle in batch.middles)
            found = {first: batch} if first == last else batch.once(_group_by_period, seconds)
            for number, group in found.items():
                several.setdefault(number, []).append(group)
        return {number: HeldWindows.of_batches(several[number]) for number in sorted(several)}
    groups = windows.group_by(held, lambda one: one.window.middle // seconds)
    return {number: HeldWindows(groups[number]) for number in sorted(groups)}


def _select_since(held: HeldWindows, begin: float, newest: float, seconds: float) -> HeldWindows:
    def select(batch: HeldWindows) -> HeldWindows:
        if batch.start >= begin:
            return batch
        if batch.ends[1] < min(begin, newest * seconds):
            return HeldWindows()
        return HeldWindows(s for s in batch if s.window.start >= begin or s.window.middle // seconds == newest)

    return held.select(select)


def _sum_families(held: HeldWindows, families: frozenset[str]) -> Window:
    if held.has_batches:
        sums = held.by_batch(_sum_families, families)
        return sums[0] if len(sums) == 1 else windows.sum_families(sums, families)
    return windows.sum_families([one.window for one in held], families)


def _sum_parts(held: HeldWindows, family: str) -> tuple[Histogram, ...]:
    if held.has_batches:
        return histograms.sum_histograms(chain.from_iterable(held.by_batch(_sum_parts, family)))
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
    for some, every in hold(binned).by_batch(_count_seconds, so):
        part += some
        whole += every
    return part > whole / 2


def _count_seconds(batch: HeldWindows, so: Callable[[Window], bool]) -> tuple[float, float]:
    """Return the seen replica-seconds in windows that are `so`, and in all."""
    part = whole = 0.0
    for one in batch:
        seconds = one.window.covered_seconds
        if seconds > 0:
            whole += seconds
            part += seconds if so(one.window) else 0.0
    return part, whole


def watched_seconds(binned: Iterable[BinnedWindow]) -> float:
    """Return the seconds in which any replica was seen, at most.

    A sum over replicas counts as span x coverage; overlapping windows count once.
    """
    return hold(binned).watched_seconds


def _watched_seconds(held: HeldWindows) -> float:
    stretches = chain.from_iterable(held.by_batch(_list_stretches))
    joined = _join_spans(sorted(stretches, key=itemgetter(0)))
    return math.fsum(min(seen, end - begin) for begin, end, seen in joined)


Span = tuple[float, float, float]
"""Begin and end in unix seconds, and the seconds seen between them by all windows together."""


def _list_stretches(batch: HeldWindows) -> list[Span]:
    """Return the times that windows cover without a hole between them."""
    # Hot path: an hour of a large tier has many thousand windows, so properties of a window are written out.
    spans = []
    for one in batch:
        window = one.window
        if window.covered_seconds > 0:
            span = window.end - window.start
            due = max(window.expected_seconds, span)
            seen = span * min(1.0, window.covered_seconds / due) if due > 0 else 0.0
            spans.append((window.start, window.end, seen))
    return _join_spans(sorted(spans, key=itemgetter(0)))


def _join_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans, sorted by their begin, with those that touch as one."""
    joined: list[Span] = []
    for begin, end, seen in spans:
        if joined and begin <= joined[-1][1]:
            first, last, before = joined[-1]
            joined[-1] = first, max(last, end), before + seen
        else:
            joined.append((begin, end, seen))
    return joined
