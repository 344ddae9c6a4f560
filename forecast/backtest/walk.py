"""Rolling-origin backtest: every method forecasts from past bins only, this forecaster as in production.

`forecast.models.horizon` computes the forecast of an origin from the bins before it, for all methods.
`forecast.backtest.window` selects the tested bins, `forecast.backtest.scores` computes the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial

import numpy as np

from forecast.backtest.window import LEAST_DAYS, BacktestWindow, CannotTest, ShortSeriesError, list_leads, window
from forecast.models.bin_forecaster import COMBINATION, WARM_UP_DAYS, Forecaster, day_horizon, naive_horizon
from forecast.models.horizon import Horizon
from forecast.models.methods import (
    METHODS,
    SAME_AS_LAST_WEEK,
    SAME_AS_NOW,
    SAME_AS_YESTERDAY,
    Outlook,
    first_origin,
    forecast_all,
)
from forecast.series.binned import Array, Integers, Series
from forecast.series.calendar import remove_event_effects
from forecast.series.observed import DAYS_A_WEEK, ObservedBins

NAMES = (COMBINATION, *METHODS)

LITTLE_METHODS = (COMBINATION, SAME_AS_NOW)
NEXT_SECONDS = 900.0
"""Default lead in seconds of this forecaster if no single lead is requested."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MethodForecasts:
    """Forecasts of one method: the quantiles 5 %, 50 %, 95 % and 99 %.

    Axes are level, origin and lead. Values are amounts per bin; NaN if missing."""

    method: str
    horizon_seconds: float
    origins: Integers
    leads: Integers
    quantiles: Array

    @property
    def targets(self) -> Integers:
        """Return the index of the bin of each forecast, origin by lead."""
        values: Integers = self.origins[:, None] + self.leads[None, :] - 1
        return values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BacktestRun:
    """Forecasts over a window. `notes` list omitted tests."""

    window: BacktestWindow
    forecasts: tuple[MethodForecasts, ...]
    notes: tuple[str, ...]


ProgressCallback = Callable[[str, int, int], None]
"""Callback with the method, the number of finished methods, and the number of methods."""


def select_naive(forecasts: MethodForecasts) -> str:
    """Return the naive method of a horizon: same as now for a single lead, same as yesterday for a path."""
    return SAME_AS_NOW if len(forecasts.leads) == 1 else SAME_AS_YESTERDAY


def walk(
    series: Series,
    horizons: Sequence[float],
    *,
    methods: Sequence[str] = NAMES,
    test_days: int | None = None,
    sundays: Collection[date] = (),
    factors: Array | None = None,
    progress: ProgressCallback | None = None,
) -> BacktestRun:
    """Return the forecasts of each method at each horizon (seconds) over the end of the series.

    `sundays` (local days like Sundays) and `factors` (of known events, by bin) were known in advance. Only this
    forecaster uses them. Raise `forecast.backtest.window.CannotTest` for a series that is too short, and for invalid
    horizons, bins and methods.
    """
    unknown = [name for name in methods if name not in NAMES]
    if unknown:
        raise CannotTest(f"there is no method {unknown[0]}; there are {', '.join(NAMES)}")
    backtest_window = window(series, test_days)
    leads = {horizon: list_leads(horizon, series.bin_seconds) for horizon in horizons}
    leads, notes = _possible(backtest_window, leads)
    has_week = backtest_window.test >= DAYS_A_WEEK * backtest_window.per_day
    usable = [name for name in NAMES if has_week or name != SAME_AS_LAST_WEEK]
    chosen = [name for name in (LITTLE_METHODS if backtest_window.little else usable) if name in methods]
    left_out = [name for name in methods if name not in chosen]
    if left_out:
        notes.append(
            f"not tested with {backtest_window.test / backtest_window.per_day:.1f} days before the test: {', '.join(left_out)}"
        )
    first = len(series) - len(backtest_window.series)
    known = np.ones(len(backtest_window.series)) if factors is None else factors[first : len(series)]
    forecasts: list[MethodForecasts] = []
    for place, name in enumerate(chosen):
        forecasts += (
            _ours(backtest_window, leads, sundays, known)
            if name == COMBINATION
            else _single(name, backtest_window, leads)
        )
        if progress is not None:
            progress(name, place + 1, len(chosen))
    return BacktestRun(window=backtest_window, forecasts=tuple(forecasts), notes=tuple(notes))


def _possible(backtest_window: BacktestWindow, leads: dict[float, Integers]) -> tuple[dict[float, Integers], list[str]]:
    if not backtest_window.little:
        return leads, []
    hours = len(backtest_window.series) * backtest_window.series.bin_seconds / 3600
    notes = [
        f"little history ({hours:.0f} hours): everything after the first 6 hours is tested, and only the next bins"
    ]
    single = {horizon: values for horizon, values in leads.items() if len(values) == 1}
    if not single:
        raise ShortSeriesError(f"has {hours:.0f} hours; horizons of 6 hours and more need {LEAST_DAYS} days of history")
    return single, notes


def _single(name: str, backtest_window: BacktestWindow, leads: dict[float, Integers]) -> list[MethodForecasts]:
    """Return the forecasts of a method, with quantiles from its own errors."""
    past = ObservedBins(backtest_window.series)
    members = partial(forecast_all, [METHODS[name]], Outlook(past))
    first = 1 if backtest_window.little else max(first_origin(past), backtest_window.test - WARM_UP_DAYS * past.per_day)
    made = []
    for horizon, ahead in leads.items():
        forecaster = Horizon(past, members, ahead, first=first)
        if len(ahead) > 1:
            forecaster = day_horizon(past, members, first, scales=((0.5, False),))
        origins = backtest_window.origins(ahead)
        quantiles = forecaster.quantiles(origins)[:, :, : len(ahead)]
        made.append(
            MethodForecasts(method=name, horizon_seconds=horizon, origins=origins, leads=ahead, quantiles=quantiles)
        )
    return made


def _ours(
    backtest_window: BacktestWindow, leads: dict[float, Integers], sundays: Collection[date], factors: Array
) -> list[MethodForecasts]:
    """Return the forecasts of this forecaster. With little history these are the same as now."""
    series = replace(backtest_window.series, values=remove_event_effects(backtest_window.series.values, factors))
    past = ObservedBins(series)
    shift = len(series) - len(past)
    single = [int(ahead[0]) * series.bin_seconds for ahead in leads.values() if len(ahead) == 1]
    if not backtest_window.little:
        seconds = max(single, default=NEXT_SECONDS)
        forecaster = Forecaster(series, ahead_seconds=seconds, sundays=sundays, since=backtest_window.test)
    made = []
    for horizon, ahead in leads.items():
        origins = backtest_window.origins(ahead)
        if backtest_window.little:
            quantiles = naive_horizon(past).quantiles(origins - shift)
        else:
            quantiles = forecaster.quantiles(origins - shift, int(ahead[-1]))
        quantiles = quantiles[:, :, ahead - 1] * factors[origins[:, None] + ahead - 1]
        made.append(
            MethodForecasts(
                method=COMBINATION, horizon_seconds=horizon, origins=origins, leads=ahead, quantiles=quantiles
            )
        )
    return made
