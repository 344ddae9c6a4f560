"""Quantiles for methods that have none: the point forecast plus what it was lately off, by the root of its level.

Owns the rolling conformal correction of a backtest, one lead or a whole path, the same for every method (Vovk et al. 2005;
the scaling is that of counts). Nothing of a bin that was not over at the origin is used. Our own forecaster has its own.
"""

from __future__ import annotations

import bisect
from collections import deque

import numpy as np

from forecast.series.binned import Array
from forecast.series.observed import Integers

LEVELS = (0.05, 0.95, 0.99)
WINDOW_DAYS, COARSE_WINDOW_DAYS = 2, 7
COARSE_SECONDS = 900.0
"""Longer bins have so few residuals in two days that a week of them is taken."""

LONG_SECONDS = 1800.0
LEAST_RESIDUALS = 20
LAST_PATHS = 8
QUARTERS = 4
FLOOR_SHARE = 0.05
"""Of the mean before the test: below it the level's root would be too small a scale."""


def window_bins(bin_seconds: float, per_day: int) -> int:
    """How many past origins count."""
    return per_day * (WINDOW_DAYS if bin_seconds < COARSE_SECONDS else COARSE_WINDOW_DAYS)


def scale(points: Array, floor: float) -> Array:
    """What residuals are measured in: the root of the forecast amount."""
    root: Array = np.sqrt(np.maximum(points, floor))
    return root


def quantiles_at_lead(points: Array, actual: Array, lead: int, window: int, floor: float) -> Array:
    """LEVELS by origin, for points of successive origins (each the bin `lead` after the last one seen).

    `actual` are the amounts of the same bins, NaN where not seen. At an origin the residuals of the `window` newest
    origins are known whose bin is over. NaN where fewer than LEAST_RESIDUALS of them are.
    """
    scales = scale(points, floor)
    residuals = (actual - points) / scales
    found = np.full((len(LEVELS), len(points)), np.nan)
    newest: deque[float] = deque()
    ordered: list[float] = []
    for origin in range(lead, len(points)):
        came = float(residuals[origin - lead])
        newest.append(came)
        if np.isfinite(came):
            bisect.insort(ordered, came)
        if len(newest) > window and np.isfinite(gone := newest.popleft()):
            del ordered[bisect.bisect_left(ordered, gone)]
        if len(ordered) >= LEAST_RESIDUALS:
            for row, level in enumerate(LEVELS):
                found[row, origin] = points[origin] + _of_ordered(ordered, level) * scales[origin]
    return found


def _of_ordered(ordered: list[float], level: float) -> float:
    """The outer one of the two neighbours: the higher above the middle, the lower below."""
    place = level * (len(ordered) - 1)
    return ordered[int(np.ceil(place)) if level > 0.5 else int(np.floor(place))]


def minimum_path_count(bin_seconds: float) -> int:
    """How many residuals a quarter of a path needs: any of long bins, which have few of them."""
    return 1 if bin_seconds >= LONG_SECONDS else LEAST_RESIDUALS + 1


def quantiles_of_paths(points: Array, actual: Array, origins: Integers, floor: float, least: int) -> Array:
    """LEVELS by origin by lead, for whole paths (origin by lead); residuals are pooled over a quarter of the path.

    At an origin those of the LAST_PATHS newest paths are known that are over. NaN where there are fewer than `least`.
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
