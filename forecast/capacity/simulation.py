"""Simulation of scaling policies minute by minute, their cost, and the comparison of pre-warming with reacting.

Protocol of the published baselines: a replica requested at minute `t` serves from `t + lead` and is billed from `t`.
Scaling down goes to the highest target of the last `hold` minutes; starting replicas go first. A minute is violated
when its demand exceeds the ready capacity. The baselines are a static peak, an HPA on utilisation and perfect foresight.

Policies are fixed before the evaluated time: pre-warming by its certainty, reacting by its cheapest utilisation before.
One price applies to all: the price of the certainty in use. Comparisons have no margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from forecast.capacity.prewarm import hold_minutes
from forecast.series.binned import Array
from rules.plan.replica_count import NO_MARGIN, ROUNDING, Margin

HPA_TOLERANCE = 0.1
"""Relative tolerance of the HPA (--horizontal-pod-autoscaler-tolerance): no change within 10 % of the target."""
HPA_HOLD_MINUTES = 10
"""Scale-down stabilisation of the baselines' HPA in minutes (the default of Kubernetes is 5 minutes)."""
MINUTES_PER_HOUR = 60.0

UTILISATIONS = (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Utilisations of the reactive frontier in the published baselines."""

AS_GOOD_SAVING = 0.02
"""Saving that counts as none (share): a replica in fifty, less than the difference between test windows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedDemand:
    """Demand per minute (requests/s) and the `capacity` of one replica in the same unit.

    `before` is the demand of the minute before the first, `lead` the cold start in whole minutes. Raises ValueError for
    invalid values.
    """

    demand: Array
    before: float
    capacity: float
    lead: int

    def __post_init__(self) -> None:
        if len(self.demand) == 0 or not np.isfinite(self.demand).all():
            raise ValueError("a simulation needs demand in every minute")
        if not self.capacity > 0:
            raise ValueError(f"a replica that carries {self.capacity} requests per second carries none")
        if self.lead < 1:
            raise ValueError(f"a lead of {self.lead} minutes is none")

    @property
    def observed_demand(self) -> Array:
        """Return the measured demand at the start of each minute: the demand of the minute before."""
        return np.concatenate([[self.before], self.demand[:-1]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedFleet:
    """Replicas per minute: `billed` (requested and paid) and `ready` to serve."""

    billed: Array
    ready: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a policy. Shares are 0-1 of minutes and of requests.

    `replica_hours` were paid. `missing_hours` are the fractional replica-hours that late requests needed.
    """

    violated: float
    late: float
    replica_hours: float
    missing_hours: float
    most_replicas: int

    def priced(self, late_to_warm: float) -> float:
        """Return the paid replica-hours plus the missing ones at the price of late requests (`prewarm.certainty`)."""
        return self.replica_hours + late_to_warm * self.missing_hours


def replicas(demand: Array, capacity: float, margin: Margin = NO_MARGIN) -> Array:
    """Return the fewest replicas that carry each demand with the margin: `rules.plan.replica_count` for arrays."""
    full = demand / capacity
    counts: Array = np.ceil(full / margin.target_utilization - ROUNDING)
    if margin.survives_loss_from > 0:
        one_lost = np.where(counts >= margin.survives_loss_from, np.ceil(full - ROUNDING) + 1, 0)
        counts = np.maximum(counts, one_lost)
    return counts


def apply_hold(targets: Array, hold: int) -> Array:
    """Return the requested replicas if targets fall only to the highest of the last `hold` minutes."""
    if hold < 1:
        raise ValueError(f"a hold of {hold} minutes is none")
    padded = np.concatenate([np.full(hold - 1, -np.inf), targets])
    highest: Array = sliding_window_view(padded, hold).max(axis=1)
    return highest


def simulate_fleet(values: Array, lead: int, initial: float) -> SimulatedFleet:
    """Return the serving replicas: those requested without a break for a whole lead. `initial` serve at the start.

    Scaling down removes the newest requests first. So the ready count is the minimum of the last `lead + 1` minutes.
    """
    padded = np.concatenate([np.full(lead, float(initial)), values])
    return SimulatedFleet(billed=values, ready=sliding_window_view(padded, lead + 1).min(axis=1))


def outcome(world: SimulatedDemand, run: SimulatedFleet) -> Outcome:
    capacity = world.capacity * run.ready
    late = np.maximum(0.0, world.demand - capacity).sum()
    total = world.demand.sum()
    return Outcome(
        violated=float((world.demand > capacity * (1 + ROUNDING)).mean()),
        late=float(late / total) if total > 0 else 0.0,
        replica_hours=float(run.billed.sum() / MINUTES_PER_HOUR),
        missing_hours=float(late / world.capacity / MINUTES_PER_HOUR),
        most_replicas=int(run.billed.max()),
    )


def initial_replicas(world: SimulatedDemand, utilisation: float = 0.7) -> float:
    """Return the ready replicas at the start, as in the baselines: the last demand at this utilisation."""
    return float(max(1.0, np.ceil(world.before / (utilisation * world.capacity))))


def simulate_static(world: SimulatedDemand, count: int) -> SimulatedFleet:
    """Return a fleet with a constant count."""
    return simulate_fleet(np.full(len(world.demand), float(count)), world.lead, count)


def peak(world: SimulatedDemand) -> int:
    """Return the replicas that the highest minute needs."""
    return max(1, int(replicas(world.demand, world.capacity).max()))


def simulate_reactive(
    world: SimulatedDemand, utilisation: float, *, hold: int = HPA_HOLD_MINUTES, minimum: int = 1
) -> SimulatedFleet:
    """Return an HPA fleet with this utilisation (0-1] of each replica, from the demand of the minute before."""
    if not 0 < utilisation <= 1:
        raise ValueError(f"a utilisation of {utilisation} is none")
    first = initial_replicas(world)
    total, recent, values = first, [0.0] * hold, np.empty(len(world.demand))
    for minute, load in enumerate((world.observed_demand / (utilisation * world.capacity)).tolist()):
        near = total > 0 and abs(load / total - 1.0) <= HPA_TOLERANCE
        target = max(float(minimum), total if near else float(np.ceil(load)))
        recent[minute % hold] = target
        total = target if target > total else min(total, max(recent))
        values[minute] = total
    return simulate_fleet(values, world.lead, first)


def simulate_foresight(world: SimulatedDemand, *, hold: int = HPA_HOLD_MINUTES, minimum: int = 1) -> SimulatedFleet:
    """Return perfect foresight: replicas for the highest demand until one lead later, with that hold."""
    ahead = world.lead + 1
    padded = np.concatenate([world.demand, np.full(world.lead, -np.inf)])
    highest: Array = sliding_window_view(padded, ahead).max(axis=1)
    targets = np.maximum(float(minimum), replicas(highest, world.capacity))
    at_start = float(replicas(highest[:1], world.capacity)[0])
    return simulate_fleet(apply_hold(targets, hold), world.lead, at_start)


def simulate_requests(
    world: SimulatedDemand, quantile: Array, *, minimum: int = 1, hold: int | None = None, margin: Margin = NO_MARGIN
) -> SimulatedFleet:
    """Return the fleet of `prewarm.Prewarmer` with the demand `quantile[t]` at each minute (NaN: none).

    `hold` is in minutes (default: `hold_minutes` of the lead). Without a `margin`, strategies are compared on equal
    terms.
    """
    needed = np.maximum(world.observed_demand, np.nan_to_num(quantile, nan=0.0))
    targets = np.maximum(float(minimum), replicas(needed, world.capacity, margin))
    values = apply_hold(targets, hold_minutes(world.lead) if hold is None else hold)
    return simulate_fleet(values, world.lead, initial_replicas(world))


class Choice(StrEnum):
    """Cheaper policy of a past, or the simpler of two that were as good."""

    PREWARM = "prewarm"
    REACT = "react"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComparison:
    """Results of every policy for one demand.

    `reacting` has an outcome per utilisation; `chosen` is the utilisation of `cheapest_reacting` in the time before.
    `late_to_warm` is the price of a missing replica-hour in paid ones. `with_margin` has the margin of recommended
    counts and the same quantiles; no comparison uses it.
    """

    static: Outcome
    reacting: tuple[tuple[float, Outcome], ...]
    chosen: float
    prewarmed: Outcome
    with_margin: Outcome
    foresight: Outcome
    late_to_warm: float

    @property
    def reacted(self) -> Outcome:
        """Return the result of reacting at the chosen utilisation."""
        return dict(self.reacting)[self.chosen]

    @property
    def saving(self) -> float:
        """Return the share of cost that pre-warming saves with late requests priced; negative if it costs more."""
        return 1.0 - self.prewarmed.priced(self.late_to_warm) / self.reacted.priced(self.late_to_warm)

    @property
    def choice(self) -> Choice:
        """Return pre-warming if it is cheaper, else reacting, which is simpler."""
        return Choice.PREWARM if self.saving > AS_GOOD_SAVING else Choice.REACT

    @property
    def reason(self) -> str:
        """Return which policy was cheaper, as a fact about the past."""
        reacting = f"reacting at {self.chosen:.0%}"
        if self.choice is Choice.PREWARM:
            return f"pre-warming cost {self.saving:.0%} less than {reacting}, late requests priced"
        cost = "have cost as little as" if self.saving >= -AS_GOOD_SAVING else "have cost less than"
        return f"following what arrives ({reacting}) would {cost} the forecast, late requests priced"

    @property
    def sentence(self) -> str:
        """Return which policy was cheaper, with the numbers."""
        ours, result = self.prewarmed, self.reacted
        text = f"{self.reason}: pre-warming took {_outcome_text(ours)}, reacting {_outcome_text(result)}"
        if ours.missing_hours or result.missing_hours:
            text += f"; a replica that is missing costs as much as {self.late_to_warm:.0f} that wait"
        if ours.replica_hours < self.static.replica_hours:
            return text
        return f"{text}; at the certainty in use always {self.static.most_replicas} replicas would have cost no more"


def _outcome_text(result: Outcome) -> str:
    return f"{result.replica_hours:.0f} replica-hours and was short of capacity in {100 * result.violated:.2f} % of the minutes"


def cheapest_reacting(world: SimulatedDemand, late_to_warm: float, *, minimum: int = 1) -> float:
    """Return the cheapest utilisation of reacting with late requests priced. In a tie return the highest."""
    costs = {
        value: outcome(world, simulate_reactive(world, value, minimum=minimum)).priced(late_to_warm)
        for value in UTILISATIONS
    }
    return min(costs, key=lambda value: (costs[value], -value))


def compare_policies(
    world: SimulatedDemand,
    prewarmed: SimulatedFleet,
    *,
    with_margin: SimulatedFleet,
    chosen: float,
    late_to_warm: float,
    minimum: int = 1,
) -> PolicyComparison:
    """Return all results for one demand. `prewarmed` is the product's fleet.

    `with_margin` has the margin of recommended counts; `chosen` is one of UTILISATIONS."""
    return PolicyComparison(
        static=outcome(world, simulate_static(world, peak(world))),
        reacting=tuple(
            (value, outcome(world, simulate_reactive(world, value, minimum=minimum))) for value in UTILISATIONS
        ),
        chosen=chosen,
        prewarmed=outcome(world, prewarmed),
        with_margin=outcome(world, with_margin),
        foresight=outcome(world, simulate_foresight(world, minimum=minimum)),
        late_to_warm=late_to_warm,
    )
