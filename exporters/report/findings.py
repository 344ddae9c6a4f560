"""What happened to a tier: incidents with the alerts of others that they explain, and restarts of its engines.

Owns what becomes one line. A finding that comes and goes is one incident with a count, however often its rule said ok in between;
rules and history stay as they are. What was not known is `exporters.report.data_quality`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from exporters.report.inputs import TierPast
from exporters.report.period_records import ExternalAlertRow, ReportFinding, RestartRow, StageRow
from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.timeline import TimelineEvent, TimelineKind, parse_start_event
from rules.verdicts.finding import Finding
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import SEVERITY, Status

SEVERAL = 3
"""More episodes of one rule stand in one line: on one replica, and where that leaves more lines, on all of them."""


def list_findings(past: TierPast) -> tuple[ReportFinding, ...]:
    """The episodes of rules that send alerts, the oldest first, each with the foreign alerts that it explains."""
    by_rule: dict[str, dict[str | None, list[Finding]]] = {}
    for one in _loud(past):
        by_rule.setdefault(one.rule, {}).setdefault(one.subject.replica, []).append(one)
    groups = [group for several in by_rule.values() for group in _groups(tuple(several.values()))]
    until = past.resize.seen.until
    found = [_incident(group, past.foreign, past.resize.seen.since, until) for group in groups]
    return tuple(sorted(found, key=lambda one: (one.started_at, one.rule, one.replica or "")))


def worst_titles(past: TierPast) -> tuple[str, ...]:
    """What was surely critical in this time, each rule once, in the order of its first begin."""
    sure = [
        one for one in _loud(past) if (one.worst.status, one.worst.certainty) == (Status.CRITICAL, Certainty.CERTAIN)
    ]
    return tuple(dict.fromkeys(RULES[one.rule].title for one in sure))


def _loud(past: TierPast) -> list[Finding]:
    loud = [one for one in past.episodes if one.rule in RULES and RULES[one.rule].loudness is not Severity.REPORT]
    return sorted(loud, key=lambda one: one.started_at)


def _groups(by_replica: Sequence[list[Finding]]) -> Iterator[list[Finding]]:
    """The episodes of one rule, those together that are one line."""
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
        sentence=worst.worst.sentence,
        stages=tuple(StageRow(t=step.t, status=step.status.value, stage=step.stage) for step in worst.transitions),
        foreign=_foreign(tied),
    )


def _badness(one: Finding) -> tuple[int, bool, int]:
    worst = one.worst
    return SEVERITY[worst.status], worst.certainty is Certainty.CERTAIN, worst.stage or 0


def total_duration(episodes: Iterable[Finding], since: float, until: float) -> float:
    """The seconds of the time in which any of them lasted: two at once, on two replicas or of two rules, count once."""
    total, reached = 0.0, since
    for one in sorted(episodes, key=lambda one: one.started_at):
        end = until if one.ended_at is None else min(one.ended_at, until)
        total += max(0.0, end - max(one.started_at, reached))
        reached = max(reached, end)
    return total


def _foreign(tied: Sequence[ExternalAlert]) -> tuple[ExternalAlertRow, ...]:
    """Each alert, those of one name in one row where they are several."""
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
    """Which replicas' engines restarted, the most often first; last, those that sums tell of and no event."""
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
    """How long nothing was seen of a replica before the first page of its new process, by that page's instant."""
    found: dict[tuple[str, float], float] = {}
    for one in events:
        start = parse_start_event(one)
        if start is not None and start.alive_at is not None:
            found[start.replica, start.seen_at] = start.seen_at - start.alive_at
    return found


def _restart_row(name: str, several: Sequence[TimelineEvent], silent: Mapping[tuple[str, float], float]) -> RestartRow:
    # One page tells a restart and the start that belongs to it, so they are of the same instant.
    timed = [silent[name, one.t] for one in several if (name, one.t) in silent]
    return RestartRow(
        replica=name,
        times=len(several),
        first=min(one.t for one in several),
        last=max(one.t for one in several),
        unseen_seconds=math.fsum(timed),
        untimed=len(several) - len(timed),
    )
