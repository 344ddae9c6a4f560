"""State of each tier, its line in the overview, and the headline of the installation.

A state beside the statuses alarms nobody: a tier has a likely finding until that is certain, is learning until it was
observed long enough, and oversized while it idles and costs a multiple of the plan, or while a rule over days finds it
too large. The status page, `/api/status` and `sizewatch status` print the same lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from exporters.render.text import SIGNS, Tone, format_clock, text_table
from exporters.status.active_findings import (
    ActiveIncident,
    list_active_incidents,
    list_likely,
    list_notes,
    pending_rules,
    rank,
    tier_state,
)
from exporters.status.plan_comparison import COST, compare_with_plan
from exporters.status.records import AgentStatus, TierStatus
from rules.catalogue.registry import BY_NAME, margin_of
from rules.confidence import Certainty
from rules.evaluator.benchmark_check import is_learning, learning_words
from rules.methods.utilization import compute_idle_replicas
from rules.plan.money import figure, gpu_hours_a_day, money_per_day, price_of
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.wording import format_count, number
from rules.verdicts.finding import LIKELY
from rules.verdicts.verdict import FIRING, SEVERITY, Status, Verdict

TRAP = BY_NAME["UtilizationTrap"]

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

WORDS = ("Certainty", "Incident")
"""Columns of words that follow numbers."""

STATES_NAMED = 3
"""Number of learning or oversized tiers that the headline names."""

IDLE_SHARE = 0.9
"""Share (0-1) of the last hour's minutes in which an oversized tier idles: as much as rules need of their time."""

IDLE_MINUTES = 30
"""Minutes of the last hour that must be known before a tier is oversized: a shorter lull is no size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierState:
    """State of a tier: a name for programs, its tone, and words for people."""

    name: str
    tone: Tone
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLine:
    """Line of a tier in the overview. Rates and latencies are of the last minutes; None is unknown.

    `recommended` are replicas of the forecast, by the sentence `decision`. `money_a_day` is the cost of the replicas that
    are up, in `currency`; without a price only `gpu_hours_a_day` is known. `certainty`, `incident` and `since` are of the
    worst open incident; without one `certainty` is that of a likely finding.
    """

    tier: str
    state: str
    tone: str
    words: str
    replicas_up: int
    replicas_planned: int | None = None
    recommended: int | None = None
    decision: str = ""
    fleet_utilization: float | None = None
    ttft_p99_seconds: float | None = None
    gpu_hours_a_day: float | None = None
    money_a_day: float | None = None
    currency: str = ""
    incidents: int
    incident: str = ""
    certainty: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Verdict on the installation: a line, a sentence about it, and a note about what is not judged."""

    status: Tone
    text: str
    sentence: str = ""
    note: str = ""

    @property
    def detail(self) -> str:
        return " ".join(filter(None, (self.sentence, self.note)))


def describe_state(tier: TierStatus) -> TierState:
    """Return the state of a tier: that of its findings, else likely, learning, oversized or as planned.

    A certain finding for the report that the fleet is too large colours nothing, but such a tier is not as planned
    (DESIGN 3.23).
    """
    status = tier_state(tier)
    if status in FIRING:
        return TierState(name=str(status), tone=status, words=str(status))
    if status == Status.UNKNOWN:
        return TierState(name=str(status), tone=status, words=NO_VERDICT)
    if likely := list_likely(tier):
        return TierState(name=LIKELY, tone=status, words=likely[0].named)
    if tier.context.plan is None:
        return TierState(name="ok", tone=status, words=WITHOUT_PLAN)
    if tier.observed_seconds is not None and is_learning(tier.observed_seconds):
        return TierState(name=LEARNING, tone="note", words=learning_words(tier.observed_seconds))
    notes = (note.verdict for note in list_notes(tier) if note.verdict.certainty is Certainty.CERTAIN)
    trap = next((verdict.sentence for verdict in notes if verdict.rule in TOO_LARGE), "")
    if oversized := trap[:1].lower() + trap[1:] or _describe_idle(tier):
        return TierState(name=OVERSIZED, tone="note", words=f"oversized: {oversized}")
    return TierState(name="ok", tone=status, words=AS_PLANNED)


def _describe_idle(tier: TierStatus) -> str:
    """Return how idle and how expensive an oversized tier is, "" for any other.

    The limits are those of the utilization trap. A tier at its limit costs target / limit of the plan, or more. The
    surplus is that of the days judged, or of these minutes before so many are seen (DESIGN 3.22).
    """
    below, target = (TRAP.limit(name, tier.context.limits) for name in ("below", "target"))
    (cost,) = compare_with_plan(tier, (COST,))
    if cost.planned is None:
        return ""
    dearest = cost.planned.value * target / below
    minutes = [(point.readings.get("fleet_utilization"), point.readings.get(cost.row.key)) for point in tier.trend]
    known = [used for used, _ in minutes if isinstance(used, Reading) and used.value is not None]
    idle = sum(_is_below(used, below) and _is_dear(price, dearest) for used, price in minutes)
    if len(known) < IDLE_MINUTES or idle < IDLE_SHARE * len(minutes):
        return ""
    mean = sum(used.value or 0.0 for used in known) / len(known)
    surplus = tier.surplus
    if surplus is None:
        busiest = max(used.value or 0.0 for used in known) * tier.replicas_up
        surplus = compute_idle_replicas(tier.context.plan, tier.replicas_up, busiest, margin_of(tier.context.limits))
    if not surplus.replicas:
        return ""
    times = cost.times_planned
    words = f"{mean:.0%} used, {surplus.replicas:.1f} of {surplus.ready:.1f} replicas are surplus"
    return words + (f", {times:.2g}x the planned cost" if times is not None else "")


def _is_below(used: SignalValue | None, limit: float) -> bool:
    return isinstance(used, Reading) and used.high is not None and used.high < limit


def _is_dear(price: SignalValue | None, limit: float) -> bool:
    """Return whether a minute surely cost more. A minute without a token has no price, and was paid for."""
    if isinstance(price, Missing):
        return price.gap is Gap.NO_TRAFFIC
    return price is not None and price.low is not None and price.low >= limit


def summarize_tier(status: AgentStatus, tier: TierStatus) -> TierLine:
    state, plan = describe_state(tier), tier.context.plan
    incidents = list_active_incidents(tier, status.incidents[tier.name])
    worst = incidents[0] if incidents else None
    price = price_of(plan) if plan is not None else None
    decision = tier.forecast.decision if tier.forecast is not None else None
    return TierLine(
        tier=tier.name,
        state=state.name,
        tone=str(state.tone),
        words=state.words,
        replicas_up=tier.replicas_up,
        replicas_planned=plan.fleet.instances if plan is not None and plan.fleet is not None else None,
        recommended=decision.replicas if decision is not None else None,
        decision=decision.sentence if decision is not None else "",
        fleet_utilization=_estimate(tier, "fleet_utilization"),
        ttft_p99_seconds=_estimate(tier, "ttft_p99_seconds"),
        gpu_hours_a_day=gpu_hours_a_day(tier.replicas_up, price.gpus_per_replica) if price is not None else None,
        money_a_day=money_per_day(tier.replicas_up, price) if price is not None else None,
        currency=price.currency if price is not None else "",
        incidents=len(incidents),
        incident=worst.root.title if worst is not None else "",
        certainty=Certainty.CERTAIN.value if worst is not None else LIKELY if state.name == LIKELY else "",
        since=worst.started_at if worst is not None else None,
    )


def _estimate(tier: TierStatus, signal: str) -> float | None:
    """Return the best estimate of a signal in the last minutes, else its lower bound."""
    reading = read(SIGNALS[signal], tier.recent, tier.context.basis) if tier.recent is not None else None
    if not isinstance(reading, Reading):
        return None
    return reading.low if reading.value is None else reading.value


def list_incidents(status: AgentStatus) -> list[tuple[TierStatus, ActiveIncident]]:
    """Return the open incidents of all tiers, the worst first."""
    incidents = [
        (tier, incident)
        for tier in status.tiers
        for incident in list_active_incidents(tier, status.incidents[tier.name])
    ]
    return sorted(incidents, key=lambda pair: rank(pair[1].worst))


def worst_first(status: AgentStatus) -> list[TierStatus]:
    """Return tiers by severity, likely findings below, then in configuration order: healthy tiers keep their place."""
    return sorted(status.tiers, key=lambda tier: _place(tier_state(tier)))


def _place(tone: Tone) -> tuple[int, bool]:
    return (0, False) if tone == "note" else (-SEVERITY[Status(tone)], True)


def headline(status: AgentStatus) -> Headline:
    """Return the headline of the installation: its incidents, else the states of its tiers."""
    incidents = list_incidents(status)
    if incidents:
        return _headline_of(incidents, status)
    if not status.tiers:
        return Headline(status=Status.UNKNOWN, text="Nothing is watched", sentence="The configuration names no tier.")
    if not any(isinstance(result, Verdict) for tier in status.tiers for result in tier.results):
        sentence = "The first verdicts follow a few minutes after the first scrapes."
        return Headline(status=Status.UNKNOWN, text="No verdict yet", sentence=sentence)
    states = {tier.name: describe_state(tier) for tier in status.tiers}
    counts = Counter(state.words if state.name == "ok" else state.name for state in states.values())
    counted = [f"{counts[state]} {words}" for state, words in _COUNTED.items() if counts[state]]
    first, *texts = counted
    noun = "tier" if first.startswith("1 ") else "tiers"
    text = ", ".join([first.replace(" ", f" {noun} ", 1), *texts])
    named = (LIKELY, LEARNING, OVERSIZED)
    rows = [f"{name}: {state.words}" for place in named for name, state in states.items() if state.name == place]
    more = [f"{len(rows) - STATES_NAMED} more"] if len(rows) > STATES_NAMED else []
    judged = Status.OK if any(state.name != LEARNING for state in states.values()) else Status.UNKNOWN
    sentence = "; ".join([*rows[:STATES_NAMED], *more])
    return Headline(
        status="note" if counts[LIKELY] else judged,
        text=text,
        sentence=f"{sentence}." if sentence else "",
        note=_unanswered(status),
    )


def _headline_of(incidents: Sequence[tuple[TierStatus, ActiveIncident]], status: AgentStatus) -> Headline:
    tier, first = incidents[0]
    touched = len({candidate.name for candidate, _ in incidents})
    where = f"{touched} of {len(status.tiers)} tiers" if touched > 1 else tier.name
    title = first.root.title if touched == 1 else f"{first.root.title} in {tier.name}"
    return Headline(
        status=first.worst.tone,
        text=f"{format_count(len(incidents), 'incident')} in {where}: {title}",
        sentence=f"{first.sentence}.",
        note=_unanswered(status),
    )


def _unanswered(status: AgentStatus) -> str:
    without = [tier.name for tier in status.tiers if tier.context.plan is None]
    texts = [f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no plan."] if without else []
    count = sum(len(pending_rules(tier)) for tier in status.tiers)
    return " ".join([*texts, *([f"{format_count(count, 'rule')} cannot be judged now."] if count else [])])


def cells(line: TierLine, now: float) -> dict[str, str]:
    """Return the cells of a line by column, "–" where a number is not known."""
    planned = "" if line.replicas_planned is None else f" of {line.replicas_planned}"
    cost = None if line.gpu_hours_a_day is None else f"{figure(line.gpu_hours_a_day)} GPU-hours"
    if line.money_a_day is not None:
        cost = f"{figure(line.money_a_day)} {line.currency}".strip()
    more = f" and {line.incidents - 1} more" if line.incidents > 1 else ""
    since = f", since {format_clock(line.since, now)}" if line.since is not None else ""
    mapping = {
        "Tier": line.tier,
        "State": line.words,
        "Replicas": f"{line.replicas_up}{planned}",
        "Recommended": None if line.recommended is None else str(line.recommended),
        "Used": None if line.fleet_utilization is None else f"{line.fleet_utilization:.0%}",
        "TTFT P99": None if line.ttft_p99_seconds is None else number(line.ttft_p99_seconds, "seconds"),
        "Cost a day": cost,
        "Certainty": line.certainty,
        "Incident": f"{line.incident}{since}{more}",
    }
    return {column: "–" if text is None else text for column, text in mapping.items()}


def overview_json(status: AgentStatus) -> list[dict[str, Any]]:
    """Return the lines of all tiers, the worst first, for `/api/status`."""
    return [asdict(summarize_tier(status, tier)) for tier in worst_first(status)]


def overview_text(mapping: Mapping[str, Any]) -> str:
    """Return `/api/status` as text: the headline, and a table with a line a tier. Raise ValueError for other JSON."""
    known = {field.name for field in fields(TierLine)}
    try:
        # The command prints the schema of what it asked.
        verdict, now, _ = mapping["verdict"], float(mapping["now"]), mapping["schema"]
        lines = [TierLine(**{name: value[name] for name in value if name in known}) for value in mapping["overview"]]
        head = [f"{SIGNS.get(verdict['status'], '?')} {verdict['text']}", *filter(None, [verdict["detail"]])]
        decided = [f"{line.tier}: {line.decision}" for line in lines if line.decision]
        rows = _table([cells(line, now) for line in lines])
        return "\n".join([*head, "", *rows, *([""] if decided else []), *decided]).rstrip()
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"this is no status of a sizewatch of this version: {error}") from error


def _table(rows: list[dict[str, str]]) -> list[str]:
    for column in WORDS:
        # The columns at the end are words as well, and begin below each other.
        width = max((len(row[column]) for row in rows), default=0)
        rows = [{**row, column: row[column].ljust(width)} for row in rows]
    heads = [column.ljust(len(rows[0][column])) if column in WORDS else column for column in rows[0]] if rows else []
    return text_table(heads, [list(row.values()) for row in rows], words=2) if rows else []
