"""Starts of replicas: later than planned, and replicas stopped before they ran for as long (guide 9.2, 9.5).

A planned cold start is the time from the request for a replica to Ready. A start that was timed in part is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rules.confidence import Certainty
from rules.methods.evidence import certain_if, exact_reading, join_names, range_reading
from rules.plan.money import price_of
from rules.replicas.start_quantiles import FROM_TO, StartQuantiles, quantiles_by_timing
from rules.replicas.starts import ReplicaStart, Timing
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS
from rules.telemetry.wording import format_count, number
from rules.verdicts.context import RuleContext
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status


def judge_cold_start(case: RuleContext) -> RuleResult:
    """Find starts above the planned time: each start of the window, then the P95 of all known starts.

    A start that was timed in part is a lower bound: proof above the plan, and likely at most below it.
    """
    planned = case.context.plan.cold_start_seconds if case.context.plan else None
    known = quantiles_by_timing(case.starts)
    recent = {timing: starts for timing in Timing if (starts := _find_starts(case, timing))}
    if planned is None:
        measured = [(one.timing, one.p95_seconds) for one in known]
        measured += [(timing, max(seconds for _, seconds, _ in starts)) for timing, starts in recent.items()]
        text = "the plan has no cold_start_seconds"
        for timing, seconds in measured[:1]:
            text += f"; {number(seconds, 'seconds')} were measured {FROM_TO[timing]}"
        return case.unknown(Gap.NOT_IN_PLAN, text)
    allowed = planned * case.limit("factor")
    for timing, starts in recent.items():
        if any(seconds > allowed for _, seconds, _ in starts):
            return _judge_starts(case, starts, timing, planned)
    late = [one for one in known if one.p95_seconds > allowed]
    if late:
        worst = max(late, key=lambda one: (one.proven_seconds > allowed, one.p95_seconds))
        return _judge_quantiles(case, worst, planned)
    if recent and (Timing.POD in recent or all(one.timing is not Timing.POD for one in known)):
        timing, starts = next(iter(recent.items()))
        return _judge_starts(case, starts, timing, planned)
    if known:
        return _judge_quantiles(case, known[0], planned)
    restarts = math.fsum(one.window.counters.get("restarts", 0.0) for one in case.binned)
    if restarts:
        seen = "one restart was seen" if restarts == 1 else f"{restarts:.0f} restarts were seen"
        return case.unknown(Gap.NOT_EXPOSED, f"{seen}, the page does not expose when the engine was ready")
    return case.unknown(Gap.NO_TRAFFIC, "no start was seen")


Start = tuple[str | None, float, float]
"""Replica, its seconds, and the number of starts that they are the mean of."""


def _find_starts(case: RuleContext, timing: Timing) -> list[Start]:
    """Return the starts of the window with this timing. Windows count those from process start to ready."""
    if timing is not Timing.PROCESS:
        since = case.now - case.rule.window_seconds
        whole = [start for start in case.starts if start.timing is timing and start.t > since]
        return [(start.replica, start.lead_seconds or 0.0, 1.0) for start in whole]
    counted = [(one.replica, one.window.counters) for one in case.binned if one.window.counters.get("cold_starts")]
    return [
        (replica, counters.get("cold_start_seconds", 0.0) / counters["cold_starts"], counters["cold_starts"])
        for replica, counters in counted
    ]


def _judge_starts(case: RuleContext, starts: Sequence[Start], timing: Timing, planned: float) -> RuleResult:
    """Compare the slowest start of the window."""
    replica, slowest, _ = max(starts, key=lambda start: start[1])
    count = math.fsum(count for *_, count in starts)
    late = math.fsum(count for _, seconds, count in starts if seconds > planned * case.limit("factor"))
    took, plan, counted = number(slowest, "seconds"), number(planned, "seconds"), format_count(int(count), "start")
    sentence = f"{counted} took {'at most ' if count > 1 else ''}{took}; {plan} are planned"
    if late:
        sentence = f"{late:.0f} of {counted} took longer than the planned {plan}; {replica or case.context.tier} {took}"
    observed = Reading(value=slowest, low=slowest, high=None, n=count)
    return _compare_with_plan(case, timing, planned, observed, sentence)


def _judge_quantiles(case: RuleContext, known: StartQuantiles, planned: float) -> RuleResult:
    """Compare the P95 of all known starts with this timing."""
    took = number(known.p95_seconds, "seconds")
    sentence = f"Cold start P95 is {took} over {known.count} starts"
    if not known.has_p95:
        which = "The only known cold start" if known.count == 1 else f"The slowest of {known.count} cold starts"
        sentence = f"{which} took {took}"
    observed = Reading(value=known.p95_seconds, low=known.proven_seconds, high=None, n=float(known.count))
    sentence = f"{sentence}; {number(planned, 'seconds')} are planned"
    return _compare_with_plan(case, known.timing, planned, observed, sentence)


def _compare_with_plan(
    case: RuleContext, timing: Timing, planned: float, observed: Reading, sentence: str
) -> RuleResult:
    """Return a warning for a start above the plan, certain by its lower bound. Ok is certain of a whole start."""
    allowed, is_whole = planned * case.limit("factor"), timing is Timing.POD
    is_late = (observed.value or 0.0) > allowed
    certainty = certain_if((observed.low or 0.0) > allowed if is_late else is_whole)
    part = "" if is_whole else "the plan is for the whole start" + ("" if is_late else ", which was not timed")
    expected, details = Reading(value=planned, low=0.0, high=planned, n=1.0), (f"timed {FROM_TO[timing]}", part)
    status = Status.WARNING if is_late else Status.OK
    return case.verdict(status, certainty, observed, expected, sentence, details=details)


SILENT_SECONDS = 2 * MINUTE_SECONDS
"""Seconds without a page, while others of the tier answer, after which a replica was stopped."""


ShortLife = tuple[float, str, float]
"""Seconds that a replica ran after a start, its name, and the seconds of that start."""


def judge_flapping(case: RuleContext) -> RuleResult:
    """Find replicas that stopped within their own cold start, and what those starts cost.

    From starts and last pages of the last hour. Always certain: a start without an observed begin does not count.
    """
    if not any(one.replica for one in case.binned):
        return case.unknown(Gap.NOT_EXPOSED, "the tier is read as sums, without the starts of its replicas")
    short, most = find_short_lives(case), case.limit("times")
    observed, expected = exact_reading(len(short), len(short)), range_reading(0.0, most - 1, len(short))
    if not short:
        sentence = "No replica stopped within its own cold start"
        return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)
    sentence = f"Replicas stopped within their own cold start {format_count(len(short), 'time')} in an hour"
    if case.context.plan is not None:
        price = price_of(case.context.plan)
        hours = sum(took for *_, took in short) * price.gpus_per_replica / HOUR_SECONDS
        money = f", {hours * price.gpu_hour_price:,.2f} {price.currency}" if price.gpu_hour_price is not None else ""
        sentence += f"; their starts took {hours:.2g} GPU-hours{money}"
    ran, shortest, took = min(short)
    details = (
        join_names(sorted({replica for _, replica, _ in short})),
        f"{shortest} ran {number(ran, 'seconds')} after a start of {number(took, 'seconds')}",
    )
    status = Status.WARNING if len(short) >= most else Status.OK
    return case.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)


def find_short_lives(case: RuleContext) -> list[ShortLife]:
    """Return the starts of the last hour whose replica stopped, or started again, before it ran for as long."""
    replicas = hold(one for one in case.binned if one.replica).by_replica
    last = {name: max(one.window.end for one in group) for name, group in replicas.items()}
    newest = max(last.values(), default=0.0)
    planned = case.context.plan.cold_start_seconds if case.context.plan else None
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
        took, ran = start.lead_seconds or 0.0, max(0.0, stopped - start.t)
        if start.timing is not Timing.POD:
            # Timed in part: it took at least as long as is planned.
            took = max(took, planned or 0.0)
        found += [(ran, start.replica, took)] if ran < took else []
    return found
