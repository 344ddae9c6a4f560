"""Coverage of engine pages and signals: which families of a page are read, and the signals of each release.

For people: `sizewatch inspect`, the doctor, the tests that compare tables and pages. Only names and types count here;
`rules.engines.reader` decides by values and labels. Support of a signal is computed, not listed. A window with every
family of a release goes through the same reading methods as a real one. A new engine or signal needs no change here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rules.confidence import Certainty
from rules.engines.reader import SUFFIXES
from rules.engines.registry import PROCESS_START, normalize_name, select_rows, strip_wrapper_prefix
from rules.engines.table import EngineTable, SourceRow
from rules.telemetry.derived import PlanFacts
from rules.telemetry.families import GPU_NAMES, FamilyKind
from rules.telemetry.gauges import IN_SYSTEM, GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.readings import read
from rules.telemetry.signals import SIGNALS, Missing, Signal
from rules.telemetry.windows import NET_CHANGE, Window
from rules.telemetry.work import Capacity, CapacityLengths, CapacitySource, MeanTokens

SUMMARY = "summary"
"""Type of a family with a sum and a count, as a histogram has."""

_UNTYPED = frozenset({"untyped", "unknown", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyUse:
    """Family as the page prints it. `families` are the names under which it is read. `text` gives them in words, or the
    reason why a family that the table has is not read."""

    name: str
    type: str
    is_read: bool
    families: tuple[str, ...] = ()
    text: str = ""


def explain_families(engine: EngineTable, families: Mapping[str, str]) -> tuple[FamilyUse, ...]:
    """Return the use of each family of a page (printed name and type of its TYPE line), in the page's order.

    Both spellings of a counter are accepted: with `_total` (text format) and without (OpenMetrics). Parts of a
    histogram on a page without TYPE lines are accepted too.
    """
    rows = {printed: _rows_of(engine, printed, type_) for printed, type_ in families.items()}
    won = _winners(engine, rows.values())
    uses = []
    for printed, type_ in families.items():
        names = _spellings(engine, printed, type_)
        added = [row for row in won if any(re.sub("_(sum|count)$", "", more) in names for more in row.plus)]
        ours = tuple(dict.fromkeys(row.family for row in (*rows[printed], *added) if row in won))
        text = why = ", ".join(ours) or _special(engine, names[0])
        if rows[printed]:
            why = text or "another series is read in its place"
        elif not text and (other := next((row for row in engine.rows if row.source in names), None)) is not None:
            why = f"a {type_} here, a {_type(other)} in every release that was scanned"
        uses.append(FamilyUse(name=printed, type=type_, is_read=bool(text), families=ours, text=why))
    return tuple(uses)


def _winners(engine: EngineTable, found: Iterable[Iterable[SourceRow]]) -> tuple[SourceRow, ...]:
    on_page = {row.source for rows in found for row in rows}
    return select_rows(engine.rows, lambda row: row.source in on_page)


def _rows_of(engine: EngineTable, printed: str, type_: str) -> list[SourceRow]:
    """Return the rows whose source is a family of this printed name and type. Of a name without a type, only a part of a
    histogram is of a histogram."""
    bare, *others = _spellings(engine, printed, type_)
    if type_ not in _UNTYPED:
        typed = {type_, "histogram" if type_ == SUMMARY else type_}
        return [row for row in engine.rows if row.source in (bare, *others) and _type(row) in typed]
    return [
        row
        for row in engine.rows
        if row.source in others or (row.source == bare and _type(row) != FamilyKind.HISTOGRAM)
    ]


def _spellings(engine: EngineTable, printed: str, type_: str) -> tuple[str, ...]:
    name = strip_wrapper_prefix(normalize_name(printed), engine)
    if type_ == "counter":
        return name, f"{name}_total"
    return name, *(name.removesuffix(end) for end in SUFFIXES if type_ in _UNTYPED and name.endswith(end))


def _type(row: SourceRow) -> str:
    return FamilyKind.HISTOGRAM.value if row.part else row.kind.value


def _special(engine: EngineTable, name: str) -> str:
    """Return the purpose of a family that is read but feeds no family of ours. Return "" for other families."""
    purposes = {
        **dict.fromkeys((*engine.info, *(sample for _, sample in engine.fact_gauges)), "facts about the engine"),
        PROCESS_START: "tells when the process started",
        engine.born: "tells when the engine was ready",
    }
    return purposes.get(name, "")


def version_range(engine: EngineTable, families: Mapping[str, str]) -> str:
    """Return the releases that print such a page, in words: "after 0.15.1 and before 0.20.2", "" if it may be any.

    `families` are printed names and types. A name appeared after the scan before its `since`. A row with an `until`
    wins only on pages without its newer name, which are older than the next scan.
    """
    rows = [_rows_of(engine, printed, type_) for printed, type_ in families.items()]
    since = {
        row.source: engine.scanned.index(row.since) for row in reversed(engine.rows) if row.since in engine.scanned
    }
    present = {row.source for found in rows for row in found}
    first = max((since[source] for source in present & since.keys()), default=0)
    last = [engine.scanned.index(row.until) for row in _winners(engine, rows) if row.until in engine.scanned]
    before = min(last, default=len(engine.scanned)) + 1
    if before <= first:
        return ""
    words = [f"after {engine.scanned[first - 1]}"] if first else []
    words += [f"before {engine.scanned[before]}"] if before < len(engine.scanned) else []
    return " and ".join(words)


SECONDS = 60.0
REQUESTS = 120.0
AMOUNTS = {"spec_draft_tokens": 4 * REQUESTS, "spec_accepted_tokens": 2 * REQUESTS} | dict.fromkeys(
    ("prefix_hit_gauge", "external_prefix_hit_gauge", "kv_offload_utilization"), 1.0
)
"""Amounts of a minute where `REQUESTS`, or a level of 2, is impossible: parts of a whole, and gauges of at most 1."""

FULL_PLAN = PlanFacts(
    gpus_per_replica=1.0,
    gpu_hour_price=1.0,
    ttft_slo_seconds=1.0,
    tpot_slo_seconds=1.0,
    prefix_reuse_seconds=60.0,
    peak_flops=1.0,
    peak_bytes_per_second=1.0,
    capacity=Capacity(
        rps=1.0,
        low=1.0,
        high=1.0,
        source=CapacitySource.BENCHMARK,
        certainty=Certainty.CERTAIN,
        reason="one",
        lengths=CapacityLengths(
            prompt_tokens=MeanTokens(low=1.0, high=1.0),
            generation_tokens=MeanTokens(low=1.0, high=1.0),
            prefix_hit_ratio=0.0,
        ),
    ),
)
"""Plan with every fact, so that missing data is the engine's."""


class Support(StrEnum):
    """Support of a signal by an engine. `bounded`: bounds without a best estimate."""

    KNOWN = "known"
    BOUNDED = "bounded"
    NOT_EXPOSED = "not exposed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Exposure of one signal by one engine. `spans` are (support, first, last scanned release) in order; an engine
    without scanned releases has one span with empty names. `why` gives the missing data if a span is not exposed."""

    signal: str
    spans: tuple[tuple[Support, str, str], ...]
    why: str


def engine_signals() -> tuple[Signal, ...]:
    """Return the signals that an engine's page can give: all except GPU signals."""
    return tuple(s for s in SIGNALS if not all(family in GPU_NAMES for family in s.families))


def exposures(engine: EngineTable) -> tuple[Exposure, ...]:
    """Return the support of each signal, release by release."""
    windows = {release: _everything(engine, place) for place, release in enumerate(engine.scanned or ("",))}
    return tuple(_exposure(engine, signal, windows) for signal in engine_signals())


def _exposure(engine: EngineTable, signal: Signal, windows: Mapping[str, Window]) -> Exposure:
    spans: list[tuple[Support, str, str]] = []
    missing: list[Missing] = []
    for release, window in windows.items():
        value = read(signal, window, FULL_PLAN)
        support = Support.KNOWN
        if isinstance(value, Missing):
            support = Support.NOT_EXPOSED
            missing.append(value)
        elif value.value is None:
            support = Support.BOUNDED
        begin = spans.pop()[1] if spans and spans[-1][0] is support else release
        spans.append((support, begin, release))
    why = ""
    if missing and spans[-1][0] is Support.NOT_EXPOSED:
        why = _why(engine, signal, missing[-1])
    elif missing:
        why = f"not before {spans[-1][1]}"
    return Exposure(signal=signal.name, spans=tuple(spans), why=why)


def _why(engine: EngineTable, signal: Signal, missing: Missing) -> str:
    needed = [f for family in signal.families for f in (IN_SYSTEM if family == NET_CHANGE else (family,))]
    # A family that no release prints takes precedence over one that is only absent until its first event.
    printed = {row.family for row in engine.rows}
    needed.sort(key=lambda family: family in printed)
    return engine.explain_missing(needed) or missing.text or f"{engine.title} does not expose {signal.name}"


def _everything(engine: EngineTable, release: int) -> Window:
    """Return a minute in which everything that a scanned release (by its place) prints was observed."""
    place = {name: number for number, name in enumerate(engine.scanned)}
    rows = [row for row in engine.rows if place.get(row.since, 0) <= release <= place.get(row.until, release)]
    families = {kind: {row.family for row in rows if row.kind is kind} for kind in FamilyKind}
    counters = {name: AMOUNTS.get(name, REQUESTS) for name in families[FamilyKind.COUNTER]}
    if families[FamilyKind.GAUGE].issuperset(IN_SYSTEM):
        counters[NET_CHANGE] = 0.0
    if engine.born:
        counters |= {"cold_starts": 1.0, "cold_start_seconds": 30.0}
    levels = {name: AMOUNTS.get(name, 2.0) for name in families[FamilyKind.GAUGE]}
    part = (Histogram(edges=(1.0, 10.0, math.inf), counts=(0.0, REQUESTS, 0.0), total=5 * REQUESTS),)
    return Window(
        start=0.0,
        end=SECONDS,
        expected_seconds=SECONDS,
        covered_seconds=SECONDS,
        counters={"restarts": 1.0, **counters},
        histograms=dict.fromkeys(families[FamilyKind.HISTOGRAM], part),
        gauges={
            name: GaugeSum(integral=level * SECONDS, seconds=SECONDS, minimum=level, maximum=level, samples=4)
            for name, level in levels.items()
        },
    )
