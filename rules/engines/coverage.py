"""Coverage of engine pages and signals: which families of a page are read, and the signals of each release.

For people: `sizewatch inspect`, the doctor, the tests that compare tables and pages. Only names and types count here;
`rules.engines.reader` decides by values and labels. Support of a signal is computed, not listed. A window with every
family of a release goes through the same reading methods as a real one. A new engine or signal needs no change here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from rules.confidence import Certainty
from rules.engines.reader import SUFFIXES
from rules.engines.registry import PROCESS_START, normalize_name, select_rows, strip_wrapper_prefix
from rules.engines.table import EngineTable, SourceRow
from rules.light_dataclass import light_dataclass
from rules.telemetry.derived import PlanFacts
from rules.telemetry.families import BY_NAME, FamilyKind
from rules.telemetry.gauges import IN_SYSTEM, GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.readings import read
from rules.telemetry.signals import SIGNALS, Missing, Signal, SignalValue
from rules.telemetry.snapshots import GPU_NAMES
from rules.telemetry.windows import NET_CHANGE, Window
from rules.telemetry.work import Capacity, CapacityLengths, CapacitySource, MeanTokens

SUMMARY = "summary"
"""Type of a family with a sum and a count, as a histogram has."""

_UNTYPED = frozenset({"untyped", "unknown", ""})


@light_dataclass(frozen=True, slots=True, kw_only=True)
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
    fitting = {printed: _rows_of(engine, printed, type_) for printed, type_ in families.items()}
    won = _winners(engine, fitting)
    return tuple(_use(engine, won, rows, printed, families[printed]) for printed, rows in fitting.items())


def _winners(engine: EngineTable, fitting: Mapping[str, Iterable[SourceRow]]) -> tuple[SourceRow, ...]:
    on_page = {row.source for rows in fitting.values() for row in rows}
    return select_rows(engine.rows, lambda row: row.source in on_page)


def _rows_of(engine: EngineTable, printed: str, type_: str) -> list[SourceRow]:
    """Return the rows whose source is a family of this printed name and type."""
    bare, *others = _spellings(engine, printed, type_)
    untyped = type_ in _UNTYPED
    return [
        row
        for row in engine.rows
        if (row.source == bare and (_type(row) == type_ or (untyped and _type(row) != FamilyKind.HISTOGRAM)))
        or (row.source in others and (untyped or _type(row) == type_))
        or (row.source == bare and row.part and type_ == SUMMARY)
    ]


def _spellings(engine: EngineTable, printed: str, type_: str) -> tuple[str, ...]:
    name = strip_wrapper_prefix(normalize_name(printed), engine)
    if type_ == "counter":
        return name, f"{name}_total"
    return name, *(name.removesuffix(end) for end in SUFFIXES if type_ in _UNTYPED and name.endswith(end))


def _type(row: SourceRow) -> str:
    return FamilyKind.HISTOGRAM.value if row.part else row.kind.value


def _stem(sample: str) -> str:
    return sample.removesuffix("_sum").removesuffix("_count")


def _use(engine: EngineTable, won: tuple[SourceRow, ...], rows: list[SourceRow], printed: str, type_: str) -> FamilyUse:
    names = _spellings(engine, printed, type_)
    added = [row for row in won if any(_stem(sample) in names or sample in names for sample in row.plus)]
    read = tuple(dict.fromkeys(row.family for row in (*rows, *added) if row in won))
    special = ", ".join(read) or _special(engine, names[0])
    if special:
        return FamilyUse(name=printed, type=type_, is_read=True, families=read, text=special)
    text = "another series is read in its place" if rows else ""
    other = next((_type(row) for row in engine.rows if row.source in names), "")
    if other and not rows:
        text = f"a {type_} here, a {other} in every release that was scanned"
    return FamilyUse(name=printed, type=type_, is_read=False, text=text)


def _special(engine: EngineTable, name: str) -> str:
    """Return the purpose of a family that is read but feeds no family of ours. Return "" for other families."""
    if name == PROCESS_START:
        return "tells when the process started"
    if name == engine.born:
        return "tells when the engine was ready"
    facts = (*engine.info, *(sample for _, sample in engine.fact_gauges))
    return "facts about the engine" if name in facts else ""


def version_range(engine: EngineTable, families: Mapping[str, str]) -> str:
    """Return the releases that print such a page, in words: "after 0.15.1 and before 0.20.2", "" if it may be any.

    `families` are printed names and types. A name appeared after the scan before its `since`. A row with an `until`
    wins only on pages without its newer name, which are older than the next scan.
    """
    fitting = {printed: _rows_of(engine, printed, type_) for printed, type_ in families.items()}
    since = {
        row.source: engine.scanned.index(row.since) for row in reversed(engine.rows) if row.since in engine.scanned
    }
    present = {row.source for rows in fitting.values() for row in rows}
    first = max((since[source] for source in present & since.keys()), default=0)
    last = [engine.scanned.index(row.until) for row in _winners(engine, fitting) if row.until in engine.scanned]
    before = min(last, default=len(engine.scanned)) + 1
    if before <= first:
        return ""
    words = [f"after {engine.scanned[first - 1]}"] if first else []
    words += [f"before {engine.scanned[before]}"] if before < len(engine.scanned) else []
    return " and ".join(words)


SECONDS = 60.0
REQUESTS = 120.0

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


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Exposure of one signal by one engine. `spans` are (support, first, last scanned release) in order; an engine
    without scanned releases has one span with empty names. `why` gives the missing data if a span is not exposed."""

    signal: str
    spans: tuple[tuple[Support, str, str], ...]
    why: str

    @property
    def newest_support(self) -> Support:
        return self.spans[-1][0]


def engine_signals() -> tuple[Signal, ...]:
    """Return the signals that an engine's page can give: all except GPU signals."""
    return tuple(s for s in SIGNALS if not all(family in GPU_NAMES for family in s.families))


def exposures(engine: EngineTable) -> tuple[Exposure, ...]:
    """Return the support of each signal, release by release."""
    releases = engine.scanned or ("",)
    windows = {release: _everything(engine, release) for release in releases}
    return tuple(_exposure(engine, signal, windows) for signal in engine_signals())


def _exposure(engine: EngineTable, signal: Signal, windows: Mapping[str, Window]) -> Exposure:
    found = [(release, read(signal, window, FULL_PLAN)) for release, window in windows.items()]
    spans: list[tuple[Support, str, str]] = []
    for release, value in found:
        support = _support(value)
        if spans and spans[-1][0] is support:
            spans[-1] = (support, spans[-1][1], release)
        else:
            spans.append((support, release, release))
    missing = [value for _, value in found if isinstance(value, Missing)]
    came = spans[-1][0] is not Support.NOT_EXPOSED and missing
    why = f"not before {spans[-1][1]}" if came else _why(engine, signal, missing)
    return Exposure(signal=signal.name, spans=tuple(spans), why=why)


def _support(value: SignalValue) -> Support:
    if isinstance(value, Missing):
        return Support.NOT_EXPOSED
    return Support.BOUNDED if value.value is None else Support.KNOWN


def _why(engine: EngineTable, signal: Signal, missing: list[Missing]) -> str:
    if not missing:
        return ""
    needed = [f for family in signal.families for f in (IN_SYSTEM if family == NET_CHANGE else (family,))]
    # A family that no release prints takes precedence over one that is only absent until its first event.
    printed = {row.family for row in engine.rows}
    needed.sort(key=lambda family: family in printed)
    return engine.explain_missing(needed) or missing[-1].text or f"{engine.title} does not expose {signal.name}"


def _everything(engine: EngineTable, release: str) -> Window:
    """Return a minute in which everything that the release prints was observed."""
    families = {row.family for row in engine.rows if not release or _printed(release, row.since, row.until)}
    counters = {name: _AMOUNTS.get(name, REQUESTS) for name in _of(families, FamilyKind.COUNTER)}
    if all(name in families for name in IN_SYSTEM):
        counters[NET_CHANGE] = 0.0
    if engine.born:
        counters |= {"cold_starts": 1.0, "cold_start_seconds": 30.0}
    part = (Histogram(edges=(1.0, 10.0, math.inf), counts=(0.0, REQUESTS, 0.0), total=5 * REQUESTS),)
    return Window(
        start=0.0,
        end=SECONDS,
        expected_seconds=SECONDS,
        covered_seconds=SECONDS,
        counters={"restarts": 1.0, **counters},
        histograms=dict.fromkeys(_of(families, FamilyKind.HISTOGRAM), part),
        gauges={name: _level(1.0 if name in _RATIOS else 2.0) for name in _of(families, FamilyKind.GAUGE)},
    )


_RATIOS = ("prefix_hit_gauge", "external_prefix_hit_gauge", "kv_offload_utilization")
"""Gauges with a maximum of 1."""


def _level(value: float) -> GaugeSum:
    return GaugeSum(integral=value * SECONDS, seconds=SECONDS, minimum=value, maximum=value, samples=4)


_AMOUNTS = {"spec_draft_tokens": 4 * REQUESTS, "spec_accepted_tokens": 2 * REQUESTS}


def _of(families: Iterable[str], kind: FamilyKind) -> list[str]:
    return sorted(name for name in families if name in BY_NAME and BY_NAME[name].kind is kind)


def _printed(release: str, since: str, until: str) -> bool:
    return number(since) <= number(release) and not (until and number(release) > number(until))


def number(release: str) -> tuple[int, ...]:
    """Return a release as a comparable tuple: "0.6.6.post1" is (0, 6, 6, 1)."""
    return tuple(int(digits) for digits in re.findall(r"\d+", release))
