"""Forecast of the day ahead, updated hourly: weighted simple paths, their median, and quantiles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forecast.models.conformal import DAY_SPREAD_DAYS, DaySpread
from forecast.models.features import Profiles, first_origin
from forecast.models.simple_methods import DAY_METHODS, DayMethodInput, SlowSeason, paths
from forecast.models.smoothing import Weights
from forecast.series.binned import Array, Integers
from forecast.series.observed import ObservedBins

BLOCKS = 4
"""Number of parts of the day with weights of their own."""

MEMORY_DAYS = 14
BOLDEST = 5.0


class DayForecast(NamedTuple):
    """Forecast made at an origin: paths (lead by method) and the weights used (block by method)."""

    origin: int
    forecasts: Array
    weights: Array


class DayAhead:
    """Forecaster of the day after the last observed bin. Call `step` after each bin."""

    def __init__(self, past: ObservedBins, quick: Profiles, steady: Profiles) -> None:
        self._past, self._quick, self._steady, self._slow = past, quick, steady, SlowSeason(past)
        self._every = max(1, past.per_day // 24)
        memory = MEMORY_DAYS * past.per_day / self._every
        self._weights = [Weights(len(DAY_METHODS), memory=memory, boldest=BOLDEST) for _ in range(BLOCKS)]
        self._waiting: list[DayForecast] = []
        self._learnt = [0] * BLOCKS
        self._spread = DaySpread(past, self._every)
        now = len(past)
        first = max(first_origin(past), now - DAY_SPREAD_DAYS * past.per_day)
        origins = np.arange(now - (now - first) // self._every * self._every, now + 1, self._every)
        for origin, forecasts in zip(origins.tolist(), paths(self._asked(origins)), strict=True):
            self._made(origin, forecasts)
        self._origin, self._forecasts = now, forecasts
        self._spread.learn()
        self._now: tuple[Array, Array | None] | None = None

    def _asked(self, origins: Integers) -> DayMethodInput:
        return DayMethodInput(self._past, self._quick, self._steady, self._slow, origins)

    def step(self) -> None:
        """Follow a new bin."""
        self._now, now = None, len(self._past)
        if now - self._origin < self._every:
            return
        self._origin, self._forecasts = now, paths(self._asked(np.array([now])))[0]
        self._made(now, self._forecasts)
        self._spread.learn()

    def path(self) -> tuple[Array, Array | None]:
        """Return the amounts by lead, and their quantiles (LEVELS by lead) once errors are known."""
        if self._now is None:
            now = len(self._past)
            forecasts = self._forecasts if now == self._origin else paths(self._asked(np.array([now])))[0]
            path = self._combined(forecasts)
            self._now = path, self._spread.quantiles(path)
        return self._now

    def _made(self, origin: int, forecasts: Array) -> None:
        self._learn(origin)
        self._waiting.append(DayForecast(origin, forecasts, np.stack([one.now for one in self._weights])))
        self._spread.note(origin, self._combined(forecasts))

    def _learn(self, now: int) -> None:
        """Update the weights from blocks of earlier paths whose last bin has arrived."""
        day = self._past.per_day
        for block, weights in enumerate(self._weights):
            leads = slice(-(-block * day // BLOCKS), -(-(block + 1) * day // BLOCKS))
            for issued in self._waiting:
                if issued.origin + leads.stop > now:
                    break
                if issued.origin >= self._learnt[block]:
                    self._learnt[block] = issued.origin + 1
                    self._weigh(weights, issued, block, leads)
        self._waiting = [issued for issued in self._waiting if issued.origin + day > now]

    def _weigh(self, weights: Weights, issued: DayForecast, block: int, leads: slice) -> None:
        target = slice(issued.origin + leads.start, issued.origin + leads.stop)
        seen = self._past.observed_mask[target]
        if seen.any():
            usual = max(float(self._past.values[: issued.origin].mean()), 1e-12)
            actual = self._past.values[target][seen]
            weights.update(issued.forecasts[leads][seen], issued.weights[block], actual, usual)

    def _weighted(self, forecasts: Array) -> Array:
        """Return the weighted path by lead."""
        day = len(forecasts)
        block = np.arange(day) * BLOCKS // day
        weights = np.stack([one.now for one in self._weights])
        path: Array = (forecasts * weights[block]).sum(axis=1)
        return path

    def _combined(self, forecasts: Array) -> Array:
        return 0.5 * (np.median(forecasts, axis=1) + self._weighted(forecasts))
