"""Production's own latency-throughput curve (guide 8.1, 8.3), out of the sums of load bins, and the load that keeps the SLO now.

Owns the points with their bounds, whether each keeps the objective, and where the knee is. The benchmark's curve is
`rules.curve`'s; here it is what production is laid beside. Another quantity of a point is a field of `ProductionPoint`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rules import histograms
from rules.bounds import binomial_lower_bound
from rules.curve import CERTAIN_REQUESTS, OperatingPoint
from rules.plan import Point, Slo
from rules.readings import read, replica_rate
from rules.resize_seen import Seen
from rules.signals import BY_NAME, How, Reading, SignalValue
from rules.slices import Slice
from rules.verdicts import Certainty
from rules.windows import Window

ALLOWED = 0.01
"""An objective on P99 lets one request of a hundred be slower."""

LIMITS = (
    ("ttft_p99_seconds", "ttft_seconds"),
    ("tpot_p99_seconds", "tpot_seconds"),
    ("itl_p99_seconds", "itl_seconds"),
)
"""What an SLO can limit, and the family whose requests are counted against it."""

NEAR = 0.9
"""A benchmark whose usable load production came so near to is confirmed there."""


class Kept(StrEnum):
    """Whether a load keeps the SLO: surely or by the best estimate, or nothing can be said."""

    KEPT = "kept"
    LIKELY_KEPT = "likely_kept"
    LIKELY_BROKEN = "likely_broken"
    BROKEN = "broken"
    TOO_FEW = "too_few_requests"
    NOT_KNOWN = "not_known"


FINE, BAD = frozenset({Kept.KEPT, Kept.LIKELY_KEPT}), frozenset({Kept.BROKEN, Kept.LIKELY_BROKEN})
_WORST_FIRST = (Kept.BROKEN, Kept.LIKELY_BROKEN, Kept.TOO_FEW, Kept.NOT_KNOWN, Kept.LIKELY_KEPT, Kept.KEPT)


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
    tpot_p50: SignalValue
    tpot_p99: SignalValue
    output_tokens_per_second: float | None
    kv_utilization: SignalValue
    planned_ttft_p99: float | None
    planned_tpot_p99: float | None
    kept: Kept
    replica_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableNow:
    """Completed requests a second of one replica within the SLO, as far as production and benchmark tell.

    `rps` is the best estimate, it lies in [low, high] (None: open). `planned_rps` is the benchmark's. `highest_rps` is the
    highest mean load of a bin, `kept_rps` the highest that kept the SLO. `knee_seen` says whether production broke it.
    """

    rps: float
    low: float
    high: float | None
    planned_rps: float | None
    highest_rps: float | None
    kept_rps: float | None
    knee_seen: bool
    certainty: Certainty
    reason: str


def production_points(seen: Seen) -> tuple[ProductionPoint, ...]:
    """The points that had requests, by rising load; what was beyond the benchmark last."""
    found = [_point(seen, one) for one in seen.bins if one.rps]
    return tuple(sorted(found, key=lambda point: (point.bin is None, point.rps)))


def _point(seen: Seen, one: Slice) -> ProductionPoint:
    window, basis = one.window, seen.view.basis
    readings = {name: read(BY_NAME[name], window, basis) for name in _READ}
    rps = one.rps or 0.0
    return ProductionPoint(
        bin=one.bin,
        outside=one.beyond,
        rps=rps,
        in_system=one.in_system,
        requests=window.counters.get("requests_finished", 0.0),
        ttft_p50=readings["ttft_p50_seconds"],
        ttft_p99=readings["ttft_p99_seconds"],
        tpot_p50=readings["tpot_p50_seconds"],
        tpot_p99=readings["tpot_p99_seconds"],
        kv_utilization=readings["kv_utilization"],
        output_tokens_per_second=replica_rate(window, "generation_tokens"),
        planned_ttft_p99=_planned(seen, one, "ttft_p99_seconds"),
        planned_tpot_p99=_planned(seen, one, "tpot_p99_seconds"),
        kept=keeps(window, seen.view.plan.slo, seen.view.itl_comparable) if seen.view.plan else Kept.NOT_KNOWN,
        replica_hours=window.covered_seconds / 3600,
    )


_READ = ("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds", "kv_utilization")


def pooled(seen: Seen, name: str, window: Window) -> SignalValue:
    """A signal over all load bins. Of a quantile the best estimate is kept between the least and the greatest of the bins',
    where these hold all requests of the window: no pool has another."""
    found = read(BY_NAME[name], window, seen.view.basis)
    if not isinstance(found, Reading) or found.value is None or BY_NAME[name].how is not How.QUANTILE:
        return found
    each = [read(BY_NAME[name], one.window, seen.view.basis) for one in seen.bins]
    told = [one for one in each if isinstance(one, Reading)]
    if math.fsum(one.n for one in told) != found.n:
        return found
    least = min(one.value if one.value is not None else one.low or 0.0 for one in told)
    most = max(one.value if one.value is not None else math.inf for one in told)
    return replace(found, value=min(max(found.value, least), most))


def _planned(seen: Seen, one: Slice, metric: str) -> float | None:
    curve = seen.view.curve
    if curve is None or one.bin is None or one.rps is None or one.bin >= len(curve.points):
        return None
    found = curve.expectation(one.bin, metric, one.rps, one.in_system)
    return found.interpolated if found else None


def keeps(window: Window, slo: Slo, itl: bool = True) -> Kept:
    """Whether the requests of a window kept every objective of the SLO that the engine's histograms tell.

    Surely broken: more than 1 % are slower whatever happened inside the bucket, and beyond chance (99.9 %, one-sided). From
    fewer than 300 requests nothing follows: their P99 is the third worst (DESIGN 3.3).
    """
    told = [
        _keeps(window, family, limit)
        for metric, family in LIMITS
        if (limit := getattr(slo, metric)) is not None and (itl or family != "itl_seconds")
    ]
    # An engine that shows one of two latencies says nothing of the other; what it shows still counts.
    known = [one for one in told if one is not Kept.NOT_KNOWN]
    return min(known, key=_WORST_FIRST.index, default=Kept.NOT_KNOWN)


def _keeps(window: Window, family: str, limit: float) -> Kept:
    parts = window.histograms.get(family, ())
    share = histograms.above(parts, limit)
    if share.n <= 0:
        return Kept.NOT_KNOWN
    if share.n < CERTAIN_REQUESTS:
        return Kept.TOO_FEW
    if binomial_lower_bound(math.floor(share.low), math.floor(share.n)) > ALLOWED:
        return Kept.BROKEN
    if share.high <= ALLOWED * share.n:
        return Kept.KEPT
    return Kept.LIKELY_BROKEN if share.best > ALLOWED * share.n else Kept.LIKELY_KEPT


def usable_now(seen: Seen, points: Sequence[ProductionPoint], diverges: bool) -> UsableNow | None:
    """What a replica can take now; None where neither production nor the benchmark tells.

    Where production broke the SLO above a load that kept it, the knee lies between the two, and the benchmark's own value stands
    if it does too. Else the benchmark stands as far as production reached; where production is slower than the benchmark at
    equal load (`diverges`), its curve is first scaled by how much. A load that broke the SLO below one that kept it was
    broken by something else than load: a cascade, a restart.
    """
    planned = seen.view.basis.usable_rps
    kept = max((one for one in points if one.kept in FINE), key=lambda one: one.rps, default=None)
    above = [one for one in points if one.kept in BAD and (kept is None or one.rps > kept.rps)]
    if kept is not None and above:
        return _between(seen, points, kept, above[0])
    if planned is None:
        return _without_benchmark(points, kept) if kept else None
    base = UsableNow(
        rps=planned,
        low=0.0,
        high=None,
        planned_rps=planned,
        highest_rps=max((one.rps for one in points), default=None),
        kept_rps=kept.rps if kept else None,
        knee_seen=bool(above),
        certainty=Certainty.LIKELY,
        reason=f"the benchmark's {planned:.3g} rps a replica; production says nothing of it yet",
    )
    if above:
        text = f"no load of production kept the SLO, not even {above[0].rps:.3g} rps a replica"
        text += f": the benchmark's {planned:.3g} does not hold"
        return replace(base, rps=min(planned, above[0].rps), high=above[0].rps, reason=text)
    if kept is None:
        return base
    return _scaled(base, seen, points, kept) if diverges else _confirmed(base, seen, kept)


def _without_benchmark(points: Sequence[ProductionPoint], kept: ProductionPoint) -> UsableNow:
    text = f"the plan has no benchmark; {kept.rps:.3g} rps a replica kept the SLO, what is above was not reached"
    return UsableNow(
        rps=kept.rps,
        low=kept.rps,
        high=None,
        planned_rps=None,
        highest_rps=max(one.rps for one in points),
        kept_rps=kept.rps,
        knee_seen=False,
        certainty=Certainty.LIKELY,
        reason=text,
    )


def _confirmed(base: UsableNow, seen: Seen, kept: ProductionPoint) -> UsableNow:
    """The benchmark's value, or the higher load at which production kept the SLO; sure where production came near to it."""
    point = seen.view.curve.usable(seen.view.plan.slo) if seen.view.curve and seen.view.plan else None
    best = max(base.rps, kept.rps)
    sure = kept.rps >= NEAR * base.rps
    return replace(
        base,
        rps=best,
        low=best if sure else kept.rps,
        high=best if point and point.knee_reached else None,
        certainty=Certainty.CERTAIN if sure else Certainty.LIKELY,
        reason=f"the benchmark's {base.rps:.3g} rps a replica; production kept the SLO up to {kept.rps:.3g}",
    )


def _between(
    seen: Seen, points: Sequence[ProductionPoint], kept: ProductionPoint, broken: ProductionPoint
) -> UsableNow:
    low, high = kept.rps, broken.rps
    planned = seen.view.basis.usable_rps
    inside = planned is not None and low <= planned <= high
    best = planned if inside and planned is not None else _crossing(seen, kept, broken)
    sure = kept.kept is Kept.KEPT and broken.kept is Kept.BROKEN
    text = f"production kept the SLO at {kept.rps:.3g} rps a replica and broke it at {broken.rps:.3g}"
    text += f"; the benchmark's {planned:.3g} lies between" if inside else ""
    text += f"; the benchmark's {planned:.3g} does not" if planned is not None and not inside else ""
    return UsableNow(
        rps=best,
        low=low,
        high=high,
        planned_rps=planned,
        highest_rps=max(one.rps for one in points),
        kept_rps=kept.rps,
        knee_seen=True,
        certainty=Certainty.CERTAIN if sure else Certainty.LIKELY,
        reason=text,
    )


def _crossing(seen: Seen, kept: ProductionPoint, broken: ProductionPoint) -> float:
    """The load at which TTFT or TPOT P99 crosses its limit first, by the logarithms of the best estimates (as
    `rules.curve` does between points of the benchmark)."""
    slo = seen.view.plan.slo if seen.view.plan else None
    found = []
    for limit, name in ((slo and slo.ttft_p99_seconds, "ttft_p99"), (slo and slo.tpot_p99_seconds, "tpot_p99")):
        below, over = _best(getattr(kept, name)), _best(getattr(broken, name))
        if limit and below and over and below < limit < over:
            share = math.log(limit / below) / math.log(over / below)
            found.append(kept.rps + share * (broken.rps - kept.rps))
    return min(found, default=kept.rps)


def _best(value: SignalValue) -> float | None:
    if not isinstance(value, Reading):
        return None
    return value.low if value.value is None else value.value


def slower_than_planned(points: Sequence[ProductionPoint]) -> tuple[float, float]:
    """The largest ratios of production's P99 (best estimate) to the benchmark's at equal load, of TTFT and of TPOT, over the bins
    with enough requests; 1 where production is not slower, or no bin can be compared."""
    enough = [one for one in points if one.requests >= CERTAIN_REQUESTS]
    ttft = [seen / one.planned_ttft_p99 for one in enough if (seen := _best(one.ttft_p99)) and one.planned_ttft_p99]
    tpot = [seen / one.planned_tpot_p99 for one in enough if (seen := _best(one.tpot_p99)) and one.planned_tpot_p99]
    return max([1.0, *ttft]), max([1.0, *tpot])


def _scaled(base: UsableNow, seen: Seen, points: Sequence[ProductionPoint], kept: ProductionPoint) -> UsableNow:
    """The benchmark's operating point with every latency as much slower as production is at equal load."""
    curve, plan, factors = seen.view.curve, seen.view.plan, slower_than_planned(points)
    found: OperatingPoint | None = None
    if curve is not None and plan is not None:
        found = replace(curve, points=tuple(_slower(point, *factors) for point in curve.points)).usable(plan.slo)
    best = max(kept.rps, found.usable_rps if found else 0.0)
    text = f"production is up to {max(factors):.2g}x as slow as the benchmark at equal load; "
    text += f"the benchmark's curve, so much slower, keeps the SLO up to {best:.3g} rps a replica, not {base.rps:.3g}"
    return replace(base, rps=best, low=kept.rps, high=max(best, base.rps), reason=text)


def _slower(point: Point, ttft: float, tpot: float) -> Point:
    """A point of the benchmark with its latencies so many times as long; events of a stream are as much slower as tokens."""
    factors = {"ttft_p99_seconds": ttft, "tpot_p99_seconds": tpot, "itl_p99_seconds": tpot}
    told = {name: value for name in factors if (value := getattr(point, name)) is not None}
    return point.model_copy(update={name: value * factors[name] for name, value in told.items()})
