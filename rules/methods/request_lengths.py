"""Lengths of requests against a limit: whether a quantile of them is surely beyond it, by buckets and beyond chance.

Owns the statistics that drift and guardrails share. A quantile is beyond a limit where the share of requests beyond it is
larger (smaller) than the quantile leaves. Buckets count only where they lie wholly on one side; chance is excluded by the
binomial distribution; bursts are excluded by whoever asks (`rules.verdicts.context.is_persistent`). It knows no rule and no plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

from rules.confidence import binomial_tail
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Reading

PROMPTS, OUTPUTS = "prompt_tokens_per_request", "generation_tokens_per_request"


class LimitSide(StrEnum):
    """On which side of the limit the quantile would be."""

    LONGER = "longer"
    SHORTER = "shorter"


def parts_of(slices: Iterable[BinnedWindow], family: str) -> tuple[Histogram, ...]:
    """The lengths of all requests in these slices, one part a bucket grid."""
    return histograms.sum_histograms(part for one in slices for part in one.window.histograms.get(family, ()))


def count_requests(parts: tuple[Histogram, ...]) -> float:
    """Requests whose length was seen."""
    return math.fsum(part.n for part in parts)


def quantile(parts: tuple[Histogram, ...], q: float) -> Reading | None:
    """The quantile (0-1) in tokens, between the edges of its bucket; None without requests."""
    found = histograms.quantile(parts, q)
    return None if found is None else Reading(value=found.value, low=found.low, high=found.high, n=found.n)


def exceeds_limit(parts: tuple[Histogram, ...], q: float, limit: float, side: LimitSide) -> bool:
    """Whether the observed quantile lies beyond `limit` tokens whatever happened inside the buckets, chance aside."""
    n = count_requests(parts)
    return n > 0 and _gap(_surely(parts, limit, side) / n, q, side)


def is_significant_quantile(
    parts: tuple[Histogram, ...], q: float, limit: float, side: LimitSide, confidence: float
) -> bool:
    """Whether the traffic's quantile does, with one-sided `confidence` (0-1) that it is no chance of few requests.

    Longer: so many requests above the limit would be too rare if only 1 - q of the traffic were (Clopper and Pearson
    1934). Shorter: so few would be; 300 requests of which none is above the limit say so of a P99 with 95 %.
    """
    trials = math.floor(count_requests(parts) + 1e-9)
    if trials < 1 or not exceeds_limit(parts, q, limit, side):
        return False
    count = _surely(parts, limit, side)
    if side is LimitSide.LONGER:
        return binomial_tail(math.floor(count + 1e-9), trials, 1 - q) < 1 - confidence
    at_most = math.ceil(count - 1e-9)
    return 1 - binomial_tail(at_most + 1, trials, 1 - q) < 1 - confidence


def _surely(parts: tuple[Histogram, ...], limit: float, side: LimitSide) -> float:
    """Requests above the limit: at least so many for longer, at most so many for shorter."""
    share = histograms.share_above(parts, limit)
    return share.low if side is LimitSide.LONGER else share.high


def _gap(share: float, q: float, side: LimitSide) -> bool:
    return share > 1 - q + 1e-12 if side is LimitSide.LONGER else share < 1 - q - 1e-12
