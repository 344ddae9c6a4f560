"""Histograms: increases, sums, quantiles and shares above a threshold, each with certain bounds and an estimate.

An engine upgrade can change the bucket edges. Sums then keep the edges that all have, and no bucket is split.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, compress, pairwise
from typing import Annotated

from pydantic import AfterValidator

from rules.telemetry.signals import Reading

_SHARED = {float(number): float(number) for number in range(128)}
"""Small counts as one object each: most buckets of a minute have one, and a float takes 32 bytes."""


def share_counts(counts: tuple[float, ...]) -> tuple[float, ...]:
    """Return equal counts. Those without observations are one tuple, and small counts one object."""
    return tuple(map(_SHARED.get, counts, counts)) if any(counts) else _no_counts(len(counts))


@lru_cache(maxsize=256)
def _no_counts(buckets: int) -> tuple[float, ...]:
    return (0.0,) * buckets


@lru_cache(maxsize=256)
def _share_edges(edges: tuple[float, ...]) -> tuple[float, ...]:
    return edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Observations by bucket.

    `edges` are the rising upper edges; the last is inf. `counts` are per bucket, not cumulative (whole numbers, as
    floats). `total` is the sum of the observed values in the family's unit, or None if it is unreliable. Those that are
    read from a file share equal edges and counts.
    """

    edges: Annotated[tuple[float, ...], AfterValidator(_share_edges)]
    counts: Annotated[tuple[float, ...], AfterValidator(share_counts)]
    total: float | None

    @property
    def n(self) -> float:
        return math.fsum(self.counts)


def count_requests(parts: Iterable[Histogram]) -> float:
    """Return the number of observations in all parts."""
    return math.fsum(part.n for part in parts)


NO_GRID = (math.inf,)
"""Edges of a histogram without observations, on pages that print no buckets before the first one."""


class BrokenHistogramError(ValueError):
    """Impossible buckets, with the defect as the text."""


def check_cumulative(edges: tuple[float, ...], cumulative: tuple[float, ...], count: float) -> str | None:
    """Return the defect of a printed family or None. Edges and counts must rise, and `_count` must equal the +Inf
    bucket."""
    if not edges or edges[-1] != math.inf:
        return "has no +Inf bucket"
    if not all(a < b for a, b in pairwise(edges)):
        return "has bucket edges that do not rise"
    if any(not math.isfinite(c) or c < 0 for c in cumulative) or not math.isfinite(count):
        return "has a count that is not a number of observations"
    for (_, a), (edge, b) in pairwise(zip(edges, cumulative, strict=True)):
        if b < a:
            return f'has a bucket le="{edge:g}" ({b:g}) below the one before it ({a:g})'
    if cumulative[-1] != count:
        return f"has _count {count:g} where its +Inf bucket says {cumulative[-1]:g}"
    return None


def _counts(cumulative: Sequence[float]) -> tuple[float, ...]:
    counts = (cumulative[0], *map(operator.sub, cumulative[1:], cumulative))
    if min(counts) < 0:
        raise BrokenHistogramError("bucket counts fall")
    return share_counts(counts)


def increase(earlier: Cumulative, later: Cumulative) -> Histogram:
    """Return the observations between two scrapes of one process.

    Raise BrokenHistogramError if a bucket shrank or the edges differ. Different edges are accepted if the earlier
    histogram was empty. A `_sum` that contradicts the buckets is dropped and the buckets stay. That is the corruption
    of vLLM issue 49135 (unguarded timestamps, 0.8 to 0.33, negative or as large as the host's uptime).
    """
    if earlier.edges == NO_GRID and not earlier.counts[0]:
        earlier = Cumulative(later.edges, (0.0,) * len(later.edges), 0.0)
    if earlier.edges != later.edges:
        raise BrokenHistogramError("bucket edges changed")
    counts = _counts(tuple(map(operator.sub, later.counts, earlier.counts)))
    total = None if earlier.total is None or later.total is None else later.total - earlier.total
    if total is not None and not _is_possible(later.edges, counts, total):
        total = None
    return Histogram(edges=later.edges, counts=counts, total=total)


def _is_possible(edges: tuple[float, ...], counts: tuple[float, ...], total: float) -> bool:
    """Return whether observations in these buckets can add up to `total`. Allow one observation that arrived during the
    scrape."""
    if not math.isfinite(total) or total < 0:
        return False
    # Hot path: every histogram of every scrape. Most buckets are empty and add nothing to exact sums.
    least, most, value = [], [], math.inf
    for place in compress(range(len(counts)), counts):
        edge, count = edges[place], counts[place]
        if place and edges[place - 1] > 0:
            least.append(edges[place - 1] * count)
        most.append(edge * count)
        if edge < math.inf:
            value = edge
    return math.fsum(least) - value <= total <= math.fsum(most) + value


@dataclass(frozen=True, slots=True)
class Cumulative:
    """Histogram family as printed on a page: cumulative counts since the process started."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float | None


EMPTY = Cumulative(NO_GRID, (0.0,), 0.0)
"""Histogram before its first observation: its edges are still unknown."""


def sum_histograms(parts: Iterable[Histogram]) -> tuple[Histogram, ...]:
    """Return the sum as one part, or none without parts.

    Different grids are added on the edges that all with observations have, empty ones on all edges. No order counts.
    """
    given = list(parts)
    if not given or not [part for part in given if part.edges is not given[0].edges]:
        # Pages of one layout share the object of their edges, and comparing it costs more than the sum.
        return (_add_equal(given),) if given else ()
    seen = [part for part in given if part.n] or given
    grids = [set(part.edges) for part in seen]
    edges = tuple(sorted(set.intersection(*grids) if seen[0].n else set.union(*grids)))
    return (_add_equal([part if part.edges == edges else _coarsen(part, edges) for part in seen]),)


def _coarsen(part: Histogram, edges: tuple[float, ...]) -> Histogram:
    """Return the histogram with some of its edges, the last one among them."""
    below = [math.fsum(part.counts[: bisect_right(part.edges, edge)]) for edge in edges]
    return Histogram(edges=edges, counts=_counts(below), total=part.total)


def _add_equal(same: list[Histogram]) -> Histogram:
    if len(same) == 1:
        return same[0]
    totals = [part.total for part in same]
    return Histogram(
        edges=same[0].edges,
        counts=share_counts(tuple(map(math.fsum, zip(*[part.counts for part in same], strict=True)))),
        total=None if None in totals else math.fsum(t for t in totals if t is not None),
    )


def quantile(parts: tuple[Histogram, ...], q: float) -> Reading | None:
    """Return the nearest-rank quantile (rank ceil(q n)) of the observations, None without observations.

    The bounds are the edges of the bucket that holds the rank; `high` is None in the last bucket. No quantity here is
    negative: the first bucket begins at 0 and includes a quantile of 0.

    `value` lies strictly inside the bucket; it is None above the last edge. In a tail bucket it is the point where the
    estimate of `share_above` leaves 1 - q. A P99 and the share of requests above a limit therefore never contradict
    each other. Other buckets, and tail buckets with too few requests, are taken as evenly filled.
    """
    n = math.fsum(part.n for part in parts)
    if n <= 0:
        return None
    # Rounded first: 0.07 x 100 is 7, but a double gives 7.000000000000001.
    rank = max(1.0, math.ceil(round(q * n, 6)))
    low, high = _find_bucket(parts[0], rank)
    return Reading(value=None if high is None else _estimate(parts[0], q, rank, (low, high)), low=low, high=high, n=n)


TAIL = 0.9
"""Quantile above which a bucket is assumed to fall by a constant factor, as tails do. The middle of a distribution does
not."""


def _find_bucket(part: Histogram, rank: float) -> tuple[float, float | None]:
    """Return the edges of the bucket that holds the rank."""
    # A page may claim counts that are not whole: the rank is then above the sum of all buckets.
    place = min(bisect_left(tuple(accumulate(part.counts)), rank), len(part.edges) - 1)
    edge = part.edges[place]
    return part.edges[place - 1] if place else 0.0, edge if math.isfinite(edge) else None


def _count_at_most(part: Histogram, x: float) -> float:
    return math.fsum(part.counts[: bisect_right(part.edges, x)])


def _estimate(part: Histogram, q: float, rank: float, ends: tuple[float, float]) -> float:
    """Return the best estimate between the edges that hold the rank. The lower edge of the first bucket may equal its
    upper one (0)."""
    low, high = ends
    if high <= low:
        return high
    n, below, upto = part.n, _count_at_most(part, low), _count_at_most(part, high)
    left = round((1 - q) * n, 6)
    at_low, at_high = n - below, max(n - upto, min(NOTHING_SEEN, n - below))
    if upto >= TAIL * n and at_high < left < at_low:
        value = low + (high - low) * math.log(at_low / left) / math.log(at_low / at_high)
        if low < value < high:
            return value
    return low + (high - low) * (rank - 0.5 - below) / (upto - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Count of observations above a threshold among n: at least `low`, at most `high`, best estimate `best`."""

    low: float
    best: float
    high: float
    n: float


def share_above(parts: tuple[Histogram, ...], threshold: float) -> Share:
    """Return the observations above `threshold` (unit of the edges), with the bounds from the bucket around it.

    The estimate inside that bucket lets the tail fall by a constant factor per unit, because latency tails are near
    exponential. Even filling would report slow requests wherever the bucket is wide. An open last bucket contributes
    nothing. Raise ValueError unless the threshold is above 0.
    """
    if not threshold > 0:
        raise ValueError(f"the threshold must be above 0, not {threshold}")
    low = best = high = n = 0.0
    for part in parts:
        edges, counts, whole = part.edges, part.counts, part.n
        n += whole
        place = bisect_right(edges, threshold)
        lower = edges[place - 1] if place else 0.0
        if lower < threshold and place < len(edges):
            edge, count = edges[place], counts[place]
            high += count
            if math.isfinite(edge) and count > 0:
                tail = whole
                for below in counts[:place]:
                    tail = tail - below if below < tail else 0.0
                rest = max(0.0, tail - count)
                best += _exponential_tail(tail, rest, (threshold - lower) / (edge - lower)) - rest
            place += 1
        for count in counts[place:]:
            low, best, high = low + count, best + count, high + count
    return Share(low=low, best=best, high=high, n=n)


NOTHING_SEEN = 0.5
"""Observations assumed beyond a bucket if none were seen. Half an observation gives the logarithm an end point."""


def _exponential_tail(at_lower: float, at_upper: float, share: float) -> float:
    """Return the observations beyond the point at `share` (0-1) between two edges, by log interpolation."""
    end = max(at_upper, min(NOTHING_SEEN, at_lower))
    return max(at_upper, math.exp(math.log(at_lower) + share * (math.log(end) - math.log(at_lower))))


def mean(parts: tuple[Histogram, ...]) -> float | None:
    """Return the mean of the observed values, None without observations or if a `_sum` is unreliable."""
    n = math.fsum(part.n for part in parts)
    if n <= 0 or any(part.total is None for part in parts):
        return None
    return math.fsum(part.total for part in parts if part.total is not None) / n


def draw(parts: tuple[Histogram, ...], mean: float | None, count: int) -> tuple[tuple[int, ...], int]:
    """Return `count` rising whole numbers with this mean, and how many are above the last edge, where they get that edge.

    They are the quantiles at equal steps, all multiplied alike. Without buckets, all have the mean.
    """
    if not parts:
        return (max(1, round(mean or 0)),) * count, 0
    readings = [q for number in range(count) if (q := quantile(parts, (number + 0.5) / count))]
    values = [(q.low or 0.0) if q.value is None else q.value for q in readings]
    scale = 1.0 if mean is None else mean * count / math.fsum(values)
    return tuple(sorted(max(1, round(value * scale)) for value in values)), sum(q.high is None for q in readings)
