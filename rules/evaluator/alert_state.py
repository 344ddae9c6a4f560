"""Alert states: which verdicts are alerts now, since when, and until when a resolved one is still told.

Owns the pure step from previous states, verdicts and the time to the next states. Only `certain` verdicts become alerts
(DESIGN 3.10). One that becomes unknown, or merely likely, keeps its alert: neither is a recovery. Sending them is an
exporter's work.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.telemetry.signals import Gap
from rules.verdicts.finding import Finding, Transition
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, RuleResult, Status, Subject, Unknown, Verdict

RESOLVED_KEPT_SECONDS = 900.0
"""A resolved alert is told for 15 minutes, so that a receiver that was away hears of it (Prometheus rules/alerting.go)."""


AHEAD_SECONDS = 60.0
"""Turns of role fleet go back by less where samples come late."""

UNASKED = frozenset({Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED})
UNASKED_SECONDS = 900.0
"""Well past a restart, whose first pages lack what appears with its first event."""


class Phase(StrEnum):
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertKey:
    """What makes an alert one alert; nothing that changes while it lasts."""

    rule: str
    subject: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """`since` is when it began to fire, `resolved_at` when it ended; `verdict` the latest that was certain.

    It only becomes louder while it lasts, at `louder_since`; None while it is as loud as when it began.
    """

    key: AlertKey
    phase: Phase
    since: float
    resolved_at: float | None
    loudness: str
    verdict: Verdict
    louder_since: float | None = None


States = Mapping[AlertKey, AlertState]


def step_alerts(
    previous: States, answers: Iterable[RuleResult], now: float, left: Container[tuple[str, Subject]] = ()
) -> dict[AlertKey, AlertState]:
    """The states at `now` (unix seconds). Answers that are missing or unknown leave their alert as it is.

    But for a question that is no longer there to be asked: the plan has lost its part, or the engine prints no such thing
    any more (speculation was switched off, as the runbook advises). After UNASKED_SECONDS of that its alert is resolved.
    `left` are the rules and subjects that are watched no more: their alerts are resolved, for no answer will come.
    """
    states = {
        key: _resolved(state, now) if (key.rule, key.subject) in left else state
        for key, state in ((key, _not_ahead(state, now)) for key, state in previous.items())
    }
    for answer in answers:
        key = AlertKey(rule=answer.rule, subject=answer.subject)
        if isinstance(answer, Unknown):
            if key in states and _unasked(states[key], answer, now):
                states[key] = _resolved(states[key], now)
            continue
        state = _step(states.get(key), key, answer, now)
        if state is not None:
            states[key] = state
    return {key: state for key, state in states.items() if not _forgotten(state, now)}


def _not_ahead(state: AlertState, now: float) -> AlertState:
    """What began or ended in a time that has yet to come did so now: the clock went back. An Alertmanager refuses an alert that
    lapses before it begins, and one that ends later still fires."""
    if max(state.since, state.louder_since or 0.0, state.resolved_at or 0.0) <= now + AHEAD_SECONDS:
        return state
    louder, resolved = state.louder_since, state.resolved_at
    return replace(
        state,
        since=min(state.since, now),
        louder_since=None if louder is None else min(louder, now),
        resolved_at=None if resolved is None else min(resolved, now),
    )


def _unasked(state: AlertState, answer: Unknown, now: float) -> bool:
    return answer.reason in UNASKED and now - state.verdict.t > UNASKED_SECONDS


def _step(state: AlertState | None, key: AlertKey, verdict: Verdict, now: float) -> AlertState | None:
    firing = state is not None and state.phase is Phase.FIRING
    if verdict.status not in FIRING:
        return _resolved(state, now) if state is not None else None
    if verdict.certainty is not Certainty.CERTAIN:
        return state
    loudness = _loudness(verdict.rule, verdict.status)
    if state is None or not firing:
        return AlertState(
            key=key, phase=Phase.FIRING, since=now, resolved_at=None, loudness=loudness.value, verdict=verdict
        )
    if loudness is Severity.PAGE and state.loudness != Severity.PAGE.value:
        return replace(state, verdict=verdict, loudness=loudness.value, louder_since=now)
    return replace(state, verdict=verdict)


def _resolved(state: AlertState, now: float) -> AlertState:
    return replace(state, phase=Phase.RESOLVED, resolved_at=now) if state.phase is Phase.FIRING else state


def _loudness(rule: str, status: Status) -> Severity:
    """A rule that pages does so at its worst only: what users do not feel yet is a ticket (DESIGN 3.10)."""
    loudness = BY_NAME[rule].loudness
    return Severity.TICKET if loudness is Severity.PAGE and status is not Status.CRITICAL else loudness


def restore_alerts(episodes: Iterable[Finding], now: float) -> dict[AlertKey, AlertState]:
    """The states that kept episodes stand for, as `advance` left them before a restart of the agent.

    Of an episode that ended as long ago as nobody is told any more, or was never certain, there is none.
    """
    states: dict[AlertKey, AlertState] = {}
    for episode in sorted(episodes, key=lambda e: e.started_at):
        state = _resumed(episode)
        if state is not None and not _forgotten(state, now):
            states[state.key] = state
    return states


def _resumed(episode: Finding) -> AlertState | None:
    told = [t for t in episode.transitions if t.status in FIRING and t.certainty is Certainty.CERTAIN]
    if not told or episode.rule not in BY_NAME:
        return None
    pages = [t for t in told if _pages(episode.rule, t)]
    first = told[0]
    loudest = pages[0] if pages else first
    return AlertState(
        key=AlertKey(rule=episode.rule, subject=episode.subject),
        phase=Phase.FIRING if episode.ended_at is None else Phase.RESOLVED,
        since=first.t,
        resolved_at=episode.ended_at,
        loudness=_loudness(episode.rule, loudest.status).value,
        verdict=episode.worst,
        louder_since=loudest.t if loudest is not first else None,
    )


def _pages(rule: str, transition: Transition) -> bool:
    return _loudness(rule, transition.status) is Severity.PAGE


def _forgotten(state: AlertState, now: float) -> bool:
    return state.resolved_at is not None and now - state.resolved_at > RESOLVED_KEPT_SECONDS
