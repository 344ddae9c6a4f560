"""Active findings of a tier, their begin, and the headline of the installation.

An open finding whose rule currently has no verdict stays active, with the gap. Pages and JSON print these records; only
the headline is text.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporters.status.records import AgentStatus, TierStatus
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.incidents import group_incidents
from rules.telemetry.signals import Gap
from rules.telemetry.wording import format_count
from rules.verdicts.finding import Finding
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, SEVERITY, Status, Subject, Unknown, Verdict

LACKING = frozenset({Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED})
"""Gap reasons that last until the plan or the engine changes. Other gaps pass or need attention."""

_LOUDNESS = {Severity.PAGE.value: 2, Severity.TICKET.value: 1, Severity.REPORT.value: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveFinding:
    """Active finding. `since` is its begin (unix seconds, None if no finding is open yet). `silent` is the gap of a
    rule that currently has no verdict, else None. The verdict is then the worst of the finding.
    """

    verdict: Verdict
    since: float | None
    silent: Unknown | None = None

    @property
    def title(self) -> str:
        rule = BY_NAME.get(self.verdict.rule)
        return rule.title if rule else self.verdict.rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveIncident:
    """Open incident. `root` may have ended; `symptoms` are the other active findings, in the order of their begin.

    `worst` is the worst of the active ones.
    """

    id: str
    root: ActiveFinding
    symptoms: tuple[ActiveFinding, ...]
    worst: ActiveFinding


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Verdict on the installation: a line and a smaller second line."""

    status: Status
    text: str
    detail: str


def list_active_findings(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    """Return active findings, worst first: status, certainty, severity, then earliest begin.

    Findings of severity report (DESIGN 3.10) are in `remarks`.
    """
    return tuple(finding for finding in _every(tier) if not _for_report(finding))


def list_active_incidents(tier: TierStatus) -> tuple[ActiveIncident, ...]:
    """Return incidents with an active finding that is not for the report only, the worst first."""
    active = {(one.verdict.rule, one.verdict.subject): one for one in list_active_findings(tier)}
    found = []
    for incident in group_incidents(tier.findings):
        keys = dict.fromkeys((one.rule, one.subject) for one in incident.findings)
        members = [active.pop(key) for key in keys if key in active]
        if not members:
            continue
        root = (incident.root.rule, incident.root.subject)
        first = next((one for one in members if (one.verdict.rule, one.verdict.subject) == root), None)
        others = tuple(one for one in members if one is not first)
        first = first or ActiveFinding(verdict=incident.root.worst, since=incident.root.started_at)
        found.append(ActiveIncident(id=incident.id, root=first, symptoms=others, worst=min(members, key=_rank)))
    # A rule may fire before its finding is known here.
    found += [ActiveIncident(id="", root=one, symptoms=(), worst=one) for one in active.values()]
    return tuple(sorted(found, key=lambda one: _rank(one.worst)))


def remarks(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    """Return active findings of severity report. They need no immediate attention and do not affect the tier state."""
    return tuple(finding for finding in _every(tier) if _for_report(finding))


def _for_report(finding: ActiveFinding) -> bool:
    rule = BY_NAME.get(finding.verdict.rule)
    return rule is not None and rule.loudness is Severity.REPORT


def _every(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    open_episodes = {(e.rule, e.subject): e for e in tier.findings if e.ended_at is None}
    found = []
    for result in tier.results:
        finding = open_episodes.pop((result.rule, result.subject), None)
        if isinstance(result, Verdict) and result.status in FIRING:
            found.append(ActiveFinding(verdict=result, since=finding.started_at if finding else None))
        elif isinstance(result, Unknown) and finding is not None:
            found.append(ActiveFinding(verdict=finding.worst, since=finding.started_at, silent=result))
    found += [ActiveFinding(verdict=finding.worst, since=finding.started_at) for finding in open_episodes.values()]
    return tuple(sorted(found, key=_rank))


def _rank(finding: ActiveFinding) -> tuple[int, bool, int, float]:
    verdict, rule = finding.verdict, BY_NAME.get(finding.verdict.rule)
    loudness = _LOUDNESS[rule.loudness.value] if rule else 0
    likely = verdict.certainty is not Certainty.CERTAIN
    return -SEVERITY[verdict.status], likely, -loudness, finding.since if finding.since is not None else verdict.t


def ended_findings(tier: TierStatus) -> tuple[Finding, ...]:
    """Return the ended findings of the last day, newest first."""
    return tuple(finding for finding in tier.findings if finding.ended_at is not None)


def unknowns(tier: TierStatus) -> tuple[Unknown, ...]:
    """Return the rules that are currently unknown."""
    return tuple(result for result in tier.results if isinstance(result, Unknown))


def tier_state(tier: TierStatus) -> Status:
    """Return the status of the tier's worst finding, unknown if no rule has a verdict."""
    found = list_active_findings(tier)
    if found:
        return found[0].verdict.status
    return Status.OK if any(isinstance(result, Verdict) for result in tier.results) else Status.UNKNOWN


def headline(status: AgentStatus) -> Headline:
    """Return the headline of the installation."""
    every = sorted((finding for tier in status.tiers for finding in list_active_findings(tier)), key=_rank)
    if every:
        return _firing(status, every)
    if not status.tiers:
        return Headline(status=Status.UNKNOWN, text="Nothing is watched", detail="The configuration names no tier.")
    if not any(isinstance(result, Verdict) for tier in status.tiers for result in tier.results):
        text = "No verdict yet"
        return Headline(
            status=Status.UNKNOWN, text=text, detail="The first follow a few minutes after the first scrapes."
        )
    planned = [tier for tier in status.tiers if tier.context.plan is not None]
    text = f"{format_count(len(planned), 'tier')} as planned" if planned else "Nothing fires"
    return Headline(status=Status.OK, text=text, detail=_unanswered(status))


def _firing(status: AgentStatus, every: list[ActiveFinding]) -> Headline:
    first = every[0]
    critical = sum(finding.verdict.status is Status.CRITICAL for finding in every)
    warnings = format_count(len(every) - critical, "warning")
    counted = [f"{critical} critical"] * (critical > 0) + [warnings] * (critical < len(every))
    tiers = len({finding.verdict.subject.tier for finding in every})
    detail = f"{', '.join(counted)} in {tiers} of {format_count(len(status.tiers), 'tier')}. {_unanswered(status)}"
    return Headline(status=first.verdict.status, text=f"{first.title} in {place(first.verdict.subject)}", detail=detail)


def place(subject: Subject) -> str:
    """Return the subject of a verdict in words."""
    return subject.tier if subject.replica is None else f"{subject.tier}, {subject.replica}"


def _unanswered(status: AgentStatus) -> str:
    silent = [one for tier in status.tiers for one in unknowns(tier)]
    lacking = sum(one.reason in LACKING for one in silent)
    number = len(silent) - lacking
    without = [tier.name for tier in status.tiers if tier.context.plan is None]
    said = [f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no plan."] if without else []
    said.append(
        f"{format_count(number, 'question')} cannot be answered now." if number else "Every rule that can could judge."
    )
    return " ".join([*said, *([f"{lacking} more need what plan or engine lacks."] if lacking else [])])
