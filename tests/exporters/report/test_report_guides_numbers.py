"""The numbers that the guide works out (9.1 Step 12, 9.2, 9.4), as a reader finds them in the report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import TIER, USABLE, hours, plan, reported

from exporters.report.formats import report_markdown
from exporters.report.monitoring import ROWS, TargetRange
from exporters.report.records import TierReport
from rules.plan.guardrails import Guardrail
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Plan
from rules.resize.fleet_cost import FleetCost
from rules.telemetry.signals import Gap, Missing, Reading


def tier_at(utilization: float, of: Plan | None = None) -> TierReport:
    """A week in which the ten replicas are used to this share, evenly."""
    rps = utilization * 10 * USABLE
    return reported(of or plan(), hours(rps=lambda n: rps))[0].tiers[0]


def cost(tier: TierReport, name: str) -> FleetCost:
    return next(one for one in tier.costs if one.name == name)


def price(tier: TierReport, name: str = "measured") -> float:
    found = cost(tier, name).per_million_tokens
    assert found is not None
    return found


def fit(tier: TierReport, key: str) -> Guardrail:
    return next(one for one in tier.guardrails if one.key == key)


def test_a_fleet_at_40_percent_costs_twice_as_much_a_token_as_one_at_80() -> None:
    low, high = tier_at(0.4), tier_at(0.8)
    assert (cost(low, "measured").utilization, cost(high, "measured").utilization) == (
        pytest.approx(0.4),
        pytest.approx(0.8),
    )
    assert cost(low, "measured").money_a_day == cost(high, "measured").money_a_day == 1200.0
    assert price(low) == pytest.approx(2 * price(high))


def test_a_plan_for_40_percent_costs_twice_as_much_a_token_as_one_for_80() -> None:
    priced = {share: plan(cost={**TIER["cost"], "planned_utilization": share}) for share in (0.4, 0.8, 1.0)}
    planned = {share: price(tier_at(0.5, one), "planned") for share, one in priced.items()}
    assert planned[0.4] == pytest.approx(2 * planned[0.8])
    # 9.2: 2.5 times the cost of a fleet that is used wholly.
    assert planned[0.4] == pytest.approx(2.5 * planned[1.0])


def test_from_40_to_70_percent_nearly_halves_the_cost_a_token() -> None:
    assert price(tier_at(0.7)) / price(tier_at(0.4)) == pytest.approx(4 / 7)


def test_half_the_replicas_for_the_same_traffic_halve_the_cost_and_double_the_use() -> None:
    tier = tier_at(0.4)
    proposed = cost(tier, "proposed")
    assert tier.proposal.replicas == 5
    assert proposed.utilization == pytest.approx(0.8)
    assert proposed.per_million_tokens == pytest.approx(price(tier) / 2)


def test_the_breaker_for_2_s_and_50_rps_is_80_to_90_requests() -> None:
    found = fit(reported(plan(), hours(rps=lambda n: 50.0))[0].tiers[0], "queue_breaker")
    assert (found.low, found.high, found.state) == (80, 90, "not_in_plan")
    text = report_markdown(reported(plan(), hours(rps=lambda n: 50.0))[0])
    assert "no queue breaker; 80 to 90 fit: 80% to 90% of 2 s x 50 rps, the planned peak (`queue_breaker`)" in text


def test_the_prompt_limit_is_2_to_3_times_the_p95_that_was_seen() -> None:
    tier = tier_at(0.5)
    p95 = next(one for one in tier.workload.lengths if (one.what, one.quantile) == ("prompts", "p95")).observed.value
    assert p95 is not None
    found = fit(tier, "max_prompt_tokens")
    assert (found.low, found.high) == (round(2 * p95), round(3 * p95))


def test_the_targets_are_those_of_the_guide_unless_the_tier_has_its_own() -> None:
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
def test_a_value_outside_its_target_is_not_as_it_should_be(value: float | None, met: bool | None) -> None:
    observed = Missing(gap=Gap.NO_TRAFFIC) if value is None else Reading(value=value, low=value, high=value, n=1)
    assert TargetRange("60-85 %", 0.6, 0.85).is_met(observed) is met
    assert TargetRange("as planned").is_met(observed) is None
