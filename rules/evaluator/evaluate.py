"""Evaluation of one rule: its method, and whether the hold was seen well enough for the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rules.catalogue.registry import BY_NAME
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.starts import ReplicaStart
from rules.telemetry.signals import Gap
from rules.telemetry.windows import MINUTE_SECONDS
from rules.verdicts.context import RuleContext, TierWindows
from rules.verdicts.error_budget import Budget
from rules.verdicts.hold import too_many_holes, too_short
from rules.verdicts.projection import Projection
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, Status, Verdict


def evaluate_rule(
    rule: Rule,
    view: TierContext,
    slices: Sequence[BinnedWindow],
    now: float,
    period_seconds: float = MINUTE_SECONDS,
    fleet: Mapping[str, TierWindows] | None = None,
    budget: Budget | None = None,
    projection: Projection | None = None,
    starts: tuple[ReplicaStart, ...] = (),
) -> RuleResult:
    """Return the result of a rule over windows at `now` from those of its hold, oldest first, each within one period.

    Unknown where the windows span less than the rule needs. Where holes in them leave less, the result may be a violation
    or a gap, and never ok.
    """
    case = RuleContext(
        rule=rule,
        catalogue=BY_NAME,
        view=view,
        slices=tuple(slices),
        now=now,
        period_seconds=period_seconds,
        fleet=fleet or {},
        budget=budget or Budget(),
        projection=projection,
        starts=starts,
    )
    short = too_short(rule, case.slices) if case.slices else ""
    if short:
        interim = rule.interim(case) if rule.interim is not None else ""
        return case.unknown(Gap.TOO_FEW_REQUESTS, interim or short)
    result: RuleResult = rule.method(case)
    holes = too_many_holes(rule, case.slices)
    if holes and isinstance(result, Verdict) and result.status is Status.OK:
        return case.unknown(Gap.TOO_FEW_REQUESTS, holes)
    return result
