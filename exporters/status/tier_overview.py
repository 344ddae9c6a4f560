"""State of each tier, its line in the overview, and the headline of the installation.

Some states alarm nobody: a likely finding, a tier that was not observed long enough, and one that a rule over days
finds too large. The page, `/api/status` and `sizewatch status` print the same lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from exporters.render.terminal import WIDEST, terminal_text, text_grid
from exporters.render.text import DASH, SIGNS, Tone, format_clock, lower_first, money, number_text
from exporters.status.plan_comparison import compare_with_plan
from exporters.status.records import ActiveFinding, AgentStatus, TierStatus
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.benchmark_check import is_learning, learning_words
from rules.evaluator.incidents import Incident, describe_missed
from rules.methods.evidence import join_names
from rules.plan.money import amount, gpu_hours_a_day, money_per_day, price_of
from rules.telemetry.signals import Gap
from rules.telemetry.wording import format_count, format_duration, number, quantity
from rules.verdicts.error_budget import IMPACT_SECONDS
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

REPLICAS_NAMED = 3
"""Maximum number of replicas that the impact of an incident names."""

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

    A certain finding that the fleet is too large colours nothing, but such a tier is not as planned (DESIGN 3.23).
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
    for note in tier.active:
        is_certain, idle = note.verdict.certainty is Certainty.CERTAIN, note.verdict.idle
        if note.verdict.rule in TOO_LARGE and is_certain and (idle is None or idle.replicas):
            return TierState(OVERSIZED, "note", f"oversized: {lower_first(note.verdict.sentence)}")
    return TierState("ok", tone, AS_PLANNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveIncident:
    """Open incident. Its `root` may have ended; `symptoms` are the other active findings by their begin."""

    incident: Incident
    root: ActiveFinding
    symptoms: tuple[ActiveFinding, ...]
    worst: ActiveFinding

    @property
    def impact(self) -> list[str]:
        missed, replicas, idle = self.incident.missed, self.incident.replicas, self.incident.idle
        texts = []
        if missed is not None and missed.share.high:
            most = f"up to {number(missed.share.high, 'ratio')} of requests may have missed an objective"
            counted = f"{missed.share.n:,.0f} requests in the last {format_duration(IMPACT_SECONDS)}"
            texts.append(f"{describe_missed(missed) or most} ({counted})")
        if replicas:
            texts.append(f"on {join_names(replicas, REPLICAS_NAMED)}")
        if idle is not None and round(idle.replicas, 1):
            price = "" if idle.cost_per_day is None else f", {amount(idle.cost_per_day, idle.currency)} a day"
            texts.append(f"{idle.replicas:.1f} replicas idle{price}")
        return texts


def list_active_incidents(
    findings: Iterable[ActiveFinding], incidents: Iterable[Incident]
) -> tuple[ActiveIncident, ...]:
    """Return the incidents of a tier with an active finding that is no note, the worst first."""
    # By identity: a rule may have ended in an incident and be open in a later one.
    known = {id(active.finding): active for active in findings if not active.is_reported}
    lasting = []
    for incident in incidents:
        root = known.get(id(incident.root), ActiveFinding(finding=incident.root, verdict=incident.verdict))
        members = [known[id(finding)] for finding in incident.findings if id(finding) in known]
        worst = min(members, key=lambda member: member.rank, default=root)
        if members and not worst.is_note:
            symptoms = tuple(member for member in members if member is not root)
            lasting.append(ActiveIncident(incident=incident, root=root, symptoms=symptoms, worst=worst))
    return tuple(sorted(lasting, key=lambda active: active.worst.rank))


TierLine = dict[str, Any]
"""Line of a tier in the overview, as in `/api/status`."""


def summarize_tier(status: AgentStatus, tier: TierStatus) -> TierLine:
    """Return the line of a tier. Rates and latencies are of the last minutes; None is unknown.

    `recommended` are replicas of the forecast, by the sentence `decision`. `money_a_day` is the cost of the replicas up,
    in `currency`; without a price only `gpu_hours_a_day` is known. `certainty`, `incident` and `since` are of the worst
    incident; without one `certainty` is that of a likely finding.
    """
    state, plan, up = describe_state(tier), tier.context.plan, tier.replicas_up
    incidents = list_active_incidents(tier.active, status.incidents[tier.name])
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
        "incidents": len(incidents),
        "incident": "",
        "certainty": LIKELY if state.name == LIKELY else "",
        "since": None,
    }
    if tier.forecast is not None and (decision := tier.forecast.decision) is not None:
        line |= {"recommended": decision.replicas, "decision": decision.sentence}
    if plan is not None and (price := price_of(plan)) is not None:
        hours = gpu_hours_a_day(up, price.gpus_per_replica)
        line |= {"gpu_hours_a_day": hours, "money_a_day": money_per_day(up, price), "currency": price.currency}
    for worst in incidents[:1]:
        line |= {"incident": worst.root.title, "certainty": "certain", "since": worst.incident.started_at}
    return line


def list_incidents(status: AgentStatus) -> list[tuple[TierStatus, ActiveIncident]]:
    """Return the open incidents of all tiers, the worst first."""
    incidents: list[tuple[TierStatus, ActiveIncident]] = []
    for tier in status.tiers:
        incidents += [(tier, active) for active in list_active_incidents(tier.active, status.incidents[tier.name])]
    return sorted(incidents, key=lambda pair: pair[1].worst.rank)


def worst_first(status: AgentStatus) -> list[TierStatus]:
    """Return tiers by severity, likely findings below, then in configuration order."""
    ranks = ["note", *sorted(FIRING, key=SEVERITY.__getitem__)]
    return sorted(status.tiers, key=lambda tier: -ranks.index(tier.tone) if tier.tone in ranks else 1)


def headline(status: AgentStatus) -> Headline:
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
    states = list(map(describe_state, status.tiers))
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
    texts, without = [], [tier.name for tier in status.tiers if tier.context.plan is None]
    if without:
        texts.append(f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no plan.")
    if count := sum(len(pending_rules(tier)) for tier in status.tiers):
        texts.append(f"{format_count(count, 'rule')} cannot be judged now.")
    return " ".join(texts)


def tier_cells(line: TierLine, now: float) -> dict[str, str]:
    """Return the cells of a line by column, "–" if not known. Raise KeyError for another line."""
    up, planned, more = line["replicas_up"], line["replicas_planned"], line["incidents"] - 1
    used = line["fleet_utilization"]
    cells = {
        "Tier": line["tier"],
        "State": line["words"],
        "Replicas": f"{up}" if planned is None else f"{up} of {planned}",
        "Recommended": number_text(line["recommended"]),
        "Used": DASH if used is None else f"{used:.0%}",
        "TTFT P99": number_text(line["ttft_p99_seconds"], "seconds"),
        "Cost a day": money(line["gpu_hours_a_day"], "GPU-hours"),
        "Incident": line["incident"],
    }
    if line["money_a_day"] is not None:
        cells["Cost a day"] = money(line["money_a_day"], line["currency"])
    if line["since"] is not None:
        cells["Incident"] += f", since {format_clock(line['since'], now)}"
    if more > 0:
        cells["Incident"] += f" and {more} more"
    return cells


def overview_text(document: Mapping[str, Any]) -> str:
    """Return `/api/status` as text: the headline, and a line a tier. Raise ValueError for other JSON."""
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
    lines = list(filter(None, texts))
    if rows:
        table = text_grid([list(row.values()) for row in rows], list(rows[0]), indent=0)
        lines += ["", terminal_text(table, width=WIDEST)]
    decided = [f"{tier}: {decision}" for tier, decision in decisions.items() if decision]
    return "\n".join([*lines, "", *decided]).rstrip()


def numbers_text(tier: TierStatus) -> str:
    compared = (number for number in compare_with_plan(tier) if number.row.unit != "money")
    rows = [(number.row.title, quantity(number.now, number.row.unit)) for number in compared]
    rows += [(finding.words, finding.verdict.sentence) for finding in tier.active[:3]]
    return terminal_text(f"\n{tier.name}", text_grid(rows))
