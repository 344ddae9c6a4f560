"""Counts of replicas and shares of use in the report: other counts say why they differ, each share says of what and when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from report_samples import hours, plan, reported, tier_past

from exporters.report.formats import curve_sentence, report_html, report_markdown
from exporters.report.monitoring import monitoring_rows
from exporters.report.records import TierReport
from exporters.report.wording import FLEET_USE
from rules.telemetry.signals import Reading
from rules.telemetry.windows import Window

WHOLE = reported(plan(), hours())[0]


def tier(several: Sequence[Window] | None = None, **parts: Any) -> TierReport:
    return reported(plan(**parts), hours() if several is None else list(several))[0].tiers[0]


def why(found: TierReport) -> str:
    """The line of the replica counts."""
    text = report_markdown(replace(WHOLE, tiers=(found,)))
    return next(line for line in text.splitlines() if line.startswith("needed: "))


def test_every_other_count_stands_in_one_line_with_its_reason() -> None:
    """Ten are planned for 50 rps; 30 rps at 7.33 a replica need 6 with the margin, 7 with a safety factor of 1.6."""
    found = tier(fleet={"instances": 10, "safety_factor": 1.6, "minimum_warm": 2})
    assert found.count is not None
    assert (found.count.replicas, found.count.without_safety, found.count.safety_factor) == (7, 6, 1.6)
    assert re.fullmatch(
        r"needed: 7 replicas; the plan has 10; "
        r"the peak alone needs 6, the rest is the plan's safety factor; 7 to \d+ at the bounds of what a replica takes",
        why(found),
    )


def test_counts_that_are_the_same_are_not_called_others() -> None:
    found = tier(fleet={"instances": 6, "minimum_warm": 2})
    assert found.count is not None
    assert found.count.replicas == found.count.without_safety == found.proposal.now == 6
    assert "the plan has" not in why(found)
    assert "safety factor" not in why(found)
    assert "is proposed" not in why(found)


def test_a_proposal_that_memory_holds_back_says_so_beside_the_count() -> None:
    found = tier(hours(kv=0.8))
    assert found.count is not None
    assert found.count.replicas == 6
    assert "10 is proposed: keep 10 replicas: the hourly mean of the KV cache is 80% in its fullest hours" in why(found)


@pytest.mark.parametrize(("warm", "minimum"), [(1, 1), (2, 2), (None, 1)])
def test_the_minimum_warm_count_is_the_plans_else_one(warm: int | None, minimum: int) -> None:
    fleet = {"instances": 10} if warm is None else {"instances": 10, "minimum_warm": warm}
    found = tier(fleet=fleet)
    assert found.count is not None
    assert found.count.minimum == minimum


@pytest.fixture(scope="module", name="found")
def week() -> TierReport:
    return tier()


def row(found: TierReport, key: str) -> Any:
    return next(one for one in found.monitoring if one.key == key)


def test_fleet_utilisation_is_one_number_wherever_it_is_the_average(found: TierReport) -> None:
    measured = next(one for one in found.costs if one.name == "measured")
    useful = next(one for one in found.questions if one.key == "useful")
    asked = useful.numbers["fleet_utilization"].value
    assert row(found, "fleet_utilization").observed.value == measured.utilization == asked
    assert row(found, "fleet_utilization").title == "Fleet utilisation, on average"
    assert "fleet utilisation 27.3% on average" in useful.answer


def test_the_peak_has_a_utilisation_of_its_own_by_the_same_capacity(found: TierReport) -> None:
    """30 rps of ten replicas at 7.33."""
    said = curve_sentence(found)
    assert "At the peak the planned replicas, none lost, are used to 41%: 59% headroom is left." in said


def test_the_load_in_the_table_is_measured_by_the_capacity_now_and_not_by_the_plan(found: TierReport) -> None:
    assert row(found, "completed_rps").target.text == "up to 73.3 rps, 10 replicas at 7.33 rps"
    lower = tier(operating_point={"c_max": 8, "usable_rps": 5.0})
    assert row(lower, "completed_rps").target.text == "up to 50 rps, 10 replicas at 5 rps"


def test_where_production_refutes_the_benchmark_the_load_is_measured_by_what_production_takes() -> None:
    found = tier(hours(ttft={0.08: 0.95, 0.9: 0.05}))
    usable = found.curve.usable and found.curve.usable.rps
    assert usable is not None
    assert usable < 0.95 * 7.33
    assert row(found, "completed_rps").target.text == f"up to {10 * usable:.3g} rps, 10 replicas at {usable:.3g} rps"


def test_the_tables_fleet_utilisation_is_that_of_the_hours_under_the_present_plan() -> None:
    """The re-sizing has it; the sum of all hours would be another number where the plan changed."""
    past = tier_past(plan(), hours())
    apart = replace(past, resize=replace(past.resize, utilization=Reading(value=0.123, low=0.1, high=0.2, n=9.0)))
    assert next(one for one in monitoring_rows(apart) if one.key == "fleet_utilization").observed.value == 0.123


def test_a_column_of_shares_says_of_what_in_both_formats() -> None:
    whole = reported(plan(), hours())[0]
    assert f"| a million output tokens | {FLEET_USE} |" in report_markdown(whole)
    assert f'<th scope="col">{FLEET_USE}</th>' in report_html(whole)
    assert f'data-of="{FLEET_USE}"' in report_html(whole)


def test_the_kv_caches_hourly_mean_is_not_called_how_full_it_gets(found: TierReport) -> None:
    memory = next(one for one in found.questions if one.key == "memory")
    assert re.search(r"KV cache \d+\.\d% on average; \d+\.\d% in the fullest hours", memory.answer)
