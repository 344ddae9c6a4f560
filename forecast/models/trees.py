"""Boosted trees on the surroundings: what linear methods cannot say (another slope at night, at weekends, after a jump).

Owns the call of LightGBM and its settings: few, small trees on absolute errors, several seeds averaged. LightGBM needs the
system's OpenMP library; where that is missing forecasts go on without trees, and `missing` says what to install.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from forecast.series.binned import Array

NAME = "boosted trees"
SEEDS = 2
LEAST_ROWS = 200
"""With fewer there is nothing that a tree could split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """Trees a seed, leaves a tree, rows a leaf at least."""

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
    """LightGBM, or why it cannot be loaded."""
    try:
        import lightgbm
    except (ImportError, OSError) as error:
        return str(error)
    return lightgbm


def missing_library() -> str | None:
    """Why there are no trees on this machine; None where there are."""
    found = _lightgbm()
    if isinstance(found, str):
        return f"boosted trees are left out, LightGBM cannot be loaded ({found}); install libgomp1"
    return None


class Trees:
    """Trees that were fitted once; `predict` gives the mean of the seeds."""

    def __init__(self, boosters: tuple[Any, ...]) -> None:
        self._boosters = boosters

    def predict(self, signals: Array) -> Array:
        """What they say of each row, in the unit of what they learnt."""
        said = [booster.predict(signals, num_threads=1) for booster in self._boosters]
        mean: Array = np.mean(said, axis=0)
        return mean


def fit_trees(signals: Array, aim: Array, weight: Array, settings: TreeSettings) -> Trees | None:
    """Fits trees to rows of signals (NaN where one is not known); None where there are too few rows or no LightGBM."""
    lightgbm = _lightgbm()
    if isinstance(lightgbm, str) or len(aim) < LEAST_ROWS:
        return None
    shape = {"num_leaves": settings.leaves, "min_data_in_leaf": settings.rows}
    data = lightgbm.Dataset(signals, aim, weight=weight / weight.mean(), params=COMMON | shape, free_raw_data=False)
    seeds = ({"seed": seed} for seed in range(SEEDS))
    return Trees(tuple(lightgbm.train(COMMON | shape | seed, data, settings.trees) for seed in seeds))
