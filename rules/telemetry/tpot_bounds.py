"""Upper bound of a quantile of the time per output token, by the histograms of whole times and of lengths.

Owns the argument and nothing else: which windows it serves is decided in `rules.telemetry.reading_methods`. An engine that
prints no
histogram of TPOT still observes, as a request ends, its whole time (E2E) and its generated tokens. Nothing tells which
time belongs to which length, so the bound holds for every way to pair them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from rules.telemetry.histograms import Histogram

SHORTEST = 2
"""Tokens of the shortest request that has a time per output token: the first one is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestQuantile:
    """`high` (seconds) is not below the quantile, None where nothing bounds it; `n` requests at most are behind it."""

    high: float | None
    n: float


def highest_quantile(wholes: tuple[Histogram, ...], lengths: tuple[Histogram, ...], q: float) -> HighestQuantile | None:
    """Return an upper bound of the TPOT quantile `q` (0-1) of the requests with two tokens or more.

    TPOT = (E2E - TTFT) / (tokens - 1) <= E2E / (tokens - 1). For each number of steps k = tokens - 1 and each time t:
    share(TPOT > t / k) <= share(E2E > t) + share(steps < k), the bound of Frechet (1935); over all k it is the best that
    two histograms allow (Makarov 1981). The bound is the least t / k at which the sum leaves the rank ceil(q m) of m
    requests. Times count with the upper edge of their bucket, lengths with the least tokens in theirs.

    A request of one token has no TPOT. Where a bucket holds lengths of one token and of more, the bound is that of the
    worse case: none of them has one token, or all. Requests that only one of the histograms has count as the longest
    time, or as the shortest length. `wholes` are in seconds, `lengths` in tokens. None where no request can have had
    two tokens.
    """
    seen = max(_count(wholes), _count(lengths))
    steps, alone, maybe_alone = _by_steps(lengths)
    without = seen - _count(lengths)
    steps[SHORTEST - 1] = steps.get(SHORTEST - 1, 0.0) + without
    several = seen - alone
    if several <= 0:
        return None
    tails = _tails(wholes, unseen=seen - _count(wholes))
    fewest = several - maybe_alone - without
    found, shorter = [], 0.0
    for k in sorted(steps):
        left = (_beyond(several, q) - shorter) if shorter else _beyond(fewest, q)
        if left < 0:
            break
        if steps[k]:
            found.append(_time_beyond(tails, left) / k)
        shorter += steps[k]
    high = min(found, default=math.inf)
    return HighestQuantile(high=high if math.isfinite(high) else None, n=several)


def _count(parts: tuple[Histogram, ...]) -> float:
    return math.fsum(part.n for part in parts)


def _by_steps(lengths: tuple[Histogram, ...]) -> tuple[dict[float, float], float, float]:
    """Requests by the least decode steps that their bucket allows, those of surely one token, and those of perhaps one."""
    steps: dict[float, float] = {}
    alone = maybe = 0.0
    for part in lengths:
        for (lower, upper), count in zip(pairwise((0.0, *part.edges)), part.counts, strict=True):
            if upper < SHORTEST:
                alone += count
                continue
            least = max(SHORTEST - 1, math.floor(lower))
            steps[least] = steps.get(least, 0.0) + count
            maybe += count if lower < SHORTEST - 1 else 0.0
    return steps, alone, maybe


def _beyond(requests: float, q: float) -> float:
    """Requests that may lie beyond the quantile by nearest rank, as in `rules.telemetry.histograms.quantile`."""
    return max(0.0, requests - max(1.0, math.ceil(round(q * requests, 6))))


def _tails(wholes: tuple[Histogram, ...], unseen: float) -> list[tuple[float, float]]:
    """Each edge with the most requests that may have taken longer, in the order of the edges."""
    edges = sorted({edge for part in wholes for edge in part.edges})
    buckets = [pair for part in wholes for pair in zip(part.edges, part.counts, strict=True)]
    return [(edge, unseen + math.fsum(count for upper, count in buckets if upper > edge)) for edge in edges]


def _time_beyond(tails: list[tuple[float, float]], left: float) -> float:
    """The least edge that at most `left` requests may have exceeded, infinite where none is."""
    return next((edge for edge, longer in tails if longer <= left), math.inf)
