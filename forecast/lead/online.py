"""The prediction at the lead as it is made live: one minute at a time, refitted when the caller says so.

Owns the state between minutes. It says what `lead.run` says over the same minutes with refits at the same times; that is
what a simulation proves, so that what was simulated is what runs. No clock: a step is a minute, whenever it comes. One
step costs well under a millisecond, a refit about a tenth of a second, a beginning that for every day it begins with.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from forecast.lead.features import REACH_MINUTES, SeasonalPrior, compute_features, fill_gaps
from forecast.lead.lead import (
    DAY_MINUTES,
    ERROR_MINUTES,
    FEWEST_ERRORS,
    FIRST_FIT_MINUTES,
    LEARN_MINUTES,
    fit_errors,
    quantile_of,
    run_lead_forecast,
)
from forecast.lead.lead_fits import LeadRegression
from forecast.series.binned import Array

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
