"""Step 13 as text and JSON: a line per verdict with its certainty, and the reach of production's load.

The module serves `sizewatch check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import RenderableType

from exporters.documents.replay import explanation, incident_json, unknown_json, verdict_json
from exporters.render.terminal import terminal_text, text_grid
from exporters.render.text import copy_fields, describe_gap, format_duration, format_local
from rules.catalogue.registry import BY_NAME
from rules.evaluator.benchmark_check import LEARNING_SECONDS, Step13, learning_words
from rules.evaluator.incidents import Incident
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.wording import number
from rules.telemetry.work import CapacitySource
from rules.verdicts.verdict import FIRING, RuleResult, Status, Unknown

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
    """Return the check of every tier, worst verdict first, and the watched time if it is less than requested.

    A verdict that fires names its newest incident.
    """
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
    """Return the result in words: a confirmation, a difference, or why there is none yet."""
    if step13.new_since is not None:
        since = format_local(step13.new_since, "UTC", "%H:%M UTC")
        return f"new plan since {since}: no minute under it is over; is the daemon up?"
    if step13.is_learning:
        return learning_words(step13.seen_seconds)
    return NO_BENCHMARK if step13.unvisited is None and step13.status in FIRING else HEADS[step13.status]


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
    """Return the check as JSON, with the incidents of each tier."""
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
