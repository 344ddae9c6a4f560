"""What a way of scaling would have been worth: demand minute by minute, replicas that take a lead to start, and the bill.

Owns the arithmetic of asked, ready and late, and the policies that pre-warming is measured against: a static peak, an HPA on
utilisation, perfect foresight. The protocol is the one of the published baselines: a replica asked for at minute `t` serves
from `t + lead` and is billed from `t`; scaling down goes to the highest target of the last `hold` minutes, starting replicas
first; a minute is violated when its demand is above the ready capacity. Not here: our own policy (`prewarm`), and what to
recommend (`simulation_verdict`). A further policy is a function from demand to asked replicas.

Pre-warming against reacting: which of the two is cheaper here, and the sentence that says so.

Owns the comparison and the recommendation. Both policies are fixed before the time that is judged: pre-warming by its
certainty, reacting by the utilisation that was cheapest in the time before. They are judged by one price, that of the
certainty in use. A benchmark also compares at equal violations: there reacting has its best utilisation in hindsight.
All are compared without a margin. What the margin of recommended counts costs is a number of its own.
Which policies there are is `simulation`'s and `prewarm`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

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


UTILISATIONS = (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""The reactive frontier of the published baselines, 0.4 to 1.0."""


AS_GOOD_SAVING = 0.02
"""A saving up to here is as good as none: a replica in fifty, less than one test window differs from the next."""


class Choice(StrEnum):
    """What is recommended."""

    PREWARM = "prewarm"
    REACT = "react"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComparison:
    """What every policy came to in one world.

    `reacting` has one outcome per utilisation, `chosen` is the utilisation that was known beforehand (`cheapest_reacting`
    of the time before), `late_to_warm` the price of a missing replica-hour in paid ones. `prewarmed` is ours, `bolder` are
    ours at lower certainties: for where reacting, however careful, has more violations than ours. `with_margin` is ours with
    the margin of recommended counts, from the same quantiles; no comparison and no recommendation rests on it.
    """

    static: Outcome
    reacting: tuple[tuple[float, Outcome], ...]
    chosen: float
    prewarmed: Outcome
    with_margin: Outcome
    bolder: tuple[Outcome, ...]
    foresight: Outcome
    late_to_warm: float

    @property
    def reacted(self) -> Outcome:
        """What reacting came to at the utilisation that was chosen beforehand."""
        return dict(self.reacting)[self.chosen]

    @property
    def relative_cost(self) -> float:
        """Replica-hours of pre-warming by those of perfect foresight."""
        return self.prewarmed.replica_hours / self.foresight.replica_hours

    @property
    def relative_cost_with_margin(self) -> float:
        """Replica-hours of pre-warming with the margin by those of perfect foresight, which has none."""
        return self.with_margin.replica_hours / self.foresight.replica_hours

    @property
    def margin_cost(self) -> float:
        """Replica-hours with the margin by those without it: what the margin costs apart from the forecast."""
        return self.with_margin.replica_hours / self.prewarmed.replica_hours

    @property
    def equal_violated(self) -> float:
        """The share of violated minutes at which both are compared: ours, or the least that reacting reaches if that is more."""
        return max(self.prewarmed.violated, min(one.violated for _, one in self.reacting))

    @property
    def equal_hours(self) -> tuple[float, float]:
        """Replica-hours of pre-warming and of reacting at equal violations."""
        reacting = hours_at(tuple(one for _, one in self.reacting), self.equal_violated)
        if self.equal_violated == self.prewarmed.violated:
            return self.prewarmed.replica_hours, reacting
        return hours_at((self.prewarmed, *self.bolder), self.equal_violated), reacting

    @property
    def equal_saving(self) -> float:
        """Share of the replica-hours of reacting at equal violations that pre-warming saves; negative where it costs more."""
        ours, other = self.equal_hours
        return 1.0 - ours / other

    @property
    def saving(self) -> float:
        """Share of the cost of reacting that pre-warming saves, late requests at their price; negative where it costs more."""
        return 1.0 - self.prewarmed.priced(self.late_to_warm) / self.reacted.priced(self.late_to_warm)

    @property
    def choice(self) -> Choice:
        """Pre-warming where it is cheaper, else reacting: it is the simpler of two that are as good."""
        return Choice.PREWARM if self.saving > AS_GOOD_SAVING else Choice.REACT

    @property
    def reason(self) -> str:
        """Why it is recommended, in few words."""
        reacting = f"reacting at {self.chosen:.0%}"
        if self.choice is Choice.PREWARM:
            return f"pre-warming cost {self.saving:.0%} less than {reacting}, late requests priced"
        if self.saving >= -AS_GOOD_SAVING:
            return f"{reacting} was as good and is simpler"
        return f"{reacting} cost less, late requests priced, and is simpler"

    @property
    def sentence(self) -> str:
        """The recommendation, with its numbers."""
        ours, other = self.prewarmed, self.reacted
        said = f"{self.reason}: pre-warming took {_took(ours)}, reacting {_took(other)}"
        if ours.missing_hours or other.missing_hours:
            said += f"; a replica that is missing costs as much as {self.late_to_warm:.0f} that wait"
        if ours.replica_hours < self.static.replica_hours:
            return said
        return f"{said}; at the certainty in use always {self.static.most_replicas} replicas would have cost no more"


def _took(one: Outcome) -> str:
    return (
        f"{one.replica_hours:.0f} replica-hours and was short of capacity in {100 * one.violated:.2f} % of the minutes"
    )


def cheapest_reacting(world: SimulatedDemand, late_to_warm: float, *, minimum: int = 1) -> float:
    """The utilisation at which reacting was cheapest in a world, late requests at their price; the highest of equal ones."""
    costs = {
        one: outcome(world, simulate_reactive(world, one, minimum=minimum)).priced(late_to_warm) for one in UTILISATIONS
    }
    return min(costs, key=lambda one: (costs[one], -one))


def hours_at(outcomes: tuple[Outcome, ...], violated: float) -> float:
    """Replica-hours at which a policy is violated in this share of the minutes, interpolated on its frontier.

    The frontier is the outcomes that no other beats in both. Fewer violations than its most careful one has are priced as
    that one, more than its boldest one has as that. Raises ValueError without outcomes.
    """
    if not outcomes:
        raise ValueError("no policy was simulated")
    ordered = sorted(outcomes, key=lambda one: (one.violated, one.replica_hours))
    frontier: list[Outcome] = []
    for one in ordered:
        if not frontier or one.replica_hours < frontier[-1].replica_hours:
            frontier.append(one)
    return float(np.interp(violated, [one.violated for one in frontier], [one.replica_hours for one in frontier]))


def compare_policies(
    world: SimulatedDemand,
    prewarmed: SimulatedFleet,
    bolder: Iterable[SimulatedFleet] = (),
    *,
    with_margin: SimulatedFleet,
    chosen: float,
    late_to_warm: float,
    minimum: int = 1,
) -> PolicyComparison:
    """Everything that is compared, in one world; `prewarmed` is our own fleet in it, `bolder` at lower certainties,
    `with_margin` with the margin of recommended counts, `chosen` one of UTILISATIONS."""
    return PolicyComparison(
        static=outcome(world, simulate_static(world, peak(world))),
        reacting=tuple((one, outcome(world, simulate_reactive(world, one, minimum=minimum))) for one in UTILISATIONS),
        chosen=chosen,
        prewarmed=outcome(world, prewarmed),
        with_margin=outcome(world, with_margin),
        bolder=tuple(outcome(world, one) for one in bolder),
        foresight=outcome(world, simulate_foresight(world, minimum=minimum)),
        late_to_warm=late_to_warm,
    )
