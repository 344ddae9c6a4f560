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
from rules.plan.money import price_of
from rules.plan.replica_count import ReplicaCount, fleet_terms, replica_count
from rules.plan.schema import TierPlan
from rules.resize.fleet_cost import FleetCost, measured_cost, planned_cost, proposed_cost
from rules.resize.levers import Lever, list_levers
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
    certainty: Certainty = Certainty.LIKELY
    now: int | None
    replicas: int | None = None
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
    sized: ReplicaCount | None
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
    mapping: dict[str, RuleResult] = {}
    for result in results:
        if result.subject.replica is None and not isinstance(mapping.get(result.rule), Verdict):
            mapping[result.rule] = result
    return mapping


def propose_size(seen: ProductionSummary, results: Answers) -> Resize:
    """Return the steps and the proposal from production and the rules' results of the same time."""
    workload, plan, usable = measure_workload(seen), seen.context.plan, seen.context.capacity
    mixed, size = seen.context.serves_whole_requests, None
    levers: tuple[Lever, ...] = ()
    if mixed and plan and workload.peak_rps and usable and not usable.is_lower_bound:
        size = replica_count(workload.peak_rps, usable, margin_of(seen.context.limits), *fleet_terms(plan))
        levers = list_levers(seen, size, price_of(plan))
    utilization: SignalValue = Missing(gap=Gap.SCRAPE_FAILED, text="no hour under the present plan was seen")
    if seen.plan_hours:
        utilization = read(BY_NAME["fleet_utilization"], windows.sum_windows(seen.plan_hours), seen.context.basis)
    measured = measured_cost(seen, utilization.value if isinstance(utilization, Reading) else None)
    full = hours_of_fullest(seen.hours, "kv_utilization", _trap("fullest_hours", seen))
    kv_fullest = full[0] if full else None
    pools = {pool: propose_size(part, results) for pool, part in sorted(seen.pools.items())} if not mixed else {}
    if len(pools) > 1:
        proposal = _join_pools(
            {pool: part.proposal for pool, part in pools.items()}, fleet_terms(plan)[1] if plan else 1
        )
    else:
        proposal = _propose(seen, results, workload, size, kv_fullest)
    proposed = proposed_cost(seen, proposal.replicas, measured)
    if size is not None and proposed is not None and proposed.utilization is not None:
        at_peak = size.demand_rps / ((proposal.replicas or 1) * size.capacity.rps)
        use = f"would be used to {number(proposed.utilization, 'ratio')} on average and to {number(at_peak, 'ratio')} at the peak"
        use = f"{format_count(proposal.replicas or 1, 'replica')} {use}"
        proposal = replace(proposal, evidence=(*proposal.evidence, use))
    return Resize(
        seen=seen,
        workload=workload,
        points=production_points(seen.context, seen.curve_bins),
        utilization=utilization,
        kv_fullest=kv_fullest,
        usable=usable,
        sized=size,
        planned=planned_cost(seen.context),
        measured=measured,
        proposed=proposed,
        levers=levers,
        proposal=proposal,
        pools=pools,
    )


def _join_pools(parts: Mapping[str, Proposal], floor: int) -> Proposal:
    """Return the proposal of a tier from those of its pools: all of them, or none, and never fewer than `floor`."""
    evidence, against, lacking = (
        tuple(f"{pool} pool: {text}" for pool, part in parts.items() for text in getattr(part, name))
        for name in ("evidence", "against", "needed")
    )
    sentence = "; ".join(f"{pool} pool: {part.sentence}" for pool, part in parts.items())
    rest = Proposal(
        kind=ProposalKind.NONE, now=None, sentence=sentence, evidence=evidence, against=against, needed=lacking
    )
    known = [(pool, part.replicas, part.now) for pool, part in parts.items() if part.replicas is not None and part.now]
    if len(known) < len(parts):
        return rest
    needed, now = sum(row[1] for row in known), sum(row[2] for row in known)
    replicas, moves = max(needed, floor), [count - was for _, count, was in known]
    kind = ProposalKind.KEEP
    if max(moves) > 0:
        kind = ProposalKind.GROW
    elif any(moves) and replicas < now:
        kind = ProposalKind.SHRINK
    each = ", ".join(f"{pool} {count}" + ("" if count == was else f" instead of {was}") for pool, count, was in known)
    each += f", and {replicas - needed} more for the minimum warm count" if replicas > needed else ""
    return replace(
        rest,
        kind=kind,
        certainty=_certainty(all(part.certainty is Certainty.CERTAIN for part in parts.values())),
        now=now,
        replicas=replicas,
        sentence=f"{kind.value.capitalize()}: {format_count(replicas, 'replica')}, {each}",
    )


def _certainty(is_certain: bool) -> Certainty:
    return Certainty.CERTAIN if is_certain else Certainty.LIKELY


def _trap(name: str, seen: ProductionSummary) -> float:
    return RULES["UtilizationTrap"].limit(name, seen.context.limits)


def _propose(
    seen: ProductionSummary,
    results: Answers,
    workload: WorkloadNow,
    size: ReplicaCount | None,
    kv_fullest: float | None,
) -> Proposal:
    plan = seen.context.plan
    now = plan.fleet.instances if plan and plan.fleet else (round(seen.observed_replicas) or None)
    lacking = _lacking(seen, workload)
    if lacking or plan is None or size is None or now is None:
        lacking = lacking or ("no replica was seen",)
        more = f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        sentence = f"No recommendation yet: {lacking[0]}{more}"
        return Proposal(kind=ProposalKind.NONE, now=now, sentence=sentence, needed=lacking)
    evidence, is_measured = _evidence(seen, workload, size, plan), size.capacity.certainty is Certainty.CERTAIN
    if size.replicas > now:
        against: tuple[str, ...] = ()
        if size.fewest is not None and size.fewest <= now:
            against = (f"at the upper end of what a replica may take, {format_count(size.fewest, 'replica')} would do",)
        return Proposal(
            kind=ProposalKind.GROW,
            certainty=_certainty(size.fewest is not None and not against and is_measured),
            now=now,
            replicas=size.replicas,
            sentence=f"Grow from {now} to {format_count(size.replicas, 'replica')}",
            evidence=evidence,
            against=against,
        )
    if size.replicas == now:
        text = "that is what the traffic seen needs"
        return _keep(now, text, evidence, is_measured and seen.observed_seconds >= TO_SHRINK_SECONDS)
    return _propose_fewer(seen, results, size, now, evidence, kv_fullest)


def _lacking(seen: ProductionSummary, workload: WorkloadNow) -> tuple[str, ...]:
    """Return the missing data of a proposal, each with the needed amount."""
    hours, usable = seen.observed_seconds / 3600, seen.context.capacity
    texts = []
    if hours < TO_GROW_SECONDS / 3600:
        texts.append(
            f"{hours:.1f} hours were seen, {TO_GROW_SECONDS / 3600:.0f} are needed to propose more replicas and "
            f"{TO_SHRINK_SECONDS / 3600:.0f} to propose fewer"
        )
    silent = seen.until - max((hour.end for hour in seen.hours), default=seen.until)
    if silent >= GONE_SECONDS:
        texts.append(f"nothing was seen of it in the last {silent / 3600:.0f} hours")
    if workload.requests < CERTAIN_REQUESTS:
        texts.append(f"{workload.requests:,.0f} requests were seen, {CERTAIN_REQUESTS} are needed")
    if workload.peak_rps is None:
        texts.append(f"arrivals are known for {len(seen.rates)} stretches of five minutes, {SEPARATE} are needed")
    if seen.context.plan is None:
        texts.append("the tier has no plan")
    elif not seen.context.serves_whole_requests or (usable is None and seen.context.pool):
        texts.append("prefill and decode apart: no tokens a second of the pool in the plan, or no known lengths")
    elif usable is None:
        texts.append("what a replica can take is not known: no benchmark, and no load of production kept the SLO")
    elif usable.is_lower_bound:
        texts.append(f"what a replica can take is not known: {usable.reason}")
    return tuple(texts)


def _evidence(seen: ProductionSummary, workload: WorkloadNow, size: ReplicaCount, plan: TierPlan) -> tuple[str, ...]:
    planned = f" (planned {number(workload.planned_peak_rps, 'per_second')})" if workload.planned_peak_rps else ""
    peak, usable = size.demand_rps, size.capacity
    texts = [
        f"the peak was {number(peak, 'per_second')}{planned}, in three stretches of five minutes",
        f"a replica takes {usable.rps:.3g} rps: {usable.reason}",
        f"the peak needs {format_count(size.without_safety, 'replica')} ({size.arithmetic_text})",
    ]
    if size.replicas > size.without_safety:
        texts.append(
            f"the plan's safety factor makes it ceil({peak:.3g} x {size.safety_factor:.3g} / {usable.rps:.3g}) = "
            f"{format_count(size.replicas, 'replica')}"
        )
    warm = plan.fleet.minimum_warm if plan.fleet else None
    texts += [f"the minimum warm count asks for {warm}"] if warm and warm >= size.replicas else []
    texts += [_describe_drift(length) for length in workload.lengths if length.longer or length.shorter][:2]
    return (*texts, f"{seen.observed_seconds / DAY_SECONDS:.1f} days were seen")


def _describe_drift(length: Length) -> str:
    low, high = length.factors or (0.0, None)
    by = f"at least {low:.1f}x" if length.longer else f"at most {high or 0.0:.2g}x"
    return f"{length.what} {length.quantile.upper()} are {by} as long as planned"


def _propose_fewer(
    seen: ProductionSummary,
    results: Answers,
    size: ReplicaCount,
    now: int,
    evidence: tuple[str, ...],
    kv_fullest: float | None,
) -> Proposal:
    """Return a proposal of fewer replicas within every limit.

    KV cache, evictions, or less than a week of data keep the present number.
    """
    if seen.observed_seconds < TO_SHRINK_SECONDS:
        hours, needed = seen.observed_seconds / 3600, math.ceil(TO_SHRINK_SECONDS / 3600)
        text = f"{hours:.0f} hours were seen; {needed} are needed to propose fewer replicas"
        sentence = f"Keep {format_count(now, 'replica')} for now: {text}"
        return Proposal(kind=ProposalKind.NONE, now=now, sentence=sentence, evidence=evidence, needed=(text,))
    if kv_fullest is not None and kv_fullest >= _trap("kv_below", seen):
        text = (
            f"the hourly mean of the KV cache is {kv_fullest:.0%} in its fullest hours: memory sets the size, not load"
        )
        return _keep(now, text, evidence)
    if any(isinstance(result := results.get(name), Verdict) and result.status in FIRING for name in EVICTING):
        return _keep(now, "requests are evicted from the KV cache; fewer replicas would evict more", evidence)
    loads = loads_of(seen, size)
    fewest = fewest_within_limits(loads, size.replicas, now, size.margin)
    if fewest > size.replicas:
        binding = find_exceeded_limit(loads, fewest - 1, size.margin)
        evidence = (*evidence, f"{format_count(fewest - 1, 'replica')} would be too few: {binding}")
        if fewest >= now:
            return _keep(now, f"with fewer, {binding}", evidence)
    usable = size.capacity
    against: tuple[str, ...] = ()
    if usable.kept_rps is not None and usable.kept_rps < usable.rps * 0.9:
        text = (
            f"production kept the SLO up to {usable.kept_rps:.3g} rps a replica: what is above rests on the benchmark; "
        )
        against = (f"{text}go down step by step and run `sizewatch check` after each",)
    sure = size.most is not None and size.most <= fewest and usable.certainty is Certainty.CERTAIN
    return Proposal(
        kind=ProposalKind.SHRINK,
        certainty=_certainty(sure),
        now=now,
        replicas=fewest,
        sentence=f"Shrink from {now} to {format_count(fewest, 'replica')}",
        evidence=(*evidence, *limits_text(loads, fewest, size.margin)),
        against=against,
    )


def _keep(now: int, why: str, evidence: tuple[str, ...], is_certain: bool = False) -> Proposal:
    return Proposal(
        kind=ProposalKind.KEEP,
        certainty=_certainty(is_certain),
        now=now,
        replicas=now,
        sentence=f"Keep {format_count(now, 'replica')}: {why}",
        evidence=evidence,
    )
