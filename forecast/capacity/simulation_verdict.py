"""Pre-warming against reacting: which of the two is cheaper here, and the sentence that says so.

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

from forecast.capacity.simulation import (
    Outcome,
    SimulatedDemand,
    SimulatedFleet,
    outcome,
    peak,
    simulate_foresight,
    simulate_reactive,
    simulate_static,
)

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
