"""Forecast of the day ahead, updated hourly: weighted simple paths, their median, boosted trees, and quantiles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forecast.models.conformal import DAY_SPREAD_DAYS, DaySpread
from forecast.models.features import LEARNT_DAYS, Profiles, feature_scale, first_origin
from forecast.models.learners import DAY, Trees, fit_trees
from forecast.models.simple_methods import DAY_METHODS, DayMethodInput, SlowSeason, paths
from forecast.models.smoothing import Weights
from forecast.series.binned import Array, Integers
from forecast.series.observed import HOUR, ObservedBins

BLOCKS = 4
"""Number of parts of the day with weights of their own."""

LEADS_LEARNT = 12
"""Leads of each hourly path, drawn at random, that the trees learn from: neighbours are alike."""

MEDIAN_SHARE, WEIGHTED_SHARE, TREES_SHARE = 0.25, 0.25, 0.5
MEMORY_DAYS = 14
BOLDEST = 5.0


class DayForecast(NamedTuple):
    """Forecast made at an origin: paths (lead by method) and the weights used (block by method)."""

    origin: int
    forecasts: Array
    weights: Array


class DayAhead:
    """Forecaster of the day after the last observed bin. Call `step` after each bin, `refit` after each day."""

    def __init__(self, past: ObservedBins, quick: Profiles, steady: Profiles) -> None:
        self._past, self._quick, self._steady, self._slow = past, quick, steady, SlowSeason(past)
        self._every = max(1, past.per_day // 24)
        memory = MEMORY_DAYS * past.per_day / self._every
        self._weights = [Weights(len(DAY_METHODS), memory=memory, boldest=BOLDEST) for _ in range(BLOCKS)]
        self._waiting: list[DayForecast] = []
        self._learnt = [0] * BLOCKS
        self._spread = DaySpread(past, self._every)
        self._trees: Trees | None = None
        now = len(past)
        first = now - (now - first_origin(past)) // self._every * self._every
        self._origins: Integers = np.arange(first, now + 1, self._every)
        self._forecasts = list(paths(self._asked(self._origins)))
        self._replay(now)
        self._grow()
        self._now: tuple[Array, Array | None] | None = None

    def _asked(self, origins: Integers) -> DayMethodInput:
        return DayMethodInput(self._past, self._quick, self._steady, self._slow, origins)

    def _replay(self, now: int) -> None:
        """Replay the last days in order."""
        begin = now - DAY_SPREAD_DAYS * self._past.per_day
        for origin, forecasts in zip(self._origins, self._forecasts, strict=True):
            if origin >= begin:
                self._made(int(origin), forecasts, None)
        self._spread.learn()

    def step(self) -> None:
        """Follow a new bin."""
        self._now, now = None, len(self._past)
        if now - self._origins[-1] < self._every:
            return
        forecasts = paths(self._asked(np.array([now])))[0]
        self._origins = np.append(self._origins, now)
        self._forecasts.append(forecasts)
        self._made(now, forecasts, self._trees)
        self._spread.learn()

    def refit(self) -> None:
        """Refit the trees on the last weeks."""
        self._now = None
        old = int((self._origins <= len(self._past) - LEARNT_DAYS * self._past.per_day).sum())
        self._origins, self._forecasts = self._origins[old:], self._forecasts[old:]
        self._grow()

    def path(self) -> tuple[Array, Array | None]:
        """Return the amounts by lead, and their quantiles (LEVELS by lead) once errors are known."""
        if self._now is None:
            now = len(self._past)
            forecasts = self._forecasts[-1] if now == self._origins[-1] else paths(self._asked(np.array([now])))[0]
            path = self._combined(now, forecasts, self._trees)
            self._now = path, self._spread.quantiles(path)
        return self._now

    def _made(self, origin: int, forecasts: Array, trees: Trees | None) -> None:
        self._learn(origin)
        self._waiting.append(DayForecast(origin, forecasts, np.stack([one.now for one in self._weights])))
        self._spread.note(origin, self._combined(origin, forecasts, trees))

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

    def _combined(self, origin: int, forecasts: Array, trees: Trees | None) -> Array:
        median, weighted = np.median(forecasts, axis=1), self._weighted(forecasts)
        if trees is None:
            return 0.5 * (median + weighted)
        leads, origins = np.arange(len(forecasts)), np.full(len(forecasts), origin)
        scale = feature_scale(self._past, origins, median)
        grown = np.maximum(median + scale * trees.predict(self._columns(origins, leads, forecasts, median)), 0.0)
        return MEDIAN_SHARE * median + WEIGHTED_SHARE * weighted + TREES_SHARE * grown

    def _columns(self, origins: Integers, leads: Integers, forecasts: Array, median: Array) -> Array:
        """Return the inputs of the trees: methods relative to the median, levels, lead and time."""
        past, scale = self._past, feature_scale(self._past, origins, median)
        daily, hours = past.mean(origins, past.per_day), past.mean(origins, 3 * past.bins(HOUR))
        weekly = past.mean(origins, np.minimum(origins, past.per_week))
        targets = origins + leads
        slots = past.slots(int(targets.max()) + 1)[targets]
        levels = np.column_stack([median, daily, hours, weekly]) / scale[:, None]
        clock = np.column_stack([leads + 1, slots % past.per_day, slots // past.per_day])
        return np.column_stack([(forecasts - median[:, None]) / scale[:, None], levels, clock])

    def _grow(self) -> None:
        past, day = self._past, self._past.per_day
        draw = np.random.default_rng(0)
        rows = np.repeat(np.arange(len(self._origins)), LEADS_LEARNT)
        leads = draw.integers(0, day, len(rows))
        targets = self._origins[rows] + leads
        known = targets < len(past)
        known[known] = past.observed_mask[targets[known]]
        if not known.any():
            self._trees = None
            return
        rows, leads, targets = rows[known], leads[known], targets[known]
        forecasts = np.stack([self._forecasts[row][lead] for row, lead in zip(rows, leads, strict=True)])
        median = np.median(forecasts, axis=1)
        scale = feature_scale(self._past, self._origins[rows], median)
        aim = (past.values[targets] - median) / scale
        self._trees = fit_trees(self._columns(self._origins[rows], leads, forecasts, median), aim, scale, DAY)
