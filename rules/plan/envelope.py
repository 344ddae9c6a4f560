"""The points of a benchmark as one rising line: their order by load, the monotone envelope, the load they stood for.

Owns METRICS (what a point carries and how it behaves with load) and the three steps from points as written to points
as compared with. It knows no SLO and no production load; `rules.plan.curve` asks the questions. A new measured quantity is a
field of `rules.plan.schema.Point` and a row in METRICS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from rules.plan.schema import BenchmarkCurve, Point


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveMetric:
    """How a quantity behaves between points: `log` interpolates its logarithm; `rises`: it never falls with load."""

    log: bool
    rises: bool


_LATENCY = CurveMetric(log=True, rises=True)
_RISING = CurveMetric(log=False, rises=True)
_FREE = CurveMetric(log=False, rises=False)

METRICS = {
    "ttft_p50_seconds": _LATENCY,
    "ttft_p99_seconds": _LATENCY,
    "tpot_p50_seconds": _LATENCY,
    "tpot_p99_seconds": _LATENCY,
    "itl_p99_seconds": _LATENCY,
    "gpu_utilization": _RISING,
    "kv_utilization": _RISING,
    "eviction_rate": _RISING,
    "output_tokens_per_second": _RISING,
    "prompt_tokens_mean": _FREE,
    "generation_tokens_mean": _FREE,
    "prefix_hit_ratio": _FREE,
    "speculative_acceptance": _FREE,
}
"""Logarithms halve the worst leave-one-out errors of TTFT P99 near the knee (six H100 sweeps, PEERS 3.3)."""


def metric_value(point: Point, metric: str) -> float | None:
    """What a point says of a metric of METRICS, None where it was not measured; KeyError for any other name."""
    if metric not in METRICS:
        raise KeyError(f"{metric} is nothing a benchmark point carries; known: {', '.join(METRICS)}")
    value: float | None = getattr(point, metric)
    return value


def interpolate(lower: float, upper: float, share: float, *, log: bool) -> float:
    """The value `share` (0 to 1) of the way from lower to upper, by logarithms where `log` (both above 0)."""
    # The ends are returned as they are: rounding must not push a value out of its bracket.
    if share <= 0 or lower == upper:
        return lower
    if share >= 1:
        return upper
    value = math.exp(math.log(lower) + share * math.log(upper / lower)) if log else lower + share * (upper - lower)
    return min(max(value, min(lower, upper)), max(lower, upper))


def sort_by_load(curve: BenchmarkCurve) -> tuple[Point, ...]:
    """The points by rising load, by what the generator controlled where every point says it.

    Completed rps alone cannot order them: past the knee it stays, or falls, while the load still grows.
    """
    controlled = ("requested_rps", "concurrency") if curve.loop == "open" else ("concurrency", "requested_rps")
    for name in controlled:
        if all(getattr(point, name) is not None for point in curve.points):
            return tuple(sorted(curve.points, key=attrgetter(name, "completed_rps")))
    return tuple(sorted(curve.points, key=attrgetter("completed_rps")))


def monotone_envelope(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points with completed rps and every rising metric replaced by its maximum over this and all lower loads.

    A latency measured at a lower load can be had at a higher one too, so a dip is luck or noise; the envelope is the
    cautious side: it expects more, never less. What a point does not carry stays absent.
    """
    highest: dict[str, float] = {}
    rising = ("completed_rps", *(name for name, metric in METRICS.items() if metric.rises))
    line = []
    for point in points:
        given = {name: value for name in rising if (value := getattr(point, name)) is not None}
        highest |= {name: max(value, highest.get(name, value)) for name, value in given.items()}
        line.append(point.model_copy(update={name: highest[name] for name in given}))
    return tuple(line)


def concurrencies(points: Sequence[Point], output_tokens: float | None) -> tuple[tuple[float, ...] | None, bool]:
    """Requests in the system at each point, never falling, and whether the benchmark itself gave them.

    Otherwise Little's law, rps x time in system, with the time estimated from the medians: TTFT + TPOT x (tokens - 1);
    tokens are the point's own output tokens per request, else `output_tokens`. None where a point lacks its part.
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
