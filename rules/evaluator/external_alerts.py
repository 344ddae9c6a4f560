"""Alerts of other systems: the tier and replica they belong to, and the finding that explains them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rules.catalogue.registry import BY_NAME, RULES
from rules.telemetry.wording import format_duration
from rules.verdicts.verdict import SEVERITY, Finding, Subject

AFTERMATH_SECONDS = 900.0
"""Maximum seconds between a finding's end and an alert that it explains: rates over 5 to 15 minutes lag."""

OURS = ("source", "sizewatch")
"""Label of alerts that sizewatch itself sent. Taking them in would be a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Finding that explains an external alert, and whether it was `certain` at any time so far."""

    rule: str
    subject: Subject
    began_at: float
    certain: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAlert:
    """Alert of another system, from its start to its end (unix seconds, None while it fires).

    `heard_at` is the time of its last message. `tier` is None if it matches no tier.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    summary: str
    started_at: float
    ended_at: float | None
    heard_at: float
    tier: str | None = None
    replica: str | None = None
    diagnosis: Diagnosis | None = None

    @property
    def identity(self) -> str:
        """Return a digest of its labels, equal for every message about this alert."""
        return hashlib.sha256(repr(self.labels).encode("utf-8", "replace")).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTargets:
    """Tiers, replicas with the names of their addresses, and tiers by served model that an alert can refer to."""

    tiers: frozenset[str]
    replicas: Mapping[tuple[str, str], frozenset[str]]
    models: Mapping[str, frozenset[str]] = field(default_factory=dict)


REPLICA_LABELS = ("replica", "instance", "pod", "pod_name", "exported_pod", "exported_instance")
MODEL_LABELS = ("model_name", "model")


def assign_tier(alert: ExternalAlert, fleet: AlertTargets) -> ExternalAlert:
    """Assign an alert by its label `tier`, else by a replica, else by a model of only one tier."""
    labels = dict(alert.labels)
    text = labels.get("tier")
    tier = text if text in fleet.tiers else None
    named = {labels[name] for name in REPLICA_LABELS if name in labels}
    rows = sorted(key for key, names in fleet.replicas.items() if tier in (None, key[0]) and named & names)
    if len(rows) == 1:
        return replace(alert, tier=rows[0][0], replica=rows[0][1])
    if tier is None and len({of for of, _ in rows}) == 1:
        tier = rows[0][0]
    if tier is None:
        models = [fleet.models[labels[name]] for name in MODEL_LABELS if labels.get(name) in fleet.models]
        tier = next((of for model in models if len(model) == 1 for of in model), None)
    return replace(alert, tier=tier)


_SLOW = frozenset(rule.name for rule in RULES if 0 < rule.stage <= BY_NAME["E2eSloBurn"].stage)
_FAILS = frozenset(rule.name for rule in RULES if rule.explains_failures)

SYMPTOMS = (
    ("latency", "latency|ttft|tpot|intertoken|slow|duration|responsetime|timeout|queue|slo|p99|p95", _SLOW),
    ("error", "error|5xx|unavailable|failure|failing|down|unhealthy", _FAILS),
)
"""Symptom, words in an alert's name or summary that show it, and rules that can explain it."""


def attach_finding(alert: ExternalAlert, findings: Iterable[Finding], now: float) -> ExternalAlert:
    """Attach the finding that explains an alert best: certain before likely, then the worst, then the first.

    An earlier explanation stays if none is found now. A finding that began after the alert explains nothing.
    """
    symptom = _symptom(alert)
    if alert.tier is None or symptom is None:
        return alert
    word, rules = symptom
    explaining = [e for e in findings if e.rule in rules and _same_place(alert, e) and _meet(alert, e, now)]
    if not explaining:
        return alert
    best = min(
        explaining,
        key=lambda e: (not e.certain_transitions, -SEVERITY[e.worst.status], -(e.worst.stage or 0), e.started_at),
    )
    diagnosis = Diagnosis(
        rule=best.rule,
        subject=best.subject,
        began_at=best.started_at,
        certain=bool(best.certain_transitions),
        sentence=f"this {word} alert: {_said(alert, best)}",
    )
    return replace(alert, diagnosis=diagnosis)


def _symptom(alert: ExternalAlert) -> tuple[str, frozenset[str]] | None:
    text = re.sub("[ _-]", "", f"{alert.name} {alert.summary}".lower())
    return next(((word, rules) for word, marks, rules in SYMPTOMS if re.search(marks, text)), None)


def _same_place(alert: ExternalAlert, finding: Finding) -> bool:
    both = alert.replica is not None and finding.subject.replica is not None
    return finding.subject.tier == alert.tier and (not both or alert.replica == finding.subject.replica)


def _meet(alert: ExternalAlert, finding: Finding, now: float) -> bool:
    ended_at = now if finding.ended_at is None else finding.ended_at
    return finding.started_at <= alert.started_at <= ended_at + AFTERMATH_SECONDS


def _said(alert: ExternalAlert, finding: Finding) -> str:
    rule, stage = BY_NAME.get(finding.rule), finding.worst.stage
    where = f" of {finding.subject.replica}" if finding.subject.replica else ""
    what = f"{rule.title if rule else finding.rule}{where}{f', stage {stage}' if stage else ''}"
    doubt = "" if finding.certain_transitions else " (likely)"
    lead_seconds, lag_seconds = alert.started_at - finding.started_at, alert.started_at - finding.end
    began = "began at the same time" if lead_seconds < 1 else f"began {format_duration(lead_seconds)} earlier"
    ended = f" and ended {format_duration(lag_seconds)} before it" if lag_seconds > 0 else ""
    return f"{what}{doubt}, {began}{ended}"
