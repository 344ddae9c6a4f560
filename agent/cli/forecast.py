"""Commands `sizewatch forecast` and `sizewatch backtest`: expected demand, and a test against naive baselines."""

from __future__ import annotations

import os
from types import SimpleNamespace

from agent.cli import arguments as cli
from agent.cli.terminal import tell_progress
from agent.errors import CannotJudgeError, SizewatchError
from agent.worker.process import ONE_THREAD

DAY_SECONDS = 86_400.0

_CSV = "timestamp,requests[,...], also gzipped; without it the demand that the daemon has kept of the tier"
_BIN = "sums over so long are forecast, such as 5m (default: the configuration's, or 5m)"
HISTORY = (
    cli.option("--history", "CSV", _CSV, cli.PATH),
    cli.CONFIG,
    cli.option("--bin", "DURATION", _BIN, cli.duration()),
)
"""Where the demand comes from."""


def parameters() -> cli.Parameters:
    text = "how far ahead, at most 24h (default: 15m)"
    ahead = cli.option("--horizon", "15m", text, cli.duration(most=DAY_SECONDS), default="15m")
    return cli.tier_option("whose demand; default the only one"), *HISTORY, ahead, *cli.FORMAT


def run(options: SimpleNamespace) -> int:
    # Before the import: numeric library threads only wait for each other here, and use cores others need.
    os.environ.update(ONE_THREAD)
    from agent.forecasting.input_series import input_from_options
    from agent.forecasting.results import forecast_now
    from exporters.documents.forecast import forecast_json, forecast_text

    given = input_from_options(options)
    forecast = forecast_now(options.tier or given.name, given, options.horizon)
    cli.print_result(options, forecast_json(forecast), forecast_text(forecast))
    if forecast.projection.points:
        return cli.Exit.FINE
    return cli.Exit.CANNOT_JUDGE


def parameters_backtest() -> cli.Parameters:
    horizons = "how far ahead; 6h and more: all bins up to there, every 6 hours (default: 15m,24h)"
    days = "the newest days are tested (default: 4; 14 where bins are half an hour or longer)"
    return (
        *HISTORY,
        cli.tier_option("whose demand is read where no CSV is given; default the only one"),
        cli.option("--horizons", "LIST", horizons, durations, default="15m,24h"),
        cli.option("--test-days", "DAYS", days, int),
        cli.flag("--requests", "test the requests, not their work by tokens"),
        cli.option("--emit", "FILE", "every forecast of every method as CSV", cli.PATH),
        *cli.FORMAT,
    )


def durations(text: str) -> tuple[float, ...]:
    """Parse comma-separated durations of at most a day to seconds."""
    return tuple(dict.fromkeys(map(cli.duration(most=DAY_SECONDS), map(str.strip, text.split(",")))))


def run_backtest(options: SimpleNamespace) -> int:
    os.environ.update(ONE_THREAD)
    from agent.forecasting.input_series import input_from_options
    from agent.forecasting.results import backtest_report, write_forecasts
    from exporters.documents.forecast import backtest_json, backtest_text
    from forecast.backtest.walk import walk
    from forecast.backtest.window import CannotTest, ShortSeriesError

    given = input_from_options(options)
    tested = given.requests if options.requests and given.requests is not None else given.series
    try:
        walked = walk(
            tested,
            options.horizons,
            test_days=options.test_days,
            sundays=given.sundays,
            factors=given.factors,
            progress=lambda method, done, total: tell_progress(done / total, method),
        )
    except ShortSeriesError as error:
        raise CannotJudgeError(f"{given.name}: {error}") from error
    except CannotTest as error:
        raise SizewatchError(f"{given.name}: {error}") from error
    report = backtest_report(given.name, walked, given.notes if tested is given.series else given.notes[:-1])
    if options.emit is not None:
        write_forecasts(options.emit, walked, given.time_text)
    cli.print_result(options, backtest_json(report), backtest_text(report))
    return cli.Exit.FINE
