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
    return "\n\n".join("\n".join(_tier(one, since_words, asked_seconds, incidents)) for one in tiers)


def result_words(one: Step13) -> str:
    """Return the result in words: a confirmation, a difference, or why there is none yet."""
    if one.new_since is not None:
        since = format_local(one.new_since, "UTC", "%H:%M UTC")
        return f"new plan since {since}: no minute under it is over; is the daemon up?"
    if one.is_learning:
        return learning_words(one.seen_seconds)
    return NO_BENCHMARK if one.unvisited is None and one.status in FIRING else HEADS[one.status]


def headline(one: Step13) -> str:
    """Return the tier, its result and the reach of the load in a sentence."""
    return f"{one.tier}: {result_words(one)}; {_reach(one)}"


def _tier(one: Step13, since_words: str, asked_seconds: float, incidents: Sequence[Incident]) -> list[str]:
    short = one.seen_seconds < FULL_COVERAGE * asked_seconds
    seen = f"{format_duration(one.seen_seconds)} seen of {since_words}" if short else since_words
    lines = [f"{one.tier}: {result_words(one)} ({seen}, {one.requests:,.0f} requests)", f"  {_reach(one)}"]
    for result in sorted(one.results, key=lambda a: (isinstance(a, Unknown), not _fires(a))):
        lines += _wrapped(_line(result), 2, 12)
        if _fires(result) and not isinstance(result, Unknown):
            said = [f"incident: {about.sentence}" for about in _incidents_of(result.rule, one.tier, incidents)[-1:]]
            said += [*result.details, *(f"cause: {'; '.join(c.evidence)}" for c in result.causes)]
            said += [*(f"do: {action}" for action in result.actions[:1]), f"runbook: {_page(result.rule)}"]
            lines += [line for text in said for line in _wrapped(text, 12, 14)]
    if one.unvisited:
        lines += _wrapped(f"load not reached: {', '.join(one.unvisited)} a replica", 2, 4)
    for line in one.guardrails:
        sure = "" if line.status == Status.UNKNOWN else f", {line.certainty.value}"
        lines += _wrapped(f"{line.status:9} {line.key}{sure}: {line.sentence}", 2, 12)
    return lines


def _incidents_of(rule: str, tier: str, incidents: Iterable[Incident]) -> list[Incident]:
    return [one for one in incidents if one.tier == tier and any(finding.rule == rule for finding in one.findings)]


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


def _reach(one: Step13) -> str:
    if one.highest_rps is None:
        return "no load was seen"
    if one.highest_share is None:
        return f"highest load reached: {number(one.highest_rps, 'per_second')} a replica; the plan has no usable rps"
    text = f"highest load reached: {number(one.highest_rps, 'per_second')} a replica, {one.highest_share:.0%} of the "
    text += f"{number(one.usable_rps or 0, 'per_second')} that the plan calls usable"
    now = one.capacity
    if now is None or now.source is not CapacitySource.PRODUCTION or now.rps == now.planned_rps:
        return text
    return f"{text}; a replica takes {number(now.rps, 'per_second')} now: {now.reason}"


def check_json(tiers: Iterable[Step13], incidents: Sequence[Incident] = ()) -> dict[str, Any]:
    """Return the check as JSON, with the incidents of each tier."""
    return {"schema": 1, "tiers": [_tier_json(one, incidents) for one in tiers]}


def _tier_json(one: Step13, incidents: Sequence[Incident]) -> dict[str, Any]:
    return {
        "tier": one.tier,
        "status": one.status.value,
        "learning": one.is_learning,
        "seen_seconds": one.seen_seconds,
        "needed_seconds": LEARNING_SECONDS,
        **copy_fields(one, "requests", "highest_rps", "usable_rps"),
        "capacity_rps": one.capacity.rps if one.capacity else None,
        "capacity_source": one.capacity.source.value if one.capacity else None,
        "highest_share_of_usable": one.highest_share,
        "load_not_reached": list(one.unvisited or ()),
        "answers": [_answer_json(result) for result in one.results],
        "guardrails": [
            copy_fields(line, "key", "planned", "low", "high", "state", "status", "certainty", "sentence")
            for line in one.guardrails
        ],
        "incidents": [incident_json(about) for about in incidents if about.tier == one.tier],
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
