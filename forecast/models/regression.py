"""Robust linear regression on the signals of `forecast.models.features`.

It is refitted daily and used for the following day. It uses weighted least squares, which approach least absolute
errors, with forgetting. It works on two scales: plain, and square roots, where the noise of counts is even.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from forecast.models.features import Features
from forecast.series.binned import Array
from forecast.series.observed import ObservedBins

FORGET_DAYS = 14.0
RIDGE = {"plain": 0.1, "root": 0.01}
ROUNDS = 2
"""Reweighting passes per day: the fit of the day before is a good start."""

NEAR = 0.2
"""Errors below this share of the median error get its weight: a perfect fit would have infinite weight."""


class Space(Enum):
    """Scale on which the regression is linear."""

    PLAIN = "plain"
    ROOT = "root"


class Regression:
    """Regression with the fits of all days so far. `predict` uses the newest fit before each origin."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._ends = np.empty(0, dtype=np.int64)
        self._fits = np.empty((0, 0))
        self._products = np.empty((0, 0))
        self._moments = np.empty(0)
        self._used = 0

    def fit(self, past: ObservedBins, features: Features, lead: int, end: int) -> None:
        """Learn from targets since the last fit and before bin `end`. Past days halve in weight every FORGET_DAYS."""
        targets = features.origins + lead - 1
        rows = np.flatnonzero((targets >= self._used) & (targets < end))
        rows = rows[past.observed_mask[targets[rows]]]
        signals, base = self._design(features)
        width = signals.shape[1]
        if not len(self._moments):
            self._products, self._moments = np.zeros((width, width)), np.zeros(width)
            self._fits = np.empty((0, width))
        fit = self._fits[-1] if len(self._fits) else np.zeros(width)
        if len(rows):
            aim = self._space_of(past.values[targets[rows]] / features.scale[rows]) - base[rows]
            fit = self._learn(signals[rows], aim, fit, (end - self._used) / past.per_day)
        self._used = end
        self._ends = np.append(self._ends, end)
        self._fits = np.concatenate([self._fits, fit[None]])

    def _learn(self, signals: Array, aim: Array, fit: Array, days: float) -> Array:
        width, forget = signals.shape[1], 0.5 ** (days / FORGET_DAYS)
        for _ in range(ROUNDS):
            error = np.abs(aim - signals @ fit)
            usual = float(np.median(error)) + 1e-9
            weight = usual / np.maximum(error, NEAR * usual) if fit.any() else np.ones(len(aim))
            weighed = signals * weight[:, None]
            products = forget * self._products + signals.T @ weighed
            moments = forget * self._moments + weighed.T @ aim
            ridge = RIDGE[self._space.value] * np.diag(np.diag(products)) + 1e-3 * np.eye(width)
            fit = np.linalg.solve(products + ridge, moments)
        self._products, self._moments = products, moments
        return fit

    def predict(self, features: Features) -> Array:
        """Return the forecast at each origin (amount per bin, at least 0). Without an earlier fit return the level."""
        signals, base = self._design(features)
        which = np.searchsorted(self._ends, features.origins, side="right") - 1
        fits = self._fits[np.maximum(which, 0)] * (which >= 0)[:, None]
        forecasts = base + (signals * fits).sum(axis=1)
        shares: Array = np.maximum(forecasts, 0.0) ** (2 if self._space is Space.ROOT else 1)
        return shares * features.scale

    def _space_of(self, shares: Array) -> Array:
        return np.sqrt(np.maximum(shares, 0.0)) if self._space is Space.ROOT else shares

    def _design(self, features: Features) -> tuple[Array, Array]:
        """Return the signals with a constant, and the base of the fit. Unknown signals count as zero."""
        level, signals = features.level / features.scale, np.nan_to_num(features.signals)
        base = self._space_of(level)
        if self._space is Space.ROOT:
            signals = self._space_of(signals + level[:, None]) - base[:, None]
        return np.column_stack([signals, np.full(len(signals), 0.1)]), base
