"""Re-sizing of a tier from production (guide 9.1, Steps 1, 11 and 12): keep, grow or shrink.

With too little data there is no proposal; it names what is missing and how much is needed. A smaller fleet keeps each
limit of the whole tier that its replicas share, also with one lost. To add a limit: a row of `loads_of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from rules.catalogue.registry import BY_NAME as RULES
from rules.catalogue.registry import margin_of
from rules.confidence import Certainty, nearest_rank
from rules.methods.utilization import hours_of_fullest, mean_ready_replicas
from rules.plan.curve import CERTAIN_REQUESTS, operating_point
from rules.plan.money import price_of
from rules.plan.replica_count import Margin, ReplicaCount, count_fleet, fleet_terms, replica_count
from rules.resize.fleet_cost import FleetCost, Lever, list_levers, measured_cost, planned_cost, proposed_cost
from rules.resize.production_summary import ProductionPoint, ProductionSummary, pick_peak, production_points
from rules.resize.workload import WorkloadNow, measure_workload
from rules.telemetry import windows
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import DAY_SECONDS, Window
from rules.telemetry.wording import format_count, number
from rules.telemetry.work import Capacity
from rules.verdicts.context import SEPARATE
from rules.verdicts.verdict import FIRING, RuleResult, Verdict

KV = "kv_utilization"

TO_GROW_SECONDS = 0.9 * DAY_SECONDS
"""A peak that was seen counts: a day has its busy hours."""

TO_SHRINK_SECONDS = 0.9 * 7 * DAY_SECONDS
"""Another weekday may need more: a week, as the rules over days ask."""

GONE_SECONDS = DAY_SECONDS
"""A tier unseen for a day may be gone: its past is no reason for a change."""


class ProposalKind(StrEnum):
    KEEP = "keep"
    GROW = "grow"
    SHRINK = "shrink"
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


def propose_size(seen: ProductionSummary, results: Sequence[RuleResult]) -> Resize:
    """Return the steps and the proposal from production and the rules' results of the same time."""
    workload, plan, usable = measure_workload(seen), seen.context.plan, seen.context.capacity
    mixed, size = seen.context.serves_whole_requests, None
    utilization: SignalValue = Missing(gap=Gap.SCRAPE_FAILED, text="no hour under the present plan was seen")
    if seen.plan_hours:
        utilization = read(BY_NAME["fleet_utilization"], windows.sum_windows(seen.plan_hours), seen.context.basis)
    measured = measured_cost(seen, utilization.value if isinstance(utilization, Reading) else None)
    trap = partial(RULES["UtilizationTrap"].limit, overrides=seen.context.limits)
    full = hours_of_fullest(seen.hours, KV, trap("fullest_hours"))
    kv_fullest = full[0] if full else None
    is_memory_bound = kv_fullest is not None and kv_fullest >= trap("kv_below")
    verdicts = (result for result in results if isinstance(result, Verdict) and result.subject.replica is None)
    held = ""
    if is_memory_bound:
        held = f"the hourly mean of the KV cache is {kv_fullest:.0%} in its fullest hours: "
        held += "memory sets the size, not load"
    elif any(verdict.rule in ("KvEviction", "EvictionDivergence") and verdict.status in FIRING for verdict in verdicts):
        held = "requests are evicted from the KV cache; fewer replicas would evict more"
    levers: tuple[Lever, ...] = ()
    if mixed and plan and workload.peak_rps and usable and not usable.is_lower_bound:
        _, work = pick_peak(seen.rates, usable.lengths)
        size = replica_count(work, usable, margin_of(seen.context.limits), *fleet_terms(plan))
        levers = list_levers(seen, size, price_of(plan), utilization, is_memory_bound)
        if seen.observed_seconds < TO_SHRINK_SECONDS:
            levers = tuple(replace(lever, certainty=Certainty.LIKELY) for lever in levers)
    pools = {pool: propose_size(part, results) for pool, part in sorted(seen.pools.items())} if not mixed else {}
    if len(pools) > 1:
        proposals = {pool: part.proposal for pool, part in pools.items()}
        proposal = _join_pools(proposals, fleet_terms(plan)[1] if plan else 1)
    else:
        proposal = _propose(seen, workload, size, held)
    proposed = proposed_cost(seen, proposal.replicas, measured)
    if size is not None and proposed is not None and proposed.utilization is not None:
        replicas, mean = proposal.replicas or 1, number(proposed.utilization, "ratio")
        at_peak = number(size.demand_rps / (replicas * size.capacity.rps), "ratio")
        use = f"{format_count(replicas, 'replica')} would be used to {mean} on average and to {at_peak} at the peak"
        proposal = replace(proposal, evidence=(*proposal.evidence, use))
    return Resize(
        seen=seen,
        workload=workload,
        points=production_points(seen.context, seen.bins),
        utilization=utilization,
        kv_fullest=kv_fullest,
        usable=usable,
        sized=size,
        planned=planned_cost(plan),
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
        certainty=Certainty.of(all(part.certainty is Certainty.CERTAIN for part in parts.values())),
        now=now,
        replicas=replicas,
        sentence=f"{kind.value.capitalize()}: {format_count(replicas, 'replica')}, {each}",
    )


def _propose(seen: ProductionSummary, workload: WorkloadNow, size: ReplicaCount | None, held: str) -> Proposal:
    """Return the proposal of a tier or pool. `held` is the reason why fewer replicas would be too few, or ""."""
    plan = seen.context.plan
    now = plan.fleet.instances if plan and plan.fleet else (round(seen.observed_replicas) or None)
    lacking = _lacking(seen, workload)
    if lacking or plan is None or size is None or now is None:
        lacking = lacking or ("no replica was seen",)
        more = f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        sentence = f"No recommendation yet: {lacking[0]}{more}"
        return Proposal(kind=ProposalKind.NONE, now=now, sentence=sentence, needed=lacking)
    evidence, is_measured = _evidence(seen, workload, size), size.capacity.certainty is Certainty.CERTAIN
    if size.replicas > now:
        against: tuple[str, ...] = ()
        if size.fewest is not None and size.fewest <= now:
            against = (f"at the upper end of what a replica may take, {format_count(size.fewest, 'replica')} would do",)
        return Proposal(
            kind=ProposalKind.GROW,
            certainty=Certainty.of(size.fewest is not None and not against and is_measured),
            now=now,
            replicas=size.replicas,
            sentence=f"Grow from {now} to {format_count(size.replicas, 'replica')}",
            evidence=evidence,
            against=against,
        )
    if size.replicas == now:
        text = "that is what the traffic seen needs"
        if now > count_fleet(size.demand_rps, size.capacity.rps, size.safety_factor, size.margin):
            text = "the minimum warm count asks for as many"
        return _keep(now, text, evidence, is_measured and seen.observed_seconds >= TO_SHRINK_SECONDS)
    return _propose_fewer(seen, size, now, evidence, held)


def _lacking(seen: ProductionSummary, workload: WorkloadNow) -> tuple[str, ...]:
    """Return the missing data of a proposal, each with the needed amount."""
    hours, usable = seen.observed_seconds / 3600, seen.context.capacity
    texts = []
    if hours < TO_GROW_SECONDS / 3600:
        seen_hours = f"{hours:.1f} hours were seen" if hours else "nothing was seen"
        needed = f"{TO_GROW_SECONDS / 3600:.0f} hours are needed to propose more replicas"
        texts.append(f"{seen_hours}, {needed} and {math.ceil(TO_SHRINK_SECONDS / 3600)} to propose fewer")
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


def _evidence(seen: ProductionSummary, workload: WorkloadNow, size: ReplicaCount) -> tuple[str, ...]:
    planned = f" (planned {number(workload.planned_peak_rps, 'per_second')})" if workload.planned_peak_rps else ""
    work, usable, peak = size.demand_rps, size.capacity, workload.peak_rps or 0.0
    by_tokens = "" if work == peak else f"; by tokens the peak is the work of {number(work, 'per_second')}"
    texts = [
        f"the peak was {number(peak, 'per_second')}{planned}, in three stretches of five minutes{by_tokens}",
        f"a replica takes {usable.rps:.3g} rps: {usable.reason}",
        f"the peak needs {format_count(size.without_safety, 'replica')} ({size.arithmetic_text})",
    ]
    if size.replicas > size.without_safety:
        counted = f"ceil({number(work, '')} x {size.safety_factor:.3g} / {usable.rps:.3g})"
        texts.append(f"the plan's safety factor makes it {counted} = {format_count(size.replicas, 'replica')}")
    if size.minimum >= size.replicas > 1:
        texts.append(f"the minimum warm count asks for {size.minimum}")
    return (*texts, f"{seen.observed_seconds / DAY_SECONDS:.1f} days were seen")


def _propose_fewer(
    seen: ProductionSummary, size: ReplicaCount, now: int, evidence: tuple[str, ...], held: str
) -> Proposal:
    """Return a proposal of fewer replicas within every limit. Less than a week of data keeps the number."""
    if seen.observed_seconds < TO_SHRINK_SECONDS:
        hours, needed = seen.observed_seconds / 3600, math.ceil(TO_SHRINK_SECONDS / 3600)
        text = f"{hours:.0f} hours were seen; {needed} are needed to propose fewer replicas"
        sentence = f"Keep {format_count(now, 'replica')} for now: {text}"
        return Proposal(kind=ProposalKind.NONE, now=now, sentence=sentence, evidence=evidence, needed=(text,))
    if held:
        return _keep(now, held, evidence)
    loads = loads_of(seen, size)
    enough = (count for count in range(size.replicas, now) if not find_exceeded_limit(loads, count, size.margin))
    fewest = next(enough, now)
    if fewest > size.replicas:
        binding = find_exceeded_limit(loads, fewest - 1, size.margin)
        evidence = (*evidence, f"{format_count(fewest - 1, 'replica')} would be too few: {binding}")
        if fewest >= now:
            return _keep(now, f"with fewer, {binding}", evidence)
    usable = size.capacity
    against: tuple[str, ...] = ()
    if usable.kept_rps is not None and usable.kept_rps < usable.rps * 0.9:
        kept = f"production kept the SLO up to {usable.kept_rps:.3g} rps a replica"
        advice = "what is above rests on the benchmark; go down step by step and run `sizewatch check` after each"
        against = (f"{kept}: {advice}",)
    sure = size.most is not None and size.most <= fewest and usable.certainty is Certainty.CERTAIN
    return Proposal(
        kind=ProposalKind.SHRINK,
        certainty=Certainty.of(sure),
        now=now,
        replicas=fewest,
        sentence=f"Shrink from {now} to {format_count(fewest, 'replica')}",
        evidence=(*evidence, *limits_text(loads, fewest, size.margin)),
        against=against,
    )


def _keep(now: int, why: str, evidence: tuple[str, ...], is_certain: bool = False) -> Proposal:
    return Proposal(
        kind=ProposalKind.KEEP,
        certainty=Certainty.of(is_certain),
        now=now,
        replicas=now,
        sentence=f"Keep {format_count(now, 'replica')}: {why}",
        evidence=evidence,
    )


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
    name = "requests per second a replica, within the SLO"
    loads = [TierLoad(name=name, amount=size.demand_rps, limit=capacity.rps, unit="per_second")]
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
    """Return the replicas that a limit is checked with: one fewer where the margin lets one be lost."""
    return max(1, replicas - 1 if 0 < margin.survives_loss_from <= replicas else replicas)
