"""How far off the forecasts of a day ahead have been, by how far ahead, and what that makes of their quantiles.

Owns the residuals of the days that were forecast lately and the quantiles of each quarter of the day ahead. A day of
residuals is much alike (one surge is in all of them), so that they are taken over two weeks, the newer counting more, on
two scales, and for the upper quantiles the wider one is believed.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from forecast.models.conformal import LEAST_RESIDUALS, LEAST_SHARE, LEVELS, highest_observation
from forecast.series.binned import Array
from forecast.series.observed import FEWEST, ObservedBins

QUARTERS = 4
DAY_SPREAD_DAYS = 14
HALF_LIFE_DAYS = 3.0
LEADS_A_QUARTER = 12
"""Neighbouring leads of one day say the same; more of them would only cost time."""

MIDDLE = 0.5


class DaySpread:
    """The forecasts of days that were made at even steps of `step` bins, as far back as they count."""

    def __init__(self, past: ObservedBins, step: int) -> None:
        self._past = past
        day = past.per_day
        self._leads = np.unique(np.linspace(0, day - 1, min(day, QUARTERS * LEADS_A_QUARTER)).astype(np.int64))
        self._made: deque[tuple[int, Array]] = deque(maxlen=max(1, DAY_SPREAD_DAYS * past.per_day // step))
        self._factors: Array | None = None

    def note(self, origin: int, path: Array) -> None:
        """A day was forecast (amount per bin, by lead)."""
        self._made.append((origin, path[self._leads]))

    def learn(self) -> None:
        """Takes the residuals of everything that is known by now."""
        past, day, leads = self._past, self._past.per_day, self._leads
        if not self._made:
            return
        said = np.stack([path for _, path in self._made])
        targets = np.array([origin for origin, _ in self._made])[:, None] + leads[None, :]
        inside = np.minimum(targets, len(past) - 1)
        known = (targets < len(past)) & past.observed_mask[inside]
        weight = 0.5 ** ((len(past) - targets) / (HALF_LIFE_DAYS * day))
        error, level = past.values[inside] - said, self._floored(said)
        quarter = leads * QUARTERS // day
        factors = np.full((QUARTERS, 2, len(LEVELS)), np.nan)
        for part in range(QUARTERS):
            here = known & (quarter == part)[None, :]
            if here.sum() >= LEAST_RESIDUALS:
                for kind, scale in enumerate((np.sqrt(level), level)):
                    factors[part, kind] = _day_quantiles((error / scale)[here], weight[here])
        self._factors = None if np.isnan(factors[0]).any() else _carried(factors)

    def quantiles(self, path: Array) -> Array | None:
        """LEVELS by lead of the day ahead; None while too little is known of past errors."""
        if self._factors is None:
            return None
        quarter = np.arange(len(path)) * QUARTERS // self._past.per_day
        level = self._floored(path)
        by_root, by_level = self._factors[quarter, 0].T, self._factors[quarter, 1].T
        rooted, levelled = path + by_root * np.sqrt(level), path + by_level * level
        upper = np.array(LEVELS) > MIDDLE
        bounds = np.where(upper[:, None], np.maximum(rooted, levelled), 0.5 * (rooted + levelled))
        bounds = np.where(upper[:, None], bounds, np.minimum(bounds, path))
        bounds[LEVELS.index(MIDDLE)] = path
        ordered: Array = np.maximum.accumulate(np.clip(bounds, 0.0, highest_observation(self._past)), axis=0)
        return ordered

    def _floored(self, path: Array) -> Array:
        week = min(len(self._past), self._past.per_week)
        usual = float(self._past.mean(np.array([len(self._past)]), week)[0])
        return np.maximum(path, max(LEAST_SHARE * usual, FEWEST))


def _carried(factors: Array) -> Array:
    """With the quarter before in place of one of which too little is known: a day is only known whole after a day."""
    for part in range(1, QUARTERS):
        if np.isnan(factors[part]).any():
            factors[part] = factors[part - 1]
    return factors


def _day_quantiles(ratios: Array, weight: Array) -> Array:
    order = np.argsort(ratios)
    share = np.cumsum(weight[order])
    places = np.searchsorted(share, np.array(LEVELS) * share[-1])
    found: Array = ratios[order][np.minimum(places, len(ratios) - 1)]
    return found
