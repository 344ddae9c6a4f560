"""Used capacity: missing headroom, and the yield of a GPU-hour from week to week (guide 9.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods import utilization as periods
from rules.methods.evidence import certain_if, exact_reading, explain_not_lasting, judge_each_pool, range_reading
from rules.plan.replica_count import margin_from_rule, replica_count
from rules.telemetry import windows
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import DAY_SECONDS, MINUTE_SECONDS, Window
from rules.telemetry.wording import number
from rules.verdicts.context import SEPARATE, RuleContext, is_persistent, too_early
from rules.verdicts.held_windows import watched_seconds
from rules.verdicts.verdict import RuleResult, Status


@judge_each_pool
def judge_headroom(case: RuleContext) -> RuleResult:
    """Find fleet utilisation above 90 % (guide 9.3): in the minutes of the window, or in the busiest hours of a week.

    Certain if the lower bound is above the limit too. Headroom is certain if the upper bound is below the limit, or if
    the lower bound was above it for a while.
    """
    each = periods.sums(case, case.rule.signal)
    weekly = case.period_seconds > MINUTE_SECONDS
    judged = _select_busiest(case, each) if weekly else each
    used = periods.reading(case, judged)
    if isinstance(used, Missing) or used.value is None:
        return periods.unknown_utilization(case, used)
    limit, minutes = case.limit("above"), f"{watched_seconds(case.binned) / MINUTE_SECONDS:.0f}"
    when = f"in the busiest {len(judged)} of {len(each)} hours" if weekly else f"over {minutes} min"
    claim, healthy = f"Fleet utilisation is {number(used.value, 'ratio')}", f"up to {limit * 100:g}% leaves headroom"
    details = [when, periods.weighing(case, judged)]
    last = _read_last_peak(case) if weekly else periods.value(case, periods.select_last_quarter(case))
    by_period = [periods.value(case, (one,)) for one in judged]
    is_above, above = used.value > limit, used.low is not None and used.low > limit
    early = too_early(case, case.binned, last, by_period, lambda value: value > limit) if not weekly else None
    if early is not None and is_above:
        return early
    expected = range_reading(0.0, limit, used.n)
    if not is_above or not is_persistent(last, by_period, lambda value: value > limit):
        reason = f"; {explain_not_lasting(case, is_over=last is None or last <= limit)}" if is_above else ""
        certainty = certain_if(above or (used.high is not None and used.high <= limit))
        return case.verdict(Status.OK, certainty, used, expected, f"{claim}; {healthy}{reason}", details=details)
    if weekly:
        # Over a week the report proposes the size, from the peak and not from hours.
        sentence = f"{claim}; {when}, {healthy}"
        details.append("the report and `sizewatch prewarm` have the replicas needed then")
    else:
        need, cost = _describe_need(case, judged, used.value)
        sentence = f"{claim}; {need or healthy}"
        details.append(cost)
    certainty = certain_if(periods.is_covered(judged) and above)
    return case.verdict(Status.WARNING, certainty, used, expected, sentence, details=details)


def _select_busiest(case: RuleContext, hours: Sequence[Window]) -> tuple[Window, ...]:
    """Return the busiest hours in their order: the share that the rule names, and enough for a finding."""
    known = [(periods.value(case, (hour,)), hour) for hour in hours]
    ordered = sorted((pair for pair in known if pair[0] is not None), key=lambda pair: pair[0] or 0.0, reverse=True)
    most = max(SEPARATE, math.floor(case.limit("busiest_hours") * len(hours)))
    return tuple(sorted((hour for _, hour in ordered[:most]), key=lambda hour: hour.start))


def _read_last_peak(case: RuleContext) -> float | None:
    """Return the utilisation of the busiest hour of the last quarter."""
    late = case.periods(case.last_quarter(case.binned))
    known = [periods.value(case, [one.window for one in group]) for group in late]
    return max((one for one in known if one is not None), default=None)


def _describe_need(case: RuleContext, judged: Sequence[Window], utilization: float) -> tuple[str, str]:
    """Return the replicas that this utilisation needs, at least one more, and the cost of the missing ones in words."""
    replicas, capacity = periods.mean_ready_replicas(judged), case.context.capacity
    if capacity is None:
        return "", ""
    demand = utilization * replicas * capacity.rps
    needed = max(
        math.floor(replicas + 1),
        replica_count(demand, capacity, margin_from_rule(case.catalogue["NoHeadroom"], case.context.limits)).replicas,
    )
    more = max(1, needed - round(replicas))
    after = number(utilization * replicas / needed, "ratio")
    text = f"{needed} replicas are needed ({after} used), {replicas:.1f} were ready"
    return text, periods.describe_cost(case, f"{more} more cost ", more)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenYield:
    """Yield of hours: requests per second of the tier, tokens per GPU-hour and per request, requests per second of a
    replica."""

    traffic: float
    tokens_per_gpu_hour: float
    tokens_per_request: float
    requests_per_replica: float


def judge_falling(case: RuleContext) -> RuleResult:
    """Find fewer tokens per GPU-hour than the week before while traffic grew (guide 9.3: "flat or declining as traffic
    grows, something is saturating").

    Whole weeks are compared, so that each has every weekday once. Certain if single days show it too, each against the
    same weekday.
    """
    hours = periods.sums(case)
    found = periods.reading(case, hours)
    if isinstance(found, Missing):
        return case.unknown(found.gap, found.text or "tokens per GPU-hour are not known")
    middle = case.now - case.rule.window_seconds / 2
    before, after = (
        _compute_yield(case, [hour for hour in hours if (hour.middle < middle) == earlier]) for earlier in (True, False)
    )
    if before is None or after is None:
        return case.unknown(Gap.NO_TRAFFIC, "one of the two weeks had no traffic")
    days = _pair_days(case, hours)
    falling = sum(1 for day in days if _is_falling(case, *day))
    observed = exact_reading(after.tokens_per_gpu_hour, found.n)
    expected = range_reading(before.tokens_per_gpu_hour * (1 - case.limit("fall")), None, found.n)
    sentence = (
        f"Tokens per GPU-hour went {_format_change(before.tokens_per_gpu_hour, after.tokens_per_gpu_hour)} in a week, "
        f"traffic {_format_change(before.traffic, after.traffic)}"
    )
    details = _compare(before, after)
    if not _is_falling(case, before, after):
        return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence, details=details)
    certainty = certain_if(falling >= case.limit("days") and periods.is_covered(hours))
    sentence += f"; on {falling} of {len(days)} days"
    return case.verdict(Status.WARNING, certainty, observed, expected, sentence, details=details)


def _compute_yield(case: RuleContext, hours: Sequence[Window]) -> TokenYield | None:
    if not hours:
        return None
    total = windows.sum_windows(hours)
    requests, tokens = (total.counters.get(name, 0.0) for name in ("requests_finished", "generation_tokens"))
    made = periods.value(case, hours)
    if requests <= 0 or tokens <= 0 or made is None:
        return None
    return TokenYield(
        traffic=requests / math.fsum(hour.span for hour in hours),
        tokens_per_gpu_hour=made,
        tokens_per_request=tokens / requests,
        requests_per_replica=requests / total.covered_seconds,
    )


def _pair_days(case: RuleContext, hours: Sequence[Window]) -> list[tuple[TokenYield, TokenYield]]:
    """Return each day of the later half with the day half the window before it, if both had traffic."""
    half = round(case.rule.window_seconds / 2 / DAY_SECONDS)
    grouped = windows.group_by(hours, lambda hour: math.floor((case.now - hour.middle) / DAY_SECONDS))
    pairs = [
        (_compute_yield(case, grouped.get(day + half, [])), _compute_yield(case, grouped.get(day, [])))
        for day in range(half)
    ]
    return [(before, after) for before, after in pairs if before is not None and after is not None]


def _is_falling(case: RuleContext, before: TokenYield, after: TokenYield) -> bool:
    grown = after.traffic >= before.traffic * (1 + case.limit("growth"))
    return grown and after.tokens_per_gpu_hour < before.tokens_per_gpu_hour * (1 - case.limit("fall"))


def _compare(before: TokenYield, after: TokenYield) -> tuple[str, ...]:
    """Return the change in words. Tokens per GPU-hour are requests per replica x tokens per request."""
    return (
        f"{number(after.tokens_per_gpu_hour, 'count')} tokens per GPU-hour this week",
        f"{number(before.tokens_per_gpu_hour, 'count')} the week before",
        f"requests per replica {_format_change(before.requests_per_replica, after.requests_per_replica)}",
        f"tokens per request {_format_change(before.tokens_per_request, after.tokens_per_request)}",
    )


def _format_change(before: float, after: float) -> str:
    """Return a change in per cent with its sign, or "unchanged"."""
    text = f"{after / before - 1:+.1%}"
    return "unchanged" if text in ("+0.0%", "-0.0%") else text
