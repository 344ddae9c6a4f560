"""Sums over many replicas of the engines' own series, asked of a store so that they are exact: which queries.

Owns the PromQL, as `agent.fleet.sums` does for what node agents export. What is read of every replica and what is added
up are families; which series those are is the word of the engine tables. Series that repeat one number (processes, ranks)
count once a replica. Every sum goes with the count of the replicas behind it. When a replica was scraped the store tells
(`timestamp` of `up`): an instant query gives samples that are up to five minutes old.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from agent.fleet.engine_series import UP, engines_of, source_names_regex
from agent.fleet.sums import (
    EACH_COUNTERS,
    EACH_HISTOGRAMS,
    MAX_MATCHER_CHARACTERS,
    WHAT,
    join_expressions,
    quote_value,
    regex_any,
    set_label,
    split_members,
)
from rules.engines.registry import PROCESS_START
from rules.engines.table import EngineTable, SourceRow
from rules.telemetry.families import FamilyKind

SCRAPED, SUMS, COUNTED = "scraped", "sums", "counted"
"""What a part of an answer holds, in the label `WHAT`."""

NAME = "sizewatch_name"
"""Where the name of a series stands whose repetitions were left out: that takes its name away."""

EXPORTED = "exported_"


def scrape_count_query(matchers: str, replica_label: str) -> str:
    """The PromQL of how many replicas the store scrapes."""
    return f"count(max by ({replica_label}) ({UP}{{{matchers}}}))"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseGroup:
    """Replicas of one group that run the same release of one engine, for one query. `key` is its name in the answer;
    `repeated` says that their pages print one number several times, once a process or rank."""

    key: str
    engine: EngineTable
    repeated: bool
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class EngineSums:
    """Queries over the engines' series of one tier. `engine` None is any; `replica_label` tells replicas apart."""

    engine: str | None
    matchers: str
    replica_label: str

    @cached_property
    def engines(self) -> tuple[EngineTable, ...]:
        """All generations that the tier may run."""
        return engines_of(self.engine)

    def replica_queries(self, edges: Iterable[str]) -> str:
        """What is asked of every replica, and when it was scraped; of histograms the buckets at these edges, as printed."""
        stems = {stem for engine in self.engines for stem in _of_each(engine)} | {PROCESS_START, UP}
        some = quote_value("|".join(("", *(re.escape(edge) for edge in (*edges, "+Inf")))))
        series = f'{{__name__=~"{source_names_regex(stems, self.engines)}",le=~"{some}",{self.matchers}}}'
        scraped = f"timestamp({UP}{{{self.matchers}}})"
        return f'{series} or label_replace({scraped}, "{WHAT}", "{SCRAPED}", "", "")'

    def queries(self, parts: Iterable[ReleaseGroup], of_the_target: frozenset[str]) -> Iterator[str]:
        """The sums of each part, several a query; `of_the_target` are labels that the store puts on every series."""
        return join_expressions(" or ".join(self._asked(part, of_the_target)) for part in parts)

    def families_by_replica_query(
        self, part: ReleaseGroup, families: frozenset[str], of_the_target: frozenset[str]
    ) -> Iterator[str]:
        """Some families of a part, replica by replica."""
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
        """Members in lots of which one part can be asked."""
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
    """The labels that a row of the table looks at, as the store spells them: the target's own moves a page's away."""
    return tuple(EXPORTED + name if name in of_the_target else name for name in used_labels(engine))


def used_labels(engine: EngineTable) -> tuple[str, ...]:
    """The labels that a row of the table looks at."""
    names = {"le"} | {row.by for row in engine.rows if row.by and row.kind is not FamilyKind.GAUGE}
    for row in engine.rows:
        if row.kind is not FamilyKind.GAUGE:
            names |= {key for key, _ in row.where} | {match.label for match in row.matches}
    return tuple(sorted(names))


def read_of_each(row: SourceRow) -> bool:
    """Return whether a row's family is read of every replica. What is counted in a unit that only a page tells is
    among it."""
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
    """Families that the table has several rows of: which of them counts, every replica's page must tell."""
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
