"""Exact one-sided confidence bounds of shares, counts and means, and Pearson's chi-square.

The standard library suffices: the incomplete beta and gamma functions come from a continued fraction and a series. A
verdict is `certain` by these bounds only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise

CONFIDENCE = 0.999
"""One-sided confidence that a `certain` verdict needs (DESIGN 3.3)."""

_TINY = 1e-300
_TERMS = 500
_GAMMA_TERMS = 100_000

_STEPS, _HALVED, _PRECISION = 200, 8, 1e-12
"""At most so many steps of a solution, every eighth of them a halving, to this share of the value."""

_NONE = -800.0
"""Below the logarithm of every float: of a probability of nothing."""


def nearest_rank(values: Sequence[float], q: float) -> float:
    """Return quantile `q` (0-1) as one of the values (Hyndman and Fan 1996, definition 1). Raise ValueError for none."""
    if not values:
        raise ValueError("no values, no quantile")
    return sorted(values)[max(0, math.ceil(round(q * len(values), 9)) - 1)]


def binomial_lower_bound(k: float, n: float, confidence: float = CONFIDENCE) -> float:
    """Return the lower Clopper-Pearson bound of a share, k of n observed (Clopper and Pearson 1934); 0 for k = 0.

    Fractions of observations are rounded down: the bound stays a bound. Raise ValueError unless 0 <= k <= n.
    """
    k, n = math.floor(k + 1e-9), math.floor(n + 1e-9)
    if not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no share")
    if k == 0:
        return 0.0
    if k == n:
        return float((1 - confidence) ** (1 / n))
    return _solve(lambda p: binomial_tail(k, n, p), 1 - confidence, k / n)


@lru_cache(maxsize=128)
def binomial_tail(k: int, n: int, p: float) -> float:
    """Return P(X >= k) for X ~ Binomial(n, p), 1 <= k <= n: the incomplete beta function I_p(k, n - k + 1)."""
    return _incomplete_beta(k, n - k + 1, p)


@lru_cache(maxsize=128)
def poisson_lower_bound(k: float, confidence: float = CONFIDENCE) -> float:
    """Return the lower bound of a Poisson mean from k observed events (Garwood 1936); 0 for k = 0."""
    k = math.floor(k + 1e-9)
    if k <= 0:
        return 0.0
    return _solve(lambda mean: _lower_gamma(k, mean), 1 - confidence, float(k))


def mean_bounds(quantiles: Mapping[float, float], maximum: float | None = None) -> tuple[float, float | None]:
    """Return bounds of the mean of non-negative values with the given quantiles, for any distribution.

    `quantiles` are rising values by share (0-1); `maximum` is the largest value. At least 1 - q of all values lie at or
    above the quantile q. Each step between two shares counts with its lower end, and with its upper end. Without a
    maximum the upper bound is None. Raise ValueError without a quantile.
    """
    if not quantiles:
        raise ValueError("no quantile")
    shares = sorted(quantiles)
    low = math.fsum((upper - lower) * quantiles[lower] for lower, upper in pairwise([*shares, 1.0]))
    if maximum is None:
        return low, None
    inside = math.fsum((upper - lower) * quantiles[upper] for lower, upper in pairwise([0.0, *shares]))
    return low, inside + (1 - shares[-1]) * max(maximum, quantiles[shares[-1]])


def _solve(tail: Callable[[float], float], target: float, high: float) -> float:
    """Return the argument in [0, high] at which a rising tail probability reaches `target`, by its lower end.

    False position on logarithms with the Illinois correction (Dowell and Jarratt 1971) takes 8 to 20 steps; bisection
    takes 60.
    """

    def off(place: float) -> float:
        probability = tail(place)
        return math.log(probability / target) if probability > 0 else _NONE

    low, below, above, raised = 0.0, _NONE, off(high), None
    for step in range(_STEPS):
        if high - low <= _PRECISION * high:
            break
        middle = (low * above - high * below) / (above - below)
        if not low < middle < high or step % _HALVED == 0:
            middle = (low + high) / 2
        value = off(middle)
        if value < 0:
            low, below, above, raised = middle, value, above / 2 if raised is True else above, True
        else:
            high, above, below, raised = middle, value, below / 2 if raised is False else below, False
    return low


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (DLMF 8.17.22) by Lentz's method."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1 / _away_from_zero(1 + step * d)
            c = _away_from_zero(1 + step / c)
            result *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return result


def _lower_gamma(a: float, x: float) -> float:
    """Return the regularised lower gamma function P(a, x) by its series (DLMF 8.7.1): P(X >= a) for X ~ Poisson(x)."""
    if x <= 0:
        return 0.0
    # So far above its mean nothing is left of the upper tail in a double.
    if x > a + 40 * math.sqrt(a) + 100:
        return 1.0
    term = math.exp(a * math.log(x) - x - math.lgamma(a + 1))
    total = term
    for n in range(1, _GAMMA_TERMS):
        term *= x / (a + n)
        total += term
        if term < total * 1e-15:
            break
    return min(1.0, total)


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


class Certainty(StrEnum):
    CERTAIN = "certain"
    LIKELY = "likely"

    @classmethod
    def of(cls, proven: bool) -> Certainty:
        """Return certain if the evidence is a proof, else likely."""
        return cls.CERTAIN if proven else cls.LIKELY


def check_uniformity(rows: Iterable[Sequence[float]]) -> float:
    """Return the probability (0-1) that rows of counts with equal shares are less even by chance (chi-square).

    Rows without counts or with one count are left out. 1 without any row.
    """
    statistic, freedom = 0.0, 0
    for row in rows:
        mean = math.fsum(row) / len(row) if row else 0.0
        if mean > 0 and len(row) > 1:
            statistic += math.fsum((count - mean) ** 2 for count in row) / mean
            freedom += len(row) - 1
    return chi_square_below(statistic, freedom) if freedom else 1.0


def chi_square_below(x: float, freedom: int) -> float:
    """Return P(X <= x) for X ~ chi-square. Raise ValueError unless x >= 0 and freedom >= 1."""
    if x < 0 or freedom < 1:
        raise ValueError(f"{x} with {freedom} degrees of freedom is no chi-square")
    return _lower_gamma(freedom / 2, x / 2)
