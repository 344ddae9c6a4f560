"""Text of `sizewatch init --run` after the first traffic: one screen of what the daemon reads, and the next commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from exporters.render.terminal import terminal_text, text_grid
from exporters.render.text import describe_gap, format_duration
from exporters.status.plan_comparison import AT_EQUAL_LOAD
from exporters.status.records import AgentStatus, TierStatus
from rules.catalogue.registry import BY_NAME as RULES
from rules.engines.registry import ENGINES
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import format_count, quantity
from rules.verdicts.context import read_plan_value
from rules.verdicts.rule import Severity

TIERS_SHOWN, NAMED = 3, 2
"""Maximum number of tiers, and of findings and rules by name in each row: all fits one screen."""

ROWS: Mapping[str, Mapping[str, str]] = {
    "load": {"completed_rps": "finished", "requests_running": "running", "requests_waiting": "waiting"},
    "TTFT P99": {"ttft_p99_seconds": ""},
    "KV cache": {"kv_utilization": "in use"},
}
"""Signals of a row, each with the word behind its value."""

TITLES = {table.name: table.title for table in ENGINES}

TRAFFIC = ("completed_rps", "generation_tokens_per_second", "requests_running")
"""Signals that are above zero where an engine serves requests. No engine exposes all of them."""


def has_traffic(tier: TierStatus) -> bool:
    """Return whether the engines of a tier served requests in the last minutes."""
    if tier.recent is None:
        return False
    readings = (read(SIGNALS[name], tier.recent, tier.context.basis) for name in TRAFFIC)
    return any(isinstance(reading, Reading) and (reading.value or reading.high) for reading in readings)


def first_view_text(status: AgentStatus, commands: Sequence[str]) -> str:
    """Return the screen of the tiers that serve requests, the rest by count, and the commands to run next."""
    served = [tier for tier in status.tiers if has_traffic(tier)]
    rows: list[list[str]] = []
    for tier in served[:TIERS_SHOWN]:
        rows += [*_describe_tier(tier), ["", ""]]
    if unshown := len(status.tiers) - len(served[:TIERS_SHOWN]):
        rows.append(["others", f"{format_count(unshown, 'more tier')}, on the status page"])
    rows += [["next" if place == 0 else "", command] for place, command in enumerate(commands)]
    seconds = max((tier.recent.span for tier in served if tier.recent is not None), default=0.0)
    # Not wrapped: a command is copied.
    return terminal_text(f"what the first requests show, after {format_duration(seconds)}", text_grid(rows), width=120)


def _describe_tier(tier: TierStatus) -> Iterator[list[str]]:
    up = [replica for replica in tier.replicas if replica.up]
    engines = dict.fromkeys((replica.engine, replica.versions) for replica in up)
    titles = (f"{TITLES.get(name, name)} {versions}".strip() for name, versions in engines)
    models = dict.fromkeys(replica.model for replica in up if replica.model)
    yield ["tier", ", ".join((tier.name, *titles, *models))]
    yield ["replicas", f"{len(up)} of {len(tier.replicas)} up"]
    for title, signals in ROWS.items():
        values = (_describe_signal(tier, name, word) for name, word in signals.items())
        yield [title, ", ".join(values)]
    yield ["GPUs", _describe_gpus(tier)]
    yield from _describe_rules(tier)


def _describe_signal(tier: TierStatus, name: str, word: str) -> str:
    signal, reading = SIGNALS[name], None
    if tier.recent is not None:
        reading = read(signal, tier.recent, tier.context.basis)
    if isinstance(reading, Reading):
        return f"{quantity(reading, signal.unit)} {word}".strip()
    gap = "not known yet"
    if reading is not None:
        gap = describe_gap(reading.gap, reading.text)
    if gap == "not exposed":
        engines = dict.fromkeys(replica.engine for replica in tier.replicas if replica.engine)
        gap = f"not exposed by {', '.join(TITLES.get(name, name) for name in engines)}"
    return f"{word}: {gap}".removeprefix(": ")


def _describe_gpus(tier: TierStatus) -> str:
    gpus = {gpu.gpu: gpu.product for replica in tier.replicas for gpu in replica.gpus}
    if not gpus:
        return f"{_describe_signal(tier, 'gpu_utilization', '')}; no GPU of these replicas is read here"
    products = ", ".join(dict.fromkeys(gpus.values()))
    return f"{len(gpus)}: {products}, {_describe_signal(tier, 'gpu_utilization', 'busy')}"


def _describe_rules(tier: TierStatus) -> Iterator[list[str]]:
    """Yield the open findings, then the rules with a verdict, those that need time, and those that need a plan."""
    for finding in tier.active[:NAMED]:
        yield [finding.words.partition(",")[0], finding.verdict.sentence]
    judged = {verdict.rule for verdict in tier.verdicts}
    without = {name for name, rule in RULES.items() if rule.needs and read_plan_value(tier.context, rule.needs) is None}
    if tier.context.curve is None:
        without |= AT_EQUAL_LOAD
    without |= {unknown.rule for unknown in tier.unknowns if unknown.reason is Gap.NOT_IN_PLAN}
    hidden = {unknown.rule for unknown in tier.unknowns if unknown.reason is Gap.NOT_EXPOSED}
    yield ["judged", _count_rules(judged)]
    yield ["waiting", f"{_count_rules(RULES.keys() - judged - without - hidden)} for minutes of data, some for days"]
    yield ["a plan", f"missing parts of it stop {_count_rules(without - judged)}: see `plan check`"]


def _count_rules(names: Set[str]) -> str:
    """Return the count of rules with the first titles, those that page before others."""
    known = (rule for name, rule in RULES.items() if name in names and rule.severity is not Severity.REPORT)
    rules = sorted(known, key=lambda rule: rule.severity is not Severity.PAGE)
    titles = ", ".join(rule.title for rule in rules[:NAMED])
    if len(rules) > NAMED:
        titles += ", ..."
    return f"{format_count(len(rules), 'rule')} ({titles})" if rules else "no rule"
