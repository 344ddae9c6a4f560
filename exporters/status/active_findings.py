"""Active findings of a tier, their begin, and the incidents that they form.

An open finding whose rule currently has no verdict stays active, with the gap. Pages and JSON print these records.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from exporters.render.text import Tone, copy_fields
from exporters.status.records import TierStatus
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.incidents import Incident
from rules.telemetry.signals import Gap
from rules.telemetry.wording import split_claim
from rules.verdicts.finding import Finding, severity_of, severity_words
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, SEVERITY, IdleReplicas, MissedObjective, Status, Subject, Unknown, Verdict

LACKING = frozenset({Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED})
"""Gap reasons that last until the plan or the engine changes. Other gaps pass or need attention."""

_GRAVITY = {Severity.PAGE: 2, Severity.TICKET: 1, Severity.REPORT: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveFinding:
    """Active finding. `since` is its begin (unix seconds, None if no finding is open yet). `silent` is the gap of a
    rule that currently has no verdict, else None. The verdict is then the worst of the finding. `severity` is the status
    that every surface names, None for what was never certain.
    """

    verdict: Verdict
    since: float | None
    silent: Unknown | None = None
    severity: Status | None

    @property
    def is_note(self) -> bool:
        """Return whether it sends no alert: its rule is for the report, or it was never certain."""
        return self.severity is None or _is_report(self.verdict.rule)

    @property
    def tone(self) -> Tone:
        return "note" if self.severity is None or self.is_note else self.severity

    @property
    def words(self) -> str:
        """Return "critical, certain", "warning, certain", "likely" or "note"."""
        return "note" if self.severity is not None and self.is_note else severity_words(self.severity)

    @property
    def named(self) -> str:
        """Return the words for a place that does not name the finding: a note has its title."""
        return f"{self.words}: {self.title}" if self.is_note else self.words

    @property
    def title(self) -> str:
        rule = BY_NAME.get(self.verdict.rule)
        title = rule.title if rule else self.verdict.rule
        return f"{title}, by forecast" if self.verdict.is_forecast else title


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveIncident:
    """Open incident. `root` may have ended; `symptoms` are the other active findings, in the order of their begin.

    `worst` is the worst of the active ones. `findings` are all of the incident, also ended ones. `started_at` is None
    and `findings` are empty if a rule fires whose finding is not known yet.
    """

    id: str
    root: ActiveFinding
    symptoms: tuple[ActiveFinding, ...]
    worst: ActiveFinding
    sentence: str
    relief: str = ""
    started_at: float | None = None
    missed: MissedObjective | None = None
    replicas: tuple[str, ...] = ()
    idle: IdleReplicas | None = None
    findings: tuple[Finding, ...] = ()


def list_active_findings(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    """Return active findings, worst first: status, certainty, severity of the rule, then earliest begin.

    Findings that send no alert (DESIGN 3.10) are in `list_notes`.
    """
    return tuple(finding for finding in _every(tier) if not finding.is_note)


def list_active_incidents(tier: TierStatus, incidents: Iterable[Incident]) -> tuple[ActiveIncident, ...]:
    """Return those of the tier's incidents with an active finding that is no note, the worst first.

    What is likely is a symptom of such an incident.
    """
    findings = (finding for finding in _every(tier) if not _is_report(finding.verdict.rule))
    active = {(finding.verdict.rule, finding.verdict.subject): finding for finding in findings}
    active_incidents = []
    for incident in incidents:
        # A rule may have ended in this incident and be open in a later one.
        keys = dict.fromkeys(
            (finding.rule, finding.subject) for finding in incident.findings if finding.ended_at is None
        )
        members = [active.pop(key) for key in keys if key in active]
        if not all(member.is_note for member in members):
            active_incidents.append(_active(incident, members))
    # A rule may fire before its finding is known here.
    active_incidents += [
        ActiveIncident(
            id="", root=finding, symptoms=(), worst=finding, sentence=split_claim(finding.verdict.sentence)[0]
        )
        for finding in active.values()
        if not finding.is_note
    ]
    return tuple(sorted(active_incidents, key=lambda candidate: rank(candidate.worst)))


def _active(incident: Incident, members: list[ActiveFinding]) -> ActiveIncident:
    root = (incident.root.rule, incident.root.subject)
    first = next((member for member in members if (member.verdict.rule, member.verdict.subject) == root), None)
    findings = tuple(member for member in members if member is not first)
    return ActiveIncident(
        **copy_fields(incident, "id", "sentence", "relief", "started_at", "missed", "replicas", "idle", "findings"),
        root=first or _active_finding(incident.verdict, incident.root),
        symptoms=findings,
        worst=min((member for member in members if not member.is_note), key=rank),
    )


def list_notes(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    """Return active findings that send no alert. They need no immediate attention and do not affect the tier state."""
    return tuple(finding for finding in _every(tier) if finding.is_note)


def list_findings(tier: TierStatus, rules: Container[str]) -> list[ActiveFinding]:
    """Return the active findings of these rules, those that alert before notes, the worst first."""
    return sorted(
        (finding for finding in _every(tier) if finding.verdict.rule in rules), key=lambda finding: finding.is_note
    )


def list_likely(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    """Return the findings that will alert once they are certain."""
    return tuple(note for note in list_notes(tier) if not _is_report(note.verdict.rule))


def _is_report(name: str) -> bool:
    rule = BY_NAME.get(name)
    return rule is not None and rule.severity is Severity.REPORT


def _every(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    opened = {
        (candidate.rule, candidate.subject): candidate for candidate in tier.findings if candidate.ended_at is None
    }
    findings = []
    for result in tier.results:
        finding = opened.pop((result.rule, result.subject), None)
        if isinstance(result, Verdict) and result.status in FIRING:
            findings.append(_active_finding(result, finding))
        elif isinstance(result, Unknown) and finding is not None:
            findings.append(_active_finding(finding.worst, finding, result))
    findings += [_active_finding(finding.worst, finding) for finding in opened.values()]
    return tuple(sorted(findings, key=rank))


def _active_finding(verdict: Verdict, finding: Finding | None, silent: Unknown | None = None) -> ActiveFinding:
    return ActiveFinding(
        verdict=verdict,
        since=finding.started_at if finding is not None else None,
        silent=silent,
        severity=severity_of(verdict, finding),
    )


def rank(finding: ActiveFinding) -> tuple[int, bool, int, float]:
    """Return the sort key of findings, worst first: status, certainty, severity of the rule, then earliest begin."""
    verdict, rule = finding.verdict, BY_NAME.get(finding.verdict.rule)
    gravity = _GRAVITY[rule.severity] if rule else 0
    likely = verdict.certainty is not Certainty.CERTAIN
    worst = SEVERITY[finding.severity or verdict.status]
    return -worst, likely, -gravity, finding.since if finding.since is not None else verdict.t


def ended_findings(tier: TierStatus) -> tuple[Finding, ...]:
    """Return the ended findings of the last day, newest first."""
    return tuple(finding for finding in tier.findings if finding.ended_at is not None)


def unknowns(tier: TierStatus) -> tuple[Unknown, ...]:
    """Return the rules that are currently unknown."""
    return tuple(result for result in tier.results if isinstance(result, Unknown))


def pending_rules(tier: TierStatus) -> tuple[str, ...]:
    """Return the page and ticket rules without a verdict for a reason that passes, each once."""
    rules = (unknown.rule for unknown in unknowns(tier) if unknown.reason not in LACKING)
    return tuple(dict.fromkeys(name for name in rules if name in BY_NAME and not _is_report(name)))


def tier_state(tier: TierStatus) -> Tone:
    """Return the severity of the tier's worst finding, unknown if no rule has a verdict.

    It is a note where a finding is likely: such a tier is neither fine nor in an incident.
    """
    findings = list_active_findings(tier) or list_likely(tier)
    if findings:
        return findings[0].tone
    return Status.OK if any(isinstance(result, Verdict) for result in tier.results) else Status.UNKNOWN


def place(subject: Subject) -> str:
    """Return the subject of a verdict in words."""
    return subject.tier if subject.replica is None else f"{subject.tier}, {subject.replica}"
