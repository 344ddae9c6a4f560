"""The forecast and what follows from it: demand with its band, replicas recommended, how good it was, cold starts.

Owns these rows. Everything is of one tier but the columns and lines of `recommended`. A new panel is a function here.
"""

from __future__ import annotations

from exporters import names
from exporters.dashboards import queries as q
from exporters.dashboards.looks import COUNT, RATIO, RED, SECONDS, falling, limit, rising, signal_unit
from exporters.dashboards.panels import Kind, Line, Panel, Query
from exporters.dashboards.queries import Where
from exporters.names import Metric
from rules.starts import ENOUGH


def recommended(where: Where) -> str:
    """Replicas that the forecast asks for, by tier."""
    return q.told_by_tier(where, names.RECOMMENDED)


def _quantile(where: Where, metric: Metric, quantile: str) -> str:
    return q.by("max", q.BY_TIER, where.of(metric.name, f'quantile="{quantile}"'))


def _arrivals(where: Where) -> str:
    return q.of_tier(q.total(where, "requests_finished"))


def _band(where: Where, metric: Metric) -> tuple[Query, ...]:
    return (
        Query(expr=_quantile(where, metric, "0.5"), legend="median", line=Line.PLAN),
        Query(expr=_quantile(where, metric, "0.99"), legend="median to P99", line=Line.BAND, down_to="median"),
        Query(expr=_quantile(where, metric, "0.95"), legend="P95", line=Line.FAINT),
    )


def demand(where: Where, width: int = 12) -> Panel:
    """What is expected when a replica started now would be ready."""
    return Panel(
        title="Demand ahead",
        description=f"{names.FORECAST_RPS.text}. It stands at the time it was made, one cold start before the time it is about. "
        "Green: finished requests now; red: the planned peak.",
        kind=Kind.LINES,
        unit=signal_unit("arrival_rps"),
        queries=(
            Query(expr=_arrivals(where), legend="finished now"),
            *_band(where, names.FORECAST_RPS),
            Query(expr=q.told_by_tier(where, names.PLAN_PEAK), legend="planned peak", line=Line.LIMIT),
        ),
        width=width,
    )


def against_now(where: Where) -> Panel:
    """What was forecast for this moment, and what came."""
    return Panel(
        title="Forecast for now, and what came",
        description=f"{names.FORECAST_FOR_NOW_RPS.text}. What came should lie below P95 nineteen times of twenty.",
        kind=Kind.LINES,
        unit=signal_unit("arrival_rps"),
        queries=(Query(expr=_arrivals(where), legend="came"), *_band(where, names.FORECAST_FOR_NOW_RPS)),
        width=16,
    )


def replicas(where: Where, width: int = 12) -> Panel:
    """Recommended against running replicas."""
    return Panel(
        title="Replicas: recommended, running, planned",
        description="sizewatch recommends and scales nothing itself. Faint: the fewest to keep warm, by the "
        "forecast and by the plan.",
        kind=Kind.LINES,
        unit=COUNT,
        queries=(
            Query(expr=q.replicas_up(where), legend="running"),
            Query(expr=recommended(where), legend="recommended"),
            Query(expr=q.told_by_tier(where, names.PLAN_REPLICAS), legend="planned", line=Line.PLAN),
            Query(expr=q.told_by_tier(where, names.MINIMUM_WARM), legend="kept warm", line=Line.FAINT),
            Query(expr=q.told_by_tier(where, names.PLAN_MINIMUM_WARM), legend="planned warm", line=Line.FAINT),
        ),
        decimals=0,
        width=width,
    )


def coverage(where: Where) -> Panel:
    """How often what came stayed within the forecast."""
    return Panel(
        title="Coverage",
        description=f"{names.FORECAST_COVERAGE.text}. Below the limit pre-warming stands on sand.",
        kind=Kind.LINES,
        unit=RATIO,
        queries=(Query(expr=q.told_by_tier(where, names.FORECAST_COVERAGE), legend="coverage"),),
        steps=falling("ForecastDegraded", "coverage"),
        top=1.0,
        lines_at_steps=True,
    )


def error(where: Where) -> Panel:
    """The forecast's loss against that of the naive one."""
    return Panel(
        title="Error against the naive forecast",
        description=f"{names.FORECAST_ERROR.text}. At {limit('ForecastDegraded', 'error_ratio'):g} it is worth nothing.",
        kind=Kind.LINES,
        unit="short",
        queries=(Query(expr=q.told_by_tier(where, names.FORECAST_ERROR), legend="error"),),
        steps=rising(("ForecastDegraded", "error_ratio", RED)),
        lines_at_steps=True,
    )


def weights(where: Where) -> Panel:
    """Which methods the forecast follows."""
    return Panel(
        title="Weight of the methods",
        description=f"{names.FORECAST_WEIGHT.text}.",
        kind=Kind.LINES,
        unit=RATIO,
        queries=(Query(expr=q.told(where, names.FORECAST_WEIGHT), legend="{{method}}"),),
        top=1.0,
        stacked=True,
    )


def lead(where: Where) -> Panel:
    """How far ahead it looks, and what a cold start takes."""
    return Panel(
        title="Lead and measured cold starts",
        description=f"{names.FORECAST_LEAD.text}. {ENOUGH} starts of timing pod may shorten "
        "it below the plan's number; the others only lengthen it.",
        kind=Kind.LINES,
        unit=SECONDS,
        queries=(
            Query(expr=q.told_by_tier(where, names.FORECAST_LEAD), legend="lead", line=Line.PLAN),
            *(
                Query(
                    expr=q.told(where, names.COLD_START_SECONDS, f'quantile="{quantile}"'),
                    legend=f"{{{{timing}}}} P{float(quantile) * 100:.0f}",
                )
                for quantile in ("0.5", "0.95")
            ),
        ),
        width=12,
    )


def age(where: Where) -> Panel:
    """How old the forecast is."""
    return Panel(
        title="Age of the forecast",
        description="Time since it was made. It is made anew every few minutes; one that grows old means that the forecasting "
        "process stands still.",
        kind=Kind.LINES,
        unit=SECONDS,
        queries=(Query(expr=f"time() - {q.told_by_tier(where, names.FORECAST_MADE)}", legend="age"),),
    )


def starts(where: Where) -> Panel:
    """How many cold starts the measured lead rests on."""
    return Panel(
        title="Cold starts measured",
        description=f"{names.COLD_STARTS.text}. With fewer than {ENOUGH} of timing pod the lead is not below the plan's number.",
        kind=Kind.LINES,
        unit=COUNT,
        queries=(Query(expr=q.told(where, names.COLD_STARTS), legend="{{timing}}"),),
        decimals=0,
        width=12,
    )


def worth(where: Where) -> Panel:
    """What each way to scale would have cost in the last week."""
    return Panel(
        title="What pre-warming was worth: replica-hours",
        description=f"{names.PREWARM_REPLICA_SECONDS.text}. Beside it the time short of capacity: cheaper is no gain where "
        "that is longer.",
        kind=Kind.LINES,
        unit=SECONDS,
        queries=(Query(expr=q.told(where, names.PREWARM_REPLICA_SECONDS), legend="{{strategy}}"),),
        width=12,
    )


def short_of_capacity(where: Where) -> Panel:
    """How long each way to scale would have been short of replicas in the last week."""
    return Panel(
        title="What pre-warming was worth: time short of capacity",
        description=f"{names.PREWARM_VIOLATION_SECONDS.text}.",
        kind=Kind.LINES,
        unit=SECONDS,
        queries=(Query(expr=q.told(where, names.PREWARM_VIOLATION_SECONDS), legend="{{strategy}}"),),
        width=12,
    )
