"""Alerts of incidents: one alert for each incident and severity, for the path on which the agent posts them itself.

A page begins with the first certain finding that pages. A ticket waits, because most incidents show whether they page
within minutes. An alert ends when no finding of its severity has lasted for KEEP_SECONDS: a short ok is no recovery.
Everything follows from the findings, so an agent that restarts with its history continues the same alerts.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rules.catalogue.registry import BY_NAME
from rules.evaluator.alert_severity import RESOLVED_KEPT_SECONDS, alert_severity
from rules.evaluator.external_alerts import AFTERMATH_SECONDS
from rules.evaluator.incidents import NEAR_SECONDS, Incident, stage_of
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, Subject

TICKET_WAIT_SECONDS = 300.0
"""Seconds of an incident before its ticket: a symptom may precede its root, and an incident that pages needs no ticket."""

KEEP_SECONDS = 300.0
"""Seconds without a finding before an alert is resolved, as the rule files keep a page (`keep_firing_for`)."""

LEFT_OVER_SECONDS = 12 * 3600.0
"""Seconds after a page until what is left of its incident is a ticket: the page was told, as its resolution names the
rest. It is the `repeat_interval` of the sample configuration."""

AHEAD_SECONDS = 60.0
"""Maximum seconds that an end may lie ahead. Cycles of role fleet go back by less where samples come late."""

LOUD = (Severity.PAGE, Severity.TICKET)
"""Severities that are sent, the louder first."""

TIER_DOWN = "TierDown"
"""Rule of the outage of a whole tier."""

FindingKey = tuple[str, Subject, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentAlert:
    """Alert of an incident from `since` (unix seconds) to `resolved_at`, None while it fires.

    `rule` and `subject` are of the finding that was the most upstream one when the alert was first sent. They do not change
    while the alert lasts; `incident` has the present root. `members` are the findings that keep the alert firing.
    """

    rule: str
    subject: Subject
    severity: Severity
    since: float
    resolved_at: float | None
    incident: Incident
    members: frozenset[FindingKey]


@dataclass(frozen=True, slots=True)
class _LoudSpan:
    """Time in which findings of one severity followed each other, from `start` to `end` (infinite while it lasts).

    Its alert is `due` at a time, if it still lasts then. Each finding has the time from which it counts.
    """

    start: float
    end: float
    due: float
    findings: tuple[tuple[Finding, float], ...]


def step_incident_alerts(
    previous: Iterable[IncidentAlert], incidents: Iterable[Incident], now: float
) -> tuple[IncidentAlert, ...]:
    """Return the alerts at `now` (unix seconds): those that fire, and those resolved in the last 15 minutes.

    An alert of `previous` keeps its key and its begin. One whose incident joined another is resolved.
    """
    before, known_incidents = list(previous), tuple(incidents)
    incident_alerts = []
    for candidate in (alert for incident in known_incidents for alert in _alerts(incident, now)):
        firing = (old for old in before if old.resolved_at is None and old.severity is candidate.severity)
        related = (old for old in firing if old.members & candidate.members)
        first = min(related, key=lambda old: (old.since, old.rule), default=candidate)
        before = [old for old in before if old is not first]
        incident_alerts.append(replace(candidate, rule=first.rule, subject=first.subject, since=first.since))
    alerted = {(alert.incident.id, alert.severity) for alert in incident_alerts}
    before = [_continue(old, known_incidents, alerted, now) for old in before]
    # Receivers know an alert by its labels: tell the newest.
    since = {_labels(alert): alert.since for alert in sorted(incident_alerts, key=lambda alert: alert.since)}
    incident_alerts[:0] = [old for old in before if old.since > since.get(_labels(old), -math.inf)]
    ends = ((alert, now if alert.resolved_at is None else alert.resolved_at) for alert in incident_alerts)
    return tuple(alert for alert, end in ends if now - end <= RESOLVED_KEPT_SECONDS)


def _continue(
    old: IncidentAlert, incidents: Iterable[Incident], alerted: Container[tuple[str, Severity]], now: float
) -> IncidentAlert:
    """Return an alert that no incident gives now: resolved, or still firing where the clock was set back before its wait."""
    unalerted = (candidate for candidate in incidents if (candidate.id, old.severity) not in alerted)
    incident = next((candidate for candidate in unalerted if _has_open(candidate, old.members)), None)
    if old.resolved_at is not None or incident is None:
        return replace(old, resolved_at=now if old.resolved_at is None else old.resolved_at)
    return replace(old, incident=incident)


def _labels(alert: IncidentAlert) -> tuple[str, Subject, Severity]:
    return alert.rule, alert.subject, alert.severity


def _key(finding: Finding) -> FindingKey:
    return finding.rule, finding.subject, finding.started_at


def held_back(alert: IncidentAlert) -> tuple[str, ...]:
    """Return the rules whose own alerts this one replaces, in the order of their findings, without the root."""
    incident = alert.incident
    active = (finding for finding in incident.findings if finding.ended_at is None or incident.ended_at is not None)
    rules = dict.fromkeys(finding.rule for finding in active if _loud_from(finding, Severity.TICKET) is not None)
    return tuple(rule for rule in rules if rule not in (alert.rule, incident.root.rule))


def is_lasting(alert: IncidentAlert) -> bool:
    """Return whether a finding of the alert is open: without the time that an alert is kept.

    A finding that got milder keeps its alert: it is not over.
    """
    return _has_open(alert.incident, alert.members)


def _has_open(incident: Incident, members: Container[FindingKey]) -> bool:
    return any(finding.ended_at is None and _key(finding) in members for finding in incident.findings)


def _alerts(incident: Incident, now: float) -> Iterator[IncidentAlert]:
    """Yield the alerts of an incident, the newest first."""
    paging = ((finding, _loud_from(finding, Severity.PAGE)) for finding in incident.findings)
    # A begin in the future is of a clock that was set back since.
    loud = [(finding, min(start, now), min(start, now)) for finding, start in paging if start is not None]
    outages = [entry for entry in loud if _is_of_outage(entry[0], incident.findings)]
    pages = [*_spans(entry for entry in loud if entry not in outages), *_spans(outages)]
    pages.sort(key=lambda span: span.start)
    tickets = _spans(_ticket_times(incident.findings, pages, now))
    for severity, spans in ((Severity.PAGE, pages), (Severity.TICKET, tickets)):
        for span in reversed(spans):
            if min(now, span.end) >= span.due:
                yield _alert(incident, severity, span, now)


def _is_of_outage(finding: Finding, findings: Sequence[Finding]) -> bool:
    """Return whether a finding is the outage of a tier, or began during or soon after it.

    An outage is a page of its own, unless its incident began to page not long before: one incident is one page
    (DESIGN 17), and whoever was woken is at it.
    """
    outages = [candidate for candidate in findings if candidate.rule == TIER_DOWN]
    if not any(outage.started_at <= finding.started_at <= outage.end + NEAR_SECONDS for outage in outages):
        return False
    paged = (_loud_from(candidate, Severity.PAGE) for candidate in findings if candidate.rule != TIER_DOWN)
    died = outages[0].started_at
    return not any(start is not None and died - NEAR_SECONDS <= start <= died for start in paged)


def _ticket_times(
    findings: Iterable[Finding], pages: Sequence[_LoudSpan], now: float
) -> Iterator[tuple[Finding, float, float]]:
    """Yield the findings that are loud enough for a ticket, from when, and when the ticket is due.

    A page that begins during the wait stands for the ticket, and for what begins in its aftermath.
    """
    for finding in findings:
        loud = _loud_from(finding, Severity.TICKET)
        if loud is None:
            continue
        start = min(loud, now)
        due = start + TICKET_WAIT_SECONDS
        for page in pages:
            if page.start < start + TICKET_WAIT_SECONDS and start <= page.end + AFTERMATH_SECONDS:
                start = due = page.end + LEFT_OVER_SECONDS
        if start < finding.end:
            yield finding, start, due


def _alert(incident: Incident, severity: Severity, span: _LoudSpan, now: float) -> IncidentAlert:
    # The most upstream finding of those that were loud when the alert was due, the earliest of several.
    loud = [pair for pair in span.findings if pair[1] <= span.due]
    root = min(loud, key=lambda pair: (stage_of(pair[0].rule), pair[1], pair[0].started_at, str(pair[0].subject)))[0]
    # An end in the future is of a clock that was set back since: it is over.
    fires = math.isinf(span.end) or now - KEEP_SECONDS < span.end <= now + AHEAD_SECONDS
    return IncidentAlert(
        rule=root.rule,
        subject=root.subject,
        severity=severity,
        since=span.start,
        resolved_at=None if fires else span.end,
        incident=incident,
        members=frozenset(_key(finding) for finding, _ in span.findings),
    )


def _spans(loud: Iterable[tuple[Finding, float, float]]) -> list[_LoudSpan]:
    """Return the spans of findings, each with its begin and due time, oldest first.

    Findings at most KEEP_SECONDS apart are one span.
    """
    spans: list[_LoudSpan] = []
    for finding, start, due in sorted(loud, key=lambda entry: entry[1]):
        if spans and start <= spans[-1].end + KEEP_SECONDS:
            last = spans[-1]
            spans[-1] = _LoudSpan(
                last.start, max(last.end, finding.end), min(last.due, due), (*last.findings, (finding, start))
            )
        else:
            spans.append(_LoudSpan(start, finding.end, due, ((finding, start),)))
    return spans


def _loud_from(finding: Finding, severity: Severity) -> float | None:
    """Return when a finding was first certain at this severity or a louder one. It stays so until it ends."""
    if finding.rule not in BY_NAME:  # The history may hold findings of a rule that was removed.
        return None
    enough = LOUD[: LOUD.index(severity) + 1]
    changes = finding.certain_transitions
    return next((change.t for change in changes if alert_severity(finding.rule, change.status) in enough), None)
