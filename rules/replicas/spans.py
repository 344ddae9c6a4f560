"""Spans of time, few and in order: what of a time was told already, where a clock shows it twice.

Owns their union and the bound on their number. It does not know what was told in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Spans = tuple[tuple[float, float], ...]
"""From and to (unix seconds), in order of time; no two touch."""

MOST = 64
"""Of more than so many the smallest holes between them count as told: rather once too few than twice."""


def add_spans(spans: Spans, several: Iterable[tuple[float, float]]) -> Spans:
    """With several more; what touches is one. One without length adds nothing."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted((*spans, *(one for one in several if one[0] < one[1]))):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined) if len(joined) <= MOST else _without_smallest_holes(joined)


def _without_smallest_holes(spans: list[tuple[float, float]]) -> Spans:
    holes = sorted(((before[1], after[0]) for before, after in pairwise(spans)), key=lambda hole: hole[0] - hole[1])
    edges = [spans[0][0], *(edge for hole in sorted(holes[: MOST - 1]) for edge in hole), spans[-1][1]]
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def is_mostly_covered(spans: Spans, begin: float, end: float) -> bool:
    """Whether at least half of (begin, end] lies in the spans: what their edge cuts belongs where most of it is."""
    inside = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in spans)
    return 0.0 < inside >= (end - begin) / 2
