"""Demand of a tier in bins with their forecaster, and the records that pages, metrics and commands show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

import numpy as np

from agent.errors import ConfigError
from agent.forecasting.messages import ForecastRequest
from exporters.documents.forecast import ForecastResult
from exporters.documents.prewarm import Recommendation
from exporters.documents.prewarm_value import Counted, build_count_text
from forecast.capacity.prewarm import ScalingDecision, ScheduleStep, schedule
from forecast.lead.online import KEPT_DAYS
from forecast.models.bin_forecaster import Forecaster, Path, Quality
from forecast.models.methods import SAME_AS_NOW
from forecast.series.binned import (
    DAY_MINUTES,
    MINUTE_SECONDS,
    Array,
    Series,
    last_bins,
    per_minute,
    rates,
    resample,
)
from forecast.series.calendar import event_factors, local_days, public_holidays, remove_event_effects
from rules.plan.replica_count import replica_count
from rules.telemetry.work import UNTOLD, Capacity, describe_weighing
from rules.verdicts.projection import ForecastPoint, Projection

TOO_YOUNG = "too few bins have passed to know how far a forecast is off"
NO_METHOD = "none yet: what is needed now counts"

NOTHING = 1e-5
"""Requests per second below which nothing is expected: less than one a day."""

AHEAD_SECONDS = 86_400.0
KEPT_SECONDS = KEPT_DAYS * 86_400.0

SILENT_MINUTES = 10
"""Maximum age in minutes of the demand that counts as present. After that there is no recommendation."""


def sundays(country: str | None, series: Series, n: int) -> Mapping[date, str]:
    """Return the public holidays of a country on the grid of a series of `n` bins. Raise ConfigError."""
    if country is None:
        return {}
    try:
        return public_holidays(country, local_days(series.start, series.bin_seconds, n, series.zone))
    except ValueError as error:
        raise ConfigError((f"forecast.country: {error}",)) from None


class DemandBins:
    """Demand of a tier as work or as requests: its minutes, its whole bins, and the forecaster of the bins.

    `minutes` are amounts per minute (or longer bins, of a trace), NaN if unknown, at least one known. Raises ValueError
    for unusable bins, ConfigError for a country without known holidays.
    """

    def __init__(self, asked: ForecastRequest, minutes: Series) -> None:
        self._settings = asked.settings
        self.bin_minutes = round(asked.bin_seconds / MINUTE_SECONDS)
        begun = _from_whole_bin(_by_minute(last_bins(minutes, KEPT_SECONDS)), asked.bin_seconds)
        self.start, self.rates = begun.start, (begun.values / MINUTE_SECONDS).tolist()
        self._bins_taken = len(self.rates) // self.bin_minutes
        self._forecaster = self._first_forecaster()

    @property
    def end(self) -> float:
        """Return the end of the minutes, unix seconds."""
        return self.start + len(self.rates) * MINUTE_SECONDS

    def take(self, rate: float) -> None:
        """Add the rate (per second) of the next minute; NaN if unknown."""
        self.rates.append(rate)
        if len(self.rates) // self.bin_minutes > self._bins_taken:
            self._bins_taken += 1
            if self._forecaster is None:
                self._forecaster = self._first_forecaster()
            else:
                self._forecaster.step(float(self._bins(first=self._bins_taken - 1).values[0]))

    def refit(self) -> None:
        """Drop whole days before the kept time and learn the kept time anew."""
        surplus = max(0, len(self.rates) - round(KEPT_SECONDS / MINUTE_SECONDS)) // DAY_MINUTES * DAY_MINUTES
        del self.rates[:surplus]
        self.start += surplus * MINUTE_SECONDS
        self._bins_taken = len(self.rates) // self.bin_minutes
        self._forecaster = self._first_forecaster()

    def _first_forecaster(self) -> Forecaster | None:
        """Return a forecaster of all whole bins, or None if no bin is known."""
        bins, asked = self._bins(), self._settings
        if not np.isfinite(bins.values).any():
            return None
        # Public holidays of a year ahead: no process runs longer without a reload or an update.
        count = len(bins) + round(366 * AHEAD_SECONDS / asked.bin_seconds)
        days = tuple(sundays(asked.country, bins, count))
        return Forecaster(bins, ahead_seconds=asked.horizon_seconds, sundays=days)

    def _whole_bins(self, first: int) -> Series:
        count = len(self.rates) // self.bin_minutes
        seconds = self.bin_minutes * MINUTE_SECONDS
        amounts = np.array(self.rates[first * self.bin_minutes : count * self.bin_minutes]) * MINUTE_SECONDS
        series = Series(
            start=self.start + first * seconds, bin_seconds=MINUTE_SECONDS, values=amounts, zone=self._settings.zone
        )
        return resample(series, seconds)

    def _bins(self, first: int = 0) -> Series:
        """Return the whole bins from `first` on, without known events."""
        bins = self._whole_bins(first)
        factors = self.factors(bins.start, bins.bin_seconds, len(bins))
        return replace(bins, values=remove_event_effects(bins.values, factors))

    def usual(self) -> Array:
        """Return the rates of the minutes without known events."""
        factors = self.factors(self.start, MINUTE_SECONDS, len(self.rates))
        return remove_event_effects(np.array(self.rates), factors)

    def factors(self, start: float, seconds: float, count: int) -> Array:
        """Return the factors of known events in `count` bins of so many seconds."""
        return event_factors(self._settings.events, start, seconds, count, self._settings.zone)

    def now_rps(self) -> float | None:
        """Return the demand of the last known minute, or None if it is too old."""
        return next((rate for rate in reversed(self.rates[-SILENT_MINUTES:]) if np.isfinite(rate)), None)

    def forecast(self, asked: ForecastRequest) -> tuple[ForecastResult | None, Array]:
        """Return the forecast of a day from the last whole bin on, and the factors of known events in it."""
        path = self._forecaster.path(round(AHEAD_SECONDS / asked.bin_seconds)) if self._forecaster is not None else None
        if self._forecaster is None or path is None:
            return None, np.ones(0)
        factors = self.factors(path.start, path.bin_seconds, path.quantiles.shape[1])
        found = build_forecast(
            asked.tier,
            path,
            factors,
            self._forecaster.quality(),
            made_at=asked.now,
            horizon_seconds=asked.horizon_seconds,
            zone=asked.zone,
            bin_seconds=asked.bin_seconds,
        )
        return found, factors


def _by_minute(series: Series) -> Series:
    """Return the minutes of a series of longer bins, interpolated."""
    width = round(series.bin_seconds / MINUTE_SECONDS)
    if width <= 1:
        return series
    values = per_minute(rates(series), width) * MINUTE_SECONDS
    return Series(start=series.start, bin_seconds=MINUTE_SECONDS, values=values, zone=series.zone)


def _from_whole_bin(minutes: Series, bin_seconds: float) -> Series:
    """Return the minutes from the start of a whole bin on. Minutes before the series are unknown."""
    early = round((minutes.start % bin_seconds) / MINUTE_SECONDS)
    values = np.concatenate([np.full(early, np.nan), minutes.values])
    return replace(minutes, start=minutes.start - early * MINUTE_SECONDS, values=values)


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
) -> ForecastResult:
    """Return the path in requests per second, each bin times the factor of its known events.

    Without a path there is a note.
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
        weights=() if path is None else tuple(sorted(path.weights.items(), key=lambda share: -share[1])),
        notes=(note,) if note else (),
    )


def points(path: Path, factors: Array) -> tuple[ForecastPoint, ...]:
    """Return the bins of a path in requests per second, times their factors. Less than NOTHING is 0."""
    per_second = path.quantiles[1:] * factors / path.bin_seconds
    risen = np.maximum.accumulate(np.where(per_second < NOTHING, 0.0, per_second), axis=0)
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
    now_requests: float | None,
    requests: ForecastResult | None,
    weighed: bool,
) -> Recommendation:
    """Return the decision with the demand, the capacity and the record of the forecast behind it."""
    capacity = decision.capacity
    ahead = requests.projection.points if requests is not None else ()
    expected = next((one.q50 for one in reversed(ahead) if one.t <= asked.now + lead_seconds), None)
    lengths = capacity.lengths if weighed else UNTOLD
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
        now_requests=now_requests,
        expected_requests=expected,
        weighing=describe_weighing(decision.now_rps, now_requests, lengths, expected),
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
    asked: ForecastRequest,
    projection: Projection,
    factors: Array,
    capacity: Capacity,
    *,
    decided: Recommendation | None,
    minimum: int,
    high: bool,
) -> tuple[ScheduleStep, ...]:
    """Return the schedule of a day for the 99 % quantile if `high`, else for the 95 % quantile.

    At the time that the recommendation `decided` is for it has at least its count.
    """
    first = projection.points[0].t
    steps = schedule(
        [point.q99 if high else point.q95 for point in projection.points],
        start=first,
        bin_seconds=asked.bin_seconds,
        capacity_rps=capacity.rps,
        margin=asked.margin,
        minimum=minimum,
        decided=None
        if decided is None
        else ScheduleStep(start=decided.target_time, replicas=decided.replicas, demand_rps=decided.count.demand_rps),
    )
    bins = {point.t: (point.q50, float(factor)) for point, factor in zip(projection.points, factors, strict=True)}
    return tuple(
        step if step.peak is None else replace(step, expected_rps=bins[step.peak][0], event_factor=bins[step.peak][1])
        for step in steps
    )
