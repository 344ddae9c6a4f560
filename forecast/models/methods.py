"""Simple methods: amounts of any bins ahead, from the bins before each origin.

A method returns origins by leads. A new method is a function and a row in METHODS; a row in MEMBERS makes it a part of
the combination. `forecast.models.regression` has the method that is fitted to one lead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from statsmodels.tsa.holtwinters import ExponentialSmoothing

from forecast.series.binned import Array, Integers
from forecast.series.observed import DAYS_A_WEEK, HOUR, ObservedBins
from forecast.series.week_profile import WeekProfiles

SAME_AS_NOW, SAME_AS_YESTERDAY, SAME_AS_LAST_WEEK = "same as now", "same as yesterday", "same as last week"
USUAL_DAY, HOLT_WINTERS, PROFILE = "median of the last days", "Holt-Winters", "profile x level"

LEAST_LEVEL = 0.02
"""Share of the profile's mean, added to profile and amounts: the ratio of two empty hours has no meaning."""

STEEPEST = 5.0
"""Bound of the recent level: at most this multiple of the usual level, at least its inverse."""

LEVEL_RATE, SEASON_RATE = 0.4, 0.1
"""Rates per bin of Holt-Winters. Fixed rates make its past forecasts those that were made then."""


class Outlook:
    """What the methods know of a growing series: its bins, the profiles of its week, and Holt-Winters' states."""

    def __init__(self, past: ObservedBins) -> None:
        self.past = past
        self.profiles = WeekProfiles(past)
        self._level, self._season = np.empty(0), np.empty(0)

    def holt_winters(self) -> tuple[Array, Array]:
        """Return level and additive daily season after each bin, started from the first day (Winters 1960, no trend)."""
        past = self.past
        if len(self._level) != len(past):
            first = past.values[: past.per_day]
            model = ExponentialSmoothing(
                past.values,
                seasonal="add",
                seasonal_periods=past.per_day,
                initialization_method="known",
                initial_level=first.mean(),
                initial_seasonal=first - first.mean(),
            )
            with np.errstate(divide="ignore"):  # of a perfect fit statsmodels takes the logarithm of no error
                fitted = model.fit(smoothing_level=LEVEL_RATE, smoothing_seasonal=SEASON_RATE, optimized=False)
            self._level, self._season = np.asarray(fitted.level), np.asarray(fitted.season)
        return self._level, self._season


Method = Callable[[Outlook, Integers, Integers], Array]
"""Function of the outlook, origins (a column) and leads (a row). An origin is the index of the first unobserved bin;
lead 1 is that bin."""


def first_origin(past: ObservedBins) -> int:
    """Return the first usable origin: a day and some hours after the start."""
    return past.per_day + 3 * past.bins(HOUR) + 2


def _same_as_now(outlook: Outlook, origins: Integers, leads: Integers) -> Array:
    return outlook.past.values_at(origins - 1 + 0 * leads)


def _lagged(outlook: Outlook, origins: Integers, leads: Integers, days: int) -> Array:
    """Return the amounts of `days` ago, or of the day before while the history is shorter."""
    targets, day = origins + leads - 1, outlook.past.per_day
    values = outlook.past.values_at(targets - days * day)
    return np.where(np.isfinite(values), values, outlook.past.values_at(targets - day))


def _last_such_day(outlook: Outlook, origins: Integers, leads: Integers) -> Array:
    """Return the last amounts of the same time of the week, or of the day before while there are none.

    A holiday is like a Sunday: it takes the last Sunday's amounts, and the same day a week later takes none of its own.
    """
    targets, day = origins + leads - 1, outlook.past.per_day
    slots = outlook.past.slots(int(targets.max()) + 1)
    order = np.argsort(slots, kind="stable")
    alike = slots[order[1:]] == slots[order[:-1]]
    before = np.full(len(slots), -1)
    before[order[1:][alike]] = order[:-1][alike]
    value = before[targets]
    value = np.where(value >= origins, before[value], value)
    return np.where(value >= 0, outlook.past.values_at(value), outlook.past.values_at(targets - day))


def _usual_day(outlook: Outlook, origins: Integers, leads: Integers) -> Array:
    """Return the median of the same bin over the last seven days, or over the available days."""
    targets, day = origins + leads - 1, outlook.past.per_day
    days = [outlook.past.values_at(targets - back * day) for back in range(1, DAYS_A_WEEK + 1)]
    usual: Array = np.nanmedian(np.stack(days), axis=0)
    return usual


def _holt_winters(outlook: Outlook, origins: Integers, leads: Integers) -> Array:
    (level, season), day = outlook.holt_winters(), outlook.past.per_day
    ahead: Array = np.maximum(level[origins - 1] + season[origins - day + (leads - 1) % day], 0.0)
    return ahead


def _profile(
    outlook: Outlook, origins: Integers, leads: Integers, hours: float, half_life_hours: float, days: int = 1
) -> Array:
    """Return the profile times the ratio of the last hours to it. The ratio fades with its half-life.

    With `days`, the ratio is the median of those of the same hours on as many days: an odd day moves nothing.
    """
    past, width = outlook.past, outlook.past.bins(hours * HOUR)
    floor = LEAST_LEVEL * outlook.profiles.mean_before(origins, past.per_day) + 1e-12
    ratios = []
    for ago in range(0, days * past.per_day, past.per_day):
        before = outlook.profiles.mean_before(origins, width, ago)
        ratios.append((past.mean(origins - ago, width) + floor) / (before + floor))
    ratio = np.clip(np.nanmedian(np.stack(ratios), axis=0), 1 / STEEPEST, STEEPEST)
    fading = 0.5 ** (leads * past.bin_seconds / (half_life_hours * HOUR))
    ahead = outlook.profiles.amounts(origins, origins + leads - 1) + floor
    return np.maximum(ahead * ratio**fading - floor, 0.0)


METHODS: dict[str, Method] = {
    SAME_AS_NOW: _same_as_now,
    SAME_AS_YESTERDAY: partial(_lagged, days=1),
    SAME_AS_LAST_WEEK: partial(_lagged, days=DAYS_A_WEEK),
    HOLT_WINTERS: _holt_winters,
    "time-of-week profile": partial(_profile, hours=1, half_life_hours=3),
}
"""Methods of a backtest, beside the combination."""

MEMBERS: tuple[tuple[str, Method], ...] = (
    (SAME_AS_NOW, _same_as_now),
    (SAME_AS_LAST_WEEK, _last_such_day),
    (USUAL_DAY, _usual_day),
    (HOLT_WINTERS, _holt_winters),
    (PROFILE, partial(_profile, hours=1, half_life_hours=3)),
    (PROFILE, partial(_profile, hours=3, half_life_hours=24)),
    (PROFILE, partial(_profile, hours=24, half_life_hours=np.inf, days=DAYS_A_WEEK)),
)
"""Methods of the combination with their families: the profile's level follows the last hour, hours or week."""


def forecast_all(methods: Sequence[Method], outlook: Outlook, origins: Integers, leads: Integers) -> Array:
    """Return the forecasts of each method: origins by leads by methods, amounts per bin."""
    return np.stack([method(outlook, origins[:, None], leads[None, :]) for method in methods], axis=-1)
