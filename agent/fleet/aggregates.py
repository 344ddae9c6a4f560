"""Windows of groups of replicas, summed by the store from the series of node agents.

Histograms whose replicas have different bucket grids are queried by replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from agent.fleet.agent_series import AgentPages
from agent.fleet.stored_pages import StoredPage
from agent.fleet.sums import WHAT, AgentSums, GroupSums, group_sums, replica_parts
from agent.prometheus.answers import MatrixSeries
from agent.prometheus.api import QueryClient
from exporters.metrics import names
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import EVERYTHING, Window

TTFT_BUCKET = names.bucket("ttft_seconds")


def _edges_around(printed: Iterable[tuple[float, str]], slo_seconds: float) -> list[str]:
    """Return the last edge up to the objective and the first beyond it."""
    edges = sorted(printed)
    below = [text for edge, text in edges if edge <= slo_seconds][-1:]
    return below + [text for edge, text in edges if edge > slo_seconds][:1]


OWN = (windows.NET_CHANGE, *windows.STARTS)
"""Counters of a group that come from its replicas, as its gauges do."""


def _without_sums(window: Window) -> Window:
    """Return a replica's window without what the store adds up."""
    counters = {family: window.counters[family] for family in OWN if family in window.counters}
    return windows.take_parts(window, counters=counters, gauges=window.gauges, short_seconds=window.short_seconds)


class AgentAggregates:
    """Sums of one tier from agents' series. `slo_seconds` is the TTFT objective: buckets around it are read by replica."""

    def __init__(self, sums: AgentSums, slo_seconds: float | None, api: QueryClient) -> None:
        self.reader = AgentPages()
        self._sums = sums
        self._slo = slo_seconds
        self._api = api
        self._edges: tuple[str, ...] = ()

    def replica_pages(self, until: float) -> Iterable[StoredPage]:
        """Return the page of every replica at `until`, of some series. The agents export the scrape times. Raise StoreError.

        Where several agents export a replica, such as after its pod moved, the labels of agents are needed.
        """
        rows = self._api.query_rows(self._sums.replica_query(self._edges), until, names.REPLICA)
        if not any(WHAT in kind.labels for kind in rows.kinds):
            return self.reader.row_pages(rows, until)
        found = self._api.query(self._sums.replica_selector(self._edges), until)
        times = (until,)
        return self.reader.pages([MatrixSeries(one.labels, times, (one.value,)) for one in found])

    def query_groups(self, grouped: Sequence[Sequence[BinnedWindow]], start: float, end: float) -> list[Window]:
        """Return the summed window of every group over the covered time of its replicas. Raise StoreError."""
        members = [[one.replica or "" for one in several] for several in grouped]
        results = [
            one
            for query in self._sums.queries(members)
            for one in self._api.query_range(query, start, end, end - start)
        ]
        self._learn_edges(results)
        found = group_sums(results, start, end)
        return [self._whole(several, found.get(place, ()), start, end) for place, several in enumerate(grouped)]

    def _whole(self, several: Sequence[BinnedWindow], parts: Sequence[GroupSums], start: float, end: float) -> Window:
        if not parts:
            seen = windows.sum_windows(one.window for one in several)
            return replace(seen, gaps={**seen.gaps, EVERYTHING: Gap.SCRAPE_FAILED})
        seen = windows.sum_windows(_without_sums(one.window) for one in several)
        added = windows.sum_windows(part.window for part in parts)
        parts_of = dict(added.histograms)
        for family in frozenset().union(*(part.mixed for part in parts)):
            parts_of[family] = self._replica_by_replica(family, several, start, end)
        return replace(
            seen,
            counters={**added.counters, **seen.counters},
            histograms=parts_of,
            gauges={**seen.gauges, **added.gauges},
            short_seconds={
                f: s for f, s in seen.short_seconds.items() if f not in parts_of and f not in added.counters
            },
            gaps={f: gap for f, gap in seen.gaps.items() if f not in parts_of and f not in added.counters},
        )

    def _replica_by_replica(
        self, family: str, several: Sequence[BinnedWindow], start: float, end: float
    ) -> tuple[Histogram, ...]:
        members = [one.replica or "" for one in several]
        results = (
            one
            for query in self._sums.histogram_by_replica_query(family, members)
            for one in self._api.query_range(query, start, end, end - start)
        )
        parts = replica_parts(results, start, end)
        return histograms.sum_histograms(part for found in parts.values() for part in found.get(family, ()))

    def _learn_edges(self, results: Iterable[MatrixSeries]) -> None:
        """Find the edges around the TTFT objective as the tier's pages print them, for the cascade."""
        if self._slo is None:
            return
        printed = {
            one.labels["le"] for one in results if one.labels.get("__name__") == TTFT_BUCKET and "le" in one.labels
        }
        self._edges = tuple(_edges_around(((float(text), text) for text in printed if text != "+Inf"), self._slo))
