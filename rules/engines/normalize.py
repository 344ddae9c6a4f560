"""Conversion of a page's values to a Snapshot by the layout of its series, at every scrape.

A family that is broken on a page is not used. Its name and fault are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rules.engines.layout import FamilyFault, HistogramSlots, SeriesLayout
from rules.engines.table import LabelAggregation
from rules.telemetry.contradictions import find_page_contradiction
from rules.telemetry.families import MOST_OF_GAUGE, PART_OF
from rules.telemetry.histograms import EMPTY, Cumulative, check_cumulative
from rules.telemetry.snapshots import RankPage, Snapshot

AHEAD_SECONDS = 86_400.0
"""Largest clock error in seconds. A later update time is the sum of several (multiprocess mode, METRICS trap 8)."""


def snapshot(layout: SeriesLayout, values: Sequence[float], t: float) -> Snapshot:
    """Return the page's values by family. `values` are in the order of the compiled series."""
    faults = list(layout.faults)
    counters = _counters(layout, values, faults)
    contradictory = _contradictory(counters, faults)
    histograms = _histograms(layout, values, faults)
    untrue = _contradictory_times(histograms, counters, faults)
    gauges = _gauges(layout, values, faults) | _names(layout, values, t, faults)
    impossible = _impossible(gauges, faults)
    born = [values[slot] for slot in layout.born if math.isfinite(values[slot])]
    ready = min(born) if born else None
    started = values[layout.start] if layout.start is not None else math.nan
    return Snapshot(
        t=t,
        engine=layout.engine.name,
        generation=layout.engine.generation,
        started_at=started if math.isfinite(started) else ready,
        ready_at=ready,
        counters={family: value for family, value in counters.items() if family not in contradictory},
        histograms={family: value for family, value in histograms.items() if family not in untrue},
        gauges={family: value for family, value in gauges.items() if family not in impossible},
        facts=_facts(layout, values),
        problems=tuple(f"{fault.family}: {fault.text}" for fault in faults),
        broken=frozenset(fault.family for fault in faults if not fault.doubtful),
        contradictory=contradictory | untrue,
        impossible=impossible,
        ranks=_ranks(layout, values) if layout.ranks else (),
    )


def _ranks(layout: SeriesLayout, values: Sequence[float]) -> tuple[RankPage, ...]:
    return tuple(
        RankPage(
            name=rank.name,
            gauges={family: max([values[slot] for slot in slots]) for family, slots in rank.gauges},
            work=math.fsum(values[slot] for slot in rank.work if math.isfinite(values[slot])),
            counts_steps=rank.counts_steps,
        )
        for rank in layout.ranks
    )


def _facts(layout: SeriesLayout, values: Sequence[float]) -> Mapping[str, str]:
    if not layout.fact_slots:
        return layout.facts
    told = {fact: f"{values[slot]:.10g}" for fact, slot in layout.fact_slots if math.isfinite(values[slot])}
    return {**layout.facts, **told}


def _counters(layout: SeriesLayout, values: Sequence[float], faults: list[FamilyFault]) -> dict[str, float]:
    counters: dict[str, float] = {}
    for counter in layout.counters:
        numbers = [values[slot] for slot in counter.slots]
        for slots in counter.repeated:
            numbers.append(max([values[slot] for slot in slots]))
        total = sum(numbers) * counter.factor
        if counter.scale is not None:
            total *= values[counter.scale]
        if (wrong := _no_amount((*numbers, total))) is None:
            counters[counter.family] = total
        else:
            faults.append(FamilyFault(counter.family, f"a counter of {wrong}"))
    return counters


def _contradictory(counters: Mapping[str, float], faults: list[FamilyFault]) -> frozenset[str]:
    """Return counters of a part above their whole, with the whole: either may be wrong."""
    found: list[str] = []
    for part, whole, words in PART_OF:
        some, of = counters.get(part), counters.get(whole)
        if some is not None and of is not None and some > of:
            text = words.format(part=some, whole=of)
            share = f" ({some / of:.0%})" if of else ""
            faults.append(FamilyFault(part, f"{text}{share}: cannot be, neither counter is used"))
            found += [part, whole]
    return frozenset(found)


def _contradictory_times(
    histograms: Mapping[str, Cumulative], counters: Mapping[str, float], faults: list[FamilyFault]
) -> frozenset[str]:
    """Return histograms of times that the page's other times exclude (DESIGN 3.20)."""
    found = find_page_contradiction(histograms, counters)
    if found is None:
        return frozenset()
    contradiction, families = found
    faults.append(FamilyFault(families[0], f"{contradiction.text}: cannot be, {' and '.join(families)} are not used"))
    return frozenset(families)


def _no_amount(numbers: Sequence[float]) -> float | None:
    """Return the first value that is negative or not finite. Some engines print -1 for none."""
    return next((number for number in numbers if not 0 <= number < math.inf), None)


def _histograms(layout: SeriesLayout, values: Sequence[float], faults: list[FamilyFault]) -> dict[str, Cumulative]:
    histograms: dict[str, Cumulative] = {}
    for slots in layout.histograms:
        found = _histogram(slots, values)
        if isinstance(found, FamilyFault):
            faults.append(found)
        else:
            histograms[slots.family] = found
    return histograms


def _histogram(slots: HistogramSlots, values: Sequence[float]) -> Cumulative | FamilyFault:
    """Return the sum over data-parallel engines. Return a fault if one is broken or their bucket edges differ."""
    if not slots.parts:
        return EMPTY
    edges = slots.parts[0].edges
    columns: list[tuple[float, ...]] = []
    totals: list[float] = []
    for part in slots.parts:
        cumulative = tuple([values[slot] for slot in part.buckets])
        count = values[part.count] if part.count is not None else cumulative[-1]
        text = check_cumulative(part.edges, cumulative, count)
        if text is not None:
            return FamilyFault(slots.family, text)
        if part.edges != edges:
            return FamilyFault(slots.family, "has different bucket edges on its data-parallel engines")
        columns.append(cumulative)
        totals.append(values[part.total] if part.total is not None else math.nan)
    counts = columns[0] if len(columns) == 1 else tuple(map(sum, zip(*columns, strict=True)))
    total = sum(totals) * slots.factor
    return Cumulative(edges, counts, total if math.isfinite(total) else None)


_COMBINE: dict[LabelAggregation, Callable[[list[float]], float]] = {
    LabelAggregation.SUM: sum,
    LabelAggregation.MEAN: lambda numbers: sum(numbers) / len(numbers),
    LabelAggregation.MAX: max,
}


def _gauges(layout: SeriesLayout, values: Sequence[float], faults: list[FamilyFault]) -> dict[str, float]:
    gauges: dict[str, float] = {}
    for gauge in layout.gauges:
        numbers = [values[slot] for slots in gauge.engines for slot in slots]
        if gauge.none is not None and gauge.none in numbers:
            continue
        of_engines = [max([values[slot] for slot in slots]) for slots in gauge.engines]
        value = _COMBINE[gauge.across](of_engines) * gauge.factor
        if (wrong := _no_amount((*numbers, value))) is None:
            gauges[gauge.family] = value
        else:
            faults.append(FamilyFault(gauge.family, f"a gauge of {wrong}"))
    return gauges


def _impossible(gauges: Mapping[str, float], faults: list[FamilyFault]) -> frozenset[str]:
    """Return the gauges above what they can be."""
    found = frozenset(family for family, value in gauges.items() if value > MOST_OF_GAUGE.get(family, math.inf))
    faults += [
        FamilyFault(family, f"a gauge of {gauges[family]:.3g}, which is more than {MOST_OF_GAUGE[family]:g}: cannot be")
        for family in sorted(found)
    ]
    return found


def _names(layout: SeriesLayout, values: Sequence[float], t: float, faults: list[FamilyFault]) -> dict[str, float]:
    gauges: dict[str, float] = {}
    for names in layout.names:
        updated, count = max((values[slot], count) for slot, count in names.choices)
        if updated <= t + AHEAD_SECONDS:
            gauges[names.family] = float(count)
        else:
            faults.append(FamilyFault(names.family, f"its series was updated at {updated:g}, which is no time"))
    return gauges
