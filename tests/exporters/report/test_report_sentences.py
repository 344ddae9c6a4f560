"""The report's sentences as a capacity owner reads them: numbers that can be read, one word on which count counts, no verdict
where nobody judged."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from report_samples import DAY, finding, hours, plan, reported, reported_tier, row_of, unknown

from exporters.documents.replay import NO_BENCHMARK, result_words
from exporters.render.text import seen_words
from exporters.report.findings import MOST_BLIND, UnknownPeriod, blind_lines
from exporters.report.formats import BOUNDS, observed_text, report_html, report_markdown
from exporters.report.guide_tables import NO_SLO
from exporters.report.records import Report
from rules.evaluator.benchmark_check import Step13
from rules.telemetry.signals import Missing, Reading

WEEK = reported(plan(), hours())[0]
TIER = WEEK.tiers[0]


def texts(found: Report) -> tuple[str, str]:
    return report_markdown(found), report_html(found)


def test_unjudged_rows_are_not_called_ok() -> None:
    unjudged = [row for row in TIER.monitoring if not row.rules and isinstance(row.observed, Reading)]
    assert {row.key for row in unjudged} >= {"ttft_p50_seconds", "cost_per_million_tokens"}
    assert {row.status for row in unjudged} == {"not_judged"}
    lines = [line for line in report_markdown(WEEK).splitlines() if "TTFT P50 " in line]
    assert [line.partition(":")[0] for line in lines] == ["No rule judges"]


@pytest.mark.parametrize(
    ("rps", "kv", "sentence"),
    [
        (22.0, 0.8, "Fleet utilisation is 30.0% over 7.0 days; memory sets the size of this fleet, not load"),
        (36.0, 0.3, "Fleet utilisation is 49.1% over 7.0 days; 40% or more is no trap"),
    ],
)
def test_outside_the_target_is_not_ok(rps: float, kv: float, sentence: str) -> None:
    found = reported(plan(), hours(kv=kv, rps=lambda n: rps))[0]
    row = row_of(found.tiers[0], "fleet_utilization")
    assert (row.status, row.target.text) == ("ok", "60-80 %")
    assert row.sentence.startswith(sentence)
    for text in texts(found):
        assert text.count(f"outside the target, no finding: {sentence}") == 1
        ok = [line for line in text.splitlines() if line.removeprefix("<p>").startswith("ok: ")]
        assert ok
        assert not any("Fleet utilisation" in line for line in ok)


def test_row_without_slo_is_not_judged() -> None:
    measured = []
    for window in hours(24):
        histograms = {**window.histograms, "e2e_seconds": window.histograms["ttft_seconds"]}
        measured.append(replace(window, histograms=histograms))
    row = row_of(reported_tier(measured), "e2e_p99_seconds")
    assert (row.target.text, row.status) == (NO_SLO, "not_judged")
    assert isinstance(row.observed, Reading)


def test_unknown_row_has_one_reason() -> None:
    for row in TIER.monitoring:
        if isinstance(row.observed, Missing) and row.status == "unknown":
            assert row.sentence.startswith(row.observed.text or row.observed.gap.replace("_", " ")), row.key


def test_few_hours_list_lacks_once() -> None:
    report = reported(plan(), hours(1, rps=lambda n: 0.01))[0]
    proposal = report.tiers[0].proposal
    assert proposal.sentence == f"No recommendation yet: {proposal.needed[0]}, and 2 more"
    assert [text.count(proposal.needed[1]) for text in texts(report)] == [1, 1]


def test_absent_benchmark_is_not_refuted() -> None:
    results = (finding("KvEviction", 0, 1).worst,)
    broken = Step13(tier="t", results=results, requests=1.0, highest_rps=None, usable_rps=None)
    assert result_words(broken) == NO_BENCHMARK


def test_monitored_cost_has_its_currency() -> None:
    assert re.fullmatch(r"[\d.]+ USD", observed_text(row_of(TIER, "cost_per_million_tokens"), TIER.currency))


def test_guardrail_has_one_verdict_and_range() -> None:
    guarded = reported(plan(guardrails={"max_prompt_tokens": 2500, "queue_breaker": 12}), hours(rps=lambda n: 50.0))[0]
    breaker = "queue breaker 12 sheds too early, at 12%; 80 to 90 fit: 80% to 90% of 2 s x 50 rps, the planned peak"
    text, page = texts(guarded)
    assert f"- warning, certain: {breaker} (`queue_breaker`)" in text
    assert breaker in page
    assert text.count("prompt limit 2,500") == page.count("prompt limit 2,500") == 1
    rows = {row.key: (row.state, row.status) for row in guarded.tiers[0].guardrails}
    assert rows["queue_breaker"] == ("too_low", "warning")
    assert rows["max_generation_tokens"] == ("missing", "warning")


def test_certainty_is_explained_at_the_end() -> None:
    text, page = texts(WEEK)
    assert text.endswith(f"\n{BOUNDS}\n")
    assert BOUNDS in page


def test_long_unknown_list_is_cut_openly() -> None:
    spans = tuple(unknown(f"Rule{n:02}", 0, (n + 1) / 60) for n in range(15))
    text = report_markdown(reported(plan(), hours(), unknowns=spans)[0])
    assert text.count(": not judged for ") == MOST_BLIND
    assert f"- and {15 - MOST_BLIND} more of shorter times, which report.json has" in text


def test_unknown_times_tell_hours_and_reason() -> None:
    rows = (
        UnknownPeriod(rule="UtilizationTrap", reason="too_few_requests", seconds=7 * DAY, text="157 of 168 hours seen"),
        UnknownPeriod(rule="TtftDivergence", reason="scrape_failed", seconds=3600.0, text=""),
        UnknownPeriod(rule="TpotDivergence", reason="scrape_failed", seconds=3600.0, text=""),
        *(UnknownPeriod(rule=f"R{n}", reason="stale", seconds=60.0, text="late") for n in range(9)),
    )
    assert list(blind_lines(replace(TIER.quality, blind=rows))) == [
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
def test_unseen_time_is_not_rounded_away(seen: float, hours: float, said: str) -> None:
    assert seen_words(seen, hours) == said
