"""Alert states: step from the previous states and new results to the next states.

Only `certain` verdicts become alerts (DESIGN 3.10). A result that becomes unknown or likely keeps its alert, because
neither is a recovery.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from rules.catalogue.registry import BY_NAME
from rules.catalogue.thresholds import BURNS
from rules.confidence import Certainty
from rules.light_dataclass import light_dataclass
from rules.verdicts.finding import UNASKED, UNASKED_SECONDS, Finding, severity_of
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, RuleResult, Status, Subject, Unknown, Verdict

RESOLVED_KEPT_SECONDS = 900.0
"""Time in seconds for which a resolved alert is sent, for receivers that were away (Prometheus rules/alerting.go)."""


AHEAD_SECONDS = 60.0
"""Maximum seconds that a state may lie ahead. Cycles of role fleet go back by less where samples come late."""

SLO_RULES = frozenset((*BURNS, "KvCacheCascade", "AvailabilityBurn"))
"""Rules whose open finding says that the SLO is broken at the present size."""


class Phase(StrEnum):
    FIRING = "firing"
    RESOLVED = "resolved"


@light_dataclass(frozen=True, slots=True, kw_only=True)
class AlertKey:
    """Identity of an alert. It does not change while the alert lasts."""

    rule: str
    subject: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """State of one alert: it fires from `since` to `resolved_at`. `verdict` is the latest certain one.

    Its severity may only rise while it lasts. `louder_since` is the time of the rise, if any.
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
    previous: States, results: Iterable[RuleResult], now: float, left: Container[tuple[str, Subject]] = ()
) -> dict[AlertKey, AlertState]:
    """Return the states at `now` (unix seconds). A missing or unknown result leaves its alert as it is.

    Exception: the plan or the engine no longer has what the rule needs, such as speculation that was switched off. After
    UNASKED_SECONDS of that the alert is resolved. `left` are rules and subjects that are no longer monitored: their
    alerts are resolved.
    """
    states = {
        key: _resolved(state, now) if (key.rule, key.subject) in left else state
        for key, state in ((key, _not_ahead(state, now)) for key, state in previous.items())
    }
    for result in results:
        if not states and (isinstance(result, Unknown) or result.status not in FIRING):
            continue
        key = AlertKey(rule=result.rule, subject=result.subject)
        if isinstance(result, Unknown):
            if key in states and result.reason in UNASKED and now - states[key].verdict.t > UNASKED_SECONDS:
                states[key] = _resolved(states[key], now)
            continue
        state = _step(states.get(key), key, result, now)
        if state is not None:
            states[key] = state
    return {key: state for key, state in states.items() if not _forgotten(state, now)}


def _not_ahead(state: AlertState, now: float) -> AlertState:
    """Limit the times of a state to `now` after the clock was set back.

    Alertmanager refuses an alert that ends before it starts, and one that ends in the future still fires."""
    if max(state.since, state.louder_since or 0.0, state.resolved_at or 0.0) <= now + AHEAD_SECONDS:
        return state
    louder, resolved = state.louder_since, state.resolved_at
    return replace(
        state,
        since=min(state.since, now),
        louder_since=None if louder is None else min(louder, now),
        resolved_at=None if resolved is None else min(resolved, now),
    )


def _step(state: AlertState | None, key: AlertKey, verdict: Verdict, now: float) -> AlertState | None:
    firing = state is not None and state.phase is Phase.FIRING
    if verdict.status not in FIRING:
        return _resolved(state, now) if state is not None else None
    if verdict.certainty is not Certainty.CERTAIN:
        return state
    loudness = alert_loudness(verdict.rule, verdict.status)
    if state is None or not firing:
        return AlertState(
            key=key, phase=Phase.FIRING, since=now, resolved_at=None, loudness=loudness.value, verdict=verdict
        )
    if loudness is Severity.PAGE and state.loudness != Severity.PAGE.value:
        return replace(state, verdict=verdict, loudness=loudness.value, louder_since=now)
    return replace(state, verdict=verdict)


def _resolved(state: AlertState, now: float) -> AlertState:
    return replace(state, phase=Phase.RESOLVED, resolved_at=now) if state.phase is Phase.FIRING else state


def alert_loudness(rule: str, status: Status) -> Severity:
    """Return the severity of an alert. A paging rule pages only when critical, otherwise it is a ticket (DESIGN 3.10)."""
    loudness = BY_NAME[rule].loudness
    return Severity.TICKET if loudness is Severity.PAGE and status is not Status.CRITICAL else loudness


def restore_alerts(findings: Iterable[Finding], now: float) -> dict[AlertKey, AlertState]:
    """Return the states of stored findings, as `step_alerts` left them before a restart of the agent.

    A finding that was never certain, or whose resolution is no longer sent, has none.
    """
    states: dict[AlertKey, AlertState] = {}
    for finding in sorted(findings, key=lambda e: e.started_at):
        state = _resumed(finding)
        if state is not None and not _forgotten(state, now):
            states[state.key] = state
    return states


def _resumed(finding: Finding) -> AlertState | None:
    told = finding.certain_transitions
    if not told or finding.rule not in BY_NAME:
        return None
    pages = [t for t in told if alert_loudness(finding.rule, t.status) is Severity.PAGE]
    first = told[0]
    loudest = pages[0] if pages else first
    return AlertState(
        key=AlertKey(rule=finding.rule, subject=finding.subject),
        phase=Phase.FIRING if finding.ended_at is None else Phase.RESOLVED,
        since=first.t,
        resolved_at=finding.ended_at,
        loudness=alert_loudness(finding.rule, loudest.status).value,
        verdict=finding.worst,
        louder_since=loudest.t if loudest is not first else None,
    )


def _forgotten(state: AlertState, now: float) -> bool:
    return state.resolved_at is not None and now - state.resolved_at > RESOLVED_KEPT_SECONDS


def list_open_burns(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the open findings of SLO_RULES that were certain, the oldest first; a cascade from stage 3 on (DESIGN 3.10)."""

    def is_felt(finding: Finding) -> bool:
        severity = severity_of(finding.worst, finding)
        return severity is Status.CRITICAL or (severity is Status.WARNING and finding.rule != "KvCacheCascade")

    burns = (one for one in findings if one.ended_at is None and one.rule in SLO_RULES and is_felt(one))
    return tuple(sorted(burns, key=lambda finding: finding.started_at))
