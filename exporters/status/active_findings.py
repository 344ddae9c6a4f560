"""Active findings of a tier, their begin, and the incidents that they form.

An open finding whose rule currently has no verdict stays active, with the gap. Pages and JSON print these records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exporters.render.text import Tone, format_duration, rule_title
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.incidents import Incident, describe_missed
from rules.plan.money import amount
from rules.telemetry.wording import number
from rules.verdicts.error_budget import IMPACT_SECONDS
from rules.verdicts.rule import Rule, Severity
from rules.verdicts.verdict import (
    FIRING,
    SEVERITY,
    Finding,
    RuleResult,
    Status,
    Unknown,
    Verdict,
    severity_of,
    severity_words,
)

REPLICAS_NAMED = 3

_GRAVITY = {Severity.PAGE: 2, Severity.TICKET: 1, Severity.REPORT: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveFinding:
    """Open finding with its newest firing verdict, else its worst. `silent` is the gap of a rule that currently has no
    verdict, else None.
    """

    finding: Finding
    verdict: Verdict
    silent: Unknown | None = None

    @property
    def rule(self) -> Rule | None:
        """Return its rule, None for a finding of the history whose rule is gone."""
        return BY_NAME.get(self.verdict.rule)

    @property
    def severity(self) -> Status | None:
        """Return the status that every surface names, None for what was never certain."""
        return severity_of(self.verdict, self.finding)

    @property
    def is_reported(self) -> bool:
        """Return whether its rule is for the report only."""
        return self.rule is not None and self.rule.severity is Severity.REPORT

    @property
    def is_note(self) -> bool:
        """Return whether it sends no alert: its rule is for the report, or it was never certain."""
        return self.severity is None or self.is_reported

    @property
    def tone(self) -> Tone:
        return "note" if self.severity is None or self.is_reported else self.severity

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
        title = rule_title(self.verdict.rule)
        return f"{title}, by forecast" if self.verdict.is_forecast else title

    @property
    def rank(self) -> tuple[int, bool, int, float]:
        """Return the sort key, worst first: status, certainty, severity of the rule, then earliest begin."""
        gravity = _GRAVITY[self.rule.severity] if self.rule else 0
        likely = self.verdict.certainty is not Certainty.CERTAIN
        return -SEVERITY[self.severity or self.verdict.status], likely, -gravity, self.finding.started_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveIncident:
    """Open incident. The finding of its `root` may have ended; `symptoms` are the other active findings, in the order of
    their begin. `worst` is the worst of the active ones.
    """

    incident: Incident
    root: ActiveFinding
    symptoms: tuple[ActiveFinding, ...]
    worst: ActiveFinding

    @property
    def impact(self) -> list[str]:
        """Return the requests that users miss, the replicas, and the money that idles, in words."""
        missed, replicas, idle = self.incident.missed, self.incident.replicas, self.incident.idle
        texts = []
        if missed is not None and missed.share.high:
            most = f"up to {number(missed.share.high, 'ratio')} of requests may have missed an objective"
            counted = f"{missed.share.n:,.0f} requests in the last {format_duration(IMPACT_SECONDS)}"
            texts.append(f"{describe_missed(missed) or most} ({counted})")
        if replicas:
            more = f" and {len(replicas) - REPLICAS_NAMED} more" if len(replicas) > REPLICAS_NAMED else ""
            texts.append(f"on {', '.join(replicas[:REPLICAS_NAMED])}{more}")
        if idle is not None:
            price = "" if idle.cost_per_day is None else f", {amount(idle.cost_per_day, idle.currency)} a day"
            texts.append(f"{idle.replicas:.1f} replicas idle{price}")
        return texts


def list_active_findings(findings: Iterable[Finding], results: Iterable[RuleResult]) -> tuple[ActiveFinding, ...]:
    """Return the open findings of a tier with its newest results, worst first."""
    newest = {(result.rule, result.subject): result for result in results}
    active = []
    for finding in (candidate for candidate in findings if candidate.ended_at is None):
        verdict, silent = finding.worst, None
        result = newest.get((finding.rule, finding.subject))
        if isinstance(result, Unknown):
            silent = result
        elif result is not None and result.status in FIRING:
            verdict = result
        active.append(ActiveFinding(finding=finding, verdict=verdict, silent=silent))
    return tuple(sorted(active, key=lambda finding: finding.rank))


def list_active_incidents(
    findings: Iterable[ActiveFinding], incidents: Iterable[Incident]
) -> tuple[ActiveIncident, ...]:
    """Return the incidents of a tier with an active finding that is no note, the worst first. A likely one is a symptom."""
    # By identity: a rule may have ended in an incident and be open in a later one.
    known = {id(active.finding): active for active in findings if not active.is_reported}
    lasting = []
    for incident in incidents:
        ended_root = ActiveFinding(finding=incident.root, verdict=incident.verdict)
        root = known.get(id(incident.root), ended_root)
        members = [known[id(finding)] for finding in incident.findings if id(finding) in known]
        worst = min(members, key=lambda member: (member.is_note, member.rank), default=root)
        if members and not worst.is_note:
            symptoms = tuple(member for member in members if member is not root)
            lasting.append(ActiveIncident(incident=incident, root=root, symptoms=symptoms, worst=worst))
    return tuple(sorted(lasting, key=lambda active: active.worst.rank))
