"""Pre-warming: replicas to request now, so that capacity is sufficient one cold start later.

The count is the maximum of the forecast at the lead, the present demand, the minimum warm count and the hold.
sizewatch never sets the replica count itself. `schedule` serves cron triggers, where nothing can follow the gauge: it
uses only the slow forecast and contains no surge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, isfinite

from rules.plan.replica_count import NO_MARGIN, Margin, count_replicas
from rules.telemetry.work import Capacity

LATE_TO_WARM = 1200.0
"""Cost of the late requests of one missing replica-minute, in minutes of a warm replica.

It applies to all traffic unless prices are given (`minimum_warm.CapacityPrices`). Found on traces, see
docs/prewarming.md."""
LEAST_CERTAINTY = 0.5

SHORTEST_SECONDS = 3600.0
"""Minimum length of a schedule step in seconds. Shorter steps make a schedule unreadable."""


class DecisionBasis(StrEnum):
    """Basis of a recommended count: the largest of these counts (in a tie the earlier one)."""

    FORECAST = "forecast"
    NOW = "now"
    MINIMUM = "minimum"
    HOLD = "hold"
    INCIDENT = "incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """Replicas to request, the counts behind them, and the demands (requests/s of the whole tier) of two of these.

    `quantile_rps` is the demand one lead from now and `for_forecast` its count, None without a forecast. `now_rps` is
    the last measured demand and `needed_now` its count. `held` is the highest count of the hold. `capacity` is that of a replica.
    """

    replicas: int
    decided_by: DecisionBasis
    quantile_rps: float | None
    now_rps: float
    for_forecast: int | None
    needed_now: int
    held: int
    capacity: Capacity


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
    """Decision per minute for one tier. `minimum` is the higher of the plan's `minimum_warm` and the newsvendor's.

    `hold` is in minutes. Raises ValueError for an invalid hold or minimum.
    """

    def __init__(self, *, minimum: int, hold: int, margin: Margin = NO_MARGIN) -> None:
        if hold < 1 or minimum < 0:
            raise ValueError(f"a hold of {hold} minutes with a minimum of {minimum} cannot be kept")
        self._minimum, self._margin = minimum, margin
        self._targets: deque[int] = deque(maxlen=hold)

    def remember(self, replicas: int) -> None:
        """Record the replicas that were recommended a minute ago, from any source."""
        self._targets.append(replicas)

    def revise(self, quantile_rps: float | None, now_rps: float, capacity: Capacity) -> ScalingDecision:
        """Return the decision of the last minute anew, in its place."""
        self._targets.pop()
        return self.step(quantile_rps, now_rps, capacity)

    def step(self, quantile_rps: float | None, now_rps: float, capacity: Capacity) -> ScalingDecision:
        """Return the decision of this minute. Raise ValueError for demands that are negative or not numbers."""
        forecast = None if quantile_rps is None else count_replicas(quantile_rps, capacity.rps, self._margin)
        now = count_replicas(now_rps, capacity.rps, self._margin)
        held = max(self._targets, default=0)
        self._targets.append(max(forecast or 0, now, self._minimum))
        replicas = max(self._targets)
        counts = {
            DecisionBasis.FORECAST: -1 if forecast is None else forecast,
            DecisionBasis.NOW: now,
            DecisionBasis.MINIMUM: self._minimum,
            DecisionBasis.HOLD: held,
        }
        return ScalingDecision(
            replicas=replicas,
            decided_by=next(basis for basis, count in counts.items() if count >= replicas),
            quantile_rps=quantile_rps,
            now_rps=now_rps,
            for_forecast=forecast,
            needed_now=now,
            held=held,
            capacity=capacity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStep:
    """Schedule step: replicas that must be warm from `start` (unix seconds) on, for up to `demand_rps`. That demand is
    of the bin that begins at `peak`, None if the count is a decision's. `expected_rps` is its median forecast. Both
    include the `event_factor` of known events.
    """

    start: float
    replicas: int
    demand_rps: float
    peak: float | None = None
    expected_rps: float | None = None
    event_factor: float = 1.0


def schedule(
    quantile_rps: Sequence[float],
    *,
    start: float,
    bin_seconds: float,
    capacity_rps: float,
    margin: Margin = NO_MARGIN,
    minimum: int = 0,
    decided: ScheduleStep | None = None,
    shortest_seconds: float = SHORTEST_SECONDS,
) -> tuple[ScheduleStep, ...]:
    """Return the steps of a path of demand (requests/s by bin, from `start` in unix seconds), in order of time.

    `capacity_rps` is the demand that one replica carries. Each `shortest_seconds` counts with its highest demand. The
    time that contains the start of the `decided` step has at least its count. Adjacent steps with equal replicas are
    merged. Raise ValueError for a path with gaps.
    """
    if not all(map(isfinite, quantile_rps)):
        raise ValueError("a schedule needs a demand for every bin")
    width = max(1, round(shortest_seconds / bin_seconds))
    steps: list[ScheduleStep] = []
    for first in range(0, len(quantile_rps), width):
        demand = max(quantile_rps[first : first + width])
        begin, peak = start + first * bin_seconds, start + quantile_rps.index(demand, first) * bin_seconds
        count = max(minimum, count_replicas(demand, capacity_rps, margin))
        step = ScheduleStep(start=begin, replicas=count, demand_rps=demand, peak=peak)
        covers = decided is not None and begin <= decided.start < begin + width * bin_seconds
        if decided is not None and covers and decided.replicas > count:
            step = replace(decided, start=begin, demand_rps=max(demand, decided.demand_rps))
        steps.append(step)
    return merge_steps(steps)


def merge_steps(steps: Iterable[ScheduleStep]) -> tuple[ScheduleStep, ...]:
    """Return steps in time order. Neighbours of equal count become a step with the highest demand of both."""
    schedule_steps: list[ScheduleStep] = []
    for step in sorted(steps, key=lambda step: step.start):
        if schedule_steps and schedule_steps[-1].replicas == step.replicas:
            last = schedule_steps.pop()
            if last.demand_rps > step.demand_rps:
                step = last
            step = replace(step, start=last.start)
        schedule_steps.append(step)
    return tuple(schedule_steps)
