"""What can make requests fail or be refused, and how each is examined: rows of `rules.causes.checks`.

Owns these examinations. What proves a cause here is a count: of one replica's failures, of steps that an engine did not
take, of transfers, restarts and faults in the same time.
"""

from __future__ import annotations

import math

from rules.causes.context import CauseContext, CauseResult
from rules.methods.errors import judge_availability
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import windows
from rules.telemetry.gauges import STEP_FAMILY
from rules.telemetry.outcomes import READ, Outcomes, outcomes
from rules.telemetry.signals import Missing
from rules.verdicts.rule import Rule

MOST = 0.9
"""A replica with at least this share of what failed has the fault; the others share the rest."""

NOTICEABLE = 0.05
"""Of what is to be explained: fewer failed transfers are taken for chance (as for the other suspects)."""

TRANSFERS = "kv_transfer_failures"


def one_replica(scene: CauseContext) -> CauseResult:
    """Return whether nearly all of it is one replica's, while others serve."""
    groups: dict[str, list[BinnedWindow]] = {}
    for one in scene.slices:
        if one.replica is not None:
            groups.setdefault(one.replica, []).append(one)
    each = {name: found for name, group in groups.items() if (found := _ended(group)) is not None}
    if len(each) < 2:
        return CauseResult(supported=None)
    wrong = {name: _wrong(scene.rule, found) for name, found in each.items()}
    worst, total = max(wrong, key=wrong.__getitem__), sum(wrong.values())
    if total <= 0:
        return CauseResult(supported=None)
    others = len(each) - 1
    if wrong[worst] < MOST * total:
        return CauseResult(
            supported=False, text=f"it is not one replica ({worst} has the most, {wrong[worst] / total:.0%})"
        )
    told = each[worst]
    share = wrong[worst] / (told.accepted_requests if scene.rule.method is judge_availability else told.all_requests)
    text = f"{worst} alone: {share:.0%} of its requests, {total - wrong[worst]:,.0f} at the other {others}"
    return CauseResult(supported=True, proven=True, text=text)


def no_steps(scene: CauseContext) -> CauseResult:
    """Return whether an engine that does not step any more is answered for: its front end lives on with a live metrics
    page."""
    dead: set[str] = set()
    failed = 0.0
    for one in scene.slices:
        found = outcomes(one.window)
        if not isinstance(found, Missing) and found.failed > 0 and one.window.counters.get(STEP_FAMILY) == 0:
            dead.add(one.replica or scene.view.tier)
            failed += found.failed
    if not dead:
        return CauseResult(supported=False, text="the engines step")
    names = ", ".join(sorted(dead))
    text = f"{names}: the engine takes no step while its front end answers ({failed:,.0f} failed): its worker is dead or hangs"
    return CauseResult(supported=True, proven=True, text=text)


def transfers(scene: CauseContext) -> CauseResult:
    """Return whether KV blocks did not arrive: then a request fails, or its prompt is computed anew."""
    count, found = scene.total.counters.get(TRANSFERS), outcomes(scene.total)
    if count is None or isinstance(found, Missing):
        return CauseResult(supported=None)
    failing = scene.rule.method is judge_availability
    of, word = (found.failed, "failed") if failing else (found.accepted_requests, "were taken on")
    text = f"{count:,.0f} KV transfers failed while {of:,.0f} requests {word}"
    if count < 1 or count <= NOTICEABLE * of:
        return CauseResult(supported=False, text=text if count else "no KV transfer failed")
    return CauseResult(supported=True, proven=True, text=text)


def restarts(scene: CauseContext) -> CauseResult:
    """Return whether engines began anew: what they had in the system failed."""
    count = scene.total.counters.get("restarts", 0.0)
    if count < 1:
        return CauseResult(supported=False, text="no engine restarted")
    return CauseResult(supported=True, text=f"{count:,.0f} restarts of engines in that time")


def faults(scene: CauseContext) -> CauseResult:
    """Return whether the driver reported faults of a GPU: a cause for certain where most requests failed on such a
    replica, since then."""
    first: dict[str | None, float] = {}
    count = 0.0
    for one in scene.slices:
        some = sum(one.window.counters.get(name, 0.0) for name in ("gpu_fault_events", "gpu_ecc_uncorrectable_errors"))
        if some > 0:
            count += some
            first[one.replica] = min(one.window.start, first.get(one.replica, math.inf))
    if count < 1:
        return CauseResult(supported=False, text="no GPU reported a fault")
    failed = [(one, _failed(one)) for one in scene.slices]
    after = math.fsum(some for one, some in failed if one.window.end > first.get(one.replica, math.inf))
    if after <= 0:
        return CauseResult(
            supported=False, text=f"{count:,.0f} faults of GPUs, and no request failed on their replicas since"
        )
    proven = after > math.fsum(some for _, some in failed) / 2
    return CauseResult(supported=True, proven=proven, text=f"{count:,.0f} faults of GPUs in that time")


def _failed(one: BinnedWindow) -> float:
    found = outcomes(one.window)
    return 0.0 if isinstance(found, Missing) else found.failed


def is_client_error(scene: CauseContext) -> CauseResult:
    """Return whether most of the refused ask for what nobody here can serve: more replicas would refuse it too."""
    found = outcomes(scene.total)
    if isinstance(found, Missing) or found.bad + found.no_room <= 0:
        return CauseResult(supported=None)
    text = f"{found.bad:,.0f} answered 4xx, {found.no_room:,.0f} refused for want of room"
    if found.bad > found.no_room:
        return CauseResult(supported=True, proven=True, text=f"what clients ask for: {text}")
    return CauseResult(supported=False, text=text)


def _ended(group: list[BinnedWindow]) -> Outcomes | None:
    found = outcomes(windows.sum_families((one.window for one in group), READ))
    return None if isinstance(found, Missing) else found


def _wrong(rule: Rule, found: Outcomes) -> float:
    return found.failed if rule.method is judge_availability else found.no_room + found.bad
