"""Naive methods as a baseline: last value, yesterday, last week, and a weekly profile times the level.

Other methods are measured against these. Methods of about ten lines belong here; methods of statsmodels are in
`forecast.models.classic`. `forecast_last_value` is the forecast while the history is short, with quantiles from its own
errors. It is also the baseline of every method for the next minutes.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Protocol

import numpy as np

from forecast.models.conformal import LEAST_RESIDUALS, LEAST_SHARE, LEVELS, highest_observation
from forecast.models.features import QUICK, week_profile
from forecast.series.binned import Array
from forecast.series.observed import FEWEST, HOUR, ObservedBins

KEPT_SHARE = 0.85
"""Weight of a bin in the recent level, relative to the next bin."""

LEVEL_HALF_LIFE_SECONDS = 10_800.0
"""Half-life in seconds of the deviation of the level from the profile."""

BOUNDS = (0.1, 10.0)
"""Bounds of the level. Beyond them the profile belongs to another time."""

LEAST_NAIVE_SHARE = 0.02
"""Share of the profile's mean that is added to it: a zero profile could not be multiplied."""


class Method(Protocol):
    """Forecast method on one series. It sees only `ObservedBins`; an origin is their end."""

    needs_days: float
    """Minimum history in days to fit the method."""

    troubles: Counter[str]
    """Warnings of libraries during the fits, with counts."""

    def fit(self, past: ObservedBins) -> None:
        """Fit the parameters, once a day."""

    def advance(self, past: ObservedBins) -> None:
        """Follow one or more new bins without new parameters."""

    def path(self, past: ObservedBins, bins: int) -> Array:
        """Return the amounts of the next bins, possibly below zero."""


class LaggedMethod:
    """Amounts of a number of days ago at the same time; with 0 days the last bin."""

    def __init__(self, days: int) -> None:
        self.troubles: Counter[str] = Counter()
        self.needs_days = float(days)
        self._days = days

    def fit(self, past: ObservedBins) -> None:
        """Do nothing: the method has no parameters."""

    def advance(self, past: ObservedBins) -> None:
        """Do nothing: the method has no state."""

    def path(self, past: ObservedBins, bins: int) -> Array:
        values = past.values
        if self._days == 0:
            return np.full(bins, values[-1])
        season = values[-self._days * past.per_day :]
        return np.resize(season, bins)


class ProfileTimesLevel:
    """Robust weekly profile times the ratio of the last hour to it; the ratio fades with its half-life."""

    needs_days = 1.0

    def __init__(self) -> None:
        self.troubles: Counter[str] = Counter()
        self._profile = np.empty(0)

    def fit(self, past: ObservedBins) -> None:
        profile = week_profile(past, len(past), QUICK)
        self._profile = profile + LEAST_NAIVE_SHARE * profile.mean()

    def advance(self, past: ObservedBins) -> None:
        """Do nothing: `path` reads the level from the bins."""

    def path(self, past: ObservedBins, bins: int) -> Array:
        now, width = len(past), past.bins(HOUR)
        slots = past.slots(now + bins)
        weights = KEPT_SHARE ** np.arange(width)[::-1]
        usual = float(weights @ self._profile[slots[now - width : now]])
        if usual <= 0:
            return np.zeros(bins)
        level = float(np.clip(float(weights @ past.values[-width:]) / usual, *BOUNDS))
        fade = 0.5 ** (np.arange(1, bins + 1) * past.bin_seconds / max(LEVEL_HALF_LIFE_SECONDS, past.bin_seconds))
        ahead: Array = self._profile[slots[now:]][:bins] * level**fade
        return ahead


WINDOW_DAYS = 7
LEADS = 24
"""Number of leads with measured errors; leads between them are interpolated."""

MIDDLE = LEVELS.index(0.5)


def forecast_last_value(past: ObservedBins, bins: int) -> Array | None:
    """Return LEVELS by lead for the next `bins`. None with fewer than LEAST_RESIDUALS errors of the next bin.

    Errors are scaled by the root of the level. A lead with too few errors uses those of the longest known lead. Its
    quantiles are then too narrow, which is why a short history is reported.
    """
    first = max(0, len(past) - WINDOW_DAYS * past.per_day)
    values = np.where(past.observed_mask[first:], past.values[first:], np.nan)
    if not np.isfinite(values).any():
        return None
    now = float(past.values[-1])
    leads = np.unique(np.geomspace(1, bins, min(bins, LEADS)).round().astype(np.int64))
    floor = max(LEAST_SHARE * float(np.nanmean(values)), FEWEST)
    factors = [_factors(values, int(lead), floor) for lead in leads]
    known = [(lead, factor) for lead, factor in zip(leads, factors, strict=True) if factor is not None]
    if not known or known[0][0] != 1:
        return None
    at = np.array([lead for lead, _ in known], dtype=np.float64)
    table = np.stack([factor for _, factor in known])
    wanted = np.arange(1, bins + 1, dtype=np.float64)
    spread = np.stack([np.interp(wanted, at, table[:, level]) for level in range(len(LEVELS))])
    quantiles: Array = np.maximum(now + spread * math.sqrt(max(now, floor)), 0.0)
    quantiles = np.minimum(quantiles, highest_observation(past))
    quantiles[:MIDDLE] = np.minimum(quantiles[:MIDDLE], now)
    quantiles[MIDDLE] = now
    ordered: Array = np.maximum.accumulate(quantiles, axis=0)
    return ordered


def _factors(values: Array, lead: int, floor: float) -> Array | None:
    if len(values) <= lead:
        return None
    then = values[:-lead]
    ratios = (values[lead:] - then) / np.sqrt(np.maximum(then, floor))
    ratios = ratios[np.isfinite(ratios)]
    if len(ratios) < LEAST_RESIDUALS:
        return None
    below, above = (np.quantile(ratios, LEVELS, method=method) for method in ("lower", "higher"))
    return np.where(np.array(LEVELS) < LEVELS[MIDDLE], below, above)
