"""The day's wanted replicas by time: what cron triggers follow where nothing can follow the gauge.

Owns the way from a path of demand quantiles to few long shifts. A schedule is made of the slow forecast alone and knows no
surge: it is the fall-back and the overview, the gauge is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecast.series.binned import Array
from rules.plan.replica_count import NO_MARGIN, Margin, count_replicas

SHORTEST_SECONDS = 3600.0
"""Shifts are at least so long: a schedule with more steps than hours is read by nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledReplicas:
    """From `start` to `end` (unix seconds) `replicas` must be warm.

    `demand_rps` is the highest quantile of demand within, and `peak` when the bin begins that it is of.
    """

    start: float
    end: float
    replicas: int
    demand_rps: float
    peak: float


def schedule(
    quantile_rps: Array,
    *,
    start: float,
    bin_seconds: float,
    capacity_rps: float,
    margin: Margin = NO_MARGIN,
    minimum: int = 0,
    shortest_seconds: float = SHORTEST_SECONDS,
) -> tuple[ScheduledReplicas, ...]:
    """Shifts that cover every bin of a path (requests per second of each, from `start` on, unix seconds), in order of time.
    `capacity_rps` is what one replica carries.

    Within a stretch of `shortest_seconds` the highest demand counts; neighbours with equal replicas are one shift. Raises
    ValueError for a path with gaps.
    """
    if not np.isfinite(quantile_rps).all():
        raise ValueError("a schedule needs a demand for every bin")
    width = max(1, round(shortest_seconds / bin_seconds))
    shifts: list[ScheduledReplicas] = []
    for first in range(0, len(quantile_rps), width):
        part = quantile_rps[first : first + width]
        demand, peak = float(part.max()), start + (first + int(part.argmax())) * bin_seconds
        count = max(minimum, count_replicas(demand, capacity_rps, margin))
        begin, end = start + first * bin_seconds, start + (first + len(part)) * bin_seconds
        if shifts and shifts[-1].replicas == count:
            before = shifts.pop()
            begin = before.start
            demand, peak = max((demand, peak), (before.demand_rps, before.peak))
        shifts.append(ScheduledReplicas(start=begin, end=end, replicas=count, demand_rps=demand, peak=peak))
    return tuple(shifts)
