"""Causes of a late first token and of slow requests: queue, prefill and throttled clocks.

A request that spent more than the limit in the queue alone is late whatever prefill took, so bucket edges prove it. Of
whole requests queue and prefill are a part, and their share of the time counts. GPUs
usually run at their power limit, so it proves nothing; heat and the board's own brakes do.
"""

from __future__ import annotations

from rules.causes.context import FIRST_TOKEN, USERS, CauseContext, CauseResult
from rules.telemetry import histograms
from rules.telemetry.histograms import Share
from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.signals import Missing
from rules.telemetry.wording import format_count, number

MOST = 0.5
"""Share of the late requests, or of the time of whole requests, that proves a cause."""

NOTICEABLE = 0.05
"""Share of late requests, or of time, below which a cause is excluded (the guide's 5 % for evictions)."""

HELD_BY = (("thermal", "heat", True), ("hardware", "the board", True), ("power", "the power limit", False))
"""Reasons of throttling, in words, and whether the reason alone proves slower GPUs."""

WHOLE = "e2e_seconds"

COVERED = "gpu_throttled_covered_seconds"


def check_queueing_cause(context: CauseContext) -> CauseResult:
    """Check for late requests that waited longer than the limit in the queue; without histogram use the mean queue."""
    whole = _check_share_of_time(context, "queue_seconds", "queueing", "in the queue")
    if whole is not None:
        return whole
    found = _find_late_requests(context, "queue_seconds")
    waiting = next(
        (
            level.value or 0.0
            for family in ("requests_waiting_capacity", "requests_waiting")
            if not isinstance(level := mean_level(context.total, family), Missing)
        ),
        None,
    )
    if found is not None:
        more = "" if waiting is None else f", {number(waiting, '')} waiting on average"
        return _build_result(found, "queueing", "in the queue", more)
    if waiting is None:
        return CauseResult(supported=None, text="the queue is not known")
    text = f"{number(waiting, '')} requests waiting a replica on average"
    if waiting > MOST:
        return CauseResult(supported=True, text=f"queueing: {text}")
    return CauseResult(supported=False, text=f"no queue ({text})")


def check_prefill_cause(context: CauseContext) -> CauseResult:
    """Check for late requests whose prefill alone took longer than the limit."""
    whole = _check_share_of_time(context, "prefill_seconds", "prefill", "in prefill")
    if whole is not None:
        return whole
    found = _find_late_requests(context, "prefill_seconds")
    if found is None:
        return CauseResult(supported=None, text="how long prefill takes is not exposed")
    return _build_result(found, "prefill", "in prefill", "")


def _check_share_of_time(context: CauseContext, family: str, cause: str, where: str) -> CauseResult | None:
    """Return whether a part takes much of the time of whole requests, None for another rule or without histograms."""
    whole, part = (histograms.mean(context.total.histograms.get(name, ())) for name in (WHOLE, family))
    if context.rule.family != WHOLE or not whole or part is None:
        return None
    text = f"{part / whole:.0%} of the time of requests is spent {where}"
    if part > NOTICEABLE * whole:
        return CauseResult(supported=True, proven=part > MOST * whole, text=f"{cause}: {text}")
    return CauseResult(supported=False, text=f"not {cause}: {text}")


def _find_late_requests(context: CauseContext, family: str) -> tuple[Share, Share, float] | None:
    """Return late first tokens, requests whose part `family` alone exceeds the limit, and the limit in seconds."""
    first, parts = (context.total.histograms.get(name) for name in (FIRST_TOKEN, family))
    limit = context.context.basis.ttft_slo_seconds
    if context.rule.method not in USERS or context.rule.family == WHOLE or not first or not parts or not limit:
        return None
    late = histograms.share_above(first, limit)
    return (late, histograms.share_above(parts, limit), limit) if late.best > 0 else None


def _build_result(found: tuple[Share, Share, float], cause: str, where: str, more: str) -> CauseResult:
    late, part, limit = found
    spent, were = format_count(round(part.best), "request"), format_count(round(late.best), "was", "were")
    text = f"{spent} spent more than {number(limit, 'seconds')} {where} alone; {were} late{more}"
    if part.best > NOTICEABLE * late.best:
        return CauseResult(supported=True, proven=part.low > MOST * late.best, text=f"{cause}: {text}")
    return CauseResult(supported=False, text=f"not {cause}: {text}")


def check_throttling_cause(context: CauseContext) -> CauseResult:
    """Check the shares of time in which clocks were held down. Reasons that prove it come first."""
    found = [
        (ratio(context.total, f"gpu_throttled_{what}_seconds", COVERED), word, proof) for what, word, proof in HELD_BY
    ]
    known = [(share.value or 0.0, word, proof) for share, word, proof in found if not isinstance(share, Missing)]
    if not known:
        return CauseResult(supported=None, text="GPU throttling is not known")
    held = [one for one in known if one[0] > NOTICEABLE]
    if not held:
        return CauseResult(supported=False, text=f"clocks were not held down ({max(known)[0]:.0%} of the time at most)")
    share, word, proof = max(held, key=lambda one: (one[2], one[0]))
    text = f"throttling: clocks were held down by {word} {share:.0%} of the time"
    return CauseResult(supported=True, proven=proof, text=text)
