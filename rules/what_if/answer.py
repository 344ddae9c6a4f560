"""What-if of a tier: latency, SLO, cost and first limit with other replicas or load.

To add an assumption: a line of `_assumed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rules.catalogue.registry import margin_of
from rules.plan.benchmark_reading import IN_SYSTEM, read_benchmark
from rules.plan.curve import CERTAIN_REQUESTS, LIMITED, OFTEN_UNMEASURED
from rules.plan.load_bins import BinnedWindow
from rules.plan.replica_count import ReplicaCount, replica_count
from rules.resize.fleet_cost import Bill, FleetProposal, compute_bill, size_fleet, tokens_per_hour
from rules.resize.measured_capacity import slower_than_planned
from rules.resize.production_curve import ProductionPoint, SloStatus, production_points
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import WorkloadNow, measure_workload
from rules.telemetry.signals import Missing, Reading
from rules.telemetry.work import Capacity
from rules.what_if.limits import TWO_POOLS, CapacityLimit, find_first_limit, list_limits
from rules.what_if.prediction import NOT_MEASURED, Prediction, PredictionInputs, SloPrediction, check_objective, predict
from rules.what_if.production import KV, NO_PEAK, ObservedPeak, collect_loads, count_replicas_at, find_peak

LATENCIES = ("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds")

WORST_FIRST = (
    SloStatus.BROKEN,
    SloStatus.LIKELY_BROKEN,
    SloStatus.NOT_KNOWN,
    SloStatus.TOO_FEW,
    SloStatus.LIKELY_KEPT,
    SloStatus.KEPT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfQuestion:
    """Replicas, and load of the whole tier in rps (None: the observed peak)."""

    instances: int
    rps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLoad:
    """Predictions and objectives for so many replicas at `rps` each."""

    replicas: float
    rps: float
    predicted: tuple[Prediction, ...]
    held: tuple[SloPrediction, ...]
    kept: SloStatus

    def get_prediction(self, name: str) -> Prediction:
        """Return the prediction of a quantity. Raise KeyError for an unknown one."""
        return {one.name: one for one in self.predicted}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHeadroom:
    """Limit with the tier's load that meets it, its headroom above the asked load, and the fewest replicas within it.

    Headroom 0.25 is a quarter more load. Values are None without a known load.
    """

    limit: CapacityLimit
    tier_rps: float | None
    headroom: float | None
    fewest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Answer of a what-if.

    `now` is the busiest hours' state (None: no replica seen), `one_lost` has one replica fewer (None: of one). `usable`
    is the capacity, `utilization` the asked load's share of it, `needed` the replicas for that load, `fleet` those of
    Step 11 with the plan's safety factor and minimum. Without a capacity, or with a lower bound alone, the last three are None.
    """

    tier: str
    question: WhatIfQuestion
    peak: ObservedPeak | None
    rps: float
    asked: AtLoad
    now: AtLoad | None
    one_lost: AtLoad | None
    usable: Capacity | None
    utilization: float | None
    needed: ReplicaCount | None
    fleet: FleetProposal | None
    met: tuple[LimitHeadroom, ...]
    one_lost_rps: float | None
    bill: Bill | None
    bill_now: Bill | None
    workload: WorkloadNow
    slower: Mapping[str, float]
    days_seen: float
    assumed: tuple[str, ...]

    @property
    def first_limit(self) -> LimitHeadroom | None:
        found = find_first_limit(tuple(one.limit for one in self.met))
        return next((one for one in self.met if one.limit is found), None)


def explain_unanswerable(seen: ProductionSummary, question: WhatIfQuestion) -> str:
    """Return why a tier has no prediction, or ""."""
    plan = seen.context.plan
    if not seen.context.serves_whole_requests:
        return TWO_POOLS
    if question.rps is None and find_peak(seen) is None:
        return NO_PEAK
    if plan is None and not any(one.rps for one in seen.bins):
        return "it is in no plan, and no traffic of it was seen"
    return ""


def answer_question(seen: ProductionSummary, binned: Iterable[BinnedWindow], question: WhatIfQuestion) -> WhatIf:
    """Return the answer from production and recent windows under the present plan.

    Raise ValueError if `explain_unanswerable` has a reason.
    """
    peak = find_peak(seen)
    rps = question.rps or (peak.rps if peak else 0.0)
    if explain_unanswerable(seen, question) or rps <= 0:
        raise ValueError(explain_unanswerable(seen, question) or f"{rps} rps is no load")
    points, work = production_points(seen.context, seen.bins), measure_workload(seen)
    slower = _slower(seen, points)
    ground = PredictionInputs(context=seen.context, served=collect_loads(binned, seen.context), slower=slower)
    usable = seen.context.capacity
    counted = usable if usable is not None and not usable.is_lower_bound else None
    now = count_replicas_at(seen, peak.at if peak else None)
    found = list_limits(ground)
    breaks, margin = find_first_limit(found), margin_of(seen.context.limits)
    per_replica = rps / question.instances
    plan, tokens = seen.context.plan, tokens_per_hour(seen)
    # Another peak scales the whole traffic.
    grown = rps / peak.rps if question.rps is not None and peak is not None and peak.at is not None else 1.0
    return WhatIf(
        tier=seen.context.tier,
        question=question,
        peak=peak,
        rps=rps,
        asked=_at(ground, question.instances, rps),
        now=_at(ground, now, rps) if now else None,
        one_lost=_at(ground, question.instances - 1, rps) if question.instances > 1 else None,
        usable=usable,
        utilization=per_replica / counted.rps if counted else None,
        needed=replica_count(rps, counted, margin) if counted else None,
        fleet=size_fleet(plan, rps, "", counted, margin) if counted and plan else None,
        met=tuple(_met(one, question.instances, rps) for one in found),
        one_lost_rps=breaks.earliest * (question.instances - 1) if breaks and breaks.earliest is not None else None,
        bill=compute_bill(plan, question.instances, tokens * grown if tokens else None) if plan else None,
        bill_now=compute_bill(plan, seen.observed_replicas, tokens) if plan and seen.observed_replicas > 0 else None,
        workload=work,
        slower=slower,
        days_seen=seen.observed_seconds / 86_400,
        assumed=tuple(_assumed(ground, question)),
    )


def _slower(seen: ProductionSummary, points: Sequence[ProductionPoint]) -> Mapping[str, float]:
    """Return production's largest ratios to the benchmark at equal load, by the first word of a quantity's name."""
    ttft, tpot = slower_than_planned(points)
    fuller = [1.0]
    for one in points:
        planned, found = read_benchmark(seen.context, KV, one.rps), one.kv_utilization
        if one.bin is not None and one.requests >= CERTAIN_REQUESTS and isinstance(found, Reading) and found.value:
            fuller += [found.value / planned.value] if isinstance(planned, Reading) and planned.value else []
    return {"ttft": ttft, "tpot": tpot, "itl": tpot, "e2e": max(ttft, tpot), "kv": max(fuller)}


def _at(ground: PredictionInputs, replicas: float, rps: float) -> AtLoad:
    each = rps / replicas
    slo = ground.context.plan.slo if ground.context.plan else None
    names = [*LATENCIES, *(name for name in OFTEN_UNMEASURED if getattr(slo, name, None)), KV, IN_SYSTEM]
    told = [
        check_objective(ground, name, objective, each)
        for name in LIMITED
        if slo is not None and (objective := getattr(slo, name)) is not None
    ]
    several = {name: predict(ground, name, each) for name in names}
    # What neither the engine shows nor the benchmark measured says nothing of the others.
    spoken = [one for one in told if one.kept is not SloStatus.NOT_KNOWN or not _unmeasured(several[one.name])]
    return AtLoad(
        replicas=replicas,
        rps=each,
        predicted=tuple(several.values()),
        held=tuple(told),
        kept=min((one.kept for one in spoken), key=WORST_FIRST.index, default=SloStatus.NOT_KNOWN),
    )


def _unmeasured(one: Prediction) -> bool:
    return all(isinstance(value, Missing) and value.gap in NOT_MEASURED for value in (one.production, one.benchmark))


def _met(limit: CapacityLimit, instances: int, rps: float) -> LimitHeadroom:
    load = limit.rps.value if isinstance(limit.rps, Reading) else None
    if load is None:
        return LimitHeadroom(limit=limit, tier_rps=None, headroom=None, fewest=None)
    fewest = math.ceil(round(rps / load, 9)) if load > 0 else None
    return LimitHeadroom(limit=limit, tier_rps=load * instances, headroom=load * instances / rps - 1, fewest=fewest)


def _assumed(ground: PredictionInputs, question: WhatIfQuestion) -> Iterable[str]:
    yield "the load is spread evenly over the replicas, and latency never falls with load"
    yield "prompts, outputs, prefix hits and engine stay as in the time looked at (its last 7 days)"
    if ground.served.overloaded:
        share = f"{ground.served.overloaded:.0f} requests"
        yield f"{share} served in overload (more in the system than the benchmark ever had) are left out of the curve"
    if question.rps is not None:
        yield "the traffic of the other hours grows as the peak does; outputs stay as long"
