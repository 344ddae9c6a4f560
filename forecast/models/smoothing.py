"""Smoothers that carry a state from bin to bin: the exponentially smoothed level, and Holt-Winters with a daily season.

Owns their recursions and what each said at every origin. Their constants are fixed, not fitted: several of each stand side
by side and the combination finds out which one holds on this traffic.

Weights of several forecasts by how each did lately: Bernstein online aggregation.

Owns the recursion (Wintenberger 2017, "Optimal learning with Bernstein online aggregation", with the linearised loss of
section 4 and forgetting): no method has to be chosen, none is lost for good, and the learning rate of each sets itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forecast.series.binned import Array
from forecast.series.observed import ObservedBins


class Seasonal(NamedTuple):
    """Additive Holt-Winters without trend: how fast level and season follow (both per bin)."""

    level: float
    season: float


LEVELS = (0.3, 0.6)
SEASONALS = (Seasonal(0.4, 0.1), Seasonal(0.7, 0.2))
SLOW = Seasonal(0.05, 0.2)
"""For a day ahead: a level that follows every bin would carry its noise through the day."""


class OnlineHoltWinters:
    """Level and daily season after the bins so far; begins with the first day (Winters 1960, additive, no trend)."""

    def __init__(self, past: ObservedBins, how: Seasonal) -> None:
        first = past.values[: past.per_day]
        self._how = how
        self._level = float(first.mean())
        self._season = first - self._level

    def follow(self, bin_index: int, value: float) -> None:
        """The next bin came."""
        place, before = bin_index % len(self._season), self._level
        self._level += self._how.level * (value - self._season[place] - before)
        self._season[place] += self._how.season * (value - before - self._season[place])

    def forecast_bins(self, origin: int, leads: Array) -> Array:
        """What it says of the bins `leads` (1 is the next one) after the last one seen; never below 0."""
        places = (origin + leads.astype(np.int64) - 1) % len(self._season)
        said: Array = np.maximum(self._level + self._season[places], 0.0)
        return said


class Smoothed:
    """What each smoother said at the origins from the end of the first day on, by lead."""

    def __init__(self, past: ObservedBins, leads: int) -> None:
        self._past, self.first = past, past.per_day
        self._leads = np.arange(1, leads + 1, dtype=np.float64)
        self._levels = np.full(len(LEVELS), past.values[0])
        self._seasonals = tuple(OnlineHoltWinters(past, how) for how in SEASONALS)
        self._next = 0
        self._said = np.empty((0, leads, len(LEVELS) + len(SEASONALS)))
        self._count = 0
        self.follow()

    def follow(self) -> None:
        """Takes in the bins that came since, and says something at each origin up to now."""
        values, rates = self._past.values, np.array(LEVELS)
        while self._next < len(values):
            value = float(values[self._next])
            self._levels += rates * (value - self._levels)
            if self._next >= self.first:
                for one in self._seasonals:
                    one.follow(self._next, value)
            self._next += 1
            if self._next >= self.first:
                self._say()

    def _say(self) -> None:
        if self._count == len(self._said):
            self._said = np.concatenate([self._said, np.empty((max(1024, self._count), *self._said.shape[1:]))])
        row = self._said[self._count]
        row[:, : len(LEVELS)] = self._levels
        for column, one in enumerate(self._seasonals, start=len(LEVELS)):
            row[:, column] = one.forecast_bins(self._next, self._leads)
        self._count += 1

    def forget(self, before: int) -> None:
        """Drops what was said at origins before this one."""
        old = min(max(before - self.first, 0), self._count)
        self._said = self._said[old : self._count].copy()
        self.first, self._count = self.first + old, self._count - old

    def features_at(self, first: int, last: int, lead: int) -> Array:
        """Origins [first, last] by smoother, for one lead."""
        return self._said[first - self.first : last - self.first + 1, lead - 1]


class Weights:
    """Weights of `count` forecasters for the quantile `level`; they sum to 1 and begin even.

    `memory` is after how many updates a loss counts half, `boldest` bounds the learning rate.
    """

    def __init__(self, count: int, *, memory: float, level: float = 0.5, boldest: float = 50.0) -> None:
        self._regret, self._variance = np.zeros(count), np.full(count, 1e-8)
        self._forget, self._level, self._boldest = 0.5 ** (1 / memory), level, boldest
        self.now: Array = np.full(count, 1 / count)

    def update(self, said: Array, used: Array, actual: Array, scale: float) -> None:
        """Learns from what each said (targets by forecaster) and what came (by target) when the weights were `used`.

        The loss of a forecaster is that of moving the combination towards it: the slope of the pinball loss at the
        combination times the distance, by `scale` (the usual amount per bin).
        """
        combined = said @ used
        slope = np.where(actual < combined, 1 - self._level, -self._level)
        loss = (slope[:, None] * (said - combined[:, None])).mean(axis=0) / scale
        self._regret = self._forget * self._regret - loss
        self._variance = self._forget * self._variance + loss * loss
        rate = np.minimum(np.sqrt(np.log(len(loss)) / self._variance), self._boldest)
        power = rate * self._regret
        weights = rate * np.exp(power - power.max())
        self.now = weights / weights.sum()
