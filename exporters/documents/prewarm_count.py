"""How a recommended count was made, and in which words it is told.

Owns the record of the margin and the bounds of a count. The formula is `rules.plan.replica_count`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from rules.plan.replica_count import ReplicaCount
from rules.telemetry.wording import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How the count was made: the margin, the demand that it is for (requests per second), the counts at the upper and the lower
    bound of the capacity (None: open), and how full the recommended replicas are at that demand, also with one lost."""

    target_utilization: float
    survives_loss_from: int
    demand_rps: float
    fewest: int | None
    most: int | None
    utilization: float | None
    utilization_one_lost: float | None


def build_count_text(one: ReplicaCount) -> Counted:
    """Return a count as commands and pages tell it."""
    return Counted(
        target_utilization=one.margin.target_utilization,
        survives_loss_from=one.margin.survives_loss_from,
        demand_rps=one.demand_rps,
        fewest=one.fewest,
        most=one.most,
        utilization=one.utilization,
        utilization_one_lost=one.utilization_one_lost,
    )


def bounds_words(best: float, low: float | None, high: float | None) -> str:
    """Between which bounds the capacity lies, in words; "" where they are the number itself."""
    if low == high == best:
        return ""
    if high is None:
        return "" if low is None else f" (at least {number(low, 'per_second')})"
    if low is None:
        return f" (at most {number(high, 'per_second')})"
    return f" ({number(low, 'per_second')} to {number(high, 'per_second')})"


def count_words(replicas: int, counted: Counted) -> str:
    """How full the recommended replicas are, by which margin they were counted, and between which counts the answer lies."""
    used = "" if counted.utilization is None else f"{counted.utilization:.0%} used"
    if counted.utilization_one_lost is not None:
        used += f", {counted.utilization_one_lost:.0%} with one lost"
    text = f"{used} at {number(counted.demand_rps, 'per_second')}; up to {counted.target_utilization:.0%} may be used"
    if counted.survives_loss_from:
        text += f", and from {counted.survives_loss_from} replicas on one may be lost"
    if (counted.fewest, counted.most) != (replicas, replicas) and (counted.fewest or counted.most):
        least = "at least " if counted.most is None else "at most " if counted.fewest is None else ""
        span = " to ".join(str(count) for count in (counted.fewest, counted.most) if count is not None)
        text += f"; {least}{span} by the bounds of what a replica takes"
    return text
