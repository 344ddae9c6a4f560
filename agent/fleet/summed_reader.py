"""Reader of a tier of many replicas, whose series of node agents the store adds up by load.

A first query reads some series of every replica, which place its minute on the curve. Further queries sum the replicas
of one load. Their number grows with the number of tiers, their length with the number of replicas. Histograms whose
replicas have different bucket grids are queried by replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agent.fleet.agent_series import AgentPages
from agent.fleet.stored_pages import StoredPage, TierPages
from agent.fleet.sums import AgentSums, GroupSums, group_sums, sum_by_replica
from agent.prometheus.answers import MatrixSeries
from agent.prometheus.api import StoreApi
from exporters.metrics import names
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import EVERYTHING, Window

LONGEST_CYCLES = 1.5
"""Maximum cycles of a replica's window. A longer one includes a gap, and its sums belong to no load."""

TTFT_BUCKET = names.bucket("ttft_seconds")

OWN = (windows.NET_CHANGE, *windows.STARTS)
"""Counters of a group that come from its replicas, as its gauges do."""

COMPARED_GAUGES = ("requests_running", "requests_waiting", "requests_waiting_capacity")
"""Gauges that rules compare between replicas."""

Minute = tuple[tuple[BinnedWindow, ...], tuple[BinnedWindow, ...]]
"""Minute of a tier: sums by load, and each replica in its load bin."""


class SummedReader:
    """Reader of one tier as sums by load. `slo_seconds` is the TTFT objective: buckets around it are read by replica."""

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
        """Return the newest page of every replica at `until`, with some series only. Raise StoreError."""
        samples = self._api.query(self._sums.replica_query(self._edges), until)
        self._span = (self._until, until) if self._until is not None else None
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
        grouped = [
            by_load[load] for load in sorted(by_load, key=lambda load: (load[0] is None, load[0] or 0, *load[1:]))
        ]
        groups = [
            replace(_mean_load(members), window=window)
            for members, window in zip(grouped, self._sum_groups(grouped), strict=True)
        ]
        if rest:
            groups.append(load_bins.bin_window(windows.sum_windows(rest), None, None))
        return tuple(groups), tuple(replace(binned, window=_slim(binned.window)) for binned in each)

    def _is_minute(self, window: Window) -> bool:
        return self._span is not None and EVERYTHING not in window.gaps and window.span <= LONGEST_CYCLES * self._cycle

    def _sum_groups(self, grouped: Sequence[Sequence[BinnedWindow]]) -> list[Window]:
        """Return the summed window of every group over the covered time of its replicas. Raise StoreError."""
        if not grouped or self._span is None:
            return []
        results = self._query(self._sums.queries([_names(members) for members in grouped]), self._span)
        self._learn_edges(results)
        groups = group_sums(results, *self._span)
        return [self._whole(members, groups.get(place, []), self._span) for place, members in enumerate(grouped)]

    def _query(self, queries: Iterable[str], span: tuple[float, float]) -> list[MatrixSeries]:
        """Return the series at both ends of a span."""
        start, end = span
        return [series for query in queries for series in self._api.query_range(query, start, end, end - start)]

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
        """Find the last edge up to the TTFT objective and the first beyond it as pages print them, for the cascade."""
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
    rps = [binned.rps for binned in members if binned.rps is not None]
    in_system = [binned.in_system for binned in members if binned.in_system is not None]
    first = members[0]
    return BinnedWindow(
        replica=None,
        window=first.window,
        rps=sum(rps) / len(rps) if rps else None,
        in_system=sum(in_system) / len(in_system) if in_system else None,
        bin=first.bin,
        beyond=first.beyond,
        backlog=first.backlog,
        leftover=sum(binned.leftover for binned in members),
    )


def _without_load(window: Window) -> Window:
    """Return a gap with the start counters of a window that belongs to no minute."""
    starts = {family: value for family, value in window.counters.items() if family in windows.STARTS}
    reason = window.gaps.get(EVERYTHING, Gap.SCRAPE_FAILED)
    missing = windows.gap_window(window.end - min(window.span, 60.0), window.end, reason)
    return replace(missing, counters=starts)


def _without_sums(window: Window) -> Window:
    """Return a replica's window without what the store adds up."""
    counters = {family: window.counters[family] for family in OWN if family in window.counters}
    return replace(window, counters=counters, histograms={})


def _slim(window: Window) -> Window:
    """Return the part of a replica's minute that rules compare between replicas, in little memory: an hour of thousands.

    Of lengths only the mean stays.
    """
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
