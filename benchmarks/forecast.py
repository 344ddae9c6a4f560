"""How well real traffic is forecast, beside naive methods, textbook methods and what others published on the same traces.

    python benchmarks/forecast.py ../shared/traces/{servegen,nasa,nab}_*.csv.gz --end nasa_http_1995=1995-08-31T04:00

Owns the table, the goals and the published numbers it stands beside (`../shared/traces/BASELINES.md`). The protocol is
`forecast.backtest.walk`'s, the same for all traces: bins of five minutes, or the trace's own where they are longer; the last four
days are tested, or 14 where bins are half an hour or longer. Nothing is tuned on them. `--end` cuts a trace before its end:
the published numbers of nasa_http_1995 are of the days before 1995-08-31 04:00. A further goal is a row of `GOALS`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.worker.process import ONE_THREAD

os.environ.update(ONE_THREAD)  # before numpy is loaded

import numpy as np

from agent.cli.forecast import durations
from agent.durations import parse_duration
from agent.errors import SizewatchError
from agent.forecasting.csv_series import read_trace
from agent.forecasting.results import write_forecasts
from exporters.render.text import format_duration, text_table
from forecast.backtest.scores import Scored, interval, score_walk
from forecast.backtest.walk import NAMES, BacktestRun, walk
from forecast.backtest.window import CannotTest
from forecast.models.bin_forecaster import COMBINATION
from forecast.series.binned import Array, truncate_at

BIN_SECONDS = 300.0
NEXT, DAY = 900.0, 86_400.0
COLUMNS = ("wape_ratio", "pinball_ratio")

PUBLISHED_MEANS: tuple[tuple[str, float, float, float, float], ...] = (
    ("same as now", 1.000, 1.000, 1.567, 1.349),
    ("same as yesterday", 1.759, 1.908, 1.000, 1.000),
    ("same as last week", 1.514, 1.461, 0.859, 0.703),
    ("Holt-Winters, daily season", 0.846, 0.858, 0.996, 0.793),
    ("ETS without season", 0.939, 0.888, 2.342, 1.471),
    ("AutoARIMA", 0.870, 0.814, 1.284, 0.977),
    ("STL + ETS", 1.044, 1.146, 1.162, 1.028),
    ("MSTL + AutoETS", 0.905, 0.931, 0.932, 0.720),
    ("MSTL + AutoARIMA", 0.884, 0.847, 0.820, 0.634),
    ("ARIMA as in Dynamo's planner", 0.895, 0.864, 1.441, 1.034),
    ("Kalman as in Dynamo's planner", 1.194, 1.255, 4.591, 3.866),
    ("Prophet", 1.811, 1.610, 1.050, 0.947),
    ("profile x recent level", 0.839, 0.817, 0.748, 0.576),
    ("LightGBM quantile", 0.775, 0.810, 0.736, 0.609),
    ("median of five cheap methods", 0.721, 0.721, 0.753, 0.568),
)
"""Published geometric means over 13 traces: WAPE and P95 pinball at 15 minutes, by the same as now; at 24 hours, by the same
as yesterday. Eight of the 13 are not public with them."""

PUBLISHED_TRACES: dict[tuple[str, float], tuple[float, float, float, float, float, str]] = {
    ("servegen_mlarge_all", NEXT): (0.189, 2.71, 0.184, 2.58, 0.941, "AutoARIMA 0.183"),
    ("servegen_mlarge_all", DAY): (0.507, 18.02, 0.485, 12.33, 0.861, "profile x level 0.483"),
    ("servegen_mmid_diurnal", NEXT): (0.060, 1.19, 0.039, 0.91, 0.967, "LightGBM 0.038"),
    ("servegen_mmid_diurnal", DAY): (0.112, 5.18, 0.093, 1.39, 0.937, "LightGBM 0.085"),
    ("nasa_http_1995", NEXT): (0.218, 3.20, 0.176, 2.41, 0.942, "profile x level 0.176"),
    ("nasa_http_1995", DAY): (0.330, 9.36, 0.234, 3.20, 0.919, "LightGBM 0.217"),
    ("nab_elb_requests", NEXT): (0.872, 20.65, 0.645, 12.85, 0.949, "Prophet 0.646"),
    ("nab_elb_requests", DAY): (0.830, 22.96, 0.648, 13.29, 0.930, "Prophet 0.638"),
    ("nab_tweets_goog", NEXT): (0.338, 6.70, 0.271, 5.72, 0.937, "Dynamo's ARIMA 0.274"),
    ("nab_tweets_goog", DAY): (0.473, 12.79, 0.356, 8.29, 0.825, "LightGBM 0.333"),
}
"""Published, trace by trace: WAPE and P95 pinball of the naive method, those of the median of five and its coverage, and the
WAPE of the best single method."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tried:
    """One trace."""

    name: str
    walk: BacktestRun
    scores: tuple[Scored, ...]

    def ours(self, horizon: float) -> Scored | None:
        """Our row, None where it was not tested."""
        return next((one for one in self.scores if (one.method, one.horizon_seconds) == (COMBINATION, horizon)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What must be reached over all traces at a horizon: `over` makes one number of those of the traces (and of each draw),
    which must lie within [low, high]."""

    text: str
    horizon: float
    name: str
    over: Callable[[Array], Array]
    low: float = 0.0
    high: float = float("inf")
    little: bool = False


def geometric(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean: None without ratios, 0 if a ratio is 0."""
    values = np.array(list(ratios), dtype=np.float64)
    if not len(values):
        return None
    return float(np.exp(np.log(values).mean())) if (values > 0).all() else 0.0


def _geometric(values: Array) -> Array:
    means: Array = np.exp(np.log(np.maximum(values, 1e-12)).mean(axis=0))
    return means


def _mean(values: Array) -> Array:
    means: Array = values.mean(axis=0)
    return means


def _least(values: Array) -> Array:
    least: Array = values.min(axis=0)
    return least


GOALS: tuple[Goal, ...] = (
    Goal(text="15 min WAPE by same as now", horizon=NEXT, name="wape_ratio", over=_geometric, high=0.68),
    Goal(text="15 min P95 pinball by same as now", horizon=NEXT, name="pinball_ratio", over=_geometric, high=0.66),
    Goal(text="24 h WAPE by same as yesterday", horizon=DAY, name="wape_ratio", over=_geometric, high=0.70),
    Goal(text="24 h P95 pinball by same as yesterday", horizon=DAY, name="pinball_ratio", over=_geometric, high=0.53),
    Goal(text="15 min coverage, mean", horizon=NEXT, name="coverage", over=_mean, low=0.93, high=0.97),
    Goal(text="15 min coverage, worst trace", horizon=NEXT, name="coverage", over=_least, low=0.90),
    Goal(text="24 h coverage, mean", horizon=DAY, name="coverage", over=_mean, low=0.91, high=0.97),
    Goal(text="24 h coverage, worst trace", horizon=DAY, name="coverage", over=_least, low=0.85),
    Goal(
        text="little history: 15 min WAPE by same as now, worst trace",
        horizon=NEXT,
        name="wape_ratio",
        over=lambda values: values.max(axis=0),
        high=1.02,
        little=True,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; 2 where no trace could be tested."""
    given = _parser().parse_args(arguments)
    tried = [one for file in given.files if (one := _tried(file, given)) is not None]
    if not tried:
        return 2
    for horizon in given.horizons:
        _print_traces(horizon, tried)
    _print_means(tried)
    _print_goals(tried)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="CSV: timestamp,requests[,...]; also .gz")
    parser.add_argument("--methods", type=_names, default=NAMES, metavar="A,B", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--horizons", type=durations, default=(NEXT, DAY), metavar="15m,24h")
    parser.add_argument("--test-days", type=int, metavar="N")
    parser.add_argument("--bin", type=parse_duration, default=BIN_SECONDS, metavar="5m")
    parser.add_argument("--emit", type=Path, metavar="DIR", help="write TRACE.csv with every forecast there")
    parser.add_argument(
        "--end",
        action="append",
        type=_end,
        default=[],
        metavar="[TRACE=]TIME",
        help="what comes later is left out (UTC)",
    )
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no method {unknown[0]}; there are {', '.join(NAMES)}")
    return names


def _end(text: str) -> tuple[str | None, float]:
    name, _, when = text.rpartition("=")
    try:
        t = datetime.fromisoformat(when)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{when}' is no time such as 1995-08-31T04:00") from error
    return name or None, (t if t.tzinfo else t.replace(tzinfo=UTC)).timestamp()


def _tried(file: Path, given: argparse.Namespace) -> Tried | None:
    name, begun = file.name.removesuffix(".gz").removesuffix(".csv"), time.monotonic()
    try:
        trace = read_trace(file, bin_seconds=given.bin)
        series = trace.requests
        for only, end in given.end:
            series = truncate_at(series, end) if only in (None, name) else series
        walked = walk(series, given.horizons, methods=given.methods, test_days=given.test_days)
        if given.emit is not None:
            given.emit.mkdir(parents=True, exist_ok=True)
            write_forecasts(given.emit / f"{name}.csv", walked, trace.time_text)
    except (SizewatchError, CannotTest, OSError) as wrong:
        print(f"skipped {name}: {wrong}", file=sys.stderr)
        return None
    notes = "".join(f"; {note}" for note in walked.notes)
    bins = f"{len(walked.window.series)} bins of {format_duration(series.bin_seconds)}"
    print(f"done {name}: {bins}, {time.monotonic() - begun:.0f} s{notes}", file=sys.stderr, flush=True)
    return Tried(name=name, walk=walked, scores=score_walk(walked))


HEAD = (
    "trace",
    "method",
    "WAPE",
    "pinball %",
    "WAPE/naive",
    "(95 %)",
    "pinball/naive",
    "(95 %)",
    "coverage",
    "(95 %)",
    "targets",
)


def _print_traces(horizon: float, tried: Sequence[Tried]) -> None:
    rows = [row for one in tried for row in _trace_rows(one, horizon)]
    if rows:
        print(
            f"\n{format_duration(horizon)} ahead; pinball loss of the 95 % quantile in % of the mean; intervals: block bootstrap"
        )
        print("\n".join(text_table(HEAD, rows, words=2)))


def _trace_rows(tried: Tried, horizon: float) -> Iterable[tuple[str, ...]]:
    for one in tried.scores:
        if one.horizon_seconds == horizon:
            yield (
                tried.name,
                one.method,
                _number(one.values["wape"]),
                _number(one.values["pinball"]),
                *(cell for name in COLUMNS for cell in (_number(one.values[name]), _between(one.interval(name)))),
                _number(one.values["coverage"]),
                _between(one.interval("coverage")),
                str(one.targets),
            )
    published = PUBLISHED_TRACES.get((tried.name, horizon))
    if published is not None:
        now, now_pinball, five, five_pinball, covered, best = published
        yield tried.name, "published: naive", f"{now:.3f}", f"{now_pinball:.2f}", *[""] * 7
        ratios = (f"{five / now:.3f}", "", f"{five_pinball / now_pinball:.3f}", "")
        row = (f"{five:.3f}", f"{five_pinball:.2f}", *ratios, f"{covered:.3f}", "", "")
        yield tried.name, "published: median of five", *row
        yield tried.name, f"published: best single, {best.rpartition(' ')[0]}", best.rpartition(" ")[2], *[""] * 8


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _between(found: tuple[float, float] | None) -> str:
    return "" if found is None else f"{found[0]:.3f} to {found[1]:.3f}"


def _print_means(tried: Sequence[Tried]) -> None:
    """In the shape of the published table, which stands below."""
    whole = [one for one in tried if not one.walk.window.little]
    if not whole:
        return
    print(
        f"\nGeometric means by the naive method over {len(whole)} traces (15 min: same as now; 24 h: same as yesterday)"
    )
    rows = [
        (name, *(_mean_cell(whole, name, horizon, column) for horizon in (NEXT, DAY) for column in COLUMNS))
        for name in NAMES
    ]
    rows += _published_here(whole)
    rows += [("published over 13 traces:", "", "", "", "")]
    rows += [(f"  {name}", *(f"{value:.3f}" for value in values)) for name, *values in PUBLISHED_MEANS]
    print("\n".join(text_table(("method", "15 min WAPE", "15 min pinball", "24 h WAPE", "24 h pinball"), rows)))


def _published_here(tried: Sequence[Tried]) -> list[tuple[str, ...]]:
    """The published median of five over those of the traces that it is known of."""
    names = [one.name for one in tried if (one.name, NEXT) in PUBLISHED_TRACES]
    if not names:
        return []
    cells = []
    for horizon in (NEXT, DAY):
        known = [PUBLISHED_TRACES[name, horizon] for name in names]
        cells += [geometric(five / naive for naive, _, five, *_ in known)]
        cells += [geometric(five / naive for _, naive, _, five, *_ in known)]
    return [(f"published: median of five, on {len(names)} of these", *(_number(cell) for cell in cells))]


def _mean_cell(tried: Sequence[Tried], method: str, horizon: float, column: str) -> str:
    found = [
        one.values[column]
        for each in tried
        for one in each.scores
        if (one.method, one.horizon_seconds) == (method, horizon)
    ]
    known = [value for value in found if value is not None]
    if not known:
        return "-"
    few = "" if len(known) == len(tried) else f" ({len(known)} traces)"
    return f"{_number(geometric(known))}{few}"


def _print_goals(tried: Sequence[Tried]) -> None:
    rows = [row for goal in GOALS if (row := _goal_row(goal, tried)) is not None]
    if rows:
        print(f"\nGoals for {COMBINATION} over the traces given")
        print("\n".join(text_table(("goal", "wanted", "reached", "(95 %)", ""), rows, words=2)))


def _goal_row(goal: Goal, tried: Sequence[Tried]) -> tuple[str, ...] | None:
    ours = [
        row for one in tried if one.walk.window.little == goal.little and (row := one.ours(goal.horizon)) is not None
    ]
    rows = [row for row in ours if row.values[goal.name] is not None]
    if not rows:
        return None
    reached = float(goal.over(np.array([row.values[goal.name] for row in rows], dtype=np.float64)))
    draws = [np.random.default_rng(place).permutation(row.draws[goal.name]) for place, row in enumerate(rows)]
    apart = interval(goal.over(np.stack(draws))) if all(len(one) for one in draws) else None
    wanted = f"at most {goal.high:g}" if not goal.low else f"at least {goal.low:g}"
    if goal.low and np.isfinite(goal.high):
        wanted = f"{goal.low:g} to {goal.high:g}"
    met = "met" if goal.low <= reached <= goal.high else "NOT MET"
    return goal.text, wanted, f"{reached:.3f}", _between(apart), met


if __name__ == "__main__":
    sys.exit(main())
