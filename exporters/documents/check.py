"""Step 13 as text and JSON: a line per verdict with its certainty, and the reach of production's load.

The module serves `sizewatch check`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from exporters.documents.replay import explanation_json, incident_json
from exporters.render.text import copy_fields, describe_gap, format_duration, format_local, runbook_url
from rules.catalogue.registry import BY_NAME
from rules.evaluator.benchmark_check import LEARNING_SECONDS, Step13, learning_words
from rules.evaluator.incidents import Incident
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.wording import number
from rules.telemetry.work import CapacitySource
from rules.verdicts.verdict import FIRING, RuleResult, Status, Unknown

WIDTH = 100
HEADS = {
    Status.OK: "production confirms the benchmark",
    Status.WARNING: "production does not confirm the benchmark",
    Status.CRITICAL: "production does not confirm the benchmark",
    Status.UNKNOWN: "cannot be judged",
}

BATCH_PAGE = "docs/batch.md"
"""Page about the work of batch tiers, whose row is no rule and has no runbook."""

NO_BENCHMARK = "other limits are broken; the plan has no benchmark to confirm"


def check_text(
    tiers: Iterable[Step13], since_words: str, asked_seconds: float, incidents: Sequence[Incident] = ()
) -> str:
    """Return the check of every tier, worst verdict first, and the watched time if it is less than requested.

    A verdict that fires names its newest incident.
    """
    return "\n\n".join("\n".join(_tier(tier, since_words, asked_seconds, incidents)) for tier in tiers)


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


def _tier(step13: Step13, since_words: str, asked_seconds: float, incidents: Sequence[Incident]) -> list[str]:
    short = step13.seen_seconds < FULL_COVERAGE * asked_seconds
    seen = f"{format_duration(step13.seen_seconds)} seen of {since_words}" if short else since_words
    lines = [f"{step13.tier}: {result_words(step13)} ({seen}, {step13.requests:,.0f} requests)", f"  {_reach(step13)}"]
    for result in sorted(step13.results, key=lambda a: (isinstance(a, Unknown), not _fires(a))):
        lines += _wrapped(_line(result), 2, 12)
        if _fires(result) and not isinstance(result, Unknown):
            texts = [f"incident: {about.sentence}" for about in _incidents_of(result.rule, step13.tier, incidents)[-1:]]
            texts += [*result.details, *(f"cause: {'; '.join(c.evidence)}" for c in result.causes)]
            texts += [*(f"do: {action}" for action in result.actions[:1]), f"runbook: {_page(result.rule)}"]
            lines += [line for text in texts for line in _wrapped(text, 12, 14)]
    if step13.unvisited:
        lines += _wrapped(f"load not reached: {', '.join(step13.unvisited)} a replica", 2, 4)
    for line in step13.guardrails:
        sure = "" if line.status == Status.UNKNOWN else f", {line.certainty.value}"
        lines += _wrapped(f"{line.status:9} {line.key}{sure}: {line.sentence}", 2, 12)
    return lines


def _incidents_of(rule: str, tier: str, incidents: Iterable[Incident]) -> list[Incident]:
    return [
        incident
        for incident in incidents
        if incident.tier == tier and any(finding.rule == rule for finding in incident.findings)
    ]


def _wrapped(text: str, first: int, then: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * first, subsequent_indent=" " * then)


def _page(rule: str) -> str:
    return runbook_url(rule) if rule in BY_NAME else BATCH_PAGE


def _fires(result: RuleResult) -> bool:
    return not isinstance(result, Unknown) and result.status in FIRING


def _line(result: RuleResult) -> str:
    if isinstance(result, Unknown):
        return f"unknown   {result.rule}: {describe_gap(result.reason, result.text, '{gap} ({text})')}"
    return f"{result.status.value:9} {result.rule}, {result.certainty.value}: {result.sentence}"


def _reach(step13: Step13) -> str:
    if step13.highest_rps is None:
        return "no load was seen"
    if step13.highest_share is None:
        return f"highest load reached: {number(step13.highest_rps, 'per_second')} a replica; the plan has no usable rps"
    text = f"highest load reached: {number(step13.highest_rps, 'per_second')} a replica, {step13.highest_share:.0%} of the "
    text += f"{number(step13.usable_rps or 0, 'per_second')} that the plan calls usable"
    now = step13.capacity
    if now is None or now.source is not CapacitySource.PRODUCTION or now.rps == now.planned_rps:
        return text
    return f"{text}; a replica takes {number(now.rps, 'per_second')} now: {now.reason}"


def check_json(tiers: Iterable[Step13], incidents: Sequence[Incident] = ()) -> dict[str, Any]:
    """Return the check as JSON, with the incidents of each tier."""
    return {"schema": 1, "tiers": [_tier_json(tier, incidents) for tier in tiers]}


def _tier_json(step13: Step13, incidents: Sequence[Incident]) -> dict[str, Any]:
    return {
        "tier": step13.tier,
        "status": step13.status.value,
        "learning": step13.is_learning,
        "seen_seconds": step13.seen_seconds,
        "needed_seconds": LEARNING_SECONDS,
        **copy_fields(step13, "requests", "highest_rps", "usable_rps"),
        "capacity_rps": step13.capacity.rps if step13.capacity else None,
        "capacity_source": step13.capacity.source.value if step13.capacity else None,
        "highest_share_of_usable": step13.highest_share,
        "load_not_reached": list(step13.unvisited or ()),
        "answers": [_answer_json(result) for result in step13.results],
        "guardrails": [
            copy_fields(line, "key", "planned", "low", "high", "state", "status", "certainty", "sentence")
            for line in step13.guardrails
        ],
        "incidents": [incident_json(about) for about in incidents if about.tier == step13.tier],
    }


def _answer_json(result: RuleResult) -> dict[str, Any]:
    if isinstance(result, Unknown):
        return {"rule": result.rule, "status": Status.UNKNOWN.value, "reason": result.reason.value, "text": result.text}
    return {
        "rule": result.rule,
        "status": result.status.value,
        "certainty": result.certainty.value,
        **explanation_json(result),
    }
