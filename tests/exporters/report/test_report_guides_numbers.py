"""The numbers that the guide works out (9.1 Step 12, 9.2, 9.4), as a reader finds them in the report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from report_samples import TIER, USABLE, hours, plan, reported, reported_tier

from exporters.report.formats import report_markdown
from exporters.report.guide_tables import ROWS, TargetRange
from exporters.report.records import TierReport
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Plan
from rules.telemetry.signals import Gap, Missing, Reading


def tier_at(utilization: float, of: Plan | None = None) -> TierReport:
    """A week in which the ten replicas are used to this share, evenly."""
    return reported_tier(hours(rps=lambda n: utilization * 10 * USABLE), of)


def cost(tier: TierReport, name: str = "measured") -> Any:
    return next(row for row in tier.costs if row.name == name)


def test_half_use_doubles_cost_a_token() -> None:
    low, high = tier_at(0.4), tier_at(0.8)
    assert (cost(low).utilization, cost(high).utilization) == (pytest.approx(0.4), pytest.approx(0.8))
    assert cost(low).money_a_day == cost(high).money_a_day == 1200.0
    assert cost(low).per_million_tokens == pytest.approx(2 * cost(high).per_million_tokens)
    assert cost(tier_at(0.7)).per_million_tokens / cost(low).per_million_tokens == pytest.approx(4 / 7)
    # Half the replicas for the same traffic.
    proposed = cost(low, "proposed")
    assert low.proposal.replicas == 5
    assert proposed.utilization == pytest.approx(0.8)
    assert proposed.per_million_tokens == pytest.approx(cost(low).per_million_tokens / 2)


def test_plan_for_less_use_costs_more() -> None:
    planned = {}
    for share in (0.4, 0.8, 1.0):
        priced = plan(cost={**TIER["cost"], "planned_utilization": share})
        planned[share] = cost(tier_at(0.5, priced), "planned").per_million_tokens
    assert planned[0.4] == pytest.approx(2 * planned[0.8])
    # 9.2: 2.5 times the cost of a fleet that is used wholly.
    assert planned[0.4] == pytest.approx(2.5 * planned[1.0])


def test_guardrails_fit_objective_and_seen_lengths() -> None:
    found, _ = reported(plan(), hours(rps=lambda n: 50.0))
    (tier,) = found.tiers
    rows = {row.key: row for row in tier.guardrails}
    breaker, prompts = rows["queue_breaker"], rows["max_prompt_tokens"]
    assert (breaker.low, breaker.high, breaker.state) == (80, 90, "not_in_plan")
    sentence = "no queue breaker; 80 to 90 fit: 80% to 90% of 2 s x 50 rps, the planned peak (`queue_breaker`)"
    assert sentence in report_markdown(found)
    lengths = {(row.what, row.quantile): row.observed for row in tier.workload.lengths}
    p95 = lengths["prompts", "p95"]
    assert isinstance(p95, Reading)
    assert p95.value is not None
    assert (prompts.low, prompts.high) == (round(2 * p95.value), round(3 * p95.value))


def test_targets_are_the_guides_unless_overridden() -> None:
    lora = {"lora": {"max_adapters": 8}}
    context = build_tier_context("t", plan(**lora).tiers["t"])
    own = {
        "UtilizationTrap": {"target": 0.5},
        "NoHeadroom": {"target": 0.7},
        "KvCacheUnderused": {"below": 0.6},
        "KvCacheNearCeiling": {"above": 0.95},
        "KvEviction": {"warning": 0.1},
        "GpuComputeLow": {"below": 0.4},
        "SpeculationAcceptanceLow": {"below": 0.7},
    }
    expected = {
        "fleet_utilization": ("60-80 %", "50-70 %"),
        "kv_utilization": ("75-90 %", "60-95 %"),
        "eviction_rate": ("below 5 %", "below 10 %"),
        "gpu_utilization": ("60-85 % while serving", "40-85 % while serving"),
        "speculative_acceptance": ("above 60 %", "above 70 %"),
        "adapters_active": ("up to 8 (max_adapters)", "up to 8 (max_adapters)"),
    }
    targets = {key: target for key, _, target, _ in ROWS if key in expected}
    assert {
        key: (target(context).text, target(replace(context, limits=own)).text) for key, target in targets.items()
    } == expected


@pytest.mark.parametrize(("value", "met"), [(0.495, False), (0.6, True), (0.8504, True), (0.86, False), (None, None)])
def test_value_outside_its_target_misses_it(value: float | None, met: bool | None) -> None:
    observed = Missing(gap=Gap.NO_TRAFFIC) if value is None else Reading(value=value, low=value, high=value, n=1)
    assert TargetRange("60-85 %", 0.6, 0.85).is_met(observed) is met
    assert TargetRange("as planned").is_met(observed) is None
