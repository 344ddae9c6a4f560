"""How many replicas must be asked for now, so that those that serve one cold start from now are enough.

Owns the way from a demand quantile to a replica count, with the reason for it: the forecast at the lead, what is needed now,
the minimum warm count and the hold, whichever asks for most. The same arithmetic decides minute by minute (`Prewarmer`)
and over a whole simulation (`asked`). Not here: the quantile (`lead`), the price of it (`simulation`), the day's schedule
(`prewarm_schedule`), the minimum warm count (`newsvendor`), and who sets the replica field (never us).

The day's wanted replicas by time: what cron triggers follow where nothing can follow the gauge.

Owns the way from a path of demand quantiles to few long shifts. A schedule is made of the slow forecast alone and knows no
surge: it is the fall-back and the overview, the gauge is the answer.
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
"""What the requests of one replica that is missing for a minute cost, in minutes of a warm one: the one setting for every
traffic, unless prices are given (`newsvendor.Prices`). Found on traces, docs/prewarming.md says how."""
LEAST_CERTAINTY = 0.5


class DecisionReason(StrEnum):
    """What the answer came from: the largest of these (in a tie the earlier one)."""

    FORECAST = "forecast"
    NOW = "now"
    MINIMUM = "minimum"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """The answer (`replicas`) and everything it was made of; demands are requests per second of the whole tier.

    `quantile_rps` is the demand at `certainty` one lead from now (None where no forecast could be made), `now_rps` what was
    measured last. `for_forecast`, `for_now`, `minimum` and `holding` are what each asks for, `bound` which one decided.
    `capacity` and `margin` are what they were counted with.
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
        """The reason in words."""
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
    """The lead in whole minutes, rounded up: a replica that is ready within a minute has not served it."""
    if not lead_seconds > 0:
        raise ValueError(f"a lead of {lead_seconds} s is none")
    return max(1, ceil(lead_seconds / 60.0))


def hold_minutes(lead: int) -> int:
    """How long a target is kept: until the minute it was made for is over. Shorter, and a replica is cancelled before it
    serves; longer costs more than a higher certainty that avoids as many violations (docs/prewarming.md)."""
    return lead + 1


def certainty(lead: int, late_to_warm: float = LATE_TO_WARM) -> float:
    """Level of the demand quantile that is worth its price, 0.5 to 1, with a lead of so many minutes.

    A replica asked for because of one minute is paid for until that minute is over, `lead + 1` minutes; missing in it, it
    costs `late_to_warm`. One more pays while late_to_warm x P(demand above) > lead + 1: the newsvendor's quantile.
    """
    if not late_to_warm > 0:
        raise ValueError(f"a late minute worth {late_to_warm} warm ones buys nothing")
    return max(LEAST_CERTAINTY, 1.0 - hold_minutes(lead) / late_to_warm)


def late_to_warm(lead: int, certainty: float) -> float:
    """The price at which `certainty` (0-1, not 1) is the level that is worth it: what a missing minute costs, in warm ones."""
    return hold_minutes(lead) / (1.0 - certainty)


class Prewarmer:
    """Decides every minute for one tier. `minimum` is the plan's `minimum_warm` or the newsvendor's, whichever is more."""

    def __init__(
        self,
        *,
        lead_seconds: float,
        minimum: int,
        certainty: float,
        hold: int | None = None,
        margin: Margin = NO_MARGIN,
    ) -> None:
        """`certainty` is the level of the quantiles that will be given (only said again), `hold` minutes (`hold_minutes` of the
        lead where not given). Raises ValueError for what cannot be held."""
        self._margin = margin
        self._lead_seconds = lead_seconds
        self._minimum = minimum
        self._certainty = certainty
        self._hold = hold_minutes(lead_minutes(lead_seconds)) if hold is None else hold
        if self._hold < 1 or minimum < 0:
            raise ValueError(f"a hold of {self._hold} minutes with a minimum of {minimum} cannot be kept")
        self._targets: deque[int] = deque(maxlen=self._hold)

    def remember(self, replicas: int) -> None:
        """Count replicas that were recommended a minute ago, by whoever recommended them."""
        self._targets.append(replicas)

    def step(self, quantile_rps: float | None, now_rps: float, capacity: Capacity) -> ScalingDecision:
        """The replicas to ask for in this minute. Raises ValueError for demands that are not numbers from zero on."""
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
    """What `Prewarmer` asks for over a whole simulation; `quantile[t]` is said at `t` (NaN: nothing is said).

    `hold` is minutes, `hold_minutes` of the lead where not given. Without a `margin` strategies are compared on equal terms.
    """
    needed = np.maximum(world.observed_demand, np.nan_to_num(quantile, nan=0.0))
    targets = np.maximum(float(minimum), replicas(needed, world.capacity, margin))
    return simulate_fleet(
        apply_hold(targets, hold_minutes(world.lead) if hold is None else hold), world.lead, initial_replicas(world)
    )


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
