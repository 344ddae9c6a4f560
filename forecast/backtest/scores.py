"""Scores of a backtest: WAPE, pinball loss and coverage of each method at each horizon, with bootstrap intervals.

Sums are kept by origin, so that the bootstrap draws whole days: neighbouring errors are no separate evidence. Only
observed bins are scored. A ratio to the naive method uses only bins that both methods forecast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from forecast.backtest.walk import BacktestRun, MethodForecasts, select_naive
from forecast.series.binned import Array, divide

QUANTILE = 0.95
DRAWS = 1000
SEED = 20_260_101
INTERVAL = (0.025, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreSums:
    """Sums by origin: absolute errors, amounts, pinball losses, covered targets, bounded targets, all targets.

    Bounded targets have a 95 % quantile; covered targets are at most at it. `mean` is the amount per bin in the test
    window."""

    errors: Array
    amounts: Array
    losses: Array
    covered: Array
    bounded: Array
    targets: Array
    mean: float


def sums(actual: Array, middle: Array, upper: Array, mean: float) -> ScoreSums:
    """Return the sums of amounts, medians and 95 % quantiles, each origin by lead. NaN is not counted."""
    forecast = np.isfinite(actual) & np.isfinite(middle)
    bounded = forecast & np.isfinite(upper)
    beyond = np.where(bounded, actual - np.where(bounded, upper, 0.0), 0.0)
    losses = np.maximum(QUANTILE * beyond, (QUANTILE - 1) * beyond)
    return ScoreSums(
        errors=np.where(forecast, np.abs(actual - middle), 0.0).sum(axis=1),
        amounts=np.where(forecast, actual, 0.0).sum(axis=1),
        losses=np.where(bounded, losses, 0.0).sum(axis=1),
        covered=(bounded & (beyond <= 0)).sum(axis=1).astype(np.float64),
        bounded=bounded.sum(axis=1).astype(np.float64),
        targets=forecast.sum(axis=1).astype(np.float64),
        mean=mean,
    )


Measure = Callable[[ScoreSums], tuple[Array, Array]]
"""Function that returns the numerators and denominators of a score."""


MEASURES: dict[str, Measure] = {
    "wape": lambda score_sums: (score_sums.errors, score_sums.amounts),
    "pinball": lambda score_sums: (100.0 * score_sums.losses, score_sums.bounded * score_sums.mean),
    "coverage": lambda score_sums: (score_sums.covered, score_sums.bounded),
}
"""Scores as a ratio of sums. `pinball` is the mean loss of the 95 % quantile in % of the mean amount, `coverage` the
share of amounts at or below that quantile."""

COMPARED = ("wape", "pinball")
"""Measures that also have a ratio to the naive method, under the name with RATIO appended."""

RATIO = "_ratio"


def compute_score(score_sums: ScoreSums, measure: Measure) -> float | None:
    """Return a score, or None if nothing was counted."""
    above, below = (float(part.sum()) for part in measure(score_sums))
    return above / below if below > 0 else None


def bootstrap_scores(score_sums: ScoreSums, measure: Measure, block: int, draws: int = DRAWS) -> Array:
    """Return the scores of `draws` bootstrap series.

    A series consists of blocks of `block` origins (a day of them) with random starts. The first origin follows the last
    (circular blocks: Politis and Romano 1992), otherwise the ends would count less. Empty with fewer than two blocks,
    which show no variation between days. Methods with the same origins get the same draws, so that draws can be
    divided."""
    above, below = measure(score_sums)
    count = len(above)
    if block < 1 or count < 2 * block:
        return np.empty(0)
    draw = np.random.default_rng(SEED)
    firsts = draw.integers(0, count, (draws, -(-count // block)))
    tops, bottoms = (_blocks(part, block)[firsts].sum(axis=1) for part in (above, below))
    return divide(tops, bottoms)


def _blocks(values: Array, block: int) -> Array:
    total = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[: block - 1]]))])
    sums_of_blocks: Array = total[block:] - total[:-block]
    return sums_of_blocks


def interval(draws: Array) -> tuple[float, float] | None:
    """Return the 95 % interval of the draws, or None without draws."""
    known = draws[np.isfinite(draws)]
    if not len(known):
        return None
    low, high = np.quantile(known, INTERVAL)
    return float(low), float(high)


def ratio(value: float | None, naive: float | None) -> float | None:
    """Return the ratio; below 1 is better than naive. None if a value is unknown or the naive error is 0."""
    return None if value is None or not naive else value / naive


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """Scores of one method at one horizon: `values` by measure, ratios against the method `naive`.

    A value is None if nothing was counted, or the naive method was not tested or is never wrong. `draws` are block
    bootstrap draws of whole days, empty with fewer than two days.
    """

    method: str
    horizon_seconds: float
    naive: str
    targets: int
    values: dict[str, float | None]
    draws: dict[str, Array]

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return the 95 % interval of a measure."""
        return interval(self.draws[name])


def score_walk(walk: BacktestRun) -> tuple[Scored, ...]:
    """Return all scores of a backtest, in its order."""
    known = {(forecasts.horizon_seconds, forecasts.method): forecasts for forecasts in walk.forecasts}
    scores = []
    for forecast in walk.forecasts:
        naive = select_naive(forecast)
        scores.append(_scored(walk, forecast, naive, known.get((forecast.horizon_seconds, naive))))
    return tuple(scores)


def _scored(walk: BacktestRun, forecasts: MethodForecasts, name: str, naive: MethodForecasts | None) -> Scored:
    block = walk.window.day_of_origins(forecasts.leads)
    own = _sums(walk, forecasts)
    values = {key: compute_score(own, measure) for key, measure in MEASURES.items()}
    draws = {key: bootstrap_scores(own, measure, block) for key, measure in MEASURES.items()}
    for key in COMPARED:
        values[key + RATIO], draws[key + RATIO] = None, np.empty(0)
        if naive is not None:
            ours, theirs = _sums(walk, forecasts, naive), _sums(walk, naive, forecasts)
            values[key + RATIO] = ratio(compute_score(ours, MEASURES[key]), compute_score(theirs, MEASURES[key]))
            draws[key + RATIO] = divide(
                bootstrap_scores(ours, MEASURES[key], block), bootstrap_scores(theirs, MEASURES[key], block)
            )
    return Scored(
        method=forecasts.method,
        horizon_seconds=forecasts.horizon_seconds,
        naive=name,
        targets=int(own.targets.sum()),
        values=values,
        draws=draws,
    )


def _sums(walk: BacktestRun, forecasts: MethodForecasts, method_forecasts: MethodForecasts | None = None) -> ScoreSums:
    """Return the sums over observed bins. With `other`, use only bins that it forecast too."""
    values = walk.window.series.values
    tested = values[walk.window.test :]
    mean = float(np.nanmean(tested)) if np.isfinite(tested).any() else 0.0
    middle, upper = forecasts.quantiles[1], forecasts.quantiles[2]
    if method_forecasts is not None:
        middle = np.where(np.isfinite(method_forecasts.quantiles[1]), middle, np.nan)
        upper = np.where(np.isfinite(method_forecasts.quantiles[2]), upper, np.nan)
    return sums(values[forecasts.targets], middle, upper, mean)
