"""How good forecasts were: WAPE, pinball loss, coverage, each with an interval by drawing whole days of it again.

Owns the arithmetic. Sums are kept by origin, so that days can be drawn: neighbouring errors are no separate evidence.

The scores of a backtest: every method at every horizon, beside the naive one of that horizon.

Owns which forecasts are compared: those of bins that were seen, and for a ratio those that both methods made. What a score
is, is `forecast.backtest.scores`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from forecast.backtest.walk import BacktestRun, MethodForecasts, select_naive
from forecast.series.binned import Array

QUANTILE = 0.95
DRAWS = 1000
SEED = 20_260_101
INTERVAL = (0.025, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreSums:
    """By origin: absolute errors and amounts of what was forecast, and of what had a 95 % quantile the pinball loss, how
    many were at most at it, how many there were. `mean` is the amount per bin in the test window."""

    errors: Array
    amounts: Array
    losses: Array
    covered: Array
    bounded: Array
    targets: Array
    mean: float


def sums(actual: Array, middle: Array, upper: Array, mean: float) -> ScoreSums:
    """From amounts, medians and 95 % quantiles, origin by lead; NaN in any is not counted."""
    said = np.isfinite(actual) & np.isfinite(middle)
    bounded = said & np.isfinite(upper)
    beyond = np.where(bounded, actual - np.where(bounded, upper, 0.0), 0.0)
    losses = np.maximum(QUANTILE * beyond, (QUANTILE - 1) * beyond)
    return ScoreSums(
        errors=np.where(said, np.abs(actual - middle), 0.0).sum(axis=1),
        amounts=np.where(said, actual, 0.0).sum(axis=1),
        losses=np.where(bounded, losses, 0.0).sum(axis=1),
        covered=(bounded & (beyond <= 0)).sum(axis=1).astype(np.float64),
        bounded=bounded.sum(axis=1).astype(np.float64),
        targets=said.sum(axis=1).astype(np.float64),
        mean=mean,
    )


Measure = Callable[[ScoreSums], tuple[Array, Array]]
"""What is summed above and below the line."""


def wape(one: ScoreSums) -> tuple[Array, Array]:
    """The sum of absolute errors by that of amounts."""
    return one.errors, one.amounts


def pinball(one: ScoreSums) -> tuple[Array, Array]:
    """The mean pinball loss of the 95 % quantile, in % of the mean amount."""
    return 100.0 * one.losses, one.bounded * one.mean


def coverage(one: ScoreSums) -> tuple[Array, Array]:
    """The share of amounts that were at most their 95 % quantile."""
    return one.covered, one.bounded


def compute_score(one: ScoreSums, measure: Measure) -> float | None:
    """None where nothing could be counted."""
    above, below = (float(part.sum()) for part in measure(one))
    return above / below if below > 0 else None


def bootstrap_scores(one: ScoreSums, measure: Measure, block: int, draws: int = DRAWS) -> Array:
    """The score of `draws` series made of blocks of `block` origins (a day of them) that begin anywhere, the first origin
    following on the last (circular blocks: Politis and Romano 1992; else the ends would count for less); empty where
    there are fewer than two blocks, for then nothing is known of how days differ. Two methods with the same origins are
    drawn alike, so that their draws can be divided."""
    above, below = measure(one)
    count = len(above)
    if block < 1 or count < 2 * block:
        return np.empty(0)
    draw = np.random.default_rng(SEED)
    firsts = draw.integers(0, count, (draws, -(-count // block)))
    tops, bottoms = (_blocks(part, block)[firsts].sum(axis=1) for part in (above, below))
    ratios: Array = np.divide(tops, bottoms, out=np.full(draws, np.nan), where=bottoms > 0)
    return ratios


def _blocks(values: Array, block: int) -> Array:
    total = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[: block - 1]]))])
    sums_of_blocks: Array = total[block:] - total[:-block]
    return sums_of_blocks


def interval(draws: Array) -> tuple[float, float] | None:
    """Where 95 % of the draws lie; None where there are none."""
    known = draws[np.isfinite(draws)]
    if not len(known):
        return None
    low, high = np.quantile(known, INTERVAL)
    return float(low), float(high)


def ratio(value: float | None, naive: float | None) -> float | None:
    """Below 1 it is better; None where one of them is not known or the naive one is never wrong."""
    return None if value is None or not naive else value / naive


def geometric(ratios: Iterable[float]) -> float | None:
    """The geometric mean; None of none, and 0 where one is 0."""
    values = np.array(list(ratios), dtype=np.float64)
    if not len(values):
        return None
    return float(np.exp(np.log(values).mean())) if (values > 0).all() else 0.0


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
