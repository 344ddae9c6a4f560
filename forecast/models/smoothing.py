"""Online smoothers (exponential level, daily Holt-Winters) and online weights of several forecasts.

Smoothers have fixed constants. Several run in parallel, and the weights select the suitable ones. No method is dropped
for good, and each learning rate adapts itself. The weights follow Wintenberger 2017, "Optimal learning with Bernstein
online aggregation", with the linearised loss of section 4 and forgetting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forecast.series.binned import Array
from forecast.series.observed import ObservedBins


class Seasonal(NamedTuple):
    """Rates of an additive Holt-Winters without trend, per bin: level and season."""

    level: float
    season: float


LEVELS = (0.3, 0.6)
SEASONALS = (Seasonal(0.4, 0.1), Seasonal(0.7, 0.2))
SLOW = Seasonal(0.05, 0.2)
"""Rates for a day ahead: a fast level would carry the noise of a bin through the day."""


class OnlineHoltWinters:
    """Level and daily season after the bins so far, started from the first day (Winters 1960, additive, no trend)."""

    def __init__(self, past: ObservedBins, how: Seasonal) -> None:
        first = past.values[: past.per_day]
        self._how = how
        self._level = float(first.mean())
        self._season = first - self._level

    def follow(self, bin_index: int, value: float) -> None:
        place, before = bin_index % len(self._season), self._level
        self._level += self._how.level * (value - self._season[place] - before)
        self._season[place] += self._how.season * (value - before - self._season[place])

    def forecast_bins(self, origin: int, leads: Array) -> Array:
        """Return the amounts of the bins `leads` (1 is the next) after the last bin, at least 0."""
        places = (origin + leads.astype(np.int64) - 1) % len(self._season)
        forecasts: Array = np.maximum(self._level + self._season[places], 0.0)
        return forecasts


class Smoothed:
    """Forecasts of each smoother by lead, at all origins from the end of the first day on."""

    def __init__(self, past: ObservedBins, leads: int) -> None:
        self._past, self.first = past, past.per_day
        self._leads = np.arange(1, leads + 1, dtype=np.float64)
        self._levels = np.full(len(LEVELS), past.values[0])
        self._seasonals = tuple(OnlineHoltWinters(past, how) for how in SEASONALS)
        self._next = 0
        self._forecasts = np.empty((0, leads, len(LEVELS) + len(SEASONALS)))
        self._count = 0
        self.follow()

    def follow(self) -> None:
        """Follow new bins and store the forecasts at each origin."""
        values, rates = self._past.values, np.array(LEVELS)
        while self._next < len(values):
            value = float(values[self._next])
            self._levels += rates * (value - self._levels)
            if self._next >= self.first:
                for one in self._seasonals:
                    one.follow(self._next, value)
            self._next += 1
            if self._next >= self.first:
                self._store_forecasts()

    def _store_forecasts(self) -> None:
        if self._count == len(self._forecasts):
            self._forecasts = np.concatenate(
                [self._forecasts, np.empty((max(1024, self._count), *self._forecasts.shape[1:]))]
            )
        row = self._forecasts[self._count]
        row[:, : len(LEVELS)] = self._levels
        for column, one in enumerate(self._seasonals, start=len(LEVELS)):
            row[:, column] = one.forecast_bins(self._next, self._leads)
        self._count += 1

    def forget(self, before: int) -> None:
        """Drop the forecasts at earlier origins."""
        old = min(max(before - self.first, 0), self._count)
        self._forecasts = self._forecasts[old : self._count].copy()
        self.first, self._count = self.first + old, self._count - old

    def features_at(self, first: int, last: int, lead: int) -> Array:
        """Return the forecasts of origins [first, last] by smoother, for one lead."""
        return self._forecasts[first - self.first : last - self.first + 1, lead - 1]


class Weights:
    """Weights of `count` forecasters for the quantile `level`; the sum is 1, the start even.

    `memory` is the half-life of a loss in updates. `boldest` bounds the learning rate.
    """

    def __init__(self, count: int, *, memory: float, level: float = 0.5, boldest: float = 50.0) -> None:
        self._regret, self._variance = np.zeros(count), np.full(count, 1e-8)
        self._forget, self._level, self._boldest = 0.5 ** (1 / memory), level, boldest
        self.now: Array = np.full(count, 1 / count)

    def update(self, forecasts: Array, used: Array, actual: Array, scale: float) -> None:
        """Update from forecasts (targets by forecaster), actual amounts (by target) and the weights `used` then.

        The loss is that of moving the combination towards a forecaster: slope of the pinball loss times distance. It is
        divided by `scale` (the usual amount per bin).
        """
        combined = forecasts @ used
        slope = np.where(actual < combined, 1 - self._level, -self._level)
        loss = (slope[:, None] * (forecasts - combined[:, None])).mean(axis=0) / scale
        self._regret = self._forget * self._regret - loss
        self._variance = self._forget * self._variance + loss * loss
        rate = np.minimum(np.sqrt(np.log(len(loss)) / self._variance), self._boldest)
        power = rate * self._regret
        weights = rate * np.exp(power - power.max())
        self.now = weights / weights.sum()
