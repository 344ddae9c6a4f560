"""Re-sizing of a tier from production (guide 9.1, Steps 1, 11 and 12): keep, grow, shrink or move.

With too little data there is no proposal; it names what is missing and how much is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rules.catalogue.registry import BY_NAME as RULES
from rules.catalogue.registry import margin_of
from rules.confidence import Certainty
from rules.methods.utilization import hours_of_fullest
from rules.plan.curve import CERTAIN_REQUESTS
from rules.plan.replica_count import count_replicas, fleet_terms
from rules.plan.schema import TierPlan
from rules.resize.fleet_cost import (
    FleetCost,
    FleetProposal,
    find_peak_rps,
    measured_cost,
    planned_cost,
    proposed_cost,
    size_fleet,
)
from rules.resize.levers import SCHEDULE, Lever, list_levers
from rules.resize.limits import fewest_within_limits, find_exceeded_limit, limits_text, loads_of
from rules.resize.production_curve import ProductionPoint, production_points
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import Length, WorkloadNow, measure_workload
from rules.telemetry import windows
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import DAY_SECONDS
from rules.telemetry.wording import format_count, number
from rules.telemetry.work import Capacity
from rules.verdicts.context import SEPARATE
from rules.verdicts.verdict import FIRING, RuleResult, Verdict

TO_GROW_SECONDS = 0.9 * DAY_SECONDS
"""A peak that was seen is one, however short the time: a day has its busy hours in it."""

TO_SHRINK_SECONDS = 0.9 * 7 * DAY_SECONDS
"""What was not needed on a day may be needed on another weekday: a week, as the rules over days ask."""

GONE_SECONDS = DAY_SECONDS
"""A tier of which nothing was seen for the last day may be gone: what it was is no reason to change what is."""

EVICTING = ("KvEviction", "EvictionDivergence")

WORTH_REPLICAS = 0.1
"""Mean replicas that a schedule must free to be named as the lever: below it the money is that of rounding."""


class ProposalKind(StrEnum):
    KEEP = "keep"
    GROW = "grow"
    SHRINK = "shrink"
    MOVE = "move"
    NONE = "no_recommendation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Proposal of `replicas` for the plan's `now` (None: no proposal). `needed` names missing data."""

    kind: ProposalKind
    certainty: Certainty
    now: int | None
    replicas: int | None
    sentence: str
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    to_tier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Steps 1, 11 and 12 of a tier, and of each of its pools; None for a step without data."""

    seen: ProductionSummary
    workload: WorkloadNow
    points: tuple[ProductionPoint, ...]
    utilization: SignalValue
    kv_fullest: float | None
    usable: Capacity | None
    sized: FleetProposal | None
    planned: FleetCost | None
    measured: FleetCost | None
    proposed: FleetCost | None
    levers: tuple[Lever, ...]
    proposal: Proposal
    pools: Mapping[str, Resize] = field(default_factory=dict)


Answers = Mapping[str, RuleResult]
"""What the rules over the time say of the tier, by rule name."""


def index_by_rule(results: Iterable[RuleResult]) -> Answers:
    """Return the results of the tier as a whole by rule, verdicts before unknowns."""
    found: dict[str, RuleResult] = {}
    for result in results:
        if result.subject.replica is None and not isinstance(found.get(result.rule), Verdict):
            found[result.rule] = result
    return found


def propose_size(seen: ProductionSummary, results: Answers) -> Resize:
    """Return the steps and the proposal from production and the rules' results of the same time."""
    workload, points = measure_workload(seen), production_points(seen.context, seen.curve_bins)
    usable = seen.context.capacity
    plan, peak = seen.context.plan, find_peak_rps(seen, workload)
    mixed = seen.context.serves_whole_requests
    counted = usable if usable and not usable.is_lower_bound else None
    size = (
        size_fleet(plan, *peak, counted, margin_of(seen.context.limits))
        if mixed and plan and peak and counted
        else None
    )
    utilization = _utilization(seen)
    used = utilization.value if isinstance(utilization, Reading) else None
    full = hours_of_fullest(seen.hours, "kv_utilization", _trap("fullest_hours", seen))
    pools = {pool: propose_size(one, results) for pool, one in sorted(seen.pools.items())} if not mixed else {}
    alone = _proposal(seen, results, workload, usable, size, full[0] if full else None)
    measured = measured_cost(seen, used)
    levers = list_levers(seen, usable, size) if usable and size else ()
    cost = proposed_cost(seen, alone.replicas, measured, used) if alone.replicas else None
    if size is not None and cost is not None and cost.utilization is not None:
        alone = replace(alone, evidence=(*alone.evidence, _explain_use(alone, cost.utilization, seen, size, levers)))
    _, floor = fleet_terms(plan) if plan else (1.0, 1)
    proposal = _joined({pool: one.proposal for pool, one in pools.items()}, floor) if len(pools) > 1 else alone
    return Resize(
        seen=seen,
        workload=workload,
        points=points,
        utilization=utilization,
        kv_fullest=full[0] if full else None,
        usable=usable,
        sized=size,
        planned=planned_cost(seen.context),
        measured=measured,
        proposed=proposed_cost(seen, proposal.replicas, measured, used) if proposal.replicas else None,
        levers=levers,
        proposal=proposal,
        pools=pools,
    )


def _joined(parts: Mapping[str, Proposal], floor: int) -> Proposal:
    """Return the proposal of a tier from those of its pools: all of them, or none, and never fewer than `floor`."""
    known = [(pool, one.replicas, one.now) for pool, one in parts.items() if one.replicas is not None and one.now]
    needed, now = sum(row[1] for row in known), sum(row[2] for row in known)
    replicas = max(needed, floor)
    each = ", ".join(f"{pool} {count}" + ("" if count == was else f" instead of {was}") for pool, count, was in known)
    moves, complete = [count - was for _, count, was in known], len(known) == len(parts)
    kind = ProposalKind.GROW if max(moves, default=0) > 0 else ProposalKind.SHRINK if any(moves) else ProposalKind.KEEP
    kind = ProposalKind.KEEP if kind is ProposalKind.SHRINK and replicas >= now else kind
    each += f", and {replicas - needed} more for the minimum warm count" if replicas > needed else ""
    said = f"{kind.value.capitalize()}: {format_count(replicas, 'replica')}, {each}"
    sure = complete and all(one.certainty is Certainty.CERTAIN for one in parts.values())
    return Proposal(
        kind=kind if complete else ProposalKind.NONE,
        certainty=Certainty.CERTAIN if sure else Certainty.LIKELY,
        now=now if complete else None,
        replicas=replicas if complete else None,
        sentence=said if complete else "; ".join(f"{pool} pool: {one.sentence}" for pool, one in parts.items()),
        evidence=tuple(f"{pool} pool: {text}" for pool, one in parts.items() for text in one.evidence),
        against=tuple(f"{pool} pool: {text}" for pool, one in parts.items() for text in one.against),
        needed=tuple(f"{pool} pool: {text}" for pool, one in parts.items() for text in one.needed),
    )


def _utilization(seen: ProductionSummary) -> SignalValue:
    if not seen.plan_hours:
        return Missing(gap=Gap.SCRAPE_FAILED, text="no hour under the present plan was seen")
    return read(BY_NAME["fleet_utilization"], windows.sum_windows(seen.plan_hours), seen.context.basis)


def _trap(name: str, seen: ProductionSummary) -> float:
    return RULES["UtilizationTrap"].limit(name, seen.context.limits)


def _fires(results: Answers, names: Iterable[str]) -> bool:
    return any(isinstance(a := results.get(name), Verdict) and a.status in FIRING for name in names)


def _proposal(
    seen: ProductionSummary,
    results: Answers,
    workload: WorkloadNow,
    usable: Capacity | None,
    size: FleetProposal | None,
    kv_fullest: float | None,
) -> Proposal:
    plan = seen.context.plan
    now = plan.fleet.instances if plan and plan.fleet else (round(seen.observed_replicas) or None)
    lacking = _lacking(seen, plan, workload, usable)
    if lacking or plan is None or usable is None or size is None or now is None:
        lacking = lacking or ("no replica was seen",)
        more = f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        return Proposal(
            kind=ProposalKind.NONE,
            certainty=Certainty.LIKELY,
            now=now,
            replicas=None,
            sentence=f"No recommendation yet: {lacking[0]}{more}",
            needed=lacking,
        )
    evidence = _evidence(seen, workload, usable, size, plan)
    if size.replicas > now:
        return _grow(size, usable, now, evidence)
    if size.replicas == now:
        sure = usable.certainty is Certainty.CERTAIN and _long(seen)
        text = f"Keep {format_count(now, 'replica')}: that is what the traffic seen needs"
        return _kept(now, text, evidence, sure)
    return _fewer(seen, results, usable, size, now, evidence, kv_fullest)


def _lacking(
    seen: ProductionSummary, plan: TierPlan | None, workload: WorkloadNow, usable: Capacity | None
) -> tuple[str, ...]:
    """Return the missing data of a proposal, each with the needed amount."""
    hours = seen.observed_seconds / 3600
    found = []
    if hours < TO_GROW_SECONDS / 3600:
        found.append(
            f"{hours:.1f} hours were seen, {TO_GROW_SECONDS / 3600:.0f} are needed to propose more replicas and "
            f"{TO_SHRINK_SECONDS / 3600:.0f} to propose fewer"
        )
    silent = seen.until - max((hour.end for hour in seen.hours), default=seen.until)
    if silent >= GONE_SECONDS:
        found.append(f"nothing was seen of it in the last {silent / 3600:.0f} hours")
    if workload.requests < CERTAIN_REQUESTS:
        found.append(f"{workload.requests:,.0f} requests were seen, {CERTAIN_REQUESTS} are needed")
    if workload.peak_rps is None:
        found.append(f"arrivals are known for {len(seen.rates)} stretches of five minutes, {SEPARATE} are needed")
    if plan is None:
        found.append("the tier has no plan")
    elif not seen.context.serves_whole_requests:
        found.append("the plan's usable rps is that of a mixed replica; this tier serves prefill and decode apart")
    elif usable is None and seen.context.pool:
        found.append("the plan has no tokens a second of the pool, or the requests have no known lengths")
    elif usable is None:
        found.append("the plan has no benchmark, and no load of production with 300 requests kept the SLO")
    elif usable.is_lower_bound:
        found.append(
            f"the plan has no benchmark, and production kept the SLO up to {usable.rps:.3g} rps a replica, its highest load: "
            "what a replica can take is not known"
        )
    return tuple(found)


def _evidence(
    seen: ProductionSummary, workload: WorkloadNow, usable: Capacity, size: FleetProposal, plan: TierPlan
) -> tuple[str, ...]:
    planned = f" (planned {number(workload.planned_peak_rps, 'per_second')})" if workload.planned_peak_rps else ""
    peak, counted = size.count.demand_rps, size.count
    told = [
        f"the peak was {number(peak, 'per_second')}{planned}, in three stretches of five minutes",
        f"a replica takes {usable.rps:.3g} rps: {usable.reason}",
        f"the peak needs {format_count(counted.replicas, 'replica')} ({counted.arithmetic_text})",
    ]
    if size.replicas > counted.replicas:
        told.append(
            f"the plan's safety factor makes it ceil({peak:.3g} x {size.safety_factor:.3g} / {usable.rps:.3g}) = "
            f"{format_count(size.replicas, 'replica')}"
        )
    warm = plan.fleet.minimum_warm if plan.fleet else None
    told += [f"the minimum warm count asks for {warm}"] if warm and warm >= size.replicas else []
    moved = [one for one in workload.lengths if one.longer or one.shorter]
    told += [_moved(one) for one in moved[:2]]
    return (*told, f"{seen.observed_seconds / DAY_SECONDS:.1f} days were seen")


def _explain_use(
    proposal: Proposal, used: float, seen: ProductionSummary, size: FleetProposal, levers: Iterable[Lever]
) -> str:
    """Return the fleet utilisation of a proposal, and below the target why the number is right all the same (guide 9.2)."""
    replicas, counted = proposal.replicas or 1, size.count
    peak = counted.demand_rps / (replicas * counted.capacity.rps)
    fleet = format_count(replicas, "replica")
    text = f"{fleet} would be used to {number(used, 'ratio')} on average and to {number(peak, 'ratio')} at the peak"
    below, target = _trap("below", seen), _trap("target", seen)
    if used >= target:
        return text
    low = f"below the {below:.0%} of the utilization trap" if used < below else f"below the target of {target:.0%}"
    if replicas > size.replicas:
        return f"{text}, {low}: another limit than load sets their number"
    schedule = next((one.replicas for one in levers if one.name == SCHEDULE), None) or 0.0
    left = schedule - max(0.0, seen.observed_replicas - replicas)
    lever = "scaling by schedule" if left >= WORTH_REPLICAS else "offline batch work"
    return f"{text}, {low}: {_explain_count(replicas, seen.context.plan, size)}; {lever} is the lever"


def _explain_count(replicas: int, plan: TierPlan | None, size: FleetProposal) -> str:
    """Return what sets a number of replicas that the load needs: its peak, or a term of the plan."""
    counted, warm = size.count, fleet_terms(plan)[1] if plan is not None else 1
    if warm >= replicas > count_replicas(counted.demand_rps, counted.capacity.rps, counted.margin):
        return "the plan's minimum warm count sets their number"
    if replicas > counted.replicas:
        return "the plan's safety factor sets their number"
    lost = ", and one may be lost" if 0 < counted.margin.survives_loss_from <= replicas else ""
    return f"the peak needs {replicas}{lost}"


def _moved(one: Length) -> str:
    low, high = one.factors or (0.0, None)
    by = f"at least {low:.1f}x" if one.longer else f"at most {high or 0.0:.2g}x"
    return f"{one.what} {one.quantile.upper()} are {by} as long as planned"


def _grow(size: FleetProposal, usable: Capacity, now: int, evidence: tuple[str, ...]) -> Proposal:
    sure = size.fewest is not None and size.fewest > now and usable.certainty is Certainty.CERTAIN
    against: tuple[str, ...] = ()
    if size.fewest is not None and size.fewest <= now:
        against = (f"at the upper end of what a replica may take, {format_count(size.fewest, 'replica')} would do",)
    return Proposal(
        kind=ProposalKind.GROW,
        certainty=Certainty.CERTAIN if sure else Certainty.LIKELY,
        now=now,
        replicas=size.replicas,
        sentence=f"Grow from {now} to {format_count(size.replicas, 'replica')}",
        evidence=evidence,
        against=against,
    )


def _fewer(
    seen: ProductionSummary,
    results: Answers,
    usable: Capacity,
    size: FleetProposal,
    now: int,
    evidence: tuple[str, ...],
    kv_fullest: float | None,
) -> Proposal:
    """Return a proposal of fewer replicas within every limit.

    KV cache, evictions, or less than a week of data keep the present number.
    """
    if not _long(seen):
        hours, needed = seen.observed_seconds / 3600, math.ceil(TO_SHRINK_SECONDS / 3600)
        text = f"{hours:.0f} hours were seen; {needed} are needed to propose fewer replicas"
        said = f"Keep {format_count(now, 'replica')} for now: {text}"
        return Proposal(
            kind=ProposalKind.NONE,
            certainty=Certainty.LIKELY,
            now=now,
            replicas=None,
            sentence=said,
            evidence=evidence,
            needed=(text,),
        )
    if kv_fullest is not None and kv_fullest >= _trap("kv_below", seen):
        text = f"Keep {format_count(now, 'replica')}: the hourly mean of the KV cache is {kv_fullest:.0%} "
        text += "in its fullest hours: memory sets the size, not load"
        return _kept(now, text, evidence, False)
    if _fires(results, EVICTING):
        text = f"Keep {format_count(now, 'replica')}: requests are evicted from the KV cache; fewer replicas would evict more"
        return _kept(now, text, evidence, False)
    loads = loads_of(seen, usable, size.count)
    fewest = fewest_within_limits(loads, size.replicas, now, size.count.margin)
    binding = find_exceeded_limit(loads, fewest - 1, size.count.margin) if fewest > size.replicas else None
    if binding is not None:
        evidence = (*evidence, f"{format_count(fewest - 1, 'replica')} would be too few: {binding}")
    if fewest >= now:
        return _kept(now, f"Keep {format_count(now, 'replica')}: with fewer, {binding}", evidence, False)
    evidence = (*evidence, *limits_text(loads, fewest, size.count.margin))
    sure = size.most is not None and size.most <= fewest and usable.certainty is Certainty.CERTAIN
    against = []
    if usable.kept_rps is not None and usable.kept_rps < usable.rps * 0.9:
        against.append(
            f"production kept the SLO up to {usable.kept_rps:.3g} rps a replica: what is above rests on the benchmark; "
            "go down step by step and run `sizewatch check` after each"
        )
    return Proposal(
        kind=ProposalKind.SHRINK,
        certainty=Certainty.CERTAIN if sure else Certainty.LIKELY,
        now=now,
        replicas=fewest,
        sentence=f"Shrink from {now} to {format_count(fewest, 'replica')}",
        evidence=evidence,
        against=tuple(against),
    )


def _kept(now: int, text: str, evidence: tuple[str, ...], sure: bool) -> Proposal:
    certainty = Certainty.CERTAIN if sure else Certainty.LIKELY
    return Proposal(
        kind=ProposalKind.KEEP, certainty=certainty, now=now, replicas=now, sentence=text, evidence=evidence
    )


def _long(seen: ProductionSummary) -> bool:
    return seen.observed_seconds >= TO_SHRINK_SECONDS
