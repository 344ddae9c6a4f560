"""The scores of a backtest: every method at every horizon, beside the naive one of that horizon.

Owns which forecasts are compared: those of bins that were seen, and for a ratio those that both methods made. What a score
is, is `forecast.backtest.scores`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecast.backtest.scores import (
    Measure,
    ScoreSums,
    bootstrap_scores,
    compute_score,
    coverage,
    interval,
    pinball,
    ratio,
    sums,
    wape,
)
from forecast.backtest.walk import BacktestRun, MethodForecasts, select_naive
from forecast.series.binned import Array

MEASURES: dict[str, Measure] = {"wape": wape, "pinball": pinball, "coverage": coverage}
COMPARED = ("wape", "pinball")
"""Those that are told as ratios by the naive method too; a name with RATIO after it."""

RATIO = "_ratio"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """One method at one horizon: `values` by the name of the measure, ratios by the method `naive`.

    A value is None where nothing could be counted, or the naive method was not tested or is never wrong. `draws` are those
    of a block bootstrap of whole days, empty where there are fewer than two.
    """

    method: str
    horizon_seconds: float
    naive: str
    targets: int
    values: dict[str, float | None]
    draws: dict[str, Array]

    def interval(self, name: str) -> tuple[float, float] | None:
        """Where 95 % of the draws lie."""
        return interval(self.draws[name])


def score_walk(walk: BacktestRun) -> tuple[Scored, ...]:
    """All scores of a walk, in its order."""
    known = {(one.horizon_seconds, one.method): one for one in walk.forecasts}
    found = []
    for one in walk.forecasts:
        naive = select_naive(one)
        found.append(_scored(walk, one, naive, known.get((one.horizon_seconds, naive))))
    return tuple(found)


def _scored(walk: BacktestRun, one: MethodForecasts, name: str, naive: MethodForecasts | None) -> Scored:
    block = walk.window.day_of_origins(one.leads)
    own = _sums(walk, one)
    values = {key: compute_score(own, measure) for key, measure in MEASURES.items()}
    draws = {key: bootstrap_scores(own, measure, block) for key, measure in MEASURES.items()}
    for key in COMPARED:
        values[key + RATIO], draws[key + RATIO] = None, np.empty(0)
        if naive is not None:
            ours, theirs = _sums(walk, one, naive), _sums(walk, naive, one)
            values[key + RATIO] = ratio(compute_score(ours, MEASURES[key]), compute_score(theirs, MEASURES[key]))
            draws[key + RATIO] = _divided(
                bootstrap_scores(ours, MEASURES[key], block), bootstrap_scores(theirs, MEASURES[key], block)
            )
    return Scored(
        method=one.method,
        horizon_seconds=one.horizon_seconds,
        naive=name,
        targets=int(own.targets.sum()),
        values=values,
        draws=draws,
    )


def _sums(walk: BacktestRun, one: MethodForecasts, other: MethodForecasts | None = None) -> ScoreSums:
    """Of what was seen, and only of what the other said too."""
    values = walk.window.series.values
    tested = values[walk.window.test :]
    mean = float(np.nanmean(tested)) if np.isfinite(tested).any() else 0.0
    middle, upper = one.quantiles[1], one.quantiles[2]
    if other is not None:
        middle = np.where(np.isfinite(other.quantiles[1]), middle, np.nan)
        upper = np.where(np.isfinite(other.quantiles[2]), upper, np.nan)
    return sums(values[one.targets], middle, upper, mean)


def _divided(above: Array, below: Array) -> Array:
    ratios: Array = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
    return ratios
