"""A backtest that was walked, as the plain records that it is told by.

Owns the way from `forecast.backtest.walk`'s arrays to `exporters.documents.backtest`'s records, in requests per second where the
picture asks for them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from exporters.documents.backtest import OURS, Backtest, BacktestTrace, MethodScore
from forecast.backtest.backtest_scores import Scored, score_walk
from forecast.backtest.walk import BacktestRun, MethodForecasts
from rules.verdicts.projection import ForecastPoint


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
