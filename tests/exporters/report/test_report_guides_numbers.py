"""The numbers that the guide works out (9.1 Step 12, 9.2), as a reader finds them in the report, and counts of replicas.

Other counts say why they differ, each share says of what and when.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from report_samples import TIER, USABLE, hours, plan, reported, reported_tier, row_of, tier_past

from exporters.report.formats import curve_sentence, report_markdown
from exporters.report.guide_tables import ROWS, TargetRange, monitoring_rows
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


WHOLE = reported(plan(), hours())[0]


def fleet(**parts: float) -> TierReport:
    return reported_tier(one=plan(fleet={"instances": 10, **parts}))


def why(found: TierReport) -> str:
    """The line of the replica counts."""
    text = report_markdown(replace(WHOLE, tiers=(found,)))
    return text.partition("### Replicas and cost")[2].partition("\n\n|")[0]


def test_other_counts_stand_with_their_reason() -> None:
    """Ten are planned for 50 rps; 30 rps at 7.33 a replica need 6 with the margin, 7 with a safety factor of 1.6."""
    found = fleet(safety_factor=1.6, minimum_warm=2)
    assert found.count is not None
    assert (found.count.replicas, found.count.without_safety, found.count.safety_factor) == (7, 6, 1.6)
    assert re.search(
        r"- the peak needs 6 replicas \(30 rps at 7.33 rps a replica .*\); with the plan's safety factor 7; "
        r"7 to \d+ at the bounds of what a replica takes\n",
        why(found),
    )


def test_same_counts_are_no_others() -> None:
    found = fleet(instances=6, minimum_warm=2)
    assert found.count is not None
    assert found.count.replicas == found.count.without_safety == found.proposal.now == 6
    assert not re.search("safety factor|proposed", why(found))


def test_memory_bound_proposal_stands_beside_count() -> None:
    found = reported_tier(hours(kv=0.8))
    assert found.count is not None
    assert found.count.replicas == 6
    assert found.proposal.sentence.startswith("Keep 10 replicas: the hourly mean of the KV cache is 80%")
    assert "\n- proposed: 10\n" in why(found)


def test_load_is_measured_by_present_capacity() -> None:
    # 30 rps of ten replicas at 7.33.
    assert "none lost, are used to 41%: 59% headroom is left." in curve_sentence(WHOLE.tiers[0])
    assert row_of(WHOLE.tiers[0], "completed_rps").target.text == "up to 73.3 rps, 10 replicas at 7.33 rps"
    lower = reported_tier(one=plan(operating_point={"c_max": 8, "usable_rps": 5.0}))
    assert row_of(lower, "completed_rps").target.text == "up to 50 rps, 10 replicas at 5 rps"
    refuted = reported_tier(hours(ttft={0.08: 0.95, 0.9: 0.05}))
    usable = refuted.curve.usable and refuted.curve.usable.rps
    assert usable is not None
    assert usable < 0.95 * 7.33
    assert (
        row_of(refuted, "completed_rps").target.text == f"up to {10 * usable:.3g} rps, 10 replicas at {usable:.3g} rps"
    )


def test_utilisation_is_of_the_present_plan() -> None:
    """The re-sizing has it; the sum of all hours would be another number where the plan changed."""
    past = tier_past(plan(), hours())
    apart = replace(past, resize=replace(past.resize, utilization=Reading(value=0.123, low=0.1, high=0.2, n=9.0)))
    assert next(row for row in monitoring_rows(apart) if row.key == "fleet_utilization").observed.value == 0.123
