"""Utilisation: the trap, empty queues and KV caches, missing headroom, weekly yield of a GPU-hour (guide 9.2, 9.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter, itemgetter, lt
from typing import NamedTuple

from rules.confidence import Certainty, nearest_rank
from rules.methods.evidence import (
    best_value,
    capitalize,
    exact_reading,
    explain_not_lasting,
    judge_each_pool,
    range_reading,
    read_signal,
)
from rules.plan import money
from rules.plan.load_bins import TierContext
from rules.plan.replica_count import Margin, count_replicas, margin_from_rule, replica_count
from rules.plan.schema import TierPlan
from rules.telemetry import windows
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import DAY_SECONDS, MINUTE_SECONDS, Window
from rules.telemetry.wording import format_count, number
from rules.verdicts.context import SEPARATE, RuleContext, is_persistent, too_early
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import IdleReplicas, RuleResult, Status, Unknown

READ = frozenset(
    {"kv_utilization", "requests_waiting", "requests_finished", "generation_tokens", "gpu_utilization_sampled"}
).union(*(families_of(BY_NAME[signal]) for signal in ("fleet_utilization", "prefix_hit_ratio")))
"""Families of every rule here, besides those of its own signal."""

BY_MEMORY = "memory sets the size of this fleet, not load"


def sum_periods(context: RuleContext) -> tuple[Window, ...]:
    """Return the sum of each period (hours, or minutes of a short window), oldest first."""
    families = READ | families_of(BY_NAME[context.rule.signal])
    return tuple(group.sum_families(families) for group in context.periods(context.binned))


def read_hours(context: RuleContext, hours: Sequence[Window], signal: str = "") -> SignalValue:
    """Return a signal (default: the rule's own) over sums of windows. Return no traffic without any."""
    wanted = BY_NAME[signal or context.rule.signal]
    if not hours:
        return Missing(gap=Gap.NO_TRAFFIC)
    return read(wanted, windows.sum_families(hours, families_of(wanted)), context.tier.basis)


def _list_levels(context: RuleContext, hours: Sequence[Window]) -> list[float | None]:
    """Return the rule's signal in each hour, None where it is not known."""
    return [best_value(read_hours(context, (hour,))) for hour in hours]


def _explain_unread(context: RuleContext, used: SignalValue) -> Unknown:
    gap, text = (used.gap, used.text) if isinstance(used, Missing) else (Gap.SCRAPE_FAILED, "")
    return context.unknown(gap, text or f"{context.rule.about}: not measured here")


def hours_of_fullest(rows: Sequence[Window], family: str, q: float) -> tuple[float, float] | None:
    """Return quantile q of the hourly means and maxima of a gauge, None without any."""
    gauges = [gauge for w in rows if (gauge := w.gauge(family)) is not None]
    if not gauges:
        return None
    return nearest_rank([g.mean for g in gauges], q), nearest_rank([g.maximum for g in gauges], q)


def mean_ready_replicas(rows: Sequence[Window]) -> float:
    """Return the mean number of observed replicas, by covered seconds."""
    seconds = math.fsum(w.span for w in rows)
    return math.fsum(w.covered_seconds for w in rows) / seconds if seconds > 0 else 0.0


def _is_covered(rows: Sequence[Window]) -> bool:
    """Return whether these periods cover enough replica-seconds. They need not be adjacent."""
    due = math.fsum(w.due_seconds for w in rows)
    return due > 0 and math.fsum(w.covered_seconds for w in rows) >= FULL_COVERAGE * due


@judge_each_pool
def judge_trap(context: RuleContext) -> RuleResult:
    """Find fleet utilisation below 40 % over a week, with KV utilisation below 75 % in its fullest hours (DESIGN 3.12).

    A fleet that only its peaks need is in the trap, with no surplus (guide 9.2).
    """
    hours, limit = sum_periods(context), context.limit("below")
    used = read_hours(context, hours)
    if isinstance(used, Missing) or used.value is None:
        return _explain_unread(context, used)
    full = hours_of_fullest(hours, "kv_utilization", context.limit("fullest_hours"))
    idle = find_idle(context.tier, hours, read_margin(context))
    surplus, need = _describe_idle(context, idle)
    days = hold(context.binned).watched_seconds / DAY_SECONDS
    summary = f"fleet utilisation is {number(used.value, 'ratio')} over {days:.1f} days"
    status, certain = Status.OK, True
    if used.value >= limit:
        text, certain = f"{limit * 100:g}% or more is no trap", used.low is not None and used.low >= limit
    elif full is None:
        gap = windows.sum_windows(hours).explain_missing("kv_utilization")
        return context.unknown(gap, f"{summary}; the KV cache level is not known")
    elif full[0] >= context.limit("kv_below"):
        text = BY_MEMORY
    elif not idle.replicas and idle.ready < idle.minimum_warm + 1:
        text = "its busiest hour or the minimum warm count needs every replica"
    else:
        last = best_value(read_signal(context, context.last_quarter(context.binned)))
        is_low = last is not None and last < limit and used.high is not None and used.high < limit
        status, text, certain = Status.WARNING, surplus, is_low and _is_covered(hours)
    sentence, expected = capitalize(f"{summary}; {text}"), range_reading(limit, None, 0.0)
    wasted = None if text is BY_MEMORY else idle
    return context.verdict(status, Certainty.of(certain), used, expected, sentence, idle=wasted, details=(need,))


@judge_each_pool
def judge_empty_queue(context: RuleContext) -> RuleResult:
    """Find a queue that is always empty while GPUs idle, over a day (guide 9.3)."""
    hours, limit, fullest = sum_periods(context), context.limit("gpu_below"), context.limit("fullest_hours")
    total = windows.sum_windows(hours)
    if not total.counters.get("requests_finished"):
        return context.unknown(Gap.NO_TRAFFIC, "no request in all these hours")
    used, waiting = read_hours(context, hours), hours_of_fullest(hours, "requests_waiting", fullest)
    if waiting is None:
        return context.unknown(total.explain_missing("requests_waiting"), "nothing says how many requests wait")
    if isinstance(used, Missing) or used.value is None:
        return _explain_unread(context, used)
    each = [level for level in _list_levels(context, hours) if level is not None]
    busiest, full = nearest_rank(each, fullest), hours_of_fullest(hours, "kv_utilization", fullest)
    kv_below = context.catalogue["UtilizationTrap"].limit("kv_below", context.tier.limits)
    wasted: IdleReplicas | None = None
    status, certain, queue, need = Status.OK, True, "No queue; ", ""
    text = f"GPUs are {number(busiest, 'ratio')} busy in the busiest hours"
    if waiting[0] > context.limit("waiting"):
        queue = f"{number(waiting[0], '')} requests wait at each replica; "
    elif busiest < limit and full and full[0] >= kv_below:
        text += f"; {BY_MEMORY}"
    elif busiest < limit:
        idle = find_idle(context.tier, hours, read_margin(context))
        if context.tier.capacity is None:
            load = max(each) * mean_ready_replicas(hours)
            idle = compute_idle_replicas(context.tier.plan, idle.ready, load, read_margin(context))
        surplus, need = _describe_idle(context, idle)
        text += f"; {surplus}"
        if idle.replicas > 0:
            status, certain = Status.WARNING, "gpu_utilization_sampled" not in total.sampled and _is_covered(hours)
            queue, wasted = "No request waits while ", idle
    observed, expected, sure = exact_reading(busiest, used.n), range_reading(limit, None, 0.0), Certainty.of(certain)
    return context.verdict(status, sure, observed, expected, queue + text, idle=wasted, details=(need,))


def judge_empty_cache(context: RuleContext) -> RuleResult:
    """Find a KV cache below the guide's band at the highest instants of its fullest hours, for a week (guide 9.3).

    A cache is sized for its fullest moment. Blocks that only hold cached prefixes count as free.
    """
    hours, limit, fullest = sum_periods(context), context.limit("below"), context.limit("fullest_hours")
    total, full = windows.sum_windows(hours), hours_of_fullest(hours, "kv_utilization", fullest)
    if full is None:
        gap = total.explain_missing("kv_utilization")
        return context.unknown(gap, "the engine does not show how full its KV cache is")
    if not total.counters.get("requests_finished"):
        return context.unknown(Gap.NO_TRAFFIC, "no request in all these hours")
    mean, most = full
    hits = best_value(read_hours(context, hours, "prefix_hit_ratio")) or 0.0
    is_empty, details = most < limit, [f"highest instant of an hour, hourly mean at most {number(mean, 'ratio')}"]
    certain = not is_empty or _is_covered(hours)
    if is_empty and hits > context.limit("cached_share"):
        certain = False
        details.append(f"{number(hits, 'ratio')} of prompt tokens are found in it; blocks that hold them count as free")
    status = Status.WARNING if is_empty else Status.OK
    share = f"{fullest * 100:g}% of {len(hours)} hours"
    sentence = f"In {share} the KV cache is at most {number(most, 'ratio')} full; {limit * 100:g}% or more is healthy"
    observed, expected = exact_reading(most, float(len(hours))), range_reading(limit, None, 0.0)
    return context.verdict(status, Certainty.of(certain), observed, expected, sentence, details=details)


def compute_idle_replicas(plan: TierPlan | None, ready: float, busiest: float, margin: Margin) -> IdleReplicas:
    """Return the surplus of `ready` replicas (DESIGN 3.22): those beyond the recommended count and the plan's floor.

    `busiest` is the work of the busiest hour, in full replicas. The minimum warm count is a floor, not added to the count.
    """
    needed = count_replicas(busiest, 1.0, margin)
    warm = plan.fleet.minimum_warm or 0 if plan is not None and plan.fleet is not None else 0
    surplus = max(0.0, ready - max(needed, warm, 1))
    price = money.price_of(plan) if plan is not None else None
    cost, currency = (None, "") if price is None else (money.money_per_day(surplus, price), price.currency)
    return IdleReplicas(
        replicas=surplus, ready=ready, needed=needed, minimum_warm=warm, cost_per_day=cost, currency=currency
    )


def find_idle(context: TierContext, hours: Sequence[Window], margin: Margin) -> IdleReplicas:
    """Return the surplus replicas of a time from the fleet utilisation of its hours."""
    each = [(read(BY_NAME["fleet_utilization"], hour, context.basis), mean_ready_replicas((hour,))) for hour in hours]
    busiest = max((used.value * ready for used, ready in each if isinstance(used, Reading) and used.value), default=0.0)
    return compute_idle_replicas(context.plan, mean_ready_replicas(hours), busiest, margin)


def read_margin(context: RuleContext) -> Margin:
    """Return the margin of recommended counts, by NoHeadroom."""
    return margin_from_rule(context.catalogue["NoHeadroom"], context.tier.limits)


def _describe_idle(context: RuleContext, idle: IdleReplicas) -> tuple[str, str]:
    """Return the surplus with its cost, and what the busiest hour needs, in words."""
    surplus = "no replica is surplus"
    if idle.replicas:
        cost = _describe_cost(context, idle.replicas)
        surplus = f"{idle.replicas:.1f} of {idle.ready:.1f} replicas are surplus{cost and f', {cost}'}"
    share = number(read_margin(context).target_utilization, "ratio")
    need = f"the busiest hour needs {format_count(idle.needed, 'replica')} at up to {share} of capacity"
    return surplus, need + (f"; the minimum warm count is {idle.minimum_warm}" if idle.minimum_warm else "")


def _describe_cost(context: RuleContext, replicas: float) -> str:
    """Return the cost of replicas per day, "" without a plan."""
    plan = context.tier.plan
    return "" if plan is None else money.cost_per_day(replicas, money.price_of(plan))


@judge_each_pool
def judge_headroom(context: RuleContext) -> RuleResult:
    """Find fleet utilisation above 90 % (guide 9.3) in the window, or the busiest hours of a week."""
    each, weekly, limit = sum_periods(context), context.period_seconds > MINUTE_SECONDS, context.limit("above")
    judged = each
    if weekly:
        most = max(SEPARATE, math.floor(context.limit("busiest_hours") * len(each)))
        pairs = zip(_list_levels(context, each), each, strict=True)
        busiest = sorted(((level, hour) for level, hour in pairs if level is not None), key=itemgetter(0), reverse=True)
        judged = tuple(sorted((hour for _, hour in busiest[:most]), key=attrgetter("start")))
    used = read_hours(context, judged)
    if isinstance(used, Missing) or used.value is None:
        return _explain_unread(context, used)
    is_over = partial(lt, limit)
    late, levels = context.last_quarter(context.binned), _list_levels(context, judged)
    last = best_value(read_signal(context, late))
    if weekly:
        known = [best_value(read_signal(context, group)) for group in context.periods(late)]
        last = max((value for value in known if value is not None), default=None)
    when = f"over {hold(context.binned).watched_seconds / MINUTE_SECONDS:.0f} min"
    if weekly:
        when = f"in the busiest {len(judged)} of {len(each)} hours"
    elif is_over(used.value):
        early = too_early(context, context.binned, last, levels, is_over)
        if early is not None:
            return early
    expected, above = range_reading(0.0, limit, used.n), used.low is not None and used.low > limit
    sentence, healthy = f"Fleet utilisation is {number(used.value, 'ratio')}", f"up to {limit * 100:g}% leaves headroom"
    status, certain, more = Status.WARNING, above and _is_covered(judged), ""
    if not is_over(used.value) or not is_persistent(last, levels, is_over):
        status, certain = Status.OK, above or (used.high is not None and used.high <= limit)
        sentence += f"; {healthy}"
        if is_over(used.value):
            sentence += f"; {explain_not_lasting(context, is_over=last is None or last <= limit)}"
    elif weekly:
        sentence += f"; {when}, {healthy}"
        more = "the report and `sizewatch prewarm` have the replicas needed then"
    else:
        need, more = _describe_missing(context, judged, used.value)
        sentence += f"; {need}"
    return context.verdict(status, Certainty.of(certain), used, expected, sentence, details=(when, more))


def _describe_missing(context: RuleContext, judged: Sequence[Window], utilization: float) -> tuple[str, str]:
    """Return the replicas that are needed, at least one more, and the cost of the missing ones."""
    capacity = context.tier.capacity
    assert capacity is not None, "utilisation is a share of it"
    # Minutes of replicas that are scraped at different times overlap, so their spans do not add up.
    replicas = math.fsum(minute.covered_seconds for minute in judged) / hold(context.binned).watched_seconds
    count = replica_count(utilization * replicas * capacity.rps, capacity, read_margin(context)).replicas
    needed = max(round(replicas) + 1, count)
    after, more = number(utilization * replicas / needed, "ratio"), needed - round(replicas)
    words = f"{needed} replicas are needed ({after} used), {replicas:.1f} were ready"
    return words, f"{more} more cost {_describe_cost(context, more)}"


class TokenYield(NamedTuple):
    """Yield of hours: rates of tier and replica, tokens per request and per GPU-hour."""

    traffic: float
    requests_per_replica: float
    tokens_per_request: float
    tokens_per_gpu_hour: float


def judge_falling(context: RuleContext) -> RuleResult:
    """Find fewer tokens per GPU-hour than the week before while traffic grew: something saturates (guide 9.3).

    Whole weeks are compared, so that each has every weekday once, and single days against the same weekday.
    """
    hours, growth, kept = sum_periods(context), 1 + context.limit("growth"), 1 - context.limit("fall")
    reading = read_hours(context, hours)
    if isinstance(reading, Missing):
        return _explain_unread(context, reading)
    half = round(context.rule.window_seconds / 2 / DAY_SECONDS)
    days = windows.group_by(hours, lambda hour: math.floor((context.now - hour.middle) / DAY_SECONDS))

    def measure(numbers: Iterable[int]) -> TokenYield | None:
        chosen = [hour for day in numbers for hour in days.get(day, ())]
        made = best_value(read_hours(context, chosen))
        if made is None:
            return None
        total, span = windows.sum_windows(chosen), math.fsum(hour.span for hour in chosen)
        requests, tokens = (total.counters.get(name, 0.0) for name in ("requests_finished", "generation_tokens"))
        if requests <= 0 or tokens <= 0:
            return None
        return TokenYield(requests / span, requests / total.covered_seconds, tokens / requests, made)

    def is_falling(first: TokenYield, last: TokenYield) -> bool:
        return last.traffic >= first.traffic * growth and last.tokens_per_gpu_hour < first.tokens_per_gpu_hour * kept

    after, before = measure(range(half)), measure(range(half, 2 * half))
    if before is None or after is None:
        return context.unknown(Gap.NO_TRAFFIC, "one of the two weeks had no traffic")
    pairs = [(measure((day + half,)), measure((day,))) for day in range(half)]
    falling = [is_falling(first, last) for first, last in pairs if first is not None and last is not None]
    observed = exact_reading(after.tokens_per_gpu_hour, reading.n)
    expected = range_reading(before.tokens_per_gpu_hour * kept, None, reading.n)
    # Tokens per GPU-hour are requests per replica x tokens per request.
    changes = (f"{new / old - 1:+.1%}" for old, new in zip(before, after, strict=True))
    traffic, per_replica, per_request, change = ("unchanged" if text[1:] == "0.0%" else text for text in changes)
    sentence = f"Tokens per GPU-hour went {change} in a week, traffic {traffic}"
    details = (f"requests per replica {per_replica}", f"tokens per request {per_request}")
    status, is_sure = Status.OK, True
    if is_falling(before, after):
        status, is_sure = Status.WARNING, sum(falling) >= context.limit("days") and _is_covered(hours)
        sentence += f"; on {sum(falling)} of {len(falling)} days"
    return context.verdict(status, Certainty.of(is_sure), observed, expected, sentence, details=details)
