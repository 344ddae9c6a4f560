"""Observed bins as input of the methods: gaps filled, running sums, and the place in the week.

Filled values serve only the methods; they never count as observations. The series grows bin by bin and contains no
future bin.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import date

import numpy as np
import pandas as pd

from forecast.series.binned import Array, Integers, Series
from forecast.series.calendar import time_of_week

DAY_SECONDS = 86_400.0
HOUR = 3600.0
DAYS_A_WEEK = 7

FEWEST = 1.0
"""Minimum amount per bin for relative measures: otherwise the first request would be a surge."""


class NoObservationsError(ValueError):
    """Series without an observation."""


class ObservedBins:
    """Amounts per bin up to now; bin 0 is the first observed bin.

    `values` are filled: a missing bin takes the value of a day earlier, or on the first day the last value. `actual`
    has NaN there. `slots` are the bins of the local week, also beyond the end. `sundays` are days that count as such.
    """

    def __init__(self, series: Series, sundays: Collection[date] = ()) -> None:
        """Load the series. Raise NoObservationsError, and ValueError for bins that do not divide a day."""
        seen = np.flatnonzero(np.isfinite(series.values))
        if not len(seen):
            raise NoObservationsError("no bin of the series was seen")
        per_day = DAY_SECONDS / series.bin_seconds
        if per_day < 1 or per_day != int(per_day):
            raise ValueError(f"bins of {series.bin_seconds:g} s do not divide a day")
        self.bin_seconds, self.zone = series.bin_seconds, series.zone
        self.start = series.time(int(seen[0]))
        self.per_day = int(per_day)
        self.per_week = self.per_day * DAYS_A_WEEK
        self.actual = series.values[seen[0] :]
        filled = pd.Series(self.actual)
        filled = pd.concat([filled[: self.per_day].ffill(), filled[self.per_day :]])
        filled = filled.groupby(filled.index % self.per_day).ffill()
        self.values: Array = np.asarray(filled, np.float64)
        self._sums = np.concatenate([[0.0], np.cumsum(self.values)])
        self._sundays = sundays
        self._slots = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.values)

    def append(self, value: float) -> None:
        """Add a bin; NaN if unobserved. Raise ValueError for a negative or infinite amount."""
        if value < 0 or math.isinf(value):
            raise ValueError(f"an amount of {value} in a bin cannot be: it must be finite and not negative")
        usual = self.values[-self.per_day if len(self) >= self.per_day else -1]
        self.actual = np.append(self.actual, value)
        self.values = np.append(self.values, usual if math.isnan(value) else value)
        self._sums = np.append(self._sums, self._sums[-1] + self.values[-1])

    @property
    def end(self) -> float:
        """Return the end of the last bin, unix seconds."""
        return self.start + len(self) * self.bin_seconds

    def slots(self, count: int) -> Integers:
        """Return the slots of the first `count` bins, also beyond the end."""
        if len(self._slots) < count:
            ahead = count + self.per_day
            self._slots = time_of_week(self.start, self.bin_seconds, ahead, self.zone, self._sundays)
        return self._slots[:count]

    def bins(self, seconds: float) -> int:
        """Return the number of bins in `seconds`, at least one."""
        return max(1, int(seconds // self.bin_seconds))

    def mean(self, ends: Integers, width: Integers | int) -> Array:
        """Return the mean of the `width` bins before each of `ends` (any shape). NaN if some lie outside the series."""
        first = ends - width
        total = self._sums[np.clip(ends, 0, len(self))] - self._sums[np.clip(first, 0, len(self))]
        return np.where((first < 0) | (ends > len(self)), np.nan, total / width)

    def week_mean(self, origins: Integers) -> Array:
        """Return the mean of the week before each origin, or of the time since the start."""
        return self.mean(origins, np.minimum(origins, self.per_week))

    def values_at(self, indices: Integers) -> Array:
        """Return the filled amounts of bins by index (any shape). NaN outside the series."""
        return _at(self.values, indices)

    def actual_at(self, indices: Integers) -> Array:
        """Return the observed amounts of bins by index (any shape), NaN where nothing was observed."""
        return _at(self.actual, indices)


def _at(values: Array, indices: Integers) -> Array:
    inside = (indices >= 0) & (indices < len(values))
    return np.where(inside, values[np.clip(indices, 0, len(values) - 1)], np.nan)
