"""What a tier's forecasters found, as the plain records that the daemon, its pages and the commands read.

Owns the way from arrays to records and what is said where something is not there. Nothing is computed here but rates of bins
and the day's schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from agent.forecasting import prewarm_value
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from exporters.documents.forecast import ForecastResult
from exporters.documents.prewarm import DecisionBasis, Prewarm, Recommendation, ScheduleStep, without_old_schedule
from exporters.documents.prewarm_value import PrewarmValue
from exporters.documents.prewarm_wording import Counted, Highest, build_count_text
from exporters.render.text import format_duration
from forecast.capacity.prewarm import ScalingDecision, schedule
from forecast.models.bin_forecaster import Path, Quality
from forecast.series.binned import Array
from rules.plan.replica_count import replica_count
from rules.verdicts.projection import ForecastPoint, Projection

SILENT_MINUTES = 10
"""So long what was seen last is taken as what arrives now; after that nothing is recommended."""

TOO_YOUNG = "too few bins have passed to know how far a forecast is off"
NO_METHOD = "none yet: what is needed now counts"
NO_START = "how long a start takes is not known: the plan has no cold_start_seconds, and none was seen yet"

NOTHING = 1e-5
"""Requests per second below which nothing is expected: less than one a day."""

HIGH = 0.95
"""Above this certainty the schedule is of the 99 % quantile, else of the 95 %: a day ahead there are no others."""

HIGHER = 0.99


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundDemand:
    """What is found of demand beside its quantiles: up to when it is known (unix seconds), what is expected one lead ahead (with
    the factor of known events that is in it), the events' factors in the bins of the day's path, and the highest minute of the
    last week. Demands are requests per second."""

    seen_until: float | None
    expected_rps: float | None
    event_factor: float
    path_factors: Array
    highest: Highest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaForecast:
    """What was found about replicas: the last count with its reason, the demand now (requests per second), the minimum warm
    count, the certainty in use, whether replicas are counted at all, what pre-warming was worth lately, and the demand."""

    why: ScalingDecision | None
    now_rps: float | None
    minimum: int
    certainty: float
    warming: bool
    worth: PrewarmValue | None
    demand: FoundDemand


def build_response(asked: ForecastRequest, told: ForecastResult | None, found: ReplicaForecast) -> ForecastResponse:
    """All that is said of the tier."""
    return ForecastResponse(
        tier=asked.tier,
        made_at=asked.now,
        bin_seconds=asked.bin_seconds,
        forecast=told,
        prewarm=_prewarm(asked, told.projection if told is not None else None, found),
        now_rps=found.now_rps,
        minimum_warm=found.minimum if found.warming else None,
        gap="" if told is not None else TOO_YOUNG,
    )


def forecast(
    asked: ForecastRequest, path: Path, factors: Array, quality: Quality, seen: tuple[tuple[float, float | None], ...]
) -> ForecastResult:
    """The path in requests per second, each bin times the factor of the events known for it, with what came before."""
    projection = Projection(
        tier=asked.tier,
        made_at=asked.now,
        horizon_seconds=asked.horizon_seconds,
        points=points(path, factors),
        method=path.method,
        covered=quality.covered,
        forecasts=quality.forecasts,
        error_ratio=quality.error_ratio,
        naive=quality.naive,
        compared=quality.compared,
    )
    return ForecastResult(
        projection=projection,
        zone=asked.zone,
        bin_seconds=asked.bin_seconds,
        seen=seen,
        weights=tuple(sorted(path.weights.items(), key=lambda share: -share[1])),
        notes=(path.note,) if path.note else (),
    )


def points(path: Path, factors: Array) -> tuple[ForecastPoint, ...]:
    """The path's bins in requests per second, each times its factor; less than NOTHING is none."""
    rates = np.stack([path.q50, path.q95, path.q99]) * factors / path.bin_seconds
    risen = np.maximum.accumulate(np.where(rates < NOTHING, 0.0, rates), axis=0)
    return tuple(
        ForecastPoint(t=path.start + place * path.bin_seconds, q50=q50, q95=q95, q99=q99)
        for place, (q50, q95, q99) in enumerate(risen.T.tolist())
    )


def _prewarm(asked: ForecastRequest, projection: Projection | None, found: ReplicaForecast) -> Prewarm:
    steps, until = _schedule(asked, projection, found)
    told = Prewarm(
        tier=asked.tier,
        zone=asked.zone,
        recommendation=_recommendation(asked, projection, found),
        schedule=steps,
        schedule_certainty=_level(found) if steps else None,
        until=until,
        seen_until=found.demand.seen_until,
        highest=found.demand.highest,
        worth=found.worth,
        reason=_reason(asked, found),
    )
    return without_old_schedule(told, asked.now)


def _recommendation(
    asked: ForecastRequest, projection: Projection | None, found: ReplicaForecast
) -> Recommendation | None:
    why = found.why
    if why is None or asked.lead_seconds is None:
        return None
    counted = projection is not None and projection.forecasts > 0
    return Recommendation(
        tier=asked.tier,
        made_at=asked.now,
        zone=asked.zone,
        replicas=why.replicas,
        decided_by=DecisionBasis(why.bound.value),
        lead_seconds=asked.lead_seconds,
        lead_source=asked.lead_source,
        certainty=why.certainty,
        quantile_rps=why.quantile_rps,
        expected_rps=found.demand.expected_rps if why.quantile_rps is not None else None,
        event_factor=found.demand.event_factor,
        for_forecast=why.for_forecast if why.quantile_rps is not None else None,
        held=why.holding,
        now_rps=why.now_rps,
        usable_rps=why.capacity.rps,
        usable_source=why.capacity.reason,
        usable_low=why.capacity.low or None,
        usable_high=why.capacity.high,
        count=_counted(why),
        needed_now=why.for_now,
        minimum_warm=why.minimum,
        method=NO_METHOD if projection is None else projection.method,
        coverage=projection.covered / projection.forecasts if projection is not None and counted else None,
        error_ratio=None if projection is None else projection.error_ratio,
        naive="" if projection is None else projection.naive,
    )


def _counted(why: ScalingDecision) -> Counted:
    """The recommended replicas at the demand that they are for, with the counts at the bounds of the capacity."""
    demand = max(why.quantile_rps or 0.0, why.now_rps)
    counted = replica_count(demand, why.capacity, why.margin, minimum=why.minimum)
    return build_count_text(replace(counted, replicas=why.replicas))


def _schedule(
    asked: ForecastRequest, projection: Projection | None, found: ReplicaForecast
) -> tuple[tuple[ScheduleStep, ...], float | None]:
    if not found.warming or asked.capacity is None or asked.lead_seconds is None:
        return (), None
    if projection is None or not projection.points:
        return (), None
    high = _level(found) == HIGHER
    shifts = schedule(
        np.array([point.q99 if high else point.q95 for point in projection.points]),
        start=projection.points[0].t,
        bin_seconds=asked.bin_seconds,
        capacity_rps=asked.capacity.rps,
        margin=asked.margin,
        minimum=found.minimum,
    )
    parts = {
        point.t: (point.q50, float(factor))
        for point, factor in zip(projection.points, found.demand.path_factors, strict=True)
    }
    steps = tuple(
        ScheduleStep(
            start=one.start,
            replicas=one.replicas,
            demand_rps=one.demand_rps,
            peak=one.peak,
            expected_rps=parts[one.peak][0],
            event_factor=parts[one.peak][1],
        )
        for one in shifts
    )
    return steps, shifts[-1].end


def _level(found: ReplicaForecast) -> float:
    """Certainty (0-1) of the schedule."""
    return HIGHER if found.certainty > HIGH else HIGH


def _reason(asked: ForecastRequest, found: ReplicaForecast) -> str:
    """Why something is not there; empty where everything is."""
    if asked.no_replicas:
        return asked.no_replicas
    if asked.lead_seconds is None:
        return NO_START
    if found.now_rps is None:
        seen = found.demand.seen_until
        age = "is not known" if seen is None else f"is {format_duration(asked.now - seen)} old"
        return f"the newest demand of the tier {age}; after {SILENT_MINUTES} min nothing is recommended"
    return "" if found.worth is not None else prewarm_value.TOO_SHORT
