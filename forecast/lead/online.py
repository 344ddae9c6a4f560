"""The prediction at the lead as it is made live: one minute at a time, refitted when the caller says so.

Owns the state between minutes. It says what `lead.run` says over the same minutes with refits at the same times; that is
what a simulation proves, so that what was simulated is what runs. No clock: a step is a minute, whenever it comes. One
step costs well under a millisecond, a refit about a tenth of a second, a beginning that for every day it begins with.

Demand one lead ahead, minute by minute: the quantiles that pre-warming buys replicas for.

Owns the prediction at the lead (how long a cold start takes): the minutes up to now and the outlook of a slower forecaster
go in, quantiles of the demand of one minute come out. They are conformal: the errors made lately at this lead, each found
without knowing its answer, divided by the spread that was then expected, give the factor for the spread expected now. A
change of the future changes nothing before it. Not here: replicas (`prewarm`), what it was worth (`simulation`).

The outlook at minute resolution: from a bin forecaster's paths, or from a time-of-week profile where there is none.

Owns the way from bins to minutes. Only bins that are finished are used: what stands between two bins is drawn from the last
finished one to the forecast of the next, never to what the next turned out to be. How good a bin forecast is, is the
forecaster's business; a wrong outlook is weighed down by `lead_fits` and paid for in spread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from forecast.lead.features import (
    REACH_MINUTES,
    LeadRegression,
    SeasonalPrior,
    Signals,
    compute_features,
    fill_gaps,
    fit,
)
from forecast.series.binned import Array

DAY_MINUTES = 1440
LEARN_MINUTES = 21 * DAY_MINUTES
REFIT_MINUTES = DAY_MINUTES
FIRST_FIT_MINUTES = 2 * DAY_MINUTES
"""Less history than this is answered with None: the caller reacts instead."""
ERROR_MINUTES = 10 * DAY_MINUTES
"""Errors that a quantile is read from: a level of 0.998 needs some thousands of them."""
FEWEST_ERRORS = 360
CEILING = 1.5
"""No quantile is above this many times the highest minute ever seen: where demand changed in kind, errors by what was expected
before are no measure, and what is needed now is the better answer."""
CAREFUL_LEVEL = 0.9
"""A quantile from here on is never below what is expected, however the errors were lately."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeadRun:
    """Per minute `t` what would have been said at its beginning of minute `t + lead`; NaN while too little was known.

    `errors` are (demand - centre) / spread, per minute at which the forecast was made; NaN where the answer is not known.
    `highest` is the highest minute seen before `t`.
    """

    lead: int
    centre: Array
    spread: Array
    errors: Array
    highest: Array

    def quantile(self, level: float) -> Array:
        """The demand at `t + lead` that is not passed with this certainty (0-1), said at `t`; not below the centre
        for levels from CAREFUL_LEVEL on. The errors used at `t` are those whose answer was known before `t`."""
        late = pd.Series(self.errors).shift(self.lead + 1)
        factor = late.rolling(ERROR_MINUTES, min_periods=FEWEST_ERRORS).quantile(level).to_numpy()
        return quantile_of(self.centre, self.spread, self.highest, factor, level)


def run_lead_forecast(minutes: Array, outlook: SeasonalPrior, lead: int) -> LeadRun:
    """Goes through the minutes as they came, refitting daily; `lead` is whole minutes, at least 1.

    `minutes` may hold NaN (unknown); the result has one row more than it: the last is what is said now.
    """
    if lead < 1:
        raise ValueError(f"a lead of {lead} minutes is none")
    said = compute_features(fill_gaps(minutes), outlook)
    targets = np.full(len(said), np.nan)
    targets[: max(0, len(minutes) - lead)] = minutes[lead:]
    centre, spread = np.full(len(said), np.nan), np.full(len(said), np.nan)
    for start in range(FIRST_FIT_MINUTES, len(said), REFIT_MINUTES):
        found = fit_errors(said, targets, start, lead)
        if found is not None:
            rows = said.rows(start, start + REFIT_MINUTES)
            centre[start : start + REFIT_MINUTES] = found.centre(rows)
            spread[start : start + REFIT_MINUTES] = found.spread(rows)
    return LeadRun(
        lead=lead,
        centre=centre,
        spread=spread,
        errors=(targets - centre) / spread,
        highest=np.maximum.accumulate(said.last),
    )


def fit_errors(said: Signals, targets: Array, start: int, lead: int) -> LeadRegression | None:
    """What the rows before `start` teach whose answer was known by then; None where there was no demand."""
    oldest, end = max(0, start - LEARN_MINUTES), start - lead
    known = targets[oldest:end]
    if not np.nansum(known) > 0:
        return None
    return fit(said.rows(oldest, end), known)


def quantile_of(centre: Array, spread: Array, highest: Array, factor: Array, level: float) -> Array:
    """Centre and so many spreads: from zero to CEILING, and for levels from CAREFUL_LEVEL on not below the centre."""
    wide = np.maximum(factor, 0.0) if level >= CAREFUL_LEVEL else factor
    quantile: Array = np.clip(centre + wide * spread, 0.0, CEILING * highest)
    return quantile


KEPT_MINUTES = LEARN_MINUTES + 2 * DAY_MINUTES


class OnlineLeadForecaster:
    """Demand one lead ahead for one tier, in the unit of the minutes that it is given (requests per second)."""

    def __init__(self, minutes: Array, outlook: SeasonalPrior, lead: int) -> None:
        """Begins with a history of minutes (NaN: unknown; at least one known) and its outlook, one row more than minutes.

        Raises ValueError where nothing is known or the lead is none.
        """
        past = run_lead_forecast(minutes, outlook, lead)
        self._lead = lead
        self._minutes = list(minutes[-KEPT_MINUTES:])
        self._now = list(outlook.now[-KEPT_MINUTES - 1 :])
        self._then = list(outlook.then[-KEPT_MINUTES - 1 :])
        errors = past.errors[: max(0, len(minutes) - lead)][-ERROR_MINUTES:]
        self._errors = np.concatenate([np.full(ERROR_MINUTES - len(errors), np.nan), errors])
        self._oldest = 0
        self._centres = deque(past.centre[-lead - 1 :], lead + 1)
        self._spreads = deque(past.spread[-lead - 1 :], lead + 1)
        self._highest = float(past.highest[-1])
        self._fit: LeadRegression | None = None
        self.refit()

    def refit(self) -> None:
        """Learns anew from the minutes kept; while they are too few nothing is learnt, and nothing is said."""
        if len(self._minutes) < FIRST_FIT_MINUTES:
            return
        minutes = np.array(self._minutes)
        said = compute_features(fill_gaps(minutes), SeasonalPrior(now=np.array(self._now), then=np.array(self._then)))
        targets = np.full(len(said), np.nan)
        targets[: len(minutes) - self._lead] = minutes[self._lead :]
        self._fit = fit_errors(said, targets, len(minutes), self._lead)
        self._expect()

    def step(self, minute: float, now: float, then: float) -> None:
        """One minute more: its demand (NaN: unknown), and what the outlook says at the next one (see `Outlook`)."""
        self._errors[self._oldest] = (minute - self._centres[0]) / self._spreads[0]
        self._oldest = (self._oldest + 1) % ERROR_MINUTES
        self._highest = float(np.fmax(self._highest, minute))
        for kept, value in ((self._minutes, minute), (self._now, now), (self._then, then)):
            kept.append(value)
        if len(self._minutes) > KEPT_MINUTES + DAY_MINUTES:
            del self._minutes[:DAY_MINUTES], self._now[:DAY_MINUTES], self._then[:DAY_MINUTES]
        self._centres.append(np.nan)
        self._spreads.append(np.nan)
        self._expect()

    def quantile(self, level: float) -> float | None:
        """The demand `lead` minutes after the minute to come that is not passed with this certainty (0-1).

        None while too little is known: the caller reacts instead.
        """
        known = self._errors[np.isfinite(self._errors)]
        if len(known) < FEWEST_ERRORS or not np.isfinite(self._centres[-1]):
            return None
        return float(
            quantile_of(
                np.array([self._centres[-1]]),
                np.array([self._spreads[-1]]),
                np.array([self._highest]),
                np.array([np.quantile(known, level)]),
                level,
            )[0]
        )

    @property
    def expected(self) -> float | None:
        """The demand that is expected then, without a margin; None while too little is known."""
        return float(max(0.0, self._centres[-1])) if np.isfinite(self._centres[-1]) else None

    def _expect(self) -> None:
        if self._fit is None:
            return
        minutes = np.array(self._minutes[-REACH_MINUTES:])
        if not np.isfinite(minutes).any():
            return
        rows = len(minutes) + 1
        said = compute_features(
            fill_gaps(minutes), SeasonalPrior(now=np.array(self._now[-rows:]), then=np.array(self._then[-rows:]))
        )
        last = said.rows(rows - 1)
        self._centres[-1] = float(self._fit.centre(last)[0])
        self._spreads[-1] = float(self._fit.spread(last)[0])


Minutes = NDArray[np.int64]

WEEK_DAYS = 7
PROFILE_WEEKS = 4
FIRST_PROFILE_DAYS = 2
SMOOTH_MINUTES = 35
"""Bins shorter than a third of this are smoothed over it: their own noise is no time of day."""


def profile_outlook(observed: Array, bin_minutes: int, lead: int, minutes: int) -> SeasonalPrior:
    """From the median of each time of the week over the last weeks, made anew every day; silent for the first two days.

    `observed[k]` is the demand of bin `k` as a rate in the unit of the minutes (no gaps).
    """
    per_day = DAY_MINUTES // bin_minutes
    silent = SeasonalPrior.silent(minutes)
    now, then = silent.now, silent.then
    for day in range(FIRST_PROFILE_DAYS, -(-minutes // DAY_MINUTES)):
        end = min(day * per_day, len(observed))
        profile = week_profile(observed[:end], per_day, bin_minutes)
        start, stop = day * DAY_MINUTES, min((day + 1) * DAY_MINUTES, minutes)
        minute = np.arange(start, stop)
        now[start:stop] = _profile_at(profile, minute - 1, bin_minutes)
        then[start:stop] = _profile_at(profile, minute + lead, bin_minutes)
    return SeasonalPrior(now=now, then=then)


def week_profile(observed: Array, per_day: int, bin_minutes: int) -> Array:
    """The robust profile of a week, by bin of the week counted from the first bin: the median of each over the last weeks,
    drawn towards the median of its time of day over the last seven days (the fewer weeks, the more)."""
    week = WEEK_DAYS * per_day
    end = len(observed)
    recent = min(end // per_day, WEEK_DAYS)
    days = np.stack([observed[end - (back + 1) * per_day : end - back * per_day] for back in range(recent)])
    of_day = np.empty(per_day)
    of_day[np.arange(end - per_day, end) % per_day] = np.median(days, axis=0)
    profile = np.tile(of_day, WEEK_DAYS)
    weeks = min(end // week, PROFILE_WEEKS)
    if weeks:
        of_week = np.empty(week)
        rows = observed[end - weeks * week :].reshape(weeks, week)
        of_week[np.arange(end - week, end) % week] = np.median(rows, axis=0)
        profile = (weeks * of_week + profile) / (weeks + 1)
    return _smooth(profile, SMOOTH_MINUTES // bin_minutes)


def _smooth(profile: Array, width: int) -> Array:
    if width < 3:
        return profile
    half = width // 2
    around = np.concatenate([profile[-half:], profile, profile[:half]])
    smooth: Array = np.convolve(around, np.full(2 * half + 1, 1.0 / (2 * half + 1)), "valid")
    return smooth


def _profile_at(profile: Array, minute: Minutes, bin_minutes: int) -> Array:
    place = (minute + 0.5) / bin_minutes - 0.5
    lower = np.floor(place).astype(np.int64)
    share = place - lower
    drawn: Array = profile[lower % len(profile)] * (1 - share) + profile[(lower + 1) % len(profile)] * share
    return drawn
