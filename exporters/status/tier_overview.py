"""State of each tier, its line in the overview, and the headline of the installation.

A state beside the statuses alarms nobody: a tier has a likely finding until that is certain, is learning until it was
observed long enough, and oversized while a rule over days finds it too large. The status page, `/api/status` and
`sizewatch status` print the same lines. `sizewatch init --run` shows one screen after the first traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from exporters.render.terminal import WIDEST, terminal_text, text_grid
from exporters.render.text import SIGNS, Tone, format_clock, lower_first
from exporters.status.active_findings import ActiveIncident
from exporters.status.plan_comparison import AT_EQUAL_LOAD, compare_with_plan
from exporters.status.records import AgentStatus, TierStatus
from rules.catalogue.registry import BY_NAME, RULES
from rules.confidence import Certainty
from rules.evaluator.benchmark_check import is_learning, learning_words
from rules.plan.money import amount, gpu_hours_a_day, money_per_day, price_of
from rules.telemetry.signals import Gap
from rules.telemetry.wording import format_count, number, quantity
from rules.verdicts.context import read_plan_value
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, LIKELY, SEVERITY, Status

TOO_LARGE = ("UtilizationTrap", "QueueAlwaysEmpty")
"""Rules over days that find a fleet too large."""

LEARNING, OVERSIZED = "learning", "oversized"
AS_PLANNED, WITHOUT_PLAN, NO_VERDICT = "as planned", "no incident, no plan", "no verdict yet"
_COUNTED = {
    LIKELY: "with a likely finding",
    AS_PLANNED: "as planned",
    OVERSIZED: "oversized",
    LEARNING: "learning",
    WITHOUT_PLAN: "without a plan",
    Status.UNKNOWN.value: "without a verdict",
}
"""Words of the states in the headline, in its order."""

LACKING = frozenset({Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED})
"""Gap reasons that last until the plan or the engine changes. Other gaps pass or need attention."""


class TierState(NamedTuple):
    """State of a tier: a name for programs, its tone, and words for people."""

    name: str
    tone: Tone
    words: str


@dataclass(frozen=True, slots=True)
class Headline:
    """Verdict on the installation: a line, and a sentence about it and about what is not judged."""

    status: Tone
    text: str
    detail: str


def describe_state(tier: TierStatus) -> TierState:
    """Return the state of a tier: that of its findings, else likely, learning, oversized or as planned.

    A certain finding for the report that the fleet is too large colours nothing, but such a tier is not as planned
    (DESIGN 3.23).
    """
    tone = tier.tone
    if tone in FIRING:
        return TierState(tone, tone, tone)
    if tone == Status.UNKNOWN:
        return TierState(tone, tone, NO_VERDICT)
    if tier.likely:
        return TierState(LIKELY, tone, tier.likely[0].named)
    if tier.context.plan is None:
        return TierState("ok", tone, WITHOUT_PLAN)
    if tier.observed_seconds is not None and is_learning(tier.observed_seconds):
        return TierState(LEARNING, "note", learning_words(tier.observed_seconds))
    for note in tier.notes:
        verdict = note.verdict
        if verdict.rule in TOO_LARGE and verdict.certainty is Certainty.CERTAIN:
            return TierState(OVERSIZED, "note", f"oversized: {lower_first(verdict.sentence)}")
    return TierState("ok", tone, AS_PLANNED)


TierLine = dict[str, Any]
"""Line of a tier in the overview, as in `/api/status`."""


def summarize_tier(status: AgentStatus, tier: TierStatus) -> TierLine:
    """Return the line of a tier. Rates and latencies are of the last minutes; None is unknown.

    `recommended` are replicas of the forecast, by the sentence `decision`. `money_a_day` is the cost of the replicas that
    are up, in `currency`; without a price only `gpu_hours_a_day` is known. `certainty`, `incident` and `since` are of the
    worst open incident; without one `certainty` is that of a likely finding.
    """
    state, plan, up = describe_state(tier), tier.context.plan, tier.replicas_up
    line: TierLine = {
        "tier": tier.name,
        "state": state.name,
        "tone": str(state.tone),
        "words": state.words,
        "replicas_up": up,
        "replicas_planned": plan.fleet.instances if plan is not None and plan.fleet is not None else None,
        "recommended": None,
        "decision": "",
        "fleet_utilization": tier.estimate("fleet_utilization"),
        "ttft_p99_seconds": tier.estimate("ttft_p99_seconds"),
        "gpu_hours_a_day": None,
        "money_a_day": None,
        "currency": "",
        "incidents": len(status.active_incidents[tier.name]),
        "incident": "",
        "certainty": LIKELY if state.name == LIKELY else "",
        "since": None,
    }
    if tier.forecast is not None and (decision := tier.forecast.decision) is not None:
        line |= {"recommended": decision.replicas, "decision": decision.sentence}
    if plan is not None and (price := price_of(plan)) is not None:
        hours = gpu_hours_a_day(up, price.gpus_per_replica)
        line |= {"gpu_hours_a_day": hours, "money_a_day": money_per_day(up, price), "currency": price.currency}
    for worst in status.active_incidents[tier.name][:1]:
        line |= {"incident": worst.root.title, "certainty": "certain", "since": worst.incident.started_at}
    return line


def list_incidents(status: AgentStatus) -> list[tuple[TierStatus, ActiveIncident]]:
    """Return the open incidents of all tiers, the worst first."""
    incidents = [(tier, incident) for tier in status.tiers for incident in status.active_incidents[tier.name]]
    return sorted(incidents, key=lambda pair: pair[1].worst.rank)


def worst_first(status: AgentStatus) -> list[TierStatus]:
    """Return tiers by severity, likely findings below, then in configuration order: healthy tiers keep their place."""
    ranks: dict[str, tuple[int, bool]] = {"note": (0, False)}
    ranks |= {tone: (-SEVERITY[tone], True) for tone in Status}
    return sorted(status.tiers, key=lambda tier: ranks[tier.tone])


def headline(status: AgentStatus) -> Headline:
    """Return the headline of the installation: its incidents, else the states of its tiers."""
    incidents = list_incidents(status)
    if incidents:
        tier, first = incidents[0]
        touched, where, title = {candidate.name for candidate, _ in incidents}, tier.name, first.root.title
        if len(touched) > 1:
            where, title = f"{len(touched)} of {len(status.tiers)} tiers", f"{title} in {tier.name}"
        text = f"{format_count(len(incidents), 'incident')} in {where}: {title}"
        return Headline(first.worst.tone, text, f"{first.incident.sentence}. {_unanswered(status)}".rstrip())
    if not status.tiers:
        return Headline(Status.UNKNOWN, "Nothing is watched", "The configuration names no tier.")
    if not any(tier.verdicts for tier in status.tiers):
        detail = "The first verdicts follow a few minutes after the first scrapes."
        return Headline(Status.UNKNOWN, "No verdict yet", detail)
    return _headline_of_states(status)


def _headline_of_states(status: AgentStatus) -> Headline:
    states = [describe_state(tier) for tier in status.tiers]
    counts = Counter(state.words if state.name == "ok" else state.name for state in states)
    counted = [(counts[state], words) for state, words in _COUNTED.items() if counts[state]]
    (count, words), *remaining = counted
    texts = [f"{format_count(count, 'tier')} {words}", *(f"{count} {words}" for count, words in remaining)]
    tone: Tone = Status.OK
    if counts[LIKELY]:
        tone = "note"
    elif set(counts) == {LEARNING}:
        tone = Status.UNKNOWN
    return Headline(tone, ", ".join(texts), _unanswered(status))


def pending_rules(tier: TierStatus) -> set[str]:
    """Return the page and ticket rules without a verdict for a reason that passes."""
    names = {unknown.rule for unknown in tier.unknowns if unknown.reason not in LACKING}
    return {name for name in names & BY_NAME.keys() if BY_NAME[name].severity is not Severity.REPORT}


def _unanswered(status: AgentStatus) -> str:
    """Return the tiers without a plan, and the number of rules that wait for data."""
    texts, without = [], [tier.name for tier in status.tiers if tier.context.plan is None]
    if without:
        texts.append(f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no plan.")
    if count := sum(len(pending_rules(tier)) for tier in status.tiers):
        texts.append(f"{format_count(count, 'rule')} cannot be judged now.")
    return " ".join(texts)


def tier_cells(line: TierLine, now: float) -> dict[str, str]:
    """Return the cells of a line by column, "–" where a number is not known. Raise KeyError for another line."""
    up, planned, more = line["replicas_up"], line["replicas_planned"], line["incidents"] - 1
    cells = {
        "Tier": line["tier"],
        "State": line["words"],
        "Replicas": f"{up}" if planned is None else f"{up} of {planned}",
        "Recommended": _cell(line["recommended"], str),
        "Used": _cell(line["fleet_utilization"], "{:.0%}".format),
        "TTFT P99": _cell(line["ttft_p99_seconds"], partial(number, unit="seconds")),
        "Cost a day": _cell(line["gpu_hours_a_day"], partial(amount, currency="GPU-hours")),
        "Incident": line["incident"],
    }
    if line["money_a_day"] is not None:
        cells["Cost a day"] = amount(line["money_a_day"], line["currency"])
    if line["since"] is not None:
        cells["Incident"] += f", since {format_clock(line['since'], now)}"
    if more > 0:
        cells["Incident"] += f" and {more} more"
    return cells


def _cell(value: Any, describe: Callable[[Any], str]) -> str:
    return "–" if value is None else describe(value)


def overview_text(document: Mapping[str, Any]) -> str:
    """Return `/api/status` as text: the headline, and a table with a line a tier. Raise ValueError for other JSON."""
    try:
        # The command prints the schema of what it asked.
        verdict, now, _ = document["verdict"], float(document["now"]), document["schema"]
        texts = [f"{SIGNS.get(verdict['status'], '?')} {verdict['text']}", verdict["detail"]]
        rows = [tier_cells(line, now) for line in document["overview"]]
        decisions = {line["tier"]: line["decision"] for line in document["overview"]}
        trouble = document["agent"]["config_trouble"]
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"this is no status of a sizewatch of this version: {error}") from error
    if trouble:
        texts.append(f"Configuration or plan on disk is not valid, the previous configuration is active: {trouble}")
    lines = [text for text in texts if text]
    if rows:
        table = text_grid([list(row.values()) for row in rows], list(rows[0]), indent=0)
        lines += ["", terminal_text(table, width=WIDEST)]
    decided = [f"{tier}: {decision}" for tier, decision in decisions.items() if decision]
    return "\n".join([*lines, "", *decided]).rstrip()


TIERS_SHOWN, FINDINGS_SHOWN = 2, 2
"""Maximum number of tiers, and of findings in each: all fits one screen."""

TRAFFIC = ("completed_rps", "generation_tokens_per_second", "requests_running")
"""Signals that are above zero where an engine serves requests. No engine exposes all of them."""


def has_traffic(tier: TierStatus) -> bool:
    """Return whether the engines of a tier served requests in the last minutes."""
    return any(map(tier.estimate, TRAFFIC))


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
    for compared in compare_with_plan(tier):
        yield compared.row.title, f"{quantity(compared.now, compared.row.unit)} {compared.currency}".rstrip()
    for finding in tier.active[:FINDINGS_SHOWN]:
        yield finding.words, finding.verdict.sentence
    loud = {rule.name: rule.needs for rule in RULES if rule.severity is not Severity.REPORT}
    judged = loud.keys() & {verdict.rule for verdict in tier.verdicts}
    lacking = {name for name, needs in loud.items() if needs and read_plan_value(tier.context, needs) is None}
    if tier.context.curve is None:
        lacking |= AT_EQUAL_LOAD
    yield "rules", f"{len(judged)} of {len(loud)} have a verdict, the others need minutes or days of data"
    yield "plan", f"missing parts of it stop {format_count(len(lacking - judged), 'rule')}: see `plan check`"
