"""Reader of engine pages: which series feed which family by an engine's table, and their values as a Snapshot.

A family that is broken on a page is not used. Its name and fault are kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rules.engines.registry import (
    ENGINES,
    PROCESS_START,
    EngineTable,
    LabelAggregation,
    SourceRow,
    normalize_name,
    select_rows,
    sources,
    strip_wrapper_prefix,
)
from rules.replicas.stalls import RANK_GAUGES, WORK, counts_each_step
from rules.telemetry.contradictions import find_page_contradiction
from rules.telemetry.families import MOST, FamilyKind
from rules.telemetry.histograms import EMPTY, Cumulative, check_cumulative
from rules.telemetry.snapshots import RankPage, Snapshot

AHEAD_SECONDS = 86_400.0
"""Largest clock error in seconds. A later update time is the sum of several (multiprocess mode, METRICS trap 8)."""

PART_OF = (
    ("prefix_hit_tokens", "prefix_queried_tokens", "prefix cache"),
    ("external_prefix_hit_tokens", "external_prefix_queried_tokens", "external cache"),
)
"""Counters of which the first is a part of the second. A page with an excess makes both unusable."""

SeriesName = tuple[str, Mapping[str, str]]
_ByName = Mapping[str, list[tuple[int, Mapping[str, str]]]]
_Faults = list[tuple[str, str]]
"""(family, fault) of the families that are not used."""

_COMBINE: dict[LabelAggregation, Callable[[list[float]], float]] = {
    LabelAggregation.SUM: sum,
    LabelAggregation.MEAN: fmean,
    LabelAggregation.MAX: max,
}


@dataclass(frozen=True, slots=True)
class AmountSlots:
    """Slots of a counter or gauge. Of a group (processes of one engine) the largest counts, times the value in `scale`."""

    family: str
    row: SourceRow
    groups: tuple[tuple[int, ...], ...]
    factor: float
    scale: int | None


@dataclass(frozen=True, slots=True)
class HistogramPart:
    """Slots of a histogram of one data-parallel engine."""

    edges: tuple[float, ...]
    buckets: tuple[int, ...]
    total: int | None
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLayout:
    """Slots to read on pages with this set of series. A slot is an index in the compiled series.

    `names`: by family, (slot of the update time, names in its label) of series that never disappear. `histograms`: by
    family, the factor of its sum and its parts; no parts means no counts yet. `ranks`: by data-parallel rank and family,
    where a page has several. `doubts` are problems of families that are used all the same.
    """

    engine: EngineTable
    amounts: tuple[AmountSlots, ...]
    names: Mapping[str, tuple[tuple[int, int], ...]]
    histograms: Mapping[str, tuple[float, tuple[HistogramPart, ...]]]
    ranks: Mapping[str, Mapping[str, tuple[int, ...]]]
    start: int | None
    born: tuple[int, ...]
    facts: Mapping[str, str]
    fact_slots: Mapping[str, int]
    faults: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]


def is_mapped_name(name: str, engines: tuple[EngineTable, ...] = ENGINES) -> bool:
    """Return whether a sample of this printed name feeds any family of any engine."""
    plain = normalize_name(name)
    return plain == PROCESS_START or any(strip_wrapper_prefix(plain, engine) in sources(engine) for engine in engines)


def compile_layout(series: Sequence[SeriesName], engine: EngineTable) -> SeriesLayout:
    """Compile which slot (index in `series`) feeds which family."""
    by_name: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
    printed: dict[str, str] = {}
    doubts: list[str] = []
    for slot, (name, labels) in enumerate(series):
        plain = strip_wrapper_prefix(normalize_name(name), engine)
        if name and name == printed.setdefault(plain, name):
            by_name.setdefault(plain, []).append((slot, labels))
        elif name:
            doubts.append(f"{name}: the page has it as {printed[plain]} too, which is read")
    facts = _facts(by_name, engine)
    fact_slots = {fact: by_name[sample][0][0] for fact, sample in engine.fact_gauges if sample in by_name}
    amounts: list[AmountSlots] = []
    names: dict[str, tuple[tuple[int, int], ...]] = {}
    histograms: dict[str, tuple[float, tuple[HistogramPart, ...]]] = {}
    faults: _Faults = []
    if len({name.casefold() for name in facts.get("model", "").split(",")}) > 1:
        doubts.append(f"model: {facts['model']} are served by this page, and are added up: a tier is one model")
    won = select_rows(engine.rows, lambda row: _on_page(row, by_name))
    for row in won:
        factor, scale = row.factor, fact_slots.get(row.factor_fact)
        if row.factor_fact and scale is None:
            factor *= _read_factor(row, facts, doubts)
        if row.kind is FamilyKind.HISTOGRAM:
            try:
                parts = _histogram_parts(row, by_name, engine)
            except (KeyError, ValueError):
                faults.append((row.family, "has no bucket, or one without a numeric le label"))
            else:
                histograms |= {row.family: (factor, parts)} if parts or row.sample not in by_name else {}
        elif row.across is LabelAggregation.NEWEST_NAMES:
            names[row.family] = tuple(
                (slot, sum(map(bool, labels.get(row.by, "").split(",")))) for slot, labels in by_name[row.sample]
            )
        else:
            groups = _groups(row, by_name, engine)
            amounts += [AmountSlots(family, row, slots, factor, scale) for family, slots in groups.items()]
    start, ranks = by_name.get(PROCESS_START), _rank_slots(won, by_name, engine)
    if ranks:
        facts["data_parallel_ranks"] = str(len(ranks))
    return SeriesLayout(
        engine=engine,
        amounts=tuple(amounts),
        names=names,
        histograms=histograms,
        ranks=ranks,
        start=start[0][0] if start else None,
        born=tuple(slot for slot, _ in by_name.get(engine.born, ())),
        facts=facts,
        fact_slots=fact_slots,
        faults=tuple(faults),
        doubts=tuple(dict.fromkeys(doubts)),
    )


def _on_page(row: SourceRow, by_name: _ByName) -> bool:
    if row.sample not in by_name:
        return row.zero_with in by_name or (row.kind is FamilyKind.HISTOGRAM and f"{row.source}_count" in by_name)
    return row.lazy or bool(_matching(row, by_name))


def _matching(row: SourceRow, by_name: _ByName) -> list[tuple[int, Mapping[str, str]]]:
    return [(slot, labels) for slot, labels in by_name.get(row.sample, ()) if row.reads(labels)]


def _facts(by_name: _ByName, engine: EngineTable) -> dict[str, str]:
    facts: dict[str, str] = {}
    for info in engine.info:
        for _, labels in by_name.get(info, ()):
            facts.update(labels)
    facts.pop("engine", None)
    label = engine.model_label
    models = {labels[label] for entries in by_name.values() for _, labels in entries if labels.get(label)}
    if models:
        facts["model"] = ",".join(sorted(models))
    return {name: to_printable_line(text) for name, text in facts.items()}


def to_printable_line(text: str) -> str:
    """Return a fact as one printable line: labels may hold anything."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _read_factor(row: SourceRow, facts: Mapping[str, str], doubts: list[str]) -> float:
    """Return the fact that is the unit of a row, 1 with a doubt if the page does not have it."""
    try:
        return float(facts[row.factor_fact])
    except (KeyError, ValueError):
        unit = f"is counted in units of {row.factor_fact}, which the page does not tell"
        doubts.append(f"{row.family}: {unit}: ratios hold, amounts do not")
        return 1.0


def _groups(row: SourceRow, by_name: _ByName, engine: EngineTable) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the slots of a counter or gauge by family (several with `by`), those of repeated numbers together."""
    families: dict[str, dict[object, tuple[int, ...]]] = {} if row.by else {row.family: {}}
    series = [("", slot, labels) for slot, labels in _matching(row, by_name)]
    series += [(more, slot, labels) for more in row.plus for slot, labels in by_name.get(more, ())]
    for name, slot, labels in series:
        groups = families.setdefault(f"{row.family}/{labels.get(row.by, '')}" if row.by else row.family, {})
        key = name, _without(labels, engine.repeats)
        groups[key] = (*groups.get(key, ()), slot)
    return {family: tuple(groups.values()) for family, groups in families.items()}


def _histogram_parts(row: SourceRow, by_name: _ByName, engine: EngineTable) -> tuple[HistogramPart, ...]:
    """Return the parts. Raise KeyError or ValueError without a bucket (native ones, a summary), or for one without `le`."""
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
    for slot, labels in by_name.get(row.sample, by_name.get(f"{row.source}_count", ())):
        if row.reads(labels):
            buckets.setdefault(_without(labels, ("le",)), []).append((float(labels["le"]) * row.factor, slot))
    sums, counts = (
        {_without(labels, ("le",)): slot for slot, labels in by_name.get(row.source + end, ())}
        for end in ("_sum", "_count")
    )
    once = {_without(dict(key), engine.repeats): key for key in sorted(buckets, reverse=True)}
    parts = []
    for key in sorted(once.values()):
        edges, slots = zip(*sorted(buckets[key]), strict=True)
        parts.append(HistogramPart(edges, slots, sums.get(key), counts.get(key)))
    return tuple(parts)


def _without(labels: Mapping[str, str], names: Collection[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in labels.items() if k not in names))


def _rank_slots(
    won: Iterable[SourceRow], by_name: _ByName, engine: EngineTable
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the slots of each data-parallel rank by family, none unless there are several ranks."""
    mapping: defaultdict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for row in (row for row in won if engine.rank_label and row.family in RANK_GAUGES | WORK):
        counted = row.kind is FamilyKind.HISTOGRAM
        for slot, labels in by_name.get(f"{row.source}_count", ()) if counted else _matching(row, by_name):
            if rank := labels.get(engine.rank_label, ""):
                mapping[rank][row.family] = (*mapping[rank].get(row.family, ()), slot)
    return dict(sorted(mapping.items())) if len(mapping) > 1 else {}


def snapshot(layout: SeriesLayout, values: Sequence[float], t: float) -> Snapshot:
    """Return the page's values by family. `values` are in the order of the compiled series."""
    faults = list(layout.faults)
    counters, gauges = _amounts(layout, values, faults)
    gauges |= _names(layout, values, t, faults)
    histograms = _histograms(layout, values, faults)
    contradictory = _contradictory(counters, histograms, faults)
    impossible = frozenset(family for family, value in gauges.items() if value > MOST.get(family, math.inf))
    for name in sorted(impossible):
        faults.append((name, f"a gauge of {gauges[name]:.3g}, which is more than {MOST[name]:g}: cannot be"))
    ready = min((values[slot] for slot in layout.born if math.isfinite(values[slot])), default=None)
    started = values[layout.start] if layout.start is not None else math.nan
    gauge_facts = {fact: values[slot] for fact, slot in layout.fact_slots.items() if 0 <= values[slot] < math.inf}
    return Snapshot(
        t=t,
        engine=layout.engine.name,
        generation=layout.engine.generation,
        started_at=started if math.isfinite(started) else ready,
        ready_at=ready,
        counters={family: value for family, value in counters.items() if family not in contradictory},
        histograms={family: value for family, value in histograms.items() if family not in contradictory},
        gauges={family: value for family, value in gauges.items() if family not in impossible},
        facts={**layout.facts, **{fact: f"{value:.10g}" for fact, value in gauge_facts.items()}},
        problems=(*layout.doubts, *(f"{family}: {text}" for family, text in faults)),
        broken=frozenset(family for family, _ in faults),
        contradictory=contradictory,
        impossible=impossible,
        ranks=tuple(_rank_page(layout, rank, values) for rank in layout.ranks),
    )


def _amounts(
    layout: SeriesLayout, values: Sequence[float], faults: _Faults
) -> tuple[dict[str, float], dict[str, float]]:
    """Return counters and gauges. A negative value is a fault: some engines print -1 for none."""
    counters: dict[str, float] = {}
    gauges: dict[str, float] = {}
    for amount in layout.amounts:
        row = amount.row
        numbers = [values[slot] for slots in amount.groups for slot in slots]
        if row.none is not None and row.none in numbers:
            continue
        largest = [max([values[slot] for slot in slots]) for slots in amount.groups]
        total = _COMBINE[row.across](largest) * amount.factor
        if amount.scale is not None:
            total *= values[amount.scale]
        wrong = next((number for number in (*numbers, total) if not 0 <= number < math.inf), None)
        if wrong is not None:
            faults.append((amount.family, f"a {row.kind.value} of {wrong}"))
        elif row.kind is FamilyKind.COUNTER:
            counters[amount.family] = total
        else:
            gauges[amount.family] = total
    return counters, gauges


def _names(layout: SeriesLayout, values: Sequence[float], t: float, faults: _Faults) -> dict[str, float]:
    """Return the number of names in the newest series of each family."""
    gauges: dict[str, float] = {}
    for family, choices in layout.names.items():
        updated, count = max((values[slot], count) for slot, count in choices)
        if updated <= t + AHEAD_SECONDS:
            gauges[family] = float(count)
        else:
            faults.append((family, f"its series was updated at {updated:g}, which is no time"))
    return gauges


def _histograms(layout: SeriesLayout, values: Sequence[float], faults: _Faults) -> dict[str, Cumulative]:
    histograms: dict[str, Cumulative] = {}
    for family, (factor, parts) in layout.histograms.items():
        try:
            histograms[family] = _add_histogram(parts, values, factor) if parts else EMPTY
        except ValueError as fault:
            faults.append((family, str(fault)))
    return histograms


def _add_histogram(parts: Sequence[HistogramPart], values: Sequence[float], factor: float) -> Cumulative:
    """Return the sum over data-parallel engines. Raise ValueError if one is broken or their bucket edges differ."""
    columns: list[tuple[float, ...]] = []
    total = 0.0
    for part in parts:
        cumulative = tuple([values[slot] for slot in part.buckets])
        count = values[part.count] if part.count is not None else cumulative[-1]
        if text := check_cumulative(part.edges, cumulative, count):
            raise ValueError(text)
        if part.edges != parts[0].edges:
            raise ValueError("has different bucket edges on its data-parallel engines")
        columns.append(cumulative)
        total += values[part.total] * factor if part.total is not None else math.nan
    counts = columns[0] if len(columns) == 1 else tuple(map(sum, zip(*columns, strict=True)))
    return Cumulative(parts[0].edges, counts, total if math.isfinite(total) else None)


def _contradictory(
    counters: Mapping[str, float], histograms: Mapping[str, Cumulative], faults: _Faults
) -> frozenset[str]:
    """Return counters above their whole, with the whole, and histograms that other times exclude (DESIGN 3.20)."""
    texts: list[str] = []
    for part, whole, title in PART_OF:
        some, of = counters.get(part), counters.get(whole)
        if some is not None and of is not None and some > of:
            share = f" ({some / of:.0%})" if of else ""
            text = f"tokens found in the {title}, {some:,.0f}, of {of:,.0f} looked up{share}: cannot be, neither counter is used"
            faults.append((part, text))
            texts += [part, whole]
    contradiction = find_page_contradiction(histograms, counters)
    if contradiction is not None:
        times, families = contradiction
        faults.append((families[0], f"{times.text}: cannot be, {' and '.join(families)} are not used"))
        texts += families
    return frozenset(texts)


def _rank_page(layout: SeriesLayout, name: str, values: Sequence[float]) -> RankPage:
    families = {family: [values[slot] for slot in slots] for family, slots in layout.ranks[name].items()}
    work = (value for family, each in families.items() if family not in RANK_GAUGES for value in each)
    return RankPage(
        name=name,
        gauges={family: max(each) for family, each in families.items() if family in RANK_GAUGES},
        work=math.fsum(filter(math.isfinite, work)),
        counts_steps=counts_each_step(layout.engine.name, families),
    )
