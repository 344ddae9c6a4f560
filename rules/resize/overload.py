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
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import families_of
from rules.telemetry.signals import BY_NAME
from rules.telemetry.windows import MINUTE_SECONDS, Window
from rules.telemetry.work import APART, Capacity, CapacityLengths, CapacitySource, computed_share, work_of
from rules.verdicts.context import SEPARATE

WORK_FAMILIES = families_of(BY_NAME["fleet_utilization"])
"""What `rules.telemetry.work` reads of a window."""

SHORTEST_SECONDS = SEPARATE * MINUTE_SECONDS
"""A replica must be overloaded for so long: three separate minutes, as a finding that is certain (DESIGN 3.3)."""

CHANCE = 3.09
"""Standard deviations of a count that chance exceeds once in a thousand (DESIGN 3.3: 99.9 %, one-sided)."""

FAR = 1.5
"""Lengths that differ by more are far from the measured ones. Ours: beyond it the limits of the guide's drift rows are passed."""

FEWEST_REQUESTS = 30
"""Requests behind a mean length. A mean of so many lengths is off by a tenth or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Work that an overloaded replica completes per second, and its upper bound with chance (99.9 %).

    `limited_by` is the family of the tokens that limit it, "" if both kinds are alike or one is unknown.
    """

    rps: float
    high: float
    limited_by: str = ""


def is_saturated(binned: BinnedWindow) -> bool:
    """Return whether requests wait under a load beyond the benchmark: its completions are a ceiling (DESIGN 3.24)."""
    return bool(binned.beyond) and (mean_waiting((binned,)) or 0.0) >= QUEUE


def measure_ceiling(binned: Iterable[BinnedWindow], lengths: CapacityLengths) -> Ceiling | None:
    """Return the completed work of the saturated windows per replica-second; None if they are too short.

    The kind of token that makes more work of a request limits the replica. Weighed by it, a replica that keeps its token
    rate with longer requests keeps its capacity too.
    """
    saturated = [one.window for one in binned if is_saturated(one)]
    whole = windows.sum_families(saturated, WORK_FAMILIES) if saturated else None
    if whole is None or whole.covered_seconds < SHORTEST_SECONDS:
        return None
    work, requests = work_of(whole, lengths), whole.counters.get("requests_finished", 0.0)
    if work is None or requests <= 0:
        return None
    loads = {"prompt_tokens": work.by_prompts, "generation_tokens": work.by_outputs}
    kinds = {family: load.best for family, load in loads.items() if load is not None}
    rps = max(kinds.values(), default=work.total.value or 0.0)
    differ = len(kinds) == 2 and rps > APART * min(kinds.values())
    limited_by = max(kinds, key=lambda family: kinds[family]) if differ else ""
    return Ceiling(rps=rps, high=rps * (1 + CHANCE / math.sqrt(requests)), limited_by=limited_by)


def bound_by_overload(capacity: Capacity, quarters: Iterable[BinnedWindow]) -> Capacity:
    """Return the capacity as the overload of these windows (of single replicas) bounds it from above.

    Replicas without a queue count as before: one slow replica of ten is no tier of a lower capacity.
    """
    by_replica = windows.group_by(quarters, lambda one: one.replica)
    overloaded = [group for group in by_replica.values() if measure_ceiling(group, capacity.lengths)]
    ceiling = measure_ceiling((one for group in overloaded for one in group), capacity.lengths)
    if ceiling is None:
        return capacity
    if ceiling.limited_by:
        lengths = replace(capacity.lengths, only=capacity.lengths.only or ceiling.limited_by)
        capacity = replace(capacity, lengths=lengths)
    share = len(overloaded) / len(by_replica)
    return lower_to_ceiling(capacity, ceiling, share)


def lower_to_ceiling(capacity: Capacity, ceiling: Ceiling, share: float = 1.0) -> Capacity:
    """Return the capacity of a tier of which a `share` of the replicas (0-1) has this ceiling."""
    if ceiling.high >= capacity.rps or ceiling.rps <= 0:
        return capacity
    rps = share * ceiling.rps + (1 - share) * capacity.rps
    high = share * ceiling.high + (1 - share) * capacity.rps
    whose = "a replica" if share == 1 else f"{share:.0%} of the replicas"
    text = f"while requests waited {whose} finished the work of {ceiling.rps:.3g} rps and no more"
    return replace(
        capacity,
        rps=rps,
        low=min(capacity.low, rps),
        high=high if capacity.high is None else min(capacity.high, high),
        source=CapacitySource.PRODUCTION,
        certainty=Certainty.LIKELY,
        knee_seen=True,
        reason=f"{capacity.reason}; {text}",
    )


def bound_by_lengths(capacity: Capacity, context: TierContext, recent: Window) -> Capacity:
    """Return the capacity with the bounds that requests of other lengths leave open, and what memory has room for.

    Tokens cost more in longer contexts, by the length at most (attention). That is the lower bound for longer requests,
    and the upper one for shorter requests.
    """
    work, each = work_of(recent, capacity.lengths), replica_rate(recent, "requests_finished")
    if work is None or not each or recent.counters["requests_finished"] < FEWEST_REQUESTS:
        return capacity
    longer = (work.total.high or work.total.value or each) / each
    shorter = (work.total.low or work.total.value or each) / each
    if longer > FAR:
        text = f"requests are {longer:.2g} times the work of those that it was measured with"
        capacity = replace(capacity, low=min(capacity.low, capacity.rps / longer), certainty=Certainty.LIKELY)
        capacity = replace(capacity, reason=f"{capacity.reason}; {text}")
    elif shorter < 1 / FAR and capacity.high is not None:
        capacity = replace(capacity, high=max(capacity.high, capacity.rps / shorter), certainty=Certainty.LIKELY)
    return _bound_by_memory(capacity, context, recent)


def _bound_by_memory(capacity: Capacity, context: TierContext, recent: Window) -> Capacity:
    """Return the capacity, at most what the benchmark made with as many requests at once as the KV cache has room for.

    A request holds its prompt and, on average, half of its output; shared prefixes are there once.
    """
    plan, curve = context.plan, context.curve
    planned = planned_capacity(plan) if plan is not None else None
    tokens, finished = kv_tokens(context), recent.counters["requests_finished"]
    prompts, outputs = (recent.counters.get(name) for name in ("prompt_tokens", "generation_tokens"))
    if curve is None or planned is None or not tokens or prompts is None or outputs is None:
        return capacity
    computed = computed_share(recent)
    held = (prompts * (1.0 if computed is None else computed) + outputs / 2) / finished
    most = curve.rps_at(tokens / held) if held > 0 else None
    # The curve counts requests of the plan's lengths.
    if most is None or most >= capacity.rps or replace(capacity.lengths, only="") != planned.lengths:
        return capacity
    text = f"{tokens / held:.0f} requests of {held:,.0f} tokens fit into its KV cache, and so few make at most {most:.3g} rps"
    return replace(
        capacity,
        rps=most,
        low=min(capacity.low, most),
        high=most,
        certainty=Certainty.LIKELY,
        reason=f"{capacity.reason}; {text}",
    )


def kv_tokens(context: TierContext) -> int | None:
    """Return the tokens that a replica's KV cache holds by the plan: the benchmark's engine, else the architecture's."""
    plan = context.plan
    if plan is None:
        return None
    measured = plan.curve.measured.kv_tokens if plan.curve is not None and plan.curve.measured is not None else None
    return measured or (plan.architecture.kv_tokens if plan.architecture is not None else None)
