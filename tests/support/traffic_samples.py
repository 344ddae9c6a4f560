"""Made-up traffic for the forecast's tests: a shape of the day, a quieter weekend, noise. Small, and the same each time."""

import numpy as np

from forecast.series.binned import Array, Series

MONDAY = 1_767_571_200.0
"""2026-01-05T00:00:00Z."""

HOUR = 3600.0


def week(days: int, bin_seconds: float = HOUR, seed: int = 1) -> Series:
    """Amounts around 1000 a bin from a Monday on."""
    per_day = round(86_400 / bin_seconds)
    bins = np.arange(days * per_day)
    shape = 1 - 0.6 * np.cos(2 * np.pi * bins / per_day)
    shape = np.where(bins // per_day % 7 < 5, shape, 0.5 * shape)
    draw = np.random.default_rng(seed)
    values: Array = 1000.0 * shape * np.exp(0.05 * draw.standard_normal(len(bins)))
    return Series(start=MONDAY, bin_seconds=bin_seconds, values=values)
