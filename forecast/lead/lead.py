"""Demand one lead ahead, minute by minute: the quantiles that pre-warming buys replicas for.

Owns the prediction at the lead (how long a cold start takes): the minutes up to now and the outlook of a slower forecaster
go in, quantiles of the demand of one minute come out. They are conformal: the errors made lately at this lead, each found
without knowing its answer, divided by the spread that was then expected, give the factor for the spread expected now. A
change of the future changes nothing before it. Not here: replicas (`prewarm`), what it was worth (`simulation`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecast.lead.features import SeasonalPrior, Signals, compute_features, fill_gaps
from forecast.lead.lead_fits import LeadRegression, fit
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
