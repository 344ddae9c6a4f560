"""A history tried: its last days simulated minute by minute as if they came now, each policy with what it knew then.

Owns the protocol of the published baselines: which days are the test, what a replica carries, and that pre-warming says
nothing at a minute that it could not have known. Where a history comes from is the caller's business, and so is the outlook:
a bin forecaster's where there is one, else the time-of-week profile. The comparison itself is `simulation_verdict`.

Demand per minute from a series of bins: what a simulation runs on where it has no minutes of its own.

Owns the two ways between bins and what fills a gap there. Neither is what happened within a bin: straight lines between the
middles of bins tell the slope that leads to a bin before it is over, so that every policy looks better than it is, and
steps hold everything back until the bin begins, so that every policy looks worse. A series of minutes is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from forecast.capacity.prewarm import LATE_TO_WARM, certainty, simulate_requests
from forecast.capacity.simulation import PolicyComparison, SimulatedDemand, cheapest_reacting, compare_policies
from forecast.lead.features import SeasonalPrior
from forecast.lead.online import DAY_MINUTES, profile_outlook, run_lead_forecast
from forecast.series.binned import Array, Series, resample
from rules.plan.replica_count import NO_MARGIN, Margin

MINUTE_SECONDS = 60.0


class Interpolation(StrEnum):
    """What is assumed within a bin; `NATIVE` is nothing, there are minutes."""

    NATIVE = "native"
    LINEAR = "linear"
    STEP = "step"


def bin_minutes(series: Series) -> int:
    """The bin in whole minutes. Raises ValueError where it is not, or a day is no multiple of it."""
    minutes = round(series.bin_seconds / MINUTE_SECONDS)
    if minutes < 1 or minutes * MINUTE_SECONDS != series.bin_seconds or DAY_MINUTES % minutes:
        raise ValueError(f"bins of {series.bin_seconds:g} s do not make whole minutes and whole days")
    return minutes


def rates(series: Series) -> Array:
    """Requests per second of every bin. A bin that was not seen takes the same bin a day before, else a straight line
    between its neighbours: for a simulation that must have demand, never for a score. Raises ValueError without any bin seen.
    """
    per_day = DAY_MINUTES // bin_minutes(series)
    values = series.values / series.bin_seconds
    known = np.isfinite(values)
    if not known.any():
        raise ValueError("no bin of this series was seen")
    filled = values.copy()
    for place in np.flatnonzero(~known):
        if place >= per_day:
            filled[place] = filled[place - per_day]
    left = np.isfinite(filled)
    places = np.arange(len(filled))
    drawn: Array = np.interp(places, places[left], filled[left])
    return drawn


def per_minute(bins: Array, width: int, between: Interpolation) -> Array:
    """The rate in every minute of bins that are `width` minutes long."""
    if between is Interpolation.STEP or width == 1:
        return np.repeat(bins, width)
    middles = (np.arange(len(bins)) + 0.5) * width
    drawn: Array = np.interp(np.arange(len(bins) * width) + 0.5, middles, bins)
    return drawn


BIN_MINUTES = 5
"""Bins of the forecast; a series with longer ones keeps its own."""
TEST_DAYS, TEST_DAYS_COARSE = 4, 14
COARSE_BIN_MINUTES = 30
"""From this bin on the longer test: the shorter one has too few bins."""
LEARN_DAYS = 28
CALIBRATION_DAYS = 2
FEWEST_DAYS_BEFORE = 5
BOLDER = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Lower certainties that are simulated beside the one in use, for where reacting cannot have as few violations."""
PEAK_REPLICAS = 40
"""What a replica carries where nobody says: so that the highest minute of the test needs 40."""

Outlooks = Callable[[Array, int, int, int], SeasonalPrior]
"""From rates per bin, minutes per bin, the lead and the number of minutes: what a bin forecaster says at each minute."""


class ShortHistoryError(ValueError):
    """A history that the protocol cannot be run on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """Demand per minute (requests per second) of a whole history, and the minutes of it that are the test.

    `bins` are the rates of its bins of `bin_minutes`, from the same beginning.
    """

    minutes: Array
    bins: Array
    bin_minutes: int
    test_start: int
    test_end: int
    between: Interpolation


def prepare_trial(series: Series, between: Interpolation = Interpolation.LINEAR) -> Trial:
    """The trial of a history. Minutes of its own (bins of at most one) are taken as they are, whatever `between` says.

    The test is its last 4 days (14 with bins of half an hour and more), less the last 20 minutes or two bins, before it at
    most 30 days. Raises TooShort, saying what is needed.
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
    minutes = per_minute(bins, width, Interpolation.LINEAR if native else between)
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
    """The minutes as they were seen, and where they were not as drawn from their bins."""
    place = np.arange(len(drawn)) + round((start - series.start) / MINUTE_SECONDS)
    within = (place >= 0) & (place < len(series))
    own = np.where(within, series.values[np.clip(place, 0, len(series) - 1)] / series.bin_seconds, np.nan)
    seen: Array = np.where(np.isfinite(own), own, drawn)
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What every policy was worth in the test (`worth`), and in the days before it (`before`): what was known at its start.

    `covered` is the share of the test's minutes in which demand stayed within the quantile.
    """

    worth: PolicyComparison
    before: PolicyComparison
    covered: float


def run_trial(
    history: Trial,
    lead: int,
    *,
    late_to_warm: float = LATE_TO_WARM,
    outlooks: Outlooks = profile_outlook,
    hold: int | None = None,
    margin: Margin = NO_MARGIN,
) -> TrialResult:
    """Everything compared on one history with a cold start of `lead` whole minutes; see `prewarm.certainty` for the price.

    `margin` is that of `Worth.with_margin` alone: everything else counts without one.
    Raises TooShort where the test holds no demand.
    """
    said = history.minutes[: history.test_end]
    outlook = outlooks(history.bins, history.bin_minutes, lead, len(said) + 1)
    learnt = run_lead_forecast(said, outlook, lead)
    wanted = certainty(lead, late_to_warm)
    quantile = learnt.quantile(wanted)
    bolder = [learnt.quantile(level) for level in BOLDER if level < wanted]
    capacity = float(said[history.test_start :].max()) / PEAK_REPLICAS
    if not capacity > 0:
        raise ShortHistoryError("nothing was asked of this tier in the test: there is nothing to scale")
    length = history.test_end - history.test_start

    def world_of(start: int, end: int) -> SimulatedDemand:
        return SimulatedDemand(demand=said[start:end], before=float(said[start - 1]), capacity=capacity, lead=lead)

    def within(start: int, end: int) -> PolicyComparison:
        world, chosen = world_of(start, end), cheapest_reacting(world_of(1, start), late_to_warm)
        fleets = [simulate_requests(world, one[start:end], hold=hold) for one in (quantile, *bolder)]
        roomy = simulate_requests(world, quantile[start:end], hold=hold, margin=margin)
        return compare_policies(
            world, fleets[0], fleets[1:], with_margin=roomy, chosen=chosen, late_to_warm=late_to_warm
        )

    earliest = int(np.argmax(np.isfinite(quantile))) if np.isfinite(quantile).any() else history.test_start - 1
    start, end = history.test_start, history.test_end
    covered = said[start + lead : end] <= quantile[start : end - lead]
    return TrialResult(
        worth=within(start, end),
        before=within(max(DAY_MINUTES, min(max(earliest, start - length), start - DAY_MINUTES)), start),
        covered=float(covered.mean()),
    )
