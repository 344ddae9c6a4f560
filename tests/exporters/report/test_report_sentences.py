"""The report's sentences as a capacity owner reads them: numbers that can be read, no verdict where nobody judged."""

from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from golden_text import check_golden
from report_samples import (
    DAY,
    HOUR,
    START,
    WEEK,
    finding,
    foreign_alert,
    hour,
    hours,
    past,
    plan,
    reported,
    reported_tier,
    row_of,
    tier_past,
)

from exporters.documents.replay import NO_BENCHMARK, result_words
from exporters.render.text import seen_words
from exporters.report.build import report
from exporters.report.findings import UnknownPeriod, blind_lines
from exporters.report.formats import report_html, report_markdown
from exporters.report.guide_tables import NO_SLO
from exporters.report.records import Report, report_json
from rules.confidence import Certainty
from rules.evaluator import timeline
from rules.evaluator.benchmark_check import Step13
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.replicas.starts import ReplicaStart
from rules.telemetry.signals import Missing, Reading
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Finding, Status, Transition

PLAN = plan()
REPORT = reported(PLAN, hours())[0]
TIER = REPORT.tiers[0]


def texts(found: Report) -> tuple[str, str]:
    return report_markdown(found), report_html(found)


@pytest.mark.parametrize(
    ("rps", "kv", "sentence"),
    [
        (22.0, 0.8, "Fleet utilisation is 30.0% over 7.0 days; memory sets the size of this fleet, not load"),
        (36.0, 0.3, "Fleet utilisation is 49.1% over 7.0 days; 40% or more is no trap"),
    ],
)
def test_outside_the_target_is_not_ok(rps: float, kv: float, sentence: str) -> None:
    found = reported(PLAN, hours(kv=kv, rps=lambda n: rps))[0]
    row = row_of(found.tiers[0], "fleet_utilization")
    assert (row.status, row.target.text) == ("ok", "60-80 %")
    assert row.sentence.startswith(sentence)
    for text in texts(found):
        assert text.count(f"outside the target, no finding: {sentence}") == 1
        ok = [line for line in text.splitlines() if line.removeprefix("<p>").startswith("ok: ")]
        assert ok
        assert not any("Fleet utilisation" in line for line in ok)
    unjudged = replace(found.tiers[0], monitoring=(replace(row, status="not_judged"),))
    assert all("outside the target" in text for text in texts(replace(found, tiers=(unjudged,))))


def test_row_without_slo_is_not_judged() -> None:
    measured = []
    for window in hours(24):
        histograms = {**window.histograms, "e2e_seconds": window.histograms["ttft_seconds"]}
        measured.append(replace(window, histograms=histograms))
    row = row_of(reported_tier(measured), "e2e_p99_seconds")
    assert (row.target.text, row.status) == (NO_SLO, "not_judged")
    assert isinstance(row.observed, Reading)
    assert row_of(TIER, "itl_p50_seconds").target.text == NO_SLO
    assert row_of(reported_tier(hours(ttft={4.0: 1.0})), "ttft_p50_seconds").meets_target is False


def test_unknown_row_has_one_reason() -> None:
    for row in TIER.monitoring:
        if isinstance(row.observed, Missing) and row.status == "unknown":
            assert row.sentence.startswith(row.observed.text or row.observed.gap.replace("_", " ")), row.key


def test_few_hours_list_lacks_once() -> None:
    report = reported(PLAN, hours(1, rps=lambda n: 0.01))[0]
    proposal = report.tiers[0].proposal
    assert proposal.sentence == f"No recommendation yet: {proposal.needed[0]}, and 2 more"
    assert [text.count(proposal.needed[1]) for text in texts(report)] == [1, 1]


def test_absent_benchmark_is_not_refuted() -> None:
    results = (finding("KvEviction", 0, 1).worst,)
    broken = Step13(tier="t", results=results, requests=1.0, highest_rps=None, usable_rps=None)
    assert result_words(broken) == NO_BENCHMARK


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


def restart(hour: float, replica: str = "r1", unseen: float | None = 90.0) -> tuple[TimelineEvent, ...]:
    """A restart as the daemon tells it: the event, and the start of which the silence is known or is not."""
    t = START + hour * HOUR
    said = TimelineEvent(t=t, kind=TimelineKind.RESTART, tier="t", replica=replica, text="the engine restarted")
    if unseen is None:
        return (said,)
    alive = t - unseen
    times = {"alive_at": alive, "silent_since": alive + 5, "started_at": t - 60, "ready_at": t - 2}
    return (said, timeline.start_event("t", ReplicaStart(replica=replica, seen_at=t, **times)))


def flapping() -> tuple[Finding, ...]:
    """A rule that fires for a minute and is ok for one, all week. The last finding lasts."""
    minutes = []
    for n in range(5040):
        status, sentence = (Status.CRITICAL, "it was worst here") if n == 1000 else (Status.WARNING, "it fires")
        change = Transition(t=START + 120 * n, status=status, stage=None, certainty=Certainty.CERTAIN)
        parts = {"replica": "r1", "sentence": sentence, "transitions": (change,)}
        minutes.append(finding(RULE, n / 30, (n + 0.5) / 30, status, **parts))
    return (*minutes[:-1], replace(minutes[-1], ended_at=None))


OVERLAPPING = [finding(RULE, 10, 20 + n, Status.CRITICAL, replica=f"r{n}") for n in range(4)]
NEAR = (finding("KvCacheNearCeiling", 5, 15), finding("KvCacheNearCeiling", -50, None))
HOURLY = tuple(finding(RULE, n, n + 0.5, replica="r1") for n in range(20))
SLOW = tuple(foreign_alert("Slow", cause, cause.started_at + 60, cause.started_at + 600) for cause in HOURLY)
DAILY = tuple(event for day in range(7) for n in range(200) for event in restart(day * 24 + n / 100, f"pod-{n:03}"))
# A fleet reads restarts from node agents, which count them.
COUNTED = hours()
COUNTED[5] = replace(COUNTED[5], counters={**COUNTED[5].counters, "restarts": 2.0})
HAPPENED: dict[str, dict[str, Any]] = {
    "rule that flaps all week": {"findings": flapping()},
    "findings that overlap count once": {"findings": (*OVERLAPPING, *NEAR)},
    "finding that begins before the time": {"findings": (finding(RULE, -5, 1), finding(RULE, 10, 11))},
    "alerts of others that flap": {"findings": HOURLY, "foreign": SLOW},
    "no restart": {},
    "two replicas": {"events": (*restart(1), *restart(20), *restart(30, unseen=200.0), *restart(40, "r2"))},
    "one restart of unknown length": {"events": (*restart(1), *restart(2, unseen=None))},
    "restart of unknown length": {"events": restart(2, unseen=None)},
    "200 replicas daily": {"events": DAILY},
    "restarts of sums alone": {"events": restart(5)},
}


def test_what_happened_reads_as_the_golden() -> None:
    """Lines of the section, which the page has too, and the records, with seconds since the begin."""
    lines = []
    for name, parts in HAPPENED.items():
        found, _ = reported(PLAN, COUNTED if "sums" in name else hours(), **parts)
        (tier,) = found.tiers
        text, page = texts(found)
        section = text.partition("### Incidents and restarts\n")[2].partition("\n### ")[0].split("\n")
        lines += [f"---- {name}", tier.verdict, *filter(None, section), row_of(tier, "kv_utilization").sentence]
        assert all(line.removeprefix("  ").removeprefix("- ") in page for line in section)
        assert ("restarted" in page) == bool(tier.restarts)
        assert len(report_json(found)) < 200_000
        for incident in tier.incidents:
            times = [t and t - START for t in (incident.started_at, incident.last_started_at, incident.ended_at)]
            worst = incident.worst.worst
            lines.append(f"{incident.rule}: {incident.times} times, {incident.replicas} replicas, {incident.seconds} s")
            lines.append(f"  {worst.status} on {worst.subject.replica}: {worst.sentence}; begin, last, end: {times}")
            for alert in incident.foreign:
                lines.append(
                    f"  {alert.name}, {alert.times} times: {alert.started_at - START}, {alert.ended_at - START}"
                )
        lines.append(f"{len(tier.restarts)} replicas restarted")
        for row in tier.restarts[:3]:
            lines.append(f"  {row.replica}: {row.times} times, {row.unseen_seconds} s, {row.untimed} untimed")
    check_golden(__file__, "happened.txt", "\n".join(lines))


THURSDAY = 72
"""Hours after START, which is a Monday."""

CLOCKS = (
    ("Europe/Berlin", "2026-10-19", "2026-10-26", "back", 2),
    ("Europe/Berlin", "2026-03-23", "2026-03-30", "forward", 2),
    ("America/New_York", "2026-10-26", "2026-11-02", "back", 1),
    ("America/New_York", "2026-03-02", "2026-03-09", "forward", 2),
)
"""Zone, two Mondays, which way its clock is set on the Sunday between them, and the hour that comes twice or not at all."""


def says(found: Report, sentence: str) -> bool:
    """Whether report.md and report.html say it before any number of the tier."""
    text, page = report_markdown(found), report_html(found)
    return sentence in text.partition("\n### ")[0] and sentence in page.partition('<section class="level3 ')[0]


HALF = [window for n, window in enumerate(hours(rps=lambda n: 40.0 if n == 20 else 30.0)) if not 24 <= n < 108]
BUSY: dict[str, Any] = {"rps": lambda n: 90.0}
BEFORE = hour(-1, 10.0)
NEW = hours(168 - THURSDAY, first=THURSDAY, replicas=8)
ODD_WEEKS: dict[str, tuple[list[Window], Window | None]] = {
    "no data": ([], None),
    "half": (HALF, BEFORE),
    "gone before": ([], hour(-5, 10.0)),
    "gone": (hours(96, **BUSY), BEFORE),
    "new": (NEW, None),
    "known before": (NEW, BEFORE),
    "whole": (hours(), BEFORE),
}
"""Hours that were seen, and a window before them."""


def changed_plan(hours_since: int) -> Report:
    """A week of which so many hours at its end are under the present plan."""
    whole = tier_past(PLAN, hours())
    seen = whole.resize.seen
    versions = ("old", "new") if hours_since else ("old",)
    since = seen.plan_hours[len(seen.plan_hours) - hours_since :]
    seen = replace(seen, versions=versions, plan_hours=since, bins=seen.bins if since else ())
    changed = TimelineEvent(t=START + 68 * HOUR, kind=TimelineKind.PLAN, tier="t", replica=None, text="another plan")
    return report(past(PLAN, replace(whole, resize=replace(whole.resize, seen=seen), events=(changed,))))[0]


def test_odd_weeks_read_as_the_golden() -> None:
    """What a reader sees before any number of the tier."""
    reports = {name: reported(PLAN, windows, before=before)[0] for name, (windows, before) in ODD_WEEKS.items()}
    reports |= {f"plan of {hours_since} hours": changed_plan(hours_since) for hours_since in (100, 1, 0)}
    lines = []
    for name, found in reports.items():
        (tier,) = found.tiers
        lines += [f"---- {name}", report_markdown(found).partition("\n### ")[0]]
        assert all(says(found, sentence) for sentence in (tier.verdict, *tier.quality.remarks))
        if name in ODD_WEEKS and name != "whole":
            assert (tier.proposal.kind, tier.proposal.replicas, tier.changes) == ("no_recommendation", None, ())
        if name in ODD_WEEKS and not ODD_WEEKS[name][0]:
            assert {question.answer for question in tier.questions} == {"nothing was seen in this time"}
            assert {row.status for row in tier.monitoring} == {tier.status} == {"unknown"}
            assert "prompts P50, P95, P99: nothing was seen; planned " in report_markdown(found)
    check_golden(__file__, "odd_weeks.md", "\n".join(lines))


def test_last_hours_down_are_not_gone() -> None:
    tier = reported_tier(hours(160, **BUSY))
    assert tier.verdict.startswith("t (not seen since Sun 08 Nov 16:00 UTC, ")
    assert tier.proposal.kind == "grow"


def local_week(zone: str, begin: str, end: str) -> tuple[Report, list[Window], float, float]:
    """A week from Monday to Monday by that zone's clock, busy from 9 to 18 by the same clock."""
    place = ZoneInfo(zone)
    since, until = (datetime.fromisoformat(day).replace(tzinfo=place).timestamp() for day in (begin, end))
    several = []
    for n in range(round((until - since) / HOUR)):
        at = datetime.fromtimestamp(since + n * HOUR, place)
        several.append(hour((since - START) / HOUR + n, 30.0 if 9 <= at.hour < 18 else 10.0))
    found, _ = report(past(PLAN, tier_past(PLAN, several, since, until), zone=zone))
    return found, several, since, until


@pytest.mark.parametrize(("zone", "begin", "end", "way", "odd"), CLOCKS)
def test_set_clock_makes_no_holes(zone: str, begin: str, end: str, way: str, odd: int) -> None:
    found, several, since, until = local_week(zone, begin, end)
    assert until - since == WEEK + (HOUR if way == "back" else -HOUR)
    (tier,) = found.tiers
    week = {(row.weekday, row.hour): row for row in tier.week}
    counts = {place: row.count for place, row in week.items()}
    assert counts.pop((6, odd)) == (2 if way == "back" else 0)
    assert set(counts.values()) == {1}
    assert sum(row.count for row in tier.week) == tier.quality.hours_seen == len(several)
    for place, seen in week.items():
        if seen.count:
            assert seen.utilization == pytest.approx((3 if 9 <= place[1] < 18 else 1) / 7.33333333), place
    assert tier.quality.remarks == ()
    assert tier.verdict.startswith("t: ")
    assert tier.workload.requests == sum(window.counters["requests_finished"] for window in several)
    assert f"by hour of the week, {zone}: the busier, the more it stands out" in report_html(found)
