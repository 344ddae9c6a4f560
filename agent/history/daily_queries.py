"""Queries over days: hours for the rules over days, sums for what-ifs, and the measured capacity of each tier.

Days are read one by one, so that weeks of a busy tier fit into memory. Daemon and commands read the same capacity: over
whole UTC days up to the last midnight, bounded by the last day's overload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.history.schema import DAY, HOURS
from agent.history.store import Reader
from rules.evaluator import rule_evaluation
from rules.plan.load_bins import BinnedWindow, TierContext, sum_by_bin, sum_by_hour, with_capacity
from rules.resize.measured_capacity import DAYS, capacity_now
from rules.resize.overload import (
    LOOK_BACK_SECONDS,
    WORK_FAMILIES,
    bound_by_lengths,
    bound_by_overload,
    is_saturated,
    lift_to_carried,
)
from rules.resize.production_summary import ProductionSummary
from rules.telemetry import windows
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS
from rules.telemetry.work import Capacity
from rules.verdicts.verdict import RuleResult


def choose_period(store: Reader, tiers: Iterable[str], seconds: float, now: float) -> tuple[float, float]:
    """Return [since, until) of a report at `now`, in unix seconds: full hours, at least one.

    The first hour of all tiers is not full: the period ends with its last full minute. Raise HistoryError.
    """
    hour = now // HOUR_SECONDS * HOUR_SECONDS
    span = min(HOURS.keep_seconds, max(HOUR_SECONDS, seconds // HOUR_SECONDS * HOUR_SECONDS))
    names = tuple(tiers)
    is_first_hour = not any(store.plan_versions(tier, hour - HOURS.keep_seconds, hour) for tier in names) and any(
        store.plan_versions(tier, hour, now) for tier in names
    )
    return (hour, now // MINUTE_SECONDS * MINUTE_SECONDS) if is_first_hour else (hour - span, hour)


def evaluate_days(store: Reader, context: TierContext, version: str, now: float) -> tuple[RuleResult, ...]:
    """Return the results of the rules over days for a tier with this plan version. Raise HistoryError."""
    since = now - rule_evaluation.LOOK_BACK_SECONDS
    other_versions = set(store.plan_versions(context.name, since, now)) - {version}
    hours = _hours(store, context.name, since, now, None)
    of_plan = _hours(store, context.name, since, now, version) if other_versions else hours
    return rule_evaluation.evaluate_long_rules(context, hours, now, of_plan)


def _hours(store: Reader, tier: str, since: float, until: float, version: str | None) -> tuple[BinnedWindow, ...]:
    days = (store.bins(tier, begin, end, version) for begin, end in pieces(since, until, DAY))
    return tuple(hour for day in days for hour in rule_evaluation.sum_slim_hours(day))


def pieces(since: float, until: float, seconds: float) -> Iterator[tuple[float, float]]:
    """Yield [since, until) cut at full multiples of `seconds`: no hour is read in two parts."""
    while since < until:
        end = min(until, (since // seconds + 1) * seconds)
        yield since, end
        since = end


def read_production(store: Reader, context: TierContext, since: float, until: float) -> ProductionSummary:
    """Return what was seen in [since, until), from the full hour on that holds `since`. Raise HistoryError."""
    since = since // HOUR_SECONDS * HOUR_SECONDS
    seen = ProductionSummary(context=context, since=since, until=until)
    for begin, end in pieces(since, until, DAY):
        hours = sum_by_hour(store.bins(context.name, begin, end))
        seen = seen.add(hours, (), store.demand(context.name, begin, end))
    return seen


def read_capacity(store: Reader, context: TierContext, now: float, daily: Capacity | None) -> Capacity | None:
    """Return the capacity of one replica at `now` (unix seconds).

    `daily` is the estimate of the last midnight (UTC). The newest overload of LOOK_BACK_SECONDS bounds it until
    production carries more. So do the lengths of the last two hours. None where nothing tells. Raise HistoryError.
    """
    if daily is None or not context.serves_whole_requests:
        return daily
    tier, hour = context.name, now // HOUR_SECONDS * HOUR_SECONDS
    # An overload is of the engines: a new version of the plan does not end it.
    hours = store.bins(tier, hour - LOOK_BACK_SECONDS + HOUR_SECONDS, now)
    recent = [part.window for part in hours if part.window.end > hour - HOUR_SECONDS]
    if recent:
        daily = bound_by_lengths(daily, context, windows.sum_families(recent, WORK_FAMILIES))
    ends = {(part.window.middle // HOUR_SECONDS + 1) * HOUR_SECONDS for part in hours if is_saturated(part, context)}
    for end in sorted(ends, reverse=True):
        quarters = store.replica_bins(tier, end - 2 * HOUR_SECONDS, end)
        bounded = bound_by_overload(daily, context, quarters, is_present=end > hour)
        if bounded is not None:
            later = (part for part in hours if part.window.middle > end and not part.outside)
            return lift_to_carried(bounded, daily, later)
    return daily


def read_capacity_days(store: Reader, tier: str, version: str, now: float) -> Iterator[tuple[BinnedWindow, ...]]:
    """Yield the load bins of each day that the capacity at `now` rests on. Raise HistoryError."""
    until = now // DAY * DAY
    begins = (until - age * DAY for age in range(DAYS, 0, -1))
    return (sum_by_bin(store.bins(tier, begin, begin + DAY, version)) for begin in begins)


def read_daily_capacities(
    store: Reader, contexts: Mapping[str, TierContext], versions: Mapping[str, str], now: float
) -> dict[str, Capacity | None]:
    """Return the estimate of the last midnight (UTC) for each tier with a plan. Raise HistoryError."""
    capacities = {}
    for tier, version in versions.items():
        if tier in contexts:
            capacities[tier] = capacity_now(contexts[tier], read_capacity_days(store, tier, version, now))
    return capacities


def measured_views(
    store: Reader,
    contexts: Mapping[str, TierContext],
    versions: Mapping[str, str],
    now: float,
    daily: Mapping[str, Capacity | None] | None = None,
) -> dict[str, TierContext]:
    """Return the views with the capacity that production showed by `now`. `daily` are estimates of the last midnight."""
    known = read_daily_capacities(store, contexts, versions, now) if daily is None else daily
    measured = dict(contexts)
    for tier in contexts.keys() & versions.keys():
        capacity = read_capacity(store, contexts[tier], now, known.get(tier))
        measured[tier] = with_capacity(contexts[tier], capacity)
    return measured
