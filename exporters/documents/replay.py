"""The JSON of `replay` (DESIGN 6): windows with every reading, verdicts by episode, unknown spans.

Owns that format and its schema number. Also used wherever verdicts and readings go out as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rules.telemetry.derived import PlanFacts
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Missing, SignalValue
from rules.telemetry.windows import Window
from rules.verdicts.finding import ClosedSpan, Finding, RuleState, UnknownSpan
from rules.verdicts.verdict import Cause, Status, Verdict

SCHEMA = 1


def reading_json(value: SignalValue) -> dict[str, Any]:
    """A reading, or its gap's name."""
    if isinstance(value, Missing):
        return {"gap": value.gap.value} | ({"text": value.text} if value.text else {})
    return {"value": value.value, "low": value.low, "high": value.high, "n": value.n}


def window_json(tier: str, replica: str | None, window: Window, basis: PlanFacts) -> dict[str, Any]:
    """One window with every signal of the table."""
    return {
        "start": window.start,
        "end": window.end,
        "tier": tier,
        "replica": replica,
        "coverage": round(window.coverage, 6),
        "readings": {name: reading_json(value) for name, value in read_all(window, basis).items()},
    }


def episode_json(episode: Finding) -> dict[str, Any]:
    """An episode with its worst verdict."""
    transitions = [
        {"t": t.t, "status": t.status.value, "stage": t.stage, "certainty": t.certainty.value}
        for t in episode.transitions
    ]
    return _verdict(episode.worst, episode.started_at, episode.ended_at, transitions)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict that is no episode: it is ok."""
    return _verdict(verdict, None, None, [])


def _verdict(
    verdict: Verdict, started_at: float | None, ended_at: float | None, transitions: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "rule": verdict.rule,
        "tier": verdict.subject.tier,
        "replica": verdict.subject.replica,
        "status": verdict.status.value,
        "certainty": verdict.certainty.value,
        "started_at": started_at,
        "ended_at": ended_at,
        "transitions": transitions,
        "observed": reading_json(verdict.observed),
        "expected": reading_json(verdict.expected),
        "unit": verdict.unit,
        "sentence": verdict.sentence,
        "causes": [cause_json(cause) for cause in verdict.causes],
        "actions": [{"text": action.text, "runbook": action.runbook} for action in verdict.actions],
    }


def cause_json(cause: Cause) -> dict[str, Any]:
    return {
        "cause": cause.cause,
        "certainty": cause.certainty.value,
        "evidence": list(cause.evidence),
        "against": list(cause.against),
    }


def unknown_json(span: UnknownSpan) -> dict[str, Any]:
    return {
        "rule": span.rule,
        "tier": span.subject.tier,
        "replica": span.subject.replica,
        "reason": span.reason.value,
        "text": span.text,
        "started_at": span.started_at,
        "ended_at": span.ended_at,
    }


def replay_json(
    shown: Iterable[tuple[str, str | None, Window]],
    bases: Mapping[str, PlanFacts],
    ended: Iterable[ClosedSpan],
    standings: Iterable[RuleState],
    problems: Iterable[str],
) -> dict[str, Any]:
    """The whole document."""
    standing, past = tuple(standings), tuple(ended)
    episodes = [e for e in past if isinstance(e, Finding)] + [s.episode for s in standing if s.episode]
    unknowns = [u for u in past if isinstance(u, UnknownSpan)] + [s.unknown for s in standing if s.unknown]
    fine = [s.answer for s in standing if isinstance(s.answer, Verdict) and s.answer.status is Status.OK]
    told = {(e.rule, e.subject) for e in episodes}
    verdicts = [episode_json(e) for e in sorted(episodes, key=lambda e: e.started_at)]
    verdicts += [verdict_json(v) for v in fine if (v.rule, v.subject) not in told]
    return {
        "schema": SCHEMA,
        "windows": [window_json(tier, replica, window, bases[tier]) for tier, replica, window in shown],
        "verdicts": verdicts,
        "unknowns": [unknown_json(u) for u in sorted(unknowns, key=lambda u: u.started_at)],
        "problems": list(problems),
    }
