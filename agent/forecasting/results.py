"""The forecast of a series as it stands, for a command: fitted once, with its record of the last day.

Owns how a forecaster is brought to the end of a series so that it can say how well it did, and the way to the plain record
that is told. The daemon's forecasters run on instead: `agent.forecasting.tier_forecast`.
"""

from __future__ import annotations

import math

import numpy as np

from agent.errors import SizewatchError
from agent.forecasting.input_series import InputSeries
from agent.forecasting.responses import TOO_YOUNG, points
from exporters.documents.forecast import ForecastResult
from forecast.backtest.walk import remove_event_effects, truncate
from forecast.backtest.window import CannotTest, bins_a_day
from forecast.models.bin_forecaster import Forecaster
from forecast.series.binned import Series
from forecast.series.binning import last_bins
from forecast.series.observed import DAY_SECONDS
from rules.verdicts.projection import Projection

KEPT_SECONDS = 34 * DAY_SECONDS
"""Four weeks to learn from, and a few days of their errors."""


def forecast_now(tier: str, given: InputSeries, horizon_seconds: float) -> ForecastResult:
    """What is expected in the bins up to `horizon_seconds` after the end of the series.

    The last day is followed bin by bin, so that coverage and error are those of forecasts that were made, of the longest
    lead that has methods of its own. Raises SizewatchError for bins that do not divide a day, and where nothing was seen
    in the last weeks.
    """
    series = last_bins(given.series, KEPT_SECONDS)
    factors = np.ones(len(series) + 1) if given.factors is None else given.factors[len(given.series) - len(series) :]
    forecaster = _followed(given.name, remove_event_effects(series, factors[: len(series)]), given, horizon_seconds)
    bins = max(1, math.ceil(horizon_seconds / series.bin_seconds - 1e-9))
    path = forecaster.path(bins)
    ahead = np.ones(bins) if given.factors is None else factors[len(series) :]
    notes = (TOO_YOUNG,) if path is None else (path.note,) if path.note else ()
    quality = forecaster.quality()
    projection = Projection(
        tier=tier,
        made_at=series.end,
        horizon_seconds=forecaster.leads * series.bin_seconds,
        points=() if path is None else points(path, ahead[: len(path.q50)]),
        method="no method" if path is None else path.method,
        covered=quality.covered,
        forecasts=quality.forecasts,
        error_ratio=quality.error_ratio,
        naive=quality.naive,
        compared=quality.compared,
    )
    return ForecastResult(
        projection=projection,
        zone=series.zone,
        bin_seconds=series.bin_seconds,
        seen=_seen(last_bins(series, DAY_SECONDS)),
        weights=() if path is None else tuple(sorted(path.weights.items(), key=lambda share: -share[1])),
        notes=(*given.notes, *notes),
    )


def _followed(name: str, series: Series, given: InputSeries, horizon_seconds: float) -> Forecaster:
    try:
        day = bins_a_day(series.bin_seconds)
    except CannotTest as error:
        raise SizewatchError(f"{name}: {error}") from error
    seen = np.flatnonzero(np.isfinite(series.values))
    if not len(seen):
        raise SizewatchError(f"{name}: nothing was seen in the last {KEPT_SECONDS / DAY_SECONDS:.0f} days")
    first = max(len(series) - day, int(seen[0]) + 1)
    forecaster = Forecaster(truncate(series, first), ahead_seconds=horizon_seconds, sundays=given.sundays)
    for value in series.values[first:]:
        forecaster.step(float(value))
    return forecaster


def _seen(series: Series) -> tuple[tuple[float, float | None], ...]:
    rates = series.values / series.bin_seconds
    return tuple((series.time(place), float(rate) if math.isfinite(rate) else None) for place, rate in enumerate(rates))
