"""Incidents, findings and engine restarts of a tier, as rows and as lines.

The findings of a rule are a single row with a count. Gaps are in `exporters.report.data_quality`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from exporters.render.text import copy_fields, format_duration, format_local
from exporters.report.inputs import TierPast
from exporters.report.wording import instant, money
from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.incidents import Incident, group_incidents
from rules.evaluator.timeline import SEVERITY_WORDS, TimelineKind, parse_start_event
from rules.replicas.cascade import STAGES
from rules.telemetry.windows import group_by
from rules.verdicts.finding import Finding, UnknownSpan
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import SEVERITY, IdleReplicas, MissedObjective, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAlertRow:
    """Alerts of other systems by their name, from first begin to last end."""

    name: str
    times: int
    started_at: float
    ended_at: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """Findings of an alerting rule. `times` counts them, and `seconds` is the time in which any lasted. `replicas` is
    the number of affected replicas (0: whole tier). `started_at` is the first begin, `last_started_at` the last,
    `ended_at` the last end (null: still active). `foreign` are the explained alerts of other systems.
    """

    rule: str
    replicas: int
    times: int
    seconds: float
    started_at: float
    ended_at: float | None
    last_started_at: float
    worst: Finding
    foreign: tuple[ExternalAlertRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SymptomRow:
    """Findings of a rule in an incident. `started_at` is the first begin."""

    rule: str
    times: int
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRow:
    """Incident: its root, the other rules that found something in order of time, and what users felt (`missed`)."""

    id: str
    root: str
    severity: Severity
    started_at: float
    ended_at: float | None
    sentence: str
    action: str
    symptoms: tuple[SymptomRow, ...]
    missed: MissedObjective | None
    replicas: tuple[str, ...]
    idle: IdleReplicas | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRow:
    """Engine restarts of a replica ("" if only their number is known). `unseen_seconds` is the total from the last page
    of an old process to the first page of the new. It excludes `untimed` restarts of unknown duration.
    """

    replica: str
    times: int
    first: float | None
    last: float | None
    unseen_seconds: float
    untimed: int


def list_findings(past: TierPast) -> tuple[FindingRow, ...]:
    """Return the findings of alerting rules, oldest first, each with the foreign alerts that it explains."""
    by_rule = group_by(_loud(past), lambda finding: finding.rule)
    return tuple(_finding_row(findings, past) for findings in by_rule.values())


def list_incidents(past: TierPast) -> tuple[IncidentRow, ...]:
    """Return the incidents with a certain finding or one of an alerting rule, oldest first."""
    loud = {id(finding) for finding in _loud(past)}
    incidents = group_incidents(past.findings, now=past.resize.seen.until)
    return tuple(
        _incident_row(incident)
        for incident in incidents
        if any(id(finding) in loud or finding.worst.certainty is Certainty.CERTAIN for finding in incident.findings)
    )


def _incident_row(incident: Incident) -> IncidentRow:
    symptoms = [
        SymptomRow(rule=rule, times=len(findings), started_at=findings[0].started_at)
        for rule, findings in incident.symptoms.items()
    ]
    same = ("id", "severity", "started_at", "ended_at", "sentence", "action", "missed", "replicas", "idle")
    return IncidentRow(root=incident.root.rule, symptoms=tuple(symptoms), **copy_fields(incident, *same))


def _title(rule: str) -> str:
    return RULES[rule].title if rule in RULES else rule


LOUDEST_FIRST = (Severity.PAGE, Severity.TICKET, Severity.REPORT)

MOST_SYMPTOMS = 5
"""Maximum number of symptoms named in a line. report.json lists all."""


def incident_lines(
    incidents: Iterable[IncidentRow], findings: Iterable[FindingRow], zone: str, currency: str
) -> Iterator[tuple[str, ...]]:
    """Yield the worst incident of each root, with the stages of a cascade and the alerts that its findings explain."""
    by_rule = {finding.rule: finding for finding in findings}
    for root, rows in group_by(incidents, lambda incident: incident.root).items():
        begin = by_rule[root].worst.started_at if root in by_rule else None
        worst = min(rows, key=lambda row: (LOUDEST_FIRST.index(row.severity), row.started_at != begin))
        named = dict.fromkeys((root, *(symptom.rule for row in rows for symptom in row.symptoms)))
        below = [
            line
            for rule in named
            if rule in by_rule
            for line in (*_stage_lines(by_rule[rule], zone), *_foreign_lines(by_rule[rule], zone))
        ]
        yield (f"{_title(root)}{_often(by_rule.get(root))}: {_incident_text(worst, zone, currency)}", *below)


def _often(finding: FindingRow | None) -> str:
    """Return how often a rule found something, "" for once: the incident is then the worst of them."""
    if finding is None or finding.times == 1:
        return ""
    where = f" on {finding.replicas} replicas" if finding.replicas > 1 else ""
    return f" ({finding.times:,} times{where}, {format_duration(finding.seconds)} in all)"


def _incident_text(incident: IncidentRow, zone: str, currency: str) -> str:
    lasted = "not over"
    if incident.ended_at is not None:
        lasted = f"for {format_duration(incident.ended_at - incident.started_at)}"
    begin = instant(incident.started_at, zone)
    text = f"{SEVERITY_WORDS[incident.severity]}, {begin}, {lasted}: {incident.sentence}."
    named = []
    for row in incident.symptoms[:MOST_SYMPTOMS]:
        named.append(f"{_title(row.rule)} ({format_local(row.started_at, zone, '%d %b %H:%M')})")
    more = len(incident.symptoms) - len(named)
    named += [f"{more} more"] if more else []
    text += f" Symptoms: {', '.join(named)}." if named else ""
    if incident.idle is not None:
        cost = incident.idle.cost_per_day
        paid = "" if cost is None else f", {money(cost, currency)} a day"
        text += f" {incident.idle.replicas:.1f} replicas idle{paid}."
    return f"{text} Do: {incident.action}." if incident.action else text


def _stage_lines(finding: FindingRow, zone: str) -> Iterator[str]:
    """Yield when a cascade reached each stage, to the second. Stages may follow each other within a minute."""
    worst = 0
    for step in finding.worst.transitions:
        if step.stage is not None and step.stage > worst:
            worst = step.stage
            yield f"{format_local(step.t, zone, '%a %d %b %H:%M:%S %Z')}: stage {worst}, {STAGES[worst]}"


def _foreign_lines(finding: FindingRow, zone: str) -> Iterator[str]:
    for alert in finding.foreign:
        often = "" if alert.times == 1 else f", {alert.times:,} times"
        yield f"{instant(alert.started_at, zone)}: alert {alert.name}{often}{f': {alert.text}' if alert.text else ''}"


def worst_titles(past: TierPast) -> tuple[str, ...]:
    """Return the titles of rules that were certainly critical, each once, in order of first begin."""
    sure = (Status.CRITICAL, Certainty.CERTAIN)
    worst = [finding.rule for finding in _loud(past) if (finding.worst.status, finding.worst.certainty) == sure]
    return tuple(RULES[rule].title for rule in dict.fromkeys(worst))


def _loud(past: TierPast) -> list[Finding]:
    loud = [
        finding
        for finding in past.findings
        if finding.rule in RULES and RULES[finding.rule].severity is not Severity.REPORT
    ]
    return sorted(loud, key=lambda finding: finding.started_at)


def _finding_row(ordered: Sequence[Finding], past: TierPast) -> FindingRow:
    worst = max(ordered, key=_badness)
    known = {(finding.rule, finding.subject, finding.started_at) for finding in ordered}
    tied = [a for a in past.foreign if (d := a.diagnosis) is not None and (d.rule, d.subject, d.began_at) in known]
    by_name = group_by(tied, lambda alert: alert.name)
    foreign = sorted(map(_foreign_row, by_name.values()), key=lambda row: row.started_at)
    return FindingRow(
        rule=worst.rule,
        replicas=len({finding.subject.replica for finding in ordered} - {None}),
        times=len(ordered),
        seconds=total_duration(ordered, past.resize.seen.since, past.resize.seen.until),
        started_at=ordered[0].started_at,
        ended_at=_last_end(ordered),
        last_started_at=ordered[-1].started_at,
        worst=worst,
        foreign=tuple(foreign),
    )


def _last_end(spans: Iterable[Finding | ExternalAlert]) -> float | None:
    """Return the last end, None while one lasts."""
    ends = [math.inf if span.ended_at is None else span.ended_at for span in spans]
    return None if math.inf in ends else max(ends)


def _badness(finding: Finding) -> tuple[int, bool, int]:
    worst = finding.worst
    return SEVERITY[worst.status], worst.certainty is Certainty.CERTAIN, worst.stage or 0


def total_duration(spans: Iterable[Finding | UnknownSpan], since: float, until: float) -> float:
    """Return the seconds of the period in which any finding or unknown span lasted. Overlapping ones count once."""
    total, reached = 0.0, since
    for span in sorted(spans, key=lambda candidate: candidate.started_at):
        end = until if span.ended_at is None else min(span.ended_at, until)
        total += max(0.0, end - max(span.started_at, reached))
        reached = max(reached, end)
    return total


def _foreign_row(alerts: Sequence[ExternalAlert]) -> ExternalAlertRow:
    first = min(alerts, key=lambda alert: alert.started_at)
    return ExternalAlertRow(
        name=first.name,
        times=len(alerts),
        started_at=first.started_at,
        ended_at=_last_end(alerts),
        text=first.diagnosis.sentence if first.diagnosis else first.summary,
    )


def restarts(past: TierPast) -> tuple[RestartRow, ...]:
    """Return the restarts by replica, most frequent first. Restarts without an event come last."""
    # A page shows both a restart and its start, so both have the same time.
    starts = [start for start in map(parse_start_event, past.events) if start is not None]
    silent = {(s.replica, s.seen_at): s.seen_at - s.alive_at for s in starts if s.alive_at is not None}
    events = [event for event in past.events if event.kind == TimelineKind.RESTART]
    rows = []
    for name, group in group_by(events, lambda event: event.replica or "").items():
        times = [event.t for event in group]
        timed = [silent[name, t] for t in times if (name, t) in silent]
        rows.append(
            RestartRow(
                replica=name,
                times=len(times),
                first=min(times),
                last=max(times),
                unseen_seconds=math.fsum(timed),
                untimed=len(times) - len(timed),
            )
        )
    rows.sort(key=lambda row: (-row.times, row.replica))
    total = past.resize.seen.total
    counted = round(total.counters.get("restarts", 0.0)) if total is not None else 0
    more = counted - sum(row.times for row in rows)
    if more > 0:
        rows.append(RestartRow(replica="", times=more, first=None, last=None, unseen_seconds=0.0, untimed=more))
    return tuple(rows)


def restart_line(rows: Sequence[RestartRow]) -> str:
    """Return the number of restarts and their unseen time, "" without restarts."""
    if not rows:
        return ""
    times, untimed = sum(row.times for row in rows), sum(row.untimed for row in rows)
    text = f"Engines restarted {'once' if times == 1 else f'{times:,} times'}"
    if untimed == times:
        return f"{text}; for how long nothing was seen around that is not known."
    unseen = format_duration(math.fsum(row.unseen_seconds for row in rows))
    unknown = f" at least, for {untimed:,} of them it is not known" if untimed else ""
    return f"{text}; nothing was seen around that for {unseen}{unknown}."
