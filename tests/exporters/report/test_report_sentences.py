"""The report's sentences as a capacity owner reads them: numbers that can be read, no verdict where nobody judged.

A finding that comes and goes is a line, and what restarts cost is told.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from report_samples import (
    DAY,
    HOUR,
    START,
    finding,
    foreign_alert,
    hours,
    plan,
    reported,
    reported_tier,
    row_of,
)

from exporters.documents.replay import NO_BENCHMARK, result_words
from exporters.render.text import seen_words
from exporters.report.findings import UnknownPeriod, blind_lines
from exporters.report.formats import BOUNDS, observed_text, report_html, report_markdown
from exporters.report.guide_tables import NO_SLO
from exporters.report.records import Report, TierReport, report_json
from rules.confidence import Certainty
from rules.evaluator import timeline
from rules.evaluator.benchmark_check import Step13
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.replicas.starts import ReplicaStart
from rules.telemetry.signals import Missing, Reading
from rules.verdicts.verdict import Status, Transition

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


def test_unknown_times_tell_hours_and_reason() -> None:
    rows = (
        UnknownPeriod(rule="UtilizationTrap", reason="too_few_requests", seconds=7 * DAY, text="157 of 168 hours seen"),
        UnknownPeriod(rule="TtftDivergence", reason="scrape_failed", seconds=3600.0, text=""),
        UnknownPeriod(rule="TpotDivergence", reason="scrape_failed", seconds=3600.0, text=""),
        *(UnknownPeriod(rule=f"R{n}", reason="stale", seconds=60.0, text="late") for n in range(9)),
        *(UnknownPeriod(rule=f"S{n}", reason="stale", seconds=30.0 - n, text="late") for n in range(6)),
    )
    assert list(blind_lines(replace(TIER.quality, blind=rows))) == [
        "UtilizationTrap: not judged for 7 d: 157 of 168 hours seen",
        "TtftDivergence, TpotDivergence: not judged for 1 h: scrape failed",
        "R0, R1, R2, R3, R4, R5 and 3 more: not judged for 1 min: late",
        "S0: not judged for 30 s: late",
        "S1: not judged for 29 s: late",
        "and 4 more of shorter times, which report.json has",
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


RULE = "KvCacheCascade"
HAPPENED = "Incidents and restarts"


def told(**parts: object) -> tuple[Report, TierReport]:
    found, _ = reported(plan(), hours(), **parts)
    return found, found.tiers[0]


def section(found: Report, title: str) -> list[str]:
    """The lines of a section of the Markdown."""
    text = report_markdown(found).partition(f"### {title}\n")[2].partition("\n### ")[0]
    return [line for line in text.splitlines() if line]


def test_flapping_rule_is_one_counted_incident() -> None:
    """It fires for a minute and is ok for one. The last finding lasts."""
    minutes = []
    for n in range(5040):
        status, sentence = (Status.CRITICAL, "it was worst here") if n == 1000 else (Status.WARNING, "")
        change = Transition(t=START + 120 * n, status=status, stage=None, certainty=Certainty.CERTAIN)
        parts = {"replica": "r1", "sentence": sentence, "transitions": (change,)}
        minutes.append(finding(RULE, n / 30, (n + 0.5) / 30, status, **parts))
    minutes[-1] = replace(minutes[-1], ended_at=None)
    found, tier = told(findings=tuple(minutes))
    (row,) = tier.incidents
    assert (row.times, row.worst.subject.replica, row.replicas) == (5040, "r1", 1)
    assert (row.worst.worst.status, row.worst.worst.sentence) == (Status.CRITICAL, "it was worst here")
    assert (row.started_at, row.last_started_at, row.ended_at) == (START, START + 10_078 * 60, None)
    # A minute each, and the last until the end of the time.
    assert row.seconds == 5039 * 60 + (7 * DAY - 10_078 * 60)
    said = "KV cache cascade (5,040 times, 3 d 12 h in all): page, Mon 02 Nov 00:00 UTC, not over: "
    assert section(found, HAPPENED)[0].startswith(f"- {said}")
    assert said in report_html(found)
    assert len(report_json(found)) < 200_000
    assert tier.verdict.count("KV cache cascade") == 1


def test_many_replicas_are_one_line() -> None:
    several = [finding(RULE, n, n + 0.5, replica=f"r{n}") for n in range(40)]
    several.append(finding(RULE, 50, 51, Status.CRITICAL, replica="r7", sentence="r7 was full"))
    found, tier = told(findings=tuple(several))
    (row,) = tier.incidents
    assert (row.times, row.replicas, row.worst.subject.replica) == (41, 40, "r7")
    (line,) = section(found, HAPPENED)
    assert line.startswith("- KV cache cascade (41 times on 40 replicas, 21 h in all): note, Wed 04 Nov 02:00 UTC, ")


def test_overlapping_findings_count_once() -> None:
    several = [finding(RULE, 10, 20 + n, Status.CRITICAL, replica=f"r{n}") for n in range(4)]
    several += [finding("KvCacheNearCeiling", 5, 15), finding("KvCacheNearCeiling", -50, None)]
    found, tier = told(findings=tuple(several))
    (incident,) = (row for row in tier.incidents if row.rule == RULE)
    assert (incident.times, incident.seconds) == (4, 13 * HOUR)
    row = row_of(tier, "kv_utilization")
    assert row.sentence.startswith("fired 6 times, 7 d in all, not over; ")
    assert row.sentence.partition(", ")[2] in report_markdown(found)


def test_earlier_begin_counts_from_the_period() -> None:
    several = [finding(RULE, -5, 1, replica="r1")]
    several += [finding(RULE, 10 * n, 10 * n + 1, replica="r1") for n in range(1, 4)]
    (row,) = told(findings=tuple(several))[1].incidents
    assert row.seconds == 4 * HOUR


def test_flapping_foreign_alerts_are_one_line() -> None:
    several = tuple(finding(RULE, n, n + 0.5, replica="r1") for n in range(20))
    alerts = [foreign_alert("Slow", cause, cause.started_at + 60, cause.started_at + 600) for cause in several]
    found, tier = told(findings=several, foreign=tuple(alerts))
    ((row,),) = [incident.foreign for incident in tier.incidents]
    assert (row.name, row.times, row.started_at, row.ended_at) == ("Slow", 20, START + 60, START + 19 * HOUR + 600)
    assert section(found, HAPPENED)[1] == "  - Mon 02 Nov 00:01 UTC: alert Slow, 20 times: why"


def restart(hour: float, replica: str = "r1", unseen: float | None = 90.0) -> tuple[TimelineEvent, ...]:
    """A restart as the daemon tells it: the event, and the start of which the silence is known or is not."""
    t = START + hour * HOUR
    said = TimelineEvent(t=t, kind=TimelineKind.RESTART, tier="t", replica=replica, text="the engine restarted")
    if unseen is None:
        return (said,)
    start = ReplicaStart(
        replica=replica, seen_at=t, alive_at=t - unseen, silent_since=t - unseen + 5, started_at=t - 60, ready_at=t - 2
    )
    return (said, timeline.start_event("t", start))


SEVERAL = (*restart(1), *restart(20), *restart(30, unseen=200.0), *restart(40, "r2"))
DAILY = tuple(event for day in range(7) for n in range(200) for event in restart(day * 24 + n / 100, f"pod-{n:03}"))


@pytest.mark.parametrize(
    ("events", "rows", "said"),
    [
        ((), [], []),
        (SEVERAL, [("r1", 3, 380.0, 0), ("r2", 1, 90.0, 0)], ["4 times; nothing was seen around that for 7 min."]),
        (
            (*restart(1), *restart(2, unseen=None)),
            [("r1", 2, 90.0, 1)],
            ["2 times; nothing was seen around that for 1 min at least."],
        ),
        (restart(2, unseen=None), [("r1", 1, 0.0, 1)], ["once."]),
        (DAILY, [("pod-000", 7, 630.0, 0)], ["1,400 times; nothing was seen around that for 1 d 11 h."]),
    ],
    ids=["none", "two replicas", "one unknown", "unknown", "200 replicas daily"],
)
def test_restarts_are_one_line(
    events: tuple[TimelineEvent, ...], rows: list[tuple[str, int, float, int]], said: list[str]
) -> None:
    found, tier = told(events=events)
    told_rows = [(row.replica, row.times, row.unseen_seconds, row.untimed) for row in tier.restarts]
    assert told_rows[: len(rows)] == rows
    assert len(told_rows) == (200 if events is DAILY else len(rows))
    lines = [f"Engines restarted {text}" for text in said]
    assert section(found, HAPPENED) == lines
    assert all(line in report_html(found) for line in lines)
    assert ("restarted" in report_html(found)) == bool(said)


def test_restarts_of_sums_alone_are_counted() -> None:
    # A fleet reads them from node agents, which count them.
    several = hours()
    several[5] = replace(several[5], counters={**several[5].counters, "restarts": 2.0})
    found, _ = reported(plan(), several, events=restart(5))
    assert [(row.replica, row.times) for row in found.tiers[0].restarts] == [("r1", 1), ("", 1)]
    assert section(found, HAPPENED)[0].startswith("Engines restarted 2 times; ")
