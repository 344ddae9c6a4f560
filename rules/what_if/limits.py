"""Limits that a rising load meets, each with the load of one replica, and the ends of all measurements.

Production counts as far as it went, the benchmark beyond. To add a limit: a row of `list_limits`. Of prefill and decode
pools the limit is the capacity of the fuller one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rules.catalogue.registry import margin_of
from rules.plan.benchmark_reading import find_benchmark_crossing
from rules.plan.capacity import POOL_TOKENS
from rules.plan.curve import LIMITED
from rules.plan.load_bins import narrow_to_pool
from rules.plan.replica_count import ReplicaCount, replica_count
from rules.resize.fleet_cost import Bill, compute_bill
from rules.resize.production_curve import BAD, FINE
from rules.resize.production_summary import ProductionSummary
from rules.telemetry.signals import Missing, Reading, SignalValue
from rules.what_if.prediction import PredictionInputs, PredictionSource, is_within_limit
from rules.what_if.production import KV, NO_PEAK, LoadBlock, find_peak, read_window

BENCHMARK_END, PRODUCTION_END, GIVEN = "benchmark_end", "production_end", "planned_operating_point"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLimit:
    """Limit by name (a signal's or an end) and the completed rps of one replica that meets it.

    `breaks` is False for an end of the measurements. `objective` is the quantity's limit.
    """

    name: str
    objective: float | None
    rps: SignalValue
    breaks: bool
    source: PredictionSource
    reason: str

    @property
    def earliest(self) -> float | None:
        """Return the best estimate of the load, None if unknown."""
        return self.rps.value if self.breaks and isinstance(self.rps, Reading) else None


def list_limits(ground: PredictionInputs) -> tuple[CapacityLimit, ...]:
    """Return every limit of the tier, breaking ones by rising load first."""
    slo = ground.context.plan.slo if ground.context.plan else None
    objectives = [(name, getattr(slo, name)) for name in LIMITED if slo is not None]
    found = [
        find_crossing(ground, name, objective)
        for name, objective in objectives
        if objective is not None and (name != "itl_p99_seconds" or ground.context.itl_comparable)
    ]
    found += [find_crossing(ground, KV, ground.ceiling), *_ends(ground)]
    return tuple(sorted(found, key=lambda one: (one.earliest is None, one.earliest or 0.0)))


def find_crossing(ground: PredictionInputs, name: str, objective: float) -> CapacityLimit:
    """Return the load between production's last kept and first broken one, else the benchmark's, scaled to production."""
    kept, broken = _in_production(ground, name, objective)
    reached, n = kept.rps if kept else 0.0, math.fsum(one.requests for one in (kept, broken) if one)
    slower = ground.slowness(name)
    planned = find_benchmark_crossing(ground.context, name, objective / slower)

    def told(
        source: PredictionSource,
        reason: str,
        value: float | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> CapacityLimit:
        found = Reading(value=value, low=low, high=high, n=n)
        return CapacityLimit(name=name, objective=objective, rps=found, breaks=True, source=source, reason=reason)

    if broken is not None:
        text = f"not kept at {broken.rps:.3g} rps"
        if kept:
            text = f"production kept it at {kept.rps:.3g} rps a replica and not at {broken.rps:.3g}"
        value = _cross(ground, name, objective, kept, broken)
        return told(PredictionSource.PRODUCTION, text, value, reached, broken.rps)
    reach = f"production kept it up to {kept.rps:.3g}" if kept else "production does not tell"
    if isinstance(planned, Missing):
        if kept is None:
            return replace(told(PredictionSource.NOBODY, planned.text), rps=planned)
        return told(PredictionSource.PRODUCTION, f"{reach}; {planned.text}", low=kept.rps)
    rps, crossed = planned
    source = PredictionSource.BENCHMARK if slower == 1 else PredictionSource.SLOWED
    said = "the benchmark" if slower == 1 else f"the benchmark, {slower:.2g}x as {'full' if name == KV else 'slow'}"
    if not crossed:
        return told(source, f"{reach}; {said} keeps it up to its last point, {rps:.3g}", low=max(rps, reached))
    return told(source, f"{reach}; {said} meets it at {rps:.3g}", max(rps, reached), reached or None)


def _in_production(ground: PredictionInputs, name: str, objective: float) -> tuple[LoadBlock | None, LoadBlock | None]:
    """Return the highest block of loads within a limit, and the lowest above it that broke it."""
    told = [
        (one, is_within_limit(read_window(one.window, name, ground.context.basis), objective))
        for one in ground.served.blocks
    ]
    kept = next((one for one, word in reversed(told) if word in FINE), None)
    above = [one for one, word in told if word in BAD and (kept is None or one.rps > kept.rps)]
    return kept, above[0] if above else None


def _cross(ground: PredictionInputs, name: str, objective: float, kept: LoadBlock | None, broken: LoadBlock) -> float:
    """Return the crossing between two loads, for times by logarithms."""
    if kept is None:
        return broken.rps
    found = (read_window(one.window, name, ground.context.basis) for one in (kept, broken))
    below, over = (one.value if isinstance(one, Reading) else None for one in found)
    if not below or not over or not below < objective < over:
        return kept.rps
    log = name != KV
    share = math.log(objective / below) / math.log(over / below) if log else (objective - below) / (over - below)
    return kept.rps + share * (broken.rps - kept.rps)


def _ends(ground: PredictionInputs) -> list[CapacityLimit]:
    """Return the ends of the measurements, and the plan's operating point without a benchmark."""
    found = []
    curve, plan, top = ground.context.curve, ground.context.plan, ground.served.top_rps
    if curve is not None:
        text = "the benchmark's last measured point: what is beyond it nobody measured"
        found.append(_end(BENCHMARK_END, curve.top_rps, PredictionSource.BENCHMARK, text))
    elif plan is not None and plan.operating_point is not None:
        given = plan.operating_point.usable_rps
        text = "the plan's operating point, given by hand"
        found.append(replace(_end(GIVEN, given, PredictionSource.PLAN, text), breaks=True))
    if top is not None:
        text = "the highest load that production served: what is beyond it rests on the benchmark"
        found.append(_end(PRODUCTION_END, top, PredictionSource.PRODUCTION, text))
    return found


def _end(name: str, rps: float, source: PredictionSource, text: str) -> CapacityLimit:
    known = Reading(value=rps, low=rps, high=rps, n=0.0)
    return CapacityLimit(name=name, objective=None, rps=known, breaks=False, source=source, reason=text)


def find_first_limit(several: tuple[CapacityLimit, ...]) -> CapacityLimit | None:
    """Return the limit at the lowest load, None without one."""
    return next((one for one in several if one.earliest is not None), None)


ONE_POOL = "its replicas serve whole requests: give one number of them"
TWO_POOLS = "it serves prefill and decode apart: give replicas of both, such as --instances 2+6"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWhatIf:
    """One pool with `replicas` at the asked load: its use and need, and its mean replicas `now` (0: not seen)."""

    pool: str
    replicas: int
    now: float
    utilization: float
    needed: ReplicaCount
    bill: Bill | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsWhatIf:
    """Answer for prefill and decode apart at `rps` of the tier. Latencies are not predicted."""

    tier: str
    rps: float
    pools: tuple[PoolWhatIf, ...]

    @property
    def fits(self) -> bool:
        return self.first.utilization <= 1

    @property
    def first(self) -> PoolWhatIf:
        return max(self.pools, key=lambda one: one.utilization)

    @property
    def summary(self) -> Mapping[str, str | float]:
        """Return the first full pool, the load of the tier that fills it, and the guide's P:D ratio (6.5)."""
        prefill, decode = (one.utilization * one.replicas for one in self.pools)
        most = self.rps / self.first.utilization
        return {"first_pool": self.first.pool, "most_rps": most, "wanted_ratio": prefill / decode}


def answer_pools(seen: ProductionSummary, instances: tuple[int, ...], asked_rps: float | None) -> PoolsWhatIf:
    """Return the answer for replicas of both pools at rps of the tier (None: the peak). Raise ValueError without one."""
    if seen.context.serves_whole_requests or len(instances) != len(POOL_TOKENS):
        raise ValueError(ONE_POOL if seen.context.serves_whole_requests else TWO_POOLS)
    # A request passes both pools, and hours of the whole tier would count it twice.
    peak = find_peak(seen.pools.get("decode", seen))
    rps = asked_rps or (peak.rps if peak else 0.0)
    if rps <= 0:
        raise ValueError(NO_PEAK)
    found = []
    for pool, replicas in zip(POOL_TOKENS, instances, strict=True):
        own = seen.pools.get(pool)
        context = own.context if own else narrow_to_pool(seen.context, pool, None)
        if context.capacity is None or context.plan is None:
            raise ValueError(f"{pool} pool: the plan lacks `disaggregation`, or a request's mean tokens are not known")
        found.append(
            PoolWhatIf(
                pool=pool,
                replicas=replicas,
                now=own.observed_replicas if own else 0.0,
                utilization=rps / replicas / context.capacity.rps,
                needed=replica_count(rps, context.capacity, margin_of(context.limits)),
                bill=compute_bill(context.plan, replicas, None),
            )
        )
    return PoolsWhatIf(tier=seen.context.tier, rps=rps, pools=tuple(found))
