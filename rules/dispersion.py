"""How evenly counts are spread: more evenly than chance allows, or less; by Pearson's chi-square.

Owns the statistic and its distribution. What is counted, and what an answer means, is for whoever asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_GAMMA_TERMS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChiSquare:
    """A statistic and its degrees of freedom; statistics of separate times add up."""

    statistic: float = 0.0
    freedom: int = 0

    @property
    def probability_below(self) -> float:
        """The probability that chance alone gives a smaller statistic; 1 without any degree of freedom."""
        return chi_square_below(self.statistic, self.freedom) if self.freedom else 1.0

    @property
    def probability_above(self) -> float:
        """The probability that chance alone gives a larger one."""
        return 1.0 - self.probability_below if self.freedom else 1.0


def check_uniformity(rows: Iterable[Sequence[float]]) -> ChiSquare:
    """Each row of counts against an equal share of its sum; rows that hold nothing or one count say nothing."""
    statistic, freedom = 0.0, 0
    for row in rows:
        mean = math.fsum(row) / len(row) if row else 0.0
        if mean <= 0 or len(row) < 2:
            continue
        statistic += math.fsum((count - mean) ** 2 for count in row) / mean
        freedom += len(row) - 1
    return ChiSquare(statistic=statistic, freedom=freedom)


def check_homogeneity(first: Sequence[float], second: Sequence[float]) -> ChiSquare:
    """Whether two rows of counts over the same places have the same shares (homogeneity)."""
    sums = math.fsum(first), math.fsum(second)
    places = [(a, b) for a, b in zip(first, second, strict=True) if a + b > 0]
    if min(sums) <= 0 or len(places) < 2:
        return ChiSquare()
    whole = math.fsum(sums)
    statistic = math.fsum(
        (seen - (a + b) * total / whole) ** 2 / ((a + b) * total / whole)
        for a, b in places
        for seen, total in zip((a, b), sums, strict=True)
    )
    return ChiSquare(statistic=statistic, freedom=len(places) - 1)


def chi_square_below(x: float, freedom: int) -> float:
    """P(X <= x) for X ~ chi-square: the regularised lower gamma function P(freedom / 2, x / 2) by its series (DLMF 8.7.1).

    Raises ValueError unless x >= 0 and freedom >= 1.
    """
    if x < 0 or freedom < 1:
        raise ValueError(f"{x} with {freedom} degrees of freedom is no chi-square")
    a, half = freedom / 2, x / 2
    if half <= 0:
        return 0.0
    # So far above its mean nothing is left of the upper tail in a double.
    if half > a + 40 * math.sqrt(a) + 100:
        return 1.0
    term = math.exp(a * math.log(half) - half - math.lgamma(a + 1))
    total = term
    for n in range(1, _GAMMA_TERMS):
        term *= half / (a + n)
        total += term
        if term < total * 1e-15:
            break
    return min(1.0, total)
