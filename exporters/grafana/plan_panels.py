"""Overview panels of plan against production: verdicts, replicas, load, shares of the SLO, money.

Panels show the newest value or a time series. Only certain findings count, as in alerts. A new number is a function
here.
"""

from __future__ import annotations

from dataclasses import replace

from exporters.grafana import queries as q
from exporters.grafana.queries import SeriesScope
from exporters.grafana.records import (
    AMBER,
    CERTAINTIES,
    COUNT,
    MONEY,
    NEUTRAL,
    PLAIN,
    PROMISED,
    RATIO,
    RED,
    SECONDS,
    STATE,
    VERDICTS,
    Panel,
    PanelType,
    Query,
    Steps,
    ThresholdStep,
    rising_thresholds,
    signal_text,
    signal_unit,
)
from exporters.grafana.request_panels import LATENCIES
from exporters.metrics import names
from exporters.prometheus_rules.self_monitoring import NOT_SEEING
from exporters.render.text import RUNBOOKS

FAULTS = "|".join(gap.value for gap in NOT_SEEING)

VERDICT_STEPS: Steps = tuple(ThresholdStep(value=state.value or None, colour=state.colour) for state in VERDICTS)
LOAD_STEPS = rising_thresholds(("NoHeadroom", "above", AMBER), ("DemandExceedsCapacity", "share", RED))


def certain_verdicts(where: SeriesScope) -> str:
    """Return certain verdicts, each once, without notes. Likely verdicts count as 0."""
    return q.multiply(q.metric(where, names.VERDICT, q.WITHOUT_NOTES), q.metric(where, names.VERDICT_CERTAIN))


def worst_verdict(where: SeriesScope) -> str:
    """Return the worst certain verdict of a tier: 0 ok, 1 warning, 2 critical."""
    return q.aggregate_tier(certain_verdicts(where))


def incident_count(where: SeriesScope) -> str:
    """Return the number of incidents of a tier that page or make tickets, 0 for a tier without."""
    found = q.aggregate("sum", q.BY_TIER, q.metric(where, names.INCIDENT, q.LOUD_INCIDENTS))
    return f"{found}\nor\n0 * {q.aggregate_tier(where.selector(names.VERDICT.name))}"


def incidents_table(where: SeriesScope, width: int = 24, height: int = 6) -> Panel:
    """Return the present incidents by tier and root, with their begin."""
    start = q.metric(where, names.INCIDENT_START, q.LOUD_INCIDENTS)
    return Panel(
        title="Incidents now",
        description="A line an incident: findings of a tier with one root cause. Empty: none pages or makes a ticket. Root "
        "leads to its runbook; the status page has the sentence, the symptoms and the next action.",
        kind=PanelType.TABLE,
        unit=COUNT,
        queries=(
            Query(expr=f"1000 * {start}", legend="Since", unit="dateTimeAsIso"),
            Query(expr=f"time() - {start}", legend="Lasts", unit=SECONDS, decimals=0),
        ),
        rows=(("tier", "Tier"), ("root", "Root"), ("loudness", "Loudness"), ("cluster", "Cluster")),
        links=(("Root", "Runbook", RUNBOOKS),),
        width=width,
        height=height,
    )


def latency_share_of_slo(where: SeriesScope, which: str) -> str:
    """Return the P99 of a latency as a share of its objective, for the worst pool and release."""
    _, family, promised, _ = LATENCIES[which]
    return q.divide(q.aggregate_tier(q.quantile(where, 0.99, family)), q.metric_by_tier(where, promised))


def verdicts_over_time(where: SeriesScope, width: int = 24, height: int = 6) -> Panel:
    return Panel(
        title="Worst certain finding",
        description="Each tier's worst rule at each moment. What is only likely is not shown here; no line: nothing told.",
        kind=PanelType.STATES,
        unit=STATE,
        queries=(Query(expr=worst_verdict(where), legend="{{cluster}} {{tier}}"),),
        states=VERDICTS,
        steps=VERDICT_STEPS,
        width=width,
        height=height,
    )


def findings_table(where: SeriesScope) -> Panel:
    """Return the present findings by rule, with observed and expected values."""
    labels = (*q.BY_TIER, names.REPLICA, names.RULE)
    found = f"{q.metric(where, names.VERDICT, q.WITHOUT_NOTES)} > 0"

    def beside(metric: names.ExportedMetric) -> str:
        return f"{q.aggregate('max', labels, where.selector(metric.name))}\nand\n({found})"

    return Panel(
        title="Findings now",
        description="Rules that find something at this moment, likely ones included, notes for the report left out. Seen and "
        "expected are in the rule's base unit; where only a bound is known it stands there. The runbook says what to do.",
        kind=PanelType.TABLE,
        unit=COUNT,
        queries=(
            Query(expr=found, legend="Finding", unit=STATE, states=VERDICTS, steps=VERDICT_STEPS),
            Query(expr=beside(names.VERDICT_CERTAIN), legend="Certainty", unit=STATE, states=CERTAINTIES),
            Query(expr=beside(names.OBSERVED), legend="Seen", decimals=3),
            Query(expr=beside(names.EXPECTED), legend="Expected", decimals=3),
        ),
        rows=(("rule", "Rule"), ("replica", "Replica"), ("cluster", "Cluster")),
        hidden=("tier",),
        links=(("Rule", "Runbook", RUNBOOKS),),
        width=16,
        height=9,
    )


def unknowns(where: SeriesScope) -> Panel:
    """Return the number of unknown rules in a tier, by reason."""
    return Panel(
        title="Judgements that cannot be made",
        description="By reason. Unknown is not healthy: "
        f"{', '.join(gap.value for gap in NOT_SEEING)} are faults when they last; the others say that there is nothing to judge.",
        unit=COUNT,
        queries=(
            Query(
                expr=q.aggregate("count", (*q.BY_TIER, names.REASON), q.metric(where, names.UNKNOWN)),
                legend="{{reason}}",
            ),
        ),
        width=8,
        height=9,
    )


def blindness(where: SeriesScope) -> Panel:
    """Return the number of rules that are unknown due to a fault, by tier."""
    unseen = q.metric(where, names.UNKNOWN, f'reason=~"{FAULTS}"')
    return Panel(
        title="Judgements that a fault prevents",
        description="By tier and reason. Empty: none. One that lasts is a fault: the target, its page or its restarts.",
        unit=COUNT,
        queries=(
            Query(
                expr=q.aggregate("count", (*q.BY_TIER, names.REASON), unseen), legend="{{cluster}} {{tier}} {{reason}}"
            ),
        ),
        decimals=0,
        width=12,
    )


def running_share(where: SeriesScope) -> Panel:
    share = q.divide(q.replicas_up(where), q.metric_by_tier(where, names.PLAN_REPLICAS))
    return Panel(
        title="Replicas running, of those planned",
        description="Replicas whose last scrape gave a page, by what the plan deploys.",
        unit=RATIO,
        queries=(Query(expr=share, legend="{{cluster}} {{tier}}"),),
        width=12,
    )


def load(where: SeriesScope, width: int = 12) -> Panel:
    return Panel(
        title="Fleet utilisation",
        description="Completed work by what the running replicas carry within the SLO now, as on the status page. It "
        "cannot exceed what is possible: look at the queue, too. Not of tiers that serve prefill and decode apart.",
        unit=signal_unit("fleet_utilization"),
        queries=(Query(expr=q.load(where), legend="{{cluster}} {{tier}}"),),
        steps=LOAD_STEPS,
        width=width,
    )


def promise(where: SeriesScope, which: str) -> Panel:
    """Return a latency's P99 as a share of its objective, comparable across tiers."""
    title, _, _, rule = LATENCIES[which]
    return Panel(
        title=f"{title} P99 by what is promised",
        description=f"At 1 the promise is broken. {rule} compares with the benchmark at equal load instead.",
        unit=RATIO,
        queries=(Query(expr=latency_share_of_slo(where, which), legend="{{cluster}} {{tier}}"),),
        steps=PROMISED,
        width=12,
    )


def money(where: SeriesScope) -> Panel:
    return Panel(
        title="Money per hour",
        description="Replicas that are up, times GPUs each, times the plan's price of a GPU-hour; idle ones cost the same.",
        unit=MONEY,
        queries=(Query(expr=q.money_per_hour(where), legend="{{cluster}} {{tier}} {{currency}}"),),
        decimals=2,
        width=12,
    )


def cost(where: SeriesScope) -> Panel:
    return Panel(
        title="Cost per million generated tokens",
        description=f"{signal_text('cost_per_million_tokens')} Rises as the fleet idles.",
        unit=MONEY,
        queries=(Query(expr=q.cost_per_million_tokens(where), legend="{{cluster}} {{tier}} {{currency}}"),),
        decimals=2,
        width=12,
    )


def numbers(where: SeriesScope) -> tuple[Panel, ...]:
    """Return the newest values, a tile each."""
    tiles = (
        ("Verdict", worst_verdict(where), STATE, VERDICT_STEPS, "The worst certain finding of all rules of the tier."),
        ("Replicas running", q.replicas_up(where), COUNT, (), "Whose last scrape gave a page."),
        (
            "Fleet utilisation",
            q.load(where),
            RATIO,
            LOAD_STEPS,
            "Completed work by the capacity of the running replicas.",
        ),
        *(
            (
                f"{latency.upper()} P99 of the promise",
                latency_share_of_slo(where, latency),
                RATIO,
                PROMISED,
                "At 100 % the promise is broken.",
            )
            for latency in ("ttft", "tpot")
        ),
        ("Cost per million tokens", q.cost_per_million_tokens(where), MONEY, (), "In the plan's currency."),
    )
    return tuple(_tile(*tile) for tile in tiles)


def _tile(title: str, expr: str, unit: str, steps: Steps, text: str) -> Panel:
    tile = Panel(
        title=title,
        description=text,
        kind=PanelType.STAT,
        unit=unit,
        queries=(Query(expr=expr, legend="{{currency}}" if unit == MONEY else title),),
        width=4,
        height=4,
        decimals=None if unit == STATE else 0 if unit in (COUNT, RATIO) else 2,
    )
    tile = replace(tile, steps=(*(NEUTRAL if not steps else PLAIN), *(s for s in steps if s.value is not None)))
    return replace(tile, states=VERDICTS) if unit == STATE and steps is VERDICT_STEPS else tile
