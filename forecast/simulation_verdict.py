"""Pre-warming against reacting at equal violations: which of the two is cheaper here, and the sentence that says so.

Owns the comparison and the recommendation. Judged on the past it is what a tier is told (nothing ahead is known); judged on a
test window it is what a benchmark reports. Which policies there are is `simulation`'s and `prewarm`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from forecast.simulation import Fleet, Outcome, World, foresight, outcome, peak, reactive, static

UTILISATIONS = (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""The reactive frontier of the published baselines, 0.4 to 1.0."""


AS_GOOD_SAVING = 0.02
"""A saving up to here is as good as none: a replica in fifty, less than one test window differs from the next."""


class Choice(StrEnum):
    """What is recommended."""

    PREWARM = "prewarm"
    REACT = "react"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What every policy came to in one world.

    `reacting` has one outcome per utilisation, `prewarmed` is ours, `bolder` are ours at lower certainties: for where
    reacting, however careful, has more violations than ours.
    """

    static: Outcome
    reacting: tuple[tuple[float, Outcome], ...]
    prewarmed: Outcome
    bolder: tuple[Outcome, ...]
    foresight: Outcome

    @property
    def relative_cost(self) -> float:
        """Replica-hours of pre-warming by those of perfect foresight."""
        return self.prewarmed.replica_hours / self.foresight.replica_hours

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
    def saving(self) -> float:
        """Share of the replica-hours of reacting at equal violations that pre-warming saves; negative where it costs more."""
        ours, other = self.equal_hours
        return 1.0 - ours / other

    @property
    def choice(self) -> Choice:
        """Pre-warming where it is cheaper at equal violations, else reacting: it is the simpler of two that are as good."""
        return Choice.PREWARM if self.saving > AS_GOOD_SAVING else Choice.REACT

    @property
    def sentence(self) -> str:
        """The recommendation, with its numbers."""
        ours, other = self.equal_hours
        late = f"with {100 * self.equal_violated:.2f} % of the minutes short of capacity"
        if self.choice is Choice.PREWARM:
            said = f"pre-warm: {ours:.0f} replica-hours {late}; reacting takes {other:.0f}"
        else:
            said = f"react: {other:.0f} replica-hours {late}; pre-warming takes {ours:.0f}"
        if self.prewarmed.replica_hours < self.static.replica_hours:
            return said
        return f"{said}; at the certainty in use always {self.static.most_replicas} replicas would have cost no more"


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


def worth(world: World, prewarmed: Fleet, bolder: Iterable[Fleet] = (), *, minimum: int = 1) -> Worth:
    """Everything that is compared, in one world; `prewarmed` is our own fleet in it, `bolder` at lower certainties."""
    return Worth(
        static=outcome(world, static(world, peak(world))),
        reacting=tuple((one, outcome(world, reactive(world, one, minimum=minimum))) for one in UTILISATIONS),
        prewarmed=outcome(world, prewarmed),
        bolder=tuple(outcome(world, one) for one in bolder),
        foresight=outcome(world, foresight(world, minimum=minimum)),
    )
