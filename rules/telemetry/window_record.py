"""Lossless conversion of a window to plain JSON types and back.

The record has short keys, each bucket grid once, and whole numbers as integers. It omits trailing empty buckets and
empty parts. A new field of `Window` needs a key here and a default for older records.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram, share_counts
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window

EXACT_INTEGER = 2.0**53
"""Limit below which every whole float equals an integer. Above it `repr` of the float is shorter."""

Grid = tuple[float, ...]


def to_record(window: Window) -> dict[str, Any]:
    """Return the window as dicts, lists, strings and numbers. Infinities are "inf" and "-inf", which JSON lacks."""
    grids: dict[Grid, int] = {}
    record = {
        "s": _number(window.start),
        "e": _number(window.end),
        "x": _number(window.expected_seconds),
        "c": _number(window.covered_seconds),
        "n": _numbers(window.counters),
        "h": {family: [_part(part, grids) for part in parts] for family, parts in window.histograms.items()},
        "b": [[_number(edge) for edge in grid] for grid in grids],
        "g": {family: _gauge(gauge) for family, gauge in window.gauges.items()},
        "m": _numbers(window.short_seconds),
        "w": {family: str(reason) for family, reason in window.gaps.items()},
        "p": sorted(window.sampled),
    }
    return {key: value for key, value in record.items() if value not in ({}, [])}


def from_record(data: Mapping[str, Any]) -> Window:
    """Return the window that `to_record` wrote. Raise ValueError with the reason for other data."""
    try:
        grids = [_grid(tuple(map(float, edges))) for edges in data.get("b", ())]
        return Window(
            start=float(data["s"]),
            end=float(data["e"]),
            expected_seconds=float(data["x"]),
            covered_seconds=float(data["c"]),
            counters=_floats(data.get("n", {})),
            histograms={
                sys.intern(family): tuple(_histogram(part, grids) for part in parts)
                for family, parts in data.get("h", {}).items()
            },
            gauges={sys.intern(family): _gauge_sum(gauge) for family, gauge in data.get("g", {}).items()},
            short_seconds=_floats(data.get("m", {})),
            gaps={sys.intern(family): Gap(reason) for family, reason in data.get("w", {}).items()},
            sampled=frozenset(data.get("p", ())),
        )
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"not the record of a window ({type(error).__name__}: {str(error)[:200]})") from error


@lru_cache(maxsize=256)
def _grid(edges: Grid) -> Grid:
    """Return the same tuple for the same edges. With interned names this saves a third of the memory of many
    windows."""
    return edges


def _number(value: float) -> int | float | str:
    # Hot path: every count of every stored histogram. The remainder of infinities and NaN is NaN.
    if value % 1 == 0 and -EXACT_INTEGER < value < EXACT_INTEGER:
        return int(value)
    return value if math.isfinite(value) else str(value)


def _numbers(values: Mapping[str, float]) -> dict[str, int | float | str]:
    return {family: _number(value) for family, value in values.items()}


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {sys.intern(family): float(value) for family, value in values.items()}


def _part(part: Histogram, grids: dict[Grid, int]) -> list[Any]:
    """Return [index of its grid, sum or null, counts up to the last bucket that is not empty]."""
    used = max((place for place, count in enumerate(part.counts, 1) if count), default=0)
    total = None if part.total is None else _number(part.total)
    return [grids.setdefault(part.edges, len(grids)), total, [_number(count) for count in part.counts[:used]]]


def _histogram(part: Sequence[Any], grids: Sequence[Grid]) -> Histogram:
    place, total, kept = part
    edges, counts = grids[place], tuple(map(float, kept))
    if place < 0 or len(counts) > len(edges):
        raise ValueError(f"{len(counts)} counts on grid {place}, which has {len(edges)} buckets")
    empty = (0.0,) * (len(edges) - len(counts))
    return Histogram(edges=edges, counts=share_counts(counts + empty), total=None if total is None else float(total))


def _gauge(gauge: GaugeSum) -> list[int | float | str]:
    return [_number(v) for v in (gauge.integral, gauge.seconds, gauge.minimum, gauge.maximum, gauge.samples)]


def _gauge_sum(values: Sequence[Any]) -> GaugeSum:
    integral, seconds, minimum, maximum, samples = map(float, values)
    return GaugeSum(integral=integral, seconds=seconds, minimum=minimum, maximum=maximum, samples=samples)
