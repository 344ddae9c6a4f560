"""What-if of a tier: latency, SLO, cost and first limit with other replicas, load or prompts.

To add an assumption: a line of `_assumed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rules.catalogue.registry import margin_of
from rules.plan.benchmark_reading import IN_SYSTEM, read_benchmark
from rules.plan.capacity import POOL_TOKENS
from rules.plan.curve import CERTAIN_REQUESTS, LIMITED, OFTEN_UNMEASURED
from rules.plan.load_bins import BinnedWindow, narrow_to_pool
from rules.plan.replica_count import ReplicaCount, replica_count
from rules.plan.schema import TierPlan
from rules.resize.fleet_cost import Bill, compute_bill, tokens_per_hour
from rules.resize.measured_capacity import slower_than_planned
from rules.resize.production_curve import ProductionPoint, SloStatus, production_points
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import WorkloadNow, measure_workload
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Missing, Reading
from rules.telemetry.work import Capacity
from rules.what_if.limits import CapacityLimit, find_first_limit, list_limits
from rules.what_if.prediction import NOT_MEASURED, Prediction, PredictionInputs, SloPrediction, check_objective, predict
from rules.what_if.production import ObservedPeak, ProductionLoads, collect_loads, count_replicas_at, find_peak
from rules.what_if.prompts import KV, PromptEffect, PromptVariation, estimate_effect

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
    """Replicas, load of the whole tier in rps (None: the observed peak) and factor of the prompts' length.

    `instances_by_pool` are the replicas for prefill and for decode, empty where they do both.
    """

    instances: int
    rps: float | None = None
    prompt_scale: float = 1.0
    instances_by_pool: tuple[int, ...] = ()


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
    is the capacity, `utilization` the asked load's share of it, `needed` the replicas for that load. They are None with
    other prompts or a capacity that is only a lower bound.
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
        """Return the limit that breaks first."""
        found = find_first_limit(tuple(one.limit for one in self.met))
        return next((one for one in self.met if one.limit is found), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWhatIf:
    """One pool with `replicas` at the asked load: its capacity, use and need, and its mean replicas `now` (0: not seen)."""

    pool: str
    replicas: int
    now: float
    capacity: Capacity
    utilization: float
    needed: ReplicaCount
    bill: Bill | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsWhatIf:
    """Answer for prefill and decode apart at `rps` of the tier, from the peak unless asked. Latencies are not predicted."""

    tier: str
    rps: float
    peak: ObservedPeak | None
    pools: tuple[PoolWhatIf, ...]

    @property
    def first(self) -> PoolWhatIf:
        """Return the pool that is full first."""
        return max(self.pools, key=lambda one: one.utilization)

    @property
    def most_rps(self) -> float:
        """Return the load of the tier that fills the first pool."""
        return self.rps / self.first.utilization

    @property
    def wanted_ratio(self) -> float:
        """Return the guide's P:D ratio (6.5): replicas that each pool needs at full use, divided."""
        prefill, decode = (one.utilization * one.replicas for one in self.pools)
        return prefill / decode


def answer_pools(seen: ProductionSummary, question: WhatIfQuestion) -> PoolsWhatIf | str:
    """Return the answer for a tier of two pools, or why there is none. `instances_by_pool` says how many each has."""
    if len(question.instances_by_pool) != len(POOL_TOKENS):
        return TWO_POOLS
    if question.prompt_scale != 1:
        return "what other prompts do to a prefill replica was not measured: benchmark it with them"
    # A request passes both pools, and hours of the whole tier would count it twice.
    peak = find_peak(seen.pools.get("decode", seen))
    rps = question.rps or (peak.rps if peak else 0.0)
    if rps <= 0:
        return NO_PEAK
    found = []
    for pool, replicas in zip(POOL_TOKENS, question.instances_by_pool, strict=True):
        own = seen.pools.get(pool)
        context = own.context if own else narrow_to_pool(seen.context, pool, None)
        if context.capacity is None or context.plan is None:
            return f"{pool} pool: the plan lacks `disaggregation`, or nothing tells the mean tokens of a request"
        found.append(
            PoolWhatIf(
                pool=pool,
                replicas=replicas,
                now=own.mean_ready_replicas if own else 0.0,
                capacity=context.capacity,
                utilization=rps / replicas / context.capacity.rps,
                needed=replica_count(rps, context.capacity, margin_of(context.limits)),
                bill=compute_bill(context.plan, replicas, None),
            )
        )
    return PoolsWhatIf(tier=seen.context.tier, rps=rps, peak=peak, pools=tuple(found))


TWO_POOLS = "it serves prefill and decode apart: give replicas of both, such as --instances 2+6"
NO_PEAK = "no peak was seen and the plan has none: say with --rps for which load"


def explain_unanswerable(seen: ProductionSummary, question: WhatIfQuestion) -> str:
    """Return why a tier has no prediction, or ""."""
    plan = seen.context.plan
    if not seen.context.serves_whole_requests:
        return TWO_POOLS
    if question.instances_by_pool:
        return "its replicas serve whole requests: give one number of them"
    if question.rps is None and find_peak(seen) is None:
        return NO_PEAK
    if plan is None and not any(one.rps for one in seen.bins):
        return "it is in no plan, and no traffic of it was seen"
    return ""


def answer_question(
    seen: ProductionSummary, binned: Iterable[BinnedWindow], hours: Iterable[PromptVariation], question: WhatIfQuestion
) -> WhatIf:
    """Return the answer from production, recent windows under the present plan, and hours with varying prompts.

    Raise ValueError if `explain_unanswerable` has a reason.
    """
    peak = find_peak(seen)
    rps = question.rps or (peak.rps if peak else 0.0)
    if explain_unanswerable(seen, question) or rps <= 0:
        raise ValueError(explain_unanswerable(seen, question) or f"{rps} rps is no load")
    points, work = production_points(seen.context, seen.bins), measure_workload(seen)
    slower = _slower(seen, points)
    ground = _ground(seen, collect_loads(binned, seen.context), tuple(hours), work, question, slower)
    usable = seen.context.capacity
    counted = usable if usable is not None and not usable.is_lower_bound else None
    now = count_replicas_at(seen, peak.at if peak else None)
    found = list_limits(ground)
    breaks = find_first_limit(found)
    per_replica = rps / question.instances
    return WhatIf(
        tier=seen.context.tier,
        question=question,
        peak=peak,
        rps=rps,
        asked=_at(ground, question.instances, rps),
        now=_at(replace(ground, scale=1.0), now, rps) if now else None,
        one_lost=_at(ground, question.instances - 1, rps) if question.instances > 1 else None,
        usable=usable,
        utilization=per_replica / counted.rps if counted else None,
        needed=replica_count(rps, counted, margin_of(seen.context.limits))
        if counted and question.prompt_scale == 1
        else None,
        met=tuple(_met(one, question.instances, rps) for one in found),
        one_lost_rps=breaks.earliest * (question.instances - 1) if breaks and breaks.earliest is not None else None,
        **_bills(seen, question, peak, rps),
        workload=work,
        slower=slower,
        days_seen=seen.observed_seconds / 86_400,
        assumed=tuple(_assumed(ground, question, points, work)),
    )


def _ground(
    seen: ProductionSummary,
    known: ProductionLoads,
    hours: Sequence[PromptVariation],
    work: WorkloadNow,
    question: WhatIfQuestion,
    slower: Mapping[str, float],
) -> PredictionInputs:
    names = (*LIMITED, *LATENCIES, KV) if question.prompt_scale != 1 else ()
    effects: dict[str, PromptEffect] = {
        name: one for name in names if (one := estimate_effect(hours, name)) is not None
    }
    return PredictionInputs(
        context=seen.context,
        served=known,
        scale=question.prompt_scale,
        prompts=work.prompt_mean,
        effects=effects,
        slower=slower,
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
    reach = limit.rps.value if isinstance(limit.rps, Reading) else None
    load = limit.earliest if limit.breaks else reach
    if load is None:
        return LimitHeadroom(limit=limit, tier_rps=None, headroom=None, fewest=None)
    fewest = math.ceil(round(rps / load, 9)) if load > 0 else None
    return LimitHeadroom(limit=limit, tier_rps=load * instances, headroom=load * instances / rps - 1, fewest=fewest)


def _bills(
    seen: ProductionSummary, question: WhatIfQuestion, peak: ObservedPeak | None, rps: float
) -> Mapping[str, Bill | None]:
    """Return the bills. Another peak scales the whole traffic."""
    plan: TierPlan | None = seen.context.plan
    if plan is None:
        return {"bill": None, "bill_now": None}
    tokens = tokens_per_hour(seen)
    grown = rps / peak.rps if question.rps is not None and peak is not None and peak.at is not None else 1.0
    return {
        "bill": compute_bill(plan, question.instances, tokens * grown if tokens else None),
        "bill_now": compute_bill(plan, seen.mean_ready_replicas, tokens) if seen.mean_ready_replicas > 0 else None,
    }


def _assumed(
    ground: PredictionInputs, question: WhatIfQuestion, points: Sequence[ProductionPoint], work: WorkloadNow
) -> Iterable[str]:
    yield "the load is spread evenly over the replicas, and latency never falls with load"
    yield "prompts, outputs, prefix hits and engine stay as in the time looked at (its last 7 days), but for what was asked"
    if ground.served.overloaded:
        share = f"{ground.served.overloaded:.0f} requests"
        yield f"{share} served in overload (more in the system than the benchmark ever had) are left out of the curve"
    if question.rps is not None:
        yield "the traffic of the other hours grows as the peak does; outputs stay as long"
    yield from _assumed_of_prompts(ground, question)
    if work.prompt_mean and _hits(ground, points) and question.prompt_scale != 1:
        yield "the share of prompt tokens found in the prefix cache stays as it is"


def _hits(ground: PredictionInputs, points: Sequence[ProductionPoint]) -> bool:
    found = [read(BY_NAME["prefix_hit_ratio"], one.window, ground.context.basis) for one in ground.served.blocks[:1]]
    return bool(points) and any(isinstance(one, Reading) for one in found)


def _assumed_of_prompts(ground: PredictionInputs, question: WhatIfQuestion) -> Iterable[str]:
    scale = question.prompt_scale
    if scale == 1:
        return
    unknown = []
    for name, word in (("ttft_p99_seconds", "TTFT"), ("tpot_p99_seconds", "TPOT"), (KV, "KV utilisation")):
        found = ground.effect(name)
        if found is None:
            unknown.append(word)
            continue
        text = f"{word} moves with the prompts' length to the power of {found.value:.2f} ({found.low:.2f} to {found.high:.2f}): "
        text += f"seen at equal load in {found.hours} hours with means of {found.shortest:.0f} to {found.longest:.0f} tokens"
        yield f"{text}; P50 and P99 move as the mean does"
    least, most = sorted((1.0, scale * scale))
    law = f"bounds only: a request takes {least:.3g} to {most:.3g} times the work (attention grows with the square of a prompt)"
    law += " and queues grow with it"
    if unknown:
        yield f"production did not show what such prompts do to {', '.join(unknown)}: {law}"
    if ground.context.curve is not None:
        yield f"the benchmark's own prompts are scaled alike, {law if not unknown else 'with the same bounds'}"
