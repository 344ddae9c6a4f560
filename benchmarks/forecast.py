"""How well real traffic is forecast, beside naive methods.

    python benchmarks/forecast.py ../shared/traces/{servegen,nasa,nab}_*.csv.gz --end nasa_http_1995=1995-08-31T04:00
    python benchmarks/forecast.py --cost [TRACE.csv.gz]

Prints the table and the goals. The protocol is `forecast.backtest.walk`'s, the same for all traces: bins of five minutes, or
the trace's own where they are longer; the last four days are tested, or 14 where bins are half an hour or longer. Nothing is
tuned on them. `--end` cuts a trace. What others published on the same traces is in `../shared/traces/BASELINES.md`; their
numbers of nasa_http_1995 are of the days before 1995-08-31 04:00.
`--cost` times the forecaster on four weeks of 5-minute bins (made up, seeded, where no trace is given).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import common

from agent.worker.process import ONE_THREAD

os.environ.update(ONE_THREAD)  # before numpy is loaded

import numpy as np

from agent.cli.forecast import durations
from agent.errors import SizewatchError
from agent.forecasting.csv_series import read_trace
from forecast.backtest.scores import Scored, interval, score_walk
from forecast.backtest.walk import NAMES, BacktestRun, walk
from forecast.backtest.window import CannotTest
from forecast.models.bin_forecaster import COMBINATION, Forecaster
from forecast.series.binned import Array, Series
from rules.telemetry.wording import format_duration

BIN_SECONDS = 300.0
NEXT, DAY = 900.0, 86_400.0
COLUMNS = ("wape_ratio", "pinball_ratio")

MOST_SECONDS, MOST_MIB, MOST_STEP_MS = 2.0, 400.0, 250.0
DAY_BINS, WEEKS = 288, 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TestedTrace:
    """One trace with its backtest."""

    name: str
    walk: BacktestRun
    scores: tuple[Scored, ...]

    def find(self, method: str, horizon: float) -> Scored | None:
        """Return the scores of a method; None where it was not tested."""
        for row in self.scores:
            if (row.method, row.horizon_seconds) == (method, horizon):
                return row
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What must be reached over all traces: `over` makes one number of those of the traces, which lies in [low, high]."""

    text: str
    horizon: float
    name: str
    over: Callable[[Array], Array]
    low: float = 0.0
    high: float = float("inf")
    little: bool = False


def _geometric(values: Array) -> Array:
    means: Array = np.exp(np.log(np.maximum(values, 1e-12)).mean(axis=0))
    return means


_mean, _least, _most = partial(np.mean, axis=0), partial(np.min, axis=0), partial(np.max, axis=0)

GOALS: tuple[Goal, ...] = (
    Goal(text="15 min WAPE by same as now", horizon=NEXT, name="wape_ratio", over=_geometric, high=0.68),
    Goal(text="15 min P95 pinball by same as now", horizon=NEXT, name="pinball_ratio", over=_geometric, high=0.66),
    Goal(text="24 h WAPE by same as yesterday", horizon=DAY, name="wape_ratio", over=_geometric, high=0.70),
    Goal(text="24 h P95 pinball by same as yesterday", horizon=DAY, name="pinball_ratio", over=_geometric, high=0.53),
    Goal(text="15 min coverage, mean", horizon=NEXT, name="coverage", over=_mean, low=0.93, high=0.97),
    Goal(text="15 min coverage, worst trace", horizon=NEXT, name="coverage", over=_least, low=0.90),
    Goal(text="24 h coverage, mean", horizon=DAY, name="coverage", over=_mean, low=0.91, high=0.97),
    Goal(text="24 h coverage, worst trace", horizon=DAY, name="coverage", over=_least, low=0.85),
    Goal(text="little history: 15 min WAPE", horizon=NEXT, name="wape_ratio", over=_most, high=1.02, little=True),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables. Return 2 where no trace could be tested, 1 where `--cost` misses a goal."""
    parser = common.build_parser(__doc__, cost=False, methods=",".join(NAMES), test_days=int)
    common.add_traces(parser, "*")
    parser.add_argument("--horizons", type=durations, default=(NEXT, DAY), metavar="15m,24h")
    options = parser.parse_args(arguments)
    if options.cost:
        return measure_cost(options.files[0] if options.files else None)
    tested = []
    for file in options.files:
        trace = _test(file, options)
        if trace is not None:
            tested.append(trace)
    if not tested:
        return 2
    for horizon in options.horizons:
        _print_traces(horizon, tested)
    _print_means(tested)
    rows = [row for goal in GOALS if (row := _goal_row(goal, tested)) is not None]
    print(f"\nGoals for {COMBINATION} over the traces given")
    common.print_table(("goal", "wanted", "reached", "(95 %)", ""), rows, 2)
    return 0


def _test(file: Path, options: argparse.Namespace) -> TestedTrace | None:
    began = time.monotonic()
    try:
        name, series = common.read_trace_until(file, options.end, bin_seconds=BIN_SECONDS)
        run = walk(series, options.horizons, methods=tuple(options.methods.split(",")), test_days=options.test_days)
    except (SizewatchError, CannotTest, OSError) as error:
        print(f"skipped {file.name}: {error}", file=sys.stderr)
        return None
    bins = f"{len(run.window.series)} bins of {format_duration(series.bin_seconds)}"
    text = "; ".join((f"done {name}: {bins}, {time.monotonic() - began:.0f} s", *run.notes))
    print(text, file=sys.stderr, flush=True)
    return TestedTrace(name=name, walk=run, scores=score_walk(run))


HEAD = (
    "trace", "method", "WAPE", "pinball %", "WAPE/naive", "(95 %)", "pinball/naive", "(95 %)", "coverage", "(95 %)", "targets",
)  # fmt: skip


def _print_traces(horizon: float, tested: Sequence[TestedTrace]) -> None:
    rows = []
    for trace in tested:
        for row in trace.scores:
            if row.horizon_seconds == horizon:
                cells = [trace.name, row.method, _number(row.values["wape"]), _number(row.values["pinball"])]
                for name in (*COLUMNS, "coverage"):
                    cells += [_number(row.values[name]), _between(row.interval(name))]
                rows.append((*cells, str(row.targets)))
    text = f"{format_duration(horizon)} ahead; pinball loss of the 95 % quantile in % of the mean; intervals: block bootstrap"
    print(f"\n{text}")
    common.print_table(HEAD, rows, 2)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _between(limits: tuple[float, float] | None) -> str:
    return "" if limits is None else f"{limits[0]:.3f} to {limits[1]:.3f}"


def _print_means(tested: Sequence[TestedTrace]) -> None:
    whole = [trace for trace in tested if not trace.walk.window.little]
    rows = []
    for method in NAMES:
        cells = []
        for horizon in (NEXT, DAY):
            scores = [row for trace in whole if (row := trace.find(method, horizon)) is not None]
            for column in COLUMNS:
                known = [value for row in scores if (value := row.values[column]) is not None]
                cells.append(_number(float(_geometric(np.array(known))) if known else None))
        rows.append((method, *cells))
    print(
        f"\nGeometric means by the naive method over {len(whole)} traces (15 min: same as now; 24 h: same as yesterday)"
    )
    common.print_table(("method", "15 min WAPE", "15 min pinball", "24 h WAPE", "24 h pinball"), rows)


def _goal_row(goal: Goal, tested: Sequence[TestedTrace]) -> tuple[str, ...] | None:
    rows = []
    for trace in tested:
        row = trace.find(COMBINATION, goal.horizon)
        if row is not None and trace.walk.window.little == goal.little and row.values[goal.name] is not None:
            rows.append(row)
    if not rows:
        return None
    reached = float(goal.over(np.array([row.values[goal.name] for row in rows], dtype=np.float64)))
    draws = [np.random.default_rng(place).permutation(row.draws[goal.name]) for place, row in enumerate(rows)]
    limits = interval(goal.over(np.stack(draws))) if all(len(draw) for draw in draws) else None
    wanted = f"{goal.low:g} to {goal.high:g}"
    met = "met" if goal.low <= reached <= goal.high else "NOT MET"
    return goal.text, wanted, f"{reached:.3f}", _between(limits), met


# ---- cost ----


def measure_cost(trace: Path | None) -> int:
    """Time the forecaster in one thread, as in the daemon's forecasting process; memory is that of the whole process."""
    series = _make_series() if trace is None else read_trace(trace, bin_seconds=BIN_SECONDS).requests
    count = WEEKS * 7 * DAY_BINS
    if series.bin_seconds != BIN_SECONDS or len(series) < count + 2 * DAY_BINS:
        raise SystemExit(f"{trace}: thirty days of bins of 5 minutes or less are needed")
    learnt = Series(start=series.start, bin_seconds=BIN_SECONDS, values=series.values[:count])
    first = _time(lambda: Forecaster(learnt).path(DAY_BINS))
    forecaster = Forecaster(learnt)
    forecaster.path(DAY_BINS)

    def step(value: float) -> None:
        forecaster.step(value)
        forecaster.path(DAY_BINS)

    steps = [1e3 * _time(partial(step, float(value))) for value in series.values[count : count + 2 * DAY_BINS]]
    goals = (
        common.print_goal("first fit and forecast of four weeks, s", first, MOST_SECONDS),
        common.print_goal("a bin and its forecast, mean, ms", float(np.mean(steps)), MOST_STEP_MS),
        common.print_goal("a bin and its forecast, P99, ms", float(np.quantile(steps, 0.99)), MOST_STEP_MS),
        common.print_goal("memory of the process, MiB", common.read_status()["VmHWM"] / 1024, MOST_MIB),
    )
    return int(not all(goals))


def _time(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def _make_series() -> Series:
    bins = np.arange((WEEKS * 7 + 2) * DAY_BINS)
    draw = np.random.default_rng(0)
    shape = 1.2 - np.cos(2 * np.pi * bins / DAY_BINS) * np.where(bins // DAY_BINS % 7 < 5, 1.0, 0.5)
    values = draw.poisson(600 * shape * np.exp(0.05 * draw.standard_normal(len(bins)))).astype(float)
    return Series(start=1_760_313_600.0, bin_seconds=BIN_SECONDS, values=values)


if __name__ == "__main__":
    sys.exit(main())
