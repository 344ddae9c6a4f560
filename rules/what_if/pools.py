"""What-if of a tier that serves prefill and decode apart: the capacity of the fuller pool is the tier's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rules.catalogue.registry import margin_of
from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import narrow_to_pool
from rules.plan.money import price_of
from rules.plan.replica_count import ReplicaCount, replica_count
from rules.resize.fleet_cost import FleetCost
from rules.resize.production_summary import ProductionSummary
from rules.what_if.answer import NO_PEAK, TWO_POOLS, find_peak

ONE_POOL = "its replicas serve whole requests: give one number of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWhatIf:
    """One pool with `replicas` at the asked load: its use, need and cost, and its mean replicas `now` (0: not seen)."""

    pool: str
    replicas: int
    now: float
    utilization: float
    needed: ReplicaCount
    cost: FleetCost


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsWhatIf:
    """Answer for prefill and decode apart at `rps` of the tier. Latencies are not predicted."""

    tier: str
    rps: float
    pools: tuple[PoolWhatIf, ...]

    @property
    def summary(self) -> Mapping[str, str | float]:
        """Return the first full pool, the load of the tier that fills it, and the guide's P:D ratio (6.5)."""
        prefill, decode = (pool.utilization * pool.replicas for pool in self.pools)
        first = max(self.pools, key=lambda pool: pool.utilization)
        return {"first_pool": first.pool, "most_rps": self.rps / first.utilization, "wanted_ratio": prefill / decode}


def answer_pools(seen: ProductionSummary, instances: tuple[int, ...], asked_rps: float | None) -> PoolsWhatIf:
    """Return the answer for replicas of both pools at rps of the tier (None: the peak). Raise ValueError without one."""
    if seen.context.serves_whole_requests or len(instances) != len(POOL_TOKENS):
        raise ValueError(ONE_POOL if seen.context.serves_whole_requests else TWO_POOLS)
    # A request passes both pools, and hours of the whole tier would count it twice.
    peak = find_peak(seen.pools.get("decode", seen))
    rps = asked_rps or (peak.rps if peak else 0.0)
    if rps <= 0:
        raise ValueError(NO_PEAK)
    rows = []
    for pool, replicas in zip(POOL_TOKENS, instances, strict=True):
        own = seen.pools.get(pool)
        context = own.context if own else narrow_to_pool(seen.context, pool, None)
        if context.capacity is None or context.plan is None:
            raise ValueError(f"{pool} pool: the plan lacks `disaggregation`, or a request's mean tokens are not known")
        rows.append(
            PoolWhatIf(
                pool=pool,
                replicas=replicas,
                now=own.observed_replicas if own else 0.0,
                utilization=rps / replicas / context.capacity.rps,
                needed=replica_count(rps, context.capacity, margin_of(context.limits)),
                cost=FleetCost(replicas=replicas, price=price_of(context.plan), tokens_per_hour=None),
            )
        )
    return PoolsWhatIf(tier=seen.context.name, rps=rps, pools=tuple(rows))
