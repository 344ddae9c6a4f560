"""Layout of a page: the series of each family, compiled once for a set of series by an engine's table.

`rules.engines.normalize` evaluates it at every scrape. Differences between engines are in their tables only. To add a
way to read series: a record here and a field of the row in `rules.engines.table`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from rules.engines.registry import ENGINES, PROCESS_START, normalize_name, select_rows, strip_wrapper_prefix
from rules.engines.table import EngineTable, LabelAggregation, SourceRow
from rules.light_dataclass import light_dataclass
from rules.replicas.stalls import RANK_GAUGES, WORK, WORK_EVENTS, counts_each_step
from rules.telemetry.families import FamilyKind

LEAST_DECLARED = 2
"""Names of an engine without samples that make a page its own. A single one may be of another program."""

SUFFIXES = ("_bucket", "_sum", "_count")
SeriesName = tuple[str, Mapping[str, str]]
RANK_FAMILIES = RANK_GAUGES.union(WORK, WORK_EVENTS)
_LONGEST = 300
_ByName = Mapping[str, Sequence[tuple[int, Mapping[str, str]]]]
_Key = tuple[tuple[str, str], ...]


@light_dataclass(frozen=True, slots=True)
class CounterSlots:
    """Series that add up. `slots` count individually; of each group in `repeated` (ranks of one engine) the largest
    counts. The value in slot `scale`, if any, multiplies them."""

    family: str
    slots: tuple[int, ...]
    repeated: tuple[tuple[int, ...], ...]
    factor: float
    scale: int | None = None


@light_dataclass(frozen=True, slots=True)
class GaugeSlots:
    """Slots by data-parallel engine. Within an engine (processes, ranks) the maximum counts."""

    family: str
    engines: tuple[tuple[int, ...], ...]
    across: LabelAggregation
    factor: float
    none: float | None = None


@light_dataclass(frozen=True, slots=True)
class NameSlots:
    """Series that never disappear, of which the newest counts: (slot of the update time, names in its label)."""

    family: str
    choices: tuple[tuple[int, int], ...]


@light_dataclass(frozen=True, slots=True)
class HistogramPart:
    """Histogram series of one data-parallel engine."""

    edges: tuple[float, ...]
    buckets: tuple[int, ...]
    total: int | None
    count: int | None


@light_dataclass(frozen=True, slots=True)
class HistogramSlots:
    """Parts of a histogram. `factor` converts its sum; edges are already converted. No parts means no counts yet."""

    family: str
    parts: tuple[HistogramPart, ...]
    factor: float


@light_dataclass(frozen=True, slots=True)
class RankSlots:
    """Slots of one data-parallel rank: gauges of its requests by family, and its counters of work."""

    name: str
    gauges: tuple[tuple[str, tuple[int, ...]], ...]
    work: tuple[int, ...]
    counts_steps: bool


@light_dataclass(frozen=True, slots=True)
class FamilyFault:
    """Fault of a family. The family is not used unless the fault is only `doubtful`."""

    family: str
    text: str
    doubtful: bool = False


@light_dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLayout:
    """Slots to read on pages with this set of series. A slot is an index in the compiled series."""

    engine: EngineTable
    counters: tuple[CounterSlots, ...]
    gauges: tuple[GaugeSlots, ...]
    names: tuple[NameSlots, ...]
    histograms: tuple[HistogramSlots, ...]
    ranks: tuple[RankSlots, ...]
    start: int | None
    born: tuple[int, ...]
    facts: Mapping[str, str]
    fact_slots: tuple[tuple[str, int], ...]
    faults: tuple[FamilyFault, ...]


def is_mapped_name(name: str, engines: tuple[EngineTable, ...] = ENGINES) -> bool:
    """Return whether a sample of this printed name feeds any family of any engine."""
    plain = normalize_name(name)
    return plain == PROCESS_START or any(strip_wrapper_prefix(plain, engine) in _sources(engine) for engine in engines)


def find_declared_engine(families: Iterable[str], engines: tuple[EngineTable, ...] = ENGINES) -> EngineTable | None:
    """Return the engine with two names among the HELP and TYPE lines of a page without samples, or None.

    Generations of one engine differ in labels, which such lines do not have."""
    names = [normalize_name(name) for name in families]
    return next((engine for engine in engines if len(_declared(engine, names)) >= LEAST_DECLARED), None)


def _declared(engine: EngineTable, names: Iterable[str]) -> set[str]:
    plain = (strip_wrapper_prefix(name, engine) for name in names)
    return {name for name in plain if any(name + end in _sources(engine) for end in ("", "_total", "_bucket"))}


@cache
def _sources(engine: EngineTable) -> frozenset[str]:
    names = {*engine.signatures, engine.born, *engine.info, *(sample for _, sample in engine.fact_gauges)}
    for row in engine.rows:
        names.add(row.zero_with)
        if row.kind is FamilyKind.HISTOGRAM:
            names.update(row.source + suffix for suffix in SUFFIXES)
        else:
            names.update((row.sample, *row.plus))
    # A row without `zero_with` and the like names no series; "" would match every unnamed series of an unrecognised
    # page.
    return frozenset(names - {""})


def compile_layout(series: Sequence[SeriesName], engine: EngineTable) -> SeriesLayout:
    """Compile which slot (index in `series`) feeds which family."""
    by_name: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
    for slot, (name, labels) in enumerate(series):
        if name:
            by_name.setdefault(strip_wrapper_prefix(normalize_name(name), engine), []).append((slot, labels))
    facts = _facts(by_name, engine)
    counters: list[CounterSlots] = []
    gauges: list[GaugeSlots] = []
    names: list[NameSlots] = []
    histograms: list[HistogramSlots] = []
    faults: list[FamilyFault] = _several_models(facts)
    for row in select_rows(engine.rows, lambda row: _on_page(row, by_name)):
        scale = _scale(row, by_name, engine)
        factor = row.factor if scale is not None else _factor(row, facts, faults)
        if row.kind is FamilyKind.HISTOGRAM:
            parts = _parts(row, by_name, engine, faults)
            empty = row.sample not in by_name
            histograms.extend([HistogramSlots(row.family, parts, factor)] if parts or empty else [])
        elif row.across is LabelAggregation.NEWEST_NAMES:
            names.append(_names(row, by_name))
        elif row.kind is FamilyKind.COUNTER:
            counters.extend(replace(one, scale=scale) for one in _counters(row, by_name, engine, factor))
        else:
            gauges.append(_gauge(row, by_name, engine, factor))
    start = by_name.get(PROCESS_START)
    return SeriesLayout(
        engine=engine,
        counters=tuple(counters),
        gauges=tuple(gauges),
        names=tuple(names),
        histograms=tuple(histograms),
        ranks=_ranks(by_name, engine),
        start=start[0][0] if start else None,
        born=tuple(slot for slot, _ in by_name.get(engine.born, ())),
        facts=facts,
        fact_slots=tuple((fact, by_name[sample][0][0]) for fact, sample in engine.fact_gauges if sample in by_name),
        faults=tuple(faults),
    )


def _ranks(by_name: _ByName, engine: EngineTable) -> tuple[RankSlots, ...]:
    """Return the data-parallel ranks of a page, none unless it has several."""
    found: dict[str, dict[str, list[int]]] = {}
    for row in select_rows(engine.rows, lambda row: _on_page(row, by_name)) if engine.rank_label else ():
        if row.family not in RANK_FAMILIES:
            continue
        counted = row.kind is FamilyKind.HISTOGRAM
        for slot, labels in by_name.get(f"{row.source}_count", ()) if counted else _matching(row, by_name):
            rank = labels.get(engine.rank_label, "")
            if rank:
                found.setdefault(rank, {}).setdefault(row.family, []).append(slot)
    if len(found) < 2:
        return ()
    return tuple(
        RankSlots(
            rank,
            tuple((family, tuple(slots)) for family, slots in families.items() if family in RANK_GAUGES),
            tuple(slot for family, slots in families.items() if family not in RANK_GAUGES for slot in slots),
            counts_each_step(engine.name, families),
        )
        for rank, families in sorted(found.items())
    )


def _on_page(row: SourceRow, by_name: _ByName) -> bool:
    if row.sample not in by_name:
        return row.zero_with in by_name
    return row.lazy or bool(_matching(row, by_name))


def _facts(by_name: _ByName, engine: EngineTable) -> dict[str, str]:
    facts: dict[str, str] = {}
    for info in engine.info:
        for _, labels in by_name.get(info, ()):
            facts.update(labels)
    facts.pop("engine", None)
    label = engine.model_label
    models = {labels[label] for entries in by_name.values() for _, labels in entries if label in labels}
    if models:
        facts["model"] = ",".join(sorted(models))
    return {name: to_printable_line(text) for name, text in facts.items()}


def to_printable_line(text: str) -> str:
    """Return a fact as one printable line. Labels may hold anything, and facts appear in sentences, names and logs."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _several_models(facts: Mapping[str, str]) -> list[FamilyFault]:
    models = facts.get("model", "")
    if len({name.casefold() for name in models.split(",")}) < 2:
        return []
    shown = models if len(models) <= _LONGEST else f"{models[: _LONGEST - 1]}…"
    text = f"{shown} are served by this page, and are added up: a tier is one model"
    return [FamilyFault("model", text, doubtful=True)]


def _scale(row: SourceRow, by_name: _ByName, engine: EngineTable) -> int | None:
    """Return the slot of the gauge with the row's unit, if there is one."""
    sample = dict(engine.fact_gauges).get(row.factor_fact, "")
    return by_name[sample][0][0] if sample in by_name else None


def _factor(row: SourceRow, facts: Mapping[str, str], faults: list[FamilyFault]) -> float:
    if not row.factor_fact:
        return row.factor
    try:
        return row.factor * float(facts[row.factor_fact])
    except (KeyError, ValueError):
        text = f"is counted in units of {row.factor_fact}, which the page does not tell: ratios hold, amounts do not"
        faults.append(FamilyFault(row.family, text, doubtful=True))
        return row.factor


def _matching(row: SourceRow, by_name: _ByName) -> list[tuple[int, Mapping[str, str]]]:
    return [(slot, labels) for slot, labels in by_name.get(row.sample, ()) if row.reads(labels)]


def _counters(row: SourceRow, by_name: _ByName, engine: EngineTable, factor: float) -> list[CounterSlots]:
    families: dict[str, dict[_Key, list[int]]] = {} if row.by else {row.family: {}}
    for slot, labels in _matching(row, by_name):
        family = f"{row.family}/{labels.get(row.by, '')}" if row.by else row.family
        families.setdefault(family, {}).setdefault(_without(labels, engine.repeats), []).append(slot)
    for more in row.plus:
        for slot, labels in by_name.get(more, ()):
            families[row.family].setdefault((("", more), *_without(labels, engine.repeats)), []).append(slot)
    return [_summed(family, list(groups.values()), factor) for family, groups in families.items()]


def _summed(family: str, groups: list[list[int]], factor: float) -> CounterSlots:
    alone = tuple(slots[0] for slots in groups if len(slots) == 1)
    return CounterSlots(family, alone, tuple(tuple(slots) for slots in groups if len(slots) > 1), factor)


def _gauge(row: SourceRow, by_name: _ByName, engine: EngineTable, factor: float) -> GaugeSlots:
    engines: dict[_Key, list[int]] = {}
    for slot, labels in _matching(row, by_name):
        engines.setdefault(_without(labels, engine.repeats), []).append(slot)
    return GaugeSlots(row.family, tuple(tuple(slots) for slots in engines.values()), row.across, factor, row.none)


def _names(row: SourceRow, by_name: _ByName) -> NameSlots:
    choices = ((slot, sum(bool(n) for n in labels.get(row.by, "").split(","))) for slot, labels in by_name[row.sample])
    return NameSlots(row.family, tuple(choices))


def _parts(
    row: SourceRow, by_name: _ByName, engine: EngineTable, faults: list[FamilyFault]
) -> tuple[HistogramPart, ...]:
    buckets: dict[_Key, list[tuple[float, int]]] = {}
    for slot, labels in _matching(row, by_name):
        try:
            edge = float(labels["le"])
        except (KeyError, ValueError):
            faults.append(FamilyFault(row.family, "has a bucket without a numeric le label"))
            return ()
        buckets.setdefault(_without(labels, ("le",)), []).append((edge * row.factor, slot))
    totals = {_without(labels, ("le",)): slot for slot, labels in by_name.get(row.source + "_sum", ())}
    counts = {_without(labels, ("le",)): slot for slot, labels in by_name.get(row.source + "_count", ())}
    once = {_without(dict(key), engine.repeats): key for key in sorted(buckets, reverse=True)}
    return tuple(
        HistogramPart(
            tuple(e for e, _ in buckets[key]), tuple(slot for _, slot in buckets[key]), totals.get(key), counts.get(key)
        )
        for key in sorted(once.values())
    )


def _without(labels: Mapping[str, str], names: Collection[str]) -> _Key:
    return tuple(sorted((k, v) for k, v in labels.items() if k not in names))
