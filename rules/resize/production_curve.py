"""Latency-throughput curve of production from sums of load bins (guide 8.1, 8.3).

To add a quantity: a field of `ProductionPoint`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from rules.confidence import binomial_lower_bound
from rules.plan.curve import CERTAIN_REQUESTS
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.schema import Slo
from rules.resize.production_summary import ProductionSummary
from rules.telemetry import histograms
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading, SignalKind, SignalValue
from rules.telemetry.windows import Window

ALLOWED = 0.01
"""An objective on P99 lets one request of a hundred be slower."""

LIMITS = (
    ("ttft_p99_seconds", "ttft_seconds"),
    ("tpot_p99_seconds", "tpot_seconds"),
    ("itl_p99_seconds", "itl_seconds"),
    ("e2e_p99_seconds", "e2e_seconds"),
)
"""What an SLO can limit, and the family whose requests are counted against it."""


class SloStatus(StrEnum):
    """Result of a load against the SLO: certain, likely or unknown. The worst is first."""

    BROKEN = "broken"
    LIKELY_BROKEN = "likely_broken"
    TOO_FEW = "too_few_requests"
    NOT_KNOWN = "not_known"
    LIKELY_KEPT = "likely_kept"
    KEPT = "kept"


FINE, BAD = frozenset({SloStatus.KEPT, SloStatus.LIKELY_KEPT}), frozenset({SloStatus.BROKEN, SloStatus.LIKELY_BROKEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionPoint:
    """A load bin of a replica in production: its mean load and what was seen there.

    `bin` is None beyond the benchmark, `outside` then says why. `output_tokens_per_second` is a replica's. `planned` is what
    the benchmark measured of TTFT P99 at this load.
    """

    bin: int | None
    outside: str
    rps: float
    in_system: float | None
    requests: float
    ttft_p50: SignalValue
    ttft_p99: SignalValue
    tpot_p99: SignalValue
    output_tokens_per_second: float | None
    kv_utilization: SignalValue
    planned_ttft_p99: float | None
    planned_tpot_p99: float | None
    kept: SloStatus
    replica_hours: float


def production_points(context: TierContext, bins: Iterable[BinnedWindow]) -> tuple[ProductionPoint, ...]:
    """Return the points with requests, by rising load, from one sum per load bin; beyond the benchmark last."""
    rows = [_point(context, binned) for binned in bins if binned.rps]
    return tuple(sorted(rows, key=lambda point: (point.bin is None, point.rps)))


def _point(context: TierContext, binned: BinnedWindow) -> ProductionPoint:
    window, basis = binned.window, context.basis

    def reading(name: str) -> SignalValue:
        return read(BY_NAME[name], window, basis)

    return ProductionPoint(
        bin=binned.bin,
        outside=binned.beyond,
        rps=binned.rps or 0.0,
        in_system=binned.in_system,
        requests=window.counters.get("requests_finished", 0.0),
        ttft_p50=reading("ttft_p50_seconds"),
        ttft_p99=reading("ttft_p99_seconds"),
        tpot_p99=reading("tpot_p99_seconds"),
        kv_utilization=reading("kv_utilization"),
        output_tokens_per_second=replica_rate(window, "generation_tokens"),
        planned_ttft_p99=_planned(context, binned, "ttft_p99_seconds"),
        planned_tpot_p99=_planned(context, binned, "tpot_p99_seconds"),
        kept=check_slo(window, context.plan.slo, context.itl_comparable) if context.plan else SloStatus.NOT_KNOWN,
        replica_hours=window.covered_seconds / 3600,
    )


def merge_bins(seen: ProductionSummary, name: str, window: Window) -> SignalValue:
    """Return a signal over all load bins.

    A quantile's best estimate stays between those of the bins if they hold all requests.
    """
    reading = read(BY_NAME[name], window, seen.context.basis)
    if not isinstance(reading, Reading) or reading.value is None or BY_NAME[name].how is not SignalKind.QUANTILE:
        return reading
    each = [read(BY_NAME[name], binned.window, seen.context.basis) for binned in seen.bins]
    readings = [candidate for candidate in each if isinstance(candidate, Reading)]
    if math.fsum(candidate.n for candidate in readings) != reading.n:
        return reading
    least = min(candidate.value if candidate.value is not None else candidate.low or 0.0 for candidate in readings)
    most = max(candidate.value if candidate.value is not None else math.inf for candidate in readings)
    return replace(reading, value=min(max(reading.value, least), most))


def _planned(context: TierContext, binned: BinnedWindow, metric: str) -> float | None:
    curve = context.curve
    if curve is None or binned.bin is None or binned.rps is None or binned.bin >= len(curve.points):
        return None
    expectation = curve.expectation(binned.bin, metric, binned.rps, binned.in_system)
    return expectation.value if expectation else None


def check_slo(window: Window, slo: Slo, itl: bool = True) -> SloStatus:
    """Return whether a window's requests kept every objective that the engine's histograms show.

    Broken: more than 1 % are slower for any distribution inside the buckets, beyond chance (99.9 %, one-sided). Fewer
    than 300 requests give no result: their P99 is the third worst (DESIGN 3.3).
    """
    status = [
        _keeps(window, family, limit)
        for metric, family in LIMITS
        if (limit := getattr(slo, metric)) is not None and (itl or family != "itl_seconds")
    ]
    # An engine that shows one of two latencies says nothing of the other; what it shows still counts.
    known = [value for value in status if value is not SloStatus.NOT_KNOWN]
    return min(known, key=list(SloStatus).index, default=SloStatus.NOT_KNOWN)


def _keeps(window: Window, family: str, limit: float) -> SloStatus:
    parts = window.histograms.get(family, ())
    share = histograms.share_above(parts, limit)
    if share.n <= 0:
        return SloStatus.NOT_KNOWN
    if share.n < CERTAIN_REQUESTS:
        return SloStatus.TOO_FEW
    if binomial_lower_bound(math.floor(share.low), math.floor(share.n)) > ALLOWED:
        return SloStatus.BROKEN
    if share.high <= ALLOWED * share.n:
        return SloStatus.KEPT
    return SloStatus.LIKELY_BROKEN if share.best > ALLOWED * share.n else SloStatus.LIKELY_KEPT
