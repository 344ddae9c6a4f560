"""The forecast of a series as it stands, for a command: fitted once, with its record of the last day.

Owns how a forecaster is brought to the end of a series so that it can say how well it did, and the way to the plain record
that is told. The daemon's forecasters run on instead: `agent.forecasting.tier_forecast`.

A backtest that was walked, as the plain records that it is told by.

Owns the way from `forecast.backtest.walk`'s arrays to `exporters.documents.backtest`'s records, in requests per second where the
picture asks for them.

What the forecast's commands write into files: rows of forecasts, pictures.

Owns the columns of a file of forecasts and the words for a file that cannot be written. A further column belongs at the
end: programs read it by its place too.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from agent.errors import SizewatchError
from agent.forecasting.input_series import InputSeries
from agent.forecasting.responses import TOO_YOUNG, points
from agent.forecasting.timestamps import TimeStyle
from exporters.documents.backtest import OURS, Backtest, BacktestTrace, MethodScore
from exporters.documents.forecast import ForecastResult
from forecast.backtest.scores import Scored, score_walk
from forecast.backtest.walk import BacktestRun, MethodForecasts, remove_event_effects, truncate
from forecast.backtest.window import CannotTest, bins_a_day
from forecast.models.bin_forecaster import Forecaster
from forecast.series.binned import Series, last_bins
from forecast.series.observed import DAY_SECONDS
from rules.verdicts.projection import ForecastPoint, Projection

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


def backtest_report(name: str, walk: BacktestRun, notes: tuple[str, ...] = ()) -> Backtest:
    """The scores of all methods and the lines of ours; `notes` stand before those of the walk."""
    series = walk.window.series
    found = score_walk(walk)
    return Backtest(
        name=name,
        zone=series.zone,
        bin_seconds=series.bin_seconds,
        start=series.time(walk.window.test),
        end=series.end,
        scores=tuple(_score(one) for one in found),
        naive=tuple({one.horizon_seconds / 60: one.naive for one in found}.items()),
        traced=tuple(_traced(walk, one) for one in walk.forecasts if one.method == OURS),
        notes=(*notes, *walk.notes),
    )


def _score(one: Scored) -> MethodScore:
    low, high = one.interval("coverage") or (None, None)
    return MethodScore(
        method=one.method,
        horizon_minutes=one.horizon_seconds / 60,
        targets=one.targets,
        coverage_low=low,
        coverage_high=high,
        **one.values,
    )


def _traced(walk: BacktestRun, one: MethodForecasts) -> BacktestTrace:
    """What came, and of each bin the newest forecast that the horizon has."""
    series, seconds = walk.window.series, walk.window.series.bin_seconds
    ends = [*(int(origin) for origin in one.origins), int(one.targets.max(initial=-1)) + 1]
    points = []
    for row, (origin, after) in enumerate(pairwise(ends)):
        for column, lead in enumerate(one.leads.tolist()):
            target = origin + lead - 1
            said = one.quantiles[:, row, column] / seconds
            if np.isfinite(said).all() and (len(one.leads) == 1 or target < after):
                points.append(_demand(series.time(target), said[1:]))
    seen = tuple(
        (series.time(place), float(value) / seconds if np.isfinite(value) else None)
        for place, value in enumerate(series.values[walk.window.test :], walk.window.test)
    )
    return BacktestTrace(horizon_minutes=one.horizon_seconds / 60, seen=seen, forecast=tuple(points))


def _demand(t: float, said: np.ndarray[tuple[int], np.dtype[np.float64]]) -> ForecastPoint:
    q50, q95, q99 = np.maximum.accumulate(said).tolist()
    return ForecastPoint(t=t, q50=q50, q95=q95, q99=q99)


COLUMNS = ("origin", "target", "horizon_minutes", "method", "q05", "q50", "q95", "q99")


class OutputError(SizewatchError):
    """A file cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: cannot be written: {error.strerror or error}")


def must_be_writable(*paths: Path | None) -> None:
    """Asked before long work, whose result would be lost; it leaves no file behind. Raises NotWritten."""
    for path in paths:
        # What stands behind a pipe would take an opening and closing for all that comes.
        if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
            continue
        new = not path.exists()
        try:
            with path.open("a", encoding="utf-8"):
                pass
            if new:
                path.unlink()
        except OSError as error:
            raise OutputError(path, error) from error


def write_text(path: Path, text: str) -> None:
    """A whole file. Raises NotWritten."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(path, error) from error


def write_forecasts(path: Path, walk: BacktestRun, times: TimeStyle) -> None:
    """Every forecast of the test, one a row, amounts per bin. Raises NotWritten.

    `origin` is the moment at which it was made: the start of the first bin not seen yet. `target` is the start of the bin
    that it is of. Times are written as `times` does.
    """
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(_rows(walk, times))
    except OSError as error:
        raise OutputError(path, error) from error


def _rows(walk: BacktestRun, times: TimeStyle) -> Iterator[Iterable[str]]:
    series = walk.window.series
    clock = {index: times.text(series.time(index)) for index in range(walk.window.test, len(series))}
    for one in walk.forecasts:
        minutes = f"{one.horizon_seconds / 60:g}"
        for row, (origin, targets) in enumerate(zip(one.origins.tolist(), one.targets.tolist(), strict=True)):
            for column, target in enumerate(targets):
                said = one.quantiles[:, row, column]
                if np.isfinite(said).all():
                    yield clock[origin], clock[target], minutes, one.method, *(f"{value:.8g}" for value in said)
