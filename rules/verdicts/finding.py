"""Episodes: when a rule began to fire, how bad it got, when it ended; and spans in which it could not judge.

Owns the pure step from one answer to the next. An episode runs from the first warning or critical to the first ok; a
gap inside does not end it (DESIGN, words). Hold times are in the judgements, not here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from rules.confidence import Certainty
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import FIRING, SEVERITY, RuleResult, Status, Subject, Unknown, Verdict

MOST_TRANSITIONS = 200
"""Changes that are kept of one episode, half of them its first and half its latest: one that flaps for weeks is written to
the history every minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change inside an episode, at unix seconds `t`."""

    t: float
    status: Status
    stage: int | None
    certainty: Certainty


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`worst` is the verdict at its worst (status, then certainty, then stage); `ended_at` None while it lasts."""

    rule: str
    subject: Subject
    started_at: float
    ended_at: float | None
    worst: Verdict
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSpan:
    """A time in which a rule could not judge for one reason; `text` is the latest word on it."""

    rule: str
    subject: Subject
    reason: Gap
    text: str
    started_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """Where one rule stands for one subject: its latest answer, the open episode, the open unknown span, and when it
    last could judge (unix seconds, None if it never could)."""

    answer: RuleResult
    episode: Finding | None = None
    unknown: UnknownSpan | None = None
    judged_at: float | None = None


ClosedSpan = Finding | UnknownSpan

T = TypeVar("T", bound=Finding | UnknownSpan)


def step_rule_state(previous: RuleState | None, answer: RuleResult) -> tuple[RuleState, tuple[ClosedSpan, ...]]:
    """The standing after one more answer, and what ended with it."""
    episode = previous.episode if previous else None
    unknown = previous.unknown if previous else None
    if isinstance(answer, Unknown):
        standing, spans = _not_known(answer, episode, unknown)
        return replace(standing, judged_at=previous.judged_at if previous else None), spans
    ended: list[ClosedSpan] = []
    if unknown is not None:
        ended.append(_ended(unknown, answer.t))
    if answer.status in FIRING:
        return RuleState(answer=answer, episode=_extend(episode, answer), judged_at=answer.t), tuple(ended)
    if episode is not None:
        last = Transition(t=answer.t, status=answer.status, stage=answer.stage, certainty=answer.certainty)
        ended.append(_ended(replace(episode, transitions=(*episode.transitions, last)), answer.t))
    return RuleState(answer=answer, judged_at=answer.t), tuple(ended)


def close_rule_state(standing: RuleState, t: float) -> tuple[ClosedSpan, ...]:
    """What ends when a subject is watched no more."""
    open_ones = (standing.episode, standing.unknown)
    return tuple(_ended(one, t) for one in open_ones if one is not None)


def _ended(one: T, t: float) -> T:
    """Not before it began, also where the clock went back meanwhile."""
    return replace(one, ended_at=max(t, one.started_at))


def _not_known(
    answer: Unknown, episode: Finding | None, unknown: UnknownSpan | None
) -> tuple[RuleState, tuple[ClosedSpan, ...]]:
    if unknown is not None and unknown.reason is answer.reason:
        told = replace(unknown, text=answer.text) if answer.text != unknown.text else unknown
        return RuleState(answer=answer, episode=episode, unknown=told), ()
    fresh = UnknownSpan(
        rule=answer.rule,
        subject=answer.subject,
        reason=answer.reason,
        text=answer.text,
        started_at=answer.t,
        ended_at=None,
    )
    ended = (_ended(unknown, answer.t),) if unknown is not None else ()
    return RuleState(answer=answer, episode=episode, unknown=fresh), ended


def _extend(episode: Finding | None, verdict: Verdict) -> Finding:
    change = Transition(t=verdict.t, status=verdict.status, stage=verdict.stage, certainty=verdict.certainty)
    if episode is None:
        return Finding(
            rule=verdict.rule,
            subject=verdict.subject,
            started_at=verdict.t,
            ended_at=None,
            worst=verdict,
            transitions=(change,),
        )
    last = episode.transitions[-1]
    same = (last.status, last.stage, last.certainty) == (change.status, change.stage, change.certainty)
    return replace(
        episode,
        worst=verdict if _badness(verdict) >= _badness(episode.worst) else episode.worst,
        transitions=episode.transitions if same else _bounded((*episode.transitions, change)),
    )


def _bounded(transitions: tuple[Transition, ...]) -> tuple[Transition, ...]:
    """Without one of the middle where they are too many."""
    half = MOST_TRANSITIONS // 2
    return transitions if len(transitions) <= MOST_TRANSITIONS else (*transitions[:half], *transitions[-half:])


def _badness(verdict: Verdict) -> tuple[int, bool, int]:
    return SEVERITY[verdict.status], verdict.certainty is Certainty.CERTAIN, verdict.stage or 0
