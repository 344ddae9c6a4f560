"""Simple methods of the next bins (columns) and of the day ahead (paths), with their families.

Weights are shown by family. A new method is a row in BIN_METHODS or DAY_METHODS. A path is a day long, with a row per
origin. The regression is in `forecast.models.regression`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from forecast.models.features import Profiles
from forecast.models.smoothing import LEVELS, SEASONALS, SLOW, OnlineHoltWinters, Smoothed
from forecast.series.binned import Array, Integers
from forecast.series.observed import DAY_SECONDS, DAYS_A_WEEK, HOUR, ObservedBins

LEAST_LEVEL = 0.02
"""Share of the profile's mean, added to profile and amounts: the ratio of two empty hours has no meaning."""

STEEPEST = 10.0
NEWER = 0.85
"""Weight of a bin relative to the next bin, in the recent level."""


class LevelWindow(NamedTuple):
    """Window of the recent level in seconds, and the half-life in seconds of its deviation from usual."""

    seconds: float
    half_life: float


LEVELLED = (LevelWindow(3600, 10_800), LevelWindow(1800, 3600), LevelWindow(10_800, 43_200), LevelWindow(900, 3600))
SHIFTED = (LevelWindow(3600, 10_800),)

SAME_AS_NOW, SMOOTHED, PROFILE, HOLT_WINTERS = "same as now", "smoothed level", "profile x level", "Holt-Winters"


class BinMethodInput(NamedTuple):
    """Input of a bin method: the bin `lead` after the last observed bin, at each of the consecutive `origins`."""

    past: ObservedBins
    profiles: Profiles
    smoothed: Smoothed
    origins: Integers
    lead: int


BinMethod = Callable[[BinMethodInput], Array]


def _now(asked: BinMethodInput) -> Array:
    return asked.past.values_at(asked.origins - 1)


def _smoother(column: int) -> BinMethod:
    def forecast(asked: BinMethodInput) -> Array:
        return asked.smoothed.features_at(int(asked.origins[0]), int(asked.origins[-1]), asked.lead)[:, column]

    return forecast


def _recent_weights(past: ObservedBins, window: LevelWindow) -> Array:
    weights = np.power(NEWER, np.arange(past.bins(window.seconds), dtype=np.float64)[::-1])
    shares: Array = weights / weights.sum()
    return shares


def _last(asked: BinMethodInput, width: int) -> Array:
    return asked.past.values_at(asked.origins[:, None] + np.arange(-width, 0)[None, :])


def _fading(asked: BinMethodInput, window: LevelWindow) -> float:
    return float(0.5 ** (asked.lead / max(1.0, window.half_life / asked.past.bin_seconds)))


def _levelled(window: LevelWindow) -> BinMethod:
    """Return the method: the profile times the fading ratio of recent amounts to the profile."""

    def forecast(asked: BinMethodInput) -> Array:
        weights = _recent_weights(asked.past, window)
        floor = LEAST_LEVEL * asked.profiles.typical(asked.origins)
        usual = asked.profiles.past_profile(asked.origins, len(weights)) @ weights + floor
        actual = _last(asked, len(weights)) @ weights
        ratio = np.clip(actual / np.maximum(usual, 1e-12), 1 / STEEPEST, STEEPEST)
        ahead: Array = (asked.profiles.forecast_profile(asked.origins, asked.lead) + floor) * ratio ** _fading(
            asked, window
        )
        return ahead

    return forecast


def _shifted(window: LevelWindow) -> BinMethod:
    """Return the method: the profile plus the fading recent deviation from it."""

    def forecast(asked: BinMethodInput) -> Array:
        weights = _recent_weights(asked.past, window)
        deviation = (_last(asked, len(weights)) - asked.profiles.past_profile(asked.origins, len(weights))) @ weights
        return np.maximum(
            asked.profiles.forecast_profile(asked.origins, asked.lead) + deviation * _fading(asked, window), 0.0
        )

    return forecast


BIN_METHODS: tuple[tuple[str, BinMethod], ...] = (
    (SAME_AS_NOW, _now),
    *((SMOOTHED, _smoother(column)) for column in range(len(LEVELS))),
    *((HOLT_WINTERS, _smoother(len(LEVELS) + column)) for column in range(len(SEASONALS))),
    *((PROFILE, _levelled(window)) for window in LEVELLED),
    *((PROFILE, _shifted(window)) for window in SHIFTED),
)
"""Families and methods, a column each."""


def columns(asked: BinMethodInput) -> Array:
    """Return the forecasts of each method: origins by BIN_METHODS, amounts per bin."""
    return np.column_stack([method(asked) for _, method in BIN_METHODS])


HOURS, DAY = 3 * HOUR, DAY_SECONDS
LAST_WEEK, USUAL_DAY = "same as last week", "median of the last days"
FURTHEST = 5.0
"""Bound of the recent level: at most this multiple of the usual level, at least its inverse."""


class DayMethodInput(NamedTuple):
    """Input of a day method: the day after each of `origins` (index of the first unobserved bin)."""

    past: ObservedBins
    quick: Profiles
    steady: Profiles
    slow: SlowSeason
    origins: Integers

    @property
    def leads(self) -> Integers:
        """Return the leads: 1 for the first bin ahead, up to a day."""
        return np.arange(1, self.past.per_day + 1)

    @property
    def targets(self) -> Integers:
        """Return the indices of the bins: origins by leads."""
        return self.origins[:, None] + self.leads[None, :] - 1


class SlowSeason:
    """Slow Holt-Winters with its day ahead at each requested origin."""

    def __init__(self, past: ObservedBins) -> None:
        self._past, self._state, self._next = past, OnlineHoltWinters(past, SLOW), past.per_day
        self._leads = np.arange(1, past.per_day + 1, dtype=np.float64)

    def paths(self, origins: Integers) -> Array:
        """Return the paths of ordered origins, none before those of an earlier call."""
        forecast = np.empty((len(origins), len(self._leads)))
        for row, origin in enumerate(origins):
            self.follow(int(origin))
            forecast[row] = self._state.forecast_bins(int(origin), self._leads)
        return forecast

    def follow(self, end: int) -> None:
        """Follow the bins before `end`."""
        values = self._past.values
        while self._next < end:
            self._state.follow(self._next, float(values[self._next]))
            self._next += 1


DayMethod = Callable[[DayMethodInput], Array]


def _last_week(asked: DayMethodInput) -> Array:
    """Return the amounts of last week, or of the day before while the history is shorter than a week."""
    weekly = asked.past.values_at(asked.targets - asked.past.per_week)
    return np.where(np.isfinite(weekly), weekly, asked.past.values_at(asked.targets - asked.past.per_day))


def _last_week_levelled(asked: DayMethodInput) -> Array:
    """Return last week's day times a root: of the last day divided by the same day a week before."""
    past, origins = asked.past, asked.origins
    last_day = past.mean(origins, past.per_day)
    then = past.mean(origins - past.per_week, past.per_day)
    ratio = np.clip(last_day / np.maximum(np.where(np.isfinite(then), then, last_day), 1e-12), 0.3, 3.0)
    return _last_week(asked) * np.sqrt(ratio)[:, None]


def _usual_day(asked: DayMethodInput) -> Array:
    """Return the median of the same bin over the last seven days, or over the available days."""
    days = [asked.past.values_at(asked.targets - back * asked.past.per_day) for back in range(1, DAYS_A_WEEK + 1)]
    usual: Array = np.nanmedian(np.stack(days), axis=0)
    return usual


def _day_fading(asked: DayMethodInput, half_life: float) -> Array:
    fading: Array = np.power(0.5, asked.leads * asked.past.bin_seconds / half_life)
    return fading


def _day_levelled(steady: bool, window: LevelWindow) -> DayMethod:
    def forecast(asked: DayMethodInput) -> Array:
        profiles = asked.steady if steady else asked.quick
        width = asked.past.bins(window.seconds)
        floor = LEAST_LEVEL * asked.past.mean(asked.origins, asked.past.per_day) + 1e-12
        actual, usual = asked.past.mean(asked.origins, width), profiles.mean(asked.origins, width)
        ratio = np.clip((actual + floor) / (usual + floor), 1 / FURTHEST, FURTHEST)
        ahead = profiles.forecast_profile(asked.origins[:, None], asked.leads[None, :]) + floor[:, None]
        path: Array = ahead * ratio[:, None] ** _day_fading(asked, window.half_life)[None, :]
        return path

    return forecast


def _day_shifted(steady: bool, window: LevelWindow) -> DayMethod:
    def forecast(asked: DayMethodInput) -> Array:
        profiles = asked.steady if steady else asked.quick
        width = asked.past.bins(window.seconds)
        deviation = asked.past.mean(asked.origins, width) - profiles.mean(asked.origins, width)
        ahead = profiles.forecast_profile(asked.origins[:, None], asked.leads[None, :])
        return np.maximum(ahead + deviation[:, None] * _day_fading(asked, window.half_life)[None, :], 0.0)

    return forecast


DAY_METHODS: tuple[tuple[str, DayMethod], ...] = (
    (LAST_WEEK, _last_week),
    (LAST_WEEK, _last_week_levelled),
    (USUAL_DAY, _usual_day),
    (PROFILE, _day_levelled(False, LevelWindow(HOUR, HOURS))),
    (PROFILE, _day_levelled(False, LevelWindow(HOURS, 2 * HOURS))),
    (PROFILE, _day_levelled(False, LevelWindow(HOURS, DAY))),
    (PROFILE, _day_levelled(False, LevelWindow(DAY, 2 * DAY))),
    (PROFILE, _day_shifted(False, LevelWindow(HOURS, 2 * HOURS))),
    (PROFILE, _day_levelled(True, LevelWindow(HOURS, 2 * HOURS))),
    (PROFILE, _day_levelled(True, LevelWindow(HOURS, DAY))),
    (PROFILE, _day_levelled(True, LevelWindow(DAY, 2 * DAY))),
    (PROFILE, _day_shifted(True, LevelWindow(HOURS, 2 * HOURS))),
    (HOLT_WINTERS, lambda asked: asked.slow.paths(asked.origins)),
)
"""Families and methods."""


def paths(asked: DayMethodInput) -> Array:
    """Return the forecasts of each method: origins by leads by DAY_METHODS, amounts per bin."""
    return np.stack([method(asked) for _, method in DAY_METHODS], axis=-1)
