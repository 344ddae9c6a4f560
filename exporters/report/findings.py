"""Findings of a tier with the foreign alerts that they explain, and engine restarts, as records and text.

A finding that comes and goes is a single row with a count. The texts serve report.md and report.html. Gaps are in
`exporters.report.data_quality`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from exporters.render.text import format_duration, format_local
from exporters.report.inputs import TierPast
from exporters.report.period_records import (
    ExternalAlertRow,
    ReportFinding,
    ReportIncident,
    RestartRow,
    StageRow,
    SymptomRow,
)
from exporters.report.records import TierReport, row_from
from exporters.report.wording import instant, money
from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.incidents import Incident, describe_missed, group_incidents
from rules.evaluator.timeline import SEVERITY_WORDS, TimelineEvent, TimelineKind, parse_start_event
from rules.replicas.cascade import STAGES
from rules.verdicts.finding import Finding, UnknownSpan
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import SEVERITY, Status

SEVERAL = 3
"""Number of findings of a rule above which they share a row: first per replica, then over all replicas."""


def list_findings(past: TierPast) -> tuple[ReportFinding, ...]:
    """Return the findings of alerting rules, oldest first, each with the foreign alerts that it explains."""
    by_rule: dict[str, dict[str | None, list[Finding]]] = {}
    for finding in _loud(past):
        by_rule.setdefault(finding.rule, {}).setdefault(finding.subject.replica, []).append(finding)
    groups = [group for mapping in by_rule.values() for group in _groups(tuple(mapping.values()))]
    until = past.resize.seen.until
    findings = [_incident(group, past.foreign, past.resize.seen.since, until) for group in groups]
    return tuple(
        sorted(
            findings,
            key=lambda report_finding: (report_finding.started_at, report_finding.rule, report_finding.replica or ""),
        )
    )


def list_incidents(past: TierPast) -> tuple[ReportIncident, ...]:
    """Return the incidents with a certain finding or one of an alerting rule, oldest first."""
    loud = {id(finding) for finding in _loud(past)}
    incidents = group_incidents(past.findings, now=past.resize.seen.until)
    return tuple(
        _report_incident(incident)
        for incident in incidents
        if any(id(finding) in loud or finding.worst.certainty is Certainty.CERTAIN for finding in incident.findings)
    )


def _report_incident(incident: Incident) -> ReportIncident:
    missed, idle = incident.missed, incident.idle
    return row_from(
        ReportIncident,
        incident,
        root=incident.root.rule,
        title=_title(incident.root.rule),
        severity=incident.severity.value,
        symptoms=tuple(
            SymptomRow(rule=rule, title=_title(rule), times=len(findings), started_at=findings[0].started_at)
            for rule, findings in incident.symptoms.items()
        ),
        missed=describe_missed(missed),
        missed_share=missed.share.value if missed is not None else None,
        requests=missed.share.n if missed is not None else None,
        replicas=incident.replicas,
        idle_replicas=idle.replicas if idle is not None else None,
        idle_cost_per_day=idle.cost_per_day if idle is not None else None,
    )


def _title(rule: str) -> str:
    return RULES[rule].title if rule in RULES else rule


MOST_SYMPTOMS = 5
"""Maximum number of symptoms named in a line. report.json lists all."""


def incident_line(incident: ReportIncident, zone: str, currency: str) -> str:
    """Return an incident in a line: how loud, when, its sentence, symptoms with their begin, idle money and action."""
    text = f"{SEVERITY_WORDS[Severity(incident.severity)]}, {_when(incident, zone)}: {incident.sentence}."
    named = [
        f"{row.title} ({format_local(row.started_at, zone, '%d %b %H:%M')})"
        for row in incident.symptoms[:MOST_SYMPTOMS]
    ]
    more = len(incident.symptoms) - len(named)
    named += [f"{more} more"] if more else []
    text += f" Symptoms: {', '.join(named)}." if named else ""
    if incident.idle_replicas is not None:
        text += f" {incident.idle_replicas:.1f} replicas idle"
        text += (
            f", {money(incident.idle_cost_per_day, currency)} a day." if incident.idle_cost_per_day is not None else "."
        )
    return f"{text} Do: {incident.action}." if incident.action else text


def loud_incidents(tier: TierReport, zone: str) -> str:
    """Return the incidents that page or make a ticket in a line, "" without such incidents."""
    loud = [incident for incident in tier.grouped_incidents if incident.severity != Severity.REPORT]
    text = "; ".join(
        f"{incident.title} ({SEVERITY_WORDS[Severity(incident.severity)]}, {_when(incident, zone)})"
        for incident in loud[:3]
    )
    return f"Incidents: {text}{f'; {len(loud) - 3} more' if len(loud) > 3 else ''}." if text else ""


def _when(candidate: ReportIncident | ReportFinding, zone: str) -> str:
    """Return the begin and the duration."""
    lasted = (
        "not over"
        if candidate.ended_at is None
        else f"for {format_duration(candidate.ended_at - candidate.started_at)}"
    )
    return f"{instant(candidate.started_at, zone)}, {lasted}"


def worst_titles(past: TierPast) -> tuple[str, ...]:
    """Return the titles of rules that were certainly critical, each once, in order of first begin."""
    sure = [
        finding
        for finding in _loud(past)
        if (finding.worst.status, finding.worst.certainty) == (Status.CRITICAL, Certainty.CERTAIN)
    ]
    return tuple(dict.fromkeys(RULES[finding.rule].title for finding in sure))


def _loud(past: TierPast) -> list[Finding]:
    loud = [
        finding
        for finding in past.findings
        if finding.rule in RULES and RULES[finding.rule].severity is not Severity.REPORT
    ]
    return sorted(loud, key=lambda finding: finding.started_at)


def _groups(by_replica: Sequence[list[Finding]]) -> Iterator[list[Finding]]:
    """Yield the findings of a rule in groups. Each group is a row."""
    lines = [
        part for group in by_replica for part in ([group] if len(group) > SEVERAL else [[finding] for finding in group])
    ]
    if len(lines) > SEVERAL:
        lines = [[finding for group in by_replica for finding in group]]
    yield from lines


def _incident(group: Sequence[Finding], foreign: Iterable[ExternalAlert], since: float, until: float) -> ReportFinding:
    ordered = sorted(group, key=lambda finding: finding.started_at)
    worst = max(ordered, key=_badness)
    told_findings = {(finding.rule, finding.subject, finding.started_at) for finding in ordered}
    tied = [a for a in foreign if (d := a.diagnosis) is not None and (d.rule, d.subject, d.began_at) in told_findings]
    return ReportFinding(
        rule=worst.rule,
        title=RULES[worst.rule].title,
        replica=worst.subject.replica,
        replicas=len({finding.subject.replica for finding in ordered} - {None}),
        status=worst.worst.status.value,
        certainty=worst.worst.certainty.value,
        times=len(ordered),
        seconds=total_duration(ordered, since, until),
        started_at=ordered[0].started_at,
        ended_at=None
        if any(finding.ended_at is None for finding in ordered)
        else max(finding.ended_at or 0.0 for finding in ordered),
        last_started_at=ordered[-1].started_at,
        worst_at=worst.started_at,
        sentence=worst.worst.sentence_with_suspect(),
        stages=tuple(StageRow(t=step.t, status=step.status.value, stage=step.stage) for step in worst.transitions),
        foreign=_foreign(tied),
    )


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


def _foreign(tied: Sequence[ExternalAlert]) -> tuple[ExternalAlertRow, ...]:
    """Return the alerts, with several alerts of a name in a single row."""
    by_name: dict[str, list[ExternalAlert]] = {}
    for alert in tied:
        by_name.setdefault(alert.name, []).append(alert)
    parts = [part for group in by_name.values() for part in ([group] if len(group) > SEVERAL else [[a] for a in group])]
    return tuple(sorted(map(_foreign_row, parts), key=lambda row: row.started_at))


def _foreign_row(alerts: Sequence[ExternalAlert]) -> ExternalAlertRow:
    first = min(alerts, key=lambda alert: alert.started_at)
    over = [alert.ended_at for alert in alerts if alert.ended_at is not None]
    return ExternalAlertRow(
        name=first.name,
        times=len(alerts),
        started_at=first.started_at,
        ended_at=max(over) if len(over) == len(alerts) else None,
        text=first.diagnosis.sentence if first.diagnosis else first.summary,
    )


def restarts(past: TierPast) -> tuple[RestartRow, ...]:
    """Return the restarts by replica, most frequent first. Restarts without an event come last."""
    silent = _silences(past.events)
    by_replica: dict[str, list[TimelineEvent]] = {}
    for event in past.events:
        if event.kind == TimelineKind.RESTART:
            by_replica.setdefault(event.replica or "", []).append(event)
    rows = [_restart_row(name, events, silent) for name, events in by_replica.items()]
    rows.sort(key=lambda row: (-row.times, row.replica))
    total = past.resize.seen.total
    counted = round(total.counters.get("restarts", 0.0)) if total is not None else 0
    more = counted - sum(row.times for row in rows)
    if more > 0:
        rows.append(RestartRow(replica="", times=more, first=None, last=None, unseen_seconds=0.0, untimed=more))
    return tuple(rows)


def _silences(events: Iterable[TimelineEvent]) -> dict[tuple[str, float], float]:
    """Return the unseen seconds before the first page of each new process, by replica and time of that page."""
    mapping: dict[tuple[str, float], float] = {}
    for event in events:
        start = parse_start_event(event)
        if start is not None and start.alive_at is not None:
            mapping[start.replica, start.seen_at] = start.seen_at - start.alive_at
    return mapping


def _restart_row(name: str, events: Sequence[TimelineEvent], silent: Mapping[tuple[str, float], float]) -> RestartRow:
    # A page shows both a restart and its start, so both have the same time.
    timed = [silent[name, event.t] for event in events if (name, event.t) in silent]
    return RestartRow(
        replica=name,
        times=len(events),
        first=min(event.t for event in events),
        last=max(event.t for event in events),
        unseen_seconds=math.fsum(timed),
        untimed=len(events) - len(timed),
    )


MOST_RESTARTED = 10
"""Maximum number of replicas named with their restarts. report.json lists all replicas."""


def affected_replicas(finding: ReportFinding) -> str:
    """Return the replicas of a finding, "" for the whole tier."""
    if finding.replica is None:
        return ""
    return (
        f"on {finding.replica}"
        if finding.replicas < 2
        else f"on {finding.replicas} replicas, worst on {finding.replica}"
    )


def period_text(finding: ReportFinding, zone: str) -> str:
    """Return begin and duration. For several findings return count, total duration, first and last."""
    if finding.times == 1:
        return _when(finding, zone)
    text = (
        f"{finding.times:,} times, {format_duration(finding.seconds)} in all; first {instant(finding.started_at, zone)}"
    )
    text += f", last {instant(finding.last_started_at, zone)}"
    return f"{text}, not over" if finding.ended_at is None else text


def finding_text(finding: ReportFinding, zone: str) -> str:
    """Return the sentence of the finding. For several findings return the worst with its time."""
    return f"At its worst{'' if finding.times == 1 else f', {instant(finding.worst_at, zone)}'}: {finding.sentence}"


def stage_lines(finding: ReportFinding, zone: str) -> list[str]:
    """Return when a cascade reached each stage, to the second. Stages may follow each other within a minute."""
    lines: list[str] = []
    worst = 0
    for step in finding.stages:
        if step.stage is not None and step.stage > worst:
            worst = step.stage
            name = STAGES[step.stage]
            lines.append(f"{format_local(step.t, zone, '%a %d %b %H:%M:%S %Z')}: stage {worst}, {name}")
    return lines


def foreign_line(alert: ExternalAlertRow, zone: str) -> str:
    """Return the line of a foreign alert that the finding explains."""
    often = "" if alert.times == 1 else f", {alert.times:,} times"
    return f"{instant(alert.started_at, zone)}: alert {alert.name}{often}{f': {alert.text}' if alert.text else ''}"


def restart_lines(tier: TierReport, zone: str) -> list[str]:
    """Return a line for each restarted replica. The replicas beyond the maximum share a line."""
    named = [row for row in tier.restarts if row.replica]
    lines = [_restarts(row, zone) for row in named[:MOST_RESTARTED]]
    rows = named[MOST_RESTARTED:]
    if rows:
        lines.append(f"{len(rows)} replicas more: {_times(rows)}; {_unseen(rows)}")
    lines += [f"{_times([row])} more, of which only the number is known" for row in tier.restarts if not row.replica]
    return lines


def restarts_in_all(tier: TierReport) -> str:
    """Return the number of restarts and their unseen time, "" without restarts."""
    if not tier.restarts:
        return ""
    times = sum(row.times for row in tier.restarts)
    return f"Engines restarted {'once' if times == 1 else f'{times:,} times'}; around that {_unseen(tier.restarts)}."


def _restarts(row: RestartRow, zone: str) -> str:
    first, last = (instant(t or 0.0, zone) for t in (row.first, row.last))
    at = first if row.times == 1 else f"first {first}, last {last}"
    return f"{row.replica}: {_times([row])}, {at}; {_unseen([row])}"


def _times(rows: Sequence[RestartRow]) -> str:
    times = sum(row.times for row in rows)
    return "1 restart" if times == 1 else f"{times:,} restarts"


def _unseen(rows: Sequence[RestartRow]) -> str:
    """Return the unseen time, and the number of restarts whose unseen time is unknown."""
    times, untimed = sum(row.times for row in rows), sum(row.untimed for row in rows)
    if untimed == times:
        return (
            "how long nothing was seen of it is not known" if times == 1 else "how long nothing was seen is not known"
        )
    text = f"nothing was seen of it for {format_duration(math.fsum(row.unseen_seconds for row in rows))}"
    text += " in all" if times > 1 else ""
    return f"{text}, {untimed} of them not counted in that" if untimed else text
