"""What an overload shows of a replica's capacity, and how far lengths and memory bound it (DESIGN 3.12, 3.24).

While requests wait, what a replica completes is all that it can do with requests of these lengths. Their latencies are
of no load. A capacity counts requests of its own lengths, so everything here is work in that unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rules.confidence import Certainty
from rules.plan.capacity import planned_capacity
from rules.plan.load_bins import QUEUE, BinnedWindow, TierContext, mean_waiting
from rules.telemetry import windows
from rules.telemetry.readings import families_of
from rules.telemetry.signals import BY_NAME
from rules.telemetry.windows import DAY_SECONDS, MINUTE_SECONDS, NET_CHANGE, Window
from rules.telemetry.work import Capacity, CapacityLengths, CapacitySource, computed_share, count_served, work_of
from rules.verdicts.context import SEPARATE

WORK_FAMILIES = families_of(BY_NAME["fleet_utilization"]) | {NET_CHANGE, "ttft_seconds"}
"""What `rules.telemetry.work` reads of a window, and the requests that its tokens belong to."""

QUARTER_SECONDS = 900.0

SHORTEST_SECONDS = SEPARATE * MINUTE_SECONDS
"""A replica must be overloaded for so long: three separate minutes, as a finding that is certain (DESIGN 3.3)."""

CHANCE = 3.09
"""Standard deviations of a count that chance exceeds once in a thousand (DESIGN 3.3: 99.9 %, one-sided)."""

FAR = 1.5
"""Ratio of work from which requests are far from the measured ones. Ours: the guide's drift rows speak earlier."""

STALLED = 0.2
"""Least taken share of a capacity. An engine that finishes less is stalled; more replicas do not mend it."""

LOOK_BACK_SECONDS = 5 * DAY_SECONDS
"""So long an overload bounds the capacity: its daily estimate falls by 30 % a day, to STALLED in 4.5 days."""

FEWEST_REQUESTS = 30
"""Requests behind a mean length: of so many it is off by a fifth or less (lengths scatter by about their mean)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Work that an overloaded replica completes per second, and its upper bound with chance (99.9 %).

    `limited_by` is the family of the tokens that limit it, "" if both kinds are alike or one is unknown.
    """

    rps: float
    high: float
    limited_by: str = ""


def is_saturated(binned: BinnedWindow, context: TierContext) -> bool:
    """Return whether requests wait longer than the TTFT objective under a load beyond the benchmark (DESIGN 3.24).

    The mean wait follows from Little's law. Without an objective any queue counts.
    """
    waiting = mean_waiting((binned,)) if binned.beyond else None
    objective = context.plan.slo.ttft_p99_seconds if context.plan is not None else None
    return waiting is not None and waiting >= QUEUE and waiting >= (objective or 0.0) * (binned.rps or 0.0)


def measure_ceiling(binned: Iterable[BinnedWindow], context: TierContext, lengths: CapacityLengths) -> Ceiling | None:
    """Return the completed work of the saturated windows per replica-second; None if they are too short.

    The kind of token with more work limits the replica. By it, a token rate kept with longer requests is a capacity kept.
    """
    saturated = [slice.window for slice in binned if is_saturated(slice, context)]
    whole = windows.sum_families(saturated, WORK_FAMILIES) if saturated else None
    if whole is None or whole.covered_seconds < SHORTEST_SECONDS:
        return None
    work, requests = work_of(whole, lengths), whole.counters.get("requests_finished", 0.0)
    if work is None or requests <= 0:
        return None
    loads = {"prompt_tokens": work.by_prompts, "generation_tokens": work.by_outputs}
    kinds = {family: load.best for family, load in loads.items() if load is not None}
    rps = max(kinds.values(), default=work.total.value or 0.0)
    differ = len(kinds) == 2 and rps > FAR * min(kinds.values())
    limited_by = max(kinds, key=lambda family: kinds[family]) if differ else ""
    return Ceiling(rps=rps, high=rps * (1 + CHANCE / math.sqrt(requests)), limited_by=limited_by)


def bound_by_overload(
    capacity: Capacity, context: TierContext, quarters: Iterable[BinnedWindow], is_present: bool = False
) -> Capacity | None:
    """Return the capacity as the overload of these quarters of an hour (of single replicas) bounds it from above.

    None if they show no ceiling. Replicas that carried more than the ceiling without a queue count as before: one slow
    replica of ten is no tier of a lower capacity. Others without a queue, such as new ones, say nothing. While the
    overload `is_present`, requests count by the tokens that limit it.
    """
    named = (slice for slice in quarters if slice.replica is not None)
    by_quarter = windows.group_by(named, lambda slice: slice.window.start // QUARTER_SECONDS)
    busy = [group for group in by_quarter.values() if any(is_saturated(slice, context) for slice in group)]
    by_replica = windows.group_by((slice for group in busy for slice in group), lambda slice: slice.replica)
    ceilings = {name: measure_ceiling(group, context, capacity.lengths) for name, group in by_replica.items()}
    queued = [group for name, group in by_replica.items() if ceilings[name] is not None]
    ceiling = measure_ceiling((slice for group in queued for slice in group), context, capacity.lengths)
    if ceiling is None:
        return None
    unbounded = [group for name, group in by_replica.items() if ceilings[name] is None]
    quicker = [group for group in unbounded if carried_work(group, capacity.lengths) > ceiling.rps]
    if ceiling.limited_by and is_present:
        lengths = replace(capacity.lengths, only=capacity.lengths.only or ceiling.limited_by)
        capacity = replace(capacity, lengths=lengths)
    slow, quick = (
        math.fsum(slice.window.covered_seconds for group in groups for slice in group) for groups in (queued, quicker)
    )
    return lower_to_ceiling(capacity, ceiling, slow / (slow + quick))


def carried_work(binned: Iterable[BinnedWindow], lengths: CapacityLengths) -> float:
    """Return the finished work of a replica per second in these windows, 0 if nothing is known."""
    known = [slice.window for slice in binned]
    work = work_of(windows.sum_families(known, WORK_FAMILIES), lengths) if known else None
    return work.total.value or 0.0 if work is not None else 0.0


def lower_to_ceiling(capacity: Capacity, ceiling: Ceiling, share: float = 1.0) -> Capacity:
    """Return the capacity of a tier of which a `share` of the replicas (0-1) has this ceiling.

    Of a stalled engine the ceiling is next to nothing: STALLED of the capacity stays.
    """
    if ceiling.high >= capacity.rps or ceiling.rps <= 0:
        return capacity
    rps = max(STALLED * capacity.rps, share * ceiling.rps + (1 - share) * capacity.rps)
    high = max(rps, share * ceiling.high + (1 - share) * capacity.rps)
    owner = "a replica" if share == 1 else f"{share:.0%} of the replicas"
    text = f"while requests waited {owner} finished the work of {ceiling.rps:.3g} rps and no more"
    text += f", of which {rps:.3g} is the least that is taken" if rps == STALLED * capacity.rps else ""
    return replace(
        capacity,
        rps=rps,
        low=min(capacity.low, rps),
        high=high if capacity.high is None else min(capacity.high, high),
        source=CapacitySource.PRODUCTION,
        certainty=Certainty.LIKELY,
        knee_seen=True,
        kept_rps=None if capacity.kept_rps is None else min(capacity.kept_rps, rps),
        reason=f"{capacity.reason}; {text}",
    )


def lift_to_carried(bounded: Capacity, before: Capacity, since: Iterable[BinnedWindow]) -> Capacity:
    """Return the bounded capacity, or the most that a replica carried without a queue `since` the overload was over.

    It is never more than `before`. Windows of fewer than FEWEST_REQUESTS say nothing.
    """
    known = [slice for slice in since if slice.window.counters.get("requests_finished", 0.0) >= FEWEST_REQUESTS]
    carried = max((carried_work((slice,), bounded.lengths) for slice in known), default=0.0)
    if carried <= bounded.rps:
        return bounded
    rps = min(carried, before.rps)
    high = None if bounded.high is None else max(bounded.high, rps)
    text = f"later a replica carried {carried:.3g} rps without a queue"
    return replace(bounded, rps=rps, high=high, reason=f"{bounded.reason}; {text}")


def bound_by_lengths(capacity: Capacity, context: TierContext, recent: Window) -> Capacity:
    """Return the capacity with the bounds that requests of other lengths leave open, and what memory has room for.

    Tokens cost more in longer contexts, by the length at most (attention). That is the lower bound for longer requests,
    and the upper one for shorter requests.
    """
    work, served = work_of(recent, capacity.lengths), count_served(recent)
    if work is None or not served or served < FEWEST_REQUESTS:
        return capacity
    seconds, best = recent.seconds_of("requests_finished"), work.total.value or 0.0
    shorter = (best if work.total.low is None else work.total.low) * seconds / served
    longer = (best if work.total.high is None else work.total.high) * seconds / served
    if 0 < shorter < 1 / FAR and capacity.high is not None:
        capacity = replace(capacity, high=max(capacity.high, capacity.rps / shorter), certainty=Certainty.LIKELY)
    if longer <= FAR:
        return capacity
    text = f"requests are {longer:.2g} times the work of those that it was measured with"
    low, reason = min(capacity.low, capacity.rps / longer), f"{capacity.reason}; {text}"
    capacity = replace(capacity, low=low, certainty=Certainty.LIKELY, reason=reason)
    outputs = work.by_outputs.best if work.by_outputs is not None else 0.0
    return _bound_by_memory(capacity, context, recent, served, best / outputs if outputs else 0.0)


def _bound_by_memory(
    capacity: Capacity, context: TierContext, recent: Window, served: float, work_of_output: float
) -> Capacity:
    """Return the capacity, at most what the benchmark made with as many requests at once as the KV cache has room for.

    A request holds its prompt and, on average, half of its output; shared prefixes are there once. So many requests make
    at most the benchmark's output rate: `work_of_output` is the work with each unit of it. What production kept stays.
    """
    plan, curve = context.plan, context.curve
    planned = planned_capacity(plan) if plan is not None else None
    computed = computed_share(recent)
    # By the benchmark's engine, else by the architecture.
    measured = plan.curve.measured if plan is not None and plan.curve is not None else None
    architecture = plan.architecture if plan is not None else None
    tokens = (measured and measured.kv_tokens) or (architecture and architecture.kv_tokens)
    prompts, outputs = (recent.counters.get(name) for name in ("prompt_tokens", "generation_tokens"))
    if curve is None or planned is None or not tokens or prompts is None or outputs is None:
        return capacity
    held = (prompts * (1.0 if computed is None else computed) + outputs / 2) / served
    reached = curve.rps_at(tokens / held) if held > 0 else None
    # The curve counts requests of the plan's lengths.
    if reached is None or not work_of_output or replace(capacity.lengths, only="") != planned.lengths:
        return capacity
    most = max(reached * work_of_output, capacity.kept_rps or 0.0)
    if most >= capacity.rps:
        return capacity
    text = f"{tokens / held:.0f} requests of {held:,.0f} tokens fit into its KV cache, and so few make at most {most:.3g} rps"
    return replace(capacity, rps=most, low=min(capacity.low, most), high=most, reason=f"{capacity.reason}; {text}")
