"""The generated blocks of docs/runbooks.md: how each rule is judged, in the catalogue's own numbers.

Owns the blocks and their places: between `<!-- generated: thresholds NAME -->` and `<!-- end -->`; what stands around
them people write, without any of these numbers. A new way of judging is a row of WAYS, a new loudness one of LOUDNESS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporters.render.text import format_duration
from rules.catalogue.registry import RULES
from rules.methods.adapters import judge_adapters
from rules.methods.availability import (
    judge_cascade,
    judge_stale,
    judge_target_down,
    judge_tier_down,
    judge_unknown_too_long,
)
from rules.methods.bands import judge_band, judge_experts
from rules.methods.burn_rate import judge_burn
from rules.methods.configuration import judge_cold_start, judge_precision
from rules.methods.demand import judge_demand, judge_forecast
from rules.methods.drift import judge_drift
from rules.methods.errors import judge_availability, judge_refused
from rules.methods.events import judge_event_ratio, judge_excess, judge_faults
from rules.methods.guardrails import judge_guardrail
from rules.methods.headroom import judge_falling, judge_headroom
from rules.methods.load import judge_beyond
from rules.methods.means import judge_mean
from rules.methods.pools import judge_pools
from rules.methods.prefix_routing import judge_replicas
from rules.methods.representative import judge_representative
from rules.methods.shape import judge_shape
from rules.methods.speculation import judge_economics
from rules.methods.tails import judge_tail
from rules.methods.tiers import judge_tiers
from rules.methods.trend import judge_trend
from rules.methods.utilization import judge_empty_cache, judge_empty_queue, judge_trap
from rules.verdicts.rule import Method, Rule, Scope, Severity, Threshold

BLOCK = re.compile(r"<!-- generated: thresholds (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)

METHOD_TEXTS: Mapping[Method, str] = {
    judge_tail: "the share of requests slower than the benchmark allows at equal load",
    judge_mean: "a mean against the benchmark's at equal load",
    judge_excess: "events per finished request against the benchmark's at equal load",
    judge_beyond: "the load of each replica and minute against the highest that was measured",
    judge_event_ratio: "events per finished request against fixed limits",
    judge_band: "a reading against fixed limits",
    judge_drift: "lengths and shape of the traffic against the plan's",
    judge_representative: "time in the system against the benchmark's at equal load",
    judge_guardrail: "the gateway's limits in the plan against what is seen",
    judge_precision: "the plan's number formats against what the planned GPU computes in hardware",
    judge_cold_start: "measured starts against the planned lead",
    judge_economics: "what speculation yields against what it costs",
    judge_adapters: "requests held back for adapters against the objective",
    judge_burn: "the share of requests outside the objective, over several windows at once",
    judge_availability: "the share of requests that failed, over several windows at once",
    judge_refused: "the share of requests that were refused, each kind against its own limit",
    judge_shape: "the tail of a latency against what was promised, and against its median",
    **dict.fromkeys(
        (judge_empty_cache, judge_empty_queue, judge_falling, judge_headroom, judge_trap),
        "how the fleet is used, hour by hour (in a hold of minutes: minute by minute)",
    ),
    judge_trend: "the end of that time against its beginning",
    judge_replicas: "the replicas of the tier against each other",
    judge_tiers: "the tiers of one model against each other",
    judge_pools: "prefill replicas against decode replicas",
    judge_experts: "how evenly the tokens of a pass fall on the GPUs that hold the experts",
    judge_demand: "arriving requests, now and by the forecast, against what the replicas may take together",
    judge_forecast: "past forecasts against what came",
    judge_faults: "events that should not happen at all",
    judge_cascade: "a state machine that follows every scrape",
    **dict.fromkeys((judge_target_down, judge_tier_down), "scrapes in a row that failed"),
    judge_stale: "time for which a page was served and did not move",
    judge_unknown_too_long: "the time since each rule that can judge the tier last could",
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
        f"Judged for {about}, {_over(rule)}: {METHOD_TEXTS[rule.method]}. Signal `{rule.signal}`. "
        f"Loudness `{rule.loudness.value}`: {LOUDNESS[rule.loudness]}."
    )


def _over(rule: Rule) -> str:
    if rule.method in (judge_burn, judge_availability):
        return "over the windows below, each pair once its short one was seen"
    if not rule.window_seconds:
        return "at every scrape"
    return f"over the last {format_duration(rule.window_seconds)}, once {format_duration(rule.minimum_seconds)} of them were seen"


def _row(rule: Rule, name: str, threshold: Threshold) -> str:
    share = f" ({threshold.value * 100:g} %)" if threshold.unit == "ratio" and threshold.value < 1 else ""
    return f"| `{name}` | {threshold.value:g}{share} | {threshold.unit} | {threshold.source} |"
