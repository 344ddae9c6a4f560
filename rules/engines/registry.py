"""Tables of the engines: one TOML file per engine generation in this folder, read once, and the types of its rows.

A file has the keys of `EngineTable`. `include` names files with further rows, and `[patterns]` gives label conditions
a name. A file with nothing but `rows` is for others to include. A new engine needs a file and no code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from itertools import chain
from typing import Any

from rules.tables import freeze, read_tables, table_path
from rules.telemetry.families import BY_NAME, FamilyKind

SUFFIXES = ("_bucket", "_sum", "_count")
PROCESS_START = "process_start_time_seconds"
"""Metric of every Prometheus client about its process (not in multiprocess mode)."""


class LabelAggregation(StrEnum):
    """Aggregation of the series of a page to one number."""

    SUM = "sum"  # extensive: add over data-parallel engines and label values
    MEAN = "mean"  # intensive: mean over engines of the maximum over processes (`pid` label)
    MAX = "max"  # the largest
    NEWEST_NAMES = "newest_names"  # number of comma-separated names in a label of the series with the newest value


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """Source of a family. The first alternative row with its source on the page wins.

    `source`: sample name with ':' written as '_', without wrapper prefixes and without a histogram's `_bucket`.
    `where` and `unless`: regular expression of a label's whole value, as in PromQL: an absent label is "". `by`: label
    whose value is appended to the family after '/'. `part`: counter taken from a histogram (its `count` or `sum`).
    `plus`: further samples added to a counter if present; `where` does not apply to them. `lazy`: label values appear
    with their first event, so a source without the value in `where` counts zero. `zero_with`: sample that makes an
    absent source zero. The source appears with its first event in every release that prints that sample. `none`: gauge
    value that means none. `factor` converts to base units; `factor_fact` multiplies by a fact of the page. `since` and
    `until`: first and last scanned releases that print it.
    """

    family: str
    source: str
    since: str = ""
    until: str = ""
    across: LabelAggregation = LabelAggregation.SUM
    where: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    by: str = ""
    part: str = ""
    plus: tuple[str, ...] = ()
    lazy: bool = False
    zero_with: str = ""
    none: float | None = None
    factor: float = 1.0
    factor_fact: str = ""
    note: str = ""

    @property
    def kind(self) -> FamilyKind:
        return BY_NAME[self.family].kind

    @property
    def sample(self) -> str:
        """Return the sample name that this row reads. For a histogram it is the buckets."""
        if self.kind is FamilyKind.HISTOGRAM:
            return f"{self.source}_bucket"
        return f"{self.source}_{self.part}" if self.part else self.source

    def reads(self, labels: Mapping[str, str]) -> bool:
        """Return whether the row reads a series of its sample with these labels."""
        if any(re.fullmatch(pattern, labels.get(label, "")) is None for label, pattern in self.where.items()):
            return False
        return not any(re.fullmatch(pattern, labels.get(label, "")) for label, pattern in self.unless.items())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineTable:
    """Table of one engine generation. It equals only itself, because it is looked up for every name of a page.

    `unique_names` identify a page, and then `signatures`, if one has all `signature_labels`. `carries_engines`: its page
    passes an engine's families through. `wrappers`: prefixes that Ray or KServe add. `repeats`: labels whose series repeat
    one number (tensor parallel). `rank_label`: data parallel. `info`: series whose labels become facts. `fact_gauges`
    (fact, sample): gauges whose value does. `born`: series that show when it was ready. `version_path`: path of the release.
    `scanned`: releases, oldest first. `not_exposed`: reason why a family is missing; `other` is that of all others.
    """

    name: str
    generation: str
    title: str
    signatures: tuple[str, ...]
    signature_labels: tuple[str, ...] = ()
    unique_names: tuple[str, ...] = ()
    carries_engines: bool = False
    wrappers: tuple[str, ...] = ("ray_", "kserve_")
    rows: tuple[SourceRow, ...]
    repeats: tuple[str, ...] = ("pid",)
    rank_label: str = ""
    info: tuple[str, ...] = ()
    fact_gauges: tuple[tuple[str, str], ...] = ()
    born: str = ""
    model_label: str = ""
    version_path: str = ""
    scanned: tuple[str, ...] = ()
    not_exposed: Mapping[str, str] = field(default_factory=dict)
    itl_is_per_token: bool = False

    @property
    def label(self) -> str:
        """Return the name for people: vLLM v1, TensorRT-LLM v1.3, Dynamo frontend."""
        return f"{self.title} {self.generation}"

    def explain_missing(self, families: Iterable[str]) -> str:
        """Return the table's reason why one of these families is missing, "" for none."""
        own = next((self.not_exposed[family] for family in families if family in self.not_exposed), "")
        return own or self.not_exposed.get("other", "")


def load_engine_tables() -> Iterator[EngineTable]:
    """Yield the tables of this folder. Raise ValueError, with the file's name, where one is no table."""
    tables = read_tables("rules.engines")
    for name, keys in tables.items():
        if set(keys) == {"rows"}:
            continue
        try:
            patterns = keys.pop("patterns", {})
            rows = [*keys.pop("rows"), *(row for more in keys.pop("include", ()) for row in tables[more]["rows"])]
            loaded = [row for keys_ in rows for row in _load_rows(keys_, patterns)]
            yield EngineTable(rows=tuple(loaded), **freeze(keys))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{table_path('rules.engines', name)}: {error}") from error


def _load_rows(keys: Mapping[str, Any], patterns: Mapping[str, str]) -> Iterator[SourceRow]:
    """Yield a row, of mean KV utilization that of the fullest engine too. Raise ValueError with the row."""
    try:
        conditions = {
            name: {label: patterns.get(pattern, pattern) for label, pattern in keys[name].items()}
            for name in ("where", "unless")
            if name in keys
        }
        for pattern in chain(*(condition.values() for condition in conditions.values())):
            re.compile(pattern)
        row = SourceRow(**freeze(keys) | conditions | {"across": LabelAggregation(keys.get("across", "sum"))})
        if row.family not in BY_NAME:
            raise ValueError(f"{row.family} is no family")
    except (TypeError, ValueError, re.error) as error:
        raise ValueError(f"row {keys.get('family')} = {keys.get('source')}: {error}") from error
    yield row
    if row.family == "kv_utilization":
        yield replace(row, family="kv_utilization_max", across=LabelAggregation.MAX)


ENGINES = tuple(sorted(load_engine_tables(), key=lambda table: (table.carries_engines, -len(table.rows))))
"""In the order in which a page is asked: the fuller table first, and what carries another engine's families last."""

ITL_PER_TOKEN = frozenset(table.name for table in ENGINES if table.itl_is_per_token)
"""Engines whose ITL is not per output event, as it is in benchmarks (METRICS 1.1, 1.2; PEERS 3.2)."""


def normalize_name(name: str) -> str:
    """Return a name with '_' for ':', as tables spell it (METRICS, trap 1)."""
    return name.replace(":", "_")


@cache
def sources(engine: EngineTable) -> frozenset[str]:
    """Return the names of all samples that the table reads, counters also with `_total`."""
    names = {*engine.signatures, engine.born, *engine.info, *(sample for _, sample in engine.fact_gauges)}
    for row in engine.rows:
        names.add(row.zero_with)
        if row.kind is FamilyKind.HISTOGRAM:
            names.update(row.source + suffix for suffix in SUFFIXES)
        else:
            names.update((row.sample, *row.plus))
        if row.kind is FamilyKind.COUNTER and not row.part:
            names.update(more.removesuffix("_total") + "_total" for more in (row.source, *row.plus))
    # A row without `zero_with` has "", the name of unnamed series.
    return frozenset(names.union(engine.unique_names) - {""})


def strip_wrapper_prefix(name: str, engine: EngineTable) -> str:
    """Return the name without what Ray, KServe or OpenTelemetry (`_total`) add."""
    plain = next((name.removeprefix(prefix) for prefix in engine.wrappers if name.startswith(prefix)), name)
    bare = plain.removesuffix("_total")
    return bare if {plain, bare} <= sources(engine) else plain


def detect_engine(
    series: Iterable[tuple[str, Mapping[str, str]]], engines: tuple[EngineTable, ...] = ENGINES
) -> EngineTable | None:
    """Return the engine generation of a page's (mapped names, labels), or None. Its own names decide, then the first
    signature: a target may have a signature's label, and a Dynamo worker passes its engine's metrics through."""
    page, signed = tuple(series), None
    for engine in engines:
        required = set(engine.signature_labels)
        for name, labels in page:
            plain = strip_wrapper_prefix(name, engine)
            if plain in engine.unique_names:
                return engine
            if plain in engine.signatures and required <= labels.keys():
                signed = signed or engine
    return signed


def select_rows(rows: Iterable[SourceRow], on_page: Callable[[SourceRow], bool]) -> tuple[SourceRow, ...]:
    """Return the first alternative of each family with its source on the page."""
    won: dict[str, SourceRow] = {}
    for row in rows:
        if row.family not in won and on_page(row):
            won[row.family] = row
    return tuple(won.values())
