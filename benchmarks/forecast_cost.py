"""What forecasting costs: learning from four weeks of 5-minute bins, following them bin by bin, in CPU time and memory.

    python benchmarks/forecast_cost.py [TRACE.csv.gz]

Without a trace it makes four weeks up (seeded). Each figure stands beside its goal. One thread is used, as in the daemon's
forecasting process; memory is that of the whole process, libraries included.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.worker.process import ONE_THREAD

os.environ.update(ONE_THREAD)  # before numpy is loaded

import numpy as np

from agent.forecasting.csv_series import read_trace
from forecast.models.bin_forecaster import Forecaster
from forecast.series.binned import Series

BIN_SECONDS, DAY_BINS, WEEKS = 300.0, 288, 4
STEPS = 2 * DAY_BINS
MOST_SECONDS, MOST_MIB, MOST_STEP_MS = 2.0, 400.0, 250.0


def main() -> int:
    """Prints the table; 1 where a goal is not met."""
    series = _given(Path(sys.argv[1])) if len(sys.argv) > 1 else _made()
    learnt = Series(start=series.start, bin_seconds=BIN_SECONDS, values=series.values[: WEEKS * 7 * DAY_BINS])

    first = _seconds(lambda: Forecaster(learnt).path(DAY_BINS))
    forecaster = Forecaster(learnt)
    forecaster.path(DAY_BINS)
    steps = [_seconds(partial(_step, forecaster, value)) for value in _next(series, learnt)]
    path = _seconds(lambda: forecaster.path(DAY_BINS))
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = (
        ("first fit and forecast of four weeks, s", first, MOST_SECONDS),
        ("a bin and its forecast, mean, ms", 1e3 * float(np.mean(steps)), MOST_STEP_MS),
        ("a bin and its forecast, P99, ms", 1e3 * float(np.quantile(steps, 0.99)), MOST_STEP_MS),
        ("the same day's path again, ms", 1e3 * path, MOST_STEP_MS),
        ("memory of the process at most, MiB", mib, MOST_MIB),
    )
    for name, value, goal in rows:
        print(f"{name:42} {value:8.2f}  at most {goal:g}  {'met' if value <= goal else 'NOT MET'}")
    return int(any(value > goal for _, value, goal in rows))


def _seconds(act: Callable[[], object]) -> float:
    begun = time.process_time()
    act()
    return time.process_time() - begun


def _step(forecaster: Forecaster, value: float) -> None:
    forecaster.step(value)
    forecaster.path(DAY_BINS)


def _made() -> Series:
    bins = np.arange((WEEKS * 7 + 2) * DAY_BINS)
    draw = np.random.default_rng(0)
    shape = 1.2 - np.cos(2 * np.pi * bins / DAY_BINS) * np.where(bins // DAY_BINS % 7 < 5, 1.0, 0.5)
    values = draw.poisson(600 * shape * np.exp(0.05 * draw.standard_normal(len(bins)))).astype(float)
    return Series(start=1_760_313_600.0, bin_seconds=BIN_SECONDS, values=values)


def _given(path: Path) -> Series:
    series = read_trace(path, bin_seconds=BIN_SECONDS).requests
    if series.bin_seconds != BIN_SECONDS or len(series) < (WEEKS * 7 + 2) * DAY_BINS:
        raise SystemExit(f"{path}: thirty days of bins of 5 minutes or less are needed")
    return series


def _next(series: Series, learnt: Series) -> list[float]:
    return [float(value) for value in series.values[len(learnt) : len(learnt) + STEPS]]


if __name__ == "__main__":
    sys.exit(main())
