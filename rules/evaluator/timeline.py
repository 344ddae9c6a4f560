"""Timeline: incidents, their findings, external alerts and events as entries in order of time.

`exporters.documents.replay` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from rules.catalogue.registry import BY_NAME
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.incidents import Incident
from rules.replicas import starts
from rules.replicas.starts import ReplicaStart
from rules.telemetry.wording import format_count
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, severity_of, severity_words

SEVERITY_WORDS: Mapping[Severity, str] = {Severity.PAGE: "page", Severity.TICKET: "ticket", Severity.REPORT: "note"}
"""Words for how loud an incident is."""


class TimelineKind(StrEnum):
    """Kind of an entry. The history stores the word; a word that was removed here is still read."""

    INCIDENT = "incident"
    EPISODE = "episode"
    FOREIGN_ALERT = "foreign_alert"
    RESTART = "restart"
    COLD_START = "cold_start"
    RELEASE = "release"
    PLAN = "plan"
    RELOAD = "reload"
    STEP13 = "step13"
    FORECAST = "forecast"
    START = "start"
    STOP = "stop"
    GONE = "gone"
    BACK_FILL = "back_fill"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """Event at unix seconds `t` that explains numbers: a restart, another plan, a reload, a step 13 result.

    `text` describes it. For a cold start it is the encoded start (`rules.replicas.starts`), which a restarted agent
    reads again; `list_entries` describes it.
    """

    t: float
    kind: str
    text: str
    tier: str | None = None
    replica: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """Line of the timeline. `lasts` says whether it has an end; `ended_at` is None until then.

    `rule` and `status` are a finding's, or the root and the severity of an incident, else empty. `incident` is the id of
    an incident, on its own entry and on those of its findings. Without a tier it concerns the whole installation.
    """

    t: float
    kind: str
    tier: str | None
    replica: str | None
    text: str
    lasts: bool = False
    ended_at: float | None = None
    rule: str = ""
    status: str = ""
    incident: str = ""


def list_entries(
    incidents: Iterable[Incident],
    foreign: Iterable[ExternalAlert],
    events: Iterable[TimelineEvent],
    since: float,
    tier: str | None = None,
) -> tuple[TimelineEntry, ...]:
    """Return what happened at or lasted beyond `since` (unix seconds), newest last.

    For one tier: entries of the tier, its replicas and the whole installation.
    """
    entries = [*_of_incidents(incidents), *map(_of_foreign, foreign), *map(_of_event, join_releases(events))]
    reaching = (e for e in entries if e.t >= since or (e.lasts and (e.ended_at is None or e.ended_at >= since)))
    kept = [e for e in reaching if tier is None or e.tier in (None, tier)]
    kept.sort(key=lambda e: (e.t, e.tier or "", e.kind != TimelineKind.INCIDENT, e.replica or "", e.text))
    return tuple(kept)


def _of_incidents(incidents: Iterable[Incident]) -> Iterator[TimelineEntry]:
    for incident in incidents:
        symptoms = f" ({format_count(len(incident.symptoms), 'symptom')})" if incident.symptoms else ""
        yield TimelineEntry(
            t=incident.started_at,
            kind=TimelineKind.INCIDENT,
            tier=incident.tier,
            replica=incident.root.subject.replica,
            text=f"{_titled(incident.root.rule, incident.sentence)}{symptoms}",
            lasts=True,
            ended_at=incident.ended_at,
            rule=incident.root.rule,
            status=SEVERITY_WORDS[incident.severity],
            incident=incident.id,
        )
        yield from (_of_episode(finding, incident.id) for finding in incident.findings)


def _titled(name: str, sentence: str) -> str:
    """Return a sentence behind the title of its rule, unless it begins with that."""
    title = BY_NAME[name].title if name in BY_NAME else name
    return sentence if sentence.startswith(title) else f"{title}: {sentence}"


def _of_episode(finding: Finding, incident: str) -> TimelineEntry:
    return TimelineEntry(
        t=finding.started_at,
        kind=TimelineKind.EPISODE,
        tier=finding.subject.tier,
        replica=finding.subject.replica,
        text=_titled(finding.rule, finding.worst.sentence_with_suspect()),
        lasts=True,
        ended_at=finding.ended_at,
        rule=finding.rule,
        status=severity_words(severity_of(finding.worst, finding)),
        incident=incident,
    )


def _of_foreign(alert: ExternalAlert) -> TimelineEntry:
    texts = [alert.diagnosis.sentence] if alert.diagnosis else []
    texts += [alert.summary] if alert.summary else []
    return TimelineEntry(
        t=alert.started_at,
        kind=TimelineKind.FOREIGN_ALERT,
        tier=alert.tier,
        replica=alert.replica,
        text=f"{alert.name}: {'; '.join(texts)}" if texts else alert.name,
        lasts=True,
        ended_at=alert.ended_at,
    )


def _of_event(event: TimelineEvent) -> TimelineEntry:
    started = parse_start_event(event)
    text = event.text if started is None else starts.describe_start(started)
    return TimelineEntry(t=event.t, kind=event.kind, tier=event.tier, replica=event.replica, text=text)


def join_releases(events: Iterable[TimelineEvent]) -> Iterator[TimelineEvent]:
    """Yield the events, with one for each change of a tier's release: its begin."""
    changes: dict[str | None, str] = {}
    for event in events:
        if event.kind != TimelineKind.RELEASE:
            yield event
        elif changes.get(event.tier) != event.text:
            changes[event.tier] = event.text
            yield replace(event, replica=None)


def start_event(tier: str, start: ReplicaStart) -> TimelineEvent:
    text = starts.START.dump_json(start, exclude_defaults=True).decode()
    return TimelineEvent(t=start.t, kind=TimelineKind.COLD_START, tier=tier, replica=start.replica, text=text)


def parse_start_event(event: TimelineEvent) -> ReplicaStart | None:
    """Return the start that an event stores. None for another kind, or a text of another release that cannot be read."""
    if event.kind != TimelineKind.COLD_START:
        return None
    try:
        return starts.START.validate_json(event.text)
    except ValueError:
        return None
