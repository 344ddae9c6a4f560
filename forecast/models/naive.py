"""The methods that anyone would try first: same as now, yesterday, last week, and a profile of the week times the level.

Owns them and what a method is to a backtest. What the others cost is judged by these. Further methods of ten lines belong
here; those that statsmodels fits are in `forecast.models.classic`.

The forecast while there is little history: the same as now, with quantiles from its own error so far.

Owns this method and its error by lead. It is also the naive one that everything else has to beat for the next minutes.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import ClassVar, Protocol

import numpy as np

from forecast.models.conformal import LEAST_RESIDUALS, LEAST_SHARE, LEVELS, highest_observation
from forecast.models.features import QUICK, week_profile
from forecast.series.binned import Array
from forecast.series.observed import DAYS_A_WEEK, FEWEST, ObservedBins

HOUR = 3600.0
KEPT_SHARE = 0.85
"""The weight of a bin in the recent level, by that of the bin after it."""

LEVEL_HALF_LIFE_SECONDS = 10_800.0
"""In so long half of what the level was beyond the profile is forgotten."""

BOUNDS = (0.1, 10.0)
"""Beyond them the level says that the profile is of another time."""

LEAST_NAIVE_SHARE = 0.02
"""Of the profile's mean, added to it: where it is zero nothing could be multiplied."""


class Method(Protocol):
    """One method on one series. It sees what came (`Past`) and nothing else; an origin is where that ends."""

    needs_days: ClassVar[float]
    """So much must have come before it can be fitted."""

    troubles: Counter[str]
    """What a library warned of while fitting, and how often."""

    def fit(self, past: ObservedBins) -> None:
        """Parameters anew, once a day."""

    def advance(self, past: ObservedBins) -> None:
        """One or more further bins came; parameters stay."""

    def path(self, past: ObservedBins, bins: int) -> Array:
        """The amounts of the next bins; they may be below zero where the method knows no better."""


class LaggedMethod:
    """What came so many days ago at the same time; the last bin where that is none."""

    needs_days: ClassVar[float] = 0.0

    def __init__(self, days: int) -> None:
        self.troubles: Counter[str] = Counter()
        self._days = days

    def fit(self, past: ObservedBins) -> None:
        """Nothing is fitted."""

    def advance(self, past: ObservedBins) -> None:
        """Nothing is carried."""

    def path(self, past: ObservedBins, bins: int) -> Array:
        values = past.values
        if self._days == 0:
            return np.full(bins, values[-1])
        season = values[-self._days * past.per_day :]
        return np.resize(season, bins)


class Yesterday(LaggedMethod):
    needs_days: ClassVar[float] = 1.0

    def __init__(self) -> None:
        super().__init__(1)


class LastWeek(LaggedMethod):
    needs_days: ClassVar[float] = float(DAYS_A_WEEK)

    def __init__(self) -> None:
        super().__init__(DAYS_A_WEEK)


class LastValue(LaggedMethod):
    def __init__(self) -> None:
        super().__init__(0)


class ProfileTimesLevel:
    """The robust profile of the week, times what the last hour was beyond it; that fades with its half-life."""

    needs_days: ClassVar[float] = 1.0

    def __init__(self) -> None:
        self.troubles: Counter[str] = Counter()
        self._profile = np.empty(0)

    def fit(self, past: ObservedBins) -> None:
        profile = week_profile(past, len(past), QUICK)
        self._profile = profile + LEAST_NAIVE_SHARE * profile.mean()

    def advance(self, past: ObservedBins) -> None:
        """The profile stays; the level is read from what came."""

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
"""Leads whose error is looked at; those between them are drawn in a line."""

MIDDLE = LEVELS.index(0.5)


def forecast_last_value(past: ObservedBins, bins: int) -> Array | None:
    """LEVELS by lead for the next `bins`; None while fewer than LEAST_RESIDUALS errors of the next bin are known.

    Errors of a lead are taken by the root of the level. A lead of which too few are known has those of the longest lead
    that is known, which is too narrow and the reason why little history is said.
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
