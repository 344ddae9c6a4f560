"""Rolling conformal quantiles for methods without their own: the point plus recent errors, scaled by the level's root.

The backtest applies the same correction to every method, for one lead or a path. Source: Vovk et al. 2005; the scaling
is that of counts. Only bins that were over at the origin are used.
"""

from __future__ import annotations

import bisect
from collections import deque

import numpy as np

from forecast.series.binned import Array, Integers

LEVELS = (0.05, 0.95, 0.99)
WINDOW_DAYS, COARSE_WINDOW_DAYS = 2, 7
COARSE_SECONDS = 900.0
"""Bin length in seconds from which a week of residuals is used: two days have too few."""

LONG_SECONDS = 1800.0
LEAST_RESIDUALS = 20
LAST_PATHS = 8
QUARTERS = 4
FLOOR_SHARE = 0.05
"""Minimum level, as a share of the mean before the test: the root of less would be too small a scale."""


class SortedWindow:
    """The finite values among the newest `size` values, in ascending order."""

    def __init__(self, size: int) -> None:
        self._newest: deque[float] = deque()
        self._size = size
        self.ordered: list[float] = []

    def push(self, value: float) -> None:
        """Add a value; the oldest leaves a full window."""
        self._newest.append(value)
        if np.isfinite(value):
            bisect.insort(self.ordered, value)
        if len(self._newest) > self._size and np.isfinite(oldest := self._newest.popleft()):
            del self.ordered[bisect.bisect_left(self.ordered, oldest)]


def rolling_quantile(values: Array, window: int, least: int, level: float) -> Array:
    """Return the quantile of the newest `window` values at each place, linear between neighbours.

    NaN with fewer than `least` known values.
    """
    found = np.full(len(values), np.nan)
    newest = SortedWindow(window)
    for place, value in enumerate(values.tolist()):
        newest.push(value)
        if (count := len(newest.ordered)) >= least:
            low, part = divmod(level * (count - 1), 1.0)
            below = newest.ordered[int(low)]
            found[place] = below + part * (newest.ordered[min(int(low) + 1, count - 1)] - below)
    return found


def window_bins(bin_seconds: float, per_day: int) -> int:
    """Return the number of past origins that count."""
    return per_day * (WINDOW_DAYS if bin_seconds < COARSE_SECONDS else COARSE_WINDOW_DAYS)


def scale(points: Array, floor: float) -> Array:
    """Return the unit of residuals: the root of the forecast amount."""
    root: Array = np.sqrt(np.maximum(points, floor))
    return root


def quantiles_at_lead(points: Array, actual: Array, lead: int, window: int, floor: float) -> Array:
    """Return LEVELS by origin, for points of successive origins at one lead (`lead` bins after the last observed bin).

    `actual` are the amounts of the same bins, NaN if unobserved. An origin uses the residuals of the `window` newest
    origins whose bin is over. NaN with fewer than LEAST_RESIDUALS.
    """
    scales = scale(points, floor)
    residuals = (actual - points) / scales
    found = np.full((len(LEVELS), len(points)), np.nan)
    newest = SortedWindow(window)
    for origin in range(lead, len(points)):
        newest.push(float(residuals[origin - lead]))
        if len(newest.ordered) >= LEAST_RESIDUALS:
            for row, level in enumerate(LEVELS):
                found[row, origin] = points[origin] + _of_ordered(newest.ordered, level) * scales[origin]
    return found


def _of_ordered(ordered: list[float], level: float) -> float:
    """Return the outer of the two neighbours: the higher above the middle, the lower below."""
    place = level * (len(ordered) - 1)
    return ordered[int(np.ceil(place)) if level > 0.5 else int(np.floor(place))]


def minimum_path_count(bin_seconds: float) -> int:
    """Return the residuals that a quarter of a path needs: 1 for long bins, which have few."""
    return 1 if bin_seconds >= LONG_SECONDS else LEAST_RESIDUALS + 1


def quantiles_of_paths(points: Array, actual: Array, origins: Integers, floor: float, least: int) -> Array:
    """Return LEVELS by origin by lead, for whole paths (origin by lead). Residuals are pooled over a quarter of the
    path.

    An origin uses the LAST_PATHS newest finished paths. NaN with fewer than `least` residuals.
    """
    bins = points.shape[1]
    scales = scale(points, floor)
    residuals = (actual - points) / scales
    found = np.full((len(LEVELS), *points.shape), np.nan)
    for place, origin in enumerate(origins):
        over = np.flatnonzero(origins + bins <= origin)[-LAST_PATHS:]
        for quarter in range(QUARTERS):
            leads = slice(quarter * bins // QUARTERS, (quarter + 1) * bins // QUARTERS)
            known = residuals[over, leads]
            known = known[np.isfinite(known)]
            if len(known) >= least:
                offs = np.quantile(known, LEVELS)
                found[:, place, leads] = points[place, leads] + offs[:, None] * scales[place, leads]
    return found
