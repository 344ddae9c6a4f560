"""Upper bound of a TPOT quantile from the histograms of whole times and lengths.

`rules.telemetry.reading_methods` decides where it applies. An engine without a TPOT histogram still observes whole time
(E2E) and generated tokens as a request ends. The pairing of times and lengths is unknown, so the bound holds for every
pairing.
"""

from __future__ import annotations

import math
from itertools import pairwise

from rules.light_dataclass import light_dataclass
from rules.telemetry.histograms import Histogram, count_requests

SHORTEST = 2
"""Tokens of the shortest request with a time per output token: the first token does not count."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class HighestQuantile:
    """Upper bound `high` of the quantile in seconds, or None if it is unbounded. At most `n` requests are behind it."""

    high: float | None
    n: float


def highest_quantile(wholes: tuple[Histogram, ...], lengths: tuple[Histogram, ...], q: float) -> HighestQuantile | None:
    """Return an upper bound of the TPOT quantile `q` (0-1) of the requests with two tokens or more.

    TPOT = (E2E - TTFT) / (tokens - 1) <= E2E / (tokens - 1). For each number of steps k = tokens - 1 and each time t:
    share(TPOT > t / k) <= share(E2E > t) + share(steps < k). This is the bound of Frechet (1935). Over all k it is the
    best bound from two histograms (Makarov 1981). The result is the least t / k at which the sum leaves the rank ceil(q
    m) of m requests.

    Times count with the upper edge of their bucket, lengths with the least tokens in theirs. A request of one token has
    no TPOT. A bucket may hold lengths of one token and of more. It then gives the worse of two cases: none has one
    token, or all have. Requests in only one histogram count as the longest time or the shortest length. `wholes` are in
    seconds, `lengths` in tokens. Return None if no request can have had two tokens.
    """
    seen = max(count_requests(wholes), count_requests(lengths))
    steps, alone, maybe_alone = _by_steps(lengths)
    without = seen - count_requests(lengths)
    steps[SHORTEST - 1] = steps.get(SHORTEST - 1, 0.0) + without
    several = seen - alone
    if several <= 0:
        return None
    tails = _tails(wholes, unseen=seen - count_requests(wholes))
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


def _by_steps(lengths: tuple[Histogram, ...]) -> tuple[dict[float, float], float, float]:
    """Return requests by the least decode steps of their bucket, requests of certainly one token, and of possibly
    one."""
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
    """Return the requests that may lie beyond the nearest-rank quantile of `rules.telemetry.histograms.quantile`."""
    return max(0.0, requests - max(1.0, math.ceil(round(q * requests, 6))))


def _tails(wholes: tuple[Histogram, ...], unseen: float) -> list[tuple[float, float]]:
    """Return each edge, in order, with the most requests that may have taken longer."""
    edges = sorted({edge for part in wholes for edge in part.edges})
    buckets = [pair for part in wholes for pair in zip(part.edges, part.counts, strict=True)]
    return [(edge, unseen + math.fsum(count for upper, count in buckets if upper > edge)) for edge in edges]


def _time_beyond(tails: list[tuple[float, float]], left: float) -> float:
    """Return the least edge that at most `left` requests may have exceeded, or infinity."""
    return next((edge for edge, longer in tails if longer <= left), math.inf)
