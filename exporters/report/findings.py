"""Inputs of the report, and a tier's incidents, findings, restarts, gaps and remarks, as rows and lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from exporters.documents.forecast import PrewarmValue, Strategy
from exporters.render.text import copy_fields, format_local, instant, money, rule_title, seen_words
from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.evaluator.benchmark_check import Step13
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.incidents import group_incidents
from rules.evaluator.timeline import SEVERITY_WORDS, TimelineEvent, TimelineKind, join_releases, parse_start_event
from rules.methods.evidence import join_names
from rules.plan.schema import Plan, plan_version
from rules.replicas.cascade import STAGES
from rules.resize.production_summary import RECENT_SECONDS, ProductionSummary
from rules.resize.proposal import Resize
from rules.telemetry.windows import HOUR_SECONDS, Window, group_by
from rules.telemetry.wording import format_count, format_duration
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, IdleReplicas, MissedObjective, RuleResult, Status, UnknownSpan, rank_verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarming:
    """Effect of pre-warming on a tier. `worth` compares strategies over the tier's history. `covered_ratio` is the
    share of targets at or below the 95 % quantile. `error_ratio` is relative to the error of the method `naive`. None
    means unknown. `decision` is the recommendation in words. `saved` is what the best strategy without a forecast
    needed more. `missing` is why nothing is known, `failed` why the forecast was no better than none.
    """

    worth: PrewarmValue | None = None
    decision: str = ""
    method: str = ""
    naive: str = ""
    covered_ratio: float | None = None
    error_ratio: float | None = None
    forecasts: int = 0
    saved: Strategy | None = None
    missing: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPast:
    """Tier over the report's period. `results` are rule results over the whole period. `before` summarises an equal
    period before it (None: no data). `no_prewarming` is the reason if pre-warming is absent.
    """

    resize: Resize
    step13: Step13
    results: tuple[RuleResult, ...]
    before: Window | None = None
    findings: tuple[Finding, ...] = ()
    unknowns: tuple[UnknownSpan, ...] = ()
    foreign: tuple[ExternalAlert, ...] = ()
    events: tuple[TimelineEvent, ...] = ()
    prewarming: Prewarming | None = None
    no_prewarming: str = "forecasting is not configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInputs:
    """Inputs of the whole report, tiers in plan order. `remarks` are about the installation."""

    made_at: float
    since: float
    until: float
    zone: str
    version: str
    tiers: tuple[TierPast, ...]
    plan: Plan | None = None
    remarks: tuple[str, ...] = ()
    simulated: bool = False


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
    """Engine restarts of a replica ("" if only their number is known). `unseen_seconds` is the total between
    the pages of old and new processes, without `untimed` restarts."""

    replica: str
    times: int
    first: float | None
    last: float | None
    unseen_seconds: float
    untimed: int


def list_findings(past: TierPast) -> tuple[FindingRow, ...]:
    """Return the findings of alerting rules, oldest first, each with the foreign alerts that it explains."""
    rows = []
    for findings in group_by(list_alerting(past), lambda finding: finding.rule).values():
        worst = max(findings, key=lambda finding: rank_verdict(finding.worst))
        rows.append(
            FindingRow(
                rule=worst.rule,
                replicas=len({finding.subject.replica for finding in findings} - {None}),
                times=len(findings),
                seconds=total_duration(findings, past.resize.seen),
                started_at=findings[0].started_at,
                ended_at=_last_end(findings),
                last_started_at=findings[-1].started_at,
                worst=worst,
                foreign=tuple(_explained(findings, past.foreign)),
            )
        )
    return tuple(rows)


def _explained(findings: Iterable[Finding], foreign: Iterable[ExternalAlert]) -> Iterator[ExternalAlertRow]:
    known = {(finding.rule, finding.subject, finding.started_at) for finding in findings}
    tied = [a for a in foreign if (d := a.diagnosis) is not None and (d.rule, d.subject, d.began_at) in known]
    for name, alerts in group_by(sorted(tied, key=lambda alert: alert.started_at), lambda alert: alert.name).items():
        begin, text = alerts[0].started_at, alerts[0].diagnosis.sentence if alerts[0].diagnosis else ""
        yield ExternalAlertRow(name=name, times=len(alerts), started_at=begin, ended_at=_last_end(alerts), text=text)


def list_incidents(past: TierPast, zone: str) -> tuple[IncidentRow, ...]:
    """Return the incidents with a certain finding or one of an alerting rule, oldest first."""
    loud = set(map(id, list_alerting(past)))
    rows = []
    for incident in group_incidents(past.findings, now=past.resize.seen.until, zone=zone):
        if any(id(each) in loud or each.worst.certainty is Certainty.CERTAIN for each in incident.findings):
            symptoms = []
            for rule, findings in incident.symptoms.items():
                symptoms.append(SymptomRow(rule=rule, times=len(findings), started_at=findings[0].started_at))
            same = ("id", "severity", "started_at", "ended_at", "sentence", "action", "missed", "replicas", "idle")
            rows.append(IncidentRow(root=incident.root.rule, symptoms=tuple(symptoms), **copy_fields(incident, *same)))
    return tuple(rows)


def incident_lines(
    incidents: Iterable[IncidentRow], findings: Iterable[FindingRow], zone: str, currency: str
) -> Iterator[tuple[str, ...]]:
    """Yield the worst incident of each root, with the stages of a cascade and the alerts that its findings explain."""
    by_rule = {finding.rule: finding for finding in findings}
    for root, rows in group_by(incidents, lambda incident: incident.root).items():
        begin = by_rule[root].worst.started_at if root in by_rule else None
        worst = min(rows, key=lambda row: (list(Severity).index(row.severity), row.started_at != begin))
        below: list[str] = []
        for rule in dict.fromkeys((root, *(symptom.rule for row in rows for symptom in row.symptoms))):
            if rule in by_rule:
                below += _lines_below(by_rule[rule], zone)
        yield (f"{rule_title(root)}{_often(by_rule.get(root))}: {_incident_text(worst, zone, currency)}", *below)


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
    if incident.symptoms:
        text += f" Symptoms: {', '.join(rule_title(row.rule) for row in incident.symptoms)}."
    if incident.idle is not None and round(incident.idle.replicas, 1):
        cost = incident.idle.cost_per_day
        paid = "" if cost is None else f", {money(cost, currency)} a day"
        text += f" {incident.idle.replicas:.1f} replicas idle{paid}."
    return f"{text} Do: {incident.action}." if incident.action else text


def _lines_below(finding: FindingRow, zone: str) -> Iterator[str]:
    """Yield when a cascade reached each stage, to the second, and the explained alerts. Stages may share a minute."""
    worst = 0
    for step in finding.worst.transitions:
        if step.stage is not None and step.stage > worst:
            worst = step.stage
            yield f"{format_local(step.t, zone, '%a %d %b %H:%M:%S %Z')}: stage {worst}, {STAGES[worst]}"
    for alert in finding.foreign:
        often = format_count(alert.times, "time")
        yield f"{instant(alert.started_at, zone)}: alert {alert.name}, {often}: {alert.text}"


def list_alerting(past: TierPast) -> list[Finding]:
    loud = {rule.name for rule in RULES.values() if rule.severity is not Severity.REPORT}
    return sorted((row for row in past.findings if row.rule in loud), key=lambda row: row.started_at)


def _last_end(spans: Iterable[Finding | ExternalAlert]) -> float | None:
    ends = [math.inf if span.ended_at is None else span.ended_at for span in spans]
    return None if math.inf in ends else max(ends)


def worst_status(states: Iterable[str]) -> Status:
    """Return the worst status, ok before unknown."""
    known = set(states)
    return next((s for s in (Status.CRITICAL, Status.WARNING, Status.OK) if s.value in known), Status.UNKNOWN)


def total_duration(spans: Iterable[Finding | UnknownSpan], seen: ProductionSummary) -> float:
    """Return the seconds of the period in which any finding or unknown span lasted. Overlapping ones count once."""
    total, reached = 0.0, seen.since
    for span in sorted(spans, key=lambda candidate: candidate.started_at):
        end = seen.until if span.ended_at is None else min(span.ended_at, seen.until)
        total += max(0.0, end - max(span.started_at, reached))
        reached = max(reached, end)
    return total


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
        unseen, untimed = math.fsum(timed), len(times) - len(timed)
        span = {"first": min(times), "last": max(times)}
        rows.append(RestartRow(replica=name, times=len(times), **span, unseen_seconds=unseen, untimed=untimed))
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
    if untimed < times:
        unseen = format_duration(math.fsum(row.unseen_seconds for row in rows))
        text += f"; nothing was seen around that for {unseen}{' at least' if untimed else ''}"
    return f"{text}."


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPeriod:
    """Unknown period: subject, reason and total duration."""

    rule: str
    reason: str
    seconds: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataQuality:
    """Data quality: `hours_seen` of `hours`, weighted by coverage. `remarks` are about the whole period."""

    hours: float
    hours_seen: float
    coverage: float | None
    plan_versions: tuple[str, ...]
    remarks: tuple[str, ...]
    blind: tuple[UnknownPeriod, ...]


GONE = "Is it gone? Then take it out of the plan."

NEARLY = 0.98
"""Share of time from which a period counts as fully seen: scrapes are missed."""


def quality(past: TierPast, zone: str) -> DataQuality:
    """Return the gaps of the tier and their durations, longest first. Gaps of several replicas at one time count once."""
    seen = past.resize.seen
    blind = []
    for (rule, reason), spans in group_by(past.unknowns, lambda span: (span.rule, span.reason.value)).items():
        seconds = total_duration(spans, seen)
        if seconds > 0:
            blind.append(UnknownPeriod(rule=rule, reason=reason, seconds=seconds, text=spans[-1].text))
    return DataQuality(
        hours=(seen.until - seen.since) / HOUR_SECONDS,
        hours_seen=seen.observed_seconds / HOUR_SECONDS,
        coverage=seen.total.coverage if seen.total else None,
        plan_versions=seen.versions,
        remarks=tuple(sentence for _, sentence in list_remarks(past, zone) if sentence),
        blind=tuple(sorted(blind, key=lambda row: (-row.seconds, row.rule))),
    )


MOST_BLIND = 5
"""Maximum number of lines of unknown periods, longest first."""

MOST_NAMED = 6
"""Maximum number of rules that a line names."""


def blind_lines(part: DataQuality) -> Iterator[str]:
    """Yield the unknown periods: rules, duration and reason. The text, if present, replaces the gap's name."""
    periods = group_by(part.blind, lambda period: (period.seconds, period.text or period.reason.replace("_", " ")))
    for (seconds, why), rows in list(periods.items())[:MOST_BLIND]:
        rules = [row.rule for row in rows]
        yield f"{join_names(rules, MOST_NAMED)}: not judged for {format_duration(seconds)}: {why}"
    hidden = sum(map(len, list(periods.values())[MOST_BLIND:]))
    if hidden:
        yield f"and {hidden} more of shorter times, which report.json has"


def list_remarks(past: TierPast, zone: str) -> Iterator[tuple[str, str]]:
    """Yield what makes the period no usual one: in few words for the verdict, and in a sentence ("": none)."""
    seen, known_until = past.resize.seen, None
    if past.before is not None and past.before.covered_seconds > 0:
        known_until = past.before.end
    if not seen.hours:
        text = f"Nothing of this tier was seen from {instant(seen.since, zone)} to {instant(seen.until, zone)}"
        if known_until is not None:
            yield "", f"{text}; it was last seen at {instant(known_until, zone)}. {GONE}"
        else:
            yield "", f"{text}, nor in as long a time before. Was sizewatch running, and does the tier have targets?"
        return
    first, last = min(hour.start for hour in seen.hours), max(hour.end for hour in seen.hours)
    if seen.until - last > 2 * HOUR_SECONDS:
        yield f"not seen since {instant(last, zone)}", f"What is said of this tier ends when it was last seen. {GONE}"
    if first - seen.since > 2 * HOUR_SECONDS and known_until is None:
        yield f"new since {instant(first, zone)}", ""
    hours, known = (seen.until - seen.since) / HOUR_SECONDS, seen.observed_seconds / HOUR_SECONDS
    if known < NEARLY * hours:
        yield f"seen for {seen_words(known, hours)} only", ""
    yield from _changes(past, zone)
    # A week in which the clock was set back has an extra hour.
    if seen.until - seen.since > RECENT_SECONDS + HOUR_SECONDS:
        recent = "Lengths and the comparison with the benchmark are of the last 7 days, the curve is of the 7 days to"
        yield "", f"{recent} midnight (UTC), the rest is of the whole time."
    if seen.minutes == 0:
        yield "", "Arrivals are not in the history: peak and average are not known."


def _changes(past: TierPast, zone: str) -> Iterator[tuple[str, str]]:
    seen = past.resize.seen
    present = plan_version(seen.context.plan) if seen.context.plan else ""
    events = [event for event in past.events if seen.since <= event.t < seen.until]
    if set(seen.versions) - {present}:
        changed = seen.until
        text = "The present plan is newer than every hour seen: nothing was compared with its benchmark yet."
        if seen.plan_hours:
            plans = [event.t for event in events if event.kind == TimelineKind.PLAN]
            changed = [seen.plan_hours[0].start, *plans][-1]
            text = f"The plan changed on {instant(changed, zone)}: the comparison with the benchmark, the curve and"
            hours = format_count(len(seen.plan_hours), "hour")
            text += f" fleet utilisation rest on the {hours} since then; all else on the whole time."
        yield f"under another plan until {instant(changed, zone)}", text
    for event in join_releases(past.events):
        if event.kind == TimelineKind.RELEASE and seen.since <= event.t < seen.until:
            yield "", f"The engine's release changed on {instant(event.t, zone)}: {event.text}."
