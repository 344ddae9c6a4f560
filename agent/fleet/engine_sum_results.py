"""What a store's sums over replicas' own series say: of each part of a group what it did, and what it leaves open.

Owns the way from answers to `agent.fleet.engine_sums`' queries back to windows, by the engine's table. A family is taken
from the sum where every replica of the part had it at both ends, from the same row and on the same buckets; of one that
some had and some had not, or whose grids differ, the replicas are left to be asked one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from agent.fleet.engine_sums import EXPORTED, NAME, SUMS, ReleaseGroup, read_of_each, used_labels
from agent.fleet.stored_pages import StoredSeries
from agent.fleet.sums import GROUP, WHAT
from rules.engines.layout import compile_layout
from rules.engines.normalize import snapshot
from rules.engines.registry import normalize_name, strip_wrapper_prefix
from rules.engines.table import EngineTable, SourceRow
from rules.telemetry import windows
from rules.telemetry.families import FamilyKind, stem
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
"""The name of a series as the table has it, and what it looks at of its labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSums:
    """What the replicas of one part did: `window` has the families that their sum says, and covers nothing itself; `open`
    are those that it does not say."""

    window: Window
    open: frozenset[str]


class _Of(Enum):
    """How many replicas of a part had a row's family."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


@dataclass(slots=True)
class _Ends:
    """Values by series at the two ends; series of one name and kept labels, with repetitions and without, add up."""

    at: tuple[dict[Key, float], dict[Key, float]] = field(default_factory=lambda: ({}, {}))

    def take(self, key: Key, one: StoredSeries, times: tuple[float, float]) -> None:
        for end, t in zip(self.at, times, strict=True):
            for place, found in enumerate(one.times):
                if found == t:
                    end[key] = end.get(key, 0.0) + one.values[place]


@dataclass(slots=True)
class _Told:
    sums: _Ends = field(default_factory=_Ends)
    counted: _Ends = field(default_factory=_Ends)


def part_sums(
    several: Iterable[StoredSeries], parts: Iterable[ReleaseGroup], times: tuple[float, float]
) -> dict[str, PartSums | None]:
    """By part what the answers say of the time between two ends (unix seconds); None of one that they say nothing of."""
    by_key = {part.key: part for part in parts}
    told = {key: _Told() for key in by_key}
    looked = {part.engine.label: used_labels(part.engine) for part in by_key.values()}
    for one in several:
        part = by_key.get(one.labels.get(GROUP, ""))
        if part is None:
            # A series that no part of the query gives: whose it is nobody knows.
            continue
        of_part = told[part.key]
        ends = of_part.sums if one.labels.get(WHAT) == SUMS else of_part.counted
        ends.take(_key(one.labels, part.engine, looked[part.engine.label]), one, times)
    return {key: _part(by_key[key], of_part, times) for key, of_part in told.items()}


def replica_windows(
    several: Iterable[StoredSeries],
    part: ReleaseGroup,
    families: frozenset[str],
    replica_label: str,
    times: tuple[float, float],
) -> dict[str, Window]:
    """By replica of a part these families alone, of the time between two ends (unix seconds)."""
    looked = used_labels(part.engine)
    grouped: dict[str, _Ends] = {member: _Ends() for member in part.members}
    for one in several:
        of_replica = grouped.get(one.labels.get(replica_label, ""))
        if of_replica is not None:
            of_replica.take(_key(one.labels, part.engine, looked), one, times)
    return {
        replica: _only(_between(part.engine, ends, times), families)
        for replica, ends in grouped.items()
        if any(ends.at)
    }


def _key(labels: Mapping[str, str], engine: EngineTable, looked: Iterable[str]) -> Key:
    kept = ((name, labels.get(EXPORTED + name, labels.get(name, ""))) for name in looked)
    return name_of(labels, engine), tuple((name, value) for name, value in kept if value)


def name_of(labels: Mapping[str, str], engine: EngineTable) -> str:
    """The name that the series of an answer were added up under, as the engine's table has it."""
    return strip_wrapper_prefix(normalize_name(labels.get(NAME) or labels.get("__name__", "")), engine)


def _part(part: ReleaseGroup, told: _Told, times: tuple[float, float]) -> PartSums | None:
    if not all(told.counted.at):
        return None
    whole = _between(part.engine, told.sums, times)
    steady, unsure = _steady(part, told.counted)
    told_by_sum = {f for f in steady if f in whole.histograms or any(stem(c) == f for c in whole.counters)}
    return PartSums(window=_only(whole, told_by_sum), open=unsure | (steady - told_by_sum))


def _between(engine: EngineTable, ends: _Ends, times: tuple[float, float]) -> Window:
    before, after = (_page(engine, values, t) for values, t in zip(ends.at, times, strict=True))
    return windows.diff_snapshots(before, after)


def _page(engine: EngineTable, values: Mapping[Key, float], t: float) -> Snapshot:
    keys = sorted(values, key=_order)
    layout = compile_layout([(name, dict(labels)) for name, labels in keys], engine)
    return snapshot(layout, [values[key] for key in keys], t)


def _order(key: Key) -> tuple[str, Labels, float]:
    """Buckets of one histogram by their edge."""
    name, labels = key
    try:
        edge = float(dict(labels).get("le", "inf"))
    except ValueError:
        # The family is broken by it (`rules.engines.layout`), wherever it stands.
        edge = math.inf
    return name, tuple(one for one in labels if one[0] != "le"), edge


def _only(window: Window, families: Iterable[str]) -> Window:
    """Of a window some counters and histograms, and nothing of the rest."""
    kept = frozenset(families)
    return replace(
        windows.select_families(window, kept),
        gauges={},
        gaps={f: gap for f, gap in window.gaps.items() if f in kept or stem(f) in kept},
        sampled=frozenset(),
    )


def _steady(part: ReleaseGroup, counted: _Ends) -> tuple[frozenset[str], frozenset[str]]:
    """The families that all replicas had alike at both ends, and those that only some had, or in different ways."""
    rows: dict[str, list[SourceRow]] = {}
    for row in part.engine.rows:
        if not read_of_each(row):
            rows.setdefault(row.family, []).append(row)
    ends = [_Counts(values) for values in counted.at]
    steady: set[str] = set()
    unsure: set[str] = set()
    for family, several in rows.items():
        first, last = (_winner(several, end, len(part.members)) for end in ends)
        if first != last or _Of.SOME in (first, last):
            unsure.add(family)
        elif isinstance(first, SourceRow):
            alike = first.kind is not FamilyKind.HISTOGRAM or all(end.alike(first) for end in ends)
            (steady if alike else unsure).add(family)
    return frozenset(steady), frozenset(unsure)


def _winner(rows: Iterable[SourceRow], end: _Counts, members: int) -> SourceRow | _Of:
    """The row that gives a family on every replica's page, as `rules.engines.layout` chooses it; or NONE, or SOME."""
    for row in rows:
        having = end.having(row, members)
        if having is _Of.ALL:
            return row
        if having is _Of.SOME:
            return _Of.SOME
    return _Of.NONE


class _Counts:
    """Of how many replicas there were series at one end, by name and kept labels, of buckets edge by edge."""

    def __init__(self, values: Mapping[Key, float]) -> None:
        self._by_name: dict[str, dict[Labels, list[float]]] = {}
        for (name, labels), count in values.items():
            without = tuple(one for one in labels if one[0] != "le")
            self._by_name.setdefault(name, {}).setdefault(without, []).append(count)

    def having(self, row: SourceRow, members: int) -> _Of:
        """Return how many of the replicas had the row's family on their page."""
        found = self._by_name.get(row.sample, {})
        beside = (
            max((max(c) for c in self._by_name.get(row.zero_with, {}).values()), default=0.0) if row.zero_with else 0.0
        )
        asked_for = found if row.lazy else dict(self._matching(row))
        most = max((max(counts) for counts in asked_for.values()), default=0.0)
        if most >= members:
            return _Of.ALL
        if beside >= members and (row.lazy or not found or not (row.where or row.matches)):
            return _Of.ALL
        return _Of.SOME if most or (beside and not found) else _Of.NONE

    def alike(self, row: SourceRow) -> bool:
        """Return whether as many replicas stand behind every bucket of a histogram."""
        return all(len(set(counts)) == 1 for _, counts in self._matching(row))

    def _matching(self, row: SourceRow) -> Iterator[tuple[Labels, list[float]]]:
        yield from ((labels, c) for labels, c in self._by_name.get(row.sample, {}).items() if row.reads(dict(labels)))
