"""Demand per minute from a series of bins: what a simulation runs on where it has no minutes of its own.

Owns the two ways between bins and what fills a gap there. Neither is what happened within a bin: straight lines between the
middles of bins tell the slope that leads to a bin before it is over, so that every policy looks better than it is, and
steps hold everything back until the bin begins, so that every policy looks worse. A series of minutes is taken as it is.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from forecast.lead.lead import DAY_MINUTES
from forecast.series.binned import Array, Series

MINUTE_SECONDS = 60.0


class Interpolation(StrEnum):
    """What is assumed within a bin; `NATIVE` is nothing, there are minutes."""

    NATIVE = "native"
    LINEAR = "linear"
    STEP = "step"


def bin_minutes(series: Series) -> int:
    """The bin in whole minutes. Raises ValueError where it is not, or a day is no multiple of it."""
    minutes = round(series.bin_seconds / MINUTE_SECONDS)
    if minutes < 1 or minutes * MINUTE_SECONDS != series.bin_seconds or DAY_MINUTES % minutes:
        raise ValueError(f"bins of {series.bin_seconds:g} s do not make whole minutes and whole days")
    return minutes


def rates(series: Series) -> Array:
    """Requests per second of every bin. A bin that was not seen takes the same bin a day before, else a straight line
    between its neighbours: for a simulation that must have demand, never for a score. Raises ValueError without any bin seen.
    """
    per_day = DAY_MINUTES // bin_minutes(series)
    values = series.values / series.bin_seconds
    known = np.isfinite(values)
    if not known.any():
        raise ValueError("no bin of this series was seen")
    filled = values.copy()
    for place in np.flatnonzero(~known):
        if place >= per_day:
            filled[place] = filled[place - per_day]
    left = np.isfinite(filled)
    places = np.arange(len(filled))
    drawn: Array = np.interp(places, places[left], filled[left])
    return drawn


def per_minute(bins: Array, width: int, between: Interpolation) -> Array:
    """The rate in every minute of bins that are `width` minutes long."""
    if between is Interpolation.STEP or width == 1:
        return np.repeat(bins, width)
    middles = (np.arange(len(bins)) + 0.5) * width
    drawn: Array = np.interp(np.arange(len(bins) * width) + 0.5, middles, bins)
    return drawn
