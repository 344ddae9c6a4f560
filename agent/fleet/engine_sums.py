"""Exact sums of the engines' own series over many replicas: PromQL queries, and windows from their results.

`agent.fleet.sums` has the same for the series of node agents. Series that repeat one number (processes, ranks) count
once per replica. Every sum comes with the number of its replicas. A family counts as summed if every replica had it at
both ends, from the same row and with the same buckets; other families are queried by replica. The scrape time is the
`timestamp` of `up`: an instant query returns samples up to five minutes old.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from agent.fleet.engine_series import EXPORTED, UP, engines_of, source_names_regex
from agent.fleet.sums import (
    COUNTED,
    EACH_COUNTERS,
    EACH_HISTOGRAMS,
    GROUP,
    MAX_MATCHER_CHARACTERS,
    SUMS,
    WHAT,
    join_expressions,
    quote_value,
    regex_any,
    set_label,
    split_members,
)
from agent.prometheus.answers import MatrixSeries
from rules.engines.layout import compile_layout
from rules.engines.normalize import snapshot
from rules.engines.registry import PROCESS_START, normalize_name, strip_wrapper_prefix
from rules.engines.table import EngineTable, SourceRow
from rules.telemetry import windows
from rules.telemetry.families import FamilyKind, stem
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

SCRAPED = "scraped"
"""Value of the label `WHAT` for scrape times, beside SUMS and COUNTED."""

NAME = "sizewatch_name"
"""Label with the name of a series whose repetitions were removed: the removal drops the name."""


Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
"""Name of a series in the engine table, and the labels that the table uses."""


def scrape_count_query(matchers: str, replica_label: str) -> str:
    """Return the PromQL for the number of scraped replicas."""
    return f"count(max by ({replica_label}) ({UP}{{{matchers}}}))"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseGroup:
    """Replicas of one group with the same release of an engine, for one query. `key` is its name in the response.

    `repeated`: their pages print a number once per process or rank.
    """

    key: str
    engine: EngineTable
    repeated: bool
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSums:
    """Sums of the replicas of one part. `window` covers no time itself; families in `open` need queries by replica."""

    window: Window
    open: frozenset[str]


class _Share(Enum):
    """Share of a part's replicas that had the family of a row."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


@dataclass(slots=True)
class _Ends:
    """Values by series at both ends. Series of the same key add up."""

    at: tuple[dict[Key, float], dict[Key, float]] = field(default_factory=lambda: ({}, {}))

    def take(self, key: Key, one: MatrixSeries, times: tuple[float, float]) -> None:
        for end, t in zip(self.at, times, strict=True):
            for place, found in enumerate(one.times):
                if found == t:
                    end[key] = end.get(key, 0.0) + one.values[place]


@dataclass(frozen=True, kw_only=True)
class EngineSums:
    """Queries over the engines' series of one tier. `engine` None is any; `replica_label` identifies replicas."""

    engine: str | None
    matchers: str
    replica_label: str

    @cached_property
    def engines(self) -> tuple[EngineTable, ...]:
        """Return all generations that the tier may run."""
        return engines_of(self.engine)

    def replica_queries(self, edges: Iterable[str]) -> str:
        """Return the query for the series of every replica and its scrape time. `edges` are printed bucket edges."""
        stems = {stem for engine in self.engines for stem in _of_each(engine)} | {PROCESS_START, UP}
        some = quote_value("|".join(("", *(re.escape(edge) for edge in (*edges, "+Inf")))))
        series = f'{{__name__=~"{source_names_regex(stems, self.engines)}",le=~"{some}",{self.matchers}}}'
        scraped = f"timestamp({UP}{{{self.matchers}}})"
        return f'{series} or label_replace({scraped}, "{WHAT}", "{SCRAPED}", "", "")'

    def queries(self, parts: Iterable[ReleaseGroup], of_the_target: frozenset[str]) -> Iterator[str]:
        """Yield the queries for the sums of all parts. `of_the_target` are labels that the store adds to every series."""
        return join_expressions(" or ".join(self._asked(part, of_the_target)) for part in parts)

    def families_by_replica_query(
        self, part: ReleaseGroup, families: frozenset[str], of_the_target: frozenset[str]
    ) -> Iterator[str]:
        """Yield the queries for some families of a part by replica."""
        stems = {stem for row in part.engine.rows if row.family in families for stem in _summed(row)}
        for some in split_members(
            part.members, MAX_MATCHER_CHARACTERS - len(source_names_regex(stems, (part.engine,))) - 800
        ):
            text = self._sum(
                replace(part, members=some),
                stems,
                (*stored_label_names(part.engine, of_the_target), self.replica_label),
            )
            yield set_label(text, part.key, SUMS)

    def fitting(self, engine: EngineTable, members: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """Split members into lots that fit into a query."""
        names = len(source_names_regex(_summed_of(engine), (engine,)))
        return split_members(members, MAX_MATCHER_CHARACTERS / 2 - names - 600)

    def _asked(self, part: ReleaseGroup, of_the_target: frozenset[str]) -> Iterator[str]:
        by, stems = stored_label_names(part.engine, of_the_target), _summed_of(part.engine)
        yield set_label(self._sum(part, stems, by), part.key, SUMS)
        labels = ", ".join(("__name__", *by))
        one_a_replica = f"count by ({labels}, {self.replica_label}) ({self._selector(part, stems)})"
        yield set_label(f"count by ({labels}) ({one_a_replica})", part.key, COUNTED)

    def _sum(self, part: ReleaseGroup, stems: Iterable[str], by: Sequence[str]) -> str:
        series = self._selector(part, stems)
        if not part.repeated:
            return f"sum by ({', '.join(('__name__', *by))}) ({series})"
        named = f'label_replace({series}, "{NAME}", "$1", "__name__", "(.+)")'
        once = f"max without ({', '.join(part.engine.repeats)}) ({named})"
        return f"sum by ({', '.join((NAME, *by))}) ({once})"

    def _selector(self, part: ReleaseGroup, stems: Iterable[str]) -> str:
        name = source_names_regex(stems, (part.engine,))
        return f'{{__name__=~"{name}",{self.replica_label}=~"{regex_any(part.members)}",{self.matchers}}}'


def stored_label_names(engine: EngineTable, of_the_target: frozenset[str]) -> tuple[str, ...]:
    """Return the labels that the table uses, as stored: a label of the target renames that of the page."""
    return tuple(EXPORTED + name if name in of_the_target else name for name in used_labels(engine))


def used_labels(engine: EngineTable) -> tuple[str, ...]:
    """Return the labels that the table uses."""
    names = {"le"} | {row.by for row in engine.rows if row.by and row.kind is not FamilyKind.GAUGE}
    for row in engine.rows:
        if row.kind is not FamilyKind.GAUGE:
            names |= {key for key, _ in row.where} | {match.label for match in row.matches}
    return tuple(sorted(names))


def read_of_each(row: SourceRow) -> bool:
    """Return whether a row's family is read from every replica, as are counters whose unit is a fact of the page."""
    if row.kind is FamilyKind.COUNTER:
        return row.family in EACH_COUNTERS or bool(row.factor_fact)
    return row.kind is FamilyKind.GAUGE


def _of_each(engine: EngineTable) -> Iterator[str]:
    yield from (*engine.signatures, *engine.info, *(sample for _, sample in engine.fact_gauges))
    yield from (engine.born,) if engine.born else ()
    several = alternatives(engine)
    for row in engine.rows:
        if row.kind is FamilyKind.HISTOGRAM and row.family in EACH_HISTOGRAMS:
            yield from (f"{row.source}_bucket", f"{row.source}_sum")
        elif read_of_each(row) or row.family in several:
            yield from (row.sample, *row.plus)
        yield from (row.zero_with,) if row.zero_with else ()


def alternatives(engine: EngineTable) -> frozenset[str]:
    """Return the families with several rows. The page of each replica determines the row that counts."""
    names = [row.family for row in engine.rows]
    return frozenset(name for name in names if names.count(name) > 1)


def _summed_of(engine: EngineTable) -> frozenset[str]:
    return frozenset(stem for row in engine.rows if not read_of_each(row) for stem in _summed(row))


def _summed(row: SourceRow) -> Iterator[str]:
    if row.kind is FamilyKind.HISTOGRAM:
        yield from (f"{row.source}_bucket", f"{row.source}_sum")
    else:
        yield from (row.sample, *row.plus)
    if row.zero_with:
        yield row.zero_with


def part_sums(
    several: Iterable[MatrixSeries], parts: Iterable[ReleaseGroup], times: tuple[float, float]
) -> dict[str, PartSums | None]:
    """Return the sums of each part between two times (unix seconds), None without data."""
    by_key = {part.key: part for part in parts}
    found = {key: (_Ends(), _Ends()) for key in by_key}
    used = {part.engine.label: used_labels(part.engine) for part in by_key.values()}
    for one in several:
        part = by_key.get(one.labels.get(GROUP, ""))
        if part is None:
            # The series belongs to no part of the query.
            continue
        sums, counts = found[part.key]
        ends = sums if one.labels.get(WHAT) == SUMS else counts
        ends.take(_key(one.labels, part.engine, used[part.engine.label]), one, times)
    return {key: _part(by_key[key], sums, counts, times) for key, (sums, counts) in found.items()}


def replica_windows(
    several: Iterable[MatrixSeries],
    part: ReleaseGroup,
    families: frozenset[str],
    replica_label: str,
    times: tuple[float, float],
) -> dict[str, Window]:
    """Return the given families of each replica of a part between two times (unix seconds)."""
    used = used_labels(part.engine)
    grouped: dict[str, _Ends] = {member: _Ends() for member in part.members}
    for one in several:
        of_replica = grouped.get(one.labels.get(replica_label, ""))
        if of_replica is not None:
            of_replica.take(_key(one.labels, part.engine, used), one, times)
    return {
        replica: _only(_between(part.engine, ends, times), families)
        for replica, ends in grouped.items()
        if any(ends.at)
    }


def _key(labels: Mapping[str, str], engine: EngineTable, used: Iterable[str]) -> Key:
    kept = ((name, labels.get(EXPORTED + name, labels.get(name, ""))) for name in used)
    return name_of(labels, engine), tuple((name, value) for name, value in kept if value)


def name_of(labels: Mapping[str, str], engine: EngineTable) -> str:
    """Return the name of summed series in the engine table."""
    return strip_wrapper_prefix(normalize_name(labels.get(NAME) or labels.get("__name__", "")), engine)


def _part(part: ReleaseGroup, sums: _Ends, counts: _Ends, times: tuple[float, float]) -> PartSums | None:
    if not all(counts.at):
        return None
    whole = _between(part.engine, sums, times)
    steady, unsure = _steady(part, counts)
    summed = {f for f in steady if f in whole.histograms or any(stem(c) == f for c in whole.counters)}
    return PartSums(window=_only(whole, summed), open=unsure | (steady - summed))


def _between(engine: EngineTable, ends: _Ends, times: tuple[float, float]) -> Window:
    before, after = (_page(engine, values, t) for values, t in zip(ends.at, times, strict=True))
    return windows.diff_snapshots(before, after)


def _page(engine: EngineTable, values: Mapping[Key, float], t: float) -> Snapshot:
    keys = sorted(values, key=_order)
    layout = compile_layout([(name, dict(labels)) for name, labels in keys], engine)
    return snapshot(layout, [values[key] for key in keys], t)


def _order(key: Key) -> tuple[str, Labels, float]:
    """Order the buckets of a histogram by their edge."""
    name, labels = key
    try:
        edge = float(dict(labels).get("le", "inf"))
    except ValueError:
        # An invalid edge invalidates the family in any place (`rules.engines.layout`).
        edge = math.inf
    return name, tuple(one for one in labels if one[0] != "le"), edge


def _only(window: Window, families: Iterable[str]) -> Window:
    """Return a window with the counters and histograms of some families only."""
    kept = frozenset(families)
    return replace(
        windows.select_families(window, kept),
        gauges={},
        gaps={f: gap for f, gap in window.gaps.items() if f in kept or stem(f) in kept},
        sampled=frozenset(),
    )


def _steady(part: ReleaseGroup, counted: _Ends) -> tuple[frozenset[str], frozenset[str]]:
    """Return the families that all replicas had alike at both ends, and those that only some had, or differently."""
    rows: dict[str, list[SourceRow]] = {}
    for row in part.engine.rows:
        if not read_of_each(row):
            rows.setdefault(row.family, []).append(row)
    ends = [_Counts(values) for values in counted.at]
    steady: set[str] = set()
    unsure: set[str] = set()
    for family, several in rows.items():
        first, last = (_winner(several, end, len(part.members)) for end in ends)
        if first != last or _Share.SOME in (first, last):
            unsure.add(family)
        elif isinstance(first, SourceRow):
            alike = first.kind is not FamilyKind.HISTOGRAM or all(end.alike(first) for end in ends)
            (steady if alike else unsure).add(family)
    return frozenset(steady), frozenset(unsure)


def _winner(rows: Iterable[SourceRow], end: _Counts, members: int) -> SourceRow | _Share:
    """Return the row of a family on every replica's page, as `rules.engines.layout` chooses it; or NONE, or SOME."""
    for row in rows:
        having = end.having(row, members)
        if having is _Share.ALL:
            return row
        if having is _Share.SOME:
            return _Share.SOME
    return _Share.NONE


class _Counts:
    """Numbers of replicas with a series at one end, by name and labels, for buckets edge by edge."""

    def __init__(self, values: Mapping[Key, float]) -> None:
        self._by_name: dict[str, dict[Labels, list[float]]] = {}
        for (name, labels), count in values.items():
            without = tuple(one for one in labels if one[0] != "le")
            self._by_name.setdefault(name, {}).setdefault(without, []).append(count)

    def having(self, row: SourceRow, members: int) -> _Share:
        """Return the share of the replicas that had the row's family."""
        found = self._by_name.get(row.sample, {})
        with_zero = _most(self._by_name.get(row.zero_with, {})) if row.zero_with else 0.0
        having = _most(found if row.lazy else dict(self._matching(row)))
        if having >= members:
            return _Share.ALL
        if with_zero >= members and (row.lazy or not found or not (row.where or row.matches)):
            return _Share.ALL
        return _Share.SOME if having or (with_zero and not found) else _Share.NONE

    def alike(self, row: SourceRow) -> bool:
        """Return whether every bucket of a histogram has the same number of replicas."""
        return all(len(set(counts)) == 1 for _, counts in self._matching(row))

    def _matching(self, row: SourceRow) -> Iterator[tuple[Labels, list[float]]]:
        yield from ((labels, c) for labels, c in self._by_name.get(row.sample, {}).items() if row.reads(dict(labels)))


def _most(counts: Mapping[Labels, list[float]]) -> float:
    return max(map(max, counts.values()), default=0.0)
