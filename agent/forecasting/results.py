"""Results of the forecast commands: the forecast of a series, a backtest, and the files that they write."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from agent.errors import CannotJudgeError, SizewatchError
from agent.forecasting.input_series import InputSeries
from agent.forecasting.responses import KEPT_SECONDS, build_forecast
from exporters.documents.forecast import Backtest, ForecastResult
from exporters.render.text import copy_fields
from forecast.backtest.scores import score_walk
from forecast.backtest.walk import BacktestRun
from forecast.backtest.window import CannotTest, bins_a_day
from forecast.models.bin_forecaster import Forecaster
from forecast.series.binned import last_bins
from forecast.series.calendar import remove_event_effects
from forecast.series.observed import DAY_SECONDS

COLUMNS = ("origin", "target", "horizon_minutes", "method", "q05", "q50", "q95", "q99")
"""Columns of a forecast file. Programs read them by place: add a column at the end."""


def forecast_now(tier: str, given: InputSeries, horizon_seconds: float) -> ForecastResult:
    """Return the forecast of the bins up to `horizon_seconds` after the series, with its record of the last week.

    Raise SizewatchError for bins that do not divide a day, CannotJudgeError for a series without recent ones.
    """
    series = last_bins(given.series, KEPT_SECONDS)
    bins = max(1, math.ceil(horizon_seconds / series.bin_seconds - 1e-9))
    factors = given.factors[len(given.series) - len(series) :]
    usual = replace(series, values=remove_event_effects(series.values, factors[: len(series)]))
    try:
        bins_a_day(series.bin_seconds)
    except CannotTest as error:
        raise SizewatchError(f"{given.name}: {error}") from error
    if not np.isfinite(usual.values).any():
        raise CannotJudgeError(f"{given.name}: nothing was seen in the last {KEPT_SECONDS / DAY_SECONDS:.0f} days")
    forecaster = Forecaster(usual, ahead_seconds=horizon_seconds, sundays=given.sundays)
    path = forecaster.path(bins)
    ahead = factors[len(series) :]
    forecast = build_forecast(
        tier,
        path,
        ahead if path is None else ahead[: path.quantiles.shape[1]],
        forecaster.quality(),
        made_at=series.end,
        horizon_seconds=forecaster.leads * series.bin_seconds,
        zone=series.zone,
        bin_seconds=series.bin_seconds,
    )
    return replace(forecast, notes=(*given.notes, *forecast.notes))


def backtest_report(name: str, walk: BacktestRun, notes: tuple[str, ...] = ()) -> Backtest:
    """Return the scores of all methods. `notes` precede those of the walk."""
    series = walk.window.series
    return Backtest(
        name=name,
        start=series.time(walk.window.test),
        scores=score_walk(walk),
        notes=(*notes, *walk.notes),
        **copy_fields(series, "zone", "bin_seconds", "end"),
    )


def write_forecasts(path: Path, walk: BacktestRun, time_text: Callable[[float], str]) -> None:
    """Write every forecast of the test as a row, in amounts per bin. Raise SizewatchError.

    `origin` is the first bin that was unknown to the forecast, `target` its bin. `time_text` writes unix seconds.
    """
    series = walk.window.series
    clock = pd.Series({index: time_text(series.time(index)) for index in range(walk.window.test, len(series))})
    frames = [pd.DataFrame(columns=COLUMNS)]
    for made in walk.forecasts:
        known = np.isfinite(made.quantiles).all(axis=0).ravel()
        frame = pd.DataFrame(
            {
                "origin": clock[np.repeat(made.origins, made.targets.shape[1])].to_numpy(),
                "target": clock[made.targets.ravel()].to_numpy(),
                "horizon_minutes": f"{made.horizon_seconds / 60:g}",
                "method": made.method,
                **{name: made.quantiles[level].ravel() for level, name in enumerate(COLUMNS[4:])},
            }
        )
        frames.append(frame[known])
    rows = pd.concat([frame for frame in frames if len(frame)] or frames)
    try:
        rows.to_csv(path, index=False, float_format="%.8g", lineterminator="\n")
    except OSError as error:
        raise SizewatchError(f"{path}: cannot be written: {error.strerror or error}") from error
