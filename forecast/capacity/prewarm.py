"""Pre-warming: replicas to request now, so that capacity is sufficient one cold start later.

The count is the maximum of the forecast at the lead, the present demand, the minimum warm count and the hold.
`Prewarmer` decides minute by minute; `simulate_requests` does the same over a simulation. `forecast.lead` computes the
quantile, `forecast.capacity.simulation` its price, `forecast.capacity.minimum_warm` the minimum. sizewatch never sets
the replica count itself.

`schedule` turns a path of demand quantiles into few long shifts, for cron triggers where nothing can follow the gauge.
It uses only the slow forecast and contains no surge.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import numpy as np

from forecast.capacity.simulation import (
    SimulatedDemand,
    SimulatedFleet,
    apply_hold,
    initial_replicas,
    replicas,
    simulate_fleet,
)
from forecast.series.binned import Array
from rules.plan.replica_count import NO_MARGIN, Margin, count_replicas
from rules.telemetry.work import Capacity

LATE_TO_WARM = 1200.0
"""Cost of the late requests of one missing replica-minute, in minutes of a warm replica.

It applies to all traffic unless prices are given (`minimum_warm.CapacityPrices`). Found on traces, see
docs/prewarming.md."""
LEAST_CERTAINTY = 0.5


class DecisionReason(StrEnum):
    """Reason of a decision: the largest of these counts (in a tie the earlier one)."""

    FORECAST = "forecast"
    NOW = "now"
    MINIMUM = "minimum"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """Decision (`replicas`) and its inputs; demands are requests/s of the whole tier.

    `quantile_rps` is the demand at `certainty` one lead from now (None without a forecast). `now_rps` is the last
    measured demand. `for_forecast`, `for_now`, `minimum` and `holding` are the counts of each reason, computed with
    `capacity` and `margin`. `bound` is the deciding reason.
    """

    replicas: int
    bound: DecisionReason
    certainty: float
    quantile_rps: float | None
    now_rps: float
    lead_seconds: float
    capacity: Capacity
    margin: Margin
    for_forecast: int
    for_now: int
    minimum: int
    holding: int
    hold_minutes: int

    @property
    def sentence(self) -> str:
        """Return the reason as a sentence."""
        return f"{self.replicas} replicas: {_REASONS[self.bound](self)}"


def _by_forecast(why: ScalingDecision) -> str:
    return (
        f"in {why.lead_seconds:.0f} s demand stays below {why.quantile_rps or 0.0:.3g} requests/s with {100 * why.certainty:g} % "
        f"certainty, and one carries {why.capacity.rps:.3g} ({why.capacity.reason})"
    )


def _by_now(why: ScalingDecision) -> str:
    return f"demand is {why.now_rps:.3g} requests/s now, and one carries {why.capacity.rps:.3g} ({why.capacity.reason})"


def _by_minimum(why: ScalingDecision) -> str:
    return "the minimum warm count; demand asks for fewer"


def _by_hold(why: ScalingDecision) -> str:
    return f"asked for within the last {why.hold_minutes} minutes, and not yet past the minute they were asked for"


_REASONS = {
    DecisionReason.FORECAST: _by_forecast,
    DecisionReason.NOW: _by_now,
    DecisionReason.MINIMUM: _by_minimum,
    DecisionReason.HOLD: _by_hold,
}


def lead_minutes(lead_seconds: float) -> int:
    """Return the lead in whole minutes, rounded up: a replica that is ready within a minute has not served it."""
    if not lead_seconds > 0:
        raise ValueError(f"a lead of {lead_seconds} s is none")
    return max(1, ceil(lead_seconds / 60.0))


def hold_minutes(lead: int) -> int:
    """Return the minutes to keep a target: until its minute is over.

    With less, a replica is cancelled before it serves. More costs more than a higher certainty that avoids as many
    violations (docs/prewarming.md)."""
    return lead + 1


def certainty(lead: int, late_to_warm: float = LATE_TO_WARM) -> float:
    """Return the level of the demand quantile that is worth its price, 0.5 to 1, for a lead in minutes.

    A replica for one minute is paid until that minute is over: `lead + 1` minutes. If it is missing, that minute costs
    `late_to_warm`. One more pays while late_to_warm x P(demand above) > lead + 1: the newsvendor's quantile.
    """
    if not late_to_warm > 0:
        raise ValueError(f"a late minute worth {late_to_warm} warm ones buys nothing")
    return max(LEAST_CERTAINTY, 1.0 - hold_minutes(lead) / late_to_warm)


def late_to_warm(lead: int, certainty: float) -> float:
    """Return the cost of a missing minute, in warm minutes, at which `certainty` (0-1, not 1) is worth its price."""
    return hold_minutes(lead) / (1.0 - certainty)


class Prewarmer:
    """Decision per minute for one tier. `minimum` is the higher of the plan's `minimum_warm` and the newsvendor's."""

    def __init__(
        self,
        *,
        lead_seconds: float,
        minimum: int,
        certainty: float,
        hold: int | None = None,
        margin: Margin = NO_MARGIN,
    ) -> None:
        """Set the level of the given quantiles (`certainty`, for display) and the hold in minutes.

        The default hold is `hold_minutes` of the lead. Raise ValueError for an invalid hold or minimum."""
        self._margin = margin
        self._lead_seconds = lead_seconds
        self._minimum = minimum
        self._certainty = certainty
        self._hold = hold_minutes(lead_minutes(lead_seconds)) if hold is None else hold
        if self._hold < 1 or minimum < 0:
            raise ValueError(f"a hold of {self._hold} minutes with a minimum of {minimum} cannot be kept")
        self._targets: deque[int] = deque(maxlen=self._hold)

    def remember(self, replicas: int) -> None:
        """Record the replicas that were recommended a minute ago, from any source."""
        self._targets.append(replicas)

    def step(self, quantile_rps: float | None, now_rps: float, capacity: Capacity) -> ScalingDecision:
        """Return the decision of this minute. Raise ValueError for demands that are negative or not numbers."""
        forecast = 0 if quantile_rps is None else count_replicas(quantile_rps, capacity.rps, self._margin)
        now = count_replicas(now_rps, capacity.rps, self._margin)
        target = max(forecast, now, self._minimum)
        holding = max(self._targets, default=0)
        self._targets.append(target)
        parts = {
            DecisionReason.FORECAST: -1 if quantile_rps is None else forecast,
            DecisionReason.NOW: now,
            DecisionReason.MINIMUM: self._minimum,
            DecisionReason.HOLD: holding,
        }
        wanted = max(self._targets)
        return ScalingDecision(
            replicas=wanted,
            bound=next(bound for bound, count in parts.items() if count >= wanted),
            certainty=self._certainty,
            quantile_rps=quantile_rps,
            now_rps=now_rps,
            lead_seconds=self._lead_seconds,
            capacity=capacity,
            margin=self._margin,
            for_forecast=forecast,
            for_now=now,
            minimum=self._minimum,
            holding=holding,
            hold_minutes=self._hold,
        )


def simulate_requests(
    world: SimulatedDemand, quantile: Array, *, minimum: int = 1, hold: int | None = None, margin: Margin = NO_MARGIN
) -> SimulatedFleet:
    """Return the replicas of `Prewarmer` over a whole simulation. `quantile[t]` is the quantile at `t` (NaN: none).

    `hold` is in minutes (default: `hold_minutes` of the lead). Without a `margin`, strategies are compared on equal
    terms.
    """
    needed = np.maximum(world.observed_demand, np.nan_to_num(quantile, nan=0.0))
    targets = np.maximum(float(minimum), replicas(needed, world.capacity, margin))
    return simulate_fleet(
        apply_hold(targets, hold_minutes(world.lead) if hold is None else hold), world.lead, initial_replicas(world)
    )


SHORTEST_SECONDS = 3600.0
"""Minimum length of a shift in seconds. Shorter steps make a schedule unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledReplicas:
    """Shift from `start` to `end` (unix seconds) with `replicas` warm.

    `demand_rps` is the highest demand quantile in it, `peak` the start of that bin.
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
    """Return the shifts of a path of demand (requests/s by bin, from `start` in unix seconds), in order of time.

    `capacity_rps` is the demand that one replica carries. Each `shortest_seconds` counts with its highest demand.
    Adjacent shifts with equal replicas are merged. Raise ValueError for a path with gaps.
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
