"""Dashboard Fleet: a row per tier with its verdict, the plan against now, and the money.

Numbers never span tiers. A new column is a Query of `_columns`.
"""

from __future__ import annotations

from exporters.grafana import forecast_dashboard, gpu_panels, memory_panels, plan_panels
from exporters.grafana import queries as q
from exporters.grafana.queries import ABOUT_TIERS, COST_UID, FLEET_UID, TIER_UID, marks, tier_link
from exporters.grafana.records import (
    COUNT,
    MONEY,
    NONE_WANTED,
    PROMISED,
    RATIO,
    STATE,
    VERDICTS,
    Dashboard,
    Panel,
    PanelType,
    Query,
    Section,
    falling_thresholds,
    signal_unit,
)
from exporters.metrics import names

W = q.TIERS


def _columns() -> tuple[Query, ...]:
    kv = q.aggregate_tier(q.level(W, "kv_utilization"))
    return (
        Query(
            expr=plan_panels.worst_verdict(W),
            legend="Verdict",
            unit=STATE,
            states=VERDICTS,
            steps=plan_panels.VERDICT_STEPS,
        ),
        Query(expr=plan_panels.incident_count(W), legend="Incidents", decimals=0),
        Query(expr=q.replicas_up(W), legend="Running", decimals=0),
        Query(expr=q.metric_by_tier(W, names.PLAN_REPLICAS), legend="Planned", decimals=0),
        Query(expr=forecast_dashboard.recommended(W), legend="Recommended", decimals=0),
        Query(expr=q.load(W), legend="Used", unit=RATIO, steps=plan_panels.LOAD_STEPS, decimals=0),
        Query(
            expr=q.aggregate_tier(q.total(W, "requests_finished")),
            legend="Requests",
            unit=signal_unit("completed_rps"),
            decimals=2,
        ),
        *(
            Query(
                expr=plan_panels.latency_share_of_slo(W, latency),
                legend=f"{latency.upper()} of promise",
                unit=RATIO,
                steps=PROMISED,
                decimals=0,
            )
            for latency in ("ttft", "tpot")
        ),
        Query(
            expr=kv,
            legend="KV cache",
            unit=RATIO,
            steps=memory_panels.KV_STEPS,
            decimals=0,
        ),
        Query(
            expr=q.aggregate_tier(gpu_panels.busy_share(W)),
            legend="GPU busy",
            unit=RATIO,
            steps=falling_thresholds("GpuComputeLow", "below"),
            decimals=0,
        ),
        Query(expr=q.money_per_hour(W), legend="Money per hour", unit=MONEY, decimals=2),
        Query(expr=q.cost_per_million_tokens(W), legend="Per million tokens", unit=MONEY, decimals=2),
    )


FLEET = Dashboard(
    uid=FLEET_UID,
    title="sizewatch: Fleet",
    description="Is each tier still the size that was planned? A line a tier: verdict, plan against now, money.",
    since="6h",
    variables=ABOUT_TIERS,
    marks=marks(W),
    sections=(
        Section(title="Incidents", panels=(plan_panels.incidents_table(W),)),
        Section(
            title="Tiers",
            panels=(
                Panel(
                    title="Tiers",
                    description="A line a tier, newest values. Verdict: its worst certain finding; incidents: how many page "
                    "or make a ticket. Used: fleet utilisation. TTFT and TPOT: P99 by what is promised. Money in the "
                    "plan's currency. A tier's name leads to its own dashboard.",
                    kind=PanelType.TABLE,
                    unit=COUNT,
                    queries=_columns(),
                    rows=(("tier", "Tier"), ("cluster", "Cluster"), ("currency", "Currency")),
                    links=(("Tier", "Tier", tier_link(TIER_UID)), ("Per million tokens", "Cost", tier_link(COST_UID))),
                    width=24,
                    height=9,
                ),
                plan_panels.verdicts_over_time(W, height=8),
            ),
        ),
        Section(
            title="Plan against now",
            panels=(
                plan_panels.load(W),
                Panel(
                    title="Requests per second",
                    description="Finished requests of each tier; where requests pass through several pools, those of the busiest.",
                    unit=signal_unit("completed_rps"),
                    queries=(
                        Query(expr=q.aggregate_tier(q.total(W, "requests_finished")), legend="{{cluster}} {{tier}}"),
                    ),
                    width=12,
                ),
                plan_panels.promise(W, "ttft"),
                plan_panels.promise(W, "tpot"),
                Panel(
                    title="Requests waiting",
                    description="Queued in the engines of a tier, all replicas together.",
                    unit=COUNT,
                    queries=(
                        Query(
                            expr=q.aggregate("sum", q.BY_TIER, q.level(W, "requests_waiting")),
                            legend="{{cluster}} {{tier}}",
                        ),
                    ),
                    width=12,
                ),
                plan_panels.running_share(W),
            ),
        ),
        Section(title="Money", panels=(plan_panels.money(W), plan_panels.cost(W))),
        Section(
            title="What is not known, and what others say",
            panels=(
                plan_panels.blindness(W),
                Panel(
                    title="Alerts of others",
                    description="Alerts of other systems that fire on the tier, by the rule whose finding explains them.",
                    unit=COUNT,
                    queries=(Query(expr=q.metric(W, names.FOREIGN_ALERTS), legend="{{cluster}} {{tier}} {{rule}}"),),
                    steps=NONE_WANTED,
                    width=12,
                ),
            ),
        ),
    ),
)
