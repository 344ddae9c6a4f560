"""The report's sentences as a capacity owner reads them: numbers that can be read, one word on which count counts, no verdict
where nobody judged."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from report_samples import DAY, START, finding, hour, hours, plan, reported

from exporters.documents.check import NO_BENCHMARK, result_words
from exporters.report.findings import MOST_BLIND, UnknownPeriod, blind_lines
from exporters.report.formats import BOUNDS, observed_text, report_html, report_markdown
from exporters.report.monitoring import NO_SLO
from exporters.report.records import Report
from exporters.report.wording import seen_words
from rules.evaluator.benchmark_check import Step13
from rules.telemetry.signals import Gap, Missing, Reading
from rules.verdicts.finding import UnknownSpan
from rules.verdicts.verdict import Subject


@pytest.fixture(scope="module")
def found() -> Report:
    return reported(plan(), hours())[0]


def test_what_no_rule_judges_is_not_called_as_it_should_be(found: Report) -> None:
    unjudged = [row for row in found.tiers[0].monitoring if not row.rules and isinstance(row.observed, Reading)]
    assert {row.key for row in unjudged} >= {"ttft_p50_seconds", "cost_per_million_tokens"}
    assert {row.status for row in unjudged} == {"not_judged"}
    lines = [line for line in report_markdown(found).splitlines() if "TTFT P50 " in line]
    assert [line.partition(":")[0] for line in lines] == ["No rule judges"]


def test_a_utilisation_outside_its_target_is_nowhere_called_as_it_should_be() -> None:
    full = reported(plan(), hours(kv=0.8, rps=lambda n: 22.0))[0]
    sentence = "Fleet utilisation is 30.0% over 7.0 days; memory sets the size of this fleet, not load"
    for text in (report_markdown(full), report_html(full)):
        told = [line for line in text.splitlines() if sentence in line]
        assert told
        assert all("outside the target, no finding" in line for line in told)
        ok = [line for line in text.splitlines() if line.removeprefix("<p>").startswith("ok: ")]
        assert ok
        assert not any("Fleet utilisation" in line for line in ok)


def test_a_row_without_an_slo_is_not_called_as_it_should_be() -> None:
    measured = [
        replace(one, histograms={**one.histograms, "e2e_seconds": one.histograms["ttft_seconds"]}) for one in hours(24)
    ]
    tier = reported(plan(), measured)[0].tiers[0]
    row = next(one for one in tier.monitoring if one.key == "e2e_p99_seconds")
    assert (row.target.text, row.status) == (NO_SLO, "not_judged")
    assert isinstance(row.observed, Reading)


def test_a_row_says_one_reason_why_nothing_is_known_of_it(found: Report) -> None:
    for row in found.tiers[0].monitoring:
        if isinstance(row.observed, Missing) and row.status == "unknown":
            assert row.sentence.startswith(row.observed.text or row.observed.gap.replace("_", " ")), row.key


def test_a_few_hours_list_what_is_lacking_once() -> None:
    report = reported(plan(), hours(1, rps=lambda n: 0.01))[0]
    (tier,) = report.tiers
    assert tier.proposal.sentence == f"No recommendation yet: {tier.proposal.needed[0]}, and 2 more"
    for text in (report_markdown(report), report_html(report)):
        assert text.count(tier.proposal.needed[1]) == 1


def test_without_a_benchmark_none_is_refuted(found: Report) -> None:
    broken = Step13(
        tier="t", results=(finding("KvEviction", 0, 1).worst,), requests=1.0, highest_rps=None, usable_rps=None
    )
    assert result_words(broken) == NO_BENCHMARK


def test_the_cost_in_the_monitoring_table_has_its_currency(found: Report) -> None:
    (tier,) = found.tiers
    row = next(row for row in tier.monitoring if row.key == "cost_per_million_tokens")
    assert re.fullmatch(rf"[\d.]+ {tier.currency}", observed_text(row, tier.currency))


def test_a_guardrail_has_one_verdict_and_one_range_in_both_formats() -> None:
    guarded = reported(plan(guardrails={"max_prompt_tokens": 2500, "queue_breaker": 12}), hours(rps=lambda n: 50.0))[0]
    breaker = "queue breaker 12 sheds too early, at 12%; 80 to 90 fit: 80% to 90% of 2 s x 50 rps, the planned peak"
    text = report_markdown(guarded)
    assert f"- warning, certain: {breaker} (`queue_breaker`)" in text
    assert breaker in report_html(guarded)
    assert "- as it should be: nothing was found in this time" not in text, "no rule of guardrails was judged"
    assert text.count("prompt limit 2,500") == report_html(guarded).count("prompt limit 2,500") == 1
    rows = {row.key: (row.state, row.status) for row in guarded.tiers[0].guardrails}
    assert rows["queue_breaker"] == ("too_low", "warning")
    assert rows["max_generation_tokens"] == ("missing", "warning")


def test_how_sure_the_words_are_is_explained_in_both_formats(found: Report) -> None:
    assert report_markdown(found).endswith(f"\n{BOUNDS}\n")
    assert BOUNDS in report_html(found)


def test_a_report_without_a_time_before_says_why_there_is_no_trend(found: Report) -> None:
    said = "There is no trend: nothing that could be compared was seen in as long a time before."
    assert said in report_markdown(found)
    assert said in report_html(found)
    compared, _ = reported(plan(), hours(), before=hour(-168, 10.0))
    assert said not in report_markdown(compared) + report_html(compared)


def test_of_what_was_not_known_no_more_is_told_than_is_read_and_that_is_said() -> None:
    spans = tuple(
        UnknownSpan(
            rule=f"Rule{n:02}",
            subject=Subject(tier="t"),
            reason=Gap.SCRAPE_FAILED,
            text="",
            started_at=START,
            ended_at=START + 60.0 * (n + 1),
        )
        for n in range(15)
    )
    text = report_markdown(reported(plan(), hours(), unknowns=spans)[0])
    assert text.count(": not judged for ") == MOST_BLIND
    assert f"- and {15 - MOST_BLIND} more of shorter times, which report.json has" in text


def test_what_was_not_judged_tells_hours_and_not_too_few_requests() -> None:
    rows = (
        UnknownPeriod(rule="UtilizationTrap", reason="too_few_requests", seconds=7 * DAY, text="157 of 168 hours seen"),
        UnknownPeriod(rule="TtftDivergence", reason="scrape_failed", seconds=3600.0, text=""),
        UnknownPeriod(rule="TpotDivergence", reason="scrape_failed", seconds=3600.0, text=""),
        *(UnknownPeriod(rule=f"R{n}", reason="stale", seconds=60.0, text="late") for n in range(9)),
    )
    assert list(blind_lines(replace(reported(plan(), hours())[0].tiers[0].quality, blind=rows))) == [
        "UtilizationTrap: not judged for 7 d: 157 of 168 hours seen",
        "TtftDivergence, TpotDivergence: not judged for 1 h: scrape failed",
        "R0, R1, R2, R3, R4, R5 and 3 more: not judged for 1 min: late",
    ]


@pytest.mark.parametrize(
    ("seen", "hours", "said"),
    [
        (0.75, 1.0, "45 of 60 minutes"),
        (23.5, 24.0, "23.5 of 24 hours"),
        (24.0, 24.0, "24 of 24 hours"),
        (157.4, 168.0, "157 of 168 hours"),
    ],
)
def test_what_was_not_seen_is_not_rounded_away(seen: float, hours: float, said: str) -> None:
    assert seen_words(seen, hours) == said


def test_a_value_outside_its_target_without_a_finding_says_why_in_the_table() -> None:
    found = reported(plan(), hours(rps=lambda n: 36.0))[0]
    row = next(one for one in found.tiers[0].monitoring if one.key == "fleet_utilization")
    assert (row.status, row.target.text) == ("ok", "60-80 %")
    said = "Fleet utilisation is 49.1% over 7.0 days; 40% or more is no trap"
    assert row.sentence == said
    for text in (report_markdown(found), report_html(found)):
        assert text.count(f"outside the target, no finding: {said}") == 1
