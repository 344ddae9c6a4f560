"""Checks of causes that make requests fail or be refused. Counts of the same time prove a cause."""

from __future__ import annotations

import math

from rules.causes.context import NOT_ASKED, CauseContext, CauseResult
from rules.methods.burn_rate import judge_availability
from rules.telemetry.gauges import STEP_FAMILY
from rules.telemetry.outcomes import HELD, READ, outcomes
from rules.telemetry.signals import Missing
from rules.verdicts.held_windows import hold

MOST = 0.9
"""Share of the failures that proves a fault of one replica."""

NOTICEABLE = 0.05
"""Failed transfers per request below which they are excluded (the guide's 5 % for evictions)."""

TRANSFERS = "kv_transfer_failures"


def check_one_replica(context: CauseContext) -> CauseResult | None:
    """Check for one replica with nearly all failures while others serve."""
    groups = hold(one for one in context.binned if one.replica is not None).by_replica
    sums = {name: outcomes(group.sum_families(READ)) for name, group in groups.items()}
    each = {name: one for name, one in sums.items() if not isinstance(one, Missing)}
    failing = context.rule.method is judge_availability
    wrong = {name: found.failed if failing else found.no_room + found.bad for name, found in each.items()}
    total = sum(wrong.values())
    if len(each) < 2 or total <= 0:
        return NOT_ASKED
    worst = max(wrong, key=wrong.__getitem__)
    share = wrong[worst] / (each[worst].accepted_requests if failing else each[worst].all_requests)
    text = f"{worst}, {share:.0%} of its requests, {total - wrong[worst]:,.0f} at the other {len(each) - 1}"
    return CauseResult(supported=wrong[worst] >= MOST * total, text=text)


def check_engine_steps(context: CauseContext) -> CauseResult | None:
    """Check for an engine that fails or holds requests and takes no step, while its front end serves the page."""
    dead: set[str] = set()
    failed = held = 0.0
    for one in context.binned:
        found, holds = outcomes(one.window), one.window.gauges.get(HELD)
        is_still = one.window.counters.get(STEP_FAMILY) == 0
        fails = found.failed if is_still and not isinstance(found, Missing) else 0.0
        if fails > 0 or holds:
            dead.add(one.replica or context.context.tier)
            failed, held = failed + fails, max(held, holds.maximum if holds else 0.0)
    if not dead:
        return NOT_ASKED
    count = f"{failed:,.0f} failed" if failed else f"it holds {held:,.0f} requests"
    text = f"{', '.join(sorted(dead))} takes no step while its front end answers ({count}): its worker is dead or hangs"
    return CauseResult(supported=True, text=text)


def check_transfers(context: CauseContext) -> CauseResult | None:
    """Check for failed KV transfers: the request fails, or its prompt is computed again."""
    count, found = context.total.counters.get(TRANSFERS), outcomes(context.total)
    if count is None or isinstance(found, Missing):
        return NOT_ASKED
    failing = context.rule.method is judge_availability
    of, word = (found.failed, "failed") if failing else (found.accepted_requests, "were taken on")
    text = f"{count:,.0f} KV transfers failed while {of:,.0f} requests {word}"
    return CauseResult(supported=count >= 1 and count > NOTICEABLE * of, text=text)


def check_restarts(context: CauseContext) -> CauseResult | None:
    """Check for engine restarts, which fail the requests in the system."""
    count = context.total.counters.get("restarts", 0.0)
    return CauseResult(supported=count >= 1, proven=False, text=f"{count:,.0f} restarts of engines in that time")


def check_hardware_faults(context: CauseContext) -> CauseResult | None:
    """Check for GPU faults. Proof: most requests failed on the faulty replicas since the fault."""
    first: dict[str | None, float] = {}
    count = 0.0
    for one in context.binned:
        some = sum(one.window.counters.get(name, 0.0) for name in ("gpu_fault_events", "gpu_ecc_uncorrectable_errors"))
        if some > 0:
            count += some
            first[one.replica] = min(one.window.start, first.get(one.replica, math.inf))
    failed = [(one, found.failed) for one in context.binned if not isinstance(found := outcomes(one.window), Missing)]
    after = math.fsum(some for one, some in failed if one.window.end > first.get(one.replica, math.inf))
    proven = after > math.fsum(some for _, some in failed) / 2
    text = f"{count:,.0f} faults of GPUs in that time, {after:,.0f} requests failed on their replicas since"
    return CauseResult(supported=count >= 1 and after > 0, proven=proven, text=text)


def check_client_errors(context: CauseContext) -> CauseResult | None:
    """Check for refused requests that cannot be served: more replicas would refuse them too."""
    found = outcomes(context.total)
    if isinstance(found, Missing) or found.bad + found.no_room <= 0:
        return NOT_ASKED
    text = f"{found.bad:,.0f} answered 4xx, {found.no_room:,.0f} refused for want of room"
    return CauseResult(supported=found.bad > found.no_room, text=text)
