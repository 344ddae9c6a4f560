"""Rolling-origin backtest: every method forecasts from past bins only, this forecaster as in production.

Holds the table of methods and the run through the series. A run shows bins one by one, so that a method cannot read the
future. `forecast.backtest.window` selects the tested bins, `forecast.backtest.scores` computes the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from forecast.backtest.window import LEAST_DAYS, BacktestWindow, CannotTest, ShortSeriesError, list_leads, window
from forecast.models.bin_forecaster import COMBINATION, DAYS_NEEDED, Forecaster
from forecast.models.classic import Arima, HoltWinters, Mstl
from forecast.models.naive import LaggedMethod, Method, ProfileTimesLevel
from forecast.models.rolling_quantiles import (
    FLOOR_SHARE,
    minimum_path_count,
    quantiles_at_lead,
    quantiles_of_paths,
    window_bins,
)
from forecast.models.simple_methods import SAME_AS_NOW
from forecast.series.binned import Array, Integers, Series, select_bins
from forecast.series.calendar import remove_event_effects
from forecast.series.observed import DAYS_A_WEEK, ObservedBins

SAME_AS_YESTERDAY, SAME_AS_LAST_WEEK = "same as yesterday", "same as last week"

METHODS: dict[str, Callable[[], Method]] = {
    SAME_AS_NOW: lambda: LaggedMethod(0),
    SAME_AS_YESTERDAY: lambda: LaggedMethod(1),
    SAME_AS_LAST_WEEK: lambda: LaggedMethod(DAYS_A_WEEK),
    "Holt-Winters": HoltWinters,
    "ARIMA": Arima,
    "MSTL": Mstl,
    "time-of-week profile": ProfileTimesLevel,
}
"""Methods with quantiles from `forecast.models.rolling_quantiles`. `COMBINATION` has its own quantiles."""

NAMES = (COMBINATION, *METHODS)

LIVE_DAYS = 6
"""Days before the test when this forecaster starts, after DAYS_NEEDED at the earliest: it learns from its own errors.
"""

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
        found: Integers = self.origins[:, None] + self.leads[None, :] - 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BacktestRun:
    """Forecasts over a window. `notes` list omitted tests and warnings of libraries."""

    window: BacktestWindow
    forecasts: tuple[MethodForecasts, ...]
    notes: tuple[str, ...]


ProgressCallback = Callable[[str, int, int], None]
"""Callback with the method, the finished origins, and the number of origins over all methods."""


def select_naive(one: MethodForecasts) -> str:
    """Return the naive method of a horizon: same as now for a single lead, same as yesterday for a path."""
    return SAME_AS_NOW if len(one.leads) == 1 else SAME_AS_YESTERDAY


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
    found = window(series, test_days)
    asked = {horizon: list_leads(horizon, series.bin_seconds) for horizon in horizons}
    asked, notes = _possible(found, asked)
    chosen, more = _runnable(found, [name for name in NAMES if name in methods])
    notes += more
    steps = len(found.series) - found.calibration
    first = len(series) - len(found.series)
    known = np.ones(len(found.series)) if factors is None else factors[first : len(series)]
    forecasts: list[MethodForecasts] = []
    for place, name in enumerate(chosen):

        def advance(done: int, name: str = name, place: int = place) -> None:
            if progress is not None:
                progress(name, place * steps + min(done, steps), steps * len(chosen))

        if name == COMBINATION:
            made = _ours(found, asked, sundays, known, advance)
        else:
            made, troubles = _single(METHODS[name](), found, asked, advance)
            notes += [f"{name}: {count} fits warned: {text}" for text, count in sorted(troubles.items())]
        advance(steps)
        forecasts += [_tested(found, name, horizon, asked[horizon], quantiles) for horizon, quantiles in made.items()]
    return BacktestRun(window=found, forecasts=tuple(forecasts), notes=tuple(notes))


def _possible(found: BacktestWindow, asked: dict[float, Integers]) -> tuple[dict[float, Integers], list[str]]:
    if not found.little:
        return asked, []
    hours = len(found.series) * found.series.bin_seconds / 3600
    notes = [
        f"little history ({hours:.0f} hours): everything after the first 6 hours is tested, and only the next bins"
    ]
    single = {horizon: one for horizon, one in asked.items() if len(one) == 1}
    if not single:
        raise ShortSeriesError(f"has {hours:.0f} hours; horizons of 6 hours and more need {LEAST_DAYS} days of history")
    return single, notes


def _runnable(found: BacktestWindow, names: list[str]) -> tuple[list[str], list[str]]:
    has = found.calibration / found.per_day
    young = {
        name: METHODS[name]().needs_days
        for name in names
        if not found.little and name in METHODS and METHODS[name]().needs_days > has
    }
    notes = [f"{name}: needs {days:g} days before the calibration, has {has:.1f}" for name, days in young.items()]
    left = [name for name in names if found.little and name not in LITTLE_METHODS]
    if left:
        notes.append(f"not tested with little history: {', '.join(left)}")
    return [name for name in names if name not in (*young, *left)], notes


def _tested(found: BacktestWindow, name: str, horizon: float, ahead: Integers, quantiles: Array) -> MethodForecasts:
    origins = found.origins(ahead)
    kept = origins >= found.test
    return MethodForecasts(
        method=name, horizon_seconds=horizon, origins=origins[kept], leads=ahead, quantiles=quantiles[:, kept]
    )


def _single(
    method: Method, found: BacktestWindow, asked: dict[float, Integers], advance: Callable[[int], None]
) -> tuple[dict[float, Array], dict[str, int]]:
    """Return the forecasts of a method at every origin from the calibration on, with rolling conformal quantiles."""
    series, first = found.series, found.calibration
    past = ObservedBins(select_bins(series, end=first))
    places = {horizon: {int(at): row for row, at in enumerate(found.origins(one))} for horizon, one in asked.items()}
    points = {horizon: np.full((len(places[horizon]), len(one)), np.nan) for horizon, one in asked.items()}
    for origin in range(first, len(series)):
        if origin > first:
            past.append(float(series.values[origin - 1]))
        if (origin - first) % found.per_day == 0:
            method.fit(past)
        else:
            method.advance(past)
        for horizon, one in asked.items():
            row = places[horizon].get(origin)
            if row is not None:
                points[horizon][row] = np.maximum(method.path(past, int(one[-1]))[one - 1], 0.0)
        advance(origin - first)
    made = {horizon: _bounded(found, one, points[horizon]) for horizon, one in asked.items()}
    return made, dict(method.troubles)


def _bounded(found: BacktestWindow, ahead: Integers, points: Array) -> Array:
    """Return the 5 %, 50 %, 95 % and 99 % quantiles around points. The point is the median."""
    series, origins = found.series, found.origins(ahead)
    actual = series.values[origins[:, None] + ahead[None, :] - 1]
    floor = max(FLOOR_SHARE * float(np.nanmean(series.values[: found.calibration])), 1e-12)
    if len(ahead) == 1:
        width = window_bins(series.bin_seconds, found.per_day)
        limits = quantiles_at_lead(points[:, 0], actual[:, 0], int(ahead[0]), width, floor)[:, :, None]
    else:
        limits = quantiles_of_paths(points, actual, origins, floor, minimum_path_count(series.bin_seconds))
    q05, q95, q99 = np.maximum(limits, 0.0)
    q95 = np.maximum(q95, points)
    return np.stack([np.minimum(q05, points), points, q95, np.maximum(q99, q95)])


def _ours(
    found: BacktestWindow,
    asked: dict[float, Integers],
    sundays: Collection[date],
    factors: Array,
    advance: Callable[[int], None],
) -> dict[float, Array]:
    """Return the forecasts of the online forecaster: started some days before, stepped by every bin, refitted daily."""
    series, day = replace(found.series, values=remove_event_effects(found.series.values, factors)), found.per_day
    first = found.calibration if found.little else max(found.test - LIVE_DAYS * day, DAYS_NEEDED * day)
    single = [int(one[0]) * series.bin_seconds for one in asked.values() if len(one) == 1]
    forecaster = Forecaster(
        select_bins(series, end=first), ahead_seconds=max(single, default=NEXT_SECONDS), sundays=sundays
    )
    places = {horizon: {int(at): row for row, at in enumerate(found.origins(one))} for horizon, one in asked.items()}
    made = {horizon: np.full((4, len(places[horizon]), len(one)), np.nan) for horizon, one in asked.items()}
    for origin in range(first, len(series)):
        if origin > first:
            if (origin - first) % day == 0:
                forecaster.refit()
            forecaster.step(float(series.values[origin - 1]))
        if origin >= found.test:
            for horizon, one in asked.items():
                row = places[horizon].get(origin)
                path = None if row is None else forecaster.path(int(one[-1]))
                if path is not None:
                    made[horizon][:, row] = path.quantiles[:, one - 1] * factors[origin + one - 1]
        advance((origin - first) * (len(series) - found.calibration) // (len(series) - first))
    return made
