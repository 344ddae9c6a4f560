"""Incidents and restarts in the report: a finding that comes and goes is a line, and what restarts cost is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import HOUR, START, WEEK, finding, hours, plan, reported

from exporters.report.formats import report_html, report_markdown
from exporters.report.records import Report, TierReport, report_json
from rules.evaluator import timeline
from rules.evaluator.external_alerts import Diagnosis, ExternalAlert
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.replicas.starts import ReplicaStart
from rules.verdicts.finding import Finding, RuleState, step_rule_state
from rules.verdicts.verdict import Status

PLAN = plan()
RULE = "KvCacheCascade"
HAPPENED = "Incidents and restarts"


def told(**parts: object) -> tuple[Report, TierReport]:
    found, _ = reported(PLAN, hours(), **parts)
    return found, found.tiers[0]


def section(found: Report, title: str) -> list[str]:
    """The lines of a section of the Markdown."""
    text = report_markdown(found).partition(f"### {title}\n")[2].partition("\n### ")[0]
    return [line for line in text.splitlines() if line]


def flapping(minutes: int, replica: str = "r1") -> tuple[Finding, ...]:
    """A rule that fires for a minute and is ok for one, as `advance` makes episodes of its answers. The last one lasts."""
    firing = finding(RULE, 0, None, replica=replica).worst
    rule_state: RuleState | None = None
    found: list[Finding] = []
    for minute in range(minutes):
        status = Status.WARNING if minute % 2 == 0 else Status.OK
        answer = replace(firing, t=START + 60.0 * minute, status=status)
        if minute == 2000:
            answer = replace(answer, status=Status.CRITICAL, sentence="it was worst here")
        rule_state, ended = step_rule_state(rule_state, answer)
        found += [one for one in ended if isinstance(one, Finding)]
    assert rule_state is not None
    return (*found, *([rule_state.finding] if rule_state.finding else []))


def test_a_rule_that_flaps_for_a_week_is_one_incident_with_a_count() -> None:
    every = flapping(10_079)
    assert len(every) == 5040
    found, tier = told(findings=every)
    (row,) = tier.incidents
    assert (row.times, row.worst.subject.replica, row.replicas) == (5040, "r1", 1)
    assert (row.worst.worst.status, row.worst.worst.sentence) == (Status.CRITICAL, "it was worst here")
    assert (row.started_at, row.last_started_at, row.ended_at) == (START, START + 10_078 * 60, None)
    # A minute each, and the last until the end of the time.
    assert row.seconds == 5039 * 60 + (WEEK - 10_078 * 60)
    said = "KV cache cascade (5,040 times, 3 d 12 h in all): page, Mon 02 Nov 00:00 UTC, not over: "
    assert section(found, HAPPENED)[0].startswith(f"- {said}")
    assert said in report_html(found)
    assert len(report_json(found)) < 200_000


def test_a_finding_on_many_replicas_is_one_line_that_names_the_worst() -> None:
    several = [finding(RULE, n, n + 0.5, replica=f"r{n}") for n in range(40)]
    several.append(finding(RULE, 50, 51, Status.CRITICAL, replica="r7", sentence="r7 was full"))
    found, tier = told(findings=tuple(several))
    (row,) = tier.incidents
    assert (row.times, row.replicas, row.worst.subject.replica) == (41, 40, "r7")
    said = section(found, HAPPENED)
    assert len(said) == 1
    assert said[0].startswith("- KV cache cascade (41 times on 40 replicas, 21 h in all): note, Wed 04 Nov 02:00 UTC, ")


def test_two_at_once_do_not_last_twice_as_long() -> None:
    several = tuple(finding(RULE, 10, 20 + n, Status.CRITICAL, replica=f"r{n}") for n in range(4))
    found, tier = told(
        findings=(*several, finding("KvCacheNearCeiling", 5, 15), finding("KvCacheNearCeiling", -50, None))
    )
    (row,) = (row for row in tier.incidents if row.rule == RULE)
    assert (row.times, row.seconds) == (4, 13 * HOUR)
    row = next(one for one in tier.monitoring if one.key == "kv_utilization")
    assert row.sentence.startswith("fired 6 times, 7 d in all, not over; ")
    assert row.sentence.partition(", ")[2] in report_markdown(found)


def test_what_lasted_before_the_time_counts_from_its_begin() -> None:
    several = (
        finding(RULE, -5, 1, replica="r1"),
        *(finding(RULE, 10 * n, 10 * n + 1, replica="r1") for n in range(1, 4)),
    )
    (one,) = told(findings=several)[1].incidents
    assert one.seconds == 4 * HOUR


def test_alerts_of_others_that_flap_too_are_one_line_of_their_incident() -> None:
    every = tuple(finding(RULE, n, n + 0.5, replica="r1") for n in range(20))
    alerts = tuple(
        ExternalAlert(
            name="Slow",
            labels=(("n", str(n)),),
            summary="",
            started_at=one.started_at + 60,
            ended_at=one.started_at + 600,
            heard_at=one.started_at,
            tier="t",
            diagnosis=Diagnosis(rule=RULE, subject=one.subject, began_at=one.started_at, certain=True, sentence="why"),
        )
        for n, one in enumerate(every)
    )
    found, tier = told(findings=every, foreign=alerts)
    ((row,),) = [one.foreign for one in tier.incidents]
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


def test_restarts_stand_beside_incidents_and_what_they_cost_in_the_data_quality() -> None:
    events = (*restart(1), *restart(20), *restart(30, unseen=200.0), *restart(40, "r2"))
    found, tier = told(events=events)
    rows = [(row.replica, row.times, row.unseen_seconds, row.untimed) for row in tier.restarts]
    assert rows == [("r1", 3, 380.0, 0), ("r2", 1, 90.0, 0)]
    said = "Engines restarted 4 times; nothing was seen around that for 7 min."
    assert section(found, HAPPENED) == [said]
    assert said in report_html(found)


@pytest.mark.parametrize(
    ("events", "row", "said"),
    [
        (
            (*restart(1), *restart(2, unseen=None)),
            (2, 90.0, 1),
            "2 times; nothing was seen around that for 1 min at least, for 1 of them it is not known.",
        ),
        (restart(2, unseen=None), (1, 0.0, 1), "once; for how long nothing was seen around that is not known."),
    ],
)
def test_a_restart_without_a_known_silence(
    events: tuple[TimelineEvent, ...], row: tuple[int, float, int], said: str
) -> None:
    found, tier = told(events=events)
    assert [(one.times, one.unseen_seconds, one.untimed) for one in tier.restarts] == [row]
    assert section(found, HAPPENED) == [f"Engines restarted {said}"]


def test_restarts_that_only_sums_tell_of_are_counted() -> None:
    # A fleet reads them from node agents, which count them.
    several = hours()
    several[5] = replace(several[5], counters={**several[5].counters, "restarts": 2.0})
    found, _ = reported(PLAN, several, events=restart(5))
    assert [(row.replica, row.times) for row in found.tiers[0].restarts] == [("r1", 1), ("", 1)]
    assert "Engines restarted 2 times; " in section(found, HAPPENED)[0]


def test_two_hundred_replicas_that_restart_every_day_are_a_line() -> None:
    events = tuple(
        event for day in range(7) for n in range(200) for event in restart(day * 24 + n / 100, f"pod-{n:03}")
    )
    found, tier = told(events=events)
    assert len(tier.restarts) == 200
    assert section(found, HAPPENED) == ["Engines restarted 1,400 times; nothing was seen around that for 1 d 11 h."]


def test_without_restarts_nothing_is_said_of_them() -> None:
    found, tier = told()
    assert tier.restarts == ()
    assert section(found, HAPPENED) == []
    assert "restarted" not in report_html(found)


def test_what_was_critical_stands_once_in_the_verdict_however_often_it_came() -> None:
    several = tuple(finding(RULE, n, n + 0.5, Status.CRITICAL, replica="r1") for n in range(30))
    assert told(findings=several)[1].verdict.count("KV cache cascade") == 1
