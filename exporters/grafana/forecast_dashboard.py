"""Dashboard Forecast and pre-warming: demand with its band, recommended replicas, accuracy and cold starts.

All panels are of a single tier except the columns and lines of `recommended`. A new panel is a function here and an
entry of the dashboard.
"""

from __future__ import annotations

from exporters.grafana import plan_panels
from exporters.grafana import queries as q
from exporters.grafana.queries import ABOUT_A_TIER, FORECAST_UID, SeriesScope, marks
from exporters.grafana.queries import TIER as W
from exporters.grafana.records import (
    COUNT,
    RATIO,
    RED,
    SECONDS,
    Dashboard,
    LineStyle,
    Panel,
    Query,
    Section,
    falling_thresholds,
    limit,
    rising_thresholds,
    signal_unit,
)
from exporters.metrics import names
from exporters.metrics.names import ExportedMetric
from rules.replicas.starts import ENOUGH


def recommended(where: SeriesScope) -> str:
    """Return the recommended replicas by tier."""
    return q.metric_by_tier(where, names.RECOMMENDED)


def _quantile(where: SeriesScope, metric: ExportedMetric, quantile: str) -> str:
    return q.aggregate("max", q.BY_TIER, where.selector(metric.name, f'quantile="{quantile}"'))


def _arrivals(where: SeriesScope) -> str:
    return q.aggregate_tier(q.total(where, "requests_finished"))


def _band(where: SeriesScope, metric: ExportedMetric) -> tuple[Query, ...]:
    return (
        Query(expr=_quantile(where, metric, "0.5"), legend="median", line=LineStyle.PLAN),
        Query(expr=_quantile(where, metric, "0.99"), legend="median to P99", line=LineStyle.BAND, down_to="median"),
        Query(expr=_quantile(where, metric, "0.95"), legend="P95", line=LineStyle.FAINT),
    )


def demand(where: SeriesScope, width: int = 12) -> Panel:
    """Return the demand at the time when a replica started now would be ready."""
    return Panel(
        title="Demand ahead",
        description=f"{names.FORECAST_RPS.text}. It stands at the time it was made, one cold start before the time it is about. "
        "Green: finished requests now; red: the planned peak.",
        unit=signal_unit("arrival_rps"),
        queries=(
            Query(expr=_arrivals(where), legend="finished now"),
            *_band(where, names.FORECAST_RPS),
            Query(expr=q.metric_by_tier(where, names.PLAN_PEAK), legend="planned peak", line=LineStyle.LIMIT),
        ),
        width=width,
    )


def replicas(where: SeriesScope, width: int = 12) -> Panel:
    return Panel(
        title="Replicas: recommended, running, planned",
        description="sizewatch recommends and scales nothing itself. Faint: the fewest to keep warm, by the "
        "forecast and by the plan.",
        unit=COUNT,
        queries=(
            Query(expr=q.replicas_up(where), legend="running"),
            Query(expr=recommended(where), legend="recommended"),
            Query(expr=q.metric_by_tier(where, names.PLAN_REPLICAS), legend="planned", line=LineStyle.PLAN),
            Query(expr=q.metric_by_tier(where, names.MINIMUM_WARM), legend="kept warm", line=LineStyle.FAINT),
            Query(expr=q.metric_by_tier(where, names.PLAN_MINIMUM_WARM), legend="planned warm", line=LineStyle.FAINT),
        ),
        decimals=0,
        width=width,
    )


FORECAST = Dashboard(
    uid=FORECAST_UID,
    title="sizewatch: Forecast and pre-warming",
    description="What demand is expected at the end of a cold start, was it right before, and how many replicas that asks for.",
    since="2d",
    variables=ABOUT_A_TIER,
    marks=marks(W),
    sections=(
        Section(title="Ahead", panels=(demand(W, 24), replicas(W), plan_panels.load(W))),
        Section(
            title="Was it right",
            panels=(
                Panel(
                    title="Forecast for now, and what came",
                    description=f"{names.FORECAST_FOR_NOW_RPS.text}. What came should lie below P95 nineteen times of twenty.",
                    unit=signal_unit("arrival_rps"),
                    queries=(Query(expr=_arrivals(W), legend="came"), *_band(W, names.FORECAST_FOR_NOW_RPS)),
                    width=16,
                ),
                Panel(
                    title="Coverage",
                    description=f"{names.FORECAST_COVERAGE.text}. Below the limit pre-warming stands on sand.",
                    unit=RATIO,
                    queries=(Query(expr=q.metric_by_tier(W, names.FORECAST_COVERAGE), legend="coverage"),),
                    steps=falling_thresholds("ForecastDegraded", "coverage"),
                    top=1.0,
                ),
                Panel(
                    title="Error against the naive forecast",
                    description=f"{names.FORECAST_ERROR.text}. "
                    f"At {limit('ForecastDegraded', 'error_ratio'):g} it is worth nothing.",
                    unit="short",
                    queries=(Query(expr=q.metric_by_tier(W, names.FORECAST_ERROR), legend="error"),),
                    steps=rising_thresholds(("ForecastDegraded", "error_ratio", RED)),
                ),
                Panel(
                    title="Weight of the methods",
                    description=f"{names.FORECAST_WEIGHT.text}.",
                    unit=RATIO,
                    queries=(Query(expr=q.metric(W, names.FORECAST_WEIGHT), legend="{{method}}"),),
                    top=1.0,
                    stacked=True,
                ),
                Panel(
                    title="Age of the forecast",
                    description="Time since it was made. It is made anew every few minutes; one that grows old means "
                    "that the forecasting process stands still.",
                    unit=SECONDS,
                    queries=(Query(expr=f"time() - {q.metric_by_tier(W, names.FORECAST_MADE)}", legend="age"),),
                ),
            ),
        ),
        Section(
            title="How long a replica takes",
            panels=(
                Panel(
                    title="Lead and measured cold starts",
                    description=f"{names.FORECAST_LEAD.text}. {ENOUGH} starts of timing pod may shorten "
                    "it below the plan's number; the others only lengthen it.",
                    unit=SECONDS,
                    queries=(
                        Query(expr=q.metric_by_tier(W, names.FORECAST_LEAD), legend="lead", line=LineStyle.PLAN),
                        *(
                            Query(
                                expr=q.metric(W, names.COLD_START_SECONDS, f'quantile="{quantile}"'),
                                legend=f"{{{{timing}}}} P{float(quantile) * 100:.0f}",
                            )
                            for quantile in ("0.5", "0.95")
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    title="Cold starts measured",
                    description=f"{names.COLD_STARTS.text}. With fewer than {ENOUGH} of timing pod "
                    "the lead is not below the plan's number.",
                    unit=COUNT,
                    queries=(Query(expr=q.metric(W, names.COLD_STARTS), legend="{{timing}}"),),
                    decimals=0,
                    width=12,
                ),
            ),
        ),
        Section(
            title="What it was worth",
            panels=(
                Panel(
                    title="What pre-warming was worth: replica-hours",
                    description=f"{names.PREWARM_REPLICA_SECONDS.text}. Beside it the time short of capacity: cheaper is no gain "
                    "where that is longer.",
                    unit=SECONDS,
                    queries=(Query(expr=q.metric(W, names.PREWARM_REPLICA_SECONDS), legend="{{strategy}}"),),
                    width=12,
                ),
                Panel(
                    title="What pre-warming was worth: time short of capacity",
                    description=f"{names.PREWARM_VIOLATION_SECONDS.text}.",
                    unit=SECONDS,
                    queries=(Query(expr=q.metric(W, names.PREWARM_VIOLATION_SECONDS), legend="{{strategy}}"),),
                    width=12,
                ),
            ),
        ),
    ),
)
