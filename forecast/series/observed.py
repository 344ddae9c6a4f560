"""The bins known so far, as the methods read them: filled where something is missing, summed, and placed in the week.

Owns the filling (for the methods' sake only: what was not seen is never counted as an observation) and the running sums.
It grows by one bin at a time; nothing here looks beyond the last one.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import date

import numpy as np
from numpy.typing import NDArray

from forecast.series.binned import Array, Series
from forecast.series.calendar import time_of_week

DAY_SECONDS = 86_400.0
HOUR = 3600.0
DAYS_A_WEEK = 7

FEWEST = 1.0
"""Amounts below one a bin are measured as one: relative to almost nothing, the first request would be a surge."""

Integers = NDArray[np.int64]


class NoObservationsError(ValueError):
    """A series without a single observation."""


class ObservedBins:
    """Amounts per bin up to now; bin 0 is the first that was seen.

    `values` are filled: a missing bin holds what came a day earlier, before that what came last. `seen` says which are
    observations, `slots` the bin of the local week each lies in, known beyond the end as far as asked for.
    """

    def __init__(self, series: Series, sundays: Collection[date] = ()) -> None:
        """Raises NothingSeen, and ValueError for bins that do not divide a day."""
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
        """One more bin; NaN where it was not seen. Raises ValueError for an amount that is none."""
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
        """Where the last bin ends, unix seconds."""
        return self.start + self._n * self.bin_seconds

    @property
    def values(self) -> Array:
        """Filled amounts per bin."""
        return self._values[: self._n]

    @property
    def observed_mask(self) -> NDArray[np.bool_]:
        """Which bins are observations."""
        return self._seen[: self._n]

    def slots(self, count: int) -> Integers:
        """The slots of the first `count` bins, which may reach beyond the end."""
        if len(self._slots) < count:
            ahead = count + self.per_day
            self._slots = time_of_week(self.start, self.bin_seconds, ahead, self.zone, self._sundays)
        return self._slots[:count]

    def bins(self, seconds: float) -> int:
        """How many bins so many seconds are, at least one."""
        return max(1, int(seconds // self.bin_seconds))

    def mean(self, ends: Integers, width: Integers | int) -> Array:
        """The mean of the `width` bins before each of `ends` (any shape); NaN where some lie before the first bin or beyond
        the last."""
        first = ends - width
        total = self._sums[np.clip(ends, 0, self._n)] - self._sums[np.clip(first, 0, self._n)]
        return np.where((first < 0) | (ends > self._n), np.nan, total / width)

    def maximum(self, bins: int) -> float:
        """The highest amount of the last bins."""
        return float(self._values[max(0, self._n - bins) : self._n].max())

    def values_at(self, indices: Integers) -> Array:
        """The amounts of bins by index (any shape); NaN before the first one and beyond the last."""
        inside = (indices >= 0) & (indices < self._n)
        return np.where(inside, self._values[np.clip(indices, 0, self._n - 1)], np.nan)
