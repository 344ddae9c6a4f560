"""Forecast of demand one lead (cold start) ahead, minute by minute, with the quantiles that size pre-warming.

`OnlineLeadForecaster` gives the same results as `run_lead_forecast` over the same minutes with the same refits. So a
simulation tests the code that runs live. A step is a minute.

The quantiles are conformal. Recent errors at this lead, each made without the answer, are divided by the spread
expected then. Their quantile times the present spread gives the bound. Later data never changes earlier results.

An outlook comes from a bin forecaster, or from a time-of-week profile without one. Only finished bins are used. Values
between bins are interpolated from the last finished bin to the forecast of the next. A wrong outlook gets less weight
in `forecast.lead.features` and a wider spread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecast.lead.features import (
    REACH_MINUTES,
    LeadRegression,
    SeasonalPrior,
    Signals,
    compute_features,
    fill_gaps,
    fit,
)
from forecast.series.binned import DAY_MINUTES, MINUTE_SECONDS, Array, Integers, Series, rates
from forecast.series.observed import ObservedBins
from forecast.series.week_profile import week_profile

LEARN_MINUTES = 21 * DAY_MINUTES
REFIT_MINUTES = DAY_MINUTES
FIRST_FIT_MINUTES = 2 * DAY_MINUTES
"""Minimum history in minutes. With less, the result is None and the caller reacts instead."""
ERROR_MINUTES = 10 * DAY_MINUTES
"""Minutes of errors behind a quantile: a level of 0.998 needs some thousands of them."""
FEWEST_ERRORS = 360
CEILING = 1.5
"""Upper bound of a quantile, as a multiple of the highest minute so far.

Where demand changed in kind, errors relative to old expectations are no measure. Present demand is then the better
answer."""
CAREFUL_LEVEL = 0.9
"""Level from which a quantile is never below the expected demand, whatever the recent errors."""

KEPT_MINUTES = LEARN_MINUTES + 2 * DAY_MINUTES

FIRST_PROFILE_DAYS = 2
KEPT_DAYS = 34
"""Days of demand to keep: four weeks of profile and a few days of their errors."""

AHEAD_MINUTES = 3 * DAY_MINUTES
"""Length of the outlook in minutes: refits are daily, and one may be late."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeadRun:
    """Forecasts made at each minute `t` for minute `t + lead`; NaN while too little is known.

    `errors` are (demand - centre) / spread by minute of the forecast; NaN if the demand is unknown. `highest` is the
    maximum before `t`.
    """

    lead: int
    centre: Array
    spread: Array
    errors: Array
    highest: Array

    def quantile(self, level: float) -> Array:
        """Return the demand at `t + lead` that is not exceeded with this certainty (0-1), as forecast at `t`.

        From CAREFUL_LEVEL on it is at least the centre. Only errors with an answer known before `t` count."""
        late = np.concatenate([np.full(self.lead + 1, np.nan), self.errors])[: len(self.errors)]
        factor = pd.Series(late).rolling(ERROR_MINUTES, min_periods=FEWEST_ERRORS).quantile(level)
        return quantile_of(self.centre, self.spread, self.highest, factor.to_numpy(), level)


def run_lead_forecast(minutes: Array, outlook: SeasonalPrior, lead: int) -> LeadRun:
    """Run the forecast through the minutes with daily refits; `lead` is whole minutes, at least 1.

    `minutes` may contain NaN (unknown). The result has an extra last row: the forecast made now.
    """
    if lead < 1:
        raise ValueError(f"a lead of {lead} minutes is none")
    signals = compute_features(fill_gaps(minutes), outlook)
    targets = np.full(len(signals), np.nan)
    targets[: max(0, len(minutes) - lead)] = minutes[lead:]
    centre, spread = np.full(len(signals), np.nan), np.full(len(signals), np.nan)
    for start in range(FIRST_FIT_MINUTES, len(signals), REFIT_MINUTES):
        regression = fit_errors(signals, targets, start, lead)
        if regression is not None:
            rows = signals.rows(start, start + REFIT_MINUTES)
            centre[start : start + REFIT_MINUTES] = regression.centre(rows)
            spread[start : start + REFIT_MINUTES] = regression.spread(rows)
    return LeadRun(
        lead=lead,
        centre=centre,
        spread=spread,
        errors=(targets - centre) / spread,
        highest=np.maximum.accumulate(signals.last),
    )


def fit_errors(signals: Signals, targets: Array, start: int, lead: int) -> LeadRegression | None:
    """Return the fit to the rows before `start` with known answers, or None without demand."""
    oldest, end = max(0, start - LEARN_MINUTES), start - lead
    known = targets[oldest:end]
    if not np.nansum(known) > 0:
        return None
    return fit(signals.rows(oldest, end), known)


def quantile_of(centre: Array, spread: Array, highest: Array, factor: Array, level: float) -> Array:
    """Return the centre plus `factor` spreads, between zero and CEILING; from CAREFUL_LEVEL on at least the centre."""
    wide = np.maximum(factor, 0.0) if level >= CAREFUL_LEVEL else factor
    quantile: Array = np.clip(centre + wide * spread, 0.0, CEILING * highest)
    return quantile


class OnlineLeadForecaster:
    """Forecaster of demand one lead ahead for one tier, in the unit of its input (requests/s)."""

    def __init__(self, minutes: Array, outlook: SeasonalPrior, lead: int, past: LeadRun | None = None) -> None:
        """Start from minutes (NaN: unknown; at least one known) and their outlook, which has an extra row.

        `past` is their run, computed here without it. Raise ValueError if no minute is known or the lead is below 1.
        """
        past = past or run_lead_forecast(minutes, outlook, lead)
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
        """Fit again to the kept minutes. With too few minutes there is no fit and no forecast."""
        if len(self._minutes) < FIRST_FIT_MINUTES:
            return
        minutes = np.array(self._minutes)
        signals = compute_features(
            fill_gaps(minutes), SeasonalPrior(now=np.array(self._now), then=np.array(self._then))
        )
        targets = np.full(len(signals), np.nan)
        targets[: max(0, len(minutes) - self._lead)] = minutes[self._lead :]
        self._fit = fit_errors(signals, targets, len(minutes), self._lead)
        self._expect()

    def step(self, minute: float, now: float, then: float) -> None:
        """Add a minute: its demand (NaN: unknown) and the outlook at the next minute (see `SeasonalPrior`)."""
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
        """Return the demand `lead` minutes after the next minute that is not exceeded with this certainty (0-1).

        Return None while too little is known: the caller reacts instead.
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
        """Return the expected demand then, without a margin. None while too little is known."""
        return float(max(0.0, self._centres[-1])) if np.isfinite(self._centres[-1]) else None

    def _expect(self) -> None:
        if self._fit is None:
            return
        minutes = np.array(self._minutes[-REACH_MINUTES:])
        if not np.isfinite(minutes).any():
            return
        rows = len(minutes) + 1
        signals = compute_features(
            fill_gaps(minutes), SeasonalPrior(now=np.array(self._now[-rows:]), then=np.array(self._then[-rows:]))
        )
        last = signals.rows(rows - 1)
        self._centres[-1] = float(self._fit.centre(last)[0])
        self._spreads[-1] = float(self._fit.spread(last)[0])


class LiveLeadForecast:
    """Forecaster of one tier that keeps its demand and refits its time-of-week profile as the outlook.

    `usual` is demand per minute without known events (NaN: unknown; at least one known). It begins at a whole bin of
    `bin_minutes`. `past` is the run of `usual` (`run_past`), computed here without it.
    """

    def __init__(self, usual: Array, bin_minutes: int, lead: int, past: LeadRun | None = None) -> None:
        self._minutes = usual[-KEPT_DAYS * DAY_MINUTES :].tolist()
        self._bin_minutes, self._lead = bin_minutes, lead
        self._look_ahead()
        self._next = rows = len(self._minutes) + 1
        outlook = SeasonalPrior(now=self._ahead.now[:rows], then=self._ahead.then[:rows])
        self._online = OnlineLeadForecaster(np.array(self._minutes), outlook, lead, past)

    def step(self, rate: float) -> None:
        """Add a minute; NaN if unknown."""
        self._minutes.append(rate)
        if self._next >= len(self._ahead.now):
            self._look_ahead()
        self._online.step(rate, float(self._ahead.now[self._next]), float(self._ahead.then[self._next]))
        self._next += 1

    def refit(self) -> None:
        """Refit the profile and the forecast to the kept demand. Call it daily."""
        del self._minutes[: max(0, len(self._minutes) // DAY_MINUTES - KEPT_DAYS) * DAY_MINUTES]
        self._look_ahead()
        self._online.refit()

    def quantile(self, level: float) -> float | None:
        return self._online.quantile(level)

    @property
    def expected(self) -> float | None:
        return self._online.expected

    def _look_ahead(self) -> None:
        minutes = np.array(self._minutes)
        self._ahead = minute_outlook(minutes, self._bin_minutes, self._lead, len(minutes) + AHEAD_MINUTES)
        self._next = len(minutes)


def run_past(usual: Array, bin_minutes: int, lead: int) -> LeadRun:
    """Return the run of demand without known events, with its own profile as the outlook."""
    return run_lead_forecast(usual, minute_outlook(usual, bin_minutes, lead, len(usual) + 1), lead)


def minute_outlook(usual: Array, bin_minutes: int, lead: int, rows: int) -> SeasonalPrior:
    """Return the outlook of `rows` minutes from the first of `usual`. It is empty for the first two days."""
    count = len(usual) // bin_minutes
    if count * bin_minutes < FIRST_PROFILE_DAYS * DAY_MINUTES or not np.isfinite(usual[: count * bin_minutes]).any():
        return SeasonalPrior.silent(rows)
    parts = usual[: count * bin_minutes].reshape(count, bin_minutes)
    known = np.isfinite(parts)
    sums = np.where(known, parts, 0.0).sum(axis=1)
    bins = np.where(known.any(axis=1), sums / np.maximum(known.sum(axis=1), 1), np.nan)
    series = Series(start=0.0, bin_seconds=bin_minutes * MINUTE_SECONDS, values=bins * bin_minutes * MINUTE_SECONDS)
    return profile_outlook(rates(series), bin_minutes, lead, rows)


def profile_outlook(observed: Array, bin_minutes: int, lead: int, minutes: int) -> SeasonalPrior:
    """Return the outlook from a weekly profile that is refitted daily. It is empty for the first two days.

    `observed[k]` is the demand of bin `k` as a rate in the unit of the minutes (no gaps).
    """
    past = ObservedBins(Series(start=0.0, bin_seconds=bin_minutes * MINUTE_SECONDS, values=observed))
    silent = SeasonalPrior.silent(minutes)
    now, then = silent.now, silent.then
    for day in range(FIRST_PROFILE_DAYS, -(-minutes // DAY_MINUTES)):
        profile = week_profile(past, min(day * past.per_day, len(past)))[past.slots(past.per_week)]
        start, stop = day * DAY_MINUTES, min((day + 1) * DAY_MINUTES, minutes)
        minute = np.arange(start, stop)
        now[start:stop] = _profile_at(profile, minute - 1, bin_minutes)
        then[start:stop] = _profile_at(profile, minute + lead, bin_minutes)
    return SeasonalPrior(now=now, then=then)


def _profile_at(profile: Array, minute: Integers, bin_minutes: int) -> Array:
    middles = (np.arange(len(profile)) + 0.5) * bin_minutes
    return np.asarray(np.interp(minute + 0.5, middles, profile, period=len(profile) * bin_minutes))
