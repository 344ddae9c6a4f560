"""Text of `sizewatch init --run` after the first traffic: one screen of what the daemon reads, and the next commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exporters.render.terminal import terminal_text, text_grid
from exporters.status.plan_comparison import AT_EQUAL_LOAD, compare_with_plan
from exporters.status.records import AgentStatus, TierStatus
from exporters.status.tier_overview import estimate
from rules.catalogue.registry import RULES
from rules.telemetry.wording import format_count, quantity
from rules.verdicts.context import read_plan_value
from rules.verdicts.rule import Severity

TIERS_SHOWN, FINDINGS_SHOWN = 2, 2
"""Maximum number of tiers, and of findings in each: all fits one screen."""

TRAFFIC = ("completed_rps", "generation_tokens_per_second", "requests_running")
"""Signals that are above zero where an engine serves requests. No engine exposes all of them."""


def has_traffic(tier: TierStatus) -> bool:
    """Return whether the engines of a tier served requests in the last minutes."""
    return any(estimate(tier, signal) for signal in TRAFFIC)


def first_view_text(status: AgentStatus, commands: Sequence[str]) -> str:
    """Return the screen of the tiers that serve requests, the rest by count, and the commands to run next."""
    rows: list[Sequence[str]] = []
    shown = list(filter(has_traffic, status.tiers))[:TIERS_SHOWN]
    for tier in shown:
        rows += [*_describe_tier(tier), ("", "")]
    if len(status.tiers) > len(shown):
        rows.append(("others", f"{format_count(len(status.tiers) - len(shown), 'more tier')}, on the status page"))
    rows += [("next", "\n".join(commands))]
    # Not wrapped: a command is copied.
    return terminal_text("what the first requests show", text_grid(rows), width=120)


def _describe_tier(tier: TierStatus) -> Iterator[tuple[str, str]]:
    up = [replica for replica in tier.replicas if replica.up]
    engines = dict.fromkeys(f"{replica.engine} {replica.versions}".strip() for replica in up)
    models = dict.fromkeys(replica.model for replica in up if replica.model)
    yield "tier", ", ".join((tier.name, *engines, *models))
    yield "replicas", f"{len(up)} of {len(tier.replicas)} up"
    for number in compare_with_plan(tier):
        yield number.row.title, f"{quantity(number.now, number.row.unit)} {number.currency}".rstrip()
    for finding in tier.active[:FINDINGS_SHOWN]:
        yield finding.words, finding.verdict.sentence
    loud = {rule.name: rule.needs for rule in RULES if rule.severity is not Severity.REPORT}
    judged = loud.keys() & {verdict.rule for verdict in tier.verdicts}
    lacking = {name for name, needs in loud.items() if needs and read_plan_value(tier.context, needs) is None}
    if tier.context.curve is None:
        lacking |= AT_EQUAL_LOAD
    yield "rules", f"{len(judged)} of {len(loud)} have a verdict, the others need minutes or days of data"
    yield "plan", f"missing parts of it stop {format_count(len(lacking - judged), 'rule')}: see `plan check`"
