"""Results of a rule: verdict or unknown, with status, causes and actions; findings, and the step from result to result.

A finding lasts from the first warning or critical to the first ok. A gap inside does not end it (DESIGN, words).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from rules.confidence import Certainty
from rules.telemetry.signals import Gap, Reading, SignalValue


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


SEVERITY = {Status.UNKNOWN: 0, Status.OK: 0, Status.WARNING: 1, Status.CRITICAL: 2}
"""Exported as `sizewatch_verdict` (unknown exports nothing)."""

FIRING = frozenset({Status.WARNING, Status.CRITICAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Subject of a verdict: a tier or one of its replicas."""

    tier: str
    replica: str | None = None

    def __str__(self) -> str:
        return self.tier if self.replica is None else f"{self.tier}/{self.replica}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Suspected cause with evidence for and against it, in words with numbers."""

    cause: str
    certainty: Certainty
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedObjective:
    """Share of a tier's requests that missed an objective; `share.n` is the number of requests.

    `objective` is TTFT, TPOT, ITL, E2E, or "" for failed requests, which have no limit in seconds.
    """

    objective: str
    limit_seconds: float | None
    share: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleReplicas:
    """Ready replicas, on average over the time judged, and the surplus of them with its cost per day (None: no price).

    `needed` is the recommended count for the busiest hour, `minimum_warm` the plan's floor on the whole count.
    """

    replicas: float
    ready: float
    needed: int
    minimum_warm: int
    cost_per_day: float | None
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a rule at an instant (unix seconds). Only the cascade has a `stage`.

    `sentence` begins with a claim that stands alone, up to the first "; " or ": ". `details` are short facts with numbers.
    `missed` is what users of the tier felt when it fired, None without objectives. `idle` is what the tier wastes.
    `is_forecast` marks what is expected and not seen yet.
    """

    t: float
    rule: str
    subject: Subject
    status: Status
    certainty: Certainty
    observed: SignalValue
    expected: SignalValue
    unit: str
    sentence: str
    details: tuple[str, ...] = ()
    stage: int | None = None
    causes: tuple[Cause, ...] = ()
    actions: tuple[str, ...] = ()
    missed: MissedObjective | None = None
    idle: IdleReplicas | None = None
    is_forecast: bool = False

    def sentence_with_suspect(self) -> str:
        """Return the sentence and the first suspect, for surfaces that do not list the causes."""
        suspect = next((cause.evidence[0] for cause in self.causes[:1] if cause.evidence), "")
        return f"{self.sentence}. First suspect: {suspect}" if suspect else self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Result of a rule without enough data. It has no status, is shown and counted.

    `wait_seconds` is how long it lasts at least where time alone ends it and the rule is over minutes, else None.
    """

    t: float
    rule: str
    subject: Subject
    reason: Gap
    text: str = ""
    wait_seconds: float | None = None


RuleResult = Verdict | Unknown


MOST_TRANSITIONS = 200
"""Changes that are kept of one episode, its first and the newest: one that flaps for weeks is written every minute."""

LIKELY = "likely"
"""Word for a finding that was never certain."""

UNASKED = frozenset({Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED})
"""Reasons for which a rule has no verdict until the plan or the engine changes, such as speculation that is off."""

UNASKED_SECONDS = 900.0
"""Seconds without a verdict for such a reason after which a finding ends: a restarted engine lacks metrics for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change inside an episode, at unix seconds `t`."""

    t: float
    status: Status
    stage: int | None
    certainty: Certainty


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding of a rule with its `worst` verdict (by status, certainty, stage); `ended_at` is None while it lasts."""

    rule: str
    subject: Subject
    started_at: float
    ended_at: float | None = None
    worst: Verdict
    transitions: tuple[Transition, ...]

    @property
    def end(self) -> float:
        """Return the end in unix seconds, infinite while it lasts."""
        return math.inf if self.ended_at is None else self.ended_at

    @property
    def certain_transitions(self) -> list[Transition]:
        """Return the changes to a firing status that was certain: only these are alerts."""
        return [
            change for change in self.transitions if change.status in FIRING and change.certainty is Certainty.CERTAIN
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSpan:
    """Span in which a rule was unknown for one reason; `text` is the latest one."""

    rule: str
    subject: Subject
    reason: Gap
    text: str
    started_at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """Latest result of a rule for a subject, its open finding and unknown span, and the time of its last verdict."""

    result: RuleResult
    finding: Finding | None = None
    unknown: UnknownSpan | None = None
    evaluated_at: float | None = None


ClosedSpan = Finding | UnknownSpan

T = TypeVar("T", bound=Finding | UnknownSpan)


def step_rule_state(previous: RuleState | None, result: RuleResult) -> tuple[RuleState, tuple[ClosedSpan, ...]]:
    """Return the rule state after one more result, and the spans that ended with it."""
    previous = previous or RuleState(result=result)
    finding, unknown = previous.finding, previous.unknown
    ended: tuple[ClosedSpan, ...] = ()
    if isinstance(result, Unknown):
        if unknown is None or unknown.reason is not result.reason:
            ended = (_ended(unknown, result.t),) if unknown is not None else ()
            rule, subject, reason = result.rule, result.subject, result.reason
            unknown = UnknownSpan(rule=rule, subject=subject, reason=reason, text=result.text, started_at=result.t)
        elif unknown.text != result.text:
            unknown = replace(unknown, text=result.text)
        if finding is not None and result.reason in UNASKED and result.t - unknown.started_at > UNASKED_SECONDS:
            ended, finding = (*ended, _ended(finding, result.t)), None
        return replace(previous, result=result, finding=finding, unknown=unknown), ended
    if unknown is not None:
        ended = (_ended(unknown, result.t),)
    if result.status in FIRING:
        return RuleState(result=result, finding=_extend(finding, result), evaluated_at=result.t), ended
    if finding is not None:
        last = Transition(t=result.t, status=result.status, stage=result.stage, certainty=result.certainty)
        closed = replace(finding, transitions=(*finding.transitions, last))
        ended = (*ended, _ended(closed, result.t))
    return RuleState(result=result, evaluated_at=result.t), ended


def has_changed(before: Finding | None, now: Finding) -> bool:
    """Return whether a finding began, or became worse in status, stage or severity."""
    if before is None or before.started_at != now.started_at:
        return True
    is_same = before.worst.status is now.worst.status and before.worst.stage == now.worst.stage
    return not is_same or severity_of(before.worst, before) != severity_of(now.worst, now)


def severity_of(verdict: Verdict, finding: Finding | None) -> Status | None:
    """Return the status that logs and pages name for a firing verdict. None: its finding was never certain.

    It is no worse than the worst status of the finding that was certain, as alerts are (DESIGN 3.10). A verdict that is
    only likely now keeps the status of its alert.
    """
    certain = [transition.status for transition in finding.certain_transitions] if finding is not None else []
    if verdict.certainty is Certainty.CERTAIN:
        certain.append(verdict.status)
    return min(verdict.status, max(certain, key=SEVERITY.__getitem__), key=SEVERITY.__getitem__) if certain else None


def severity_words(severity: Status | None) -> str:
    """Return a severity in words: "critical, certain", or "likely" without a colour or a status."""
    return LIKELY if severity is None else f"{severity.value}, {Certainty.CERTAIN.value}"


def close_rule_state(state: RuleState, t: float) -> tuple[ClosedSpan, ...]:
    """Return the spans that end with the subject."""
    return tuple(_ended(span, t) for span in (state.finding, state.unknown) if span is not None)


def _ended(span: T, t: float) -> T:
    """Return the span with its end, not before its begin even if the clock went back."""
    return replace(span, ended_at=max(t, span.started_at))


def _extend(finding: Finding | None, verdict: Verdict) -> Finding:
    change = Transition(t=verdict.t, status=verdict.status, stage=verdict.stage, certainty=verdict.certainty)
    if finding is None:
        rule, subject = verdict.rule, verdict.subject
        return Finding(rule=rule, subject=subject, started_at=verdict.t, worst=verdict, transitions=(change,))
    last = finding.transitions[-1]
    is_change = replace(last, t=change.t) != change
    return replace(
        finding,
        worst=verdict if rank_verdict(verdict) >= rank_verdict(finding.worst) else finding.worst,
        transitions=(*finding.transitions[: MOST_TRANSITIONS - 1], change) if is_change else finding.transitions,
    )


def rank_verdict(verdict: Verdict) -> tuple[int, bool, int]:
    """Return the order of verdicts: by status, then certain ones, then the stage of a cascade."""
    return SEVERITY[verdict.status], verdict.certainty is Certainty.CERTAIN, verdict.stage or 0
