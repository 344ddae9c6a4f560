"""Capacity that is used: no headroom left, and what a GPU-hour yields from week to week (guide 9.3).

Owns these two judgements. Costs are reckoned by `rules.plan.money`, periods are added by `rules.methods.utilization`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods import utilization as periods
from rules.methods.utilization import no_hours
from rules.plan import money
from rules.plan.replica_count import margin_from_rule, replica_count
from rules.telemetry import windows
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import MINUTE_SECONDS, Window
from rules.telemetry.wording import number
from rules.verdicts.context import SEPARATE, RuleContext, is_persistent, too_early, watched_seconds
from rules.verdicts.verdict import RuleResult, Status

DAY_SECONDS = 86_400.0


def judge_headroom(case: RuleContext) -> RuleResult:
    """Fleet utilisation above 90 % (guide 9.3): in the minutes of the hold, or in the busiest hours of a week.

    Certain only if the lower bound is above it, too. That there is headroom is certain if the upper bound says so, or if
    the lower was above for a while: where the two straddle the limit nothing is.
    """
    if (unseen := no_hours(case)) is not None:
        return unseen
    apart = periods.explain_pool_gap(case)
    if apart is not None:
        return apart
    each = periods.sums(case, case.rule.signal)
    weekly = case.period_seconds > MINUTE_SECONDS
    judged = _busiest(case, each) if weekly else each
    used = periods.reading(case, judged)
    if isinstance(used, Missing) or used.value is None:
        text = used.text if isinstance(used, Missing) else ""
        return case.unknown(
            used.gap if isinstance(used, Missing) else Gap.SCRAPE_FAILED, text or "fleet utilisation is not known"
        )
    limit = case.limit("above")
    when = f"in the busiest {len(judged)} of {len(each)} hours" if weekly else f"for {_minutes(case)} min"
    sentence = f"Fleet utilisation {number(used.value, 'ratio')}{periods.weighing(case, judged)} {when}"
    last = _busiest_of_late(case) if weekly else periods.value(case, periods.select_last_quarter(case))
    by_period = [periods.value(case, (one,)) for one in judged]
    early = None if weekly else too_early(case, case.slices, last, by_period, lambda value: value > limit)
    if early is not None and used.value > limit:
        return early
    above = used.low is not None and used.low > limit
    lasting = is_persistent(last, by_period, lambda value: value > limit)
    if used.value <= limit or not lasting:
        told = f"{sentence}: up to {limit * 100:g}% leaves headroom{_excused(case, used.value, last)}"
        return _answer(case, used, Status.OK, above or (used.high is not None and used.high <= limit), told)
    certain = periods.is_covered(judged) and above
    # Over a week the report proposes the size, from the peak and not from hours: one number is enough.
    later = ": the report and `sizewatch prewarm` say how many are needed then"
    more = later if weekly else _more(case, judged, used.value)
    return _answer(case, used, Status.WARNING, certain, f"{sentence}{more}")


def _busiest(case: RuleContext, hours: Sequence[Window]) -> tuple[Window, ...]:
    """The share of the hours that the row names, at least as many as must show a finding, in their order."""
    known = [(periods.value(case, (hour,)), hour) for hour in hours]
    ordered = sorted((pair for pair in known if pair[0] is not None), key=lambda pair: pair[0] or 0.0, reverse=True)
    most = max(SEPARATE, math.floor(case.limit("busiest_hours") * len(hours)))
    return tuple(sorted((hour for _, hour in ordered[:most]), key=lambda hour: hour.start))


def _busiest_of_late(case: RuleContext) -> float | None:
    """The fullest hour of the last quarter of the time: a peak that does not come any more is over."""
    late = case.periods(case.last_quarter(case.slices))
    known = [periods.value(case, [one.window for one in group]) for group in late]
    return max((one for one in known if one is not None), default=None)


def _minutes(case: RuleContext) -> str:
    return f"{watched_seconds(case.slices) / MINUTE_SECONDS:.0f}"


def _excused(case: RuleContext, utilization: float, last: float | None) -> str:
    """Why utilisation above the limit is no finding; empty where it is not above."""
    limit = case.limit("above")
    if utilization <= limit:
        return ""
    over = last is None or last <= limit
    return (
        "; not any more in the last quarter of the time" if over else f"; in fewer than {SEPARATE} {case.periods_word}"
    )


def _more(case: RuleContext, judged: Sequence[Window], utilization: float) -> str:
    """Return how many replicas this use needs, as every count is made, and what the missing ones cost. One more at
    least."""
    replicas, capacity = periods.mean_ready_replicas(judged), case.view.capacity
    if capacity is None:
        return ""
    demand = utilization * replicas * capacity.rps
    needed = max(
        math.floor(replicas + 1),
        replica_count(demand, capacity, margin_from_rule(case.catalogue["NoHeadroom"], case.view.limits)).replicas,
    )
    more = max(1, needed - round(replicas))
    after = number(utilization * replicas / needed, "ratio")
    text = f": {needed} replicas are needed ({after} used), {replicas:.1f} were ready"
    return (
        text
        if case.view.plan is None
        else f"{text}; {more} more cost {money.cost_per_day(more, money.price_of(case.view.plan))}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenYield:
    """What some hours yielded: traffic (requests a second of the tier), tokens per GPU-hour and per request, requests a
    second of one replica.
    """

    traffic: float
    tokens_per_gpu_hour: float
    tokens_per_request: float
    requests_per_replica: float


def judge_falling(case: RuleContext) -> RuleResult:
    """Tokens per GPU-hour of this week against the week before, while traffic grew (guide 9.3: "flat or declining as
    traffic grows, something is saturating").

    Whole weeks are compared, so that each has every weekday once. Certain only if single days show it too, each against
    the same weekday.
    """
    if (unseen := no_hours(case)) is not None:
        return unseen
    found = periods.reading(case, periods.sums(case))
    if isinstance(found, Missing):
        return case.unknown(found.gap, found.text or "tokens per GPU-hour are not known")
    middle = case.now - case.rule.window_seconds / 2
    hours = periods.sums(case)
    before, after = (
        _yield(case, [hour for hour in hours if (_middle(hour) < middle) == earlier]) for earlier in (True, False)
    )
    if before is None or after is None:
        return case.unknown(Gap.NO_TRAFFIC, "one of the two weeks had no traffic")
    days = _days(case, hours)
    falling = sum(1 for day in days if _falls(case, *day))
    seen = _reading(after.tokens_per_gpu_hour, found.n)
    sentence = _compared(before, after)
    if not _falls(case, before, after):
        return _answer(case, seen, Status.OK, True, sentence, before)
    certain = falling >= case.limit("days") and periods.is_covered(hours)
    return _answer(case, seen, Status.WARNING, certain, f"{sentence}; on {falling} of {len(days)} days", before)


def _yield(case: RuleContext, hours: Sequence[Window]) -> TokenYield | None:
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


def _days(case: RuleContext, hours: Sequence[Window]) -> list[tuple[TokenYield, TokenYield]]:
    """Each day of the later half with the day half the window before it, where both had traffic."""
    half = round(case.rule.window_seconds / 2 / DAY_SECONDS)
    grouped: dict[int, list[Window]] = {}
    for hour in hours:
        grouped.setdefault(math.floor((case.now - _middle(hour)) / DAY_SECONDS), []).append(hour)
    pairs = [(_yield(case, grouped.get(day + half, [])), _yield(case, grouped.get(day, []))) for day in range(half)]
    return [(before, after) for before, after in pairs if before is not None and after is not None]


def _middle(hour: Window) -> float:
    return (hour.start + hour.end) / 2


def _falls(case: RuleContext, before: TokenYield, after: TokenYield) -> bool:
    grown = after.traffic >= before.traffic * (1 + case.limit("growth"))
    return grown and after.tokens_per_gpu_hour < before.tokens_per_gpu_hour * (1 - case.limit("fall"))


def _compared(before: TokenYield, after: TokenYield) -> str:
    """What moved: tokens per GPU-hour are requests per replica x tokens per request."""
    return (
        f"Tokens per GPU-hour {number(after.tokens_per_gpu_hour, 'count')} this week, "
        f"{number(before.tokens_per_gpu_hour, 'count')} the week before, "
        f"while traffic went {_change(before.traffic, after.traffic)}: "
        f"requests per replica {_change(before.requests_per_replica, after.requests_per_replica)}, "
        f"tokens per request {_change(before.tokens_per_request, after.tokens_per_request)}"
    )


def _change(before: float, after: float) -> str:
    """In per cent with its sign, or that there is none to speak of."""
    text = f"{after / before - 1:+.1%}"
    return "unchanged" if text in ("+0.0%", "-0.0%") else text


def _reading(value: float, n: float) -> Reading:
    return Reading(value=value, low=value, high=value, n=n)


def _answer(
    case: RuleContext, seen: Reading, status: Status, certain: bool, sentence: str, before: TokenYield | None = None
) -> RuleResult:
    if before is not None:
        expected = Reading(value=None, low=before.tokens_per_gpu_hour * (1 - case.limit("fall")), high=None, n=seen.n)
    else:
        expected = Reading(value=None, low=0.0, high=case.limit("above"), n=seen.n)
    certainty = Certainty.CERTAIN if certain else Certainty.LIKELY
    return case.verdict(status, certainty, seen, expected, sentence)
