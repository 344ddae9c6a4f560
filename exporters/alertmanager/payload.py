"""Alert payloads for Alertmanager's API v2 (`/api/v2/alerts`): labels, annotations and times.

Labels match the rule files of `exporters.prometheus_rules.alerts`, so that routes fit both. They identify an alert, so
a changing value must never be a label. `agent.alerting` posts the payloads.

A paging rule starts as a ticket while users are not affected. Its page is a separate alert of its own severity, which
inhibits the ticket. A cascade usually pages at once, so its ticket is posted only if it lasts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rules.catalogue.registry import BY_NAME
from rules.evaluator.alert_state import RESOLVED_KEPT_SECONDS, AlertState, Phase
from rules.evaluator.external_alerts import OURS, ExternalAlert
from rules.telemetry.wording import quantity
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Cause, Subject, Verdict

SEVERITIES: Mapping[str, str] = {Severity.PAGE.value: "critical", Severity.TICKET.value: "warning"}
"""Severity labels by severity of a rule. Rules of severity report send no alerts."""

VALID_RESENDS = 4
"""Resend intervals after which an alert ends if it is not sent again (Prometheus rules/manager.go, SendAlerts)."""

TICKET_AFTER_SECONDS = 300.0
"""Minimum seconds of a paging rule at ticket level before the ticket is posted. Faster escalations are one alert."""

DIAGNOSIS = "ForeignAlertDiagnosis"
"""Alertname of informational explanations of foreign alerts."""

INFORMATION: Mapping[str, str] = {"severity": "info", "loudness": Severity.REPORT.value}

OWN_LABELS = frozenset({"alertname", "tier", "replica", "severity", "loudness", "foreign_alertname", OURS[0]})
"""Labels that configured labels may not replace."""

RUNBOOKS = "https://sizewatch.dev/runbooks"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """Alert settings: common labels, linked page and runbook address."""

    resend_seconds: float = 60.0
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str | None = None
    runbooks: str = RUNBOOKS


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPayload:
    """Alert ready to post. `title` is its display name and its identity among our alerts."""

    title: str
    firing: bool
    body: Mapping[str, Any]


def present(
    states: Iterable[AlertState], foreign: Iterable[ExternalAlert], now: float, settings: AlertSettings
) -> tuple[AlertPayload, ...]:
    """Return the present state: alerts firing at `now` (unix seconds), and alerts resolved in the last 15 minutes."""
    posted: dict[str, AlertPayload] = {}
    for one in (*_of_states(states, now, settings), *_of_foreign(foreign, now, settings)):
        # Two foreign alerts may share an explanation: a firing alert stands for both.
        if one.title not in posted or one.firing:
            posted[one.title] = one
    return tuple(posted.values())


def _of_states(states: Iterable[AlertState], now: float, settings: AlertSettings) -> Iterator[AlertPayload]:
    for state in states:
        for loudness, began in _parts(state, now):
            yield _posted(state, loudness, began, now, settings)


def _parts(state: AlertState, now: float) -> Iterator[tuple[str, float]]:
    if state.loudness not in SEVERITIES:
        return
    rule = BY_NAME[state.key.rule]
    if rule.loudness is not Severity.PAGE:
        yield state.loudness, state.since
        return
    as_page = state.loudness == Severity.PAGE.value
    if not as_page or state.louder_since is not None:
        until = state.louder_since or (now if state.resolved_at is None else state.resolved_at)
        if until - state.since >= TICKET_AFTER_SECONDS:
            yield Severity.TICKET.value, state.since
    if as_page:
        yield Severity.PAGE.value, state.louder_since or state.since


def _posted(state: AlertState, loudness: str, began: float, now: float, settings: AlertSettings) -> AlertPayload:
    key, severity = state.key, SEVERITIES[loudness]
    labels = {"alertname": key.rule, **_where(key.subject), "severity": severity, "loudness": loudness}
    ended = state.resolved_at if state.phase is Phase.RESOLVED else None
    body = _body(labels, _annotations(state.verdict, settings), began, ended, now, settings)
    return AlertPayload(title=f"{key.rule} of {key.subject} ({severity})", firing=ended is None, body=body)


def _where(subject: Subject) -> dict[str, str]:
    return {"tier": subject.tier} | ({"replica": subject.replica} if subject.replica else {})


def _body(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    began: float,
    ended: float | None,
    now: float,
    settings: AlertSettings,
) -> dict[str, Any]:
    ends = max(began, ended) if ended is not None else now + VALID_RESENDS * settings.resend_seconds
    everything = {**settings.external_labels, **labels, OURS[0]: OURS[1]}
    return {
        "labels": {name: _utf8(value) for name, value in everything.items()},
        "annotations": {name: _utf8(text) for name, text in annotations.items() if text},
        "startsAt": timestamp(began),
        "endsAt": timestamp(ends),
    } | ({"generatorURL": settings.external_url} if settings.external_url else {})


def _annotations(verdict: Verdict, settings: AlertSettings) -> dict[str, str]:
    rule = BY_NAME[verdict.rule]
    observed, expected = quantity(verdict.observed, verdict.unit), quantity(verdict.expected, verdict.unit)
    return {
        "summary": f"{rule.title} in {verdict.subject}",
        "description": f"{verdict.sentence}. {rule.meaning}",
        "status": f"{verdict.status.value}, {verdict.certainty.value}",
        "observed": observed,
        "expected": expected,
        "causes": "\n".join(_cause(cause) for cause in verdict.causes),
        "actions": "\n".join(action.text for action in verdict.actions),
        "runbook_url": runbook_url(verdict.rule, settings.runbooks),
    }


def _cause(cause: Cause) -> str:
    evidence = f": {'; '.join(cause.evidence)}" if cause.evidence else ""
    against = f" (against it: {'; '.join(cause.against)})" if cause.against else ""
    return f"{cause.cause} ({cause.certainty.value}){evidence}{against}"


def runbook_url(rule: str, runbooks: str = RUNBOOKS) -> str:
    """Return the address of a rule's section on the runbook page."""
    return f"{runbooks}#{rule.lower()}"


def _of_foreign(foreign: Iterable[ExternalAlert], now: float, settings: AlertSettings) -> Iterator[AlertPayload]:
    """Yield certain explanations of foreign alerts."""
    for alert in foreign:
        diagnosis = alert.diagnosis
        if diagnosis is None or not diagnosis.certain or alert.tier is None:
            continue
        if alert.ended_at is not None and now - alert.ended_at > RESOLVED_KEPT_SECONDS:
            continue
        subject = Subject(tier=alert.tier, replica=alert.replica)
        labels = {"alertname": DIAGNOSIS, **_where(subject), **INFORMATION, "foreign_alertname": alert.name}
        annotations = {
            "summary": f"{alert.name} in {subject}: {diagnosis.sentence}",
            "description": f"{diagnosis.sentence[:1].upper()}{diagnosis.sentence[1:]}.",
            "explained_by": diagnosis.rule,
            "runbook_url": runbook_url(diagnosis.rule, settings.runbooks),
        }
        # Another clock may be ahead, or ours was set back. Alertmanager rejects an alert that ends before it begins.
        began, ended = min(alert.started_at, now), alert.ended_at
        body = _body(labels, annotations, began, ended if ended is None else min(ended, now), now, settings)
        yield AlertPayload(title=f"{DIAGNOSIS} of {alert.name} in {subject}", firing=alert.ended_at is None, body=body)


def timestamp(t: float) -> str:
    """Return unix seconds as RFC 3339 in milliseconds, cut: an alert never begins after it was seen."""
    instant = datetime.fromtimestamp(math.floor(t * 1000) / 1000, UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utf8(text: str) -> str:
    """Replace characters that UTF-8 cannot encode: a strange name must not break other alerts."""
    return text.encode("utf-8", "replace").decode("utf-8")
