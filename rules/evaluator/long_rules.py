"""Evaluation of the rules over days, from the hours of the history."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rules.catalogue.registry import BY_NAME, RULES
from rules.causes import explain
from rules.evaluator.tier_minutes import LIVE_SECONDS
from rules.evaluator.tier_rules import evaluate_rule
from rules.plan import load_bins
from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.signals import Gap
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import FIRING, RuleResult, Subject, Unknown, Verdict

WEEK_SECONDS = 7 * 86_400.0

LONG = tuple(rule for rule in RULES if not rule.per_scrape and rule.window_seconds > LIVE_SECONDS)

WEEKLY = replace(BY_NAME["NoHeadroom"], window_seconds=WEEK_SECONDS, minimum_seconds=0.9 * WEEK_SECONDS)
"""Rule over minutes that is also evaluated over the hours of a week, to find a peak that is full every day."""

ASKED = (*LONG, WEEKLY)

LOOK_BACK_SECONDS = max(rule.window_seconds for rule in ASKED) + 86_400.0
"""Time in seconds before now of the hours to read: a day more than any rule's window, to know whether data reach back."""

OF_THE_CURVE = "fleet_utilization"
"""Signal of the benchmark curve. Only hours under the present plan count: an older one had another capacity."""

_HISTOGRAMS = frozenset(rule.family for rule in ASKED)


def sum_slim_hours(binned: Iterable[BinnedWindow]) -> tuple[BinnedWindow, ...]:
    """Return one window per hour and pool, summed over load bins, with only the histograms that rules over days read.

    Weeks of hours are in memory at once, and histograms are most of a window.
    """
    return load_bins.sum_by_hour(
        replace(part, window=_slim(part.window), replica=part.replica if part.replica in POOL_TOKENS else None)
        for part in binned
    )


def _hour(window: Window) -> float:
    return window.middle // HOUR_SECONDS * HOUR_SECONDS


def _slim(window: Window) -> Window:
    kept = {family: parts for family, parts in window.histograms.items() if family in _HISTOGRAMS}
    return replace(window, histograms=kept)


def evaluate_long_rules(
    context: TierContext, hours: Sequence[BinnedWindow], now: float, of_plan: Sequence[BinnedWindow] | None = None
) -> tuple[RuleResult, ...]:
    """Return the results of the rules over days at `now` from hours, oldest first; unknown where these are too few.

    Only complete hours count. `of_plan` are those under the present plan version, or None if all are.
    """
    until = now // HOUR_SECONDS * HOUR_SECONDS
    slim = sum_slim_hours(hours)
    present = slim if of_plan is None else sum_slim_hours(of_plan)
    rows = ((rule, present if rule.signal == OF_THE_CURVE else slim) for rule in ASKED)
    return tuple(_judged(rule, rule_hours, context, now, until) for rule, rule_hours in rows)


def _judged(rule: Rule, hours: Sequence[BinnedWindow], context: TierContext, now: float, until: float) -> RuleResult:
    since = until - rule.window_seconds
    seen = [hour for hour in hours if since <= _hour(hour.window) < until]
    short = _too_few(rule, seen, any(_hour(hour.window) <= since for hour in hours))
    if short:
        return _unknown(rule, context, now, Gap.TOO_FEW_REQUESTS, short)
    # At the end of the last full hour: methods group hours into days and halves from there.
    result = evaluate_rule(rule, context, seen, until, HOUR_SECONDS)
    if isinstance(result, Verdict):
        result = explain.add_causes(result, context, seen)
    return replace(result, t=now)


def _too_few(rule: Rule, seen: Sequence[BinnedWindow], reaches_back: bool) -> str:
    """Return what is missing, or "": hours inside the window, or its beginning."""
    each: dict[float, float] = {}
    for binned in seen:
        known = min(binned.window.span, HOUR_SECONDS) * binned.window.coverage
        each[_hour(binned.window)] = max(known, each.get(_hour(binned.window), 0.0))
    hours, all_hours = math.fsum(each.values()) / HOUR_SECONDS, rule.window_seconds / HOUR_SECONDS
    if hours < rule.minimum_seconds / HOUR_SECONDS - 1e-6:
        return f"{hours:.0f} of {all_hours:.0f} hours seen, {math.ceil(rule.minimum_seconds / HOUR_SECONDS)} are needed"
    return "" if reaches_back else f"{hours:.0f} of {all_hours:.0f} hours seen: the history did not reach back so far"


def unknown_results(context: TierContext, now: float, reason: Gap, text: str) -> tuple[RuleResult, ...]:
    """Return unknown for every rule over days, where no history can be read."""
    return tuple(_unknown(rule, context, now, reason, text) for rule in LONG)


def _unknown(rule: Rule, context: TierContext, now: float, reason: Gap, text: str) -> Unknown:
    return Unknown(t=now, rule=rule.name, subject=Subject(tier=context.name), reason=reason, text=text)


def prefer_firing_result(live: RuleResult, mapping: Mapping[tuple[str, Subject], RuleResult]) -> RuleResult:
    """Return a result over minutes, or the one over a week if only that fires: a quiet hour is no headroom."""
    weekly = mapping.get((live.rule, live.subject))
    fires = isinstance(live, Verdict) and live.status in FIRING
    if isinstance(weekly, Verdict) and weekly.status in FIRING and not fires:
        return replace(weekly, t=live.t)
    return live


def long_only_results(results: Iterable[RuleResult]) -> tuple[RuleResult, ...]:
    """Return the results over days of rules that have no result over minutes."""
    return tuple(result for result in results if BY_NAME[result.rule].window_seconds > LIVE_SECONDS)
