"""Evaluation of the rules: over single scrapes in every cycle, over minutes of a tier, and over days of the history."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rules.catalogue.registry import BY_NAME, RULES
from rules.causes import explain
from rules.confidence import Certainty
from rules.evaluator.tier_minutes import LIVE, LIVE_SECONDS, TierMinutes
from rules.methods.routing import judge_tiers
from rules.plan import load_bins
from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.cascade import CascadeThresholds
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState
from rules.telemetry import windows
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.verdicts.context import SEPARATE, Projection, RuleContext, TierWindows, needed_words, read_plan_value
from rules.verdicts.held_windows import HeldWindows, hold, select_ending
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import FIRING, RuleResult, RuleState, Status, Subject, Unknown, Verdict

REPLICA_RULES = tuple(BY_NAME[name] for name in ("KvCacheCascade", "TargetDown", "EngineStalled", "TelemetryStale"))
TIER_RULES = tuple(BY_NAME[name] for name in ("TierDown", "BenchmarkStale"))
UNKNOWN_TOO_LONG = BY_NAME["UnknownTooLong"]


def cascade_limits(context: TierContext) -> CascadeThresholds:
    """Return the thresholds of KvCacheCascade, with the tier's TTFT objective (seconds) where the plan has one."""
    rule = BY_NAME["KvCacheCascade"]
    values = {name: rule.limit(name, context.limits) for name in rule.thresholds}
    if context.basis.ttft_slo_seconds is not None:
        values["ttft_slo_seconds"] = context.basis.ttft_slo_seconds
    return CascadeThresholds(**values)


def evaluate_replica_rules(
    replica: ReplicaState,
    context: TierContext,
    now: float,
    recent: Sequence[BinnedWindow] = (),
    others_answer: bool = False,
    others_serve: bool = False,
    starts: tuple[ReplicaStart, ...] = (),
) -> tuple[RuleResult, ...]:
    """Return the results of one replica at `now`. `recent` are its last minutes, to explain a cascade with.

    `others_answer`: a replica that never answered may be a new one, as slow as `starts` of the tier. `others_serve`:
    some replica of the tier can answer requests.
    """
    # Not `replace`, which costs three times as much: a fleet evaluates these rules thousands of times a cycle.
    contexts = (
        RuleContext(
            rule=rule,
            catalogue=BY_NAME,
            tier=context,
            now=now,
            replica=replica,
            others_answer=others_answer,
            others_serve=others_serve,
            starts=starts,
        )
        for rule in REPLICA_RULES
    )
    results = list(map(ask, contexts))
    return tuple(explain.add_causes(r, context, recent) if isinstance(r, Verdict) else r for r in results)


def evaluate_tier_availability(
    replicas: Sequence[ReplicaState], states: Iterable[RuleState], context: TierContext, now: float
) -> tuple[RuleResult, ...]:
    """Return the results of a tier as a whole at `now`, from its replicas and the states of all its rules."""
    base = RuleContext(rule=TIER_RULES[0], catalogue=BY_NAME, tier=context, now=now, replicas=tuple(replicas))
    return *(rule.method(replace(base, rule=rule)) for rule in TIER_RULES), evaluate_unknowns(states, context, now)


def evaluate_unknowns(states: Iterable[RuleState], context: TierContext, now: float) -> RuleResult:
    """Return the result of UnknownTooLong, which needs no scrape."""
    rule_context = RuleContext(rule=UNKNOWN_TOO_LONG, catalogue=BY_NAME, tier=context, now=now, states=tuple(states))
    return rule_context.rule.method(rule_context)


def ask(context: RuleContext) -> RuleResult:
    """Return the result of the rule's method, or that it is not asked of a batch tier or without windows."""
    plan = context.tier.plan
    if plan is not None and plan.is_batch and context.rule.online_only:
        return context.unknown(Gap.NOT_IN_PLAN, "not asked: batch tier")
    if context.rule.reads_windows and not context.binned and not context.rule.per_scrape:
        return context.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    return context.rule.method(context)


COMPARING = next(rule for rule in LIVE if rule.method is judge_tiers)
"""The rule that reads the windows of other tiers."""

SELDOM = frozenset({"PrefixRoutingBroken", "ReplicaImbalance", "GpuMemoryHigh", "GpuThrottling"})
OF_EACH = SELDOM | {"LoadBeyondBenchmark", "QueueGrowing", "PdRatioOff", "ExpertImbalance"}
"""Rules that compare the replicas of a tier with each other. They cannot use sums over replicas."""

EACH_POOL = frozenset({"NoHeadroom", "DemandExceedsCapacity", "WorkloadDrift"})
"""Rules that read prefill and decode pools one by one. Sums over replicas do not tell pools apart."""

SELDOM_SECONDS = 300.0
"""Interval in seconds of the SELDOM rules in an aggregated tier."""


def evaluate_rule(
    rule: Rule,
    tier: TierContext,
    binned: Sequence[BinnedWindow],
    now: float,
    period_seconds: float = windows.MINUTE_SECONDS,
) -> RuleResult:
    """Return the result of a rule over windows at `now` from those of its hold, oldest first, each within one period."""
    held = hold(binned)
    return _evaluate(
        RuleContext(rule=rule, catalogue=BY_NAME, tier=tier, binned=held, now=now, period_seconds=period_seconds), held
    )


def _evaluate(context: RuleContext, held: HeldWindows) -> RuleResult:
    """Return the result of a rule over its windows.

    Unknown where the windows span less than the rule needs. Where holes in them leave less, the result may be a violation
    or a gap, and never ok.
    """
    rule = context.rule
    span = held.ends[1] - held.start if held else math.inf
    if span < rule.minimum_seconds:
        seen = needed_words(rule, min(span, held.watched_seconds))
        return context.unknown(Gap.TOO_FEW_REQUESTS, seen, rule.minimum_seconds - span)
    result = ask(context)
    is_ok = isinstance(result, Verdict) and result.status is Status.OK
    if is_ok and held.watched_seconds < FULL_COVERAGE * rule.minimum_seconds:
        return context.unknown(Gap.TOO_FEW_REQUESTS, needed_words(rule, held.watched_seconds))
    return result


def compared_tiers(
    minutes: Mapping[str, TierMinutes], contexts: Mapping[str, TierContext], now: float
) -> dict[str, TierWindows]:
    """Return what rules that compare tiers read of each. The tiers share it."""
    return {name: (contexts[name], _hold(known.binned.batches, COMPARING, now)) for name, known in minutes.items()}


def evaluate_tier_rules(
    minutes: TierMinutes,
    tier: TierContext,
    now: float,
    fleet: Mapping[str, TierWindows] | None = None,
    projection: Projection | None = None,
    states: Mapping[tuple[str, Subject], RuleState] | None = None,
) -> tuple[RuleResult, ...]:
    """Return the results of the rules that are due at `now`; unknown where a rule's minimum time has not passed.

    `fleet` holds the windows of all tiers, by `compared_tiers`. `states` have the last results.
    """
    context = RuleContext(
        rule=COMPARING,
        catalogue=BY_NAME,
        tier=tier,
        now=now,
        fleet=fleet or {},
        budget=minutes.budget,
        projection=projection,
        starts=minutes.starts,
    )
    holds: dict[tuple[bool, float], HeldWindows] = {}
    if tier.name in context.fleet:
        holds[False, COMPARING.window_seconds] = context.fleet[tier.name][1]
    results = []
    compared = OF_EACH if tier.serves_whole_requests else OF_EACH | EACH_POOL
    for rule in LIVE:
        last = states.get((rule.name, context.subject)) if states and rule.name in SELDOM else None
        if last is not None and minutes.each is not None and not _is_due(last.result, now):
            continue
        of_each = minutes.each is not None and rule.name in compared
        kind = (of_each, rule.window_seconds)
        if kind not in holds:
            # Rules share few window lengths, and an hour of a large tier has many thousand windows.
            holds[kind] = _hold((minutes.each or ()) if of_each else minutes.binned.batches, rule, now)
        results.append(_judge_minutes(replace(context, rule=rule, binned=holds[kind]), holds[kind]))
    return tuple(results)


def _is_due(last: RuleResult, now: float) -> bool:
    """Return whether a SELDOM rule is evaluated again. Tiers begin their intervals at different times."""
    begin = zlib.crc32(ascii(last.subject.tier).encode())
    return isinstance(last, Unknown) or (last.t - begin) // SELDOM_SECONDS != (now - begin) // SELDOM_SECONDS


def _judge_minutes(context: RuleContext, held: HeldWindows) -> RuleResult:
    """Return the result of a rule over minutes, with its causes. What was seldom scraped is at most likely."""
    rule, tier = context.rule, context.tier
    if rule.needs and not read_plan_value(tier, rule.needs):
        # First, because waiting does not change the plan.
        return context.unknown(Gap.NOT_IN_PLAN, f"the plan has no {rule.needs}")
    if not held:
        return context.unknown(Gap.TOO_FEW_REQUESTS, needed_words(rule, 0.0), rule.minimum_seconds)
    result = _evaluate(context, held)
    if not isinstance(result, Verdict):
        return result
    if not held.is_seldom_scraped:
        return explain.add_causes(result, tier, held)
    steps = len({windows.minute_of(binned.window) for binned in held if binned.window.covered_seconds > 0})
    if result.status is Status.OK and steps < SEPARATE:
        text = f"scrapes are too far apart: {steps} intervals between scrapes were seen, {SEPARATE} are needed"
        return context.unknown(Gap.NOT_SCRAPED, text)
    if result.status is Status.OK and _may_exceed(result):
        text = "scrapes are too far apart, and the bounds of what was seen reach beyond what is healthy"
        return context.unknown(Gap.NOT_SCRAPED, text)
    return explain.add_causes(replace(result, certainty=Certainty.LIKELY), tier, held)


def _may_exceed(result: Verdict) -> bool:
    """Return whether the bounds of what was seen reach beyond what is expected."""
    seen, expected = result.observed, result.expected
    if not isinstance(seen, Reading) or not isinstance(expected, Reading) or expected.high is None:
        return False
    return seen.high is None or seen.high > expected.high


def _hold(batches: Iterable[HeldWindows], rule: Rule, now: float) -> HeldWindows:
    return HeldWindows.of_batches(select_ending(batch, now - rule.window_seconds) for batch in batches)


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
    return tuple(_judge_hours(rule, rule_hours, context, now, until) for rule, rule_hours in rows)


def _judge_hours(
    rule: Rule, hours: Sequence[BinnedWindow], context: TierContext, now: float, until: float
) -> RuleResult:
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
