"""Demand of a tier in bins with their forecaster, and the records that pages, metrics and commands show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

import numpy as np

from agent.errors import ConfigError
from agent.forecasting.messages import ForecastRequest
from exporters.documents.forecast import ForecastResult
from forecast.lead.online import KEPT_DAYS
from forecast.models.bin_forecaster import Forecaster, Path, Quality
from forecast.models.methods import SAME_AS_NOW
from forecast.series.binned import (
    MINUTE_SECONDS,
    Array,
    Series,
    last_bins,
    per_minute,
    rates,
    resample,
)
from forecast.series.calendar import event_factors, local_days, public_holidays, remove_event_effects
from rules.verdicts.context import ForecastPoint, Projection

TOO_YOUNG = "too few bins have passed to know how far a forecast is off"

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

    def __init__(self, request: ForecastRequest, minutes: Series) -> None:
        self._settings = request.settings
        self.bin_minutes = round(request.bin_seconds / MINUTE_SECONDS)
        kept = last_bins(minutes, KEPT_SECONDS)
        amounts, width = kept.values, round(kept.bin_seconds / MINUTE_SECONDS)
        if width > 1:
            amounts = per_minute(rates(kept), width) * MINUTE_SECONDS
        # From the start of a whole bin on. Minutes before the series are unknown.
        early = round((kept.start % request.bin_seconds) / MINUTE_SECONDS)
        self.start = kept.start - early * MINUTE_SECONDS
        self.rates = [*[np.nan] * early, *(amounts / MINUTE_SECONDS).tolist()]
        self._forecaster = self._first_forecaster()

    @property
    def end(self) -> float:
        """Return the end of the minutes, unix seconds."""
        return self.start + len(self.rates) * MINUTE_SECONDS

    def take(self, rate: float) -> None:
        """Add the rate (per second) of the next minute; NaN if unknown."""
        self.rates.append(rate)
        if len(self.rates) % self.bin_minutes:
            return
        if self._forecaster is None:
            self._forecaster = self._first_forecaster()
        else:
            self._forecaster.step(float(self._bins(first=len(self.rates) // self.bin_minutes - 1).values[0]))

    def _first_forecaster(self) -> Forecaster | None:
        bins, request = self._bins(), self._settings
        if not np.isfinite(bins.values).any():
            return None
        # Public holidays of three days ahead: a tier starts anew each day, and forecasts another.
        count = len(bins) + round(3 * AHEAD_SECONDS / request.bin_seconds)
        days = tuple(sundays(request.country, bins, count))
        return Forecaster(bins, ahead_seconds=request.horizon_seconds, sundays=days)

    def _bins(self, first: int = 0) -> Series:
        begin, end = first * self.bin_minutes, len(self.rates) // self.bin_minutes * self.bin_minutes
        minutes = Series(
            start=self.start + begin * MINUTE_SECONDS,
            bin_seconds=MINUTE_SECONDS,
            values=np.array(self.rates[begin:end]) * MINUTE_SECONDS,
            zone=self._settings.zone,
        )
        bins = resample(minutes, self._settings.bin_seconds)
        factors = self.factors(bins.start, bins.bin_seconds, len(bins))
        return replace(bins, values=remove_event_effects(bins.values, factors))

    def usual(self) -> Array:
        factors = self.factors(self.start, MINUTE_SECONDS, len(self.rates))
        return remove_event_effects(np.array(self.rates), factors)

    def factors(self, start: float, seconds: float, count: int) -> Array:
        """Return the factors of known events in `count` bins of so many seconds."""
        return event_factors(self._settings.events, start, seconds, count, self._settings.zone)

    def now_rps(self) -> float | None:
        """Return the demand of the last known minute, or None if it is too old."""
        return next(filter(np.isfinite, reversed(self.rates[-SILENT_MINUTES:])), None)

    def forecast(self, request: ForecastRequest) -> tuple[ForecastResult | None, Array]:
        """Return the forecast of a day from the last whole bin on, and the factors of known events in it."""
        if self._forecaster is None:
            return None, np.ones(0)
        path = self._forecaster.path(round(AHEAD_SECONDS / request.bin_seconds))
        if path is None:
            return None, np.ones(0)
        factors = self.factors(path.start, path.bin_seconds, path.quantiles.shape[1])
        rows = build_forecast(
            request.tier,
            path,
            factors,
            self._forecaster.quality(),
            made_at=request.now,
            horizon_seconds=request.horizon_seconds,
            zone=request.zone,
            bin_seconds=request.bin_seconds,
        )
        return rows, factors


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
    """Return the path in requests per second, each bin times the factor of known events; without a path, a note."""
    projection = Projection(
        tier=tier,
        made_at=made_at,
        horizon_seconds=horizon_seconds,
        points=(),
        method="no method",
        covered=quality.covered,
        forecasts=quality.forecasts,
        error_ratio=quality.error_ratio,
        naive=SAME_AS_NOW,
        compared=quality.forecasts,
    )
    result = ForecastResult(projection=projection, zone=zone, bin_seconds=bin_seconds, notes=(TOO_YOUNG,))
    if path is None:
        return result
    projection = replace(projection, points=points(path, factors), method=path.method)
    weights = tuple(sorted(path.weights.items(), key=lambda share: -share[1]))
    return replace(result, projection=projection, weights=weights, notes=tuple(filter(None, (path.note,))))


def points(path: Path, factors: Array) -> tuple[ForecastPoint, ...]:
    """Return the bins of a path in requests per second, times their factors. Less than NOTHING is 0."""
    per_second = path.quantiles[1:] * factors / path.bin_seconds
    risen = np.maximum.accumulate(np.where(per_second < NOTHING, 0.0, per_second), axis=0)
    return tuple(
        ForecastPoint(t=path.start + place * path.bin_seconds, q50=q50, q95=q95, q99=q99)
        for place, (q50, q95, q99) in enumerate(risen.T.tolist())
    )
