"""Trial of a history: its last days simulated minute by minute, each policy with the knowledge of that time.

Protocol of the published baselines: the test days, the capacity of a replica, and no pre-warming from unknown data.

A history of longer bins is converted to minutes, in either of two inexact ways. Straight lines between the middles of
bins reveal a slope before its bin is over, so every policy looks better. Steps hide a change until the bin begins, so
every policy looks worse. A history of minutes is used as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from forecast.capacity.prewarm import LATE_TO_WARM, certainty
from forecast.capacity.simulation import (
    Outcome,
    PolicyComparison,
    SimulatedDemand,
    cheapest_reacting,
    compare_policies,
    outcome,
    simulate_requests,
)
from forecast.lead.online import profile_outlook, run_lead_forecast
from forecast.series.binned import DAY_MINUTES, MINUTE_SECONDS, Array, Series, bin_minutes, per_minute, rates, resample
from rules.plan.replica_count import NO_MARGIN, Margin

BIN_MINUTES = 5
"""Bin length of the forecast in minutes. A series with longer bins keeps its own."""
TEST_DAYS, TEST_DAYS_COARSE = 4, 14
COARSE_BIN_MINUTES = 30
"""Bin length in minutes from which the longer test is used: the shorter one has too few bins."""
LEARN_DAYS = 28
CALIBRATION_DAYS = 2
FEWEST_DAYS_BEFORE = 5
BOLDER = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Lower certainties to simulate, for comparison where reacting always has more violations."""
PEAK_REPLICAS = 40
"""Replicas of the highest test minute. They set the capacity of a replica if it is unknown."""


class Interpolation(StrEnum):
    """Assumption about demand within a bin. `NATIVE`: none, the series has minutes."""

    NATIVE = "native"
    LINEAR = "linear"
    STEP = "step"


class ShortHistoryError(ValueError):
    """History too short for the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """Demand per minute (requests/s) of a whole history, and its test minutes.

    `bins` are the rates of its bins of `bin_minutes`, with the same start.
    """

    minutes: Array
    bins: Array
    bin_minutes: int
    test_start: int
    test_end: int
    between: Interpolation


def prepare_trial(series: Series, between: Interpolation = Interpolation.LINEAR) -> Trial:
    """Return the trial of a history. A series of minutes is used as it is and ignores `between`.

    The test is the last 4 days (14 with bins of half an hour or more). It omits the last 20 minutes or two bins. At
    most 30 days precede it. Raise ShortHistoryError with the required length.
    """
    coarse = series if bin_minutes(series) >= BIN_MINUTES else resample(series, BIN_MINUTES * MINUTE_SECONDS)
    width = bin_minutes(coarse)
    per_day = DAY_MINUTES // width
    days = TEST_DAYS if width < COARSE_BIN_MINUTES else TEST_DAYS_COARSE
    if len(coarse) < (days + FEWEST_DAYS_BEFORE) * per_day:
        raise ShortHistoryError(
            f"{len(coarse) / per_day:.1f} days are too short: the test takes {days} and {FEWEST_DAYS_BEFORE} must be before it"
        )
    count = min(len(coarse), (LEARN_DAYS + CALIBRATION_DAYS + days) * per_day)
    bins = rates(coarse)[-count:]
    beyond = 4 if width < 10 else 2
    native = bin_minutes(series) == 1
    stepped = between is Interpolation.STEP and not native
    minutes = np.repeat(bins, width) if stepped else per_minute(bins, width)
    if native:
        minutes = _with_own(minutes, series, coarse.time(len(coarse) - count))
    return Trial(
        minutes=minutes,
        bins=bins,
        bin_minutes=width,
        test_start=(count - days * per_day) * width,
        test_end=(count - beyond) * width,
        between=Interpolation.NATIVE if native else between,
    )


def _with_own(drawn: Array, series: Series, start: float) -> Array:
    """Return the observed minutes, with gaps filled from the bins."""
    place = np.arange(len(drawn)) + round((start - series.start) / MINUTE_SECONDS)
    within = (place >= 0) & (place < len(series))
    own = np.where(within, series.values[np.clip(place, 0, len(series) - 1)] / series.bin_seconds, np.nan)
    seen: Array = np.where(np.isfinite(own), own, drawn)
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Result of a trial: the comparison in the test (`worth`) and in the days before (`before`), known at its start.

    `bolder` are pre-warming results of the test at lower certainties, for comparison where reacting always has more
    violations. `covered` is the share of test minutes with demand within the quantile.
    """

    worth: PolicyComparison
    before: PolicyComparison
    bolder: tuple[Outcome, ...]
    covered: float

    @property
    def equal_violated(self) -> float:
        """Return the share of violated minutes to compare at: of pre-warming, or the least of reacting if higher."""
        return max(self.worth.prewarmed.violated, min(one.violated for _, one in self.worth.reacting))

    @property
    def equal_hours(self) -> tuple[float, float]:
        """Return the replica-hours of pre-warming and of reacting at equal violations."""
        reacting = hours_at(tuple(one for _, one in self.worth.reacting), self.equal_violated)
        if self.equal_violated == self.worth.prewarmed.violated:
            return self.worth.prewarmed.replica_hours, reacting
        return hours_at((self.worth.prewarmed, *self.bolder), self.equal_violated), reacting

    @property
    def equal_saving(self) -> float:
        """Return the share of replica-hours that pre-warming saves at equal violations; negative if it costs more."""
        ours, other = self.equal_hours
        return 1.0 - ours / other

    @property
    def relative_cost(self) -> float:
        """Return the replica-hours of pre-warming divided by those of perfect foresight."""
        return self.worth.prewarmed.replica_hours / self.worth.foresight.replica_hours

    @property
    def relative_cost_with_margin(self) -> float:
        """Return the replica-hours of pre-warming with margin divided by those of perfect foresight, which has none."""
        return self.worth.with_margin.replica_hours / self.worth.foresight.replica_hours

    @property
    def margin_cost(self) -> float:
        """Return the replica-hours with the margin divided by those without: the cost of the margin alone."""
        return self.worth.with_margin.replica_hours / self.worth.prewarmed.replica_hours


def run_trial(
    history: Trial,
    lead: int,
    *,
    late_to_warm: float = LATE_TO_WARM,
    margin: Margin = NO_MARGIN,
) -> TrialResult:
    """Compare all policies on one history with a cold start of `lead` minutes; see `prewarm.certainty` for the price.

    `margin` applies only to `PolicyComparison.with_margin`. Raise ShortHistoryError if the test has no demand.
    """
    said = history.minutes[: history.test_end]
    outlook = profile_outlook(history.bins, history.bin_minutes, lead, len(said) + 1)
    learnt = run_lead_forecast(said, outlook, lead)
    wanted = certainty(lead, late_to_warm)
    quantile = learnt.quantile(wanted)
    capacity = float(said[history.test_start :].max()) / PEAK_REPLICAS
    if not capacity > 0:
        raise ShortHistoryError("nothing was asked of this tier in the test: there is nothing to scale")
    length = history.test_end - history.test_start

    def world_of(start: int, end: int) -> SimulatedDemand:
        return SimulatedDemand(demand=said[start:end], before=float(said[start - 1]), capacity=capacity, lead=lead)

    def within(start: int, end: int) -> PolicyComparison:
        world, chosen = world_of(start, end), cheapest_reacting(world_of(1, start), late_to_warm)
        prewarmed = simulate_requests(world, quantile[start:end])
        roomy = simulate_requests(world, quantile[start:end], margin=margin)
        return compare_policies(world, prewarmed, with_margin=roomy, chosen=chosen, late_to_warm=late_to_warm)

    earliest = int(np.argmax(np.isfinite(quantile))) if np.isfinite(quantile).any() else history.test_start - 1
    start, end = history.test_start, history.test_end
    covered = said[start + lead : end] <= quantile[start : end - lead]
    bolder = (learnt.quantile(level)[start:end] for level in BOLDER if level < wanted)
    return TrialResult(
        worth=within(start, end),
        before=within(max(DAY_MINUTES, min(max(earliest, start - length), start - DAY_MINUTES)), start),
        bolder=tuple(outcome(world_of(start, end), simulate_requests(world_of(start, end), one)) for one in bolder),
        covered=float(covered.mean()),
    )


def hours_at(outcomes: tuple[Outcome, ...], violated: float) -> float:
    """Return the replica-hours of a policy at a share of violated minutes, interpolated on its frontier.

    The frontier has the outcomes that no other beats in both numbers. Beyond its ends the nearest outcome counts. Raise
    ValueError without outcomes.
    """
    if not outcomes:
        raise ValueError("no policy was simulated")
    ordered = sorted(outcomes, key=lambda one: (one.violated, one.replica_hours))
    frontier: list[Outcome] = []
    for one in ordered:
        if not frontier or one.replica_hours < frontier[-1].replica_hours:
            frontier.append(one)
    return float(np.interp(violated, [one.violated for one in frontier], [one.replica_hours for one in frontier]))
