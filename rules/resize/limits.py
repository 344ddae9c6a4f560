"""Limits of a smaller fleet: latency, KV cache and queue, also with one replica lost.

Each limit is an amount of the whole tier that its replicas share. To add a limit: a row of `loads_of`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import nearest_rank
from rules.methods.utilization import mean_ready_replicas
from rules.plan.curve import operating_point
from rules.plan.replica_count import Margin, ReplicaCount
from rules.resize.production_summary import ProductionSummary
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.signals import Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import number

KV = "kv_utilization"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLoad:
    """Amount of the whole tier that its replicas share, and the limit of one replica, both in `unit`.

    KV cache use adds up as full caches: 13 replicas at 60 % are 7.8.
    """

    name: str
    amount: float
    limit: float
    unit: str


def loads_of(seen: ProductionSummary, size: ReplicaCount) -> tuple[TierLoad, ...]:
    """Return every limit that is known: the load within the SLO (TTFT, TPOT and ITL), the KV cache, requests in the system."""
    plan, limits, capacity = seen.context.plan, seen.context.limits, size.capacity
    loads = [
        TierLoad(
            name="requests per second a replica, within the SLO",
            amount=size.demand_rps,
            limit=capacity.rps,
            unit="per_second",
        )
    ]
    fullest = RULES["UtilizationTrap"].limit("fullest_hours", limits)
    ceiling = RULES["KvCacheNearCeiling"].limit("above", limits)
    full = _fullest(seen.hours, (KV,), fullest)
    if full is not None:
        loads.append(TierLoad(name="KV cache in use (hourly mean)", amount=full, limit=ceiling, unit="ratio"))
    curve = seen.context.curve
    measured = curve.read(KV, capacity.rps) if curve is not None else None
    if isinstance(measured, Reading) and measured.value and full is None:
        # Where production shows no KV use the benchmark's stands in, which grows with load at most as fast as load does.
        amount = measured.value * size.demand_rps / capacity.rps
        loads.append(TierLoad(name="KV cache in use (benchmark)", amount=amount, limit=ceiling, unit="ratio"))
    point, in_system = operating_point(plan) if plan else None, _fullest(seen.hours, IN_SYSTEM, fullest)
    if point is not None and point.c_max is not None and in_system is not None:
        loads.append(TierLoad(name="requests in the system", amount=in_system, limit=point.c_max, unit="count"))
    return tuple(loads)


def _fullest(hours: Iterable[Window], families: Sequence[str], q: float) -> float | None:
    """Return quantile q over the hours of the mean sum of gauges over the whole tier; None where no hour has all of them."""
    sums = [
        mean_ready_replicas((hour,)) * sum(hour.gauges[name].integral / hour.gauges[name].seconds for name in families)
        for hour in hours
        if all(name in hour.gauges and hour.gauges[name].seconds > 0 for name in families)
    ]
    return nearest_rank(sums, q) if sums else None


def fewest_within_limits(loads: Sequence[TierLoad], replicas: int, most: int, margin: Margin) -> int:
    """Return the fewest replicas from `replicas` to `most` that keep every limit; `most` where none does."""
    return next((count for count in range(replicas, most) if not find_exceeded_limit(loads, count, margin)), most)


def find_exceeded_limit(loads: Iterable[TierLoad], replicas: int, margin: Margin) -> str:
    """Return the first limit that so many replicas exceed, in words; "" where they keep all."""
    left = _count_left(replicas, margin)
    exceeded = (load for load in loads if load.amount / left > load.limit * (1 + 1e-9))
    return next(limits_text(exceeded, replicas, margin), "")


def limits_text(loads: Iterable[TierLoad], replicas: int, margin: Margin) -> Iterator[str]:
    """Yield where each limit stands with so many replicas, in words."""
    left = _count_left(replicas, margin)
    for load in loads:
        share, limit = number(load.amount / left, load.unit), number(load.limit, load.unit)
        fleet = f"one of {replicas} lost" if left < replicas else f"{replicas}"
        yield f"{load.name} would be {share} of at most {limit} with {fleet}"


def _count_left(replicas: int, margin: Margin) -> int:
    """Return how many of so many replicas a limit is checked with: one is lost where the margin says that one may be."""
    return max(1, replicas - 1 if 0 < margin.survives_loss_from <= replicas else replicas)
