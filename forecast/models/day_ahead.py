"""Forecast of the day ahead, updated hourly: weighted simple paths, their median, boosted trees, and quantiles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forecast.models.conformal import DAY_SPREAD_DAYS, DaySpread
from forecast.models.features import LEARNT_DAYS, Profiles, feature_scale, first_origin
from forecast.models.learners import DAY, NAME, Trees, fit_trees
from forecast.models.simple_methods import DAY_METHODS, DayMethodInput, SlowSeason, paths
from forecast.models.smoothing import Weights
from forecast.series.binned import Array
from forecast.series.observed import HOUR, Integers, ObservedBins

BLOCKS = 4
"""Number of parts of the day with weights of their own."""

LEADS_LEARNT = 12
"""Leads of each hourly path, drawn at random, that the trees learn from: neighbours are alike."""

MEDIAN_SHARE, WEIGHTED_SHARE, TREES_SHARE = 0.25, 0.25, 0.5
MEMORY_DAYS = 14
BOLDEST = 5.0
FAMILIES = tuple(family for family, _ in DAY_METHODS)


class DayForecast(NamedTuple):
    """Forecast made at an origin: paths (lead by method) and the weights used (block by method)."""

    origin: int
    said: Array
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
        self._said = list(paths(self._asked(self._origins)))
        self._replay(now)
        self._grow()
        self._now: tuple[Array, Array | None] | None = None

    def _asked(self, origins: Integers) -> DayMethodInput:
        return DayMethodInput(self._past, self._quick, self._steady, self._slow, origins)

    def _replay(self, now: int) -> None:
        """Replay the last days in order."""
        begin = now - DAY_SPREAD_DAYS * self._past.per_day
        for origin, said in zip(self._origins, self._said, strict=True):
            if origin >= begin:
                self._made(int(origin), said, None)
        self._spread.learn()

    def step(self) -> None:
        """Follow a new bin."""
        self._now, now = None, len(self._past)
        if now - self._origins[-1] < self._every:
            return
        said = paths(self._asked(np.array([now])))[0]
        self._origins = np.append(self._origins, now)
        self._said.append(said)
        self._made(now, said, self._trees)
        self._spread.learn()

    def refit(self) -> None:
        """Refit the trees on the last weeks."""
        self._now = None
        old = int((self._origins <= len(self._past) - LEARNT_DAYS * self._past.per_day).sum())
        self._origins, self._said = self._origins[old:], self._said[old:]
        self._grow()

    def path(self) -> tuple[Array, Array | None]:
        """Return the amounts by lead, and their quantiles (LEVELS by lead) once errors are known."""
        if self._now is None:
            now = len(self._past)
            said = self._said[-1] if now == self._origins[-1] else paths(self._asked(np.array([now])))[0]
            path = self._combined(now, said, self._trees)
            self._now = path, self._spread.quantiles(path)
        return self._now

    def _made(self, origin: int, said: Array, trees: Trees | None) -> None:
        self._learn(origin)
        self._waiting.append(DayForecast(origin, said, np.stack([one.now for one in self._weights])))
        self._spread.note(origin, self._combined(origin, said, trees))

    def _learn(self, now: int) -> None:
        """Update the weights from blocks of earlier paths whose last bin has arrived."""
        day = self._past.per_day
        for block, weights in enumerate(self._weights):
            leads = slice(-(-block * day // BLOCKS), -(-(block + 1) * day // BLOCKS))
            for made in self._waiting:
                if made.origin + leads.stop > now:
                    break
                if made.origin >= self._learnt[block]:
                    self._learnt[block] = made.origin + 1
                    self._weigh(weights, made, block, leads)
        self._waiting = [made for made in self._waiting if made.origin + day > now]

    def _weigh(self, weights: Weights, made: DayForecast, block: int, leads: slice) -> None:
        target = slice(made.origin + leads.start, made.origin + leads.stop)
        seen = self._past.observed_mask[target]
        if seen.any():
            usual = max(float(self._past.values[: made.origin].mean()), 1e-12)
            actual = self._past.values[target][seen]
            weights.update(made.said[leads][seen], made.weights[block], actual, usual)

    def _weighted(self, said: Array) -> Array:
        """Return the weighted path by lead."""
        day = len(said)
        block = np.arange(day) * BLOCKS // day
        weights = np.stack([one.now for one in self._weights])
        path: Array = (said * weights[block]).sum(axis=1)
        return path

    def _combined(self, origin: int, said: Array, trees: Trees | None) -> Array:
        median, weighted = np.median(said, axis=1), self._weighted(said)
        if trees is None:
            return 0.5 * (median + weighted)
        leads = np.arange(len(said))
        scale = feature_scale(self._past, np.full(len(said), origin), median)
        origins = np.full(len(said), origin)
        grown = np.maximum(median + scale * trees.predict(self._columns(origins, leads, said, median)), 0.0)
        return MEDIAN_SHARE * median + WEIGHTED_SHARE * weighted + TREES_SHARE * grown

    def _columns(self, origins: Integers, leads: Integers, said: Array, median: Array) -> Array:
        """Return the inputs of the trees: methods relative to the median, levels, lead and time."""
        past, scale = self._past, feature_scale(self._past, origins, median)
        daily, hours = past.mean(origins, past.per_day), past.mean(origins, 3 * past.bins(HOUR))
        weekly = past.mean(origins, np.minimum(origins, past.per_week))
        targets = origins + leads
        slots = past.slots(int(targets.max()) + 1)[targets]
        levels = np.column_stack([median, daily, hours, weekly]) / scale[:, None]
        clock = np.column_stack([leads + 1, slots % past.per_day, slots // past.per_day])
        return np.column_stack([(said - median[:, None]) / scale[:, None], levels, clock])

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
        said = np.stack([self._said[row][lead] for row, lead in zip(rows, leads, strict=True)])
        median = np.median(said, axis=1)
        scale = feature_scale(self._past, self._origins[rows], median)
        aim = (past.values[targets] - median) / scale
        self._trees = fit_trees(self._columns(self._origins[rows], leads, said, median), aim, scale, DAY)

    def shares(self) -> dict[str, float]:
        """Return the weight of each family over the day, with the median and the trees apart; the sum is 1."""
        trees = TREES_SHARE if self._trees is not None else 0.0
        rest = (1 - trees) / 2
        shares = {NAME: trees} if trees else {}
        shares["median of the methods"] = rest
        mean = np.mean([one.now for one in self._weights], axis=0)
        for family, weight in zip(FAMILIES, mean, strict=True):
            shares[family] = shares.get(family, 0.0) + rest * float(weight)
        return shares
