"""What fires now, since when, and the one line for the whole installation.

Owns the putting together of answers and episodes for people: an open episode whose rule cannot judge at the moment is
still a finding, and says so. It judges nothing and formats nothing but the headline. Pages and JSON print it.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporters.status.records import AgentStatus, TierStatus
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.telemetry.signals import Gap
from rules.verdicts.finding import Finding
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, SEVERITY, Status, Subject, Unknown, Verdict

LACKING = frozenset({Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED})
"""Reasons that stay until plan or engine change; the others pass, or somebody must look."""

_LOUDNESS = {Severity.PAGE.value: 2, Severity.TICKET.value: 1, Severity.REPORT.value: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveFinding:
    """Something that fires. `since` is the start of its episode (unix seconds, None where no episode is open yet);
    `silent` is why its rule cannot judge at the moment, None while it can. The verdict is then the worst it said.
    """

    verdict: Verdict
    since: float | None
    silent: Unknown | None = None

    @property
    def title(self) -> str:
        rule = BY_NAME.get(self.verdict.rule)
        return rule.title if rule else self.verdict.rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The verdict on the whole installation, as one line and a smaller one below it."""

    status: Status
    text: str
    detail: str


def findings(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    """What fires in a tier, the worst first: severity, certainty, loudness, then the one that began first.

    What is for the report only (DESIGN 3.10) is not among them: `remarks`.
    """
    return tuple(finding for finding in _every(tier) if not _for_report(finding))


def remarks(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    """What fires and is for the report only: nobody need look at it now, and it spoils no tier's state."""
    return tuple(finding for finding in _every(tier) if _for_report(finding))


def _for_report(finding: ActiveFinding) -> bool:
    rule = BY_NAME.get(finding.verdict.rule)
    return rule is not None and rule.loudness is Severity.REPORT


def _every(tier: TierStatus) -> tuple[ActiveFinding, ...]:
    open_episodes = {(e.rule, e.subject): e for e in tier.episodes if e.ended_at is None}
    found = []
    for answer in tier.answers:
        episode = open_episodes.pop((answer.rule, answer.subject), None)
        if isinstance(answer, Verdict) and answer.status in FIRING:
            found.append(ActiveFinding(verdict=answer, since=episode.started_at if episode else None))
        elif isinstance(answer, Unknown) and episode is not None:
            found.append(ActiveFinding(verdict=episode.worst, since=episode.started_at, silent=answer))
    found += [ActiveFinding(verdict=episode.worst, since=episode.started_at) for episode in open_episodes.values()]
    return tuple(sorted(found, key=_rank))


def _rank(finding: ActiveFinding) -> tuple[int, bool, int, float]:
    verdict, rule = finding.verdict, BY_NAME.get(finding.verdict.rule)
    loudness = _LOUDNESS[rule.loudness.value] if rule else 0
    likely = verdict.certainty is not Certainty.CERTAIN
    return -SEVERITY[verdict.status], likely, -loudness, finding.since if finding.since is not None else verdict.t


def ended_findings(tier: TierStatus) -> tuple[Finding, ...]:
    """The episodes of the last day that are over, newest first."""
    return tuple(episode for episode in tier.episodes if episode.ended_at is not None)


def unknowns(tier: TierStatus) -> tuple[Unknown, ...]:
    """The questions that cannot be answered now."""
    return tuple(answer for answer in tier.answers if isinstance(answer, Unknown))


def tier_state(tier: TierStatus) -> Status:
    """The tier's worst finding; unknown where no rule has come to a verdict."""
    found = findings(tier)
    if found:
        return found[0].verdict.status
    return Status.OK if any(isinstance(answer, Verdict) for answer in tier.answers) else Status.UNKNOWN


def headline(status: AgentStatus) -> Headline:
    """One line for the whole installation."""
    every = sorted((finding for tier in status.tiers for finding in findings(tier)), key=_rank)
    if every:
        return _firing(status, every)
    if not status.tiers:
        return Headline(status=Status.UNKNOWN, text="Nothing is watched", detail="The configuration names no tier.")
    if not any(isinstance(answer, Verdict) for tier in status.tiers for answer in tier.answers):
        text = "No verdict yet"
        return Headline(
            status=Status.UNKNOWN, text=text, detail="The first follow a few minutes after the first scrapes."
        )
    planned = [tier for tier in status.tiers if tier.view.plan is not None]
    text = f"{_count(len(planned), 'tier')} as planned" if planned else "Nothing fires"
    return Headline(status=Status.OK, text=text, detail=_unanswered(status))


def _firing(status: AgentStatus, every: list[ActiveFinding]) -> Headline:
    first = every[0]
    critical = sum(finding.verdict.status is Status.CRITICAL for finding in every)
    warnings = _count(len(every) - critical, "warning")
    counted = [f"{critical} critical"] * (critical > 0) + [warnings] * (critical < len(every))
    tiers = len({finding.verdict.subject.tier for finding in every})
    detail = f"{', '.join(counted)} in {tiers} of {_count(len(status.tiers), 'tier')}. {_unanswered(status)}"
    return Headline(status=first.verdict.status, text=f"{first.title} in {place(first.verdict.subject)}", detail=detail)


def place(subject: Subject) -> str:
    """What a verdict is about, in words."""
    return subject.tier if subject.replica is None else f"{subject.tier}, {subject.replica}"


def _unanswered(status: AgentStatus) -> str:
    silent = [one for tier in status.tiers for one in unknowns(tier)]
    lacking = sum(one.reason in LACKING for one in silent)
    number = len(silent) - lacking
    without = [tier.name for tier in status.tiers if tier.view.plan is None]
    said = [f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no plan."] if without else []
    said.append(
        f"{_count(number, 'question')} cannot be answered now." if number else "Every rule that can could judge."
    )
    return " ".join([*said, *([f"{lacking} more need what plan or engine lacks."] if lacking else [])])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
