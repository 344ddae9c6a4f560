"""What-if of a tier: verdict, use, need, cost and first limit with other replicas or load.

The verdict compares the arriving work of a replica with the capacity: more replicas or less load never serve worse
(DESIGN 3.24). Latencies are the benchmark's. To add a limit: a row of `_list_limits`. Where prefill and decode are
served apart, the capacity of the fuller pool is the tier's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rules.catalogue.registry import BY_NAME as RULES
from rules.catalogue.registry import margin_of
from rules.confidence import Certainty
from rules.evaluator.alert_severity import list_open_burns
from rules.plan.capacity import POOL_TOKENS, capacity_lengths, planned_work
from rules.plan.curve import IN_SYSTEM, OFTEN_UNMEASURED, OperatingPoint
from rules.plan.load_bins import TierContext, narrow_to_pool
from rules.plan.money import price_of
from rules.plan.replica_count import ROUNDING, ReplicaCount, fleet_terms, replica_count
from rules.resize.fleet_cost import FleetCost, tokens_per_hour
from rules.resize.production_summary import RATE_SECONDS, ProductionSummary, Rate, SloStatus, pick_peak
from rules.resize.proposal import KV
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import HOUR_SECONDS
from rules.telemetry.work import UNTOLD, Capacity, CapacityLengths, CapacitySource, work_per_request
from rules.verdicts.verdict import Finding

NO_PEAK = "no peak was seen and the plan has none: say with --rps for which load"
TWO_POOLS = "it serves prefill and decode apart: give replicas of both, such as --instances 2+6"

SLO, GIVEN = "slo", "planned_operating_point"
"""Names of limits without a signal."""

NAMES = (
    *("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds", "itl_p99_seconds"),
    *("e2e_p99_seconds", KV, IN_SYSTEM),
)
"""What is read from the benchmark."""

RESTARTS = 0.05
"""Replicas by which an hour's mean may exceed a whole number, or miss it: a restart takes minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPeak:
    """Peak of the whole tier's arrivals in rps: when (unix seconds, None: never seen), and its source.

    `work` is that of one request then, in requests of the capacity's lengths. `highest` is the busiest single stretch.
    """

    rps: float
    at: float | None
    source: str
    work: float = 1.0
    highest: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLoad:
    """The SLO for so many replicas at `rps` (requests) each, and the benchmark's readings by signal."""

    replicas: float
    rps: float
    kept: SloStatus
    benchmark: Mapping[str, SignalValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLimit:
    """Limit by name (a signal's or one of the module), and the rps of one replica that meets it, in present requests.

    `objective` is the quantity's limit.
    """

    name: str
    rps: SignalValue
    source: CapacitySource
    reason: str
    objective: float | None = None

    @property
    def best(self) -> float | None:
        """Return the best estimate of the load, None if unknown."""
        return self.rps.value if isinstance(self.rps, Reading) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBurns:
    """Open findings of the SLO: it is broken at `replicas` or fewer with `rps` of the tier or more."""

    findings: tuple[Finding, ...] = ()
    replicas: float = 0.0
    rps: float = 0.0

    def cover(self, replicas: float, rps: float) -> bool:
        """Return whether the SLO is broken with so many replicas at a load of the tier."""
        return bool(self.findings) and replicas <= self.replicas + RESTARTS and rps >= self.rps


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Answer for `asked` replicas at `rps` of the tier (`asked_rps`, None: the peak), with their `cost`.

    `work_rps` is the work of that load in requests of the capacity's lengths. `now` has the present replicas (None: none
    seen), `one_lost` one fewer (None: of one). One may be lost up to `one_lost_rps`, at most the present load while a
    finding is open at that size. `needed` are the replicas for the work, `fleet` those of Step 11. `utilization` is the
    work's share of the capacity (None: unknown, or a lower bound alone). `limits` are by rising load. The curve is read
    at `curve_work` benchmarked requests a request.
    """

    seen: ProductionSummary
    peak: ObservedPeak | None
    rps: float
    asked_rps: float | None
    work_rps: float
    asked: AtLoad
    now: AtLoad | None
    one_lost: AtLoad | None
    one_lost_rps: float | None
    burns: OpenBurns
    utilization: float | None
    needed: ReplicaCount | None
    fleet: ReplicaCount | None
    limits: tuple[CapacityLimit, ...]
    cost: FleetCost
    cost_now: FleetCost | None
    curve_work: float

    @property
    def first_limit(self) -> CapacityLimit | None:
        """Return the limit at the lowest load, None without a known one."""
        return next((limit for limit in self.limits if limit.best is not None), None)


def is_open(capacity: Capacity) -> bool:
    """Return whether neither benchmark nor production ever broke the SLO: nothing is known of higher loads."""
    return capacity.is_lower_bound or (capacity.high is None and not capacity.knee_seen)


def check_capacity(capacity: Capacity | None, work_rps: float) -> SloStatus:
    """Return whether one replica keeps the SLO at so much arriving work, in requests of the capacity's lengths.

    The result never improves with load. It is certain within production's bounds alone.
    """

    def is_within(limit: float) -> bool:
        return work_rps <= limit * (1 + ROUNDING)

    if capacity is None:
        return SloStatus.NOT_KNOWN
    is_certain = capacity.certainty is Certainty.CERTAIN
    if is_within(capacity.rps):
        return SloStatus.KEPT if is_certain and is_within(capacity.low) else SloStatus.LIKELY_KEPT
    if is_open(capacity):
        return SloStatus.NOT_KNOWN
    is_beyond = capacity.knee_seen and capacity.high is not None and not is_within(capacity.high)
    return SloStatus.BROKEN if is_certain and is_beyond else SloStatus.LIKELY_BROKEN


def explain_unanswerable(seen: ProductionSummary, rps: float | None) -> str:
    """Return why a tier has no answer at `rps` (None: the observed peak), or ""."""
    if not seen.context.serves_whole_requests:
        return TWO_POOLS
    if seen.context.plan is None:
        return "it is in no plan: nothing limits its latency"
    return NO_PEAK if rps is None and find_peak(seen) is None else ""


def answer_question(
    seen: ProductionSummary, instances: int, asked_rps: float | None = None, findings: Iterable[Finding] = ()
) -> WhatIf:
    """Return the answer for replicas at rps of the tier (None: the peak). Of the tier's `findings` the open ones count.

    Raise ValueError if `explain_unanswerable` has a reason.
    """
    context, plan, peak = seen.context, seen.context.plan, find_peak(seen)
    rps = asked_rps or (peak.rps if peak else 0.0)
    if plan is None or explain_unanswerable(seen, asked_rps) or rps <= 0:
        raise ValueError(explain_unanswerable(seen, asked_rps) or f"{rps} rps is no load")
    capacity, now, burns = context.capacity, count_present_replicas(seen), _find_burns(seen, findings, peak)
    counted = capacity if capacity is not None and not capacity.is_lower_bound else None
    point, work = context.curve.usable(plan.slo) if context.curve else None, peak.work if peak else 1.0
    benchmarked = work * _compare_lengths(seen, point)

    def at(replicas: float) -> AtLoad:
        kept = check_capacity(capacity, rps * work / replicas)
        names = (name for name in NAMES if name not in OFTEN_UNMEASURED or getattr(plan.slo, name))
        return AtLoad(
            replicas=replicas,
            rps=rps / replicas,
            kept=SloStatus.BROKEN if burns.cover(replicas, rps) else kept,
            benchmark={name: _read_benchmark(context, name, rps * benchmarked / replicas) for name in names},
        )

    left = counted.rps / work * (instances - 1) if counted else None
    if left is not None and burns.cover(instances - 1, left):
        left = burns.rps
    margin, tokens, price = margin_of(context.limits), tokens_per_hour(seen), price_of(plan)
    limits = _list_limits(context, point, work, benchmarked)
    # Another peak scales the whole traffic.
    grown = rps / peak.rps if peak is not None and peak.at is not None else 1.0
    if counted is not None and seen.average_rps:
        # Replicas that cannot serve all of it make fewer tokens.
        grown = min(grown, instances * counted.rps / (work * seen.average_rps))
    cost_now = FleetCost(replicas=seen.observed_replicas, price=price, tokens_per_hour=tokens)
    return WhatIf(
        seen=seen,
        peak=peak,
        rps=rps,
        asked_rps=asked_rps,
        work_rps=rps * work,
        asked=at(instances),
        now=at(now) if now else None,
        one_lost=at(instances - 1) if instances > 1 else None,
        one_lost_rps=left,
        burns=burns,
        utilization=rps * work / instances / counted.rps if counted else None,
        needed=replica_count(rps * work, counted, margin) if counted else None,
        fleet=replica_count(rps * work, counted, margin, *fleet_terms(plan)) if counted else None,
        limits=tuple(sorted(limits, key=lambda limit: (limit.best is None, limit.best or 0.0))),
        cost=FleetCost(replicas=instances, price=price, tokens_per_hour=tokens * grown if tokens else None),
        cost_now=cost_now if seen.observed_replicas > 0 else None,
        curve_work=benchmarked,
    )


def _read_benchmark(context: TierContext, name: str, rps: float) -> SignalValue:
    if context.curve is None:
        return Missing(gap=Gap.NOT_IN_PLAN, text="the plan has no benchmark")
    if name == "itl_p99_seconds" and not context.itl_comparable:
        return Missing(gap=Gap.NOT_EXPOSED, text="engine and benchmark do not mean the same by ITL")
    return context.curve.read(name, rps)


def _find_burns(seen: ProductionSummary, findings: Iterable[Finding], peak: ObservedPeak | None) -> OpenBurns:
    """Return the open findings that were certain, with the present size and load; none without present replicas."""
    burns, now = list_open_burns(findings), count_present_replicas(seen)
    if now is None or not burns:
        return OpenBurns()
    # Less than the present load may be carried. The peak, the load by default, is never less.
    loads = [candidate.rps for candidate in (peak, seen.present) if candidate is not None]
    return OpenBurns(findings=burns, replicas=math.ceil(now - RESTARTS), rps=min(loads, default=0.0))


def _compare_lengths(seen: ProductionSummary, point: OperatingPoint | None) -> float:
    """Return the work of a request of the capacity's lengths, in requests of the benchmark's, as they were lately."""
    plan, capacity, curve = seen.context.plan, seen.context.capacity, seen.context.curve
    if plan is None or capacity is None or curve is None or seen.lately is None:
        return 1.0
    benchmarked = capacity_lengths(plan.model_copy(update={"operating_point": None}), curve, point)
    each = [work_per_request(seen.lately, lengths)[1] for lengths in (benchmarked, capacity.lengths)]
    return each[0] / each[1] if all(each) else 1.0


def _list_limits(
    context: TierContext, point: OperatingPoint | None, work: float, benchmarked: float
) -> Iterable[CapacityLimit]:
    """Yield every limit for requests of so much work by the capacity's and by the benchmark's lengths."""
    capacity, plan = context.capacity, context.plan
    if capacity is not None and plan is not None:
        limited = point.limited_by if point else None
        own = {CapacitySource.OPERATOR: GIVEN, CapacitySource.PRODUCTION: SLO}
        name = own.get(capacity.source, limited or SLO)
        rps = Reading(value=capacity.rps, low=capacity.low, high=capacity.high, n=0.0)
        rps = Reading(value=None, low=capacity.rps, high=None, n=0.0) if is_open(capacity) else rps
        objective = getattr(plan.slo, name, None)
        rps = rps.map(lambda part: part / work)
        yield CapacityLimit(name=name, rps=rps, source=capacity.source, reason=capacity.reason, objective=objective)
    ceiling = RULES["KvCacheNearCeiling"].limit("above", context.limits)
    index, crosses = context.curve.find_limit(KV, ceiling) if context.curve else (-1.0, False)
    load: SignalValue = Missing(gap=Gap.NOT_IN_PLAN, text="the benchmark did not measure it")
    reason = ""
    if context.curve is not None and (index >= 0 or crosses):
        reached = (context.curve.rps_at_point(index) if index >= 0 else 0.0) / benchmarked
        load, verb = Reading(value=None, low=reached, high=None, n=0.0), "keeps"
        if crosses and index < len(context.curve.points) - 1:
            load, verb = Reading(value=reached, low=None, high=None, n=0.0), "meets"
        reason = f"the benchmark {verb} it at {reached:.3g} rps a replica"
    yield CapacityLimit(name=KV, rps=load, source=CapacitySource.BENCHMARK, reason=reason, objective=ceiling)


def find_peak(seen: ProductionSummary) -> ObservedPeak | None:
    """Return the peak of production or of the plan, None without either.

    The third busiest five minutes count, so that one burst is no peak. In the first hour the busiest minute counts. What
    arrives now counts where it is more.
    """
    plan, capacity = seen.context.plan, seen.context.capacity
    lengths, third = capacity.lengths if capacity else UNTOLD, "reached in three stretches of five minutes"
    if len(seen.rates) * RATE_SECONDS >= HOUR_SECONDS:
        peak = _pick_third(seen.rates, lengths, third)
    else:
        peak = _pick_third([seen.busiest], lengths, "the busiest minute: an hour was not seen yet")
    planned = plan.workload.requests_per_second if plan and plan.workload else None
    if peak is None:
        known = planned.peak if planned else None
        if plan is None or known is None:
            return None
        return ObservedPeak(
            rps=known, at=None, source="the plan's peak: none was seen", work=planned_work(plan, lengths)
        )
    arriving = _pick_third([seen.present], lengths, "what arrives now, more than any peak before")
    return arriving if arriving and arriving.rps * arriving.work > peak.rps * peak.work else peak


def _pick_third(rates: Sequence[Rate | None], lengths: CapacityLengths, source: str) -> ObservedPeak | None:
    known = [rate for rate in rates if rate and rate.rps > 0]
    if not known:
        return None
    peak, work = pick_peak(known, lengths)
    highest = max(rate.rps for rate in known)
    return ObservedPeak(rps=peak.rps, at=peak.start, source=source, work=work / peak.rps, highest=highest)


def count_present_replicas(seen: ProductionSummary) -> float | None:
    """Return the mean replicas of the last hour that was seen, None if that hour is not the present one."""
    last = seen.hours[-1] if seen.hours else None
    if last is None or last.span <= 0 or last.end <= seen.until - HOUR_SECONDS:
        return None
    return last.covered_seconds / last.span


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
