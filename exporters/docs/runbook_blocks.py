"""The generated blocks of docs/runbooks.md: how each rule is judged, in the catalogue's own numbers.

Owns the blocks and their places: between `<!-- generated: thresholds NAME -->` and `<!-- end -->`; what stands around
them people write, without any of these numbers. A new way of judging is a row of WAYS, a new loudness one of LOUDNESS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporters.render.text import format_duration
from rules.catalogue.registry import RULES
from rules.verdicts.rule import Rule, Scope, Severity, Threshold, Way

BLOCK = re.compile(r"<!-- generated: thresholds (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)

WAYS: Mapping[Way, str] = {
    Way.TAIL: "the share of requests slower than the benchmark allows at equal load",
    Way.SHORTFALL: "a mean against the benchmark's at equal load",
    Way.EXCESS: "events per finished request against the benchmark's at equal load",
    Way.BEYOND: "the load of each replica and minute against the highest that was measured",
    Way.EVENT_RATIO: "events per finished request against fixed limits",
    Way.BAND: "a reading against fixed limits",
    Way.DRIFT: "lengths and shape of the traffic against the plan's",
    Way.REPRESENTATIVE: "time in the system against the benchmark's at equal load",
    Way.GUARDRAIL: "the gateway's limits in the plan against what is seen",
    Way.PRECISION: "the plan's number formats against what the planned GPU computes in hardware",
    Way.COLD_START: "measured starts against the planned lead",
    Way.ECONOMICS: "what speculation yields against what it costs",
    Way.HELD_BACK: "requests held back for adapters against the objective",
    Way.BURN: "the share of requests outside the objective, over several windows at once",
    Way.AVAILABILITY: "the share of requests that failed, over several windows at once",
    Way.REFUSED: "the share of requests that were refused, each kind against its own limit",
    Way.SHAPE: "the tail of a latency against what was promised, and against its median",
    Way.LONG: "how the fleet is used, hour by hour (in a hold of minutes: minute by minute)",
    Way.TREND: "the end of that time against its beginning",
    Way.REPLICAS: "the replicas of the tier against each other",
    Way.TIERS: "the tiers of one model against each other",
    Way.POOLS: "prefill replicas against decode replicas",
    Way.EXPERTS: "how evenly the tokens of a pass fall on the GPUs that hold the experts",
    Way.DEMAND: "arriving requests, now and by the forecast, against what the replicas may take together",
    Way.FORECAST: "past forecasts against what came",
    Way.FAULTS: "events that should not happen at all",
    Way.CASCADE: "a state machine that follows every scrape",
    Way.DOWN: "scrapes in a row that failed",
    Way.STALE: "time for which a page was served and did not move",
    Way.UNKNOWN: "the time since each rule that can judge the tier last could",
}

LOUDNESS: Mapping[Severity, str] = {
    Severity.PAGE: "somebody is woken when it is critical, before that it is a ticket",
    Severity.TICKET: "looked at in working hours",
    Severity.REPORT: "told in the report only",
}


class RunbookError(ValueError):
    """The page's blocks and the catalogue's rules do not belong together; says which."""


def fill_runbooks(page: str) -> str:
    """The page with every block as the catalogue has it now. Raises RunbookProblem unless each rule has one block."""
    named = [match[1] for match in BLOCK.finditer(page)]
    known = {rule.name: rule for rule in RULES}
    wrong = [f"no block for {name}" for name in known if name not in named]
    wrong += [f"{name} is no rule" for name in dict.fromkeys(named) if name not in known]
    wrong += [f"{name} has {named.count(name)} blocks" for name in known if named.count(name) > 1]
    if wrong:
        raise RunbookError("; ".join(wrong))
    return BLOCK.sub(
        lambda found: f"<!-- generated: thresholds {found[1]} -->\n{block(known[found[1]])}\n<!-- end -->", page
    )


def block(rule: Rule) -> str:
    """What stands between the markers of one rule."""
    rows = [_row(rule, name, threshold) for name, threshold in rule.thresholds.items()]
    return "\n".join([_how(rule), "", "| threshold | value | unit | where it comes from |", "|---|---|---|---|", *rows])


def _how(rule: Rule) -> str:
    about = "each tier" if rule.scope is Scope.TIER else "each replica"
    return (
        f"Judged for {about}, {_over(rule)}: {WAYS[rule.way]}. Signal `{rule.signal}`. "
        f"Loudness `{rule.loudness.value}`: {LOUDNESS[rule.loudness]}."
    )


def _over(rule: Rule) -> str:
    if rule.way in (Way.BURN, Way.AVAILABILITY):
        return "over the windows below, each pair once its short one was seen"
    if not rule.window_seconds:
        return "at every scrape"
    return f"over the last {format_duration(rule.window_seconds)}, once {format_duration(rule.minimum_seconds)} of them were seen"


def _row(rule: Rule, name: str, threshold: Threshold) -> str:
    share = f" ({threshold.value * 100:g} %)" if threshold.unit == "ratio" and threshold.value < 1 else ""
    return f"| `{name}` | {threshold.value:g}{share} | {threshold.unit} | {threshold.source} |"
