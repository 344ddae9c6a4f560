"""Incidents: the findings of one tier that share one root cause.

A pure function of findings, open and ended. The catalogue says which rule explains which (`Rule.explained_by`). Findings
that explain each other, directly or through others, are one incident. A new explanation is an entry of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.alert_state import RESOLVED_KEPT_SECONDS, alert_loudness
from rules.verdicts.finding import Finding
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING

FLAP_SECONDS = RESOLVED_KEPT_SECONDS
"""Pause in seconds within which a finding of the same rule and subject is the same incident: so long its alert is posted
as resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Findings that share one root. `findings` are in the order of their begin; times are unix seconds.

    `severity` is the loudest of the certain findings, else REPORT: what is only likely sends no alert. `ended_at` is None
    while a finding lasts. `sentence` and `action` are the root's.
    """

    id: str
    tier: str
    root: Finding
    severity: Severity
    started_at: float
    ended_at: float | None
    findings: tuple[Finding, ...]
    sentence: str
    action: str

    @property
    def symptoms(self) -> tuple[Finding, ...]:
        """Return the findings other than the root, in order of time."""
        return tuple(one for one in self.findings if one is not self.root)


def group_incidents(findings: Iterable[Finding]) -> tuple[Incident, ...]:
    """Return the incidents of all tiers, in order of their begin. Each finding is in exactly one of them.

    The order of the findings does not matter. The id is that of the earliest finding: it stays when others join or end.
    """
    groups: list[list[Finding]] = []
    for finding in sorted(findings, key=_order):
        joined, apart = [finding], []
        for group in groups:
            if any(_is_linked(one, finding) for one in group):
                joined += group
            else:
                apart.append(group)
        groups = [*apart, joined]
    incidents = (_incident(sorted(group, key=_order)) for group in groups)
    return tuple(sorted(incidents, key=lambda one: (one.started_at, one.id)))


def _order(finding: Finding) -> tuple[float, str, str, str, float]:
    subject, end = finding.subject, finding.ended_at
    return finding.started_at, subject.tier, finding.rule, subject.replica or "", math.inf if end is None else end


def _is_linked(one: Finding, other: Finding) -> bool:
    if one.subject.tier != other.subject.tier:
        return False
    if (one.rule, one.subject) == (other.rule, other.subject):
        return _pause_seconds(one, other) <= FLAP_SECONDS
    return is_explained(one, other) or is_explained(other, one)


def is_explained(finding: Finding, cause: Finding) -> bool:
    """Return whether `cause` explains `finding`: by the catalogue, in one tier and not between replicas, in time."""
    replicas = {finding.subject.replica, cause.subject.replica} - {None}
    if finding.subject.tier != cause.subject.tier or len(replicas) > 1:
        return False
    rule = BY_NAME.get(finding.rule)  # The history may hold findings of a rule that was removed.
    explained_by = rule.explained_by if rule is not None else ()
    within = next((one.within_seconds for one in explained_by if one.rule == cause.rule), None)
    return within is not None and _pause_seconds(finding, cause) <= within


def _pause_seconds(one: Finding, other: Finding) -> float:
    """Return the seconds between two findings, at most 0 where they overlap."""
    ends = [found.ended_at for found in (one, other) if found.ended_at is not None]
    return max(one.started_at, other.started_at) - min(ends, default=math.inf)


def _incident(findings: Sequence[Finding]) -> Incident:
    first, root = findings[0], _select_root(findings)
    ends = [one.ended_at for one in findings if one.ended_at is not None]
    return Incident(
        id=f"{first.subject}/{first.rule}/{first.started_at:.0f}",
        tier=first.subject.tier,
        root=root,
        severity=_severity(findings),
        started_at=first.started_at,
        ended_at=max(ends) if len(ends) == len(findings) else None,
        findings=tuple(findings),
        sentence=root.worst.sentence,
        action=root.worst.actions[0].text if root.worst.actions else "",
    )


def _select_root(findings: Sequence[Finding]) -> Finding:
    """Return the most upstream finding; of several the earliest, then a certain one."""
    # Explanations form no circle, so one finding at least has none.
    upstream = [one for one in findings if not any(is_explained(one, other) for other in findings)]
    return min(upstream, key=lambda one: (one.started_at, not _loudnesses(one), *_order(one)))


def _severity(findings: Sequence[Finding]) -> Severity:
    found = {loudness for one in findings for loudness in _loudnesses(one)}
    return next((one for one in Severity if one in found), Severity.REPORT)


def _loudnesses(finding: Finding) -> set[Severity]:
    """Return the severities that the finding had while it was certain."""
    if finding.rule not in BY_NAME:
        return set()
    return {
        alert_loudness(finding.rule, one.status)
        for one in finding.transitions
        if one.status in FIRING and one.certainty is Certainty.CERTAIN
    }
