"""Points of a benchmark as one rising line: order by load, monotone envelope, concurrency.

To add a measured quantity: a field of `rules.plan.schema.Point`, and a row of RISING if it never falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter

from rules.plan.schema import BenchmarkCurve, Point

LATENCIES = (
    *("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds"),
    *("itl_p99_seconds", "e2e_p99_seconds"),
)
RISING = (*LATENCIES, "gpu_utilization", "kv_utilization", "eviction_rate", "output_tokens_per_second")
"""Metrics that never fall with load."""


def is_latency(metric: str) -> bool:
    """Return whether a metric is interpolated by its logarithm.

    That halves the worst leave-one-out errors of TTFT P99 near the knee (six H100 sweeps, PEERS 3.3).
    """
    return metric in LATENCIES


def metric_value(point: Point, metric: str) -> float | None:
    """Return a metric of a point, None if not measured."""
    value: float | None = getattr(point, metric)
    return value


def interpolate(lower: float, upper: float, share: float, *, log: bool) -> float:
    """Return the value at `share` (0 to 1) from lower to upper, by logarithms with `log` (both above 0)."""
    # The ends are returned as they are: rounding must not push a value out of its bracket.
    if share <= 0 or lower == upper:
        return lower
    if share >= 1:
        return upper
    value = math.exp(math.log(lower) + share * math.log(upper / lower)) if log else lower + share * (upper - lower)
    return min(max(value, min(lower, upper)), max(lower, upper))


def sort_by_load(curve: BenchmarkCurve) -> tuple[Point, ...]:
    """Return the points by rising load, by the generator's setting if every point has it.

    Completed rps cannot order them: past the knee it stays or falls while the load grows.
    """
    controlled = ("requested_rps", "concurrency") if curve.loop == "open" else ("concurrency", "requested_rps")
    for name in controlled:
        if all(getattr(point, name) is not None for point in curve.points):
            return tuple(sorted(curve.points, key=attrgetter(name, "completed_rps")))
    return tuple(sorted(curve.points, key=attrgetter("completed_rps")))


def monotone_envelope(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points with completed rps and each rising metric as maximum over this and all lower loads.

    A latency of a lower load can occur at a higher one too, so a dip is luck or noise. Missing values stay missing.
    """
    highest: dict[str, float] = {}
    line = []
    for point in points:
        given = {name: value for name in ("completed_rps", *RISING) if (value := getattr(point, name)) is not None}
        highest |= {name: max(value, highest.get(name, value)) for name, value in given.items()}
        line.append(point.model_copy(update={name: highest[name] for name in given}))
    return tuple(line)


def concurrencies(points: Sequence[Point], output_tokens: float | None) -> tuple[tuple[float, ...] | None, bool]:
    """Return the requests in the system at each point, never falling, and whether the benchmark measured them.

    Otherwise they follow from Little's law with the medians: rps x (TTFT + TPOT x (tokens - 1)). Tokens are the point's
    own, else `output_tokens`. The first result is None if a point lacks a part.
    """
    given = [point.concurrency for point in points if point.concurrency is not None]
    if len(given) == len(points):
        return tuple(accumulate(given, max)), True
    estimated = [value for point in points if (value := by_littles_law(point, output_tokens)) is not None]
    return (tuple(accumulate(estimated, max)) if len(estimated) == len(points) else None), False


def by_littles_law(point: Point, output_tokens: float | None) -> float | None:
    told = point.generation_tokens_mean
    tokens = output_tokens if told is None else told
    if tokens is None or point.ttft_p50_seconds is None or point.tpot_p50_seconds is None:
        return None
    return point.completed_rps * (point.ttft_p50_seconds + point.tpot_p50_seconds * max(tokens - 1, 0))
