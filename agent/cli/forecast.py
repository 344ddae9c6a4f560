"""Command `sizewatch forecast`: expected demand, its uncertainty, and the accuracy of the last day.

The forecast libraries are imported on demand.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import click

from agent.cli.arguments import CONFIG, FINE, FORMAT, PATH, duration, print_result, tier_option
from agent.worker.process import ONE_THREAD

DAY_SECONDS = 86_400.0

HISTORY = (
    click.Option(
        ["--history"],
        type=PATH,
        metavar="CSV",
        help="timestamp,requests[,...], also gzipped; without it the demand that the daemon has kept of the tier",
    ),
    CONFIG,
    click.Option(
        ["--bin"],
        type=duration(),
        metavar="DURATION",
        help="sums over so long are forecast, such as 5m (default: the configuration's, or 5m)",
    ),
)
"""Where the demand comes from."""


def parameters() -> tuple[click.Parameter, ...]:
    text = "how far ahead, at most 24h (default: 15m)"
    ahead = click.Option(["--horizon"], type=duration(most=DAY_SECONDS), default="15m", metavar="15m", help=text)
    return tier_option("whose demand; default the only one"), *HISTORY, ahead, *FORMAT


def run(options: SimpleNamespace) -> int:
    # Before the import: numeric library threads only wait for each other here, and use cores others need.
    os.environ.update(ONE_THREAD)
    from agent.forecasting.input_series import input_from_options
    from agent.forecasting.results import forecast_now
    from exporters.documents.forecast import forecast_json, forecast_text

    given = input_from_options(options)
    forecast = forecast_now(options.tier or given.name, given, options.horizon)
    print_result(options, forecast_json(forecast), forecast_text(forecast))
    return FINE
