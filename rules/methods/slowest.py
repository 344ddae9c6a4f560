"""Where the slowest requests of several tiers are: how many of the worst per cent of all fell to each.

Owns the bounds: bucket edges leave open who was slowest inside one bucket, so a share has a lower and an upper end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rules.telemetry import histograms
from rules.telemetry.histograms import Histogram

Parts = tuple[Histogram, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowShare:
    """How much of the slowest requests a tier has, certainly between `low` and `high` (0-1); `n` are the requests of all."""

    low: float
    high: float
    n: float


def slow_shares(tiers: Mapping[str, Parts], share: float = 0.01) -> dict[str, SlowShare]:
    """For each tier its part of the slowest `share` (0-1) of all requests: those at and above the common quantile.

    Empty where nothing was observed. Counts above an edge are exact; what lies in the bucket of the
    quantile may be anybody's.
    """
    n = math.fsum(part.n for parts in tiers.values() for part in parts)
    if n <= 0:
        return {}
    wanted = max(1.0, n * share)
    edges = sorted({edge for parts in tiers.values() for part in parts for edge in part.edges if math.isfinite(edge)})
    below = max((edge for edge in edges if _surely(tiers, edge) >= wanted), default=None)
    beyond = min((edge for edge in edges if _possibly(tiers, edge) <= wanted), default=None)
    return {name: _share(tiers, name, below, beyond, wanted, n) for name in tiers}


def _share(
    tiers: Mapping[str, Parts], name: str, below: float | None, beyond: float | None, wanted: float, n: float
) -> SlowShare:
    others = {other: parts for other, parts in tiers.items() if other != name}
    own = {name: tiers[name]}
    most = min(wanted, _possibly(own, below), wanted - (0.0 if beyond is None else _surely(others, beyond)))
    least = max(0.0 if beyond is None else _surely(own, beyond), wanted - _possibly(others, below))
    return SlowShare(low=max(0.0, min(1.0, least / wanted)), high=max(0.0, min(1.0, most / wanted)), n=n)


def _surely(tiers: Mapping[str, Parts], edge: float) -> float:
    return math.fsum(histograms.share_above(parts, edge).low for parts in tiers.values())


def _possibly(tiers: Mapping[str, Parts], edge: float | None) -> float:
    """Requests that may be above an edge; all of them where there is no edge below."""
    if edge is None:
        return math.fsum(part.n for parts in tiers.values() for part in parts)
    return math.fsum(histograms.share_above(parts, edge).high for parts in tiers.values())
