"""What each origin looks like to the methods that learn: its last bins, its level, and the same moment on earlier days.

Owns the signals that regression and trees read, one column each, as shares of the origin's scale, so that a fleet that
grew tenfold still looks like itself. NaN where the past does not reach back so far. All of it lies before the origin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecast.models.profile import Profiles
from forecast.series.binned import Array
from forecast.series.observed import FEWEST, HOUR, Integers, ObservedBins

HALF_HOUR = HOUR / 2

LEARNT_DAYS = 35
"""How far back the origins lie that methods learn from."""

LEAST_SHARE = 0.05
"""The scale is at least this share of the week's mean: a day without traffic would magnify every error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Origins by signals. `level` is the mean of the last half hour (amount per bin), what is learnt is added to it;
    `scale` the unit of the signals and of what is learnt. `clock` is the time of day of the target as a share of it, the
    day of the week, and the level by the week's mean: for trees only."""

    origins: Integers
    signals: Array
    clock: Array
    level: Array
    scale: Array


def first_origin(past: ObservedBins) -> int:
    """The first origin that can be looked at: a day and some hours in."""
    return past.per_day + 3 * past.bins(HOUR) + 2


def feature_scale(past: ObservedBins, origins: Integers, level: Array) -> Array:
    """The unit of what is learnt at each origin: between the level there and the day's mean, never almost nothing."""
    daily, weekly = past.mean(origins, past.per_day), past.mean(origins, np.minimum(origins, past.per_week))
    scale: Array = np.maximum(np.maximum(0.5 * (level + daily), LEAST_SHARE * weekly), FEWEST)
    return scale


def build_features(past: ObservedBins, profiles: Profiles, origins: Integers, lead: int) -> Features:
    """Of each origin (index of the first bin not seen yet) for the bin `lead` after the last one seen."""
    day, week = past.per_day, past.per_week
    half, hour = past.bins(HALF_HOUR), past.bins(HOUR)
    level, target = past.mean(origins, half), origins + lead - 1
    daily = past.mean(origins, day)
    usual = profiles.forecast_profile(origins, lead)
    now, recently = profiles.mean(origins, half), profiles.mean(origins, hour)
    ratio = np.clip(level / np.maximum(np.maximum(now, 0.02 * daily), 1e-9), 0.2, 5)
    rise = usual - now

    def around(back: int) -> Array:
        """The mean of half an hour about the target, so many bins earlier."""
        return past.mean(target - back + half // 2 + 1, half)

    before = {back: past.mean(origins - back, half) for back in (day, week, 2 * day)}
    columns = (
        *(past.values_at(origins - back) - level for back in (1, 2, 3, 4)),
        past.mean(origins, hour) - level,
        past.mean(origins, 3 * hour) - level,
        daily - level,
        rise,
        rise * ratio,
        recently - now,
        now - level,
        around(day) - before[day],
        before[day] - level,
        past.values_at(target - day) - around(day),
        level - past.mean(origins - half, half),
        around(week) - before[week],
        before[week] - level,
        around(2 * day) - before[2 * day],
        _roughness(past, origins, 3 * hour),
    )
    weekly = np.where(origins >= week, past.mean(origins, week), daily)
    scale = feature_scale(past, origins, level)
    slots = past.slots(int(target.max()) + 1)[target]
    clock = np.column_stack([slots % day / day, slots // day, level / np.maximum(weekly, 1e-9)])
    signals = np.column_stack(columns) / scale[:, None]
    return Features(origins=origins, signals=signals, clock=clock, level=level, scale=scale)


def _roughness(past: ObservedBins, origins: Integers, width: int) -> Array:
    """The mean step from bin to bin before each origin."""
    first = np.maximum(origins - width, 1)
    begin, end = int(first.min()), int(origins.max())
    sums = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(past.values[begin - 1 : end])))])
    rough: Array = (sums[origins - begin] - sums[first - begin]) / width
    return rough
