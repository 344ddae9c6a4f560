"""Incidents: the findings of one tier that share one root cause.

A pure function of findings, open and ended. The catalogue says which rule explains which (`Rule.explained_by`). Findings
that explain each other, directly or through others, are one incident. A new explanation is an entry of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rules.catalogue.registry import BY_NAME, RULES
from rules.confidence import Certainty
from rules.evaluator.alert_state import RESOLVED_KEPT_SECONDS, alert_loudness
from rules.verdicts.finding import Finding
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, Subject

FLAP_SECONDS = RESOLVED_KEPT_SECONDS
"""Pause in seconds within which a finding of the same rule and tier is the same incident: so long its alert is posted as
resolved."""


LONGEST_SECONDS = max(FLAP_SECONDS, *(one.within_seconds for rule in RULES for one in rule.explained_by))
"""Pause in seconds after which two findings are never linked."""


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
    groups: list[_Group] = []
    complete: list[list[Finding]] = []
    for finding in sorted(findings, key=_order):
        joined, apart = _Group(), []
        for group in groups:
            if group.ends_at + LONGEST_SECONDS < finding.started_at:
                complete.append(group.members)
            elif any(_is_linked(one, finding) for one in group.latest.values()):
                joined = joined.merge(group)
            else:
                apart.append(group)
        joined.add(finding)
        groups = [*apart, joined]
    incidents = (_incident(sorted(found, key=_order)) for found in (*complete, *(group.members for group in groups)))
    return tuple(sorted(incidents, key=lambda one: (one.started_at, one.id)))


@dataclass(slots=True)
class _Group:
    """Findings of one incident. `latest` holds by rule and subject the one that ends last: a later finding that is linked
    to any of them is linked to that one.
    """

    members: list[Finding] = field(default_factory=list)
    latest: dict[tuple[str, Subject], Finding] = field(default_factory=dict)
    ends_at: float = -math.inf

    def add(self, finding: Finding) -> None:
        key = (finding.rule, finding.subject)
        self.members.append(finding)
        self.latest[key] = max(finding, self.latest.get(key, finding), key=_end)
        self.ends_at = max(self.ends_at, _end(finding))

    def merge(self, other: _Group) -> _Group:
        """Add the smaller group to the larger one, and return that."""
        small, large = sorted((self, other), key=lambda group: len(group.members))
        for finding in small.members:
            large.add(finding)
        return large


def _order(finding: Finding) -> tuple[float, str, str, str, float]:
    subject = finding.subject
    return finding.started_at, subject.tier, finding.rule, subject.replica or "", _end(finding)


def _end(finding: Finding) -> float:
    return math.inf if finding.ended_at is None else finding.ended_at


def _is_linked(one: Finding, other: Finding) -> bool:
    if one.subject.tier != other.subject.tier:
        return False
    if one.rule == other.rule:
        # Replicas of a tier that show the same at the same time have one cause.
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
    return max(one.started_at, other.started_at) - min(_end(one), _end(other))


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
    by_rule: dict[str, list[Finding]] = {}
    for one in findings:
        by_rule.setdefault(one.rule, []).append(one)
    ordered = sorted(findings, key=lambda one: (one.started_at, not _loudnesses(one), *_order(one)))
    # Explanations form no circle, so one finding at least has none.
    return next(one for one in ordered if not any(is_explained(one, cause) for cause in _possible_causes(one, by_rule)))


def _possible_causes(finding: Finding, by_rule: Mapping[str, Sequence[Finding]]) -> Iterator[Finding]:
    for one in BY_NAME[finding.rule].explained_by if finding.rule in BY_NAME else ():
        yield from by_rule.get(one.rule, ())


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
