"""Alert payloads for Alertmanager's API v2 (`/api/v2/alerts`): labels, annotations and times.

An incident is one alert (`rules.evaluator.incident_alerts`). Labels match the rule files of
`exporters.prometheus_rules.alerts`, so that routes fit both. They identify an alert, so a changing value must never be a
label: it is an annotation. `agent.alerting` posts the payloads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from exporters.render.safe_text import replace_undecodable
from exporters.render.text import alert_name, runbook_url, tier_anchor
from rules.evaluator.alert_severity import RESOLVED_KEPT_SECONDS
from rules.evaluator.external_alerts import OURS, ExternalAlert
from rules.evaluator.incident_alerts import IncidentAlert, held_back
from rules.evaluator.incidents import Incident
from rules.methods.evidence import capitalize
from rules.replicas.cascade import STAGES
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Cause, Subject

VALID_RESENDS = 4
"""Resend intervals after which an alert ends if it is not sent again (Prometheus rules/manager.go, SendAlerts)."""

DIAGNOSIS = "SizewatchForeignAlertDiagnosis"
"""Alertname of informational explanations of foreign alerts."""

OWN_LABELS = frozenset({"alertname", "tier", "replica", "severity", "foreign_alertname", OURS[0]})
"""Labels that configured labels may not replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """Alert settings: common labels, address of the agent's own pages, and of a runbook page that replaces its own."""

    resend_seconds: float = 60.0
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str | None = None
    runbooks: str | None = None

    def runbook(self, rule: str) -> str:
        if self.runbooks is None and self.external_url is not None:
            return f"{self.external_url.rstrip('/')}/runbooks/{rule}"
        if self.runbooks:
            return runbook_url(rule, self.runbooks)
        return runbook_url(rule)

    def status_page(self, tier: str) -> str:
        """Return the address of a tier's card on the status page, "" if the page has no known address."""
        if self.external_url:
            return f"{self.external_url.rstrip('/')}/#{tier_anchor(tier)}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPayload:
    """Alert ready to post. `title` is its display name and its identity among our alerts."""

    title: str
    firing: bool
    body: Mapping[str, Any]


def present(
    alerts: Iterable[IncidentAlert],
    foreign: Iterable[ExternalAlert],
    now: float,
    settings: AlertSettings,
    waiting: Mapping[str, float | None] = MappingProxyType({}),
) -> tuple[AlertPayload, ...]:
    """Return the payloads of alerts that fire at `now` or were resolved 15 minutes before. `waiting`: requests in queues."""
    posted: dict[str, AlertPayload] = {}
    for payload in (
        *(_posted(alert, now, settings, waiting.get(alert.incident.tier)) for alert in alerts),
        *_of_foreign(foreign, now, settings),
    ):
        # Two foreign alerts may share an explanation: a firing alert stands for both.
        if payload.title not in posted or payload.firing:
            posted[payload.title] = payload
    return tuple(posted.values())


def _posted(alert: IncidentAlert, now: float, settings: AlertSettings, waiting: float | None) -> AlertPayload:
    severity = alert.severity.value
    labels = {"alertname": alert_name(alert.rule), **_where(alert.subject), "severity": severity}
    # The clock may have been set back. Alertmanager rejects an alert that ends before it begins.
    began, ended = min(alert.since, now), alert.resolved_at
    body = _body(labels, _annotations(alert, settings, waiting), began, ended and min(ended, now), now, settings)
    return AlertPayload(title=f"{alert.rule} of {alert.subject} ({severity})", firing=ended is None, body=body)


def _where(subject: Subject) -> dict[str, str]:
    labels = {"tier": subject.tier}
    if subject.replica:
        labels["replica"] = subject.replica
    return labels


def _body(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    began: float,
    ended: float | None,
    now: float,
    settings: AlertSettings,
) -> dict[str, Any]:
    ends = now + VALID_RESENDS * settings.resend_seconds
    if ended is not None:
        ends = max(began, ended)
    everything = {**settings.external_labels, **labels, OURS[0]: OURS[1]}
    body = {
        "labels": {name: replace_undecodable(value) for name, value in everything.items()},
        "annotations": {name: replace_undecodable(text) for name, text in annotations.items() if text},
        "startsAt": timestamp(began),
        "endsAt": timestamp(ends),
    }
    if settings.external_url:
        body["generatorURL"] = settings.external_url
    return body


def _annotations(alert: IncidentAlert, settings: AlertSettings, waiting: float | None) -> dict[str, str]:
    incident, verdict = alert.incident, alert.incident.verdict
    causes = list(map(_cause, verdict.causes))
    stage = _stage(incident)
    relief = ""
    if alert.severity is Severity.PAGE:
        relief = incident.relief
    queue = "" if waiting is None else f"{waiting:,.0f} {'request' if round(waiting) == 1 else 'requests'} waiting"
    silent = held_back(alert)
    held = ""
    if silent:
        held = f"{len(silent)}: {', '.join(silent)}"
    lines = (
        f"{incident.sentence}.",
        *(f"First suspect: {_suspect(cause)}." for cause in verdict.causes[:1]),
        f"Stage: {stage}." if stage else "",
        f"Queue: {queue}." if queue else "",
        f"Holds back {held}." if held else "",
        f"At once: {relief}." if relief else "",
        f"Next: {incident.action}." if incident.action else "",
    )
    return {
        "summary": f"{incident.tier}: {incident.sentence}",
        "description": "\n".join(filter(None, lines)),
        "status": f"{verdict.status.value}, {verdict.certainty.value}",
        "incident": incident.id,
        "root": f"{incident.root.rule} of {incident.root.subject}",
        "causes": "\n".join(causes),
        "actions": "\n".join(verdict.actions),
        "stage": stage,
        "queue": queue,
        "held_back": held,
        "replicas": ", ".join(incident.replicas),
        "runbook_url": settings.runbook(verdict.rule),
        "status_url": settings.status_page(incident.tier),
    }


def _stage(incident: Incident) -> str:
    active = [finding.transitions[-1].stage or 0 for finding in incident.findings if finding.ended_at is None]
    stage = max(active or (finding.worst.stage or 0 for finding in incident.findings))
    if stage:
        return f"{stage} of {max(STAGES)}, {STAGES[stage]}"
    return ""


def _suspect(cause: Cause) -> str:
    why = cause.cause
    if cause.evidence:
        why = cause.evidence[0]
    return f"{why} ({cause.certainty.value})"


def _cause(cause: Cause) -> str:
    against = ""
    if cause.against:
        against = f" (against it: {'; '.join(cause.against)})"
    return f"{'; '.join(cause.evidence) or cause.cause} ({cause.certainty.value}){against}"


def _of_foreign(foreign: Iterable[ExternalAlert], now: float, settings: AlertSettings) -> Iterator[AlertPayload]:
    for alert in foreign:
        diagnosis = alert.diagnosis
        if diagnosis is None or not diagnosis.certain or alert.tier is None:
            continue
        if alert.ended_at is not None and now - alert.ended_at > RESOLVED_KEPT_SECONDS:
            continue
        subject = Subject(tier=alert.tier, replica=alert.replica)
        labels = {"alertname": DIAGNOSIS, **_where(subject), "severity": Severity.REPORT.value}
        labels["foreign_alertname"] = alert.name
        annotations = {
            "summary": f"{alert.name} in {subject}: {diagnosis.sentence}",
            "description": f"{capitalize(diagnosis.sentence)}.",
            "explained_by": diagnosis.rule,
            "runbook_url": settings.runbook(diagnosis.rule),
        }
        # Another clock may be ahead, or ours was set back. Alertmanager rejects an alert that ends before it begins.
        began, ended = min(alert.started_at, now), alert.ended_at
        body = _body(labels, annotations, began, ended if ended is None else min(ended, now), now, settings)
        yield AlertPayload(title=f"{DIAGNOSIS} of {alert.name} in {subject}", firing=alert.ended_at is None, body=body)


def timestamp(t: float) -> str:
    """Return unix seconds as RFC 3339 in milliseconds, cut: an alert never begins after it was seen."""
    instant = datetime.fromtimestamp(math.floor(t * 1000) / 1000, UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
