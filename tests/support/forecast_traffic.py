"""Made-up traffic for the tests of forecasts: waves of the day with the noise of counts, in bins of an hour unless said."""

import numpy as np

from forecast.series.binned import Array, Series
from forecast.series.observed import ObservedBins

HOUR, DAY = 3600.0, 86_400.0
MONDAY, LATER_MONDAY = 1_700_438_400.0, 1_767_571_200.0
"""2023-11-20 and 2026-01-05, 00:00 UTC."""


def wave(days: float, *, level: float = 100.0, seed: int = 1, bin_seconds: float = HOUR) -> Array:
    """Counts a bin that rise and fall by 60 % within each day."""
    count, per_day = round(days * DAY / bin_seconds), DAY / bin_seconds
    usual = level * (1 + 0.6 * np.sin(2 * np.pi * np.arange(count) / per_day))
    counts: Array = np.random.default_rng(seed).poisson(usual).astype(np.float64)
    return counts


def series(values: Array, *, bin_seconds: float = HOUR, start: float = MONDAY, zone: str = "UTC") -> Series:
    return Series(start=start, bin_seconds=bin_seconds, values=np.asarray(values, dtype=np.float64), zone=zone)


def past_of(values: Array, *, bin_seconds: float = HOUR) -> ObservedBins:
    return ObservedBins(series(values, bin_seconds=bin_seconds))


def week(days: int, bin_seconds: float = HOUR, seed: int = 1) -> Series:
    """Amounts around 1000 a bin from a Monday on."""
    per_day = round(86_400 / bin_seconds)
    bins = np.arange(days * per_day)
    shape = 1 - 0.6 * np.cos(2 * np.pi * bins / per_day)
    shape = np.where(bins // per_day % 7 < 5, shape, 0.5 * shape)
    draw = np.random.default_rng(seed)
    values: Array = 1000.0 * shape * np.exp(0.05 * draw.standard_normal(len(bins)))
    return Series(start=LATER_MONDAY, bin_seconds=bin_seconds, values=values)
