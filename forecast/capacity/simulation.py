"""What a way of scaling would have been worth: demand minute by minute, replicas that take a lead to start, and the bill.

Owns the arithmetic of asked, ready and late, and the policies that pre-warming is measured against: a static peak, an HPA on
utilisation, perfect foresight. The protocol is the one of the published baselines: a replica asked for at minute `t` serves
from `t + lead` and is billed from `t`; scaling down goes to the highest target of the last `hold` minutes, starting replicas
first; a minute is violated when its demand is above the ready capacity. Not here: our own policy (`prewarm`), and what to
recommend (`simulation_verdict`). A further policy is a function from demand to asked replicas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from forecast.series.binned import Array
from rules.plan.replica_count import NO_MARGIN, ROUNDING, Margin

HPA_TOLERANCE = 0.1
"""Kubernetes' --horizontal-pod-autoscaler-tolerance: no change within 10 % of the target."""
HPA_HOLD_MINUTES = 10
"""Scale-down stabilisation of the baselines' HPA (Kubernetes' own default is 5 minutes)."""
MINUTES_PER_HOUR = 60.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedDemand:
    """Demand per minute (requests per second) and what serves it: `capacity` is what one replica carries, in the same unit.

    `before` is the demand of the minute before the first, `lead` the cold start in whole minutes. Raises ValueError for what
    cannot be simulated.
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
        """Per minute what a collector has measured at its beginning: the demand of the minute before."""
        return np.concatenate([[self.before], self.demand[:-1]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedFleet:
    """Replicas per minute: `asked` for (and billed), `ready` to serve."""

    asked: Array
    ready: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What it came to: shares are 0-1 of the minutes and of the requests; `starts` counts replicas that were asked for anew.

    `replica_hours` were paid for, `missing_hours` are the replica-hours (in parts of a replica) that late requests needed.
    """

    violated: float
    late: float
    replica_hours: float
    missing_hours: float
    most_replicas: int
    starts: int

    def cost(self, price_per_hour: float) -> float:
        """Money, at the price of one replica-hour."""
        return self.replica_hours * price_per_hour

    def priced(self, late_to_warm: float) -> float:
        """Replica-hours paid for, and those missing at the price of late requests (`prewarm.certainty`)."""
        return self.replica_hours + late_to_warm * self.missing_hours


def replicas(demand: Array, capacity: float, margin: Margin = NO_MARGIN) -> Array:
    """Return the fewest replicas that carry each demand (both in one unit) with the margin: `rules.plan.replica_count` for
    arrays."""
    full = demand / capacity
    counts: Array = np.ceil(full / margin.target_utilization - ROUNDING)
    if margin.survives_loss_from > 0:
        one_lost = np.where(counts >= margin.survives_loss_from, np.ceil(full - ROUNDING) + 1, 0)
        counts = np.maximum(counts, one_lost)
    return counts


def apply_hold(targets: Array, hold: int) -> Array:
    """Replicas asked for when a target may only be left for the highest one of the last `hold` minutes, this one included."""
    if hold < 1:
        raise ValueError(f"a hold of {hold} minutes is none")
    padded = np.concatenate([np.full(hold - 1, -np.inf), targets])
    highest: Array = sliding_window_view(padded, hold).max(axis=1)
    return highest


def simulate_fleet(asked: Array, lead: int, initial: float) -> SimulatedFleet:
    """The replicas that serve: those that were asked for without a break for a whole lead. `initial` serve at the beginning.

    What goes first when fewer are wanted is what was asked for last, so that the ready ones are the fewest of the last
    `lead + 1` minutes.
    """
    padded = np.concatenate([np.full(lead, float(initial)), asked])
    return SimulatedFleet(asked=asked, ready=sliding_window_view(padded, lead + 1).min(axis=1))


def outcome(world: SimulatedDemand, run: SimulatedFleet) -> Outcome:
    """What a fleet would have meant for the demand."""
    capacity = world.capacity * run.ready
    late = np.maximum(0.0, world.demand - capacity).sum()
    total = world.demand.sum()
    return Outcome(
        violated=float((world.demand > capacity * (1 + ROUNDING)).mean()),
        late=float(late / total) if total > 0 else 0.0,
        replica_hours=float(run.asked.sum() / MINUTES_PER_HOUR),
        missing_hours=float(late / world.capacity / MINUTES_PER_HOUR),
        most_replicas=int(run.asked.max()),
        starts=int(np.maximum(0.0, np.diff(run.asked)).sum()),
    )


def initial_replicas(world: SimulatedDemand, utilisation: float = 0.7) -> float:
    """Replicas that are ready when a simulation begins: the baselines' (the last demand at this utilisation)."""
    return float(max(1.0, np.ceil(world.before / (utilisation * world.capacity))))


def simulate_static(world: SimulatedDemand, count: int) -> SimulatedFleet:
    """Always so many."""
    return simulate_fleet(np.full(len(world.demand), float(count)), world.lead, count)


def peak(world: SimulatedDemand) -> int:
    """How many replicas the highest minute needs."""
    return max(1, int(replicas(world.demand, world.capacity).max()))


def simulate_reactive(
    world: SimulatedDemand, utilisation: float, *, hold: int = HPA_HOLD_MINUTES, minimum: int = 1
) -> SimulatedFleet:
    """An HPA that keeps this utilisation (0-1] of each replica, by the demand of the minute before."""
    if not 0 < utilisation <= 1:
        raise ValueError(f"a utilisation of {utilisation} is none")
    first = initial_replicas(world)
    total, recent, asked = first, [0.0] * hold, np.empty(len(world.demand))
    for minute, load in enumerate((world.observed_demand / (utilisation * world.capacity)).tolist()):
        near = total > 0 and abs(load / total - 1.0) <= HPA_TOLERANCE
        target = max(float(minimum), total if near else float(np.ceil(load)))
        recent[minute % hold] = target
        total = target if target > total else min(total, max(recent))
        asked[minute] = total
    return simulate_fleet(asked, world.lead, first)


def simulate_foresight(world: SimulatedDemand, *, hold: int = HPA_HOLD_MINUTES, minimum: int = 1) -> SimulatedFleet:
    """Perfect foresight: at every minute what the highest demand until one lead later needs, and the same hold."""
    ahead = world.lead + 1
    padded = np.concatenate([world.demand, np.full(world.lead, -np.inf)])
    highest: Array = sliding_window_view(padded, ahead).max(axis=1)
    targets = np.maximum(float(minimum), replicas(highest, world.capacity))
    return simulate_fleet(apply_hold(targets, hold), world.lead, float(replicas(highest[:1], world.capacity)[0]))
