"""Counts of replicas and shares of use in the report: other counts say why they differ, each share says of what and when."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from report_samples import hours, plan, reported, reported_tier, row_of, tier_past

from exporters.render.text import FLEET_USE
from exporters.report.formats import curve_sentence, report_html, report_markdown
from exporters.report.guide_tables import monitoring_rows
from exporters.report.records import TierReport
from rules.telemetry.signals import Reading

WHOLE = reported(plan(), hours())[0]
TIER = WHOLE.tiers[0]


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


@pytest.mark.parametrize(("parts", "minimum"), [({"minimum_warm": 1}, 1), ({"minimum_warm": 2}, 2), ({}, 1)])
def test_minimum_warm_is_planned_else_one(parts: dict[str, float], minimum: int) -> None:
    count = fleet(**parts).count
    assert count is not None
    assert count.minimum == minimum


def test_average_utilisation_is_one_number() -> None:
    measured = next(cost for cost in TIER.costs if cost.name == "measured")
    useful, memory = (next(row for row in TIER.questions if row.key == key) for key in ("useful", "memory"))
    row = row_of(TIER, "fleet_utilization")
    assert row.observed.value == measured.utilization == useful.numbers["fleet_utilization"].value
    assert row.title == "Fleet utilisation, on average"
    assert "fleet utilisation 27.3% on average" in useful.answer
    assert re.search(r"KV cache \d+\.\d% on average; \d+\.\d% in the fullest hours", memory.answer)
    # The peak has a utilisation of its own by the same capacity: 30 rps of ten replicas at 7.33.
    assert "At the peak the planned replicas, none lost, are used to 41%: 59% headroom is left." in curve_sentence(TIER)


def test_load_is_measured_by_present_capacity() -> None:
    assert row_of(TIER, "completed_rps").target.text == "up to 73.3 rps, 10 replicas at 7.33 rps"
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


def test_columns_of_shares_say_of_what() -> None:
    assert f"| a million output tokens | {FLEET_USE} |" in report_markdown(WHOLE)
    assert f'<th scope="col">{FLEET_USE}</th>' in report_html(WHOLE)
