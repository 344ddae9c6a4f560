"""Online conformal prediction: records of residuals and the quantiles that follow, for single leads and for a day.

No distribution is assumed (Vovk, Gammerman, Shafer 2005). A quantile of one lead is the forecast plus that quantile of
its past residuals, on several scales and over two windows. The scales are the level and its recent and usual roughness.
Each combination is weighted by its pinball loss (Gibbs & Candes 2021: why the weights must adapt online).

Residuals of a day are alike, because a surge affects them all. So `DaySpread` uses two weeks of days, the newer with
more weight, by quarter of the day and on two scales. Upper quantiles use the wider scale.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from forecast.models.smoothing import Weights
from forecast.series.binned import Array
from forecast.series.observed import FEWEST, HOUR, ObservedBins

BIN_SPREAD_DAYS = (2, 7)
"""Windows of residuals in days."""

LEAST_RESIDUALS = 20
"""Minimum number of residuals: with fewer, the highest is no 95 % quantile."""

LEVELS = (0.05, 0.5, 0.95, 0.99)
UPPER = 2
"""Index in LEVELS of the quantile that weighs the windows."""

LEAST_SHARE = 0.05
"""Minimum level for a spread, as a share of the week's mean: residuals of no traffic carry no information."""

FURTHEST, FURTHEST_DAYS = 3.0, 28
"""Upper bound of quantiles: FURTHEST times the highest amount in FURTHEST_DAYS.

After a break, the spread of a small forecast is applied to a large forecast. A spike would count twice, in the residual
and in the roughness."""

SCALES = 4
USUAL_DAYS = 7
KEPT_DAYS = USUAL_DAYS + 2
"""Days of the record: the longest window and some hours."""


class Quantiles(NamedTuple):
    """Quantiles of an amount per bin."""

    q05: float
    q50: float
    q95: float
    q99: float


class OnlineMean:
    """Exponentially weighted mean."""

    def __init__(self, half_life: float) -> None:
        self._keep, self._sum, self._weight, self._n = 0.5 ** (1 / half_life), 0.0, 0.0, 0

    def add(self, value: float) -> None:
        self._sum, self._weight = self._keep * self._sum + value, self._keep * self._weight + 1
        self._n += 1

    @property
    def value(self) -> float:
        """Return the mean, or NaN with fewer than five values."""
        return self._sum / self._weight if self._n >= 5 else math.nan


class Spread:
    """Residuals of the forecasts at one lead, by origin, from origin `first` on."""

    def __init__(self, past: ObservedBins, lead: int, first: int) -> None:
        self._past, self._lead, self._first = past, lead, first
        room = len(past) - first + past.per_day
        self._forecasts = np.full(room, np.nan)
        self._rough = np.full(room, np.nan)
        self._scale = np.full((room, SCALES), np.nan)
        self._ratio = np.full((room, SCALES), np.nan)
        self._offered: dict[int, tuple[Array, Array]] = {}
        self._recent = OnlineMean(max(2, past.bins(HOUR)))
        self._lately = OnlineMean(max(3, past.bins(6 * HOUR)))
        self._daily = OnlineMean(past.per_day)
        self._weights = Weights(
            SCALES * len(BIN_SPREAD_DAYS), memory=7 * past.per_day, level=LEVELS[UPPER], boldest=20.0
        )

    def note(self, origin: int, forecast: float) -> None:
        """Record a forecast and its scales."""
        if origin - self._first >= len(self._forecasts):
            self._grow()
        place = origin - self._first
        self._forecasts[place] = forecast
        self._scale[place] = self._scales(place, self._floored(forecast))

    def learn(self, origin: int, actual: float) -> None:
        """Record the actual amount for the forecast made at `origin`. Ignore NaN and origins without a forecast."""
        place = origin - self._first
        if place < 0 or not math.isfinite(actual) or not math.isfinite(self._forecasts[place]):
            self._offered.pop(origin, None)
            return
        error = actual - self._forecasts[place]
        self._rough[place] = abs(error) / math.sqrt(self._floored(self._forecasts[place]))
        for mean in (self._recent, self._lately, self._daily):
            mean.add(self._rough[place])
        self._ratio[place] = error / self._scale[place]
        offered = self._offered.pop(origin, None)
        if offered is not None:
            quantiles, used = offered
            self._weights.update(quantiles[None], used, np.array([actual]), self._usual)

    def quantiles(self, origin: int) -> Quantiles | None:
        """Return the quantiles of the forecast noted at `origin`. None with fewer than LEAST_RESIDUALS residuals."""
        place, windows = origin - self._first, []
        forecast, scale = float(self._forecasts[place]), self._scale[place]
        for days in BIN_SPREAD_DAYS:
            width = max(days * self._past.per_day, LEAST_RESIDUALS)
            ratios = self._ratio[max(0, place - self._lead - width + 1) : place - self._lead + 1]
            ratios = ratios[np.isfinite(ratios[:, 0])]
            if len(ratios) < LEAST_RESIDUALS:
                return None
            windows.append(_quantiles(ratios))
        offered = forecast + np.stack(windows) * scale[None, None, :]
        by_method = np.maximum(offered.transpose(0, 2, 1).reshape(-1, len(LEVELS)), 0.0)
        used = self._weights.now
        self._offered[origin] = by_method[:, UPPER], used
        mean = 0.5 * (used @ by_method + by_method.mean(axis=0))
        # Two days of residuals are too few for a 99 % quantile: use at least that of the longer window.
        mean[-1] = max(mean[-1], by_method[SCALES:, -1].mean())
        mean[1] = max(0.0, forecast + 0.5 * self._bias(place))
        mean[0] = min(mean[0], mean[1])
        bounded = np.minimum(np.maximum.accumulate(mean), highest_observation(self._past))
        return Quantiles(*(float(value) for value in bounded))

    def _bias(self, place: int) -> float:
        """Return the median residual of the last day, at the scale of the present forecast."""
        ratios = self._ratio[max(0, place - self._lead - self._past.per_day + 1) : place - self._lead + 1, 0]
        ratios = ratios[np.isfinite(ratios)]
        return float(np.median(ratios)) * float(self._scale[place, 0]) if len(ratios) >= LEAST_RESIDUALS else 0.0

    @property
    def _usual(self) -> float:
        week = min(len(self._past), self._past.per_week)
        return max(float(self._past.mean(np.array([len(self._past)]), week)[0]), 1e-12)

    def _floored(self, forecast: float) -> float:
        return max(forecast, LEAST_SHARE * self._usual, FEWEST)

    def _scales(self, place: int, level: float) -> Array:
        """Return the scales: the level alone, and its roughness of the last hour, last hours and this time of day.

        Each roughness is drawn towards that of the last day."""
        day, root = self._daily.value, math.sqrt(level)
        if not day > 0:
            # Either the roughness is unknown (such residuals are not used), or it is zero.
            return np.full(SCALES, root if day == 0 else math.nan)
        hour, hours = self._recent.value, self._lately.value
        usual = self._usual_roughness(place)
        usual = usual if usual > 0 else day
        kinds = (1.0, math.sqrt(hour * day), math.sqrt(hours * day), (usual * day * hour) ** (1 / 3))
        return np.array([root * max(kind, 1e-3 * day) for kind in kinds])

    def _usual_roughness(self, place: int) -> float:
        """Return the mean roughness within an hour of this time over the last days. NaN if unknown."""
        near, day = self._past.bins(HOUR), self._past.per_day
        spans = (self._rough[max(0, at - near) : at + near + 1] for at in range(place - day, -1, -day)[:USUAL_DAYS])
        means = [float(known.mean()) for span in spans if len(known := span[np.isfinite(span)])]
        return math.fsum(means) / len(means) if means else math.nan

    def _grow(self) -> None:
        """Extend the arrays by a day and drop rows before the longest window."""
        more = self._past.per_day
        old = max(0, len(self._forecasts) - KEPT_DAYS * more - 2 * LEAST_RESIDUALS)
        self._first += old
        self._forecasts = np.concatenate([self._forecasts[old:], np.full(more, np.nan)])
        self._rough = np.concatenate([self._rough[old:], np.full(more, np.nan)])
        self._scale = np.concatenate([self._scale[old:], np.full((more, SCALES), np.nan)])
        self._ratio = np.concatenate([self._ratio[old:], np.full((more, SCALES), np.nan)])


def highest_observation(past: ObservedBins) -> float:
    """Return the upper bound of all quantiles."""
    return FURTHEST * max(past.maximum(FURTHEST_DAYS * past.per_day), FEWEST)


def _quantiles(ratios: Array) -> Array:
    """Return LEVELS by scale. Above the middle take the next higher residual, without interpolation."""
    ordered, n = np.sort(ratios, axis=0), len(ratios)
    places = [math.floor(q * (n - 1)) if q < 0.5 else math.ceil(q * (n - 1)) for q in LEVELS]
    return ordered[places]


QUARTERS = 4
DAY_SPREAD_DAYS = 14
HALF_LIFE_DAYS = 3.0
LEADS_A_QUARTER = 12
"""Leads recorded per quarter. Neighbouring leads of a day are alike; more would only cost time."""

MIDDLE = 0.5


class DaySpread:
    """Residuals of day forecasts made every `step` bins."""

    def __init__(self, past: ObservedBins, step: int) -> None:
        self._past = past
        day = past.per_day
        self._leads = np.unique(np.linspace(0, day - 1, min(day, QUARTERS * LEADS_A_QUARTER)).astype(np.int64))
        self._made: deque[tuple[int, Array]] = deque(maxlen=max(1, DAY_SPREAD_DAYS * past.per_day // step))
        self._factors: Array | None = None

    def note(self, origin: int, path: Array) -> None:
        """Record a forecast of a day (amount per bin, by lead)."""
        self._made.append((origin, path[self._leads]))

    def learn(self) -> None:
        """Update the quantile factors from all residuals known by now."""
        past, day, leads = self._past, self._past.per_day, self._leads
        if not self._made:
            return
        forecasts = np.stack([path for _, path in self._made])
        targets = np.array([origin for origin, _ in self._made])[:, None] + leads[None, :]
        inside = np.minimum(targets, len(past) - 1)
        known = (targets < len(past)) & past.observed_mask[inside]
        weight = 0.5 ** ((len(past) - targets) / (HALF_LIFE_DAYS * day))
        error, level = past.values[inside] - forecasts, self._floored(forecasts)
        quarter = leads * QUARTERS // day
        factors = np.full((QUARTERS, 2, len(LEVELS)), np.nan)
        for part in range(QUARTERS):
            here = known & (quarter == part)[None, :]
            if here.sum() >= LEAST_RESIDUALS:
                for kind, scale in enumerate((np.sqrt(level), level)):
                    factors[part, kind] = _day_quantiles((error / scale)[here], weight[here])
        self._factors = None if np.isnan(factors[0]).any() else _carried(factors)

    def quantiles(self, path: Array) -> Array | None:
        """Return LEVELS by lead of the day ahead. None while too few errors are known."""
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
    """Replace a quarter with too little data by the quarter before: the last quarter is known only after a day."""
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
