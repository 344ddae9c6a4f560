"""The sums of a tier that node agents tell of: asked of the store, and put together to a window for each load.

Owns what becomes of the answers to `agent.fleet.sums`' questions. Histograms whose replicas have different bucket grids
are asked again replica by replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from agent.fleet.agent_series import AgentPages
from agent.fleet.sums import AgentSums
from agent.fleet.sums_found import GroupSums, group_sums, replica_parts
from agent.prometheus.answers import InstantSample, MatrixSeries
from exporters.metrics import names
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import EVERYTHING, Window


class RangeQueryClient(Protocol):
    """What is asked: `agent.prometheus.api.StoreApi`."""

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]: ...

    def query_range(self, expr: str, start: float, end: float, step: float) -> tuple[MatrixSeries, ...]: ...


class AgentAggregates:
    """The questions of one tier; `slo_seconds` is its TTFT objective, around which every replica's buckets are read."""

    def __init__(self, sums: AgentSums, slo_seconds: float | None, api: RangeQueryClient) -> None:
        self.reader = AgentPages()
        self._sums = sums
        self._slo = slo_seconds
        self._api = api
        self._edges: tuple[str, ...] = ()

    def query_replicas(self, until: float) -> Iterable[MatrixSeries]:
        """Every replica's few series at `until`; when each was scraped the agents tell themselves. Raises StoreTrouble."""
        found = self._api.query(self._sums.replica_selector(self._edges), until)
        return (MatrixSeries(one.labels, (until,), (one.value,)) for one in found)

    def query_groups(self, grouped: Sequence[Sequence[BinnedWindow]], start: float, end: float) -> list[Window]:
        """The window of every group: what the store added up, over the time that its replicas were seen."""
        members = [[one.replica or "" for one in several] for several in grouped]
        answers = [
            one
            for query in self._sums.queries(members)
            for one in self._api.query_range(query, start, end, end - start)
        ]
        self._learn_edges(answers)
        found = group_sums(answers, start, end)
        return [self._whole(several, found.get(place, ()), start, end) for place, several in enumerate(grouped)]

    def _whole(self, several: Sequence[BinnedWindow], parts: Sequence[GroupSums], start: float, end: float) -> Window:
        seen = windows.sum_windows(one.window for one in several)
        if not parts:
            return replace(seen, gaps={**seen.gaps, EVERYTHING: Gap.SCRAPE_FAILED})
        added = windows.sum_windows(part.window for part in parts)
        parts_of = dict(added.histograms)
        for family in frozenset().union(*(part.mixed for part in parts)):
            parts_of[family] = self._replica_by_replica(family, several, start, end)
        told = {f: v for f, v in seen.counters.items() if f in (windows.NET_CHANGE, *windows.STARTS)}
        return replace(
            seen,
            counters={**added.counters, **told},
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
        answers = (
            one
            for query in self._sums.histogram_by_replica_query(family, members)
            for one in self._api.query_range(query, start, end, end - start)
        )
        parts = replica_parts(answers, start, end)
        return histograms.sum_histograms(part for found in parts.values() for part in found.get(family, ()))

    def _learn_edges(self, answers: Iterable[MatrixSeries]) -> None:
        """The edges around the TTFT objective as this tier's pages print them: the cascade counts what was later."""
        if self._slo is None:
            return
        printed = {
            one.labels["le"] for one in answers if one.labels.get("__name__") == TTFT_BUCKET and "le" in one.labels
        }
        numbers = sorted((float(text), text) for text in printed if text != "+Inf")
        below = [text for edge, text in numbers if edge <= self._slo][-1:]
        above = [text for edge, text in numbers if edge > self._slo][:1]
        self._edges = (*below, *above)


TTFT_BUCKET = names.bucket("ttft_seconds")
