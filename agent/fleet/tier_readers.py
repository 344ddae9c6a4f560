"""Readers of one tier from a store: replica by replica, or a large one as sums by load.

As sums, a first query reads some series of every replica, which place its minute on the curve. Further queries sum the
replicas of one load.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from agent.config.config import Config
from agent.config.store import FleetConfig, TierSource
from agent.fleet import agent_series, engine_series
from agent.fleet.agent_series import AgentPages
from agent.fleet.stored_pages import USUAL_SECONDS, PageReaderProtocol, StoredPage, TierPages
from agent.fleet.sums import AgentSums, GroupSums, group_sums, sum_by_replica
from agent.prometheus.answers import MatrixSeries, StoreError, StoreErrorKind
from agent.prometheus.api import StoreApi
from exporters.metrics import names
from rules.gpu_sources.registry import BY_NAME as EXPORTERS
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, windows
from rules.telemetry.families import GPU_NAMES
from rules.telemetry.gpu_windows import MEMORY
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import EVERYTHING, Window

LONGEST_CYCLES = 1.5
"""Maximum cycles of a replica's window. A longer one includes a gap, and its sums belong to no load."""

TTFT_BUCKET = names.bucket("ttft_seconds")

OWN = (windows.NET_CHANGE, *windows.STARTS)
"""Counters of a group that come from its replicas, as its gauges do."""

COMPARED_GAUGES = ("requests_running", "requests_waiting", "requests_waiting_capacity", *MEMORY)
"""Gauges that rules compare between replicas."""

Minute = tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]
"""Minute of a tier: sums by load, and each replica in its load bin."""


class SummedReader:
    """Reader of one tier as sums by load. `slo_seconds` is the TTFT objective."""

    def __init__(
        self, tier: str, sums: AgentSums, slo_seconds: float | None, api: StoreApi, cycle_seconds: float
    ) -> None:
        self.tier = tier
        self.pages = TierPages(tier, AgentPages(), cycle_seconds)
        self._sums = sums
        self._slo = slo_seconds
        self._api = api
        self._cycle = cycle_seconds
        self._edges: tuple[str, ...] = ()
        self._span: tuple[float, float] | None = None
        self._until: float | None = None

    def ask(self, since: float, until: float) -> tuple[StoredPage, ...]:
        """Return the newest page of every replica at `until`, with some series. Raise StoreError."""
        samples = self._api.query(self._sums.replica_query(self._edges), until)
        self._span = None
        if self._until is not None:
            self._span = self._until, until
        self._until = until
        return self.pages.take([MatrixSeries(sample.labels, (until,), (sample.value,)) for sample in samples])

    def minute(
        self, seen: Mapping[str, Window], context: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> Minute:
        """Return the tier's minute from the windows of its replicas. Raise StoreError."""
        each = tuple(
            load_bins.mark_backlog(load_bins.bin_window(window, context.curve, name), before.get(name))
            for name, window in sorted(seen.items())
        )
        by_load: dict[tuple[int | None, bool, bool], list[BinnedWindow]] = {}
        rest = []
        for binned in each:
            if self._is_minute(binned.window):
                load = (binned.bin, bool(binned.beyond), bool(binned.backlog))
                by_load.setdefault(load, []).append(binned)
            else:
                rest.append(_without_load(binned.window))
        loads = sorted(by_load, key=lambda load: (load[0] is None, load[0] or 0, *load[1:]))
        grouped = [by_load[load] for load in loads]
        groups = []
        for members, window in zip(grouped, self._sum_groups(grouped), strict=True):
            groups.append(replace(_mean_load(members), window=window))
        if rest:
            groups.append(load_bins.bin_window(windows.sum_windows(rest), None, None))
        return tuple(groups), tuple(replace(binned, window=_slim(binned.window)) for binned in each)

    def _is_minute(self, window: Window) -> bool:
        return self._span is not None and EVERYTHING not in window.gaps and window.span <= LONGEST_CYCLES * self._cycle

    def _sum_groups(self, grouped: Sequence[Sequence[BinnedWindow]]) -> list[Window]:
        """Return the summed window of every group over the covered time of its replicas. Raise StoreError."""
        if not grouped or self._span is None:
            return []
        results = self._query(self._sums.queries(list(map(_names, grouped))), self._span)
        self._learn_edges(results)
        groups = group_sums(results, *self._span)
        return [self._whole(members, groups.get(place, []), self._span) for place, members in enumerate(grouped)]

    def _query(self, queries: Iterable[str], span: tuple[float, float]) -> list[MatrixSeries]:
        """Return the series at both ends of a span."""
        start, end = span
        series: list[MatrixSeries] = []
        for query in queries:
            series += self._api.query_range(query, start, end, end - start)
        return series

    def _whole(self, members: Sequence[BinnedWindow], parts: Sequence[GroupSums], span: tuple[float, float]) -> Window:
        """Return the sums of a group with the counters and gauges of its replicas."""
        if not parts:
            seen = windows.sum_windows(binned.window for binned in members)
            return replace(seen, gaps={**seen.gaps, EVERYTHING: Gap.SCRAPE_FAILED})
        seen = windows.sum_windows(_without_sums(binned.window) for binned in members)
        added = windows.sum_windows(part.window for part in parts)
        of_sums: dict[str, tuple[Histogram, ...]] = dict(added.histograms)
        for family in frozenset().union(*(part.mixed for part in parts)):
            queries = self._sums.histogram_by_replica_query(family, _names(members))
            of_sums[family] = sum_by_replica(self._query(queries, span), family, *span)
        known = of_sums.keys() | added.counters.keys()
        return replace(
            seen,
            counters={**added.counters, **seen.counters},
            histograms=of_sums,
            gauges={**seen.gauges, **added.gauges},
            short_seconds={family: seconds for family, seconds in seen.short_seconds.items() if family not in known},
            gaps={family: gap for family, gap in seen.gaps.items() if family not in known},
        )

    def _learn_edges(self, results: Iterable[MatrixSeries]) -> None:
        """Find the last edge up to the TTFT objective and the first beyond it, as pages print them."""
        if self._slo is None:
            return
        printed = {s.labels.get("le", "+Inf") for s in results if s.labels.get("__name__") == TTFT_BUCKET}
        edges = sorted(printed - {"+Inf"}, key=float)
        below = [edge for edge in edges if float(edge) <= self._slo]
        above = [edge for edge in edges if float(edge) > self._slo]
        self._edges = (*below[-1:], *above[:1])


def _names(members: Iterable[BinnedWindow]) -> list[str]:
    return [binned.replica or "" for binned in members]


def _mean_load(members: Sequence[BinnedWindow]) -> BinnedWindow:
    """Return one binned window for all of one load, with the means of their loads."""
    first = members[0]
    return BinnedWindow(
        replica=None,
        window=first.window,
        rps=_mean(binned.rps for binned in members),
        in_system=_mean(binned.in_system for binned in members),
        bin=first.bin,
        beyond=first.beyond,
        backlog=first.backlog,
        leftover=sum(binned.leftover for binned in members),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return sum(known) / len(known)


def _without_load(window: Window) -> Window:
    """Return a gap with the start counters of a window that belongs to no minute."""
    starts = {family: value for family, value in window.counters.items() if family in windows.STARTS}
    reason = window.gaps.get(EVERYTHING, Gap.SCRAPE_FAILED)
    missing = windows.gap_window(window.end - min(window.span, 60.0), window.end, reason)
    return replace(missing, counters=starts)


def _without_sums(window: Window) -> Window:
    """Return a replica's window without what the store adds up."""
    counters = {family: window.counters[family] for family in OWN if family in window.counters}
    gauges = {family: gauge for family, gauge in window.gauges.items() if family not in GPU_NAMES}
    return replace(window, counters=counters, histograms={}, gauges=gauges)


def _slim(window: Window) -> Window:
    """Return what rules compare of a replica's minute between replicas. Of lengths only the mean stays."""
    of_lengths = window.histograms.get("prompt_tokens_per_request", ())
    means = tuple(Histogram(edges=histograms.NO_GRID, counts=(part.n,), total=part.total) for part in of_lengths)
    return replace(
        window,
        # One zero for all.
        counters={family: value or 0.0 for family, value in window.counters.items()},
        histograms={"prompt_tokens_per_request": means} if means else {},
        gauges={family: gauge for family, gauge in window.gauges.items() if family in COMPARED_GAUGES},
        short_seconds={},
    )


_log = logging.getLogger(__name__)

MOST_ENGINES = 100
"""Maximum replicas of a tier from engines that hold 2 s of CPU a cycle and 400 MiB. A larger tier is read whole too."""

PIECE_SECONDS = 900.0
"""Maximum time range of a query after an outage of the store."""

OVERLAP_SECONDS = 60.0
"""Query overlap. Samples of one scrape arrive at different times, and it shows that a new sum did not exist before."""

LEAST_SECONDS = 4 * OVERLAP_SECONDS
"""Minimum piece to halve. Smaller pieces would be mostly overlap."""

TOO_LARGE = frozenset({StoreErrorKind.TOO_MUCH, StoreErrorKind.SLOW})
"""Errors that half a piece may avoid."""

BACK_SHARE = 0.75
"""Share of the limit below which a tier is read replica by replica again."""

AGENTS = TierSource()
"""Source of a tier without an entry in the configuration."""

TierReaderKey = tuple[Hashable, str]
"""Settings of a tier reader, and its tier."""


class ReplicaReader:
    """Reader of a tier replica by replica. `beside` are further selectors, such as that of a GPU exporter.

    A tier of more than `most` replicas is logged once.
    """

    def __init__(
        self,
        tier: str,
        selector: str,
        reader: PageReaderProtocol,
        api: StoreApi,
        usual_seconds: float = USUAL_SECONDS,
        beside: tuple[str, ...] = (),
        most: int | None = None,
    ) -> None:
        self.tier = tier
        self.sums = False
        self._selectors = (selector, *beside)
        self._api = api
        self._taken: list[StoredPage] = []
        self._most = most
        self.pages = TierPages(tier, reader, usual_seconds)

    def ask(self, since: float, until: float) -> tuple[StoredPage, ...]:
        """Return the new pages of (since, until] in order of time. Raise StoreError.

        A long time is queried in pieces: an hour of many replicas is above the limits of a store. Pages of the pieces
        before an error are returned by the next call.
        """
        at = since
        while at < until:
            end = min(until, at + PIECE_SECONDS)
            self._take(at - OVERLAP_SECONDS if at > since else at, end)
            at = end
        pages, self._taken = tuple(self._taken), []
        count = len(self.pages.pools)
        if self._most is not None and count > self._most:
            _log.warning("tier larger than measured tier=%s replicas=%d limit=%d", self.tier, count, self._most)
            self._most = None
        return pages

    def minute(
        self, seen: Mapping[str, Window], context: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> Minute:
        """Return nothing: the pages of the replicas close their minutes."""
        return (), ()

    def _take(self, since: float, until: float) -> None:
        try:
            series: list[MatrixSeries] = []
            for selector in self._selectors:
                series += self._api.query_samples(selector, since, until)
        except StoreError as error:
            if error.kind not in TOO_LARGE or until - since <= LEAST_SECONDS:
                raise
            middle = (since + until) / 2.0
            self._take(since, middle)
            self._take(middle - OVERLAP_SECONDS, until)
        else:
            self._taken += self.pages.take(series)


class AdaptiveReader:
    """Reader of a tier of agents by its size. At most `most` replicas are read one by one."""

    def __init__(self, each: ReplicaReader, summed: SummedReader, counted: str, most: int, api: StoreApi) -> None:
        self.tier = each.tier
        self._each, self._summed = each, summed
        self._now: ReplicaReader | SummedReader = each
        self._counted = counted
        self._most = most
        self._api = api

    @property
    def sums(self) -> bool:
        """Return whether the tier is read as sums now."""
        return self._now is self._summed

    @property
    def pages(self) -> TierPages:
        """Return the pages of the active reader."""
        return self._now.pages

    def ask(self, since: float, until: float) -> tuple[StoredPage, ...]:
        """Return the new pages of (since, until] in order of time. Raise StoreError."""
        # Before the first response the store counts the replicas.
        count: float = len(self.pages.pools)
        if not count:
            count = sum(sample.value for sample in self._api.query(self._counted, until))
        if not self.sums and count > self._most:
            self._now = self._summed
        elif self.sums and count <= BACK_SHARE * self._most:
            self._now = self._each
        return self._now.ask(since, until)

    def minute(
        self, seen: Mapping[str, Window], context: TierContext, before: Mapping[str | None, BinnedWindow]
    ) -> Minute:
        """Return the minute of a tier that is read as sums. Raise StoreError."""
        return self._summed.minute(seen, context, before)


TierReader = ReplicaReader | AdaptiveReader


def read_tier(reader: TierReader, since: float, until: float) -> tuple[tuple[StoredPage, ...], str]:
    """Return the new pages and missed scrapes of a tier, and why it is unavailable although the store answers, or "".

    Raise StoreError.
    """
    pages = reader.ask(since, until)
    absent, silent_since = reader.pages.missing_scrapes(until), reader.pages.all_silent_since
    if silent_since is None:
        return (*pages, *absent), ""
    if math.isfinite(silent_since):
        return pages, f"the store has had no sample of the tier for {until - silent_since:.0f} s"
    return pages, "the store has no sample of the tier"


def build_tier_reader(
    tier: str, source: TierSource, context: TierContext, fleet: FleetConfig, api: StoreApi
) -> TierReader:
    """Return the reader of a tier. That of agents' series adapts to the size of the tier."""
    each = build_replica_reader(tier, source, context, api)
    if source.source == "engines":
        return each
    matchers = source.selector or ""
    sums = AgentSums(tier=tier, matchers=matchers)
    summed = SummedReader(tier, sums, context.basis.ttft_slo_seconds, api, fleet.cycle_seconds)
    return AdaptiveReader(each, summed, agent_series.replica_count_query(tier, matchers), fleet.each_up_to, api)


def build_replica_reader(tier: str, source: TierSource, context: TierContext, api: StoreApi) -> ReplicaReader:
    """Return the reader of a tier replica by replica."""
    matchers = source.selector or ""
    if source.source == "agents":
        return ReplicaReader(tier, agent_series.selector(tier, matchers), agent_series.AgentPages(), api)
    engine = source.engine
    if not engine and context.plan is not None:
        engine = context.plan.engine
    gpus = None
    beside: tuple[str, ...] = ()
    if source.gpus is not None:
        exporter = EXPORTERS[source.gpus.exporter]
        gpus = engine_series.GpuPages(exporter, source.gpus.replica_label)
        beside = (engine_series.exporter_selector(exporter, source.gpus.selector),)
    pages = engine_series.EnginePages(source.replica_label, source.pool_label or "", engine, gpus)
    return ReplicaReader(
        tier, engine_series.engine_selector(engine, matchers), pages, api, beside=beside, most=MOST_ENGINES
    )


def uses_agent_series(config: Config, tier: str) -> bool:
    """Return whether node agents export a tier."""
    return config.tiers.get(tier, AGENTS).source == "agents"


def replica_count_query_for(config: Config, tier: str) -> str:
    """Return the PromQL for the number of replicas of a tier in the store."""
    source = config.tiers.get(tier, AGENTS)
    if source.source == "agents":
        return agent_series.replica_count_query(tier, source.selector or "")
    return engine_series.replica_count_query(source.selector or "", source.replica_label)
