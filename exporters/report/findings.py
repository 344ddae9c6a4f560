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
from rules.evaluator.timeline import LOUDNESS_WORDS, TimelineEvent, TimelineKind, parse_start_event
from rules.replicas.cascade import STAGES
from rules.verdicts.finding import Finding, UnknownSpan
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import SEVERITY, Status

SEVERAL = 3
"""Number of findings of a rule above which they share a row: first per replica, then over all replicas."""


def list_findings(past: TierPast) -> tuple[ReportFinding, ...]:
    """Return the findings of alerting rules, oldest first, each with the foreign alerts that it explains."""
    by_rule: dict[str, dict[str | None, list[Finding]]] = {}
    for one in _loud(past):
        by_rule.setdefault(one.rule, {}).setdefault(one.subject.replica, []).append(one)
    groups = [group for several in by_rule.values() for group in _groups(tuple(several.values()))]
    until = past.resize.seen.until
    found = [_incident(group, past.foreign, past.resize.seen.since, until) for group in groups]
    return tuple(sorted(found, key=lambda one: (one.started_at, one.rule, one.replica or "")))


def list_incidents(past: TierPast) -> tuple[ReportIncident, ...]:
    """Return the incidents with a certain finding or one of an alerting rule, oldest first."""
    loud = {id(one) for one in _loud(past)}
    found = group_incidents(past.findings, now=past.resize.seen.until)
    return tuple(
        _report_incident(one)
        for one in found
        if any(id(finding) in loud or finding.worst.certainty is Certainty.CERTAIN for finding in one.findings)
    )


def _report_incident(one: Incident) -> ReportIncident:
    missed, idle = one.missed, one.idle
    return row_from(
        ReportIncident,
        one,
        root=one.root.rule,
        title=_title(one.root.rule),
        severity=one.severity.value,
        symptoms=tuple(
            SymptomRow(rule=rule, title=_title(rule), times=len(several), started_at=several[0].started_at)
            for rule, several in one.symptoms.items()
        ),
        missed=describe_missed(missed),
        missed_share=missed.share.value if missed is not None else None,
        requests=missed.share.n if missed is not None else None,
        replicas=one.replicas,
        idle_replicas=idle.replicas if idle is not None else None,
        idle_cost_per_day=idle.cost_per_day if idle is not None else None,
    )


def _title(rule: str) -> str:
    return RULES[rule].title if rule in RULES else rule


MOST_SYMPTOMS = 5
"""Maximum number of symptoms named in a line. report.json lists all."""


def incident_line(one: ReportIncident, zone: str, currency: str) -> str:
    """Return an incident in a line: how loud, when, its sentence, symptoms with their begin, idle money and action."""
    text = f"{LOUDNESS_WORDS[Severity(one.severity)]}, {_when(one, zone)}: {one.sentence}."
    named = [
        f"{row.title} ({format_local(row.started_at, zone, '%d %b %H:%M')})" for row in one.symptoms[:MOST_SYMPTOMS]
    ]
    more = len(one.symptoms) - len(named)
    named += [f"{more} more"] if more else []
    text += f" Symptoms: {', '.join(named)}." if named else ""
    if one.idle_replicas is not None:
        text += f" {one.idle_replicas:.1f} replicas idle"
        text += f", {money(one.idle_cost_per_day, currency)} a day." if one.idle_cost_per_day is not None else "."
    return f"{text} Do: {one.action}." if one.action else text


def loud_incidents(tier: TierReport, zone: str) -> str:
    """Return the incidents that page or make a ticket in a line, "" without such incidents."""
    loud = [one for one in tier.grouped_incidents if one.severity != Severity.REPORT]
    said = "; ".join(f"{one.title} ({LOUDNESS_WORDS[Severity(one.severity)]}, {_when(one, zone)})" for one in loud[:3])
    return f"Incidents: {said}{f'; {len(loud) - 3} more' if len(loud) > 3 else ''}." if said else ""


def _when(one: ReportIncident | ReportFinding, zone: str) -> str:
    """Return the begin and the duration."""
    lasted = "not over" if one.ended_at is None else f"for {format_duration(one.ended_at - one.started_at)}"
    return f"{instant(one.started_at, zone)}, {lasted}"


def worst_titles(past: TierPast) -> tuple[str, ...]:
    """Return the titles of rules that were certainly critical, each once, in order of first begin."""
    sure = [
        one for one in _loud(past) if (one.worst.status, one.worst.certainty) == (Status.CRITICAL, Certainty.CERTAIN)
    ]
    return tuple(dict.fromkeys(RULES[one.rule].title for one in sure))


def _loud(past: TierPast) -> list[Finding]:
    loud = [one for one in past.findings if one.rule in RULES and RULES[one.rule].loudness is not Severity.REPORT]
    return sorted(loud, key=lambda one: one.started_at)


def _groups(by_replica: Sequence[list[Finding]]) -> Iterator[list[Finding]]:
    """Yield the findings of a rule in groups. Each group is a row."""
    lines = [part for group in by_replica for part in ([group] if len(group) > SEVERAL else [[one] for one in group])]
    if len(lines) > SEVERAL:
        lines = [[one for group in by_replica for one in group]]
    yield from lines


def _incident(group: Sequence[Finding], foreign: Iterable[ExternalAlert], since: float, until: float) -> ReportFinding:
    ordered = sorted(group, key=lambda one: one.started_at)
    worst = max(ordered, key=_badness)
    told = {(one.rule, one.subject, one.started_at) for one in ordered}
    tied = [a for a in foreign if (d := a.diagnosis) is not None and (d.rule, d.subject, d.began_at) in told]
    return ReportFinding(
        rule=worst.rule,
        title=RULES[worst.rule].title,
        replica=worst.subject.replica,
        replicas=len({one.subject.replica for one in ordered} - {None}),
        status=worst.worst.status.value,
        certainty=worst.worst.certainty.value,
        times=len(ordered),
        seconds=total_duration(ordered, since, until),
        started_at=ordered[0].started_at,
        ended_at=None if any(one.ended_at is None for one in ordered) else max(one.ended_at or 0.0 for one in ordered),
        last_started_at=ordered[-1].started_at,
        worst_at=worst.started_at,
        sentence=worst.worst.sentence_with_suspect(),
        stages=tuple(StageRow(t=step.t, status=step.status.value, stage=step.stage) for step in worst.transitions),
        foreign=_foreign(tied),
    )


def _badness(one: Finding) -> tuple[int, bool, int]:
    worst = one.worst
    return SEVERITY[worst.status], worst.certainty is Certainty.CERTAIN, worst.stage or 0


def total_duration(spans: Iterable[Finding | UnknownSpan], since: float, until: float) -> float:
    """Return the seconds of the period in which any finding or unknown span lasted. Overlapping ones count once."""
    total, reached = 0.0, since
    for one in sorted(spans, key=lambda one: one.started_at):
        end = until if one.ended_at is None else min(one.ended_at, until)
        total += max(0.0, end - max(one.started_at, reached))
        reached = max(reached, end)
    return total


def _foreign(tied: Sequence[ExternalAlert]) -> tuple[ExternalAlertRow, ...]:
    """Return the alerts, with several alerts of a name in a single row."""
    by_name: dict[str, list[ExternalAlert]] = {}
    for one in tied:
        by_name.setdefault(one.name, []).append(one)
    parts = [part for group in by_name.values() for part in ([group] if len(group) > SEVERAL else [[a] for a in group])]
    return tuple(sorted(map(_foreign_row, parts), key=lambda row: row.started_at))


def _foreign_row(several: Sequence[ExternalAlert]) -> ExternalAlertRow:
    first = min(several, key=lambda one: one.started_at)
    over = [one.ended_at for one in several if one.ended_at is not None]
    return ExternalAlertRow(
        name=first.name,
        times=len(several),
        started_at=first.started_at,
        ended_at=max(over) if len(over) == len(several) else None,
        text=first.diagnosis.sentence if first.diagnosis else first.summary,
    )


def restarts(past: TierPast) -> tuple[RestartRow, ...]:
    """Return the restarts by replica, most frequent first. Restarts without an event come last."""
    silent = _silences(past.events)
    by_replica: dict[str, list[TimelineEvent]] = {}
    for one in past.events:
        if one.kind == TimelineKind.RESTART:
            by_replica.setdefault(one.replica or "", []).append(one)
    rows = [_restart_row(name, several, silent) for name, several in by_replica.items()]
    rows.sort(key=lambda row: (-row.times, row.replica))
    total = past.resize.seen.total
    counted = round(total.counters.get("restarts", 0.0)) if total is not None else 0
    more = counted - sum(row.times for row in rows)
    if more > 0:
        rows.append(RestartRow(replica="", times=more, first=None, last=None, unseen_seconds=0.0, untimed=more))
    return tuple(rows)


def _silences(events: Iterable[TimelineEvent]) -> dict[tuple[str, float], float]:
    """Return the unseen seconds before the first page of each new process, by replica and time of that page."""
    found: dict[tuple[str, float], float] = {}
    for one in events:
        start = parse_start_event(one)
        if start is not None and start.alive_at is not None:
            found[start.replica, start.seen_at] = start.seen_at - start.alive_at
    return found


def _restart_row(name: str, several: Sequence[TimelineEvent], silent: Mapping[tuple[str, float], float]) -> RestartRow:
    # A page shows both a restart and its start, so both have the same time.
    timed = [silent[name, one.t] for one in several if (name, one.t) in silent]
    return RestartRow(
        replica=name,
        times=len(several),
        first=min(one.t for one in several),
        last=max(one.t for one in several),
        unseen_seconds=math.fsum(timed),
        untimed=len(several) - len(timed),
    )


MOST_RESTARTED = 10
"""Maximum number of replicas named with their restarts. report.json lists all replicas."""


def affected_replicas(one: ReportFinding) -> str:
    """Return the replicas of a finding, "" for the whole tier."""
    if one.replica is None:
        return ""
    return f"on {one.replica}" if one.replicas < 2 else f"on {one.replicas} replicas, worst on {one.replica}"


def period_text(one: ReportFinding, zone: str) -> str:
    """Return begin and duration. For several findings return count, total duration, first and last."""
    if one.times == 1:
        return _when(one, zone)
    text = f"{one.times:,} times, {format_duration(one.seconds)} in all; first {instant(one.started_at, zone)}"
    text += f", last {instant(one.last_started_at, zone)}"
    return f"{text}, not over" if one.ended_at is None else text


def finding_text(one: ReportFinding, zone: str) -> str:
    """Return the sentence of the finding. For several findings return the worst with its time."""
    return f"At its worst{'' if one.times == 1 else f', {instant(one.worst_at, zone)}'}: {one.sentence}"


def stage_lines(one: ReportFinding, zone: str) -> list[str]:
    """Return when a cascade reached each stage, to the second. Stages may follow each other within a minute."""
    lines: list[str] = []
    worst = 0
    for step in one.stages:
        if step.stage is not None and step.stage > worst:
            worst = step.stage
            name = STAGES[step.stage]
            lines.append(f"{format_local(step.t, zone, '%a %d %b %H:%M:%S %Z')}: stage {worst}, {name}")
    return lines


def foreign_line(one: ExternalAlertRow, zone: str) -> str:
    """Return the line of a foreign alert that the finding explains."""
    often = "" if one.times == 1 else f", {one.times:,} times"
    return f"{instant(one.started_at, zone)}: alert {one.name}{often}{f': {one.text}' if one.text else ''}"


def restart_lines(tier: TierReport, zone: str) -> list[str]:
    """Return a line for each restarted replica. The replicas beyond the maximum share a line."""
    named = [row for row in tier.restarts if row.replica]
    lines = [_restarts(row, zone) for row in named[:MOST_RESTARTED]]
    others = named[MOST_RESTARTED:]
    if others:
        lines.append(f"{len(others)} replicas more: {_times(others)}; {_unseen(others)}")
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
