"""Signals of each origin for the learning methods, and robust profiles of the week.

Signals are shares of the origin's scale, so that a fleet that grew tenfold looks the same. They are NaN where the past
is too short, and use only bins before the origin. A profile is made of medians over the last days and weeks. An origin
uses the profile fitted at the last day's turn before it, never a later profile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecast.series.binned import Array, Integers
from forecast.series.observed import FEWEST, HOUR, ObservedBins

WEEKS = 4
"""Maximum weeks in the median of a bin of the week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """Settings of a profile.

    `days`: days in the median of a time of day. `shrink`: weight in weeks that draws a bin of the week towards that
    median. `smooth_seconds`: width of the smoothing."""

    days: int
    shrink: float
    smooth_seconds: float


QUICK = ProfileSettings(days=7, shrink=1.0, smooth_seconds=900.0)
STEADY = ProfileSettings(days=14, shrink=3.0, smooth_seconds=3600.0)


def week_profile(past: ObservedBins, end: int, shape: ProfileSettings) -> Array:
    """Return the amount per bin of the week from the bins before `end`. With less than a day return their mean.

    A bin is the median over its w weeks. It is drawn to the median of its time of day with weight w / (w + shrink).
    """
    values, day, week = past.values, past.per_day, past.per_week
    first = max(0, end - WEEKS * week)
    days = min((end - first) // day, shape.days)
    if not days:
        return np.full(week, values[first:end].mean() if end > first else 0.0)
    slots = past.slots(end)
    profile = np.tile(
        _day_profile(values[end - days * day : end], slots[end - days * day : end] % day, day), week // day
    )
    weeks = (end - first) // week
    if weeks:
        table = np.full((weeks + 1, week), np.nan)
        row = np.minimum((np.arange(first, end) - first) // week, weeks)
        table[row, slots[first:end]] = values[first:end]
        count = np.isfinite(table).sum(axis=0)
        usual = np.nanmedian(np.where(count, table, 0.0), axis=0)
        weight = count / (count + shape.shrink)
        profile = np.where(count > 0, weight * usual + (1 - weight) * profile, profile)
    return _smooth(profile, _width(past, shape))


def _day_profile(values: Array, times: Integers, day: int) -> Array:
    """Return the median of each time of day. A time that a clock change skipped is interpolated from its neighbours."""
    table = np.full((len(values) // day, day), np.nan)
    table[np.arange(len(values)) // day, times] = values
    known = np.flatnonzero(np.isfinite(table).any(axis=0))
    usual: Array = np.nanmedian(table[:, known], axis=0)
    return usual if len(known) == day else np.interp(np.arange(day), known, usual, period=day)


def _width(past: ObservedBins, shape: ProfileSettings) -> int:
    """Return an odd number of bins, so that smoothing shifts nothing."""
    half = int(shape.smooth_seconds // past.bin_seconds)
    return 2 * half + 1 if past.bin_seconds < shape.smooth_seconds else 1


def _smooth(profile: Array, width: int) -> Array:
    if width <= 1:
        return profile
    around = np.concatenate([profile[-width:], profile, profile[:width]])
    return np.convolve(around, np.ones(width) / width, "same")[width:-width]


class Profiles:
    """Profiles fitted after the first day, at day turns from `first` on, and at every refit."""

    def __init__(self, past: ObservedBins, shape: ProfileSettings, first: int) -> None:
        self._past, self._shape = past, shape
        self._ends = np.empty(0, dtype=np.int64)
        self._rows = np.empty((0, past.per_week))
        self._sums = np.empty((0, 2 * past.per_week + 1))
        if first > past.per_day:
            self.fit(past.per_day)
        while first <= len(past):
            self.fit(first)
            first += past.per_day

    def fit(self, end: int) -> None:
        """Add the profile of the bins before `end`, used from `end` on."""
        row = week_profile(self._past, end, self._shape)
        self._ends = np.append(self._ends, end)
        self._rows = np.concatenate([self._rows, row[None]])
        twice = np.concatenate([[0.0], np.cumsum(np.concatenate([row, row]))])
        self._sums = np.concatenate([self._sums, twice[None]])

    def forget(self, before: int) -> None:
        """Drop the profiles that only earlier origins use."""
        first = max(int(np.searchsorted(self._ends, before, side="right")) - 1, 0)
        self._ends, self._rows, self._sums = self._ends[first:], self._rows[first:], self._sums[first:]

    def _row(self, origins: Integers) -> Integers:
        """Return the newest profile at each origin, or the first if the origin lies before it."""
        return np.maximum(np.searchsorted(self._ends, origins, side="right") - 1, 0)

    def forecast_profile(self, origins: Integers, leads: Integers | int) -> Array:
        """Return the profile of the bins `leads` after the last observed bin of each origin.

        The result is origins by leads, or a column of origins against a row of leads. An origin is the index of the
        first unobserved bin."""
        targets = origins + leads - 1
        slots = self._past.slots(int(targets.max()) + 1)
        rows = self._row(origins)
        found: Array = self._rows[rows, slots[targets]]
        return found

    def mean(self, origins: Integers, width: int) -> Array:
        """Return the mean of the profile over the `width` bins up to each origin."""
        slots = self._past.slots(int(origins.max()))
        ends = slots[origins - 1] + 1 + self._past.per_week
        rows = self._row(origins)
        mean: Array = (self._sums[rows, ends] - self._sums[rows, ends - width]) / width
        return mean

    def past_profile(self, origins: Integers, width: int) -> Array:
        """Return the profile of the last `width` bins before each origin: origins by bins, the last bin last."""
        bins = origins[:, None] + np.arange(-width, 0)[None, :]
        slots = self._past.slots(int(origins.max()))
        found: Array = self._rows[self._row(origins)[:, None], slots[np.maximum(bins, 0)]]
        return found

    def typical(self, origins: Integers) -> Array:
        """Return the weekly mean of the profile per bin, as of each origin."""
        mean: Array = self._sums[self._row(origins), self._past.per_week] / self._past.per_week
        return mean


HALF_HOUR = HOUR / 2

LEARNT_DAYS = 35
"""Maximum age in days of origins that methods learn from."""

LEAST_SHARE = 0.05
"""Minimum scale, as a share of the week's mean: a day without traffic would magnify every error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Signals by origin.

    `level` is the mean of the last half hour (amount per bin), the base of what is learnt. `scale` is the unit of the
    signals and targets."""

    origins: Integers
    signals: Array
    level: Array
    scale: Array


def first_origin(past: ObservedBins) -> int:
    """Return the first usable origin: a day and some hours after the start."""
    return past.per_day + 3 * past.bins(HOUR) + 2


def feature_scale(past: ObservedBins, origins: Integers, level: Array) -> Array:
    """Return the unit of learning at each origin: between the level and the day's mean, with a lower bound."""
    daily, weekly = past.mean(origins, past.per_day), past.mean(origins, np.minimum(origins, past.per_week))
    scale: Array = np.maximum(np.maximum(0.5 * (level + daily), LEAST_SHARE * weekly), FEWEST)
    return scale


def build_features(past: ObservedBins, profiles: Profiles, origins: Integers, lead: int) -> Features:
    """Return the signals of each origin for the bin `lead` after the last observed bin.

    An origin is the index of the first unobserved bin."""
    day, week = past.per_day, past.per_week
    half, hour = past.bins(HALF_HOUR), past.bins(HOUR)
    level, target = past.mean(origins, half), origins + lead - 1
    daily = past.mean(origins, day)
    usual = profiles.forecast_profile(origins, lead)
    now, recently = profiles.mean(origins, half), profiles.mean(origins, hour)
    ratio = np.clip(level / np.maximum(np.maximum(now, 0.02 * daily), 1e-9), 0.2, 5)
    rise = usual - now

    def around(back: int) -> Array:
        """Return the mean of half an hour around the target, `back` bins earlier."""
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
    scale = feature_scale(past, origins, level)
    signals = np.column_stack(columns) / scale[:, None]
    return Features(origins=origins, signals=signals, level=level, scale=scale)


def _roughness(past: ObservedBins, origins: Integers, width: int) -> Array:
    """Return the mean absolute step between bins before each origin."""
    first = np.maximum(origins - width, 1)
    begin, end = int(first.min()), int(origins.max())
    sums = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(past.values[begin - 1 : end])))])
    rough: Array = (sums[origins - begin] - sums[first - begin]) / width
    return rough
