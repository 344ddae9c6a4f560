"""Readers of one tier from a store: replica by replica, as sums by load, or whichever fits the number of replicas.

For sums, a first query reads some series of every replica, which place its minute on the curve. Further queries sum the
replicas of one load. Their number grows with the number of tiers, their length with the number of replicas.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from agent.config.config import Config
from agent.config.store import FleetConfig, TierSource
from agent.fleet import agent_series, engine_series
from agent.fleet.aggregates import AgentAggregates
from agent.fleet.stored_pages import USUAL_SECONDS, PageReaderProtocol, ReplicaPage, TierPages
from agent.fleet.sums import AgentSums
from agent.prometheus.answers import StoreError, StoreErrorKind
from agent.prometheus.api import QueryClient, SampleClient
from rules.gpu_sources.registry import BY_NAME as EXPORTERS
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import EVERYTHING, Window

LONGEST_CYCLES = 1.5
"""Maximum cycles of a replica's window. A longer one includes a gap, and its sums belong to no load."""

PIECE_SECONDS = 900.0
"""Maximum time range of a query after an outage of the store."""

OVERLAP_SECONDS = 60.0
"""Overlap of two pieces. It shows that a new sum did not exist before."""

LEAST_SECONDS = 4 * OVERLAP_SECONDS
"""Minimum piece to halve. Smaller pieces would be mostly overlap."""

TOO_LARGE = frozenset({StoreErrorKind.TOO_MUCH, StoreErrorKind.SLOW})
"""Errors that half a piece may avoid."""

BACK_SHARE = 0.75
"""Share of the limit below which a tier is read replica by replica again."""

COUNT_SECONDS = 300.0
"""Interval of counting the replicas of a tier that is read one by one."""

Load = tuple[int | None, bool, bool]
"""Load bin, load beyond the benchmark, backlog."""

AGENTS = TierSource()
"""Source of a tier without an entry in the configuration."""

TierReaderKey = tuple[Hashable, str]
"""Settings of a tier reader, and its tier."""


class AggregatedTierReader:
    """Reader of a tier of many replicas as sums by load."""

    def __init__(self, tier: str, summing: AgentAggregates, turn_seconds: float) -> None:
        self.tier = tier
        self._summing = summing
        self._turn = turn_seconds
        self.pages = TierPages(tier, summing.reader, turn_seconds)
        self._span: tuple[float, float] | None = None
        self._until: float | None = None

    def ask(self, since: float, until: float) -> tuple[ReplicaPage, ...]:
        """Return the newest page of every replica at `until`, with some series only. Raise StoreError."""
        found = list(self._summing.replica_pages(until))
        self._span = (self._until, until) if self._until is not None else None
        self._until = until
        return self.pages.take_pages(found)

    def minute(
        self, seen: Mapping[str, Window], context: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]:
        """Return the tier's minute from the windows of its replicas: sums by load, and each replica in its load bin.

        Raise StoreError.
        """
        each = tuple(
            load_bins.mark_backlog(load_bins.bin_window(window, context.curve, name), before.get(name))
            for name, window in sorted(seen.items())
        )
        whole = [one for one in each if self._is_minute(one.window)]
        rest = [one.window for one in each if not self._is_minute(one.window)]
        grouped = _by_load(whole)
        groups = [
            replace(_mean_load(several), window=window)
            for several, window in zip(grouped, self._added(grouped), strict=True)
        ]
        if rest:
            groups.append(
                load_bins.bin_window(windows.sum_windows(_without_load(window) for window in rest), None, None)
            )
        return tuple(groups), tuple(replace(one, window=_slim(one.window)) for one in each)

    def _is_minute(self, window: Window) -> bool:
        return self._span is not None and EVERYTHING not in window.gaps and window.span <= LONGEST_CYCLES * self._turn

    def _added(self, grouped: Sequence[Sequence[BinnedWindow]]) -> list[Window]:
        if not grouped or self._span is None:
            return []
        return self._summing.query_groups(grouped, *self._span)


def _by_load(several: Iterable[BinnedWindow]) -> list[list[BinnedWindow]]:
    grouped: dict[Load, list[BinnedWindow]] = {}
    for one in several:
        grouped.setdefault((one.bin, bool(one.beyond), bool(one.backlog)), []).append(one)
    return [grouped[load] for load in sorted(grouped, key=lambda load: (load[0] is None, load[0] or 0, *load[1:]))]


def _mean_load(several: Sequence[BinnedWindow]) -> BinnedWindow:
    """Return one binned window for all of one load, with the means of their loads."""
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
    """Return a gap with the start counters of a window that belongs to no minute."""
    starts = {family: value for family, value in window.counters.items() if family in windows.STARTS}
    reason = window.gaps.get(EVERYTHING, Gap.SCRAPE_FAILED)
    missing = windows.gap_window(window.end - min(window.span, 60.0), window.end, reason)
    return replace(missing, counters=starts)


def _slim(window: Window) -> Window:
    """Return the part of a replica's minute that rules compare between replicas, in little memory: an hour of thousands.

    Of lengths only the mean stays.
    """
    of_lengths = window.histograms.get("prompt_tokens_per_request", ())
    means = tuple(Histogram(edges=histograms.NO_GRID, counts=(part.n,), total=part.total) for part in of_lengths)
    gauges = {
        f: g
        for f, g in window.gauges.items()
        if f in ("requests_running", "requests_waiting", "requests_waiting_capacity")
    }
    return windows.take_parts(
        window,
        # One zero for all.
        counters={f: v or 0.0 for f, v in window.counters.items()},
        histograms={"prompt_tokens_per_request": means} if means else windows.NOTHING,
        gauges=gauges,
        gaps=_same_gaps(tuple(window.gaps.items())),
    )


@lru_cache(maxsize=256)
def _same_gaps(gaps: tuple[tuple[str, Gap], ...]) -> Mapping[str, Gap]:
    """Return the same object for equal gaps: most replicas of a tier have the same."""
    return MappingProxyType(dict(gaps))


class ReplicaReader:
    """Reader of a tier replica by replica. `beside` are further selectors, such as that of a GPU exporter."""

    def __init__(
        self,
        tier: str,
        selector: str,
        reader: PageReaderProtocol,
        api: SampleClient,
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
        self, seen: Mapping[str, Window], context: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]:
        """Return nothing: the pages of the replicas close their minutes."""
        return (), ()

    def ask(self, since: float, until: float) -> tuple[ReplicaPage, ...]:
        """Return the new pages of (since, until] in order of time. Raise StoreError.

        A long time is queried in pieces: an hour of many replicas is above the limits of a store. Pages of the pieces
        before an error are returned by the next call.
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
        except StoreError as error:
            if error.kind not in TOO_LARGE or until - since <= LEAST_SECONDS:
                raise
            middle = (since + until) / 2.0
            self._take(since, middle)
            self._take(middle - OVERLAP_SECONDS, until)
        else:
            self._taken += self.pages.take(found)


class AdaptiveTierReader:
    """Reader of a tier by its size. `counted` is the PromQL for the number of replicas, `most` the limit for single ones."""

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
        """Return whether the tier is read as sums now."""
        return self._now is self._summed

    def ask(self, since: float, until: float) -> tuple[ReplicaPage, ...]:
        """Return the new pages of (since, until] in order of time. Raise StoreError."""
        self._choose(until)
        return self._now.ask(since, until)

    def _choose(self, t: float) -> None:
        # The replicas of a tier that is read as sums are known already.
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
        self, seen: Mapping[str, Window], context: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]:
        """Return the minute of a tier that is read as sums. Raise StoreError."""
        return self._summed.minute(seen, context, before)

    @property
    def pages(self) -> TierPages:
        """Return the pages of the active reader."""
        return self._now.pages


TierReader = ReplicaReader | AdaptiveTierReader


def build_tier_reader(
    tier: str, source: TierSource, context: TierContext, fleet: FleetConfig, api: QueryClient
) -> TierReader:
    """Return the reader of a tier. That of agents' series adapts to the size of the tier."""
    each = build_replica_reader(tier, source, context, api)
    if source.source == "engines":
        return each
    sums = AgentSums(tier=tier, matchers=source.selector or "")
    aggregates = AgentAggregates(sums, context.basis.ttft_slo_seconds, api)
    summed = AggregatedTierReader(tier, aggregates, fleet.turn_seconds)
    return AdaptiveTierReader(each, summed, _counted(tier, source), fleet.each_up_to, api)


def build_replica_reader(tier: str, source: TierSource, context: TierContext, api: SampleClient) -> ReplicaReader:
    """Return the reader of a tier replica by replica."""
    matchers = source.selector or ""
    if source.source == "agents":
        return ReplicaReader(tier, agent_series.selector(tier, matchers), agent_series.AgentPages(), api)
    engine, gpus = _engine(source, context), None
    beside: tuple[str, ...] = ()
    if source.gpus is not None:
        exporter = EXPORTERS[source.gpus.exporter]
        gpus = engine_series.GpuPages(exporter, source.gpus.replica_label)
        beside = (engine_series.exporter_selector(exporter, source.gpus.selector),)
    pages = engine_series.EnginePages(source.replica_label, source.pool_label or "", engine, gpus)
    return ReplicaReader(tier, engine_series.engine_selector(engine, matchers), pages, api, beside=beside)


def _counted(tier: str, source: TierSource) -> str:
    """Return the PromQL for the number of replicas of a tier."""
    if source.source == "agents":
        return agent_series.replica_count_query(tier, source.selector or "")
    return engine_series.replica_count_query(source.selector or "", source.replica_label)


def uses_agent_series(config: Config, tier: str) -> bool:
    """Return whether node agents export a tier, and the store does not scrape its engines."""
    return config.tiers.get(tier, AGENTS).source == "agents"


def replica_count_query_for(config: Config, tier: str) -> str:
    """Return the PromQL for the number of replicas of a tier in the store."""
    return _counted(tier, config.tiers.get(tier, AGENTS))


def _engine(source: TierSource, context: TierContext) -> str | None:
    return source.engine or (context.plan.engine if context.plan is not None else None)
