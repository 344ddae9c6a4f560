"""An incident is one page, or one ticket, from its first loud finding to its last; a restart changes nothing."""

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_incidents import CASCADE, finding

from rules.confidence import Certainty
from rules.evaluator.external_alerts import AFTERMATH_SECONDS
from rules.evaluator.incident_alerts import (
    AHEAD_SECONDS,
    KEEP_SECONDS,
    LEFT_OVER_SECONDS,
    TICKET_WAIT_SECONDS,
    IncidentAlert,
    held_back,
    is_lasting,
    step_incident_alerts,
)
from rules.evaluator.incidents import group_incidents
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, Status, Transition

WARNING = Status.WARNING
Told = tuple[str, str, float, float | None]


def seen_at(findings: Iterable[Finding], now: float) -> list[Finding]:
    """The findings as they were known at that time."""
    begun = [one for one in findings if one.started_at <= now]
    return [replace(one, ended_at=None) if one.ended_at is not None and one.ended_at > now else one for one in begun]


def alerts(
    findings: Iterable[Finding], now: float, previous: Iterable[IncidentAlert] = ()
) -> tuple[IncidentAlert, ...]:
    return step_incident_alerts(previous, group_incidents(seen_at(findings, now)), now)


def told(found: Iterable[IncidentAlert]) -> list[Told]:
    return [(one.rule, one.severity.value, one.since, one.resolved_at) for one in found]


def story(findings: Iterable[Finding], until: float, every: float = 15.0) -> list[Told]:
    """The alerts that begin and end while the findings come and go, in order."""
    known, firing = list(findings), set[Told]()
    found: tuple[IncidentAlert, ...] = ()
    changes: list[Told] = []
    for now in (n * every for n in range(int(until / every) + 1)):
        found = alerts(known, now, found)
        for one in told(found):
            if one not in firing:
                firing.add(one)
                changes.append(one)
    return changes


def over(findings: Iterable[Finding], end: float) -> list[Finding]:
    return [one if one.ended_at is not None else replace(one, ended_at=end) for one in findings]


def test_cascade_is_one_page() -> None:
    assert story(over(CASCADE, 420.0), 4000.0) == [
        ("KvCacheCascade", "critical", 85.0, None),
        ("KvCacheCascade", "critical", 85.0, 420.0),
    ]


def test_ticket_waits_for_its_root() -> None:
    known = [
        finding("TtftDivergence", 100.0, status=WARNING),
        finding("PrefixHitLow", 100.0 + TICKET_WAIT_SECONDS - 1, status=WARNING),
        finding("WorkloadDrift", 100.0 + TICKET_WAIT_SECONDS + 60, status=WARNING),
    ]
    assert alerts(known, 99.0 + TICKET_WAIT_SECONDS) == ()
    (one,) = alerts(known, 101.0 + TICKET_WAIT_SECONDS)
    assert told([one]) == [("PrefixHitLow", "warning", 100.0, None)]
    (later,) = alerts(known, 2000.0)
    assert later.incident.root.rule == "WorkloadDrift"
    assert told([later]) == told([one]), "a refined root makes no other alert"


def test_short_incident_sends_no_ticket() -> None:
    assert story([finding("TargetDown", 100.0, 99.0 + TICKET_WAIT_SECONDS, replica="a", status=WARNING)], 3000.0) == []


def test_page_after_ticket_is_another_alert() -> None:
    known = [finding("QueueGrowing", 0.0, 1400.0, status=WARNING), finding("TtftSloBurn", 1000.0, 1300.0)]
    assert story(known, 4000.0) == [
        ("QueueGrowing", "warning", 0.0, None),
        ("TtftSloBurn", "critical", 1000.0, None),
        ("TtftSloBurn", "critical", 1000.0, 1300.0),
        ("QueueGrowing", "warning", 0.0, 1400.0),
    ]


def test_rest_of_page_is_late_ticket() -> None:
    page = finding("KvCacheCascade", 0.0, 300.0, replica="a")
    lag = finding("TtftDivergence", 60.0, 299.0 + LEFT_OVER_SECONDS, status=WARNING)
    late = 400.0 + LEFT_OVER_SECONDS
    assert [one[1] for one in story([page, lag], late, 60.0)] == ["critical", "critical"]
    lasts = replace(lag, ended_at=None)
    assert story([page, lasts], late, 60.0)[2:] == [("TtftDivergence", "warning", 300.0 + LEFT_OVER_SECONDS, None)]


def test_finding_after_aftermath_is_new_ticket() -> None:
    page = finding("KvCacheCascade", 0.0, 300.0, replica="a")
    lasts = finding("TtftDivergence", 60.0, status=WARNING)
    lag = finding("TtftDivergence", 290.0 + AFTERMATH_SECONDS, status=WARNING)
    other = finding("QueueGrowing", 310.0 + AFTERMATH_SECONDS, status=WARNING)
    assert [one[1] for one in story([page, lasts, lag], 5000.0)] == ["critical", "critical"]
    assert story([page, lasts, lag, other], 5000.0)[2:] == [("QueueGrowing", "warning", other.started_at, None)]


def test_a_short_recovery_is_none() -> None:
    pause = KEEP_SECONDS - 1
    known = [finding("TierDown", 0.0, 200.0), finding("TierDown", 200.0 + pause, 800.0)]
    assert story(known, 3000.0) == [("TierDown", "critical", 0.0, None), ("TierDown", "critical", 0.0, 800.0)]


def test_likely_or_reported_sends_nothing() -> None:
    likely = finding("TtftSloBurn", 0.0, certainty=Certainty.LIKELY)
    noted = finding("GpuMemoryLow", 0.0, status=WARNING)
    assert alerts([likely, noted, finding("RemovedRule", 0.0)], 5000.0) == ()


def test_alert_outlives_its_findings() -> None:
    first = finding("TpotDivergence", 0.0, 90_000.0, status=WARNING)
    later = finding("ItlDivergence", 80_000.0, status=WARNING)
    before = alerts([first, later], 90_100.0)
    # A day after its end the first finding is no longer in memory.
    assert told(alerts([later], 180_000.0, before)) == told(before) == [("TpotDivergence", "warning", 0.0, None)]


def test_future_end_is_over() -> None:
    ended = finding("TierDown", 0.0, 10_000.0)
    (incident,) = group_incidents([ended])
    (one,) = step_incident_alerts((), [incident], 10_000.0 - AHEAD_SECONDS - 1)
    assert one.resolved_at is not None
    assert step_incident_alerts((), [incident], 10_000.0)[0].resolved_at is None


def test_milder_finding_keeps_its_alert() -> None:
    cascade = finding("KvCacheCascade", 100.0)
    milder = Transition(t=200.0, status=WARNING, stage=1, certainty=Certainty.CERTAIN)
    cascade = replace(cascade, transitions=(*cascade.transitions, milder))
    (alert,) = step_incident_alerts((), group_incidents([cascade]), 5000.0)
    assert (alert.severity, is_lasting(alert)) == (Severity.PAGE, True)
    (over,) = step_incident_alerts((), group_incidents([replace(cascade, ended_at=4900.0)]), 5000.0)
    assert (over.resolved_at, is_lasting(over)) == (None, False)


def test_root_holds_back_other_findings() -> None:
    known = [*CASCADE, finding("GpuMemoryLow", 240.0, status=WARNING)]
    (one,) = alerts(known, 295.0)
    assert one.incident.root.rule == "WorkloadDrift"
    assert held_back(one) == ("KvEviction", "ItlDivergence", "TtftSloBurn")
    (later,) = alerts(known, 335.0)
    assert held_back(later) == ("ItlDivergence", "TtftSloBurn"), "what has ended is held back no more"
    (after,) = alerts(over(known, 400.0), 900.0)
    assert held_back(after) == held_back(one), "but at the end all that was"


RULES = ("KvCacheCascade", "TtftSloBurn", "QueueGrowing", "WorkloadDrift", "TtftDivergence", "TierDown", "GpuXid")
FINDINGS = st.lists(
    st.builds(
        lambda rule, start, length, status: finding(rule, start * 15.0, start * 15.0 + length * 15.0, status=status),
        st.sampled_from(RULES),
        st.integers(0, 120),
        st.integers(1, 120),
        st.sampled_from([WARNING, Status.CRITICAL]),
    ),
    max_size=6,
)


@given(FINDINGS, st.integers(0, 300))
def test_a_restart_loses_and_adds_no_page(known: list[Finding], at: int) -> None:
    now = at * 15.0
    found: tuple[IncidentAlert, ...] = ()
    for step in range(at + 1):
        found = alerts(known, step * 15.0, found)
    several = (found, alerts(known, now))
    # Where two incidents joined, the page that stays may have another name.
    before, after = ([o for o in one if o.resolved_at is None and o.severity is Severity.PAGE] for one in several)
    assert len(before) == len(after)


def test_restart_keeps_cascade_alerts() -> None:
    for now in (120.0, 300.0, 500.0, 900.0):
        before: tuple[IncidentAlert, ...] = ()
        for step in range(int(now / 15) + 1):
            before = alerts(over(CASCADE, 420.0), step * 15.0, before)
        assert told(before) == told(alerts(over(CASCADE, 420.0), now)) != []


@given(FINDINGS)
def test_every_page_is_told_and_resolved(known: list[Finding]) -> None:
    last = max((one.ended_at or 0.0 for one in known), default=0.0)
    told_ = story(known, last + KEEP_SECONDS + 30.0)
    pages = [one for one in known if one.worst.status is Status.CRITICAL and one.rule in PAGING]
    for page in pages:
        assert any(one[1] == "critical" and one[2] <= page.started_at <= (one[3] or math.inf) for one in told_)
    begun = {one[:3] for one in told_ if one[3] is None}
    # A finding may join two incidents that were too short for a ticket: theirs is over when it is known.
    assert begun <= {one[:3] for one in told_ if one[3] is not None}


PAGING = frozenset({"KvCacheCascade", "TtftSloBurn", "TierDown"})


@pytest.mark.parametrize("severity", [Severity.PAGE, Severity.TICKET])
def test_equal_findings_are_one_alert(severity: Severity) -> None:
    status = Status.CRITICAL if severity is Severity.PAGE else WARNING
    rules = ("KvCacheCascade", "TtftSloBurn", "TpotSloBurn")
    known = [finding(rule, 100.0 * n, 3000.0, status=status) for n, rule in enumerate(rules)]
    assert [one[1] for one in story(known, 4000.0)] == [severity.value] * 2


def test_death_in_incident_is_own_page() -> None:
    cascade, tail = finding("KvCacheCascade", 0.0, 4000.0), finding("TtftDivergence", 600.0, 5000.0, status=WARNING)
    died, slower = finding("TierDown", 3000.0), finding("TtftDivergence", 3010.0, status=WARNING)
    known: tuple[IncidentAlert, ...] = ()
    for now in (2990.0, 3000.0, 3015.0, 3600.0):
        known = alerts([cascade, tail, died, slower], now, known)
        pages = {one.rule for one in known if one.severity is Severity.PAGE and one.resolved_at is None}
        assert pages == {"KvCacheCascade", *(["TierDown"] if now >= 3000.0 else [])}
    failing = finding("AvailabilityBurn", 3060.0)
    known = alerts([cascade, tail, died, slower, failing], 3700.0, known)
    assert len([one for one in known if one.severity is Severity.PAGE]) == 2, "what the outage explains is no page"


def test_death_of_incident_is_same_page() -> None:
    cascade, died = finding("KvCacheCascade", 0.0, 400.0), finding("TierDown", 300.0)
    slower = finding("AvailabilityBurn", 250.0)
    (page,) = (one for one in alerts([cascade, slower, died], 310.0) if one.severity is Severity.PAGE)
    assert page.rule == "KvCacheCascade"
