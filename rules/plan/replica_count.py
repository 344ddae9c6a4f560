"""Replica count for a demand, shared by pre-warming, report, `whatif`, rules and pages (DESIGN 3.13)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rules.plan.capacity import POOL_TOKENS, planned_capacity, planned_work, pool_capacity
from rules.plan.schema import TierPlan
from rules.telemetry.wording import number
from rules.telemetry.work import Capacity
from rules.thresholds import CatalogueRow

ROUNDING = 1e-9
"""Counts are rounded up, but not for the last bits of a quotient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Room that a replica count leaves.

    `target_utilization` (above 0, at most 1) is the share of capacity that the demand may use. A tier of
    `survives_loss_from` replicas or more also carries the demand with one replica lost (0: never).
    """

    target_utilization: float = 1.0
    survives_loss_from: int = 0


NO_MARGIN = Margin()
"""Every replica full, and none to spare: what published comparisons of forecasts count with."""


def margin_from_rule(rule: CatalogueRow, overrides: Mapping[str, Mapping[str, float]]) -> Margin:
    """Return the margin of a tier from NoHeadroom's limits and the tier's overrides.

    A limit above 1 allows overfull tiers; counts then fill replicas and no more.
    """
    return Margin(
        target_utilization=min(1.0, rule.limit("above", overrides)),
        survives_loss_from=round(rule.limit("survives_loss_from", overrides)),
    )


def count_replicas(demand_rps: float, capacity_rps: float, margin: Margin = NO_MARGIN) -> int:
    """Return the fewest replicas for a demand (rps of the tier) with the margin; 0 for no demand.

    ceil(demand / (capacity x target utilisation)); from `survives_loss_from` replicas on at least ceil(demand /
    capacity) + 1. Raise ValueError for a demand below 0 or a capacity that is not above 0.
    """
    if not (0 <= demand_rps < math.inf and 0 < capacity_rps < math.inf):
        raise ValueError(f"{demand_rps} requests per second cannot be served by replicas of {capacity_rps} each")
    full = demand_rps / capacity_rps
    count = math.ceil(full / margin.target_utilization - ROUNDING)
    if 0 < margin.survives_loss_from <= count:
        count = max(count, math.ceil(full - ROUNDING) + 1)
    return count


def spare_rps(replicas: int, demand_rps: float, capacity_rps: float, margin: Margin) -> float:
    """Return the demand (rps) that ready replicas carry beyond the present one with the margin; at least 0."""
    usable = replicas * margin.target_utilization
    if 0 < margin.survives_loss_from <= replicas:
        usable = min(usable, replicas - 1.0)
    return max(0.0, usable * capacity_rps - demand_rps)


def count_fleet(peak_rps: float, capacity_rps: float, safety_factor: float, margin: Margin, minimum: int = 1) -> int:
    """Return Step 11 (guide 9.1): the replicas for a peak (rps of the tier).

    The larger of ceil(peak x safety factor / capacity) and `count_replicas`, at least `minimum`. The guide rounds
    before the factor; for 160 rps, 12 a replica and 1.3 it buys 19, of which one carries nothing.
    """
    planned = math.ceil(peak_rps * safety_factor / capacity_rps - ROUNDING)
    return max(minimum, planned, count_replicas(peak_rps, capacity_rps, margin))


def fleet_terms(plan: TierPlan) -> tuple[float, int]:
    """Return the safety factor and the minimum warm count of a plan, 1 by default.

    The guide's 20 % and 50 % depend on the traffic, so the default is the margin alone.
    """
    fleet = plan.fleet
    safety = fleet.safety_factor if fleet and fleet.safety_factor else 1.0
    return safety, fleet.minimum_warm if fleet and fleet.minimum_warm else 1


def count_planned(plan: TierPlan, margin: Margin) -> ReplicaCount | None:
    """Return Step 11 for the work of the planned peak, None without peak or capacity, or for pools."""
    capacity, peak = planned_capacity(plan), plan.value_at("workload.requests_per_second.peak")
    if capacity is None or peak is None or plan.pools != ("mixed",):
        return None
    return replica_count(peak * planned_work(plan, capacity.lengths), capacity, margin, *fleet_terms(plan))


def count_pools(plan: TierPlan, demand_rps: float, margin: Margin, safety: float = 1.0) -> Mapping[str, ReplicaCount]:
    """Return the replicas of each pool for a demand (rps of the tier) of the planned lengths; empty without rates."""
    known = {pool: capacity for pool in POOL_TOKENS if (capacity := pool_capacity(plan, pool)) is not None}
    apart = plan.pools != ("mixed",) and len(known) == len(POOL_TOKENS)
    counted = known if apart else {}
    return {pool: replica_count(demand_rps, capacity, margin, safety) for pool, capacity in counted.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCount:
    """The replicas that `demand_rps` needs at a capacity, with a margin, and never fewer than `minimum`.

    `safety_factor` is the plan's, 1 for a demand that has its own bound. `fewest` and `most` are the counts at the upper
    and the lower bound of the capacity (None: that bound is open).
    """

    demand_rps: float
    capacity: Capacity
    margin: Margin
    minimum: int
    replicas: int
    fewest: int | None
    most: int | None
    safety_factor: float = 1.0

    @property
    def without_safety(self) -> int:
        """Return the count with the margin alone, without the safety factor."""
        return max(self.minimum, count_replicas(self.demand_rps, self.capacity.rps, self.margin))

    @property
    def utilization(self) -> float:
        """Return demand by the capacity of all replicas (0-1 and above)."""
        return self.demand_rps / (self.replicas * self.capacity.rps)

    @property
    def utilization_one_lost(self) -> float | None:
        """Return the utilisation with one replica fewer, None if none would be left."""
        return self.demand_rps / ((self.replicas - 1) * self.capacity.rps) if self.replicas > 1 else None

    @property
    def bounds_text(self) -> str:
        """Return the range of counts in words, "" if both bounds of the capacity give this count."""
        if self.fewest == self.most == self.replicas:
            return ""
        least = self.fewest if self.fewest is not None else max(1, self.minimum)
        return f"{least} or more" if self.most is None else f"{least} to {self.most}"

    @property
    def arithmetic_text(self) -> str:
        """Return the count without the safety factor, with its numbers in words."""
        count = self.without_safety
        target = f" at up to {self.margin.target_utilization:.3g} of it" if self.margin.target_utilization < 1 else ""
        text = f"{number(self.demand_rps, 'per_second')} at {number(self.capacity.rps, 'per_second')} a replica{target}"
        if 0 < self.margin.survives_loss_from <= count:
            text += ", one may be lost"
        if count > count_replicas(self.demand_rps, self.capacity.rps, self.margin):
            text += f", never fewer than {self.minimum}"
        return f"{text}: {count}"


def replica_count(
    demand_rps: float, capacity: Capacity, margin: Margin, safety_factor: float = 1.0, minimum: int = 1
) -> ReplicaCount:
    """Return the count for a demand (rps of the tier), also at both bounds of the capacity.

    With `fleet_terms` of a plan it is Step 11 (guide 9.1) for a peak that was seen.
    """

    def at(rps: float) -> int:
        return count_fleet(demand_rps, rps, safety_factor, margin, minimum)

    return ReplicaCount(
        demand_rps=demand_rps,
        capacity=capacity,
        margin=margin,
        minimum=minimum,
        replicas=at(capacity.rps),
        fewest=at(capacity.high) if capacity.high else None,
        most=at(capacity.low) if capacity.low else None,
        safety_factor=safety_factor,
    )
