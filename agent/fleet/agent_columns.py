"""Columns of the series that agents export: a column per series, over the times of a response."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent.prometheus.answers import MatrixSeries
from exporters.metrics import names
from rules.telemetry.families import FAMILIES, GPU_NAMES, FamilyKind
from rules.telemetry.gpu_windows import drop_impossible
from rules.telemetry.histograms import Cumulative
from rules.telemetry.snapshots import GpuReadout, Snapshot

GPU_INFO = names.GPU_INFO.name

_NUMBER = re.compile(r"[+-]?(\d|Inf)")
_KINDS = {family.name: family.kind for family in FAMILIES}


def _samples() -> dict[str, tuple[str, str]]:
    mapping: dict[str, tuple[str, str]] = {}
    for family, metric in names.FAMILY.items():
        if metric.kind is FamilyKind.HISTOGRAM:
            mapping |= {f"{metric.name}_bucket": (family, "bucket"), f"{metric.name}_sum": (family, "sum")}
        else:
            mapping[metric.name] = (family, "")
    return mapping


SAMPLES: Mapping[str, tuple[str, str]] = _samples()
"""Family and histogram part by sample name. `_count` repeats the +Inf bucket."""


@dataclass(frozen=True, slots=True)
class _HistogramColumns:
    """Histogram: sorted edges with a column each, and the column of the sum."""

    edges: tuple[float, ...]
    columns: tuple[Sequence[float], ...]
    total: Sequence[float] | None


class SeriesColumns:
    """Columns of series, by sample name."""

    def __init__(self, by_name: Mapping[str, Sequence[MatrixSeries]], times: tuple[float, ...]) -> None:
        self.times = times
        self._by_name = by_name
        self._plain: list[tuple[str, bool, Sequence[float]]] = []
        self._of_gpus: dict[str, list[tuple[str, bool, Sequence[float]]]] = {}
        buckets: dict[str, dict[float, Sequence[float]]] = {}
        totals: dict[str, Sequence[float]] = {}
        for name, series in by_name.items():
            family, part = SAMPLES.get(name, ("", ""))
            if not family:
                continue
            is_gauge = _KINDS[family] is FamilyKind.GAUGE
            for matrix_series in series:
                column = self._aligned(matrix_series)
                if not is_gauge and column and math.isnan(column[0]):
                    column = _from_nothing(column)
                if part == "bucket":
                    buckets.setdefault(family, {})[_edge(matrix_series.labels.get("le", ""))] = column
                elif part == "sum":
                    totals[family] = column
                else:
                    self._take(family, matrix_series.labels, column)
        self._histograms = {
            family: _HistogramColumns(
                edges := _grid(tuple(sorted(mapping))), tuple(mapping[e] for e in edges), totals.get(family)
            )
            for family, mapping in buckets.items()
            if not any(map(math.isnan, mapping))
        }
        self._products = {s.labels.get(names.GPU, ""): s.labels.get("product", "") for s in by_name.get(GPU_INFO, ())}

    def _take(self, family: str, labels: Mapping[str, str], column: Sequence[float]) -> None:
        label = names.PARTS.get(family)
        full = family
        if label:
            full += f"/{labels.get(label, '')}"
        gauge = _KINDS[family] is FamilyKind.GAUGE
        if family in GPU_NAMES:
            self._of_gpus.setdefault(labels.get(names.GPU, ""), []).append((full, gauge, column))
        else:
            self._plain.append((full, gauge, column))

    def _aligned(self, series: MatrixSeries) -> Sequence[float]:
        if series.times == self.times:
            return series.values
        known = dict(zip(series.times, series.values, strict=True))
        return [known.get(t, math.nan) for t in self.times]

    def column(self, name: str) -> Sequence[float]:
        """Return the values of a series that exists once per replica."""
        series = self._by_name.get(name, ())
        if series:
            return self._aligned(series[0])
        return (math.nan,) * len(self.times)

    def snapshot(self, place: int, t: float, facts: Mapping[str, str]) -> Snapshot:
        """Return the page at one of the times."""
        counters: dict[str, float] = {}
        gauges: dict[str, float] = {}
        for family, gauge, column in self._plain:
            value = column[place]
            if 0 <= value < math.inf:
                (gauges if gauge else counters)[family] = value
        return Snapshot(
            t=t,
            engine=facts.get("engine", ""),
            generation="",
            counters=counters,
            histograms=dict(self._cumulative(place)),
            gauges=gauges,
            facts={name: value for name, value in facts.items() if name != "engine"},
        )

    def _cumulative(self, place: int) -> Iterator[tuple[str, Cumulative]]:
        for family, part in self._histograms.items():
            counts = tuple([column[place] for column in part.columns])
            if part.edges[-1] == math.inf and all(map(math.isfinite, counts)) and min(counts) >= 0:
                total = None
                if part.total is not None and math.isfinite(part.total[place]):
                    total = part.total[place]
                yield family, Cumulative(part.edges, counts, total)

    def gpus(self, place: int, t: float) -> tuple[GpuReadout, ...]:
        """Return the GPU readouts of that page."""
        return tuple(
            drop_impossible(
                GpuReadout(
                    t=t,
                    gpu=gpu,
                    product=self._products.get(gpu, ""),
                    counters={f: c[place] for f, gauge, c in rows if not gauge and math.isfinite(c[place])},
                    gauges={f: c[place] for f, gauge, c in rows if gauge and math.isfinite(c[place])},
                    sampled=frozenset(f for f, _, _ in rows if f == "gpu_utilization_sampled"),
                )
            )
            for gpu, rows in sorted(self._of_gpus.items())
        )


def _from_nothing(column: Sequence[float]) -> Sequence[float]:
    """Replace leading gaps of a sum by zero: its first value is an increase from zero."""
    first = next((place for place, value in enumerate(column) if not math.isnan(value)), 0)
    return [*(0.0 for _ in column[:first]), *column[first:]]


@lru_cache(maxsize=1024)
def _grid(edges: tuple[float, ...]) -> tuple[float, ...]:
    """Return the same object for equal edges: the minutes of thousands of replicas hold them for an hour."""
    return edges


@lru_cache(maxsize=4096)
def _edge(text: str) -> float:
    try:
        if _NUMBER.match(text):
            return float(text)
        return math.nan
    except ValueError:
        return math.nan
