"""Severity of an alert, and the findings that say that the SLO is broken at the present size."""

from __future__ import annotations

from collections.abc import Iterable

from rules.catalogue.registry import BURNS, BY_NAME
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, Status, severity_of

RESOLVED_KEPT_SECONDS = 900.0
"""Time in seconds for which a resolved alert is sent, for receivers that were away (Prometheus rules/alerting.go)."""

SLO_RULES = frozenset((*BURNS, "KvCacheCascade", "AvailabilityBurn"))
"""Rules whose open finding says that the SLO is broken at the present size."""


def alert_severity(rule: str, status: Status) -> Severity:
    """Return the severity of an alert: a paging rule pages only when critical (DESIGN 3.10)."""
    severity = BY_NAME[rule].severity
    return Severity.TICKET if severity is Severity.PAGE and status is not Status.CRITICAL else severity


def list_open_burns(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the open findings of SLO_RULES that were certain, the oldest first; a cascade from stage 3 on (DESIGN 3.10)."""

    def is_felt(finding: Finding) -> bool:
        severity = severity_of(finding.worst, finding)
        return severity is Status.CRITICAL or (severity is Status.WARNING and finding.rule != "KvCacheCascade")

    burns = (finding for finding in findings if finding.ended_at is None and finding.rule in SLO_RULES)
    return tuple(sorted(filter(is_felt, burns), key=lambda finding: finding.started_at))
