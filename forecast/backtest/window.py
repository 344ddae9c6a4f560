"""Layout of a backtest: history and test; the origins and leads of a horizon; the minimum history.

An origin is the index of the first bin that was unknown at the time of the forecast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from forecast.series.binned import Integers, Series, select_bins
from forecast.series.observed import DAY_SECONDS

HISTORY_DAYS = 30
LEARNING_DAYS = 4
"""Minimum days of history before the test: two to learn from, two to know errors of."""

TEST_DAYS, COARSE_TEST_DAYS = 4, 14
COARSE_SECONDS = 1800.0
"""Bin length in seconds from which two weeks are tested, because a day has few bins."""

HOUR = 3600.0
PATH_SECONDS = 6 * HOUR
"""Horizon in seconds from which all bins up to it are forecast (a path), every PATH_STEP_SECONDS."""

PATH_STEP_SECONDS = 6 * HOUR
LITTLE_WARM_UP_SECONDS = 6 * HOUR
LITTLE_LEAST_SECONDS = 12 * HOUR
LEAST_DAYS = LEARNING_DAYS + 1


class CannotTest(ValueError):
    """Request that cannot be tested. The text is for users."""


class ShortSeriesError(CannotTest):
    """Series too short for a backtest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BacktestWindow:
    """Window of `series`, whose first bin is observed. Origins from `test` on are scored.

    `little`: with little history, everything after the first hours is tested.
    """

    series: Series
    test: int
    per_day: int
    little: bool

    def origins(self, leads: Integers) -> Integers:
        """Return every bin for a single lead. For a path return a bin every six hours; the last path ends with the
        series."""
        last = len(self.series) - int(leads[-1])
        step = max(1, round(PATH_STEP_SECONDS / self.series.bin_seconds)) if len(leads) > 1 else 1
        return np.arange(last, self.test - 1, -step)[::-1]

    def day_of_origins(self, leads: Integers) -> int:
        """Return the number of origins in a day."""
        step = max(1, round(PATH_STEP_SECONDS / self.series.bin_seconds)) if len(leads) > 1 else 1
        return max(1, self.per_day // step)


def list_leads(horizon_seconds: float, bin_seconds: float) -> Integers:
    """Return the leads of a horizon in bins: one, or all of a path. Raise CannotTest beyond a day."""
    if not 0 < horizon_seconds <= DAY_SECONDS:
        raise CannotTest(
            f"a horizon of {horizon_seconds:g} s cannot be tested: it must be longer than 0 and at most a day"
        )
    bins = max(1, math.ceil(horizon_seconds / bin_seconds - 1e-9))
    return np.arange(1, bins + 1) if horizon_seconds >= PATH_SECONDS else np.array([bins])


def bins_a_day(bin_seconds: float) -> int:
    """Return the bins of a day. Raise CannotTest if they do not divide a day or are too long to show its hours."""
    count = DAY_SECONDS / bin_seconds
    if count != int(count):
        raise CannotTest(f"bins of {bin_seconds:g} s do not divide a day")
    if bin_seconds > PATH_STEP_SECONDS:
        raise CannotTest(f"bins of {bin_seconds / HOUR:g} hours are too long: a day must have at least 4")
    return int(count)


def window(series: Series, test_days: int | None = None) -> BacktestWindow:
    """Return the layout of a backtest over the end of the series. The newest days are tested.

    At most HISTORY_DAYS precede the test. Raise ShortSeriesError, and CannotTest for bins that do not divide a
    day."""
    seen = np.flatnonzero(np.isfinite(series.values))
    if not len(seen):
        raise ShortSeriesError("no bin of the series was seen")
    per_day = bins_a_day(series.bin_seconds)
    if test_days is not None and test_days < 1:
        raise CannotTest(f"{test_days} days cannot be tested: at least one")
    days = test_days or (TEST_DAYS if series.bin_seconds < COARSE_SECONDS else COARSE_TEST_DAYS)
    begun = select_bins(series, int(seen[0]))
    return _little(begun, per_day) if _days(begun) < LEAST_DAYS else _whole(begun, per_day, days)


def _days(series: Series) -> float:
    return len(series) * series.bin_seconds / DAY_SECONDS


def _whole(series: Series, per_day: int, days: int) -> BacktestWindow:
    needed = days + LEARNING_DAYS
    if len(series) < needed * per_day:
        raise ShortSeriesError(
            f"a test of {days} days needs {needed} days ({LEARNING_DAYS} to learn from), "
            f"has {_days(series):.1f}: test at most {int(_days(series)) - LEARNING_DAYS}"
        )
    kept = select_bins(series, max(0, len(series) - (HISTORY_DAYS + days) * per_day))
    seen = np.flatnonzero(np.isfinite(kept.values[: -days * per_day]))
    if not len(seen):
        raise ShortSeriesError(f"nothing was seen in the {HISTORY_DAYS} days before the test")
    kept = select_bins(kept, int(seen[0]))
    return BacktestWindow(series=kept, test=len(kept) - days * per_day, per_day=per_day, little=False)


def _little(series: Series, per_day: int) -> BacktestWindow:
    if len(series) * series.bin_seconds < LITTLE_LEAST_SECONDS:
        raise ShortSeriesError(
            f"has {len(series) * series.bin_seconds / HOUR:.1f} hours; a test needs {LEAST_DAYS} days, "
            f"or {LITTLE_LEAST_SECONDS / HOUR:g} hours to see how it does with little history"
        )
    begin = max(1, round(LITTLE_WARM_UP_SECONDS / series.bin_seconds))
    return BacktestWindow(series=series, test=begin, per_day=per_day, little=True)
