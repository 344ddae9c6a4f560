"""Evaluation of the rules over single scrapes, in every cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rules.catalogue.registry import BY_NAME
from rules.causes import explain
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.cascade import CascadeThresholds
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState
from rules.telemetry.signals import Gap
from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult, RuleState, Verdict

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

    `others_answer`: the tier is served, so a replica that never answered may be a new one, as slow as `starts` of the tier.
    `others_serve`: some replica of the tier can answer requests.
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
    results = [ask(rule_context) for rule_context in contexts]
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
