"""Checks of causes that make requests fail or be refused. Counts of the same time prove a cause."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rules.causes.context import CauseContext, CauseResult
from rules.methods.errors import judge_availability
from rules.methods.evidence import group_by_replica
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import windows
from rules.telemetry.gauges import STEP_FAMILY
from rules.telemetry.outcomes import HELD, READ, Outcomes, outcomes
from rules.telemetry.signals import Missing

MOST = 0.9
"""Share of the failures that proves a fault of one replica."""

NOTICEABLE = 0.05
"""Failed transfers per request below which they are excluded (the guide's 5 % for evictions)."""

TRANSFERS = "kv_transfer_failures"


def check_one_replica(context: CauseContext) -> CauseResult:
    """Check for one replica with nearly all failures while others serve."""
    groups = group_by_replica(one for one in context.binned if one.replica is not None)
    each = {name: found for name, group in groups.items() if not isinstance(found := _sum(group), Missing)}
    if len(each) < 2:
        return CauseResult(supported=None)
    failing = context.rule.method is judge_availability
    wrong = {name: found.failed if failing else found.no_room + found.bad for name, found in each.items()}
    worst, total = max(wrong, key=wrong.__getitem__), sum(wrong.values())
    if total <= 0:
        return CauseResult(supported=None)
    others = len(each) - 1
    if wrong[worst] < MOST * total:
        return CauseResult(
            supported=False, text=f"it is not one replica ({worst} has the most, {wrong[worst] / total:.0%})"
        )
    share = wrong[worst] / (each[worst].accepted_requests if failing else each[worst].all_requests)
    text = f"{worst} alone: {share:.0%} of its requests, {total - wrong[worst]:,.0f} at the other {others}"
    return CauseResult(supported=True, proven=True, text=text)


def check_engine_steps(context: CauseContext) -> CauseResult:
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
        return CauseResult(
            supported=False, text="the engines step" if context.rule.method is judge_availability else ""
        )
    names = ", ".join(sorted(dead))
    count = f"{failed:,.0f} failed" if failed else f"it holds {held:,.0f} requests"
    text = f"{names}: the engine takes no step while its front end answers ({count}): its worker is dead or hangs"
    return CauseResult(supported=True, proven=True, text=text)


def check_transfers(context: CauseContext) -> CauseResult:
    """Check for failed KV transfers: the request fails, or its prompt is computed again."""
    count, found = context.total.counters.get(TRANSFERS), outcomes(context.total)
    if count is None or isinstance(found, Missing):
        return CauseResult(supported=None)
    failing = context.rule.method is judge_availability
    of, word = (found.failed, "failed") if failing else (found.accepted_requests, "were taken on")
    text = f"{count:,.0f} KV transfers failed while {of:,.0f} requests {word}"
    if count < 1 or count <= NOTICEABLE * of:
        return CauseResult(supported=False, text=text if count else "no KV transfer failed")
    return CauseResult(supported=True, proven=True, text=text)


def check_restarts(context: CauseContext) -> CauseResult:
    """Check for engine restarts, which fail the requests in the system."""
    count = context.total.counters.get("restarts", 0.0)
    if count < 1:
        return CauseResult(supported=False, text="no engine restarted")
    return CauseResult(supported=True, text=f"{count:,.0f} restarts of engines in that time")


def check_hardware_faults(context: CauseContext) -> CauseResult:
    """Check for GPU faults. Proof: most requests failed on the faulty replicas since the fault."""
    first: dict[str | None, float] = {}
    count = 0.0
    for one in context.binned:
        some = sum(one.window.counters.get(name, 0.0) for name in ("gpu_fault_events", "gpu_ecc_uncorrectable_errors"))
        if some > 0:
            count += some
            first[one.replica] = min(one.window.start, first.get(one.replica, math.inf))
    if count < 1:
        return CauseResult(supported=False, text="no GPU reported a fault")
    failed = [(one, found.failed) for one in context.binned if not isinstance(found := outcomes(one.window), Missing)]
    after = math.fsum(some for one, some in failed if one.window.end > first.get(one.replica, math.inf))
    if after <= 0:
        return CauseResult(
            supported=False, text=f"{count:,.0f} faults of GPUs, and no request failed on their replicas since"
        )
    proven = after > math.fsum(some for _, some in failed) / 2
    return CauseResult(supported=True, proven=proven, text=f"{count:,.0f} faults of GPUs in that time")


def check_client_errors(context: CauseContext) -> CauseResult:
    """Check for refused requests that cannot be served: more replicas would refuse them too."""
    found = outcomes(context.total)
    if isinstance(found, Missing) or found.bad + found.no_room <= 0:
        return CauseResult(supported=None)
    text = f"{found.bad:,.0f} answered 4xx, {found.no_room:,.0f} refused for want of room"
    if found.bad > found.no_room:
        return CauseResult(supported=True, proven=True, text=f"what clients ask for: {text}")
    return CauseResult(supported=False, text=text)


def _sum(group: Iterable[BinnedWindow]) -> Outcomes | Missing:
    return outcomes(windows.sum_families((one.window for one in group), READ))
