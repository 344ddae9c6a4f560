"""Capacity: the completed requests per second that one replica carries within its SLO now (DESIGN 1, capacity).

Owns the record, the capacity that a plan gives, and how daily estimates become one number that does not swing. The estimate
from production is `rules.measured_capacity`'s. Whatever counts replicas or divides by what a replica can take reads this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rules.curve import Curve, operating_point
from rules.plan import TierPlan
from rules.verdicts import Certainty
from rules.work import UNTOLD, CapacityLengths, capacity_lengths

MOST_FALL, MOST_RISE = 0.30, 0.10
"""By how much of its value capacity may fall and rise from one day to the next. Ours: a fall of 30 % asks for 43 % more replicas
(1 / 0.7), a rise of 10 % lets 9 % go (1 - 1 / 1.1). Too small a fleet misses its SLO, too large a one costs money."""

EVALUATIONS = 8
"""Daily estimates behind one capacity: that of the last midnight, and those of the seven before."""

EVIDENCE_DAYS = 7
"""Days of production that each estimate rests on: every weekday once."""


class CapacitySource(StrEnum):
    """Where a capacity is known from."""

    BENCHMARK = "benchmark"
    OPERATOR = "operator"
    PRODUCTION = "production"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Completed requests per second of one replica within its SLO.

    `rps` is the best estimate and lies in [low, high] (None: open). `planned_rps` is the plan's, None where it has none.
    `highest_rps` is the highest mean load of a load bin in production, `kept_rps` the highest that kept the SLO.
    `knee_seen` says whether production broke it. `reason` says in words where the number comes from. It counts requests of
    these `lengths`: others are more or less work (`rules.work`).
    """

    rps: float
    low: float
    high: float | None
    source: CapacitySource
    certainty: Certainty
    reason: str
    planned_rps: float | None = None
    highest_rps: float | None = None
    kept_rps: float | None = None
    knee_seen: bool = False
    lengths: CapacityLengths = UNTOLD

    @property
    def is_lower_bound(self) -> bool:
        """Whether nobody knows where a replica's capacity ends: no benchmark, and production kept the SLO at every load.

        Such a number is the load that the present fleet gives a replica. To count replicas with it would ask for more of them,
        which lowers it, and so on without end.
        """
        return self.planned_rps is None and not self.knee_seen


def planned_capacity(plan: TierPlan) -> Capacity | None:
    """Return the capacity of the plan, as nobody has confirmed it yet. None where curve and SLO give none, and nobody does.

    A benchmark that broke the SLO is an upper bound: nothing says yet whether production carries as much.
    """
    point = operating_point(plan)
    if point is None:
        return None
    source, who = CapacitySource.BENCHMARK, "the benchmark's"
    if point.given:
        source, who = CapacitySource.OPERATOR, "the plan's operating point,"
        if plan.operating_point is not None and plan.operating_point.source == "production":
            source, who = CapacitySource.PRODUCTION, "the plan's operating point, measured by production,"
    return Capacity(
        rps=point.usable_rps,
        low=point.low or 0.0,
        high=point.high or (point.usable_rps if point.knee_reached else None),
        source=source,
        certainty=Certainty.LIKELY,
        reason=f"{who} {point.usable_rps:.3g} rps a replica; production says nothing of it yet",
        planned_rps=point.usable_rps,
        lengths=capacity_lengths(plan, Curve.from_plan(plan), point),
    )


def damp_capacity(daily: Sequence[Capacity | None]) -> Capacity | None:
    """Return the capacity to use from the estimates of successive days, the newest last.

    It follows each day's estimate, but falls by at most MOST_FALL of its value a day and rises by at most MOST_RISE. It begins
    with the oldest as it is: what all of them agree on is taken at once, also a rise that the days between did not complete.
    Days before the first estimate count for nothing. None where the newest day has no estimate.
    """
    newest = daily[-1] if daily else None
    if newest is None:
        return None
    known = [one.rps for one in daily if one is not None]
    used = known[0]
    for rps in known[1:]:
        used = min(max(rps, used * (1 - MOST_FALL)), used * (1 + MOST_RISE))
    if abs(used - newest.rps) <= 1e-9 * newest.rps:
        return newest
    limit = f"falls at most {MOST_FALL:.0%}" if used > newest.rps else f"rises at most {MOST_RISE:.0%}"
    return replace(
        newest,
        rps=used,
        low=min(newest.low, used),
        high=None if newest.high is None else max(newest.high, used),
        certainty=Certainty.LIKELY,
        reason=f"{newest.reason}; {newest.rps:.3g} is today's estimate, and capacity {limit} a day",
    )


def stated_capacity(rps: float, reason: str, lengths: CapacityLengths = UNTOLD) -> Capacity:
    """Return a capacity that somebody states as exact. Raises ValueError unless it is a finite number above 0."""
    if not 0 < rps < float("inf"):
        raise ValueError(f"a replica that carries {rps} requests per second cannot be counted in")
    return Capacity(
        rps=rps,
        low=rps,
        high=rps,
        source=CapacitySource.OPERATOR,
        certainty=Certainty.CERTAIN,
        reason=reason,
        planned_rps=rps,
        lengths=lengths,
    )
