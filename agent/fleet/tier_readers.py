"""One tier asked of the store as sums: what every replica must tell by itself, and the rest added up by load.

Owns the order: each replica's few series first (one query), which say where on the curve its minute lies; then the sums of
all that lay at the same place. The number of queries grows with tiers; what of it grows with replicas is the length.

One tier asked of the store replica by replica: one query a turn, with the true times of every scrape.

Owns the question; what its answer means is the readers' of `agent.prometheus`. A tier of many replicas is asked as sums instead
(`agent.fleet.tier_readers`).

One tier asked of the store in the way that fits its size: replica by replica, or as sums by load.

Owns the count of replicas (one query now and then, of a tier that is read replica by replica) and when the way changes. A
tier whose size goes to and fro around the limit does not change with it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from agent.fleet.stored_pages import (
    USUAL_SECONDS,
    PageReaderProtocol,
    ReplicaPage,
    StoredSeries,
    TierPages,
)
from agent.prometheus.answers import StoreError, StoreErrorKind
from agent.prometheus.api import QueryClient
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import EVERYTHING, Window

if TYPE_CHECKING:
    pass

LONGEST_TURNS = 1.5
"""A replica's window over more turns is no minute: it was not seen meanwhile, and its sums belong to no load."""


class AggregateQueries(Protocol):
    """What asks for the sums, of agents' series (`agent.fleet.aggregates`) or of engines' (`agent.fleet.aggregates`)."""

    @property
    def reader(self) -> PageReaderProtocol: ...

    def query_replicas(self, until: float) -> Iterable[StoredSeries]: ...

    def query_groups(self, grouped: Sequence[Sequence[BinnedWindow]], start: float, end: float) -> list[Window]: ...


class AggregatedTierReader:
    """The minutes of one tier of many replicas."""

    def __init__(self, tier: str, summing: AggregateQueries, turn_seconds: float) -> None:
        self.tier = tier
        self._summing = summing
        self._turn = turn_seconds
        self.pages = TierPages(tier, summing.reader, turn_seconds)
        self._span: tuple[float, float] | None = None
        self._until: float | None = None

    def ask(self, since: float, until: float) -> tuple[ReplicaPage, ...]:
        """The newest page of every replica at `until`, of few series. Raises StoreTrouble."""
        found = self._summing.query_replicas(until)
        self._span = (self._until, until) if self._until is not None else None
        self._until = until
        return self.pages.take(found)

    def minute(
        self, seen: Mapping[str, Window], view: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]:
        """The tier's minute from what each replica did (`seen`): added up by load, and each by itself, placed.

        Raises StoreTrouble; then nothing is known of the minute but what `seen` says.
        """
        each = tuple(
            load_bins.mark_backlog(load_bins.bin_window(window, view.curve, name), before.get(name))
            for name, window in sorted(seen.items())
        )
        whole = [one for one in each if self._is_minute(one.window)]
        rest = [one.window for one in each if not self._is_minute(one.window)]
        grouped = _by_load(whole)
        groups = [
            replace(_sum_of(several), window=window)
            for several, window in zip(grouped, self._added(grouped), strict=True)
        ]
        if rest:
            groups.append(
                load_bins.bin_window(windows.sum_windows(_without_load(window) for window in rest), None, None)
            )
        return tuple(groups), tuple(replace(one, window=_slim(one.window)) for one in each)

    def _is_minute(self, window: Window) -> bool:
        return self._span is not None and EVERYTHING not in window.gaps and window.span <= LONGEST_TURNS * self._turn

    def _added(self, grouped: Sequence[Sequence[BinnedWindow]]) -> list[Window]:
        if not grouped or self._span is None:
            return []
        return self._summing.query_groups(grouped, *self._span)


Load = tuple[int | None, bool, bool]
"""Load bin, whether beyond the benchmark, whether a backlog is worked off."""


def _by_load(several: Iterable[BinnedWindow]) -> list[list[BinnedWindow]]:
    grouped: dict[Load, list[BinnedWindow]] = {}
    for one in several:
        grouped.setdefault((one.bin, bool(one.beyond), bool(one.backlog)), []).append(one)
    return [grouped[load] for load in sorted(grouped, key=lambda load: (load[0] is None, load[0] or 0, *load[1:]))]


def _sum_of(several: Sequence[BinnedWindow]) -> BinnedWindow:
    """One slice for all of one load: means of their loads, the words of the first."""
    rps = [one.rps for one in several if one.rps is not None]
    in_system = [one.in_system for one in several if one.in_system is not None]
    first = several[0]
    return BinnedWindow(
        replica=None,
        window=first.window,
        rps=sum(rps) / len(rps) if rps else None,
        in_system=sum(in_system) / len(in_system) if in_system else None,
        bin=first.bin,
        beyond=first.beyond,
        backlog=first.backlog,
        leftover=sum(one.leftover for one in several),
    )


def _without_load(window: Window) -> Window:
    """Of a window that belongs to no minute only that it is missing, and what it tells of starts."""
    starts = {family: value for family, value in window.counters.items() if family in windows.STARTS}
    reason = window.gaps.get(EVERYTHING, Gap.SCRAPE_FAILED)
    missing = windows.gap_window(window.end - min(window.span, 60.0), window.end, reason)
    return replace(missing, counters=starts)


def _slim(window: Window) -> Window:
    """Of a replica's minute what rules that compare replicas read, in as little memory as can be: an hour of thousands.

    Of lengths they read the mean alone.
    """
    of_lengths = window.histograms.get("prompt_tokens_per_request", ())
    means = tuple(Histogram(edges=histograms.NO_GRID, counts=(part.n,), total=part.total) for part in of_lengths)
    gauges = {
        f: g
        for f, g in window.gauges.items()
        if f in ("requests_running", "requests_waiting", "requests_waiting_capacity")
    }
    return Window(
        start=window.start,
        end=window.end,
        expected_seconds=window.expected_seconds,
        covered_seconds=window.covered_seconds,
        # One zero for all.
        counters={f: v or 0.0 for f, v in window.counters.items()},
        histograms={"prompt_tokens_per_request": means} if means else NOTHING,
        gauges=gauges,
        short_seconds=NOTHING,
        gaps=_same_gaps(tuple(window.gaps.items())),
    )


NOTHING: Mapping[str, Any] = MappingProxyType({})


@lru_cache(maxsize=256)
def _same_gaps(gaps: tuple[tuple[str, Gap], ...]) -> Mapping[str, Gap]:
    """One object for the same gaps: most replicas of a tier have the same."""
    return MappingProxyType(dict(gaps))


PIECE_SECONDS = 900.0
"""So much is asked for at once after a silence of the store."""

OVERLAP_SECONDS = 60.0
"""So much of a piece is asked for again with the next: a sum that is new is then seen to have been nothing before."""

LEAST_SECONDS = 4 * OVERLAP_SECONDS
"""Half of less would be mostly what is asked for twice."""

TOO_LARGE = frozenset({StoreErrorKind.TOO_MUCH, StoreErrorKind.SLOW})
"""What half as much may do better."""


class ReplicaReader:
    """The replicas of one tier, page by page. `beside` is what else is asked and given to the reader with the rest, such as
    the series of a GPU exporter."""

    def __init__(
        self,
        tier: str,
        selector: str,
        reader: PageReaderProtocol,
        api: QueryClient,
        usual_seconds: float = USUAL_SECONDS,
        beside: tuple[str, ...] = (),
    ) -> None:
        self.tier = tier
        self._selectors = (selector, *beside)
        self._api = api
        self._taken: list[ReplicaPage] = []
        self.pages = TierPages(tier, reader, usual_seconds)

    sums = False

    def minute(
        self, seen: Mapping[str, Window], view: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]:
        """None by itself: its replicas' pages close their minutes."""
        return (), ()

    def ask(self, since: float, until: float) -> tuple[ReplicaPage, ...]:
        """The pages of (since, until] that were not told yet, in order of time. Raises StoreTrouble.

        A long time is asked for in pieces, for an hour of many replicas is more than a store gives at once. What was taken of
        them before one failed is told with the next answer.
        """
        at = since
        while at < until:
            end = min(until, at + PIECE_SECONDS)
            self._take(at - OVERLAP_SECONDS if at > since else at, end)
            at = end
        found, self._taken = tuple(self._taken), []
        return found

    def _take(self, since: float, until: float) -> None:
        try:
            found = [one for asked in self._selectors for one in self._api.query_samples(asked, since, until)]
        except StoreError as trouble:
            if trouble.kind not in TOO_LARGE or until - since <= LEAST_SECONDS:
                raise
            middle = (since + until) / 2.0
            self._take(since, middle)
            self._take(middle - OVERLAP_SECONDS, until)
        else:
            self._taken += self.pages.take(found)


BACK_SHARE = 0.75
"""Of the limit: a tier that shrank below it is read replica by replica again."""


COUNT_SECONDS = 300.0
"""How often the replicas of a tier that is read one by one are counted: a few turns of too many cost time, and no truth."""


class AdaptiveTierReader:
    """The replicas of one tier; `counted` is the PromQL of how many there are, `most` the limit for one by one."""

    def __init__(
        self, each: ReplicaReader, summed: AggregatedTierReader, counted: str, most: int, api: QueryClient
    ) -> None:
        self.tier = each.tier
        self._each, self._summed = each, summed
        self._now: ReplicaReader | AggregatedTierReader = each
        self._counted = counted
        self._counted_at = -math.inf
        self._most = most
        self._api = api

    @property
    def sums(self) -> bool:
        """Return whether it is seen as sums now."""
        return self._now is self._summed

    def ask(self, since: float, until: float) -> tuple[ReplicaPage, ...]:
        """The pages of (since, until] that were not told yet, in order of time. Raises StoreTrouble."""
        self._choose(until)
        return self._now.ask(since, until)

    def _choose(self, t: float) -> None:
        # A tier that is seen as sums is known replica by replica already.
        known = float(len(self._summed.pages.pools)) if self.sums else 0.0
        if not known and self._counted_at <= t < self._counted_at + COUNT_SECONDS:
            return
        self._counted_at = t
        count = known or sum(one.value for one in self._api.query(self._counted, t))
        if not self.sums and count > self._most:
            self._now = self._summed
        elif self.sums and count <= BACK_SHARE * self._most:
            self._now = self._each

    def minute(
        self, seen: Mapping[str, Window], view: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]:
        """The minute of a tier that is seen as sums. Raises StoreTrouble."""
        return self._summed.minute(seen, view, before)

    @property
    def pages(self) -> TierPages:
        """What is known of the replicas in the way that they are seen now."""
        return self._now.pages


TierReaderKey = tuple[Hashable, str]
"""What a way of asking depends on, and the tier."""


class TierReader(Protocol):
    """What asks the store about one tier: `agent.fleet.tier_readers` replica by replica, `agent.fleet.tier_readers` as sums by
    load."""

    tier: str

    @property
    def sums(self) -> bool: ...

    def minute(
        self, seen: Mapping[str, Window], view: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]: ...

    def ask(self, since: float, until: float) -> tuple[ReplicaPage, ...]: ...

    @property
    def pages(self) -> TierPages: ...
