"""Observed bins as input of the methods: gaps filled, running sums, and the place in the week.

Filled values serve only the methods; they never count as observations. The series grows bin by bin and contains no
future bin.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import date

import numpy as np
from numpy.typing import NDArray

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

    `values` are filled: a missing bin takes the value of a day earlier, or else the last value. `observed_mask` marks
    the observations. `slots` are the bins of the local week, also beyond the end.
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
        self._sundays = sundays
        given = series.values[seen[0] :]
        self._n = 0
        self._values = np.empty(len(given))
        self._seen = np.empty(len(given), dtype=bool)
        self._sums = np.zeros(len(given) + 1)
        self._slots = np.empty(0, dtype=np.int64)
        for value in given:
            self.append(float(value))

    def __len__(self) -> int:
        return self._n

    def append(self, value: float) -> None:
        """Add a bin; NaN if unobserved. Raise ValueError for a negative or infinite amount."""
        if value < 0 or math.isinf(value):
            raise ValueError(f"an amount of {value} in a bin cannot be: it must be finite and not negative")
        n = self._n
        if n == len(self._values):
            self._grow()
        known = not math.isnan(value)
        self._values[n] = value if known else self._values[n - self.per_day if n >= self.per_day else n - 1]
        self._seen[n] = known
        self._sums[n + 1] = self._sums[n] + self._values[n]
        self._n += 1

    def _grow(self) -> None:
        more = max(self.per_day, len(self._values) // 8)
        self._values = np.concatenate([self._values, np.empty(more)])
        self._seen = np.concatenate([self._seen, np.empty(more, dtype=bool)])
        self._sums = np.concatenate([self._sums, np.empty(more)])

    @property
    def end(self) -> float:
        """Return the end of the last bin, unix seconds."""
        return self.start + self._n * self.bin_seconds

    @property
    def values(self) -> Array:
        """Return the filled amounts per bin."""
        return self._values[: self._n]

    @property
    def observed_mask(self) -> NDArray[np.bool_]:
        """Return which bins are observations."""
        return self._seen[: self._n]

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
        total = self._sums[np.clip(ends, 0, self._n)] - self._sums[np.clip(first, 0, self._n)]
        return np.where((first < 0) | (ends > self._n), np.nan, total / width)

    def maximum(self, bins: int) -> float:
        """Return the highest amount of the last bins."""
        return float(self._values[max(0, self._n - bins) : self._n].max())

    def values_at(self, indices: Integers) -> Array:
        """Return the amounts of bins by index (any shape). NaN outside the series."""
        inside = (indices >= 0) & (indices < self._n)
        return np.where(inside, self._values[np.clip(indices, 0, self._n - 1)], np.nan)
