"""Evaluation of the rules over minutes of a tier."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rules.catalogue.registry import BY_NAME
from rules.causes import explain
from rules.confidence import Certainty
from rules.evaluator.scrape_rules import ask
from rules.evaluator.tier_minutes import LIVE, TierMinutes
from rules.methods.routing import judge_tiers
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.starts import ReplicaStart
from rules.telemetry import windows
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.context import (
    SEPARATE,
    RuleContext,
    TierWindows,
    needed_words,
    read_plan_value,
)
from rules.verdicts.error_budget import Budget
from rules.verdicts.held_windows import HeldWindows, hold, select_ending
from rules.verdicts.projection import Projection
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, Status, Subject, Unknown, Verdict

COMPARING = next(rule for rule in LIVE if rule.method is judge_tiers)
"""The rule that reads the windows of other tiers."""

SELDOM = frozenset({"PrefixRoutingBroken", "ReplicaImbalance"})
OF_EACH = SELDOM | {"LoadBeyondBenchmark", "QueueGrowing", "PdRatioOff", "ExpertImbalance"}
"""Rules that compare the replicas of a tier with each other. They cannot use sums over replicas."""

EACH_POOL = frozenset({"NoHeadroom", "DemandExceedsCapacity", "WorkloadDrift"})
"""Rules that read prefill and decode pools one by one. Sums over replicas do not tell pools apart."""

SELDOM_SECONDS = 300.0
"""Interval in seconds of the SELDOM rules in an aggregated tier. They read an hour of every replica's minutes, and a cache
takes longer to fill."""


def cached_results(
    minutes: TierMinutes, results: Iterable[RuleResult], now: float, share: float = 0.0
) -> dict[str, RuleResult]:
    """Return the last results of SELDOM rules that are still valid at `now`, by rule.

    They end with an interval of the clock, which begins later by this `share` (0-1) of it: tiers take turns.
    """
    if minutes.each is None:
        return {}
    began = math.floor(now / SELDOM_SECONDS - share) + share
    return {
        result.rule: result for result in results if result.rule in SELDOM and began * SELDOM_SECONDS <= result.t <= now
    }


def evaluate_rule(
    rule: Rule,
    context: TierContext,
    binned: Sequence[BinnedWindow],
    now: float,
    period_seconds: float = windows.MINUTE_SECONDS,
    fleet: Mapping[str, TierWindows] | None = None,
    budget: Budget | None = None,
    projection: Projection | None = None,
    starts: tuple[ReplicaStart, ...] = (),
) -> RuleResult:
    """Return the result of a rule over windows at `now` from those of its hold, oldest first, each within one period.

    Unknown where the windows span less than the rule needs. Where holes in them leave less, the result may be a violation
    or a gap, and never ok.
    """
    held = hold(binned)
    rule_context = RuleContext(
        rule=rule,
        catalogue=BY_NAME,
        tier=context,
        binned=held,
        now=now,
        period_seconds=period_seconds,
        fleet=fleet or {},
        budget=budget or Budget(),
        projection=projection,
        starts=starts,
    )
    if held and held.span_seconds < rule.minimum_seconds:
        text, wait = needed_words(rule, held.span_seconds), rule.minimum_seconds - held.span_seconds
        return rule_context.unknown(Gap.TOO_FEW_REQUESTS, text, wait)
    result = ask(rule_context)
    is_ok = isinstance(result, Verdict) and result.status is Status.OK
    if is_ok and held.watched_seconds < FULL_COVERAGE * rule.minimum_seconds:
        return rule_context.unknown(Gap.TOO_FEW_REQUESTS, needed_words(rule, held.watched_seconds))
    return result


def compared_tiers(
    minutes: Mapping[str, TierMinutes], contexts: Mapping[str, TierContext], now: float
) -> dict[str, TierWindows]:
    """Return what rules that compare tiers read of each. The tiers share it, as each is compared with all others."""
    return {
        name: (contexts[name], _hold(tier_minutes.binned.batches, COMPARING, now))
        for name, tier_minutes in minutes.items()
    }


def evaluate_tier_rules(
    minutes: TierMinutes,
    context: TierContext,
    now: float,
    fleet: Mapping[str, TierWindows] | None = None,
    projection: Projection | None = None,
    kept: Mapping[str, RuleResult] | None = None,
) -> tuple[RuleResult, ...]:
    """Return the results of the rules over minutes at `now`; unknown where a rule's minimum time has not passed.

    `fleet` holds the windows of all tiers, by `compared_tiers`. `kept` are cached results by rule.
    """
    rule_state = kept or {}
    fleet = fleet or {}
    holds: dict[tuple[bool, float], HeldWindows] = {}
    if context.name in fleet:
        holds[False, COMPARING.window_seconds] = fleet[context.name][1]
    results = []
    compared = OF_EACH if context.serves_whole_requests else OF_EACH | EACH_POOL
    for rule in LIVE:
        if rule.name in rule_state:
            results.append(replace(rule_state[rule.name], t=now))
            continue
        of_each = minutes.each is not None and rule.name in compared
        kind = (of_each, rule.window_seconds)
        if kind not in holds:
            # Rules share few window lengths, and an hour of a large tier has many thousand windows.
            holds[kind] = _hold((minutes.each or ()) if of_each else minutes.binned.batches, rule, now)
        results.append(_judged(rule, minutes, holds[kind], context, now, fleet, projection))
    return tuple(results)


def _judged(
    rule: Rule,
    minutes: TierMinutes,
    hold: HeldWindows,
    context: TierContext,
    now: float,
    fleet: Mapping[str, TierWindows],
    projection: Projection | None,
) -> RuleResult:
    subject = Subject(tier=context.name)
    if rule.needs and read_plan_value(context, rule.needs) is None:
        # First, because waiting does not change the plan.
        text = f"the plan has no {rule.needs}"
        return Unknown(t=now, rule=rule.name, subject=subject, reason=Gap.NOT_IN_PLAN, text=text)
    if not hold:
        text, wait = needed_words(rule, 0.0), rule.minimum_seconds
        few = Gap.TOO_FEW_REQUESTS
        return Unknown(t=now, rule=rule.name, subject=subject, reason=few, text=text, wait_seconds=wait)
    result = evaluate_rule(
        rule,
        context,
        hold,
        now,
        fleet=fleet if rule is COMPARING else None,
        budget=minutes.budget,
        projection=projection,
        starts=minutes.starts,
    )
    if not isinstance(result, Verdict):
        return result
    if not hold.is_seldom_scraped:
        return explain.add_causes(result, context, hold)
    steps = len({windows.minute_of(binned.window) for binned in hold if binned.window.covered_seconds > 0})
    if result.status is Status.OK and steps < SEPARATE:
        text = f"scrapes are too far apart: {steps} intervals between scrapes were seen, {SEPARATE} are needed"
        return Unknown(t=now, rule=rule.name, subject=subject, reason=Gap.NOT_SCRAPED, text=text)
    if result.status is Status.OK and _may_exceed(result):
        text = "scrapes are too far apart, and the bounds of what was seen reach beyond what is healthy"
        return Unknown(t=now, rule=rule.name, subject=subject, reason=Gap.NOT_SCRAPED, text=text)
    return explain.add_causes(replace(result, certainty=Certainty.LIKELY), context, hold)


def _may_exceed(result: Verdict) -> bool:
    """Return whether the bounds of what was seen reach beyond what is expected."""
    seen, expected = result.observed, result.expected
    if not isinstance(seen, Reading) or not isinstance(expected, Reading) or expected.high is None:
        return False
    return seen.high is None or seen.high > expected.high


def _hold(batches: Iterable[HeldWindows], rule: Rule, now: float) -> HeldWindows:
    return HeldWindows.of_batches(select_ending(batch, now - rule.window_seconds) for batch in batches)
