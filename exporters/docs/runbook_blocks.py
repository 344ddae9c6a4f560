"""Generated blocks of docs/runbooks.md: rules by severity, which explains which, and method and thresholds of each.

A block lies between `<!-- generated: thresholds NAME -->` and `<!-- end -->`. The text around it is written by hand,
without these numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporters.render.text import format_duration
from rules.catalogue.registry import RULES, upstream_rules
from rules.verdicts.rule import Rule, Scope, Severity, Threshold

BLOCK = re.compile(r"<!-- generated: thresholds (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)

OVERVIEW = re.compile(r"<!-- generated: overview -->\n(.*?)<!-- end -->", re.DOTALL)

CAUSES = re.compile(r"<!-- generated: causes -->\n(.*?)<!-- end -->", re.DOTALL)

METHOD_TEXTS: Mapping[str, str] = {
    "judge_tail": "the share of requests slower than the benchmark allows at equal load",
    "judge_mean": "a mean against the benchmark's at equal load",
    "judge_excess": "events per finished request against the benchmark's at equal load",
    "judge_beyond": "the load of each replica and minute against the highest that was measured",
    "judge_event_ratio": "events per finished request against fixed limits",
    "judge_band": "a reading against fixed limits",
    "judge_drift": "lengths and shape of the traffic against the plan's",
    "judge_representative": "time in the system against the benchmark's at equal load",
    "judge_guardrail": "the gateway's limits in the plan against what is seen",
    "judge_precision": "the plan's number formats against what the planned GPU computes in hardware",
    "judge_cold_start": "measured starts against the planned lead",
    "judge_economics": "what speculation yields against what it costs",
    "judge_adapters": "requests held back for adapters against the objective",
    "judge_burn": "the share of requests outside the objective, over several windows at once",
    "judge_availability": "the share of requests that failed, over several windows at once",
    "judge_refused": "the share of requests that were refused, each kind against its own limit",
    "judge_shape": "the tail of a latency against what was promised, and against its median",
    **dict.fromkeys(
        ("judge_empty_cache", "judge_empty_queue", "judge_falling", "judge_headroom", "judge_trap"),
        "how the fleet is used, hour by hour (in a hold of minutes: minute by minute)",
    ),
    "judge_trend": "the end of that time against its beginning",
    "judge_replicas": "the replicas of the tier against each other",
    "judge_tiers": "the tiers of one model against each other",
    "judge_pools": "prefill replicas against decode replicas",
    "judge_experts": "how evenly the tokens of a pass fall on the GPUs that hold the experts",
    "judge_demand": "arriving requests, now and by the forecast, against what the replicas may take together",
    "judge_forecast": "past forecasts against what came",
    "judge_faults": "events that should not happen at all",
    "judge_cascade": "a state machine that follows every scrape",
    **dict.fromkeys(("judge_target_down", "judge_tier_down"), "scrapes in a row that failed"),
    "judge_stale": "time for which a page was served and did not move",
    "judge_unknown_too_long": "the time since each rule that can judge the tier last could",
}
"""Comparison that a method makes, by the name of its function. A method without a row gets a general text."""

LOUDNESS: Mapping[Severity, str] = {
    Severity.PAGE: "somebody is woken when it is critical, before that it is a ticket",
    Severity.TICKET: "looked at in working hours",
    Severity.REPORT: "told in the report only",
}
"""Notification by severity."""


class RunbookError(ValueError):
    """Error for blocks of the page that do not match the rules of the catalogue."""


def fill_runbooks(page: str) -> str:
    """Return the page with new blocks. Raise RunbookError unless each rule has exactly one block."""
    named = [match[1] for match in BLOCK.finditer(page)]
    known = {rule.name: rule for rule in RULES}
    wrong = [f"no block for {name}" for name in known if name not in named]
    wrong += [f"{name} is no rule" for name in dict.fromkeys(named) if name not in known]
    wrong += [f"{name} has {named.count(name)} blocks" for name in known if named.count(name) > 1]
    if wrong:
        raise RunbookError("; ".join(wrong))
    page = CAUSES.sub(lambda _: f"<!-- generated: causes -->\n{draw_causes()}\n<!-- end -->", page)
    page = OVERVIEW.sub(lambda _: f"<!-- generated: overview -->\n{overview()}\n<!-- end -->", page)
    return BLOCK.sub(
        lambda found: f"<!-- generated: thresholds {found[1]} -->\n{block(known[found[1]])}\n<!-- end -->", page
    )


def overview() -> str:
    """Return the table of all rules by severity, with links to their sections."""
    rows = []
    for severity, meaning in LOUDNESS.items():
        links = ", ".join(f"[{rule.name}](#{rule.name.lower()})" for rule in RULES if rule.loudness is severity)
        rows.append(f"| `{severity.value}`: {meaning} | {links} |")
    return "\n".join(["| severity | rules |", "|---|---|", *rows])


def draw_causes() -> str:
    """Return a Mermaid graph of the rules that explain others. An arrow that longer ways imply is not drawn."""
    upstream = upstream_rules(RULES)
    arrows = [
        f"  {cause} --> {rule.name}"
        for rule in RULES
        for cause in sorted(one.rule for one in rule.explained_by)
        if not any(cause in upstream[other.rule] for other in rule.explained_by)
    ]
    return "\n".join(["```mermaid", "graph LR", *arrows, "```"])


def block(rule: Rule) -> str:
    """Return the text between the markers of a rule."""
    rows = [_row(rule, name, threshold) for name, threshold in rule.thresholds.items()]
    return "\n".join(
        [_summary(rule), "", "| threshold | value | unit | where it comes from |", "|---|---|---|---|", *rows]
    )


def _summary(rule: Rule) -> str:
    about = "each tier" if rule.scope is Scope.TIER else "each replica"
    comparison = METHOD_TEXTS.get(rule.method.__name__, f"{rule.about or rule.title} against the thresholds below")
    return (
        f"Judged for {about}, {_window_text(rule)}: {comparison}. Signal `{rule.signal}`. "
        f"Loudness `{rule.loudness.value}`: {LOUDNESS[rule.loudness]}."
    )


def _window_text(rule: Rule) -> str:
    if any(name.endswith("_short_seconds") for name in rule.thresholds):
        return "over the windows below, each pair once its short one was seen"
    if not rule.window_seconds:
        return "at every scrape"
    return f"over the last {format_duration(rule.window_seconds)}, once {format_duration(rule.minimum_seconds)} of them were seen"


def _row(rule: Rule, name: str, threshold: Threshold) -> str:
    share = f" ({threshold.value * 100:g} %)" if threshold.unit == "ratio" and threshold.value < 1 else ""
    return f"| `{name}` | {threshold.value:g}{share} | {threshold.unit} | {threshold.source} |"
