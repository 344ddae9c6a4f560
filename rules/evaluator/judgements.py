"""The few ways to judge slices of production against the plan: the table from a way's name to its function.

Owns the table only; the ways live in `rules.methods`. Each is a pure function of one case. What differs between rules
stands in the catalogue. A new way is a function there, a row here, and a name in `rules.verdicts.rule.Way`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rules.methods.adapters import judge_adapters
from rules.methods.bands import judge_band, judge_experts
from rules.methods.burn_rate import judge_burn
from rules.methods.configuration import judge_cold_start, judge_precision
from rules.methods.demand import judge_demand, judge_forecast
from rules.methods.drift import judge_drift
from rules.methods.errors import judge_availability, judge_refused
from rules.methods.events import judge_event_ratio, judge_excess, judge_faults
from rules.methods.guardrails import judge_guardrail
from rules.methods.load import beyond_so_far, judge_beyond
from rules.methods.long import judge_long
from rules.methods.means import judge_mean
from rules.methods.pools import judge_pools
from rules.methods.prefix_routing import judge_replicas
from rules.methods.representative import judge_representative
from rules.methods.shape import judge_shape
from rules.methods.speculation import judge_economics
from rules.methods.tails import judge_tail
from rules.methods.tiers import judge_tiers
from rules.methods.trend import judge_trend
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.starts import ReplicaStart
from rules.telemetry.signals import Gap
from rules.telemetry.windows import MINUTE_SECONDS
from rules.verdicts.context import RuleContext, TierWindows
from rules.verdicts.error_budget import Budget
from rules.verdicts.hold import too_many_holes, too_short
from rules.verdicts.projection import Projection
from rules.verdicts.rule import Rule, Way
from rules.verdicts.verdict import RuleResult, Status, Verdict

_WAYS: dict[Way, Callable[[RuleContext], RuleResult]] = {
    Way.TAIL: judge_tail,
    Way.SHORTFALL: judge_mean,
    Way.EXCESS: judge_excess,
    Way.EVENT_RATIO: judge_event_ratio,
    Way.BEYOND: judge_beyond,
    Way.BAND: judge_band,
    Way.LONG: judge_long,
    Way.BURN: judge_burn,
    Way.AVAILABILITY: judge_availability,
    Way.REFUSED: judge_refused,
    Way.SHAPE: judge_shape,
    Way.TREND: judge_trend,
    Way.REPLICAS: judge_replicas,
    Way.TIERS: judge_tiers,
    Way.POOLS: judge_pools,
    Way.FAULTS: judge_faults,
    Way.DRIFT: judge_drift,
    Way.REPRESENTATIVE: judge_representative,
    Way.GUARDRAIL: judge_guardrail,
    Way.PRECISION: judge_precision,
    Way.COLD_START: judge_cold_start,
    Way.ECONOMICS: judge_economics,
    Way.HELD_BACK: judge_adapters,
    Way.EXPERTS: judge_experts,
    Way.DEMAND: judge_demand,
    Way.FORECAST: judge_forecast,
}

_SO_FAR: dict[Way, Callable[[RuleContext], str]] = {Way.BEYOND: beyond_so_far}
"""What a time that is too short shows already, in words ("" where nothing): the ways whose answer nobody should miss till then."""

BY_SLICES = frozenset(_WAYS)
"""The ways that judge slices; the others follow single scrapes (`rules.evaluator.tier_rules`)."""


def judge(
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
    """The rule's answer about a tier at `now` from the slices of its hold, oldest first, each within one period.

    Unknown where the slices span less than the rule needs. Where holes in them leave less, it may be told that something is
    wrong or which gap it is, and not that all is well.
    """
    case = RuleContext(
        rule=rule,
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
        so_far = _SO_FAR[rule.way](case) if rule.way in _SO_FAR else ""
        return case.unknown(Gap.TOO_FEW_REQUESTS, so_far or short)
    answer = _WAYS[rule.way](case)
    holes = too_many_holes(rule, case.slices)
    if holes and isinstance(answer, Verdict) and answer.status is Status.OK:
        return case.unknown(Gap.TOO_FEW_REQUESTS, holes)
    return answer
