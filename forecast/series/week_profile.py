"""Robust profile of the week: the usual amount of each bin of the local week, learnt anew every day.

A profile is made of medians over the last days and weeks. An origin uses the profile of the whole days before it, never
a later one.
"""

from __future__ import annotations

import numpy as np

from forecast.series.binned import Array, Integers, smooth_circular
from forecast.series.observed import DAYS_A_WEEK, ObservedBins

WEEKS = 4
"""Maximum weeks in the median of a bin of the week. The median of a time of day is of a week at most."""

PRIOR_WEEKS = 4
"""Weeks that the usual day counts for beside the weeks of a bin: one bin of one week is mostly noise."""

LARGEST = 3.0
"""A bin counts at most so many times its usual amount in the level of its day: a spike is no level."""

SMOOTH_SECONDS = 900.0
"""Width of the smoothing in seconds, on both sides."""


def week_profile(past: ObservedBins, end: int) -> Array:
    """Return the amount per bin of the week from the bins before `end`, at least a day of them.

    A bin is the median over its weeks, drawn to a prior: the median of its time of day times the level of its weekday.
    One week tells half of such a level: its day may have been odd.
    """
    values, day, week = past.values, past.per_day, past.per_week
    first = max(0, end - WEEKS * week)
    days = min((end - first) // day, DAYS_A_WEEK)
    slots = past.slots(end)
    recent = slice(end - days * day, end)
    profile = np.tile(_day_profile(values[recent], slots[recent] % day, day), week // day)
    weeks = (end - first) // week
    if weeks:
        table = np.full((weeks + 1, week), np.nan)
        row = np.minimum((np.arange(first, end) - first) // week, weeks)
        table[row, slots[first:end]] = values[first:end]
        count = np.isfinite(table).sum(axis=0)
        usual = np.nanmedian(np.where(count, table, 0.0), axis=0)
        seen = np.where(count > 0, (np.minimum(usual, LARGEST * profile), profile), 0.0)
        seen = seen.reshape(2, DAYS_A_WEEK, day).sum(axis=2) + 1e-12
        profile *= np.repeat(1 + (seen[0] / seen[1] - 1) * (0.5 if weeks == 1 else 1.0), day)
        profile = (count * usual + PRIOR_WEEKS * profile) / (count + PRIOR_WEEKS)
    return smooth_circular(profile, int(SMOOTH_SECONDS // past.bin_seconds))


def _day_profile(values: Array, times: Integers, day: int) -> Array:
    """Return the median of each time of day. A time that a clock change skipped is interpolated from its neighbours."""
    table = np.full((len(values) // day, day), np.nan)
    table[np.arange(len(values)) // day, times] = values
    known = np.flatnonzero(np.isfinite(table).any(axis=0))
    usual: Array = np.nanmedian(table[:, known], axis=0)
    return usual if len(known) == day else np.interp(np.arange(day), known, usual, period=day)


class WeekProfiles:
    """Profiles of a growing series, one for each whole day of it."""

    def __init__(self, past: ObservedBins) -> None:
        self._past = past
        self._rows: dict[int, Array] = {}

    def amounts(self, origins: Integers, targets: Integers) -> Array:
        """Return the profile of bins (`targets`) as known at `origins`, which broadcast with them.

        An origin is the index of the first unobserved bin, at least a day after the start.
        """
        slots = self._past.slots(int(targets.max()) + 1)[targets]
        table, rows = self._table(origins)
        values: Array = table[rows, slots]
        return values

    def mean_before(self, origins: Integers, width: int, ago: int = 0) -> Array:
        """Return the profile's mean over the `width` bins before each origin, or before the bin `ago` bins earlier."""
        table, rows = self._table(origins)
        sums = np.cumsum(np.pad(np.hstack([table, table]), ((0, 0), (1, 0))), axis=1)
        ends = self._past.slots(int(origins.max()))[np.maximum(origins - ago, 1) - 1] + 1 + self._past.per_week
        means: Array = (sums[rows, ends] - sums[rows, ends - width]) / width
        return means

    def _table(self, origins: Integers) -> tuple[Array, Integers]:
        """Return the profiles of the days of the origins, and the row of each origin."""
        days, rows = np.unique(origins // self._past.per_day, return_inverse=True)
        for day in days.tolist():
            if day not in self._rows:
                self._rows[day] = week_profile(self._past, day * self._past.per_day)
        return np.stack([self._rows[day] for day in days.tolist()]), rows.reshape(origins.shape)
