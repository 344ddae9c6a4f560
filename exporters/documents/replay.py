"""Replay, timeline, and the check of a benchmark (step 13), as JSON and as terminal text."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter
from rich.console import RenderableType

from exporters.render.terminal import WIDEST, terminal_text, text_grid
from exporters.render.text import copy_fields, describe_gap, format_local, json_fields, runbook_url
from rules.catalogue.registry import BY_NAME
from rules.evaluator.benchmark_check import LEARNING_SECONDS, Step13, learning_words
from rules.evaluator.incidents import Incident, group_incidents
from rules.evaluator.timeline import TimelineEntry, TimelineKind
from rules.plan.load_bins import TierContext
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.readings import read_all
from rules.telemetry.signals import SignalValue
from rules.telemetry.windows import Window
from rules.telemetry.wording import format_duration, number
from rules.telemetry.work import CapacitySource
from rules.verdicts.verdict import (
    FIRING,
    ClosedSpan,
    Finding,
    RuleResult,
    RuleState,
    Status,
    Unknown,
    UnknownSpan,
    Verdict,
    severity_of,
    severity_words,
)

ANY: TypeAdapter[Any] = TypeAdapter(Any)
"""Adapter that writes any record as JSON, infinity as null."""

PARTS_OF_INCIDENTS = {"t", "stage", "missed", "idle", "is_forecast"}
"""Fields of a verdict that only its incident shows, or the changes of its finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a replay. `start` and `end` are unix seconds, NaN for a recording without a scrape.

    `windows` are tier, replica (None for the tier) and window. `of_cut_minute` are the findings that began or ended with
    the last minute, which is not over. `seen` says whether any window has data.
    """

    name: str
    start: float
    end: float
    contexts: Mapping[str, TierContext]
    ended: Sequence[ClosedSpan]
    rule_states: Sequence[RuleState]
    windows: Sequence[tuple[str, str | None, Window]] = ()
    problems: Sequence[str] = ()
    of_cut_minute: Collection[Finding] = ()
    seen: bool = True

    @property
    def findings(self) -> list[Finding]:
        """Return all findings, oldest first."""
        ended = [span for span in self.ended if isinstance(span, Finding)]
        lasting = [state.finding for state in self.rule_states if state.finding]
        return sorted([*ended, *lasting], key=lambda finding: finding.started_at)

    @property
    def fine(self) -> list[Verdict]:
        """Return the ok verdicts of rules without a finding."""
        shown = {(finding.rule, finding.subject) for finding in self.findings}
        verdicts = [state.result for state in self.rule_states if isinstance(state.result, Verdict)]
        return [v for v in verdicts if v.status is Status.OK and (v.rule, v.subject) not in shown]


def reading_json(value: SignalValue) -> dict[str, Any]:
    """Return a reading, or the name of its gap."""
    fields: dict[str, Any] = ANY.dump_python(value, mode="json")
    if fields.get("text") == "":
        del fields["text"]
    return fields


def verdict_json(verdict: Verdict, finding: Finding | None = None) -> dict[str, Any]:
    fields = _flat_json(verdict, PARTS_OF_INCIDENTS)
    fields |= {name: reading_json(getattr(verdict, name)) for name in ("observed", "expected")}
    fields["actions"] = [{"text": action, "runbook": verdict.rule} for action in verdict.actions]
    if finding is None:
        return fields | {"started_at": None, "ended_at": None, "transitions": []}
    return fields | _flat_json(finding, {"worst"})


def episode_json(finding: Finding) -> dict[str, Any]:
    return verdict_json(finding.worst, finding)


def unknown_json(span: Unknown | UnknownSpan) -> dict[str, Any]:
    return _flat_json(span, {"t", "wait_seconds"})


def _flat_json(record: object, without: set[str]) -> dict[str, Any]:
    fields: dict[str, Any] = ANY.dump_python(record, mode="json", exclude=without)
    return {**fields.pop("subject"), **fields}


def incident_json(incident: Incident) -> dict[str, Any]:
    """Return an incident with its findings in the order of their begin, and its impact: unknown parts are null."""
    fields: dict[str, Any] = ANY.dump_python(incident, mode="json", exclude={"verdict", "findings"})
    missed, share = fields.pop("missed"), incident.missed.share if incident.missed else None
    if missed and share:
        requests = None if share.value is None else round(share.value * share.n)
        missed |= {"objective": missed["objective"] or "requests served", "requests": requests}
    impact = {"missed": missed, "replicas": fields.pop("replicas"), "idle": fields.pop("idle")}
    findings = [_flat_json(finding, {"worst", "transitions"}) for finding in incident.findings]
    for finding in findings:
        del finding["tier"]
    return fields | {"root": incident.root.rule, "findings": findings, "impact": impact}


def replay_json(result: ReplayResult) -> dict[str, Any]:
    """Return the whole document. Times are unix seconds."""
    unknowns = [span for span in result.ended if isinstance(span, UnknownSpan)]
    unknowns += [state.unknown for state in result.rule_states if state.unknown]
    windows = []
    for tier, replica, window in result.windows:
        readings = {}
        for name, value in read_all(window, result.contexts[tier].basis).items():
            readings[name] = reading_json(value)
        times = copy_fields(window, "start", "end")
        coverage = round(window.coverage, 6)
        windows.append({"tier": tier, "replica": replica, **times, "coverage": coverage, "readings": readings})
    cut = []
    for finding in result.of_cut_minute:
        subject = copy_fields(finding.subject, "tier", "replica")
        cut.append({"rule": finding.rule, **subject, "change": _cut(finding)})
    return {
        "schema": 1,
        "windows": windows,
        "verdicts": [*map(episode_json, result.findings), *map(verdict_json, result.fine)],
        "incidents": list(map(incident_json, group_incidents(result.findings))),
        "unknowns": list(map(unknown_json, sorted(unknowns, key=lambda span: span.started_at))),
        "cut_minute": cut,
        "problems": list(result.problems),
    }


def _cut(finding: Finding) -> str:
    if finding.ended_at is None:
        return "began"
    return "ended"


def replay_text(result: ReplayResult) -> str:
    """Return the whole text. Times are seconds from the first scrape."""
    length = "holds no scrape"
    if result.end >= result.start:
        length = f"{_clock(result.end - result.start)} of {', '.join(sorted(result.contexts))}"
    parts: list[RenderableType] = [f"{result.name}: {length}"]
    if not result.findings:
        parts += ["", "Nothing was found." if result.seen else "Nothing was seen."]
    for finding in result.findings:
        parts += ["", text_grid(_finding_rows(finding, result), indent=0)]
    unknowns = [state.unknown for state in result.rule_states if state.unknown]
    reasons = [(span, describe_gap(span.reason, span.text, "{gap} ({text})")) for span in unknowns]
    parts += _section("Judged and fine:", [(verdict, verdict.sentence) for verdict in result.fine])
    parts += _section("Not judged:", reasons)
    return terminal_text(*parts)


def _section(title: str, rows: Iterable[tuple[Verdict | UnknownSpan, str]]) -> list[RenderableType]:
    subjects: dict[str, dict[str, list[str]]] = {}
    for result, text in rows:
        subjects.setdefault(text, {}).setdefault(result.rule, []).append(str(result.subject))
    lines = []
    for text, by_rule in subjects.items():
        # Rules of the same subjects share these.
        groups = groupby(by_rule, key=lambda rule: by_rule[rule])
        lines.append((", ".join(f"{', '.join(rules)} ({', '.join(names)})" for names, rules in groups), text))
    if lines:
        return ["", title, text_grid(lines)]
    return []


def _finding_rows(finding: Finding, result: ReplayResult) -> list[tuple[str, str]]:
    until = "and lasts" if finding.ended_at is None else f"to {_clock(finding.ended_at - result.start)}"
    severity, _, certainty = severity_words(severity_of(finding.worst, finding)).partition(", ")
    subject = ", ".join(filter(None, (f"{finding.rule} ({finding.subject})", certainty)))
    lines = [f"{subject}, from {_clock(finding.started_at - result.start)} {until}", finding.worst.sentence]
    if finding in result.of_cut_minute:
        lines.append(f"{_cut(finding)} with the last minute, which is not over: a running agent waits for its end")
    stages = []
    for stage, changes in groupby(finding.transitions, key=lambda change: change.stage):
        if stage:
            stages.append(f"{stage} at {_clock(next(changes).t - result.start)}")
    if stages:
        lines.append(f"stages: {', '.join(stages)}")
    lines += explanation(finding.worst)
    return [(severity.upper(), lines[0]), *(("", line) for line in lines[1:])]


def explanation(verdict: Verdict, runbook: str = "") -> list[str]:
    lines = [*verdict.details]
    for cause in verdict.causes:
        lines.append(f"cause ({cause.certainty.value}): {'; '.join((*cause.evidence, *cause.against))}")
    lines += [f"do: {action}" for action in verdict.actions[:3]]
    return [*lines, f"runbook: {runbook or runbook_url(verdict.rule)}"]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


HEADS = {
    Status.OK: "production confirms the benchmark",
    Status.WARNING: "production does not confirm the benchmark",
    Status.CRITICAL: "production does not confirm the benchmark",
    Status.UNKNOWN: "cannot be judged",
}

BATCH_PAGE = "docs/special-tiers.md"
"""Page about the work of batch tiers, whose row is no rule and has no runbook."""

NOTHING_SEEN = "its history has no minute of this time; `sizewatch run` writes them, `sizewatch status` shows it live"

NO_BENCHMARK = "other limits are broken; the plan has no benchmark to confirm"


def check_text(
    tiers: Iterable[Step13], since_words: str, asked_seconds: float, incidents: Sequence[Incident] = ()
) -> str:
    """Return the check of every tier: worst verdict first, a firing one with its incident, and what was seen if not all."""
    parts: list[RenderableType] = []
    for step13 in tiers:
        seen = since_words
        if step13.seen_seconds < FULL_COVERAGE * asked_seconds:
            seen = f"{format_duration(step13.seen_seconds)} seen of {since_words}"
        parts += [f"{step13.tier}: {result_words(step13)} ({seen}, {step13.requests:,.0f} requests)"]
        if not step13.seen_seconds and step13.new_since is None:
            parts += [text_grid([("unknown", NOTHING_SEEN)]), ""]
            continue
        rows = [("load", _reach(step13))]
        if step13.unvisited:
            rows.append(("", f"not reached: {', '.join(step13.unvisited)} a replica"))
        # First what fires, last what is unknown.
        order: dict[object, int] = {Status.WARNING: 0, Status.CRITICAL: 0, Status.OK: 1}
        for result in sorted(step13.results, key=lambda result: order.get(getattr(result, "status", None), 2)):
            rows += _result_rows(result, step13.tier, incidents)
        for line in step13.guardrails:
            sure = "" if line.status == Status.UNKNOWN else f", {line.certainty.value}"
            rows.append((line.status, f"{line.key}{sure}: {line.sentence}"))
        parts += [text_grid(rows), ""]
    return terminal_text(*parts[:-1])


def _result_rows(result: RuleResult, tier: str, incidents: Iterable[Incident]) -> list[tuple[str, str]]:
    if isinstance(result, Unknown):
        return [("unknown", f"{result.rule}: {describe_gap(result.reason, result.text, '{gap} ({text})')}")]
    rows: list[tuple[str, str]] = [(result.status, f"{result.rule}, {result.certainty.value}: {result.sentence}")]
    if result.status in FIRING:
        about = [i for i in incidents if i.tier == tier and any(f.rule == result.rule for f in i.findings)]
        rows += [("", f"incident: {incident.sentence}") for incident in about[-1:]]
        rows += [("", line) for line in explanation(result, "" if result.rule in BY_NAME else BATCH_PAGE)]
    return rows


def result_words(step13: Step13) -> str:
    if step13.new_since is not None:
        since = format_local(step13.new_since, "UTC", "%H:%M UTC")
        return f"new plan since {since}: no minute under it is over; is the daemon up?"
    if step13.is_learning:
        return learning_words(step13.seen_seconds)
    if step13.unvisited is None and step13.status in FIRING:
        return NO_BENCHMARK
    return HEADS[step13.status]


def headline(step13: Step13) -> str:
    """Return the tier, its result and the reach of the load in a sentence."""
    return f"{step13.tier}: {result_words(step13)}; {_reach(step13)}"


def _reach(step13: Step13) -> str:
    if step13.highest_rps is None:
        return "no load was seen"
    text = f"highest load reached: {number(step13.highest_rps, 'per_second')} a replica"
    if step13.highest_share is None:
        return f"{text}; the plan has no usable rps"
    text += f", {step13.highest_share:.0%} of the "
    text += f"{number(step13.usable_rps or 0, 'per_second')} that the plan calls usable"
    now = step13.capacity
    if now is None or now.source is not CapacitySource.PRODUCTION or now.rps == now.planned_rps:
        return text
    return f"{text}; a replica takes {number(now.rps, 'per_second')} now: {now.reason}"


def check_json(tiers: Iterable[Step13], incidents: Sequence[Incident] = ()) -> dict[str, Any]:
    return {"schema": 1, "tiers": [_tier_json(tier, incidents) for tier in tiers]}


def _tier_json(step13: Step13, incidents: Sequence[Incident]) -> dict[str, Any]:
    answers = []
    for result in step13.results:
        answers.append(unknown_json(result) if isinstance(result, Unknown) else verdict_json(result))
        answers[-1].setdefault("status", Status.UNKNOWN.value)
    return {
        **copy_fields(step13, "tier", "seen_seconds", "requests", "highest_rps", "usable_rps"),
        "status": step13.status.value,
        "learning": step13.is_learning,
        "needed_seconds": LEARNING_SECONDS,
        "capacity_rps": step13.capacity.rps if step13.capacity else None,
        "capacity_source": step13.capacity.source.value if step13.capacity else None,
        "highest_share_of_usable": step13.highest_share,
        "load_not_reached": step13.unvisited or (),
        "answers": answers,
        "guardrails": [
            copy_fields(line, "key", "planned", "low", "high", "state", "status", "certainty", "sentence")
            for line in step13.guardrails
        ],
        "incidents": [incident_json(incident) for incident in incidents if incident.tier == step13.tier],
    }


LONGEST = 200
"""Maximum characters of a text in a line. The JSON has the full text."""

WORDS: dict[str, str] = {
    TimelineKind.PLAN: "plan changed",
    TimelineKind.RELOAD: "configuration",
    TimelineKind.STEP13: "step 13",
    TimelineKind.BACK_FILL: "history filled",
    TimelineKind.FORECAST: "forecasting",
    TimelineKind.START: "sizewatch started",
    TimelineKind.STOP: "sizewatch stopped",
}
"""Words for kinds of entries. A finding is named by its status, an incident by severity."""


def timeline_text(entries: Sequence[TimelineEntry], now: float, findings: bool = False) -> str:
    """Return the entries in the given order, newest last. Times are UTC. `findings` are below their incident, or folded."""
    rows = []
    for entry in fold_findings(entries):
        rows.append(_row(entry, now))
        if findings and entry.incident:
            of_incident = (below for below in entries if below.incident == entry.incident and below is not entry)
            rows += [_row(below, now, "  ") for below in of_incident]
    if not rows:
        return "Nothing happened, as far as is known."
    # A line an entry, so that lines can be searched.
    return terminal_text(text_grid(rows, indent=0), width=WIDEST)


def _row(entry: TimelineEntry, now: float, margin: str = "") -> tuple[str, str, str]:
    return format_local(entry.t, "UTC", "%Y-%m-%d %H:%M:%S"), place(entry), f"{margin}{line(entry, now)}"


def fold_findings(entries: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    """Return the entries without those of findings, which their incidents tell."""
    return [entry for entry in entries if entry.kind != TimelineKind.EPISODE]


def line(entry: TimelineEntry, now: float) -> str:
    head = entry.status or WORDS.get(entry.kind, entry.kind.replace("_", " "))
    text = f"{head}: {textwrap.shorten(entry.text, LONGEST, placeholder=' …')}"
    if not entry.lasts:
        return text
    if entry.ended_at is None:
        return f"{text} (for {format_duration(now - entry.t)}, not over)"
    return f"{text} (for {format_duration(entry.ended_at - entry.t)})"


def place(entry: TimelineEntry) -> str:
    if entry.tier is None:
        if entry.kind != TimelineKind.FOREIGN_ALERT:
            return "all"
        return "no tier"
    if entry.replica is None:
        return entry.tier
    return f"{entry.tier}/{entry.replica}"


def timeline_json(entries: Iterable[TimelineEntry], since: float, until: float) -> dict[str, Any]:
    """Return the timeline as JSON, in unix seconds. `ended_at` is null while it lasts or if `lasts` is false."""
    return {"schema": 1, "since": since, "until": until, "entries": list(map(entry_json, entries))}


def entry_json(entry: TimelineEntry) -> dict[str, Any]:
    fields: dict[str, Any] = json_fields(entry)
    return fields | {name: fields[name] or None for name in ("rule", "status", "incident")}
