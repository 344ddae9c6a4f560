"""Idle capacity over days: utilization trap, queues that are always empty, KV caches that never fill (guide 9.2, 9.3).

The sums by period (hours, or minutes of a short window) are shared with `rules.methods.headroom`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rules.confidence import nearest_rank
from rules.methods.evidence import capitalize, certain_if, exact_reading, judge_each_pool, range_reading
from rules.plan import money
from rules.plan.load_bins import TierContext
from rules.plan.replica_count import Margin, count_replicas, margin_from_rule
from rules.plan.schema import TierPlan
from rules.telemetry import windows
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import DAY_SECONDS, Window
from rules.telemetry.wording import format_count, number
from rules.telemetry.work import weighing_words, work_of
from rules.verdicts.context import RuleContext
from rules.verdicts.held_windows import watched_seconds
from rules.verdicts.verdict import IdleReplicas, RuleResult, Status, Unknown

POLLED = "gpu_utilization_sampled"
"""Gauge of a plain poll, which does not cover the time between two polls: `likely` at most (METRICS trap 15)."""


def sums(case: RuleContext, *signals: str) -> tuple[Window, ...]:
    """Return the sum of each period, oldest first. With `signals` only their families are added."""
    groups = case.periods(case.binned)
    if not signals:
        return tuple(windows.sum_windows(one.window for one in group) for group in groups)
    families = frozenset(family for name in signals for family in families_of(BY_NAME[name]))
    return tuple(group.sum_families(families) for group in groups)


def select_last_quarter(case: RuleContext) -> tuple[Window, ...]:
    return tuple(one.window for one in case.last_quarter(case.binned))


def reading(case: RuleContext, several: Sequence[Window], signal: str = "") -> SignalValue:
    """Return a signal (default: the rule's own) over windows. Return no traffic without windows."""
    if not several:
        return Missing(gap=Gap.NO_TRAFFIC)
    wanted = BY_NAME[signal or case.rule.signal]
    return read(wanted, windows.sum_families(several, families_of(wanted)), case.context.basis)


def value(case: RuleContext, several: Sequence[Window], signal: str = "") -> float | None:
    """Return the best value of `reading`, or None."""
    found = reading(case, several, signal)
    return found.value if isinstance(found, Reading) else None


def weighing(case: RuleContext, several: Sequence[Window]) -> str:
    """Return how far apart the bounds of fleet utilisation are, and why, as a detail. Return "" if they are equal."""
    basis, signal = case.context.basis, BY_NAME["fleet_utilization"]
    capacity = basis.capacity
    if not several or capacity is None:
        return ""
    work = work_of(windows.sum_families(several, families_of(signal)), capacity.lengths)
    return weighing_words(work, capacity.lengths, capacity.rps).strip(" ()") if work else ""


def hours_of_fullest(several: Sequence[Window], family: str, q: float) -> tuple[float, float] | None:
    """Return quantile q of the hourly means and of the hourly maxima of a gauge. Return None if no hour has it."""
    gauges = [gauge for w in several if (gauge := w.gauge(family)) is not None]
    if not gauges:
        return None
    return nearest_rank([g.mean for g in gauges], q), nearest_rank([g.maximum for g in gauges], q)


def observed_seconds(period: Window, longest: float) -> float:
    """Return the seconds of a period (at most `longest`) in which replicas were observed, times their coverage."""
    return min(period.span, longest) * period.coverage


def mean_ready_replicas(several: Sequence[Window]) -> float:
    """Return the mean number of observed replicas: covered replica-seconds by the seconds of the periods."""
    seconds = math.fsum(w.span for w in several)
    return math.fsum(w.covered_seconds for w in several) / seconds if seconds > 0 else 0.0


def is_covered(several: Sequence[Window]) -> bool:
    """Return whether these periods cover enough replica-seconds. They need not be adjacent."""
    due = math.fsum(w.due_seconds for w in several)
    return due > 0 and math.fsum(w.covered_seconds for w in several) >= FULL_COVERAGE * due


@judge_each_pool
def judge_trap(case: RuleContext) -> RuleResult:
    """Find fleet utilisation below 40 % over a week, with KV utilisation below 75 % in its fullest hours (DESIGN 3.12).

    Ok where no replica is surplus and less than one on average is beyond the minimum warm count. A fleet that only its
    peaks need is in the trap, with no surplus: scaling by schedule and batch work are its levers (guide 9.2).
    Certain if the upper bound of utilisation is below the limit too. Ok is certain if the lower bound is above it.
    """
    hours, limit = sums(case), case.limit("below")
    used = reading(case, hours)
    if isinstance(used, Missing) or used.value is None:
        return unknown_utilization(case, used)
    days = watched_seconds(case.binned) / DAY_SECONDS
    summary = f"fleet utilisation is {number(used.value, 'ratio')} over {days:.1f} days"
    idle, details = find_idle(case.context, hours, _read_margin(case)), [weighing(case, hours)]

    def judged(status: Status, text: str, certain: bool, found: IdleReplicas | None = idle) -> RuleResult:
        return _build_verdict(case, status, used, f"{summary}; {text}", certain, found, details)

    if used.value >= limit:
        sure = used.low is not None and used.low >= limit
        return judged(Status.OK, f"{limit * 100:g}% or more is no trap", sure)
    full = hours_of_fullest(hours, "kv_utilization", case.limit("fullest_hours"))
    if full is None:
        gap = windows.sum_windows(hours).explain_missing("kv_utilization")
        return case.unknown(gap, f"{summary}; the KV cache level is not known")
    details.append(f"the hourly mean of the KV cache is {number(full[0], 'ratio')} in its fullest hours")
    if full[0] >= case.limit("kv_below"):
        return judged(Status.OK, "memory sets the size of this fleet, not load", True, None)
    details.append(_describe_need(case, idle))
    if not idle.replicas and idle.ready < idle.minimum_warm + 1:
        return judged(Status.OK, "its busiest hour or the minimum warm count needs every replica", True)
    last = value(case, select_last_quarter(case))
    certain = is_covered(hours) and last is not None and last < limit and used.high is not None and used.high < limit
    return judged(Status.WARNING, _describe_surplus(case, idle), certain)


def judge_empty_queue(case: RuleContext) -> RuleResult:
    """Find a queue that is always empty while the GPUs are mostly idle, over a day with traffic (guide 9.3).

    From waiting requests, and GPU utilisation of the busiest hours. Certain if most of the time was seen, not by plain polls.
    """
    hours, total = sums(case), windows.sum_windows(one.window for one in case.binned)
    if not total.counters.get("requests_finished"):
        return case.unknown(Gap.NO_TRAFFIC, "no request in all these hours")
    used, fullest = reading(case, hours), case.limit("fullest_hours")
    waiting = hours_of_fullest(hours, "requests_waiting", fullest)
    if waiting is None:
        return case.unknown(total.explain_missing("requests_waiting"), "nothing says how many requests wait")
    if isinstance(used, Missing) or used.value is None:
        return case.unknown(used.gap if isinstance(used, Missing) else Gap.SCRAPE_FAILED, "no GPU utilisation is read")
    each = [level for hour in hours if (level := value(case, (hour,))) is not None]
    busiest = nearest_rank(each, fullest)
    seen, gpus = exact_reading(busiest, used.n), f"GPUs are {number(busiest, 'ratio')} busy in the busiest hours"
    if waiting[0] > case.limit("waiting"):
        text = f"{number(waiting[0], '')} requests wait at each replica; {gpus}"
        return _build_verdict(case, Status.OK, seen, text)
    if busiest >= case.limit("gpu_below"):
        return _build_verdict(case, Status.OK, seen, f"no queue; {gpus}")
    full = hours_of_fullest(hours, "kv_utilization", fullest)
    if full and full[0] >= case.catalogue["UtilizationTrap"].limit("kv_below", case.context.limits):
        text = f"no queue; {gpus}; memory sets the size of this fleet, not load"
        return _build_verdict(case, Status.OK, seen, text)
    idle = find_idle(case.context, hours, _read_margin(case))
    if case.context.capacity is None:
        load = max(each) * mean_ready_replicas(hours)
        idle = compute_idle_replicas(case.context.plan, idle.ready, load, _read_margin(case))
    details, surplus = (_describe_need(case, idle),), _describe_surplus(case, idle)
    if idle.replicas <= 0:
        return _build_verdict(case, Status.OK, seen, f"no queue; {surplus}", details=details)
    certain = not (POLLED in total.gauges and POLLED in total.sampled) and is_covered(hours)
    return _build_verdict(
        case, Status.WARNING, seen, f"no request waits while {gpus}; {surplus}", certain, idle, details
    )


def judge_empty_cache(case: RuleContext) -> RuleResult:
    """Find a KV cache below the guide's band at the highest instants of its fullest hours, for a week (guide 9.3).

    Hourly maxima count, because a cache is sized for its fullest moment. Blocks that only hold cached prefixes count as
    free, so the result is likely at most if many tokens hit them.
    """
    hours, total = sums(case), windows.sum_windows(one.window for one in case.binned)
    full = hours_of_fullest(hours, "kv_utilization", case.limit("fullest_hours"))
    if full is None:
        gap = total.explain_missing("kv_utilization")
        return case.unknown(gap, "the engine does not show how full its KV cache is")
    if not total.counters.get("requests_finished"):
        return case.unknown(Gap.NO_TRAFFIC, "no request in all these hours")
    mean, most = full
    share = f"{case.limit('fullest_hours') * 100:g}% of {len(hours)} hours"
    summary = f"in {share} the KV cache is at most {number(most, 'ratio')} full"
    sentence = f"{summary}; {case.limit('below') * 100:g}% or more is healthy"
    details = [f"highest instant of an hour, hourly mean at most {number(mean, 'ratio')}"]
    status = Status.OK if most >= case.limit("below") else Status.WARNING
    hits = value(case, hours, "prefix_hit_ratio") if status is Status.WARNING else None
    holds_prefixes = hits is not None and hits > case.limit("cached_share")
    if holds_prefixes:
        details.append(
            f"{number(hits or 0.0, 'ratio')} of prompt tokens are found in it; blocks that hold them count as free"
        )
    certain = status is Status.OK or (is_covered(hours) and not holds_prefixes)
    return _build_verdict(case, status, exact_reading(most, float(len(hours))), sentence, certain, details=details)


def unknown_utilization(case: RuleContext, used: SignalValue) -> Unknown:
    """Return unknown with the reason why fleet utilisation is not known."""
    gap, text = (used.gap, used.text) if isinstance(used, Missing) else (Gap.SCRAPE_FAILED, "")
    return case.unknown(gap, text or "fleet utilisation is not known")


def compute_idle_replicas(plan: TierPlan | None, ready: float, busiest: float, margin: Margin) -> IdleReplicas:
    """Return the surplus of `ready` replicas (DESIGN 3.22): those beyond the recommended count and the plan's floor.

    `busiest` is the work of the busiest hour, in full replicas: utilisation x ready replicas. 10 ready replicas that
    are 30 % used are 5 too many with a minimum warm count of 5: it is a floor on the whole count, not added to it.
    """
    needed = count_replicas(busiest, 1.0, margin)
    warm = plan.fleet.minimum_warm or 0 if plan is not None and plan.fleet is not None else 0
    surplus = max(0.0, ready - max(needed, warm, 1))
    price = money.price_of(plan) if plan is not None else None
    return IdleReplicas(
        replicas=surplus,
        ready=ready,
        needed=needed,
        minimum_warm=warm,
        cost_per_day=money.money_per_day(surplus, price) if price is not None else None,
        currency=price.currency if price is not None else "",
    )


def find_idle(context: TierContext, hours: Sequence[Window], margin: Margin) -> IdleReplicas:
    """Return the surplus replicas of a time from the fleet utilisation of its hours (windows of all replicas)."""
    signal = BY_NAME["fleet_utilization"]
    each = [(read(signal, hour, context.basis), mean_ready_replicas((hour,))) for hour in hours]
    busiest = max((used.value * ready for used, ready in each if isinstance(used, Reading) and used.value), default=0.0)
    return compute_idle_replicas(context.plan, mean_ready_replicas(hours), busiest, margin)


def _read_margin(case: RuleContext) -> Margin:
    return margin_from_rule(case.catalogue["NoHeadroom"], case.context.limits)


def _describe_surplus(case: RuleContext, idle: IdleReplicas) -> str:
    if not idle.replicas:
        return "no replica is surplus"
    return f"{idle.replicas:.1f} of {idle.ready:.1f} replicas are surplus" + describe_cost(case, ", ", idle.replicas)


def _describe_need(case: RuleContext, idle: IdleReplicas) -> str:
    share = number(_read_margin(case).target_utilization, "ratio")
    text = f"the busiest hour needs {format_count(idle.needed, 'replica')} at up to {share} of capacity"
    return text + (f"; the minimum warm count is {idle.minimum_warm}" if idle.minimum_warm else "")


def describe_cost(case: RuleContext, before: str, replicas: float) -> str:
    """Return the cost of replicas per day after the words `before`. Return "" without a plan."""
    plan = case.context.plan
    return "" if plan is None else f"{before}{money.cost_per_day(replicas, money.price_of(plan))}"


def _build_verdict(
    case: RuleContext,
    status: Status,
    seen: Reading,
    sentence: str,
    certain: bool = True,
    idle: IdleReplicas | None = None,
    details: Iterable[str] = (),
) -> RuleResult:
    name = "gpu_below" if "gpu_below" in case.rule.thresholds else "below"
    expected = range_reading(case.limit(name), None, 0.0)
    return case.verdict(status, certain_if(certain), seen, expected, capitalize(sentence), idle=idle, details=details)
