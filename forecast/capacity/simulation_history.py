"""Trial of a history: its last days simulated minute by minute, each policy with the knowledge of that time.

Protocol of the published baselines: the test days, the capacity of a replica, and no pre-warming from unknown data. The
caller supplies the history and the outlook (a bin forecaster, or else the time-of-week profile).
`forecast.capacity.simulation` compares the policies.

A history of longer bins is converted to minutes, in either of two inexact ways. Straight lines between the middles of
bins reveal a slope before its bin is over, so every policy looks better. Steps hide a change until the bin begins, so
every policy looks worse. A history of minutes is used as it is.
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
    """Assumption about demand within a bin. `NATIVE`: none, the series has minutes."""

    NATIVE = "native"
    LINEAR = "linear"
    STEP = "step"


def bin_minutes(series: Series) -> int:
    """Return the bin length in minutes. Raise ValueError if it is not whole or does not divide a day."""
    minutes = round(series.bin_seconds / MINUTE_SECONDS)
    if minutes < 1 or minutes * MINUTE_SECONDS != series.bin_seconds or DAY_MINUTES % minutes:
        raise ValueError(f"bins of {series.bin_seconds:g} s do not make whole minutes and whole days")
    return minutes


def rates(series: Series) -> Array:
    """Return the requests per second of every bin, with gaps filled: for a simulation, never for a score.

    A gap takes the same bin a day before, else a straight line between neighbours. Raise ValueError without observed
    bins.
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
    """Return the rate of every minute in bins of `width` minutes."""
    if between is Interpolation.STEP or width == 1:
        return np.repeat(bins, width)
    middles = (np.arange(len(bins)) + 0.5) * width
    drawn: Array = np.interp(np.arange(len(bins) * width) + 0.5, middles, bins)
    return drawn


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

Outlooks = Callable[[Array, int, int, int], SeasonalPrior]
"""Function from rates per bin, minutes per bin, lead and number of minutes to a bin forecast at each minute."""


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
    """Return the observed minutes, with gaps filled from the bins."""
    place = np.arange(len(drawn)) + round((start - series.start) / MINUTE_SECONDS)
    within = (place >= 0) & (place < len(series))
    own = np.where(within, series.values[np.clip(place, 0, len(series) - 1)] / series.bin_seconds, np.nan)
    seen: Array = np.where(np.isfinite(own), own, drawn)
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Result of a trial: the comparison in the test (`worth`) and in the days before (`before`), known at its start.

    `covered` is the share of test minutes with demand within the quantile.
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
    """Compare all policies on one history with a cold start of `lead` minutes; see `prewarm.certainty` for the price.

    `margin` applies only to `PolicyComparison.with_margin`. Raise ShortHistoryError if the test has no demand.
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
