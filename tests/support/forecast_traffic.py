"""Made-up traffic for the tests of forecasts: waves of the day with the noise of counts, in bins of an hour unless said."""

import numpy as np

from forecast.series.binned import Array, Series
from forecast.series.observed import ObservedBins

HOUR, DAY = 3600.0, 86_400.0
MONDAY = 1_700_438_400.0
"""2023-11-20 00:00 UTC, a Monday."""


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
