"""Replay as JSON (DESIGN 6) and as terminal text: windows with readings, findings, and unknown spans.

The JSON of verdicts and readings is used by other documents too. The text has at most 100 columns.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from exporters.render.text import copy_fields, describe_gap, runbook_url
from rules.engines.coverage import engine_signals
from rules.evaluator.incidents import Incident, group_incidents
from rules.plan.load_bins import TierContext
from rules.telemetry.derived import PlanFacts
from rules.telemetry.readings import read, read_all
from rules.telemetry.signals import Gap, Missing, SignalValue
from rules.telemetry.windows import Window
from rules.verdicts.finding import ClosedSpan, Finding, RuleState, UnknownSpan, severity_of, severity_words
from rules.verdicts.verdict import Status, Subject, Unknown, Verdict

SCHEMA = 1
WIDTH = 100


def reading_json(value: SignalValue) -> dict[str, Any]:
    """Return a reading, or the name of its gap."""
    if isinstance(value, Missing):
        return {"gap": value.gap.value} | ({"text": value.text} if value.text else {})
    return copy_fields(value, "value", "low", "high", "n")


def window_json(tier: str, replica: str | None, window: Window, basis: PlanFacts) -> dict[str, Any]:
    """Return a window with every signal of the table."""
    return {
        **copy_fields(window, "start", "end"),
        "tier": tier,
        "replica": replica,
        "coverage": round(window.coverage, 6),
        "readings": {name: reading_json(value) for name, value in read_all(window, basis).items()},
    }


def episode_json(finding: Finding) -> dict[str, Any]:
    """Return a finding with its worst verdict."""
    transitions = [
        {"t": t.t, "status": t.status.value, "stage": t.stage, "certainty": t.certainty.value}
        for t in finding.transitions
    ]
    return _verdict(finding.worst, finding.started_at, finding.ended_at, transitions)


def incident_json(incident: Incident) -> dict[str, Any]:
    """Return an incident with its findings in the order of their begin."""
    return {
        **copy_fields(incident, "id", "tier"),
        "root": incident.root.rule,
        "severity": incident.severity.value,
        **copy_fields(incident, "started_at", "ended_at"),
        "findings": [
            {"rule": finding.rule, "replica": finding.subject.replica, **copy_fields(finding, "started_at", "ended_at")}
            for finding in incident.findings
        ],
        **copy_fields(incident, "sentence", "action", "relief"),
        "impact": impact_json(incident),
    }


def impact_json(incident: Incident) -> dict[str, Any]:
    """Return what users feel, which replicas are concerned, and what idles. Unknown parts are None."""
    missed = incident.missed
    return {
        "missed": None
        if missed is None
        else {
            "objective": missed.objective or "requests served",
            "limit_seconds": missed.limit_seconds,
            "share": reading_json(missed.share),
            "requests": None if missed.share.value is None else round(missed.share.value * missed.share.n),
        },
        "replicas": list(incident.replicas),
        "idle": None if incident.idle is None else asdict(incident.idle),
    }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict that is no finding, as it is ok."""
    return _verdict(verdict, None, None, [])


def _verdict(
    verdict: Verdict, started_at: float | None, ended_at: float | None, transitions: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "rule": verdict.rule,
        **copy_fields(verdict.subject, "tier", "replica"),
        "status": verdict.status.value,
        "certainty": verdict.certainty.value,
        "started_at": started_at,
        "ended_at": ended_at,
        "transitions": transitions,
        **explanation_json(verdict),
    }


def explanation_json(verdict: Verdict) -> dict[str, Any]:
    """Return the readings, the sentence, the details, the causes and the actions of a verdict."""
    return {
        "observed": reading_json(verdict.observed),
        "expected": reading_json(verdict.expected),
        **copy_fields(verdict, "unit", "sentence"),
        "details": list(verdict.details),
        "causes": [asdict(cause) for cause in verdict.causes],
        "actions": [{"text": action, "runbook": verdict.rule} for action in verdict.actions],
    }


def unknown_json(span: Unknown | UnknownSpan) -> dict[str, Any]:
    """Return an unknown result, or the gap of a span without its times."""
    return {
        "rule": span.rule,
        **copy_fields(span.subject, "tier", "replica"),
        "reason": span.reason.value,
        "text": span.text,
    }


def replay_json(
    shown: Iterable[tuple[str, str | None, Window]],
    bases: Mapping[str, PlanFacts],
    ended: Iterable[ClosedSpan],
    rule_states: Iterable[RuleState],
    problems: Iterable[str],
    of_cut_minute: Iterable[Finding] = (),
) -> dict[str, Any]:
    """Return the whole document. `of_cut_minute` began or ended with the last minute, which is not over."""
    past, states = tuple(ended), tuple(rule_states)
    findings, fine = _results(past, states)
    unknowns = [u for u in past if isinstance(u, UnknownSpan)] + [s.unknown for s in states if s.unknown]
    verdicts = [*map(episode_json, findings), *map(verdict_json, fine)]
    return {
        "schema": SCHEMA,
        "windows": [window_json(tier, replica, window, bases[tier]) for tier, replica, window in shown],
        "verdicts": verdicts,
        "incidents": [incident_json(incident) for incident in group_incidents(findings)],
        "unknowns": [
            unknown_json(u) | copy_fields(u, "started_at", "ended_at")
            for u in sorted(unknowns, key=lambda u: u.started_at)
        ],
        "cut_minute": [
            {"rule": finding.rule, **copy_fields(finding.subject, "tier", "replica"), "change": _cut(finding)}
            for finding in of_cut_minute
        ],
        "problems": list(problems),
    }


def _cut(finding: Finding) -> str:
    """Return what the cut minute did to a finding of it."""
    return "began" if finding.ended_at is None else "ended"


def _results(ended: tuple[ClosedSpan, ...], states: tuple[RuleState, ...]) -> tuple[list[Finding], list[Verdict]]:
    """Return all findings, oldest first, and the ok verdicts of rules without a finding."""
    findings = [e for e in ended if isinstance(e, Finding)] + [s.finding for s in states if s.finding]
    shown = {(e.rule, e.subject) for e in findings}
    fine = [s.result for s in states if isinstance(s.result, Verdict) and s.result.status is Status.OK]
    return sorted(findings, key=lambda e: e.started_at), [v for v in fine if (v.rule, v.subject) not in shown]


def replay_text(
    name: str,
    start: float,
    end: float,
    contexts: Mapping[str, TierContext],
    ended: Iterable[ClosedSpan],
    rule_states: Iterable[RuleState],
    seen: bool = True,
    of_cut_minute: Iterable[Finding] = (),
) -> str:
    """Return the whole text. Times are seconds from the first scrape. `seen` is false for an empty recording.

    `of_cut_minute` began or ended with the last minute, which is not over."""
    states, cut = tuple(rule_states), tuple(of_cut_minute)
    findings, fine = _results(tuple(ended), states)
    length = f"{_clock(end - start)} of {', '.join(sorted(contexts))}" if end >= start else "holds no scrape"
    lines = [f"{name}: {length}", ""]
    if not findings:
        lines.append("Nothing was found." if seen else "Nothing was seen.")
    for finding in findings:
        lines.extend(_finding_lines(finding, start, finding in cut))
    lines += _section("Judged and fine:", [(v.rule, v.subject, v.sentence) for v in fine])
    unknowns = [s.unknown for s in states if s.unknown]
    reasons = [(u.rule, u.subject, describe_gap(u.reason, u.text, "{gap} ({text})")) for u in unknowns]
    lines += _section("Not judged:", reasons)
    return "\n".join(lines)


def not_exposed_text(last: Mapping[str, Window]) -> str:
    """Return by tier the supported signals that its engine did not expose in its last window, "" if there are none."""
    lines = []
    for tier, window in last.items():
        rows = [(signal.name, read(signal, window)) for signal in engine_signals()]
        missing = [name for name, value in rows if isinstance(value, Missing) and value.gap is Gap.NOT_EXPOSED]
        if missing:
            lines.append(_wrapped(f"{tier}: {', '.join(missing)}", "  ") + "\n")
    return "\nNot exposed by the engine (`sizewatch inspect PAGE` says why):\n" * bool(lines) + "".join(lines)


def _section(title: str, rows: Iterable[tuple[str, Subject, str]]) -> list[str]:
    """Return a section in which equal texts of several rules and subjects are merged."""
    together: dict[str, list[tuple[str, Subject]]] = {}
    for rule, subject, text in rows:
        together.setdefault(text, []).append((rule, subject))
    if not together:
        return []
    lines = [_wrapped(f"{_about(about)}: {text}", "  ") for text, about in together.items()]
    return ["", title, *lines]


def _about(about: Iterable[tuple[str, Subject]]) -> str:
    rules: dict[str, list[str]] = {}
    for rule, subject in about:
        rules.setdefault(rule, []).append(str(subject))
    subjects: dict[str, list[str]] = {}
    for rule, names in rules.items():
        subjects.setdefault(", ".join(names), []).append(rule)
    return ", ".join(f"{', '.join(names)} ({subject})" for subject, names in subjects.items())


def _finding_lines(finding: Finding, origin: float, is_of_cut_minute: bool) -> list[str]:
    """Return a finding: time, severity, certainty, sentence, details, causes and actions."""
    until = f"to {_clock(finding.ended_at - origin)}" if finding.ended_at is not None else "and lasts"
    worst = finding.worst
    severity, _, certainty = severity_words(severity_of(worst, finding)).partition(", ")
    subject = ", ".join(filter(None, (f"{finding.rule} ({finding.subject})", certainty)))
    head = f"{severity.upper():8} {subject}, from {_clock(finding.started_at - origin)} {until}"
    lines = [head, _wrapped(worst.sentence, "    "), *(_wrapped(text, "      ") for text in worst.details)]
    if is_of_cut_minute:
        lines.append(
            f"    {_cut(finding)} with the last minute, which the end cuts: a running agent waits until it is over"
        )
    reached = [(before, now) for before, now in pairwise((None, *finding.transitions)) if now is not None and now.stage]
    if reached:
        steps = [
            f"{now.stage} at {_clock(now.t - origin)}"
            for before, now in reached
            if not before or before.stage != now.stage
        ]
        lines.append(f"    stages: {', '.join(steps)}")
    for cause in worst.causes:
        lines.append(_wrapped(f"cause ({cause.certainty.value}): {'; '.join(cause.evidence)}", "    "))
        lines.extend(_wrapped(text, "      ") for text in cause.against)
    lines.extend(_wrapped(f"do: {action}", "    ") for action in worst.actions[:3])
    lines.append(f"    runbook: {runbook_url(finding.rule)}")
    return lines


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
