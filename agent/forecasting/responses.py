"""Records of a forecast: arrays of the models as the results that pages, metrics and commands show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agent.forecasting.messages import ForecastRequest
from exporters.documents.forecast import ForecastResult
from exporters.documents.prewarm import Recommendation
from exporters.documents.prewarm_value import Counted, build_count_text
from exporters.render.svg_charts import Seen
from forecast.capacity.prewarm import ScalingDecision, ScheduleStep, schedule
from forecast.models.bin_forecaster import Path, Quality
from forecast.models.simple_methods import SAME_AS_NOW
from forecast.series.binned import Array
from rules.plan.replica_count import replica_count
from rules.telemetry.work import Capacity
from rules.verdicts.projection import ForecastPoint, Projection

TOO_YOUNG = "too few bins have passed to know how far a forecast is off"
NO_METHOD = "none yet: what is needed now counts"

NOTHING = 1e-5
"""Requests per second below which nothing is expected: less than one a day."""


def build_forecast(
    tier: str,
    path: Path | None,
    factors: Array,
    quality: Quality,
    *,
    made_at: float,
    horizon_seconds: float,
    zone: str,
    bin_seconds: float,
    seen: tuple[Seen, ...],
) -> ForecastResult:
    """Return the path in requests per second, each bin times the factor of its known events.

    `seen` are the bins before. Without a path there is a note.
    """
    projection = Projection(
        tier=tier,
        made_at=made_at,
        horizon_seconds=horizon_seconds,
        points=() if path is None else points(path, factors),
        method="no method" if path is None else path.method,
        covered=quality.covered,
        forecasts=quality.forecasts,
        error_ratio=quality.error_ratio,
        naive=SAME_AS_NOW,
        compared=quality.forecasts,
    )
    note = TOO_YOUNG if path is None else path.note
    return ForecastResult(
        projection=projection,
        zone=zone,
        bin_seconds=bin_seconds,
        seen=seen,
        weights=() if path is None else tuple(sorted(path.weights.items(), key=lambda share: -share[1])),
        notes=(note,) if note else (),
    )


def points(path: Path, factors: Array) -> tuple[ForecastPoint, ...]:
    """Return the bins of a path in requests per second, times their factors. Less than NOTHING is 0."""
    rates = path.quantiles[1:] * factors / path.bin_seconds
    risen = np.maximum.accumulate(np.where(rates < NOTHING, 0.0, rates), axis=0)
    return tuple(
        ForecastPoint(t=path.start + place * path.bin_seconds, q50=q50, q95=q95, q99=q99)
        for place, (q50, q95, q99) in enumerate(risen.T.tolist())
    )


def build_recommendation(
    asked: ForecastRequest,
    lead_seconds: float,
    projection: Projection | None,
    decision: ScalingDecision,
    *,
    minimum: int,
    certainty: float,
    expected_rps: float | None,
    event_factor: float,
) -> Recommendation:
    """Return the decision with the demand, the capacity and the record of the forecast behind it."""
    capacity = decision.capacity
    counted = projection is not None and projection.forecasts > 0
    return Recommendation(
        tier=asked.tier,
        made_at=asked.now,
        zone=asked.zone,
        replicas=decision.replicas,
        decided_by=decision.decided_by,
        lead_seconds=lead_seconds,
        lead_source=asked.lead_source,
        certainty=certainty,
        quantile_rps=decision.quantile_rps,
        expected_rps=expected_rps if decision.quantile_rps is not None else None,
        event_factor=event_factor,
        for_forecast=decision.for_forecast,
        held=decision.held,
        now_rps=decision.now_rps,
        usable_rps=capacity.rps,
        usable_source=capacity.reason,
        usable_low=capacity.low or None,
        usable_high=capacity.high,
        count=_count_text(asked, decision, minimum),
        needed_now=decision.needed_now,
        minimum_warm=minimum,
        method=NO_METHOD if projection is None else projection.method,
        coverage=projection.covered / projection.forecasts if projection is not None and counted else None,
        error_ratio=None if projection is None else projection.error_ratio,
        naive="" if projection is None else projection.naive,
    )


def _count_text(asked: ForecastRequest, decision: ScalingDecision, minimum: int) -> Counted:
    """Return the replicas at the demand that they are for, with the counts at the bounds of the capacity."""
    demand = max(decision.quantile_rps or 0.0, decision.now_rps)
    counted = replica_count(demand, decision.capacity, asked.margin, minimum=minimum)
    return build_count_text(replace(counted, replicas=decision.replicas))


def build_schedule(
    asked: ForecastRequest, projection: Projection, factors: Array, capacity: Capacity, *, minimum: int, high: bool
) -> tuple[ScheduleStep, ...]:
    """Return the schedule of a day for the 99 % quantile if `high`, else for the 95 % quantile."""
    first = projection.points[0].t
    steps = schedule(
        [point.q99 if high else point.q95 for point in projection.points],
        start=first,
        bin_seconds=asked.bin_seconds,
        capacity_rps=capacity.rps,
        margin=asked.margin,
        minimum=minimum,
    )
    bins = {point.t: (point.q50, float(factor)) for point, factor in zip(projection.points, factors, strict=True)}
    return tuple(
        replace(step, expected_rps=bins[step.peak][0], event_factor=bins[step.peak][1])
        for step in steps
        if step.peak is not None
    )
