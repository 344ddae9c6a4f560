"""Windows of groups of replicas, summed by the store, from engines' series or from those of node agents.

Replicas of one load with different releases or labels are summed separately. Families that a sum leaves open, and
histograms with different bucket grids, are queried by replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from agent.fleet.agent_series import AgentPages
from agent.fleet.engine_series import EnginePages, Name
from agent.fleet.engine_sums import (
    SCRAPED,
    EngineSums,
    PartSums,
    ReleaseGroup,
    alternatives,
    name_of,
    part_sums,
    read_of_each,
    replica_windows,
    used_labels,
)
from agent.fleet.stored_pages import StoredPage
from agent.fleet.sums import GROUP, WHAT, AgentSums, GroupSums, group_sums, replica_parts
from agent.prometheus.answers import InstantSample, MatrixSeries
from agent.prometheus.api import QueryClient
from exporters.metrics import names
from rules.engines.registry import detect_engine, normalize_name, strip_wrapper_prefix
from rules.engines.table import EngineTable
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms, windows
from rules.telemetry.families import stem
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import EVERYTHING, Window

T = TypeVar("T")

RELEASES = 256
"""Maximum number of cached releases, by set of series."""

TTFT = "ttft_seconds"
TTFT_BUCKET = names.bucket(TTFT)


@dataclass(frozen=True, slots=True)
class EngineRelease:
    """Properties that replicas must share to be summed. `engine` is the place of the engine in the list.

    `repeated`: their pages repeat numbers. `markers` are the series, with labels, in which releases differ.
    """

    engine: int
    repeated: bool
    markers: frozenset[tuple[str, frozenset[str]]]


class EngineAggregates:
    """Sums of one tier from engines' series. `slo_seconds` is the TTFT objective: buckets around it are read by replica."""

    def __init__(self, sums: EngineSums, pool_label: str, slo_seconds: float | None, api: QueryClient) -> None:
        self.reader = EnginePages(sums.replica_label, pool_label, sums.engine)
        self._sums = sums
        self._slo = slo_seconds
        self._api = api
        self._edges: tuple[str, ...] = ()
        self._of_the_target: frozenset[str] = frozenset()
        self._releases: dict[tuple[Name, ...], EngineRelease | None] = {}

    def replica_pages(self, until: float) -> Iterable[StoredPage]:
        """Return the last page of every replica up to `until`, of some series. Raise StoreError."""
        return self.reader.pages(self._query_replicas(until))

    def _query_replicas(self, until: float) -> Iterator[MatrixSeries]:
        label = self._sums.replica_label
        scraped: dict[str, float] = {}
        series: list[InstantSample] = []
        for one in self._api.query(self._sums.replica_queries(self._edges), until):
            if one.labels.get(WHAT) == SCRAPED:
                replica = one.labels.get(label, "")
                scraped[replica] = max(one.value, scraped.get(replica, 0.0))
                self._of_the_target |= one.labels.keys() - {WHAT, "__name__"}
            else:
                series.append(one)
        for one in series:
            t = scraped.get(one.labels.get(label, ""))
            if t is not None:
                yield MatrixSeries(one.labels, (t,), (one.value,))

    def query_groups(self, grouped: Sequence[Sequence[BinnedWindow]], start: float, end: float) -> list[Window]:
        """Return the summed window of every group over the covered time of its replicas. Raise StoreError."""
        parts = [part for place, group in enumerate(grouped) for part in self._parts(place, group)]
        results: dict[str, list[MatrixSeries]] = {}
        for query in self._sums.queries(parts, self._of_the_target):
            for one in self._api.query_range(query, start, end, end - start):
                results.setdefault(one.labels[GROUP], []).append(one)
        self._learn_edges(parts, results)
        found = part_sums((one for several in results.values() for one in several), parts, (start, end))
        of_group: dict[str, list[Window]] = {}
        seen = {str(place): {one.replica or "": one.window for one in group} for place, group in enumerate(grouped)}
        for part in parts:
            place = part.key.partition(".")[0]
            of_group.setdefault(place, []).append(self._whole(part, found[part.key], seen[place], (start, end)))
        families = _summed_families(self._sums.engines)
        missing = (windows.gap_window(start, end, Gap.SCRAPE_FAILED),)
        return [
            _with_sums(
                windows.sum_windows(of_each.values()), windows.sum_windows(of_group.get(place, missing)), families
            )
            for place, of_each in seen.items()
        ]

    def _parts(self, place: int, group: Sequence[BinnedWindow]) -> Iterator[ReleaseGroup]:
        by_release: dict[EngineRelease, list[str]] = {}
        for one in group:
            release = self._release(self.reader.series_of(one.replica or ""))
            if release is not None:
                by_release.setdefault(release, []).append(one.replica or "")
        several = (
            (release, lot)
            for release, members in sorted(by_release.items(), key=lambda found: found[1])
            for lot in self._sums.fitting(self._sums.engines[release.engine], members)
        )
        for number, (release, lot) in enumerate(several):
            engine = self._sums.engines[release.engine]
            yield ReleaseGroup(key=f"{place}.{number}", engine=engine, repeated=release.repeated, members=lot)

    def _release(self, series: tuple[Name, ...]) -> EngineRelease | None:
        if series not in self._releases:
            if len(self._releases) >= RELEASES:
                self._releases.clear()
            self._releases[series] = self._identify_release(series)
        return self._releases[series]

    def _identify_release(self, series: tuple[Name, ...]) -> EngineRelease | None:
        engine = detect_engine(((normalize_name(name), dict(labels)) for name, labels in series), self._sums.engines)
        if engine is None:
            return None
        markers = _marker_names(engine)
        kept = frozenset(used_labels(engine)) - {"le"}
        found = [
            (strip_wrapper_prefix(normalize_name(name), engine), frozenset(label for label, _ in labels))
            for name, labels in series
        ]
        return EngineRelease(
            engine=self._sums.engines.index(engine),
            repeated=any(not labels.isdisjoint(engine.repeats) for _, labels in found),
            markers=frozenset((name, kept & labels) for name, labels in found if name in markers),
        )

    def _whole(
        self, part: ReleaseGroup, sums: PartSums | None, seen: Mapping[str, Window], times: tuple[float, float]
    ) -> Window:
        """Return the window of a part: the families of the sum and those queried by replica."""
        covered = sum(seen[name].covered_seconds for name in part.members)
        if sums is None:
            return replace(windows.gap_window(*times, Gap.SCRAPE_FAILED), expected_seconds=0.0, covered_seconds=covered)
        whole = replace(sums.window, expected_seconds=covered, covered_seconds=covered)
        if not sums.open:
            return whole
        results = (
            one
            for query in self._sums.families_by_replica_query(part, sums.open, self._of_the_target)
            for one in self._api.query_range(query, times[0], times[1], times[1] - times[0])
        )
        found = replica_windows(results, part, sums.open, self._sums.replica_label, times)
        one_by_one = [_covering(found.get(name), seen[name], times) for name in part.members]
        rest = windows.sum_windows(one_by_one)
        return replace(
            whole,
            counters={**whole.counters, **rest.counters},
            histograms={**whole.histograms, **rest.histograms},
            short_seconds={**whole.short_seconds, **rest.short_seconds},
            gaps={**whole.gaps, **rest.gaps},
        )

    def _learn_edges(self, parts: Iterable[ReleaseGroup], results: Mapping[str, Iterable[MatrixSeries]]) -> None:
        """Find the edges around the TTFT objective as the pages of each part print them, for the cascade."""
        if self._slo is None:
            return
        edges: set[str] = set()
        for part in parts:
            factor = {row.sample: row.factor for row in part.engine.rows if row.family == TTFT}
            printed = {
                (float(one.labels["le"]) * factor[name], one.labels["le"])
                for one in results.get(part.key, ())
                if (name := name_of(one.labels, part.engine)) in factor and one.labels.get("le", "+Inf") != "+Inf"
            }
            edges |= set(_edges_around(printed, self._slo))
        self._edges = tuple(sorted(edges)) or self._edges


def _edges_around(printed: Iterable[tuple[float, str]], slo_seconds: float) -> list[str]:
    """Return the last edge up to the objective and the first beyond it."""
    edges = sorted(printed)
    below = [text for edge, text in edges if edge <= slo_seconds][-1:]
    return below + [text for edge, text in edges if edge > slo_seconds][:1]


@cache
def _marker_names(engine: EngineTable) -> frozenset[str]:
    """Return the names whose presence or labels differ between releases in ways that concern sums."""
    several = alternatives(engine)
    rows = (row for row in engine.rows if not read_of_each(row))
    return frozenset(row.sample for row in rows if row.family in several or any(m.optional for m in row.matches))


@cache
def _summed_families(engines: tuple[EngineTable, ...]) -> frozenset[str]:
    return frozenset(row.family for engine in engines for row in engine.rows if not read_of_each(row))


def _covering(window: Window | None, seen: Window, times: tuple[float, float]) -> Window:
    """Return the queried window of a replica over its covered time."""
    covered = seen.covered_seconds
    found = window or Window(start=times[0], end=times[1], expected_seconds=0.0, covered_seconds=0.0)
    short = dict.fromkeys(found.short_seconds, covered)
    return replace(found, expected_seconds=covered, covered_seconds=covered, short_seconds=short)


def _with_sums(seen: Window, added: Window, families: frozenset[str]) -> Window:
    """Return a window with the given families replaced by the sums of the store."""

    def own(several: Mapping[str, T]) -> dict[str, T]:
        return {family: value for family, value in several.items() if stem(family) not in families}

    return replace(
        seen,
        counters={**own(seen.counters), **added.counters},
        histograms=added.histograms,
        short_seconds={**own(seen.short_seconds), **added.short_seconds},
        gaps={**own(seen.gaps), **added.gaps},
    )


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
