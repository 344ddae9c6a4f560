"""Replicas that are stopped before they ran for as long as their own start took (GPU serving guide, flapping)."""

from __future__ import annotations

from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.evidence import exact_reading, group_by_replica, join_names, range_reading
from rules.plan.money import price_of
from rules.replicas.starts import ReplicaStart, Timing
from rules.telemetry.signals import Gap
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS
from rules.telemetry.wording import format_count, number
from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult, Status

SILENT_SECONDS = 2 * MINUTE_SECONDS
"""Seconds without a page, while others of the tier answer, after which a replica was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortLife:
    """Replica that ran for `ran` seconds after a start that took `start` seconds."""

    replica: str
    ran: float
    start: float


def judge_flapping(case: RuleContext) -> RuleResult:
    """Find replicas that stopped within their own cold start, and what those starts cost."""
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if not any(one.replica for one in case.binned):
        return case.unknown(Gap.NOT_EXPOSED, "the tier is read as sums, without the starts of its replicas")
    short, most = find_short_lives(case), case.limit("times")
    observed, expected = exact_reading(len(short), len(short)), range_reading(0.0, most - 1, len(short))
    if not short:
        return case.verdict(
            Status.OK, Certainty.CERTAIN, observed, expected, "No replica stopped within its own cold start"
        )
    times = format_count(len(short), "time")
    sentence = f"Replicas stopped within their own cold start {times} in an hour{_describe_cost(case, short)}"
    shortest = min(short, key=lambda one: one.ran)
    details = (
        join_names(sorted({one.replica for one in short})),
        f"{shortest.replica} ran {number(shortest.ran, 'seconds')} after a start of {number(shortest.start, 'seconds')}",
    )
    status = Status.WARNING if len(short) >= most else Status.OK
    return case.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)


def find_short_lives(case: RuleContext) -> list[ShortLife]:
    """Return the starts of the last hour whose replica stopped, or started again, before it ran for as long."""
    replicas = group_by_replica(one for one in case.binned if one.replica)
    last = {name: max(one.window.end for one in group) for name, group in replicas.items()}
    newest = max(last.values(), default=0.0)
    later: dict[str, ReplicaStart] = {}
    found = []
    for start in sorted(case.starts, key=lambda one: one.t, reverse=True):
        after = later.get(start.replica)
        later[start.replica] = start
        seen_until = max(last.get(start.replica, 0.0), start.seen_at)
        stopped = seen_until if newest - seen_until > SILENT_SECONDS else None
        if after is not None:
            stopped = after.alive_at
        if stopped is None or stopped < case.now - HOUR_SECONDS or not start.has_observed_begin:
            continue
        ran, took = max(0.0, stopped - start.t), _cold_start(case, start)
        found += [ShortLife(replica=start.replica, ran=ran, start=took)] if ran < took else []
    return found


def _cold_start(case: RuleContext, start: ReplicaStart) -> float:
    """Return how long a start took: of one that was timed in part at least as long as is planned."""
    planned = case.context.plan.cold_start_seconds if case.context.plan else None
    took = start.lead_seconds or 0.0
    return took if start.timing is Timing.POD else max(took, planned or 0.0)


def _describe_cost(case: RuleContext, short: list[ShortLife]) -> str:
    if case.context.plan is None:
        return ""
    price = price_of(case.context.plan)
    hours = sum(one.start for one in short) * price.gpus_per_replica / HOUR_SECONDS
    money = f", {hours * price.gpu_hour_price:,.2f} {price.currency}" if price.gpu_hour_price is not None else ""
    return f"; their starts took {hours:.2g} GPU-hours{money}"
