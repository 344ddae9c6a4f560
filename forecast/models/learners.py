"""Learning methods on the signals of `forecast.models.features`: robust linear regression and boosted trees.

The regression is refitted daily and used for the following day. It uses weighted least squares, which approach least
absolute errors, with forgetting. It works on two scales: plain, and square roots, where the noise of counts is even.

Trees cover what linear methods cannot (other slopes at night, at weekends, after a jump). They are few and small, on
absolute errors, averaged over seeds. LightGBM needs the system's OpenMP library. Without it, forecasts run without
trees, and `missing_library` names the package to install.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any

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


NAME = "boosted trees"
SEEDS = 2
LEAST_ROWS = 200
"""Minimum rows to fit trees: with fewer a tree has nothing to split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """Settings of the trees: trees per seed, leaves per tree, minimum rows per leaf."""

    trees: int
    leaves: int
    rows: int


SHORT = TreeSettings(trees=100, leaves=15, rows=40)
DAY = TreeSettings(trees=100, leaves=15, rows=30)

COMMON: dict[str, Any] = {
    "objective": "l1",
    "learning_rate": 0.07,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "feature_fraction": 0.7,
    "max_bin": 31,
    "num_threads": 1,
    "verbosity": -1,
    "deterministic": True,
    "force_row_wise": True,
}


@cache
def _lightgbm() -> ModuleType | str:
    """Return LightGBM, or the reason why it cannot be loaded."""
    try:
        import lightgbm
    except (ImportError, OSError) as error:
        return str(error)
    return lightgbm


def missing_library() -> str | None:
    """Return why trees are unavailable on this machine, or None."""
    found = _lightgbm()
    if isinstance(found, str):
        return f"boosted trees are left out, LightGBM cannot be loaded ({found}); install libgomp1"
    return None


class Trees:
    """Fitted trees; `predict` returns the mean over the seeds."""

    def __init__(self, boosters: tuple[Any, ...]) -> None:
        self._boosters = boosters

    def predict(self, signals: Array) -> Array:
        """Return the prediction of each row, in the unit of the targets."""
        forecasts = [booster.predict(signals, num_threads=1) for booster in self._boosters]
        mean: Array = np.mean(forecasts, axis=0)
        return mean


def fit_trees(signals: Array, aim: Array, weight: Array, settings: TreeSettings) -> Trees | None:
    """Fit trees to rows of signals (NaN: unknown). Return None with too few rows or without LightGBM."""
    lightgbm = _lightgbm()
    if isinstance(lightgbm, str) or len(aim) < LEAST_ROWS:
        return None
    shape = {"num_leaves": settings.leaves, "min_data_in_leaf": settings.rows}
    data = lightgbm.Dataset(signals, aim, weight=weight / weight.mean(), params=COMMON | shape, free_raw_data=False)
    seeds = ({"seed": seed} for seed in range(SEEDS))
    return Trees(tuple(lightgbm.train(COMMON | shape | seed, data, settings.trees) for seed in seeds))
