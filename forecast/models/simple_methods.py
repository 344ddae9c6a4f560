"""The simple methods for the whole day ahead, as paths: last week, usual days, the profile at the level of lately.

Owns the table of them. A new one is a row in METHODS. All paths are a day long, one row an origin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from forecast.models.profile import Profiles
from forecast.models.short_methods import HOLT_WINTERS, LEAST_LEVEL, PROFILE
from forecast.models.smoothing import SLOW, OnlineHoltWinters
from forecast.series.binned import Array
from forecast.series.observed import DAY_SECONDS, DAYS_A_WEEK, HOUR, Integers, ObservedBins

HOURS, DAY = 3 * HOUR, DAY_SECONDS
LAST_WEEK, USUAL_DAY = "same as last week", "median of the last days"
FURTHEST = 5.0
"""The level of lately is believed up to so many times the usual one, and down to one of them."""


class DayMethodInput(NamedTuple):
    """The question: the day after each of `origins` (index of the first bin not seen yet)."""

    past: ObservedBins
    quick: Profiles
    steady: Profiles
    slow: SlowSeason
    origins: Integers

    @property
    def leads(self) -> Integers:
        """1 for the first bin ahead, up to a day."""
        return np.arange(1, self.past.per_day + 1)

    @property
    def targets(self) -> Integers:
        """Index of the bins: origins by leads."""
        return self.origins[:, None] + self.leads[None, :] - 1


class SlowSeason:
    """Holt-Winters that follows slowly, and the day ahead as it said at each of the origins asked for."""

    def __init__(self, past: ObservedBins) -> None:
        self._past, self._state, self._next = past, OnlineHoltWinters(past, SLOW), past.per_day
        self._leads = np.arange(1, past.per_day + 1, dtype=np.float64)

    def paths(self, origins: Integers) -> Array:
        """For origins in order, none before those of an earlier call."""
        said = np.empty((len(origins), len(self._leads)))
        for row, origin in enumerate(origins):
            self.follow(int(origin))
            said[row] = self._state.forecast_bins(int(origin), self._leads)
        return said

    def follow(self, end: int) -> None:
        """Takes in the bins before `end`."""
        values = self._past.values
        while self._next < end:
            self._state.follow(self._next, float(values[self._next]))
            self._next += 1


DayMethod = Callable[[DayMethodInput], Array]


def _last_week(asked: DayMethodInput) -> Array:
    """Of the day before where there is no week yet."""
    weekly = asked.past.values_at(asked.targets - asked.past.per_week)
    return np.where(np.isfinite(weekly), weekly, asked.past.values_at(asked.targets - asked.past.per_day))


def _last_week_levelled(asked: DayMethodInput) -> Array:
    """Last week's day times the root of how the last day compares with the same day a week before."""
    past, origins = asked.past, asked.origins
    lately = past.mean(origins, past.per_day)
    then = past.mean(origins - past.per_week, past.per_day)
    ratio = np.clip(lately / np.maximum(np.where(np.isfinite(then), then, lately), 1e-12), 0.3, 3.0)
    return _last_week(asked) * np.sqrt(ratio)[:, None]


def _usual_day(asked: DayMethodInput) -> Array:
    """The median of the same bin of the last seven days, of as many as there are."""
    days = [asked.past.values_at(asked.targets - back * asked.past.per_day) for back in range(1, DAYS_A_WEEK + 1)]
    usual: Array = np.nanmedian(np.stack(days), axis=0)
    return usual


class LevelSettings(NamedTuple):
    """Over how many seconds the level is taken, and after how many half of its departure from usual has gone."""

    seconds: float
    half_life: float


def _day_fading(asked: DayMethodInput, half_life: float) -> Array:
    fading: Array = np.power(0.5, asked.leads * asked.past.bin_seconds / half_life)
    return fading


def _day_levelled(steady: bool, how: LevelSettings) -> DayMethod:
    def said(asked: DayMethodInput) -> Array:
        profiles = asked.steady if steady else asked.quick
        width = asked.past.bins(how.seconds)
        floor = LEAST_LEVEL * asked.past.mean(asked.origins, asked.past.per_day) + 1e-12
        came, usual = asked.past.mean(asked.origins, width), profiles.mean(asked.origins, width)
        ratio = np.clip((came + floor) / (usual + floor), 1 / FURTHEST, FURTHEST)
        ahead = profiles.forecast_profile(asked.origins[:, None], asked.leads[None, :]) + floor[:, None]
        path: Array = ahead * ratio[:, None] ** _day_fading(asked, how.half_life)[None, :]
        return path

    return said


def _day_shifted(steady: bool, how: LevelSettings) -> DayMethod:
    def said(asked: DayMethodInput) -> Array:
        profiles = asked.steady if steady else asked.quick
        width = asked.past.bins(how.seconds)
        beyond = asked.past.mean(asked.origins, width) - profiles.mean(asked.origins, width)
        ahead = profiles.forecast_profile(asked.origins[:, None], asked.leads[None, :])
        return np.maximum(ahead + beyond[:, None] * _day_fading(asked, how.half_life)[None, :], 0.0)

    return said


DAY_METHODS: tuple[tuple[str, DayMethod], ...] = (
    (LAST_WEEK, _last_week),
    (LAST_WEEK, _last_week_levelled),
    (USUAL_DAY, _usual_day),
    (PROFILE, _day_levelled(False, LevelSettings(HOUR, HOURS))),
    (PROFILE, _day_levelled(False, LevelSettings(HOURS, 2 * HOURS))),
    (PROFILE, _day_levelled(False, LevelSettings(HOURS, DAY))),
    (PROFILE, _day_levelled(False, LevelSettings(DAY, 2 * DAY))),
    (PROFILE, _day_shifted(False, LevelSettings(HOURS, 2 * HOURS))),
    (PROFILE, _day_levelled(True, LevelSettings(HOURS, 2 * HOURS))),
    (PROFILE, _day_levelled(True, LevelSettings(HOURS, DAY))),
    (PROFILE, _day_levelled(True, LevelSettings(DAY, 2 * DAY))),
    (PROFILE, _day_shifted(True, LevelSettings(HOURS, 2 * HOURS))),
    (HOLT_WINTERS, lambda asked: asked.slow.paths(asked.origins)),
)
"""Family and method."""


def paths(asked: DayMethodInput) -> Array:
    """What each method says: origins by leads by METHODS, amounts per bin."""
    return np.stack([method(asked) for _, method in DAY_METHODS], axis=-1)
