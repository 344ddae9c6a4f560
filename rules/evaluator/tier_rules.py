"""Evaluation of the rules over minutes of a tier."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rules.catalogue.registry import BY_NAME
from rules.causes import explain
from rules.confidence import Certainty
from rules.evaluator.scrape_rules import ask
from rules.evaluator.tier_minutes import LIVE, TierMinutes
from rules.methods.routing import judge_tiers
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import windows
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.context import SEPARATE, Projection, RuleContext, TierWindows, needed_words, read_plan_value
from rules.verdicts.held_windows import HeldWindows, hold, select_ending
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, RuleState, Status, Subject, Unknown, Verdict

COMPARING = next(rule for rule in LIVE if rule.method is judge_tiers)
"""The rule that reads the windows of other tiers."""

SELDOM = frozenset({"PrefixRoutingBroken", "ReplicaImbalance"})
OF_EACH = SELDOM | {"LoadBeyondBenchmark", "QueueGrowing", "PdRatioOff", "ExpertImbalance"}
"""Rules that compare the replicas of a tier with each other. They cannot use sums over replicas."""

EACH_POOL = frozenset({"NoHeadroom", "DemandExceedsCapacity", "WorkloadDrift"})
"""Rules that read prefill and decode pools one by one. Sums over replicas do not tell pools apart."""

SELDOM_SECONDS = 300.0
"""Interval in seconds of the SELDOM rules in an aggregated tier: they read an hour of every replica's minutes."""


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
        results.append(_judge(replace(context, rule=rule, binned=holds[kind]), holds[kind]))
    return tuple(results)


def _is_due(last: RuleResult, now: float) -> bool:
    """Return whether a SELDOM rule is evaluated again. Tiers begin their intervals at different times."""
    begin = zlib.crc32(ascii(last.subject.tier).encode())
    return isinstance(last, Unknown) or (last.t - begin) // SELDOM_SECONDS != (now - begin) // SELDOM_SECONDS


def _judge(context: RuleContext, held: HeldWindows) -> RuleResult:
    """Return the result of a rule over minutes, with its causes. What was seldom scraped is at most likely."""
    rule, tier = context.rule, context.tier
    if rule.needs and read_plan_value(tier, rule.needs) is None:
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
