"""How good forecasts were: WAPE, pinball loss, coverage, each with an interval by drawing whole days of it again.

Owns the arithmetic. Sums are kept by origin, so that days can be drawn: neighbouring errors are no separate evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

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
